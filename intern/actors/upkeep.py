"""Actors that keep sources, indices and posted answers up to date, at intervals and after wakeups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from anyio import EndOfStream, current_time, move_on_after, move_on_at, sleep, sleep_forever, sleep_until
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender

from intern.actors.activity import ActivityReporter
from intern.actors.loops import Backoff, exponential_backoff, surviving, wake
from intern.core.flow import SourceChanged
from intern.sources.catalogue import respect_pauses
from intern.sources.refresh import RefreshReport

# Seconds between two rounds of the explorer: each costs a model call for a file that changes all the time.
SHORTEST_WAIT = 60.0
# Seconds between two checks for documents without a vector: not every place that adds them wakes the embedder.
EMBEDS_EVERY = 30.0


async def index_timer(changed: Sender[SourceChanged], *, interval_seconds: float) -> None:
    """Wake the indexer at once, and then every `interval_seconds`, until cancelled."""
    async with changed:
        while True:
            wake(changed, SourceChanged())
            await sleep(interval_seconds)


async def run_regularly(
    name: str,
    *work: Callable[[], Awaitable[object]],
    interval_seconds: float,
    woken: Callable[[], Awaitable[object]] = sleep_forever,
    shortest_wait: float = 0.0,
    backoff: Backoff | None = None,
) -> None:
    """Do each piece of `work` at once, then `interval_seconds` later or when `woken` returns, until cancelled.

    A failing piece holds up no other. A piece begins again after `shortest_wait` at the earliest. After failures, it
    waits for the pauses of `backoff` instead.
    """
    retries = backoff() if backoff else None
    while True:
        begun, done = current_time(), 0
        for act in work:
            with surviving(name):
                await act()
                done += 1
        if done < len(work) and retries:
            await sleep(next(retries))
            continue
        retries = backoff() if backoff else None
        with move_on_after(interval_seconds):
            await woken()
        await sleep_until(begun + min(shortest_wait, interval_seconds))


async def refresh_pages(refresh: Callable[[], Awaitable[RefreshReport]], events: ActivityReporter) -> None:
    """Refresh the web pages that are due, except those whose summary failed lately."""
    with respect_pauses():
        refreshed = await refresh()
    if refreshed.changed or refreshed.removed or refreshed.pending:
        events.report_index_refresh(refreshed)


# Seconds: under a steady stream of changes the index is never older than this. Each round costs a call for every topic
# that has changed; a new topic need not wait for it, since it is listed at once by its first question.
LONGEST_BURST = 300.0


_retry_pauses = partial(exponential_backoff, first=10.0)


async def indexer(
    inbox: Receiver[SourceChanged],
    *,
    refresh: Callable[[], Awaitable[RefreshReport]],
    settle_seconds: float,
    events: ActivityReporter,
    backoff: Backoff = _retry_pauses,
) -> None:
    """Refresh once each burst of changes has settled; retry pending sources, with growing pauses.

    Each capture brings changes, so sources that the model could not describe lately are skipped then.
    """
    retries = backoff()
    retry_in: float | None = None
    async with inbox:
        while True:
            try:
                with move_on_after(retry_in):
                    await inbox.receive()
                    await _wait_until_quiet(inbox, settle_seconds)
            except EndOfStream:
                return
            retry_in = next(retries)
            with surviving("indexer"), respect_pauses():
                refreshed = await refresh()
                events.report_index_refresh(refreshed)
                if not refreshed.pending:
                    retries, retry_in = backoff(), None


async def _wait_until_quiet(inbox: Receiver[SourceChanged], quiet: float) -> None:
    latest = current_time() + LONGEST_BURST
    while current_time() < latest:
        with move_on_at(min(current_time() + quiet, latest)) as waiting:
            try:
                await inbox.receive()
            except EndOfStream:
                return  # changes before the end are still indexed
        if waiting.cancelled_caught:
            return
