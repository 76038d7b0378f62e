"""A disk that ends the process at a chosen step, and the files of a folder as values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from intern.stores.files import FileLayer


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder by their names, without the database and the lock."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in found
        if not path.name.startswith(("intern.db", ".lock"))
    }


class KilledError(BaseException):
    """The process is gone: no code cleans up after it."""


class MortalDisk(FileLayer):
    """A disk that runs a check before each of its steps, and after some of them ends the process."""

    def __init__(
        self,
        steps: int = -1,
        *,
        look: Callable[[], None] = lambda: None,
        error: Callable[[], BaseException] = KilledError,
    ) -> None:
        """`steps`: the number of steps before the end; if negative, there is no end."""
        self.left = steps
        self._look = look
        self._error = error

    def _step(self) -> None:
        self._look()
        if self.left == 0:
            raise self._error()
        self.left -= 1

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._step()
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._step()
        super().fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)
        self._look()

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)
