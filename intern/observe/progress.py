"""How far long work has come: told from wherever it is done, and heard by who started it.

The listener goes with the context, so that it needs no handing down; tasks and worker threads hear the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Protocol

LOG_EVERY = 10.0
"""Seconds between two lines where there is no terminal."""


class Listener(Protocol):
    """Hears of work from any thread. It must neither wait nor raise."""

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        """`what` names the work, with `{total}` where its size belongs. A total of 0 makes it a mere announcement."""
        ...


_listener: ContextVar[Listener | None] = ContextVar("intern_progress", default=None)


def tell(what: str, done: int = 0, total: int = 0, note: str = "") -> None:
    """Say how far the work is, to whoever listens."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total, note)


@contextmanager
def heard_by(listener: Listener) -> Generator[None]:
    """What is told inside goes to this listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class Pace:
    """How long the work at hand has taken, and how long it may still take."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._what = ""
        self._began = now()
        self._first = 0

    def left(self, what: str, done: int, total: int) -> float | None:
        """Seconds until all is done at the rate so far; None while nobody knows."""
        if what != self._what or done < self._first:
            self._what, self._began, self._first = what, self._now(), done
        passed, gained = self._now() - self._began, done - self._first
        return passed / gained * (total - done) if gained > 0 and passed >= 1 else None
