"""Work on hostile input in a process of its own: a file can keep a parser busy for hours, or eat all memory.

The process runs one of our own modules: inputs come in by stdin, outputs go out by stdout. Many inputs may share one,
as a start of Python costs more than most of them. It has no environment to leak, and bounds on time and memory, so no
input costs more than that. The single binary imports this before its packages are unpacked, so it imports nothing but
the standard library.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from threading import Lock, Timer
from time import process_time
from typing import Any

SANDBOXED = "--sandboxed"
"""The option that makes the single binary such a process: it contains the only Python."""

SECONDS = 20
"""CPU time; on a busy machine, that takes longer."""

_MOST_WAITING = 3 * SECONDS
_MEMORY = 1 << 30  # bytes
_FILES = 32

_LENGTH = 8  # bytes before each input and each output


class SandboxTimeoutError(ValueError):
    """The process exceeded its time."""

    def __init__(self) -> None:
        super().__init__(f"it could not be read within {SECONDS} seconds")


class SandboxFailedError(ValueError):
    """The process ended without a usable output: a damaged input, or one that needs too much memory."""

    def __init__(self) -> None:
        super().__init__("it cannot be parsed, or needs too much memory")


def ask_sandboxed(module: str, kind: Any, data: bytes, *arguments: str) -> Any:
    """Run a module on the data as `run_sandboxed` does, and decode the JSON of its output as this type. Blocks."""
    import msgspec  # noqa: PLC0415 not to be imported with this module

    try:
        return msgspec.json.decode(run_sandboxed(module, data, *arguments), type=kind)
    except msgspec.DecodeError:
        raise SandboxFailedError from None


def run_sandboxed(module: str, data: bytes, *arguments: str) -> bytes:
    """Run a module on the data in a process of its own, and return its output; it calls `serve_sandboxed`. Blocks.

    Raises SandboxTimeoutError and SandboxFailedError.
    """
    command = (sys.executable, *([SANDBOXED] if _is_binary() else ["-I", "-m"]), module, *arguments)
    kept = _kept.get()
    if kept is None:
        with closing(_SandboxProcess(command)) as alone:
            return alone.run(data)
    return kept.setdefault(command, _SandboxProcess(command)).run(data)


@contextmanager
def keep_processes() -> Generator[None]:
    """Keep the processes for further inputs, in this task and in the threads that it waits for."""
    kept: dict[tuple[str, ...], _SandboxProcess] = {}
    token = _kept.set(kept)
    try:
        yield
    finally:
        _kept.reset(token)
        for process in kept.values():
            process.close()


class _SandboxProcess:
    """A process that works on one input at a time; it starts with the first."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = Lock()

    def run(self, data: bytes) -> bytes:
        with self._turn:
            is_fresh = self._process is None
            try:
                return self._run_once(data)
            except SandboxFailedError:
                if is_fresh:
                    raise
            return self._run_once(data)  # earlier inputs may have taken the memory

    def _run_once(self, data: bytes) -> bytes:
        process = self._process = self._process or self._start_process()
        timer = Timer(_MOST_WAITING, _kill, (process,))
        timer.start()
        try:
            return _exchange_message(process, data)
        except (BrokenPipeError, EOFError):
            is_late = timer.finished.is_set()
            is_too_long = process.wait() == -signal.SIGXCPU
            self.close()
            raise (SandboxTimeoutError if is_late or is_too_long else SandboxFailedError) from None
        finally:
            timer.cancel()

    def _start_process(self) -> subprocess.Popen[bytes]:
        # Our own code; hostile data goes in by stdin. A session of its own is killed as a whole.
        return subprocess.Popen(  # noqa: S603
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_build_environment(),
            start_new_session=True,
        )

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            with suppress(BrokenPipeError), process:  # closes its pipes, and waits
                pass


def _exchange_message(process: subprocess.Popen[bytes], data: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(len(data).to_bytes(_LENGTH, "big") + data)
    process.stdin.flush()
    head = process.stdout.read(_LENGTH)
    said = process.stdout.read(int.from_bytes(head, "big"))
    if len(head) < _LENGTH or len(said) < int.from_bytes(head, "big"):
        raise EOFError
    return said


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


_kept: ContextVar[dict[tuple[str, ...], _SandboxProcess] | None] = ContextVar("_kept", default=None)


def _build_environment() -> dict[str, str]:
    """Return an empty environment; the single binary needs the place where it is unpacked, or it unpacks again."""
    kept = (name for name in os.environ if name.startswith("_PYI_") or name == "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept} if _is_binary() else {}


def _is_binary() -> bool:
    return bool(getattr(sys, "frozen", False))


def serve_sandboxed(work: Callable[[bytes], bytes], *, load: Callable[[], object]) -> None:
    """Do the work as that process, for one input after the other, until stdin ends; `load` shared modules first."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    logging.disable()
    load()
    while head := sys.stdin.buffer.read(_LENGTH):
        most = int(process_time()) + 1 + SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        said = work(sys.stdin.buffer.read(int.from_bytes(head, "big")))
        sys.stdout.buffer.write(len(said).to_bytes(_LENGTH, "big") + said)
        sys.stdout.buffer.flush()
