"""How far a long piece of work came: a bar on a terminal, else a line now and then, so that a log stays short."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TextIO

from intern.learning.regenerating import Progress

_REDRAW = 0.1  # seconds; faster than anybody reads
_LINES = 15.0  # seconds between two lines where there is no terminal
_WIDTH = 24  # characters of the bar


class ProgressTeller:
    """Tells of a regeneration on a stream. On a terminal the last line stays the only one, and goes when it ends."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._line = _Line(stream, now)
        self._began = now()
        self._first: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        """Say it, if it is time to."""
        self._first = self._first or progress
        if self._line.is_due():
            self._line.say(bar(progress), in_words(progress, self._first, self._now() - self._began))

    def end(self) -> None:
        """Leave a terminal's line empty, for what comes next."""
        self._line.end()


class CountTeller:
    """Tells how many pieces of work are done, likewise."""

    def __init__(self, stream: TextIO, total: int, now: Callable[[], float] = monotonic) -> None:
        self._line = _Line(stream, now)
        self._total = total
        self._done = self._tokens = 0

    def one(self, tokens: int) -> None:
        """One more is done, and cost so much."""
        self._done += 1
        self._tokens += tokens
        if self._line.is_due():
            cost = f", {self._tokens} tokens" if self._tokens else ""
            self._line.say(_bar(self._done, self._total), f"{self._done} of {self._total}{cost}")

    def end(self) -> None:
        """Leave a terminal's line empty, for what comes next."""
        self._line.end()


class _Line:
    """The line of a terminal that is written again and again; elsewhere, a line now and then."""

    def __init__(self, stream: TextIO, now: Callable[[], float]) -> None:
        self._stream = stream
        self._now = now
        self._on_terminal = stream.isatty()
        self._told = now()

    def is_due(self) -> bool:
        """Whether it is time to say something. Asking counts as saying it."""
        now = self._now()
        if now - self._told < (_REDRAW if self._on_terminal else _LINES):
            return False
        self._told = now
        return True

    def say(self, bar: str, text: str) -> None:
        self._write(f"\r{bar} {text}\x1b[K" if self._on_terminal else f"{text}\n")

    def end(self) -> None:
        if self._on_terminal:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def bar(progress: Progress) -> str:
    """How much is done: to classify a conversation is half of its work."""
    return _bar(progress.classified + progress.decided, 2 * progress.total)


def _bar(done: int, total: int) -> str:
    full = done * _WIDTH // max(total, 1)
    return f"[{'#' * full}{' ' * (_WIDTH - full)}]"


def in_words(progress: Progress, first: Progress, seconds: float) -> str:
    """How much is done, how fast since `first`, and what it cost so far."""
    done = (progress.classified + progress.decided - first.classified - first.decided) / 2
    rate = f", {done / seconds * 60:.0f} a minute" if done and seconds > 0 else ""
    cost = f", {progress.calls} calls, {progress.tokens} tokens" if progress.calls else ""
    return f"{progress.decided} of {progress.total} conversations{rate}{cost}"
