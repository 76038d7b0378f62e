"""Time, handed in wherever a decision depends on it; and waiting for work."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from anyio import Event

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


def to_microseconds(moment: datetime) -> int:
    """Return a time in microseconds since 1970."""
    return (moment - _EPOCH) // _TICK


def from_microseconds(micros: int) -> datetime:
    """Return the time for microseconds since 1970."""
    return _EPOCH + micros * _TICK


class Clock(Protocol):
    """A source of the time of day."""

    def now(self) -> datetime:
        """Return the present moment: UTC, aware."""
        ...


class SystemClock:
    """The machine's own clock. It may stand still or go back."""

    def now(self) -> datetime:
        """Return the present moment: UTC, aware."""
        return datetime.now(UTC)


def read_boot_clock() -> float:
    """Return seconds that also pass while the machine sleeps, where its system counts them; they never go back."""
    clock: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Wakeup:
    """Lets one task wait until there is something to do."""

    def __init__(self) -> None:
        self._wakeup = Event()

    def wake(self) -> None:
        """Wake the task in `wait`: something changed."""
        self._wakeup.set()

    async def wait(self) -> None:
        """Return after the next `wake`, or at once if there was one since the last return."""
        await self._wakeup.wait()
        self._wakeup = Event()
