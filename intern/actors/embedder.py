"""The embedder gives documents their vectors, some at a time: what is found by its sense needs no hurry."""

from __future__ import annotations

from anyio import move_on_after, sleep

from intern.actors.guard import Backoff, exponential_backoff, surviving
from intern.sources.searchable import Embedding

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
