from __future__ import annotations

from functools import partial

import pytest
from anyio import (
    EndOfStream,
    WouldBlock,
    create_memory_object_stream,
    fail_after,
    wait_all_tasks_blocked,
)
from anyio.streams.memory import MemoryObjectReceiveStream

from intern.actors.upkeep import index_timer
from intern.core.flow import SourceChanged
from tests.worlds.actors import running
from tests.worlds.clock import leap

pytestmark = pytest.mark.leaps


async def woken(stream: MemoryObjectReceiveStream[SourceChanged]) -> bool:
    """Return whether there was a wakeup, and take it."""
    await wait_all_tasks_blocked()
    try:
        stream.receive_nowait()
    except WouldBlock:
        return False
    return True


async def test_it_nudges_at_once_and_then_once_every_interval() -> None:
    changed, seen = create_memory_object_stream[SourceChanged](1)
    with seen, fail_after(5000):
        async with running(partial(index_timer, changed, interval_seconds=600)):
            assert await woken(seen)
            for _ in range(3):
                assert not await woken(seen)
                await leap(590)
                assert not await woken(seen)
                await leap(11)
                assert await woken(seen)


async def test_an_indexer_that_is_busy_or_gone_does_not_stop_it() -> None:
    changed, seen = create_memory_object_stream[SourceChanged](1)
    with fail_after(5000):
        async with running(partial(index_timer, changed, interval_seconds=600)):
            await wait_all_tasks_blocked()
            await leap(601)  # the first wakeup still lies there
            await wait_all_tasks_blocked()
            assert await woken(seen)
            assert not await woken(seen)
            seen.close()
            await leap(601)
            await wait_all_tasks_blocked()
            assert changed.statistics().open_send_streams == 1


async def test_its_end_is_closed_when_it_is_cancelled() -> None:
    changed, seen = create_memory_object_stream[SourceChanged](1)
    with seen, fail_after(5):
        async with running(partial(index_timer, changed, interval_seconds=600)):
            assert await woken(seen)
        with pytest.raises(EndOfStream):
            await seen.receive()
