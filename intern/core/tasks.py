"""Tasks side by side, whose results can be used after them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from anyio import create_task_group  # noqa: TID251 - here alone
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled


@asynccontextmanager
async def open_task_group() -> AsyncGenerator[TaskGroup]:
    """Open a task group that is left only if its tasks were not cancelled from outside.

    anyio's own swallows that on asyncio, where its host is in a shielded wait (for a thread, say) until all its tasks
    have ended. What follows would take what they had not done for done.
    """
    async with create_task_group() as tasks:
        yield tasks
    await checkpoint_if_cancelled()
