"""The marker writes down how far everything is settled, so that a restart reads on from there."""

from __future__ import annotations

from typing import Protocol

from anyio import move_on_after, sleep

from intern.actors.guard import surviving
from intern.conversations.attendance import Attendance
from intern.knowledge.marks import Marks

_PAUSE = 1.0  # seconds; a crash costs reading again what was settled since
_LAST_SECONDS = 5.0  # for the marks at the end


class MarkKeeper(Protocol):
    """Where marks are kept."""

    async def keep(self, moved: Marks, /) -> None:
        """Write down what changed, all or nothing. Raises KnowledgeError."""
        ...


async def marker(keeper: MarkKeeper, *, attendance: Attendance) -> None:
    """Keep the marks that moved, once a second until cancelled, and then once more."""
    moved = Marks()

    async def keep() -> None:
        nonlocal moved
        moved = moved.then(attendance.moved())
        with surviving("marker"):
            await keeper.keep(moved)
            moved = Marks()

    try:
        while True:
            await sleep(_PAUSE)
            await keep()
    finally:
        with move_on_after(_LAST_SECONDS, shield=True):
            await keep()
