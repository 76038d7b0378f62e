"""The shared parts of the actors' loops: surviving errors, retrying after pauses, wakeups, and following a log.

An actor survives any single message: it logs the errors that it can survive, and takes the next one. A wakeup only
says "look", and the log on disk holds the rest; so a full stream does no harm, nor does one without a reader.
"""

from __future__ import annotations

import logging
import math
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Hashable,
    Iterator,
    Sequence,
    Set as AbstractSet,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from anyio import BrokenResourceError, EndOfStream, WouldBlock, move_on_after, sleep
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender

from intern.chat.platform import Deliver, Gateway
from intern.core.errors import InternError
from intern.core.log import Logger, failure_level, get_logger
from intern.core.tasks import open_task_group

T = TypeVar("T")

_log = get_logger(__name__)


@contextmanager
def surviving(actor: str, **ids: str) -> Generator[None]:
    """Log an `InternError` and continue. Any other error is a bug: it passes through and ends the process."""
    try:
        yield
    except InternError as error:
        fields = {"actor": actor, "error": type(error).__name__, "reason": str(error), **ids}
        _log.log(failure_level(error, logging.ERROR), "message_failed", **fields)


REFUSED_FOR_SECONDS = 86_400.0
"""Seconds to retry what Discord refuses: permissions are removed by mistake, and restored."""

Backoff = Callable[[], Iterator[float]]
"""Returns an endless iterator of the seconds to wait before each next try, for one piece of work."""


def exponential_backoff(first: float = 1.0, longest: float = 300.0, factor: float = 2.0) -> Iterator[float]:
    """Yield seconds: `first`, each time multiplied by `factor`, then `longest` for ever."""
    pause = first
    while True:
        yield pause
        pause = min(pause * factor, longest)


async def retry(
    act: Callable[[], Awaitable[T]],
    *survived: type[InternError],
    backoff: Iterator[float],
    delayed: Callable[[InternError, float], object],
) -> T:
    """Try until it works or the pauses end; then the last failure passes through, as does any that is not `survived`.

    `delayed` is called with each failure that is retried, and the seconds until the retry.
    """
    while True:
        try:
            return await act()
        except survived as error:
            pause = next(backoff, None)
            if pause is None:
                raise
            delayed(error, pause)
        await sleep(pause)


LOOK_AGAIN_SECONDS = 60.0  # for due records, after a failure


P = TypeVar("P")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class DueRecord(Generic[T_co]):
    """An older record to work on again, if there is one now."""

    record: T_co | None = None
    key: Hashable = None
    """A new key each time that the same record becomes due."""
    seconds: float | None = None
    """Without a record, the seconds until the next check; None: until the log grows."""


ReadAfter = Callable[[P | None], Awaitable[Sequence[T]]]
"""Reads some records on disk after a position (None: from the start), in a fixed order, oldest first."""
FindNextDue = Callable[[AbstractSet[Hashable]], Awaitable[DueRecord[T]]]
"""Returns the next older record to work on again whose key was not handed on yet."""


def tolerate_read_errors(again: FindNextDue[T], event: str) -> FindNextDue[T]:
    """Report nothing due for a while if reading fails, so that newer records need not wait; log `event`."""

    async def find_due(handed: AbstractSet[Hashable]) -> DueRecord[T]:
        try:
            return await again(handed)
        except InternError as error:
            _log.warning(event, reason=str(error), again_in_seconds=LOOK_AGAIN_SECONDS)
            return DueRecord(seconds=LOOK_AGAIN_SECONDS)

    return find_due


def wake(stream: Sender[T], message: T) -> None:
    """Send without waiting; a follower that is already awake checks the log anyway."""
    with suppress(WouldBlock, BrokenResourceError):
        stream.send_nowait(message)


async def follow(
    log: ReadAfter[P, T],
    wakeups: Receiver[object],
    *,
    after: P | None,
    position_of: Callable[[T], P],
    again: FindNextDue[T] | None = None,
) -> AsyncGenerator[T]:
    """Yield each record behind `after`, in order, for ever: the existing ones, then those that a wakeup announces.

    Whenever the log is read to its end, it yields the next due record of `again`. It ends once the wakeups have ended
    and nothing is left, so that records written before a calm shutdown are still handed on. A caller that reads only
    some of them closes it with `aclosing`.
    """
    position = after
    ended = False
    handed: set[Hashable] = set()
    while True:
        while records := await log(position):
            for record in records:
                yield record
                position = position_of(record)
        found = DueRecord[T]() if again is None else await again(handed)
        if found.record is not None:
            handed.add(found.key)
            yield found.record
            continue
        if ended:
            return
        try:
            with move_on_after(math.inf if found.seconds is None else found.seconds):
                await wakeups.receive()
        except EndOfStream:
            ended = True


def make_delay_logger(
    log: Logger, event: str, *, level: int = logging.WARNING, **ids: str
) -> Callable[[InternError, float], None]:
    """Return a function that logs each delay of `retry`."""

    def log_delay(error: InternError, pause: float) -> None:
        log.log(failure_level(error, level), event, reason=str(error), again_in_seconds=pause, **ids)

    return log_delay


async def listen_with_task(gateway: Gateway, hear: Deliver, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Listen until cancelled or the gateway ends, and run the task meanwhile. An InternError comes out unwrapped."""
    failure: InternError | None = None
    async with open_task_group() as tg:
        tg.start_soon(task)
        try:
            await gateway.listen(hear)
        except InternError as error:  # raised below, where no task group wraps it
            failure = error
        tg.cancel_scope.cancel()
    if failure:
        raise failure
