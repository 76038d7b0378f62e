"""The embedder gives documents their vectors, some at a time: what is found by its sense needs no hurry."""

from __future__ import annotations

from anyio import move_on_after, sleep

from intern.actors.guard import Pauses, growing_pauses, surviving
from intern.sources.searchable import Embedding

# Seconds between two looks without a nudge: documents come from more places than nudge.
LOOKS_EVERY = 30.0


async def embedder(work: Embedding, *, pauses: Pauses = growing_pauses) -> None:
    """Work until no document is left, then whenever there are new ones, until cancelled.

    An actor of its own: thousands of documents take minutes, and their words are found meanwhile.
    """
    retries = pauses()
    while True:
        failed = True
        with surviving("embedder"):
            while await work.some():
                pass
            failed, retries = False, pauses()
        if failed:
            await sleep(next(retries))
            continue
        with move_on_after(LOOKS_EVERY):
            await work.wait()
