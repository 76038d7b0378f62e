"""The indexer keeps the indices true to files and topics: in bursts, and never in anybody's way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from anyio import EndOfStream, current_time, move_on_after, move_on_at
from anyio.streams.memory import MemoryObjectReceiveStream

from intern.actors.events import Events
from intern.actors.guard import Backoff, exponential_backoff, surviving
from intern.core.flow import SourceChanged
from intern.sources.catalogue import unasked
from intern.sources.refresh import Refreshed

# Seconds: under a steady stream of changes the index is never older than this. Each round costs a call for every topic
# that has changed; a new topic need not wait for it, since it is listed at once by its first question.
LONGEST_BURST = 300.0


_retry_pauses = partial(exponential_backoff, first=10.0)


async def indexer(
    inbox: MemoryObjectReceiveStream[SourceChanged],
    *,
    refresh: Callable[[], Awaitable[Refreshed]],
    settle_seconds: float,
    events: Events,
    backoff: Backoff = _retry_pauses,
) -> None:
    """Refresh once each burst of changes has settled; what is left pending is tried again, with growing pauses.

    Changes come with each capture, so what the model could not describe for a reason of its own is left alone then.
    """
    retries = backoff()
    retry_in: float | None = None
    async with inbox:
        while True:
            try:
                with move_on_after(retry_in):
                    await inbox.receive()
                    await _settled(inbox, settle_seconds)
            except EndOfStream:
                return
            retry_in = next(retries)
            with surviving("indexer"), unasked():
                refreshed = await refresh()
                events.indexed(refreshed)
                if not refreshed.pending:
                    retries, retry_in = backoff(), None


async def _settled(inbox: MemoryObjectReceiveStream[SourceChanged], quiet: float) -> None:
    latest = current_time() + LONGEST_BURST
    while current_time() < latest:
        with move_on_at(min(current_time() + quiet, latest)) as waiting:
            try:
                await inbox.receive()
            except EndOfStream:
                return  # what changed before the end is still indexed
        if waiting.cancelled_caught:
            return
