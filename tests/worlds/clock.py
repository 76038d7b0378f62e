"""Clocks that only a test advances: one to hand in, and the event loop's own.

The loop's time leaps on a test's request, on both backends. Otherwise it runs as usual, so threads and files keep up.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import trio.lowlevel
from anyio import CapacityLimiter, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from anyio.to_thread import current_default_thread_limiter
from sniffio import current_async_library
from trio.testing import MockClock


class HandClock:
    """A clock that only a test advances."""

    def __init__(self, now: datetime = datetime(2026, 2, 1, 3, 10, 56, tzinfo=UTC)) -> None:
        self._now = now

    def now(self) -> datetime:
        return self._now

    def turn(self, **delta: float) -> None:
        self._now += timedelta(**delta)


class LeapingLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, some seconds ahead."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def leaping(backend: str) -> tuple[str, dict[str, Any]]:
    """Return the backend for `anyio_backend`, with a clock that can `leap`."""
    return (backend, {"loop_factory": LeapingLoop} if backend == "asyncio" else {"clock": MockClock(rate=1.0)})


async def leap(seconds: float) -> None:
    """Advance the time by this much, and wake all tasks that waited for that."""
    if current_async_library() == "asyncio":
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LeapingLoop)
        loop.ahead += seconds
    else:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        clock.jump(seconds)
    for _ in range(3):  # the loop checks its clock, and wakes due tasks, between two steps of ours
        await checkpoint()


async def all_quiet(*threads: CapacityLimiter) -> None:
    """Wait until each task waits for another one, or for a time, and no thread of any of these limiters works."""
    limiters = (current_default_thread_limiter(), *threads)
    quiet = 0
    while quiet < 2:  # an ending thread has a task that goes on
        await wait_all_tasks_blocked()
        quiet = quiet + 1 if not any(each.borrowed_tokens for each in limiters) else 0
