"""How far long work has come, for people: a line on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic
from typing import TextIO

from intern.observe.progress import LOG_EVERY, Pace, tell

_REDRAW = 0.1  # seconds; faster than anybody reads
_WIDTH = 24  # characters of the bar
_MUCH = 100
"""From so many pieces on, work is told of at once also where there is no terminal. Less of it may take no time."""


class ProgressLine:
    """Shows progress on a stream. On a terminal there is one line, which other output takes the place of."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = monotonic) -> None:
        self._stream = stream
        self._now = now
        self._on_terminal = stream.isatty()
        self._pace = Pace(now)
        self._guard = Lock()
        self._told = now()
        self._work = self._announced = ""
        self._shown = 0  # characters
        self._ended = False

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        """Show it, if it is time to."""
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
        """Leave a terminal's line empty, for what comes next."""
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
            # Blanks over what stood there: some terminals know no escape sequences.
            self._write(f"\r{line:{self._shown}}")
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
            self._write(f"\r{'':{self._shown}}\r")
            self._shown = 0

    def _write(self, text: str) -> None:
        # A stream may lack the ellipsis, and whoever reads it may have gone: neither may end the work.
        encoding = self._stream.encoding or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):
            self._ended = True


class Asking:
    """Tells how many of some questions were asked, and what they took."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._tokens = 0

    def one(self, tokens: int) -> None:
        """One more is done, and cost so much."""
        self._done += 1
        self._tokens += tokens
        tell("Asking {total} questions", self._done, self._total, f"{self._tokens} tokens" if self._tokens else "")


def _in_words(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 90:
        return f", {seconds:.0f} s left"
    return f", {seconds / 60:.0f} min left"


_shown_now: list[ProgressLine] = []


def showing(line: ProgressLine | None) -> None:
    """Have `make_way` clear this line, or none."""
    _shown_now[:] = [line] if line else []


def make_way() -> None:
    """Clear the line of a terminal, before something else is written there."""
    for line in _shown_now:
        line.clear()
