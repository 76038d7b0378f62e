"""The fetcher looks after the listed web pages: a big site takes minutes, and neither files nor topics wait for it."""

from __future__ import annotations

from typing import Protocol

from anyio import sleep

from intern.actors.events import Witness
from intern.actors.guard import surviving
from intern.sources.catalogue import unasked
from intern.sources.refresh import Refreshed


class PageIndex(Protocol):
    """Compares what is indexed with the pages that are due, and mends the difference."""

    async def refresh_pages(self) -> Refreshed:
        """What was done; at once where nothing is due. Raises the KnowledgeError family."""
        ...


async def fetcher(pages: PageIndex, *, interval_seconds: float, witness: Witness) -> None:
    """Look at once, and then `interval_seconds` after each look, until cancelled.

    An actor of its own, or a changed file would wait for all the pages of a slow site.
    """
    while True:
        with surviving("fetcher"), unasked():
            refreshed = await pages.refresh_pages()
            if refreshed.changed or refreshed.removed or refreshed.pending:
                witness.indexed(refreshed)
        await sleep(interval_seconds)
