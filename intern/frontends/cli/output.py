"""The output and the end of a command: results on stdout, messages and progress on stderr.

Progress is one line on a terminal, elsewhere a line every ten seconds. An error that the user can mend is one clear
line, a bug is a traceback and exit code 70. Neither shows a secret that logging knows. Once logging is set up, a bug
is an event of the log.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import EDQUOT, EIO, ENOSPC
from threading import Lock
from time import monotonic
from typing import Any, NoReturn, TextIO, TypeVar, cast

import click

from intern.core.errors import InternError, KnowledgeError
from intern.core.progress import LOG_EVERY, ProgressEstimator

T = TypeVar("T")

_REDRAW = 0.1  # seconds; faster is not readable
_WIDTH = 24  # characters of the bar
_MUCH = 100
"""Off a terminal, work with fewer pieces prints nothing for ten seconds: it may be done by then."""

_COLUMNS = 80  # if the terminal does not say


class ProgressLine:
    """A progress display on a stream. On a terminal it is one line, which other output replaces."""

    def __init__(
        self, stream: TextIO, now: Callable[[], float] = monotonic, columns: Callable[[TextIO], int] | None = None
    ) -> None:
        self._stream, self._now = stream, now
        self._columns = columns or terminal_width
        self._on_terminal = stream.isatty()
        self._pace = ProgressEstimator(now)
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
                left = self._pace.estimate_seconds_left(what, done, total)
                if self._is_due(what, total):
                    self._show(what.format(total=total), done, total, left, note)

    def clear(self) -> None:
        """Blank the terminal's line before other output."""
        with self._guard:
            self._clear()

    def end(self) -> None:
        """Stop showing progress."""
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
        text = f"{work} … {done}{_time_left(left)}{f', {note}' if note else ''}"
        if self._on_terminal:
            full = min(done * _WIDTH // total, _WIDTH)
            line = f"[{'#' * full}{' ' * (_WIDTH - full)}] {text}"
            # A line that wraps cannot be overwritten, and some terminals wrap once the last column is filled.
            room = max(self._columns(self._stream) - 1, 0)
            if len(line) > room:
                line = text[:room]
            # Blanks over the previous line: some terminals know no escape sequences.
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
        # The stream may be unable to encode the ellipsis, and its reader may be gone: neither may end the work.
        encoding = self._stream.encoding or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):
            self._ended = True


def terminal_width(stream: TextIO) -> int:
    """Return the width of the terminal behind a stream."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS


def _time_left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f", {seconds:.0f} s left" if seconds < 90 else f", {seconds / 60:.0f} min left"


_shown_now: list[ProgressLine] = []


def set_progress_line(line: ProgressLine | None) -> None:
    """Choose the line that `clear_progress_line` clears."""
    _shown_now[:] = [line] if line else []


def clear_progress_line() -> None:
    """Blank the progress line before writing to the same terminal."""
    for line in _shown_now:
        line.clear()


# Characters that a terminal acts on or that UTF-8 cannot carry. Line breaks and tabs may stay.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def say(text: str) -> None:
    """Print a message on stderr, so that stdout holds results only."""
    clear_progress_line()
    print(printable(text), file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Print a result for people."""
    show_painted(printable(text))


def paint(text: str, **style: Any) -> str:
    """Return a text as `printable`, in colours if stdout is a terminal whose owner wants them."""
    wants = style and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return click.style(printable(text), **style) if wants else printable(text)


def show_painted(text: str) -> None:
    """Print a result that `paint` made."""
    _write(text.encode(sys.stdout.encoding, "backslashreplace"))


def show_json(value: object) -> None:
    """Print a result for scripts: one JSON value on a line, always UTF-8."""
    from intern.core.text.encoding import encode_json  # `--help` needs no msgspec

    _write(encode_json(value))


def printable(text: str) -> str:
    """Escape all characters that a terminal would act on: answers may quote anyone."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _write(data: bytes) -> None:
    clear_progress_line()
    sys.stdout.flush()
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def show_result(found: T, in_words: Callable[[T], object], *, as_json: bool) -> None:
    """Print a result as JSON, or by a function that prints it in words."""
    if as_json:
        show_json(found)
    else:
        in_words(found)


def show_list(found: Sequence[T], line: Callable[[T], str], nothing: str, *, as_json: bool) -> None:
    """Print a line for each item on stdout, or on stderr that there is none."""
    if as_json:
        show_json(found)
    elif found:
        show("\n".join(map(line, found)))
    else:
        say(nothing)


BUG = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130  # 128 and SIGINT, as shells have it


class ReaderGoneError(Exception):
    """The reader of our output closed the pipe."""


def exit_after(work: Callable[[], object]) -> NoReturn:
    """Run `work` and end the process with the exit code for its result or error."""
    code = _run_for_exit_code(work)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            _discard_output(stream.fileno())
            code = code or _exit_code(error)
    if code == INTERRUPTED:
        # A thread may still wait for the keyboard, and Python would wait for it. All else is closed by now.
        os._exit(code)
    sys.exit(code)


def _run_for_exit_code(work: Callable[[], object]) -> int:
    try:
        code = work()
    except SystemExit as end:
        code = end.code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    except BaseException as error:  # noqa: BLE001 the last handler of the process; only an InternError is short
        code = _exit_code(error)
    return code if isinstance(code, int) else 0


def _exit_code(error: BaseException) -> int:
    leaves = [_disk_error(leaf) or leaf for leaf in _leaf_errors(error)]
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return INTERRUPTED
    bugs = [leaf for leaf in leaves if not isinstance(leaf, InternError | BrokenPipeError | ReaderGoneError)]
    if bugs:
        _report_bug(error)
        return BUG
    known = [leaf for leaf in leaves if isinstance(leaf, InternError)]
    return _print_errors(known) if known else 0


def _report_bug(error: BaseException) -> None:
    try:
        # Imported here, as in commands: `--help` needs no log.
        from intern.core.log import log_bug
    except ImportError:  # the missing module may be the very bug; then no secret is known yet
        traceback.print_exception(error)
    else:
        log_bug(error)


def _print_errors(errors: Iterable[InternError]) -> int:
    from intern.core.log import redact_text

    said: dict[str, int] = {redact_text(str(error)): error.exit_code for error in errors}
    for line in said:
        print(f"intern: {line}", file=sys.stderr)
    return min(said.values())


def _disk_error(error: BaseException) -> KnowledgeError | None:
    """Return the error of a full or broken disk, wherever it occurred: our output may be a file."""
    if not isinstance(error, OSError) or error.errno not in {ENOSPC, EDQUOT, EIO}:
        return None
    return KnowledgeError(f"{error.filename or 'the output'} cannot be written ({error.strerror})")


def _discard_output(fd: int) -> None:
    """Discard buffered output, or Python complains of it at its very end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, fd)
    os.close(nowhere)


def _leaf_errors(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaf_errors(inner)
    else:
        yield error
