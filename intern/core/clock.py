"""Time, handed in wherever a decision depends on it; and waiting for work."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

from anyio import Event


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


class Wakeup:
    """Lets one task wait until there is something to do."""

    def __init__(self) -> None:
        self._wakeup = Event()

    def wake(self) -> None:
        """Wake the task in `wait`: something was changed."""
        self._wakeup.set()

    async def wait(self) -> None:
        """Return after the next `wake`, or at once if there was one since the last return."""
        await self._wakeup.wait()
        self._wakeup = Event()
