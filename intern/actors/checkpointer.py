"""The checkpointer writes down how far everything is settled, so that a restart reads on from there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anyio import move_on_after, sleep

from intern.actors.guard import exponential_backoff, surviving
from intern.chat.checkpoints import Checkpoints
from intern.stores.sqlite.checkpoints import Marks

_PAUSE = 1.0  # seconds; a crash costs reading again what was settled since
_LONGEST_PAUSE = 60.0  # while the disk takes nothing
_LAST_SECONDS = 3.0  # for the marks at the end


async def checkpointer(keep: Callable[[Marks], Awaitable[None]], *, checkpoints: Checkpoints) -> None:
    """Keep the marks that moved, once a second until cancelled, and then once more; less often while that fails."""
    moved = Marks()

    async def tried() -> bool:
        nonlocal moved
        moved = moved.then(checkpoints.moved())
        kept = False
        with surviving("checkpointer"):
            await keep(moved)
            moved, kept = Marks(), True
        return kept

    try:
        while True:
            for pause in exponential_backoff(_PAUSE, _LONGEST_PAUSE):
                await sleep(pause)
                if await tried():
                    break
    finally:
        with move_on_after(_LAST_SECONDS, shield=True):
            await tried()
