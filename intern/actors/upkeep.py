"""Actors that keep sources, indices and posted answers up to date, at intervals and when they are woken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from anyio import EndOfStream, current_time, move_on_after, move_on_at, sleep, sleep_until
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.events import Events
from intern.actors.loops import Backoff, exponential_backoff, surviving, wake
from intern.core.flow import SourceChanged
from intern.sources.catalogue import unasked
from intern.sources.refresh import Refreshed
from intern.sources.searchable import Embedding

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


async def checker(
    check: Callable[[], Awaitable[None]], retract: Callable[[], Awaitable[None]] | None, *, interval_seconds: float
) -> None:
    """Look at once, and then `interval_seconds` after each look, until cancelled; without `retract`, only look."""
    while True:
        with surviving("checker"):
            await check()
            if retract is not None:
                await retract()
        await sleep(interval_seconds)


async def fetcher(refresh: Callable[[], Awaitable[Refreshed]], *, interval_seconds: float, events: Events) -> None:
    """Look at once, and then `interval_seconds` after each look, until cancelled.

    An actor of its own, or a changed file would wait for all the pages of a slow site.
    """
    while True:
        with surviving("fetcher"), unasked():
            refreshed = await refresh()
            if refreshed.changed or refreshed.removed or refreshed.pending:
                events.indexed(refreshed)
        await sleep(interval_seconds)


# Seconds between two looks without a wakeup: documents come from more places than wake this actor.
LOOKS_EVERY = 30.0


async def embedder(work: Embedding, *, backoff: Backoff = exponential_backoff) -> None:
    """Work until no document is left, then whenever there are new ones, until cancelled.

    An actor of its own: thousands of documents take minutes, and their words are found meanwhile.
    """
    retries = backoff()
    while True:
        failed = True
        with surviving("embedder"):
            while await work.some():
                pass
            failed, retries = False, backoff()
        if failed:
            await sleep(next(retries))
            continue
        with move_on_after(LOOKS_EVERY):
            await work.wait()


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
