"""The checker looks whether posted answers still stand on their sources, and has those that do not retracted."""

from __future__ import annotations

from typing import Protocol

from anyio import sleep

from intern.actors.guard import surviving


class Posted(Protocol):
    """Compares posted answers with what they cite."""

    async def check(self) -> None:
        """Compare what changed since the last time. Raises KnowledgeError."""
        ...


class Retracts(Protocol):
    """Edits answers to a note."""

    async def retract(self) -> None:
        """Edit those that do not stand any more. Raises the KnowledgeError and ChatError families."""
        ...


async def checker(posted: Posted, retractions: Retracts | None, *, interval_seconds: float) -> None:
    """Look at once, and then `interval_seconds` after each look, until cancelled; without `retractions`, only look."""
    while True:
        with surviving("checker"):
            await posted.check()
            if retractions is not None:
                await retractions.retract()
        await sleep(interval_seconds)
