"""The marker writes down how far everything is settled, so that a restart reads on from there."""

from __future__ import annotations

from typing import Protocol

from anyio import move_on_after, sleep

from intern.actors.guard import growing_pauses, surviving
from intern.chat.checkpoints import Attendance
from intern.stores.sqlite.checkpoints import Marks

_PAUSE = 1.0  # seconds; a crash costs reading again what was settled since
_LONGEST_PAUSE = 60.0  # while the disk takes nothing
_LAST_SECONDS = 3.0  # for the marks at the end


class MarkKeeper(Protocol):
    """Where marks are kept."""

    async def keep(self, moved: Marks, /) -> None:
        """Write down what changed, all or nothing. Raises KnowledgeError."""
        ...


async def marker(keeper: MarkKeeper, *, attendance: Attendance) -> None:
    """Keep the marks that moved, once a second until cancelled, and then once more; less often while that fails."""
    moved = Marks()

    async def keep() -> bool:
        nonlocal moved
        moved = moved.then(attendance.moved())
        kept = False
        with surviving("marker"):
            await keeper.keep(moved)
            moved, kept = Marks(), True
        return kept

    try:
        while True:
            for pause in growing_pauses(_PAUSE, _LONGEST_PAUSE):
                await sleep(pause)
                if await keep():
                    break
    finally:
        with move_on_after(_LAST_SECONDS, shield=True):
            await keep()
