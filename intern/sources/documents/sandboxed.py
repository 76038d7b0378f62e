"""Work on hostile input in a process of its own: a file can keep a parser busy for hours, or eat all memory.

The process runs one of our own modules: the input goes in by stdin, what it says comes out by stdout. It has no
environment to leak, and bounds on time and memory, so whatever is in the input costs no more than that.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable

APART = "--apart"
"""What the single binary is called with to be such a process: there is no other Python to call."""

SECONDS = 20
"""Of work; on a busy machine, that may take longer."""

_MOST_WAITING = 3 * SECONDS
_MEMORY = 1 << 30  # bytes
_FILES = 32


class TooLongError(Exception):
    """It took longer than it may."""


class BrokenError(Exception):
    """It ended without a word: a damaged input, or one that needs too much memory."""


def work_apart(module: str, data: bytes, *arguments: str) -> bytes:
    """What the module, which has to end with `be_apart`, makes of the data. Blocks.

    Raises TooLongError and BrokenError.
    """
    command = [*_ourselves(), module, *arguments]
    try:
        # Our own code; what is hostile goes in by stdin.
        done = subprocess.run(  # noqa: S603
            command, input=data, capture_output=True, check=False, timeout=_MOST_WAITING, env=_environment()
        )
    except subprocess.TimeoutExpired:
        raise TooLongError from None
    if done.returncode == -signal.SIGXCPU:
        raise TooLongError
    if done.returncode:
        raise BrokenError
    return done.stdout


def _ourselves() -> list[str]:
    return [sys.executable, APART] if _is_binary() else [sys.executable, "-I", "-m"]


def _environment() -> dict[str, str]:
    """Nothing; but the single binary unpacks itself once more unless it is told where it already lies."""
    if not _is_binary():
        return {}
    return {name: value for name, value in os.environ.items() if name.startswith("_PYI_") or name == "LD_LIBRARY_PATH"}


def _is_binary() -> bool:
    return bool(getattr(sys, "frozen", False))


def be_apart(work: Callable[[bytes], bytes]) -> None:
    """Be that process."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable()
    sys.stdout.buffer.write(work(sys.stdin.buffer.read()))
