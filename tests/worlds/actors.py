"""What surrounds an actor: a task that runs it, collaborators with prepared results, and records of its calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import repeat
from typing import Any, Generic, TypeVar

from anyio import create_task_group
from anyio.lowlevel import checkpoint

from intern.core.decisions import PairDecision
from intern.core.ids import ChannelId, MessageId, QAId

T = TypeVar("T")

NO_PAUSES = partial(repeat, 0.0)
FOR_EVER = partial(repeat, 1e9)


@asynccontextmanager
async def finishing(work: Callable[..., Coroutine[Any, Any, object]], *arguments: Any) -> AsyncGenerator[None]:
    """Run an actor beside the block, and then until it ends by itself."""
    async with create_task_group() as tasks:
        tasks.start_soon(work, *arguments)
        yield


@asynccontextmanager
async def running(work: Callable[..., Coroutine[Any, Any, object]], *arguments: Any) -> AsyncGenerator[None]:
    """Run an actor beside the block, and cancel it at the end."""
    async with create_task_group() as tasks:
        tasks.start_soon(work, *arguments)
        yield
        tasks.cancel_scope.cancel()


class Prepared(Generic[T]):
    """A collaborator's method: gives the prepared results in order, or raises them; then always the usual one."""

    def __init__(self, usual: T, *results: T | Exception) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._usual = usual
        self._results = list(results)

    async def __call__(self, *arguments: Any) -> T:
        self.calls.append(arguments)
        result = self._results.pop(0) if self._results else self._usual
        if isinstance(result, Exception):
            raise result
        return result


class Settlements:
    """The settled messages, in order."""

    def __init__(self) -> None:
        self.ids: list[MessageId] = []
        self.places: list[str] = []
        """The same with their channels, as `channel:message`."""

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId], /) -> None:
        self.ids += message_ids
        self.places += [f"{channel_id}:{each}" for each in message_ids]


class Attempts:
    """Open attempts in memory, and the decisions that ended them; `begun` are those of an earlier process."""

    def __init__(self, **begun: int) -> None:
        self.open: dict[str, int] = begun
        self.ended: list[tuple[PairDecision, bool]] = []
        self.trouble: list[Exception] = []

    async def begin(self, qa_id: QAId, /) -> int:
        await checkpoint()
        if self.trouble:
            raise self.trouble.pop()
        self.open[qa_id] = self.open.get(qa_id, 0) + 1
        return self.open[qa_id]

    async def clear(self, qa_id: QAId, /) -> None:
        await checkpoint()
        self.open.pop(qa_id, None)

    async def end(self, decision: PairDecision, /, *, again: bool = True) -> None:
        await checkpoint()
        self.open.pop(decision.qa_id, None)
        self.ended.append((decision, again))
