"""Progress for people: one line on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import TextIO

from intern.core.progress import LOG_EVERY, Pace, tell

_REDRAW = 0.1  # seconds; faster is not readable
_WIDTH = 24  # characters of the bar
_MUCH = 100
"""Off a terminal, work with fewer pieces prints nothing for ten seconds: it may be done by then."""

_COLUMNS = 80  # where the terminal does not say


class ProgressLine:
    """A progress display on a stream. On a terminal it is one line, which other output replaces."""

    def __init__(
        self, stream: TextIO, now: Callable[[], float] = monotonic, columns: Callable[[TextIO], int] | None = None
    ) -> None:
        self._stream = stream
        self._now = now
        self._columns = columns or _columns_of
        self._on_terminal = stream.isatty()
        self._pace = Pace(now)
        self._guard = Lock()
        self._told = now()
        self._work = self._announced = ""
        self._shown = 0  # characters
        self._ended = False

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        """Show the progress, at most ten times a second."""
        with self._guard:
            if self._ended:
                return
            if not total:
                self._announce(what)
            else:
                left = self._pace.left(what, done, total)
                if self._is_due(what, total):
                    self._show(what.format(total=total), done, total, left, note)

    def clear(self) -> None:
        """Blank the terminal's line before other output."""
        with self._guard:
            self._clear()

    def end(self) -> None:
        """Show nothing from now on."""
        with self._guard:
            self._clear()
            self._ended = True

    def _is_due(self, what: str, total: int) -> bool:
        is_new, self._work = what != self._work, what
        passed = self._now() - self._told
        at_once, pause = (True, _REDRAW) if self._on_terminal else (total >= _MUCH, LOG_EVERY)
        due = (is_new and at_once) or passed >= pause
        if due:
            self._told = self._now()
        return due

    def _show(self, work: str, done: int, total: int, left: float | None, note: str) -> None:
        text = f"{work} … {done}{_in_words(left)}{f', {note}' if note else ''}"
        if self._on_terminal:
            full = min(done * _WIDTH // total, _WIDTH)
            line = f"[{'#' * full}{' ' * (_WIDTH - full)}] {text}"
            # A line that wraps cannot be overwritten, and some terminals wrap once the last column is filled.
            room = max(self._columns(self._stream) - 1, 0)
            if len(line) > room:
                line = text[:room]
            # Blanks over the line before: some terminals know no escape sequences.
            self._write(f"\r{line:{min(self._shown, room)}}")
            self._shown = len(line)
        else:
            self._write(f"{text}\n")

    def _announce(self, what: str) -> None:
        if what != self._announced:
            self._announced = what
            self._clear()
            self._write(f"intern: {what}\n")

    def _clear(self) -> None:
        if self._shown:
            # The window may be narrower by now.
            blanks = min(self._shown, max(self._columns(self._stream) - 1, 0))
            self._write(f"\r{'':{blanks}}\r")
            self._shown = 0

    def _write(self, text: str) -> None:
        # The stream may be unable to encode the ellipsis, and its reader may have gone: neither may end the work.
        encoding = self._stream.encoding or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):
            self._ended = True


class Asking:
    """Progress over a number of questions, with the tokens that they took."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._tokens = 0

    def one(self, tokens: int) -> None:
        """Count one more question and its tokens."""
        self._done += 1
        self._tokens += tokens
        tell("Asking {total} questions", self._done, self._total, f"{self._tokens} tokens" if self._tokens else "")


def _columns_of(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def _in_words(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 90:
        return f", {seconds:.0f} s left"
    return f", {seconds / 60:.0f} min left"


_shown_now: list[ProgressLine] = []


def showing(line: ProgressLine | None) -> None:
    """Choose the line that `make_way` clears."""
    _shown_now[:] = [line] if line else []


def make_way() -> None:
    """Blank the progress line before writing to the same terminal."""
    for line in _shown_now:
        line.clear()
