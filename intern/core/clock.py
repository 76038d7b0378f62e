"""Time, handed in wherever a decision depends on it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


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
