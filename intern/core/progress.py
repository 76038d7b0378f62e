"""Progress of long work: any function reports it, and the command or bot that started the work shows it.

The listener is a context variable, so no function passes it on. Tasks and worker threads inherit it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Protocol

LOG_EVERY = 10.0
"""Seconds between two lines where there is no terminal."""


class ProgressListener(Protocol):
    """A receiver of progress. It is called from any thread, and must neither wait nor raise."""

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        """Take one report. `what` names the work and may hold `{total}`; a total of 0 is an announcement alone."""


_listener: ContextVar[ProgressListener | None] = ContextVar("intern_progress", default=None)


def report_progress(what: str, done: int = 0, total: int = 0, note: str = "") -> None:
    """Report progress to the listener, if there is one."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total, note)


@contextmanager
def send_progress_to(listener: ProgressListener) -> Generator[None]:
    """Send all reports from this block to `listener`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class ProgressEstimator:
    """An estimate of the time that the current work still needs."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._what = ""
        self._began = now()
        self._first = 0

    def estimate_seconds_left(self, what: str, done: int, total: int) -> float | None:
        """Return the seconds left at the rate so far; None during the first second."""
        if what != self._what or done < self._first:
            self._what, self._began, self._first = what, self._now(), done
        passed, gained = self._now() - self._began, done - self._first
        return passed / gained * (total - done) if gained > 0 and passed >= 1 else None
