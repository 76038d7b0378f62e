"""The lock of a data folder: one writer, by an flock that the system lets go of however its process ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Self

from intern.core.errors import FolderBusyError, KnowledgeError


class FolderLock:
    """The lock of a data folder, for `with`. The pid in `.lock` is only for people; the flock is the lock."""

    def __init__(self, data_dir: Path) -> None:
        self._dir = data_dir
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def find_holder(self) -> int | None:
        """Return the process that holds the folder, if one does. Raises KnowledgeError.

        Reads the lock's file, to disturb no process. Only if one died and left its id behind, it tries the lock for an
        instant.
        """
        path = self._dir / ".lock"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KnowledgeError(f"{path} cannot be read ({error.strerror}); check its rights") from error
        pid = None
        try:
            pid = _read_pid(fd)
            if pid is not None:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return pid
        finally:
            os.close(fd)
        return None

    def describe_holder(self) -> str:
        """Describe the holder of the folder, for people. The lock file may be gone, or empty."""
        with contextlib.suppress(KnowledgeError):
            return _describe_process(self.find_holder())
        return _describe_process(None)

    @property
    def is_valid(self) -> bool:
        """Whether the lock is held on the folder's current lock file: the folder was not replaced."""
        if self._fd is None:
            return False
        try:
            there, ours = (self._dir / ".lock").lstat(), os.fstat(self._fd)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def acquire(self) -> None:
        """Acquire the lock, making the folder if needed; holding it already is fine.

        Raises FolderBusyError where another holds it, KnowledgeError where the folder cannot be locked at all.
        """
        if self._fd is not None:
            return
        path = self._dir / ".lock"
        try:
            self._dir.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unlockable_error(error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            busy = f"{self._dir} is in use by {_describe_process(_read_pid(fd))}"
            os.close(fd)
            raise FolderBusyError(f"{busy}; stop that first, or choose another data folder") from error
        except OSError as error:
            os.close(fd)
            raise self._unlockable_error(error) from error
        self._fd = fd

    def release(self) -> None:
        """Release the lock. The file stays: to delete it would let two processes lock two files of one name."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
        os.close(fd)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _unlockable_error(self, error: OSError) -> KnowledgeError:
        return KnowledgeError(
            f"{self._dir} could not be locked ({error.strerror}); check that it is a folder this user may write to, "
            "on a disk that knows file locks"
        )


def _read_pid(fd: int) -> int | None:
    written = os.pread(fd, 32, 0).strip()
    return int(written) if written.isdigit() else None


def _describe_process(pid: int | None) -> str:
    return "another process" if pid is None else f"process {pid}"
