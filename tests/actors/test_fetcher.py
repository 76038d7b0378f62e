"""The fetcher looks after pages from time to time, whatever fails, and tells only of what it did."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from anyio import create_task_group, fail_after, wait_all_tasks_blocked

from intern.actors.events import Events
from intern.actors.upkeep import fetch, regularly
from intern.core.errors import KnowledgeError, ModelReplyError
from intern.core.ids import SourceId
from intern.sources.catalogue import not_described, rests
from intern.sources.refresh import Refreshed
from intern.stores.library import CachedPage
from tests.fakes import HandClock
from tests.leaping import leap, leaping

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return leaping(request.param)


class Pages:
    def __init__(self, *ends: Refreshed | Exception) -> None:
        self.looks = 0
        self._ends = list(ends)

    async def refresh_pages(self) -> Refreshed:
        self.looks += 1
        end = self._ends.pop(0) if self._ends else Refreshed()
        if isinstance(end, Exception):
            raise end
        return end


class Patient(Pages):
    """Notes whether what rests is left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.rested: list[bool] = []

    async def refresh_pages(self) -> Refreshed:
        now = self.clock.now()
        failed = CachedPage(content_hash="h", summary_text="", last_indexed_at=now, summary_pending=True, url="u")
        self.rested.append(rests(not_described(failed, ModelReplyError("junk"), now), now))
        return await super().refresh_pages()


class Told(Events):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[Refreshed] = []

    def indexed(self, refreshed: Refreshed) -> None:
        self.told.append(refreshed)


async def test_it_leaves_alone_what_the_model_could_not_describe() -> None:
    pages = Patient()
    with fail_after(5):
        async with create_task_group() as tg:
            tg.start_soon(
                partial(regularly, "fetcher", partial(fetch, pages.refresh_pages, Events()), interval_seconds=600)
            )
            await wait_all_tasks_blocked()
            tg.cancel_scope.cancel()
    assert pages.rested == [True]


async def test_it_looks_at_once_and_after_every_interval_whatever_fails() -> None:
    changed = Refreshed(changed=(SourceId("kb:https://docs.example.org/"),))
    pages, events = Pages(Refreshed(), KnowledgeError("the disk is gone"), changed), Told()
    with fail_after(4000):
        async with create_task_group() as tg:
            tg.start_soon(
                partial(regularly, "fetcher", partial(fetch, pages.refresh_pages, events), interval_seconds=600)
            )
            await wait_all_tasks_blocked()
            assert pages.looks == 1
            for looks in (2, 3, 4):
                await leap(601)
                await wait_all_tasks_blocked()
                assert pages.looks == looks
            assert events.told == [changed]
            tg.cancel_scope.cancel()
