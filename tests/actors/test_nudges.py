from __future__ import annotations

from collections.abc import Sequence

import pytest
from anyio import create_memory_object_stream, create_task_group, fail_after, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream

from intern.actors.nudges import follow, nudge

pytestmark = pytest.mark.anyio


class Numbers:
    """A log of numbers; a position is the number itself."""

    def __init__(self, *numbers: int, at_once: int = 2) -> None:
        self.held = list(numbers)
        self._at_once = at_once

    async def after(self, position: int | None, /) -> Sequence[int]:
        await checkpoint()
        return [n for n in self.held if position is None or n > position][: self._at_once]


async def read(log: Numbers, nudges: MemoryObjectReceiveStream[str], into: list[int], after: int | None = None) -> None:
    async for number in follow(log, nudges, after=after, position_of=lambda n: n):
        into += [number]  # seen at once, not at the end


async def test_a_follower_reads_what_lies_behind_its_position_then_waits() -> None:
    send, nudges = create_memory_object_stream[str](1)
    seen: list[int] = []
    with fail_after(5), nudges:
        async with create_task_group() as tg:
            tg.start_soon(read, Numbers(1, 2, 3, 4, 5), nudges, seen, 2)
            await wait_all_tasks_blocked()

            assert seen == [3, 4, 5]
            send.close()


async def test_a_nudge_makes_a_follower_look_again() -> None:
    send, nudges = create_memory_object_stream[str](1)
    log, seen = Numbers(1), list[int]()
    with fail_after(5), nudges:
        async with create_task_group() as tg:
            tg.start_soon(read, log, nudges, seen)
            await wait_all_tasks_blocked()
            log.held += [2, 3, 4]
            nudge(send, "look")
            await wait_all_tasks_blocked()

            assert seen == [1, 2, 3, 4]
            send.close()


async def test_a_follower_reads_to_the_end_of_the_log_before_it_ends() -> None:
    send, nudges = create_memory_object_stream[str](1)
    log, seen = Numbers(), list[int]()
    with fail_after(5), nudges:
        async with create_task_group() as tg:
            tg.start_soon(read, log, nudges, seen)
            await wait_all_tasks_blocked()
            log.held += [1, 2, 3]
            send.close()

    assert seen == [1, 2, 3]


async def test_a_nudge_never_waits_and_never_fails() -> None:
    send, nudges = create_memory_object_stream[str](1)
    with send:
        nudge(send, "look")
        nudge(send, "look")
        nudges.close()
        nudge(send, "look")
