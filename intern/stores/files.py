"""Durable file writes: append and fsync, or write a file beside and rename it; never half of either.

A reader sees the old file or the new one. If writing fails, the old content stays.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from intern.core.errors import KnowledgeError

# File systems without fsync for folders (some network and FUSE mounts) say so with these.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP}


class FileLayer:
    """The disk. The single steps (`write`, `fsync`, `rename`, `truncate`) are there to be overridden by tests."""

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Write as many bytes as fit, and return their number."""
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        """Wait until the disk has it."""
        os.fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Put `old` in the place of `new`, at once."""
        old.replace(new)

    def truncate(self, fd: int, length: int) -> None:
        """Cut the file to `length` bytes."""
        os.ftruncate(fd, length)

    def read(self, path: Path) -> bytes | None:
        """Return the whole file; None where there is none. Raises KnowledgeError where it cannot be read."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable_error(path, error) from error

    def append_durably(self, path: Path, data: bytes, *, fresh_line: bool = False) -> int:
        """Append `data` and fsync; return its offset.

        With `fresh_line`, a newline goes first where the file does not end in one (a torn tail). Raises
        KnowledgeError; the file then has its old length again, if the disk allows at least that.
        """
        try:
            self.make_folder(path.parent)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unwritable_error(path, error) from error
        try:
            return self._append(fd, path, data, fresh_line=fresh_line)
        except OSError as error:
            raise _unwritable_error(path, error) from error
        finally:
            os.close(fd)

    def write_atomically(self, path: Path, data: bytes) -> None:
        """Replace the file, or make it. Raises KnowledgeError, and the old file remains then.

        The temporary file beside it has a fixed hidden name, so a crash leaves at most one behind.
        """
        self.write_pieces_atomically(path, (data,))

    def write_pieces_atomically(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Replace the file as `write_atomically` does, by pieces that need not all be in memory at once."""
        beside = path.with_name(f".{path.name}.tmp")
        try:
            self.make_folder(path.parent)
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                for piece in pieces:
                    self._write_all(fd, piece)
                self.fsync(fd)
            finally:
                os.close(fd)
            self.rename(beside, path)
            self.sync_folder(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise _unwritable_error(path, error) from error

    def remove(self, path: Path) -> None:
        """Delete the file, durably; one that is gone already is fine. Raises KnowledgeError."""
        try:
            path.unlink(missing_ok=True)
            self.sync_folder(path.parent)
        except OSError as error:
            raise _unwritable_error(path, error) from error

    def make_folder(self, folder: Path) -> None:
        """Make the folder and those above it, each durably. Raises OSError."""
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        self.sync_folder(folder.parent)

    def sync_folder(self, folder: Path) -> None:
        """Wait until the disk has the folder's entries, where its file system can say so. Raises OSError."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(fd)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise
        finally:
            os.close(fd)

    def _append(self, fd: int, path: Path, data: bytes, *, fresh_line: bool) -> int:
        start = length = os.fstat(fd).st_size
        if length == 0:
            # Before the data, so a file that holds anything surely has its folder entry on disk.
            self.sync_folder(path.parent)
        elif fresh_line and os.pread(fd, 1, length - 1) != b"\n":
            data = b"\n" + data
            start += 1
        try:
            self._write_all(fd, data)
            self.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                self.truncate(fd, length)
                self.fsync(fd)
            raise
        return start

    def _write_all(self, fd: int, data: bytes) -> None:
        # One write in practice; a disk that is nearly full takes less, and then says why at the next.
        left = memoryview(data)
        while left:
            left = left[self.write(fd, left) :]


def unreadable_error(path: Path, error: OSError) -> KnowledgeError:
    """Return the error to raise where `path` cannot be read."""
    return KnowledgeError(f"{path} could not be read ({error.strerror}); check that it exists and its permissions")


def _unwritable_error(path: Path, error: OSError) -> KnowledgeError:
    what = f"{path} could not be written ({error.strerror})"
    return KnowledgeError(f"{what}; check the free space on its disk and its permissions")
