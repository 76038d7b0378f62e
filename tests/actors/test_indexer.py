from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from anyio import create_memory_object_stream
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream

from intern.actors.activity import ActivityReporter
from intern.actors.loops import Backoff, wake
from intern.actors.upkeep import LONGEST_BURST, index_timer, indexer
from intern.core.errors import KnowledgeError, ModelReplyError
from intern.core.flow import SourceChanged
from intern.core.ids import SourceId
from intern.sources.descriptions import SUMMARIZE_SOURCE
from intern.sources.refresh import PendingSummary, RefreshReport
from tests.sources.folders import Shelf, praised
from tests.worlds.actors import NO_PAUSES, Prepared, finishing, running


async def index(
    inbox: MemoryObjectReceiveStream[SourceChanged],
    refresh: Callable[[], Awaitable[RefreshReport]],
    settles: float = 0,
    *backoff: Backoff,
) -> None:
    more = {"backoff": backoff[0]} if backoff else {}
    await indexer(inbox, refresh=refresh, settle_seconds=settles, events=ActivityReporter(), **more)


async def test_changes_before_the_end_are_still_indexed() -> None:
    changes, inbox = create_memory_object_stream[SourceChanged](1)
    refresh = Prepared(RefreshReport())
    changes.send_nowait(SourceChanged())
    changes.close()
    await index(inbox, refresh)
    assert len(refresh.calls) == 1


async def test_what_stays_pending_is_tried_again_though_nobody_nudges() -> None:
    changes, inbox = create_memory_object_stream[SourceChanged](1)
    pending = RefreshReport(pending=(PendingSummary(SourceId("kb:a.md"), "no model"),))
    refresh = Prepared(RefreshReport(), pending, KnowledgeError("the disk hiccups"), pending)
    with changes:
        async with running(index, inbox, refresh, 0, NO_PAUSES):
            changes.send_nowait(SourceChanged())
            while len(refresh.calls) < 4:
                await checkpoint()
            assert len(refresh.calls) == 4


class Listing:
    """The index of a shelf; one of its documents changes before each refresh."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.refreshed = 0

    async def refresh(self) -> RefreshReport:
        self.refreshed += 1
        self.shelf.source("busy.md", f"version {self.refreshed}")
        return await self.shelf.refresh_sources()


async def test_a_document_that_the_model_cannot_describe_costs_one_call_however_many_captures_come(
    tmp_path: Path,
) -> None:
    async with Shelf.at(tmp_path) as shelf:
        shelf.source("bad.md", "Bad.")
        shelf.model.always(
            SUMMARIZE_SOURCE,
            lambda given: ModelReplyError("junk") if given.source_id == "kb:bad.md" else praised(given),
        )
        changes, inbox = create_memory_object_stream[SourceChanged](0)
        indices = Listing(shelf)
        async with finishing(index, inbox, indices.refresh):
            with changes:
                for _ in range(15):
                    await changes.send(SourceChanged())
        asked = [given.source_id for given in shelf.model.calls(SUMMARIZE_SOURCE)]
        assert indices.refreshed >= 10
        assert asked.count(SourceId("kb:bad.md")) == 1
        assert asked.count(SourceId("kb:busy.md")) == indices.refreshed

        # A request tries it again at once.
        await indices.refresh()
        asked = [given.source_id for given in shelf.model.calls(SUMMARIZE_SOURCE)]
        assert asked.count(SourceId("kb:bad.md")) == 2


@pytest.mark.jumps
async def test_a_burst_is_indexed_once_it_settled_and_an_endless_one_all_the_same() -> None:
    refresh = Prepared(RefreshReport())

    changes, inbox = create_memory_object_stream[SourceChanged](1)
    async with finishing(index, inbox, refresh, 2):
        with changes:
            for _ in range(5):
                wake(changes, SourceChanged())
                await trio.sleep(1)
            assert len(refresh.calls) == 0
            await trio.sleep(3)
            assert len(refresh.calls) == 1

            for _ in range(int(LONGEST_BURST) + 2):
                wake(changes, SourceChanged())
                await trio.sleep(1)
            assert len(refresh.calls) == 2


@pytest.mark.jumps
async def test_the_scout_looks_at_once_and_then_at_each_interval() -> None:
    seen: list[float] = []

    start = trio.current_time()
    changes, inbox = create_memory_object_stream[SourceChanged](1)
    async with running(partial(index_timer, changes, interval_seconds=600)):
        with inbox:
            for _ in range(3):
                await inbox.receive()
                seen.append(trio.current_time() - start)
    assert seen == [0, 600, 1200]
