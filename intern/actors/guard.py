"""An actor survives any single message: the errors that it can survive are said aloud, and the next one is taken.

How long to wait before asking again, where giving up would lose something.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from anyio import sleep

from intern.core.errors import InternError
from intern.core.log import get_logger

T = TypeVar("T")

_log = get_logger(__name__)


@contextmanager
def surviving(actor: str, **ids: str) -> Generator[None]:
    """Log an `InternError` and go on. Anything else is a bug, passes through, and ends the process."""
    try:
        yield
    except InternError as error:
        _log.error("message_failed", actor=actor, error=type(error).__name__, reason=str(error), **ids)


FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0
REFUSED_FOR_SECONDS = 86_400.0
"""How long to go on asking for what Discord refuses: permissions are taken by mistake, and given back."""

Backoff = Callable[[], Iterator[float]]
"""Starts afresh for each piece of work: the seconds to wait before each next try, without end."""


def exponential_backoff(first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE) -> Iterator[float]:
    """Seconds: doubling from `first`, then `longest` for ever."""
    pause = first
    while True:
        yield pause
        pause = min(pause * 2, longest)


async def persistently(
    act: Callable[[], Awaitable[T]],
    *survived: type[InternError],
    backoff: Iterator[float],
    delayed: Callable[[InternError, float], object],
) -> T:
    """Try until it works or the pauses end; then the last failure passes through, as does any that is not `survived`.

    `delayed` hears of each failure that is tried again, and in how many seconds.
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
