from __future__ import annotations

from collections.abc import Hashable, Sequence, Set as AbstractSet

import pytest
from anyio import create_memory_object_stream, fail_after, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from anyio.streams.memory import MemoryObjectReceiveStream

from intern.actors.loops import DueRecord, follow, wake
from tests.worlds.actors import finishing
from tests.worlds.clock import all_quiet, leap

pytestmark = pytest.mark.leaps


class Numbers:
    """A log of numbers; a position is the number itself."""

    def __init__(self, *numbers: int, at_once: int = 2) -> None:
        self.held = list(numbers)
        self._at_once = at_once

    async def after(self, position: int | None, /) -> Sequence[int]:
        await checkpoint()
        return [n for n in self.held if position is None or n > position][: self._at_once]


async def read(
    log: Numbers, wakeups: MemoryObjectReceiveStream[str], into: list[int], after: int | None = None
) -> None:
    async for number in follow(log.after, wakeups, after=after, position_of=lambda n: n):
        into += [number]  # seen at once, not at the end


async def test_a_follower_reads_what_lies_behind_its_position_then_waits() -> None:
    send, wakeups = create_memory_object_stream[str](1)
    seen: list[int] = []
    with fail_after(5), wakeups:
        async with finishing(read, Numbers(1, 2, 3, 4, 5), wakeups, seen, 2):
            await wait_all_tasks_blocked()

            assert seen == [3, 4, 5]
            send.close()


async def test_a_nudge_makes_a_follower_look_again() -> None:
    send, wakeups = create_memory_object_stream[str](1)
    log, seen = Numbers(1), list[int]()
    with fail_after(5), wakeups:
        async with finishing(read, log, wakeups, seen):
            await wait_all_tasks_blocked()
            log.held += [2, 3, 4]
            wake(send, "look")
            await wait_all_tasks_blocked()

            assert seen == [1, 2, 3, 4]
            send.close()


async def test_a_follower_reads_to_the_end_of_the_log_before_it_ends() -> None:
    send, wakeups = create_memory_object_stream[str](1)
    log, seen = Numbers(), list[int]()
    with fail_after(5), wakeups:
        async with finishing(read, log, wakeups, seen):
            await wait_all_tasks_blocked()
            log.held += [1, 2, 3]
            send.close()

    assert seen == [1, 2, 3]


async def test_a_nudge_never_waits_and_never_fails() -> None:
    send, wakeups = create_memory_object_stream[str](1)
    with send:
        wake(send, "look")
        wake(send, "look")
        wakeups.close()
        wake(send, "look")


class Older:
    """Numbers that are due again, or the time of the next check."""

    def __init__(self, *due: tuple[str, int], seconds: float | None = None) -> None:
        self.due_now = list(due)
        self.seconds = seconds
        self.looks = 0

    async def due(self, handed: AbstractSet[Hashable], /) -> DueRecord[int]:
        await checkpoint()
        self.looks += 1
        for key, number in self.due_now:
            if key not in handed:
                return DueRecord(record=number, key=key)
        return DueRecord(seconds=self.seconds)


async def read_both(log: Numbers, older: Older, wakeups: MemoryObjectReceiveStream[str], into: list[int]) -> None:
    async for number in follow(log.after, wakeups, after=None, position_of=lambda n: n, again=older.due):
        into += [number]
        if number == -1:
            log.held += [3]


async def test_what_is_due_again_comes_once_and_whatever_is_new_comes_first() -> None:
    send, wakeups = create_memory_object_stream[str](1)
    log, older, seen = Numbers(1, 2), Older(("a", -1), ("b", -2)), list[int]()
    with fail_after(5), wakeups:
        async with finishing(read_both, log, older, wakeups, seen):
            await wait_all_tasks_blocked()
            assert seen == [1, 2, -1, 3, -2]
            older.due_now = [("b", -2), ("a, later", -1)]
            wake(send, "look")
            await wait_all_tasks_blocked()
            assert seen == [1, 2, -1, 3, -2, -1]
            send.close()


async def test_a_follower_wakes_when_the_next_one_is_due_and_not_before() -> None:
    send, wakeups = create_memory_object_stream[str](1)
    log, older, seen = Numbers(), Older(seconds=600), list[int]()
    with fail_after(5000), wakeups:
        async with finishing(read_both, log, older, wakeups, seen):
            await all_quiet()
            older.due_now = [("a", -2)]
            await leap(590)
            await all_quiet()
            assert (seen, older.looks) == ([], 1)
            older.seconds = None
            await leap(11)
            await all_quiet()
            assert seen == [-2]
            looks = older.looks
            await leap(3000)
            await all_quiet()
            assert older.looks == looks
            send.close()


async def test_what_is_due_is_handed_on_before_a_follower_ends() -> None:
    send, wakeups = create_memory_object_stream[str](1)
    send.close()
    seen: list[int] = []
    with fail_after(5), wakeups:
        await read_both(Numbers(1), Older(("a", -2), seconds=600), wakeups, seen)
    assert seen == [1, -2]
