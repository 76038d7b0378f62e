"""Tasks side by side, whose results can be used after them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from anyio import create_task_group  # noqa: TID251 - here alone
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled

T = TypeVar("T")
R = TypeVar("R")


@asynccontextmanager
async def open_task_group() -> AsyncGenerator[TaskGroup]:
    """Open a task group that is left only if its tasks were not cancelled from outside.

    anyio's own swallows that on asyncio, where its host is in a shielded wait (for a thread, say) until all its tasks
    have ended. The code that follows would take unfinished work for done.
    """
    async with create_task_group() as tasks:
        yield tasks
    await checkpoint_if_cancelled()


async def run_each(work: Callable[[T], Awaitable[R]], items: Sequence[T], at_once: int) -> list[R]:
    """Do the work for each item, `at_once` at a time, and return the results in order.

    They begin in order. The first error ends all of them, and is raised by itself, not in a group.
    """
    results: dict[int, R] = {}
    failures: list[Exception] = []
    waiting = enumerate(items)

    async def do_next() -> None:
        try:
            for n, item in waiting:
                results[n] = await work(item)
        except Exception as error:  # noqa: BLE001 - raised below, where no task group wraps it
            failures.append(error)
            tasks.cancel_scope.cancel()

    async with open_task_group() as tasks:
        for _ in range(min(at_once, len(items))):
            tasks.start_soon(do_next)
    if failures:
        raise failures[0]
    return [results[n] for n in range(len(items))]
