"""The fetcher refreshes pages from time to time, despite failures, and reports only pages that it fetched."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from anyio import fail_after, wait_all_tasks_blocked

from intern.actors.activity import ActivityReporter
from intern.actors.upkeep import refresh_pages, run_regularly
from intern.core.errors import KnowledgeError, ModelReplyError
from intern.core.ids import SourceId
from intern.sources.catalogue import apply_description_failure, is_paused
from intern.sources.refresh import RefreshReport
from intern.stores.source_cache import CachedPage
from tests.worlds.actors import Prepared, running
from tests.worlds.clock import HandClock, leap

pytestmark = pytest.mark.leaps


class Patient(Prepared[RefreshReport]):
    """Notes whether resting pages are left alone."""

    def __init__(self) -> None:
        super().__init__(RefreshReport())
        self.clock = HandClock()
        self.rested: list[bool] = []

    async def __call__(self, *arguments: Any) -> RefreshReport:
        now = self.clock.now()
        failed = CachedPage(content_hash="h", summary_text="", last_indexed_at=now, summary_pending=True, url="u")
        self.rested.append(is_paused(apply_description_failure(failed, ModelReplyError("junk"), now), now))
        return await super().__call__()


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
                partial(refresh_pages, pages, ActivityReporter()),
                interval_seconds=600,
            )
        ):
            await wait_all_tasks_blocked()
    assert pages.rested == [True]


async def test_it_looks_at_once_and_after_every_interval_whatever_fails() -> None:
    changed = RefreshReport(changed=(SourceId("kb:https://docs.example.org/"),))
    pages, events = Prepared(RefreshReport(), RefreshReport(), KnowledgeError("the disk is gone"), changed), Told()
    with fail_after(4000):
        async with running(
            partial(run_regularly, "fetcher", partial(refresh_pages, pages, events), interval_seconds=600)
        ):
            await wait_all_tasks_blocked()
            assert len(pages.calls) == 1
            for looks in (2, 3, 4):
                await leap(601)
                await wait_all_tasks_blocked()
                assert len(pages.calls) == looks
            assert events.told == [changed]
