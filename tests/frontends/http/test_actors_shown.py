"""What can be told of an actor by the streams that it takes from."""

from __future__ import annotations

import pytest
from anyio import create_task_group, fail_after, wait_all_tasks_blocked

from intern.actors.pipeline import FILINGS, WITHDRAWALS, Fill, Stream, StreamFill
from intern.core.flow import SourceChanged
from intern.service.running import Actor

pytestmark = pytest.mark.anyio

STREAM = Stream[SourceChanged](SourceChanged, ("scout",), "indexer", 1)


async def test_who_takes_waits_for_more_or_is_busy_or_has_left() -> None:
    fill = Fill()
    sends, receives = STREAM.open(fill)
    with fail_after(5), sends:
        async with receives, create_task_group() as tg:
            sends.send_nowait(SourceChanged())
            assert [(each.to, each.taking, each.waiting) for each in fill.now()] == [("indexer", "busy", 1)]
            await receives.receive()
            assert [(each.taking, each.waiting) for each in fill.now()] == [("busy", 0)]
            tg.start_soon(receives.receive)
            await wait_all_tasks_blocked()
            assert [each.taking for each in fill.now()] == ["waits"]
            sends.send_nowait(SourceChanged())
        assert [each.taking for each in fill.now()] == ["gone"]


@pytest.mark.parametrize(
    ("filings", "withdrawals", "state"),
    [
        ("waits", "waits", "waits"),
        ("busy", "waits", "busy"),
        ("waits", "gone", "waits"),
        ("gone", "busy", "busy"),
        ("gone", "gone", "gone"),
    ],
)
def test_who_takes_from_several_is_busy_where_one_of_them_has_to_wait(
    filings: str, withdrawals: str, state: str
) -> None:
    takes = [
        StreamFill(name=stream.name, kinds=stream.kinds, waiting=0, size=stream.size, to=stream.to, taking=taking)  # type: ignore[arg-type]
        for stream, taking in ((FILINGS, filings), (WITHDRAWALS, withdrawals))
    ]
    assert Actor(name="integrator", takes=tuple(takes)).state == state
