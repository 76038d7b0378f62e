"""The scout looks in from time to time, so that a changed file is found though nobody said a word.

The explorer does so beyond the sources: it works off what discovery asks itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anyio import current_time, move_on_after, sleep, sleep_until
from anyio.streams.memory import MemoryObjectSendStream

from intern.actors.guard import surviving
from intern.actors.wakeups import wake
from intern.core.flow import SourceChanged

# Seconds between two looks, whatever changes meanwhile: a file that is written to all the time costs a call each time.
SHORTEST_WAIT = 60.0


async def scout(changed: MemoryObjectSendStream[SourceChanged], *, interval_seconds: float) -> None:
    """Wake the indexer at once, and then every `interval_seconds`, until cancelled."""
    async with changed:
        while True:
            wake(changed, SourceChanged())
            await sleep(interval_seconds)


async def explorer(
    discover: Callable[[], Awaitable[object]],
    *,
    interval_seconds: float,
    changed: Callable[[], Awaitable[object]],
) -> None:
    """Work at once, then every `interval_seconds`, or sooner where files changed, until cancelled.

    An actor of its own: ten files may take minutes, and the indices need not wait for them.
    """
    while True:
        begun = current_time()
        with surviving("explorer"):
            await discover()
        with move_on_after(interval_seconds):
            await changed()
        await sleep_until(begun + min(SHORTEST_WAIT, interval_seconds))
