"""Work on hostile input in a process of its own: a file can keep a parser busy for hours, or eat all memory.

The process runs one of our own modules: its input goes in by stdin, its output comes out by stdout. It has no
environment to leak, and bounds on time and memory, so no input costs more than that. The single binary imports this
before its packages are unpacked, so it imports nothing but the standard library.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable

SANDBOXED = "--sandboxed"
"""The option that makes the single binary such a process: it contains the only Python."""

SECONDS = 20
"""CPU time; on a busy machine, that takes longer."""

_MOST_WAITING = 3 * SECONDS
_MEMORY = 1 << 30  # bytes
_FILES = 32


class TooLongError(Exception):
    """The process exceeded its time."""


class BrokenError(Exception):
    """The process ended without output: a damaged input, or one that needs too much memory."""


def run_sandboxed(module: str, data: bytes, *arguments: str) -> bytes:
    """Run a module on the data in a process of its own, and return its output; it ends with `serve_sandboxed`. Blocks.

    Raises TooLongError and BrokenError.
    """
    command = [sys.executable, *([SANDBOXED] if _is_binary() else ["-I", "-m"]), module, *arguments]
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


def _environment() -> dict[str, str]:
    """Return an empty environment; the single binary needs the place where it is unpacked, or it unpacks again."""
    kept = (name for name in os.environ if name.startswith("_PYI_") or name == "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept} if _is_binary() else {}


def _is_binary() -> bool:
    return bool(getattr(sys, "frozen", False))


def serve_sandboxed(work: Callable[[bytes], bytes]) -> None:
    """Do the work as that process: from stdin to stdout, within its bounds."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable()
    sys.stdout.buffer.write(work(sys.stdin.buffer.read()))
