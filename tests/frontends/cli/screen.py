"""`intern` on a pseudo-terminal with the screen of a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic

import pyte

UP, HOME, ENTER, CTRL_C, CTRL_L = "\x1b[A", "\x1b[H", "\r", "\x03", "\x0c"


def pasted(text: str) -> str:
    """Return the characters that a terminal sends for a paste."""
    return f"\x1b[200~{text}\x1b[201~"


class _Screen(pyte.HistoryScreen):
    """A screen that reports its cursor's position on request."""

    answer: Callable[[bytes], object]

    def write_process_input(self, data: str) -> None:
        self.answer(data.encode())


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, pid: int, fd: int, columns: int, rows: int) -> None:
        self.pid, self._fd = pid, fd
        self.screen = _Screen(columns, rows, history=10_000, ratio=0.5)
        self.screen.answer = lambda data: os.write(fd, data)
        self._stream = pyte.ByteStream(self.screen)
        self.code: int | None = None
        self.resize(columns, rows)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    @property
    def lines(self) -> list[str]:
        """All lines so far, without those that are empty at the end."""
        above = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self.screen.display]).rstrip("\n").split("\n")

    def wait(self, text: str, *, within: float = 60) -> None:
        """Read until the last lines hold the text. Raises TimeoutError."""
        self._read(lambda: text in "\n".join(self.lines), within)

    def ended(self, *, within: float = 60) -> int:
        """Read to the end. Return the exit code."""
        self._read(lambda: self.code is not None, within)
        assert self.code is not None
        return self.code

    def _read(self, done: Callable[[], bool], within: float) -> None:
        until = monotonic() + within
        while not done():
            left = until - monotonic()
            if left <= 0 or self.code is not None:
                raise TimeoutError("\n".join(self.lines))
            ready, _, _ = select.select([self._fd], [], [], left)
            data = b""
            if ready:
                with suppress(OSError):  # a terminal with its other end closed raises this
                    data = os.read(self._fd, 65_536)
                if not data:
                    self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self._stream.feed(data)


@contextmanager
def terminal(
    command: list[str], environment: Mapping[str, str], *, columns: int = 80, rows: int = 40
) -> Generator[Terminal]:
    """Start a program in a terminal."""
    pid, fd = pty.fork()
    if pid == 0:
        with suppress(Exception):
            os.execve(command[0], command, {"TERM": "xterm-256color", **environment})
        sys.exit(127)
    shown = Terminal(pid, fd, columns, rows)
    try:
        yield shown
    finally:
        if shown.code is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(fd)
