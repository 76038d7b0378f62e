"""Time, handed in wherever a decision depends on it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time of day."""

    def now(self) -> datetime:
        """The present moment: UTC, aware."""
        ...


class SystemClock:
    """The machine's own clock. It may stand still or go back; whoever needs more says so."""

    def now(self) -> datetime:
        """The present moment: UTC, aware."""
        return datetime.now(UTC)
