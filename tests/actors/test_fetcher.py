"""The fetcher refreshes pages from time to time, despite failures, and reports only pages that it fetched."""

from __future__ import annotations

from functools import partial

import pytest
from anyio import fail_after, wait_all_tasks_blocked

from intern.actors.activity import ActivityReporter
from intern.actors.upkeep import refresh_pages, run_regularly
from intern.core.errors import KnowledgeError, ModelReplyError
from intern.core.ids import SourceId
from intern.sources.catalogue import apply_description_failure, is_paused
from intern.sources.refresh import RefreshReport
from intern.stores.source_cache import CachedPage
from tests.worlds.actors import running
from tests.worlds.clock import HandClock, leap

pytestmark = pytest.mark.leaps


class Pages:
    def __init__(self, *ends: RefreshReport | Exception) -> None:
        self.looks = 0
        self._ends = list(ends)

    async def refresh_pages(self) -> RefreshReport:
        self.looks += 1
        end = self._ends.pop(0) if self._ends else RefreshReport()
        if isinstance(end, Exception):
            raise end
        return end


class Patient(Pages):
    """Notes whether resting pages are left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.rested: list[bool] = []

    async def refresh_pages(self) -> RefreshReport:
        now = self.clock.now()
        failed = CachedPage(content_hash="h", summary_text="", last_indexed_at=now, summary_pending=True, url="u")
        self.rested.append(is_paused(apply_description_failure(failed, ModelReplyError("junk"), now), now))
        return await super().refresh_pages()


class Told(ActivityReporter):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[RefreshReport] = []

    def report_index_refresh(self, refreshed: RefreshReport) -> None:
        self.told.append(refreshed)


async def test_it_leaves_alone_what_the_model_could_not_describe() -> None:
    pages = Patient()
    with fail_after(5):
        async with running(
            partial(
                run_regularly,
                "fetcher",
                partial(refresh_pages, pages.refresh_pages, ActivityReporter()),
                interval_seconds=600,
            )
        ):
            await wait_all_tasks_blocked()
    assert pages.rested == [True]


async def test_it_looks_at_once_and_after_every_interval_whatever_fails() -> None:
    changed = RefreshReport(changed=(SourceId("kb:https://docs.example.org/"),))
    pages, events = Pages(RefreshReport(), KnowledgeError("the disk is gone"), changed), Told()
    with fail_after(4000):
        async with running(
            partial(run_regularly, "fetcher", partial(refresh_pages, pages.refresh_pages, events), interval_seconds=600)
        ):
            await wait_all_tasks_blocked()
            assert pages.looks == 1
            for looks in (2, 3, 4):
                await leap(601)
                await wait_all_tasks_blocked()
                assert pages.looks == looks
            assert events.told == [changed]
