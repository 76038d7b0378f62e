"""The fetcher looks after the listed web pages: a big site takes minutes, and neither files nor topics wait for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anyio import sleep

from intern.actors.events import Events
from intern.actors.guard import surviving
from intern.sources.catalogue import unasked
from intern.sources.refresh import Refreshed


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
