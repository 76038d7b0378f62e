"""The scout looks in from time to time, so that a changed file is found though nobody said a word."""

from __future__ import annotations

from anyio import sleep
from anyio.streams.memory import MemoryObjectSendStream

from intern.actors.nudges import nudge
from intern.domain import SourceChanged


async def scout(changed: MemoryObjectSendStream[SourceChanged], *, interval_seconds: float) -> None:
    """Nudge the indexer at once, and then every `interval_seconds`, until cancelled."""
    async with changed:
        while True:
            nudge(changed, SourceChanged())
            await sleep(interval_seconds)
