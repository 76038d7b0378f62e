"""The checker looks whether posted answers still stand on their sources, and has those that do not retracted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anyio import sleep

from intern.actors.guard import surviving


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
