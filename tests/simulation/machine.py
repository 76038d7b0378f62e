"""Repeatable runs of the whole bot: one seed decides the events, and the order in which tasks run.

Time is trio's and jumps while everybody waits. Work for threads is done in the loop, a moment later; the database's
writer thread is waited for after each step that gave it something to do. So no order depends on how busy we are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from random import Random
from select import select
from socket import socket
from threading import Semaphore
from time import monotonic, sleep
from typing import Any, Protocol, TypeVar

import outcome
import pytest
import trio
from trio import _threads
from trio._core import _run
from trio.testing import MockClock

T = TypeVar("T")

_PATIENCE = 10.0  # real seconds for one write
_A_MOMENT = 0.0001  # real seconds between two looks at whether a write is done: to look all the time slows it down


class Jumping(Protocol):
    """A clock that jumps while all tasks wait."""

    def current_time(self) -> float: ...


class SimulatedTime:
    """The bot's clock, which is trio's."""

    def __init__(self, clock: Jumping, begin: datetime = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)) -> None:
        self._clock = clock
        self._offset = clock.current_time()
        self._begin = begin

    def seconds(self) -> float:
        """Since the beginning."""
        return self._clock.current_time() - self._offset

    def now(self) -> datetime:
        return self._begin + timedelta(seconds=self.seconds())


class Writer:
    """While a writer thread works, all else waits.

    A thread takes work from its queue only when `wait` lets it. While calls of threads wait in the loop, it lets none.
    """

    def __init__(self, calls: Callable[[], int], wakeup: Callable[[], socket]) -> None:
        """Make a writer. `calls` counts the calls of threads that the loop must still run; `wakeup` wakes the loop."""
        self._calls, self._wakeup = calls, wakeup
        self._queues: list[_Held] = []

    def queue(self) -> SimpleQueue[Any]:
        """Return a queue for a thread that writes."""
        self._queues.append(_Held())
        return self._queues[-1]

    def wait(self) -> None:
        """Call it after each step."""
        if self._calls():
            return
        for queue in self._queues:
            if not queue.empty():
                self._let_work(queue)

    def _let_work(self, queue: _Held) -> None:
        before, end = self._calls(), monotonic() + _PATIENCE
        queue.turns.release()
        while self._calls() == before:
            assert monotonic() < end, "the database's writer thread does not answer"
            select([self._wakeup()], [], [], _PATIENCE)
            if self._calls() == before:  # it was woken before, and did not read that yet
                sleep(_A_MOMENT)


class _Held(SimpleQueue[Any]):
    """A queue whose reader waits for its turn, too."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Semaphore(0)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002
        self.turns.acquire()
        return super().get(block, timeout)


class _WriterOfTrio(Writer, trio.abc.Instrument):
    def __init__(self) -> None:
        super().__init__(self._count, lambda: trio.lowlevel.current_trio_token()._reentry_queue.wakeup.wakeup_sock)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self.wait()

    @staticmethod
    def _count() -> int:
        calls = trio.lowlevel.current_trio_token()._reentry_queue
        with calls.lock:  # the loop itself is woken by then
            return len(calls.queue)


class _Threads:
    """Does the work for threads in the loop, a moment later."""

    def __init__(self, rng: Random, pauses: Sequence[float]) -> None:
        self._rng = rng
        self._pauses = pauses

    def start(self, work: Callable[[], T], deliver: Callable[[outcome.Outcome[T]], object], name: str = "") -> None:
        """Do the work of trio's `start_thread_soon`."""
        del name
        pause = self._rng.choice(self._pauses)

        async def later() -> None:
            await trio.sleep(pause)
            deliver(outcome.capture(work))

        trio.lowlevel.spawn_system_task(later)


@contextmanager
def _one_order(seed: int, writer: Writer, pauses: Sequence[float]) -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("intern.stores.engines.sqlite.database.SimpleQueue", writer.queue)
        patch.setattr(_threads, "start_thread_soon", _Threads(Random(seed), pauses).start)
        # Tasks that are ready at one time still run in any order, but the seed chooses it.
        patch.setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr(_run, "_r", Random(seed))
        yield


PAUSES = (0.0, 0.0, 0.001, 0.02, 0.2)
"""Seconds that work in a thread may take."""


def run_seed(
    seed: int,
    main: Callable[[SimulatedTime], Awaitable[T]],
    *instruments: trio.abc.Instrument,
    pauses: Sequence[float] = PAUSES,
) -> T:
    """Run `main` as this seed has it, always in the same way."""
    clock = MockClock(autojump_threshold=0)

    async def begin() -> T:
        return await main(SimulatedTime(clock))

    writer = _WriterOfTrio()
    with _one_order(seed, writer, pauses):
        return trio.run(begin, clock=clock, instruments=[writer, *instruments])
