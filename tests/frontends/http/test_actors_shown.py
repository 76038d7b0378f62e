"""The state of an actor, by the streams that it receives from."""

from __future__ import annotations

from anyio import create_task_group, wait_all_tasks_blocked

from intern.actors.pipeline import Stream, StreamMonitor
from intern.core.flow import SourceChanged

STREAM = Stream[SourceChanged](SourceChanged, ("index_timer",), "indexer", 1)


async def test_who_takes_waits_for_more_or_is_busy_or_has_left() -> None:
    fill = StreamMonitor()
    sends, receives = STREAM.open(fill)
    with sends:
        async with receives, create_task_group() as tg:
            sends.send_nowait(SourceChanged())
            assert [(each.to, each.taking, each.waiting) for each in fill.read_fills()] == [("indexer", "busy", 1)]
            await receives.receive()
            assert [(each.taking, each.waiting) for each in fill.read_fills()] == [("busy", 0)]
            tg.start_soon(receives.receive)
            await wait_all_tasks_blocked()
            assert [each.taking for each in fill.read_fills()] == ["waits"]
            sends.send_nowait(SourceChanged())
        assert [each.taking for each in fill.read_fills()] == ["gone"]
