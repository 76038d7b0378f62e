"""The operator's own documents: what is in the folder, and the text of one. Read only.

Nothing outside the folder is ever read, whatever a link or a path says, and what is passed over is named with its
reason.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from intern.errors import SourceError

SUFFIXES = frozenset({".md", ".txt", ".rst"})
"""The types that are read, in any case of letters."""

# Characters that could forge a line of the index, or that UTF-8 cannot carry.
_UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}


class SourceFile(NamedTuple):
    """A document, as `stat` tells of it. `rel_path` has `/` between its parts, on every system."""

    rel_path: str
    size_bytes: int
    mtime_ns: int


class SkippedFile(NamedTuple):
    """A file or folder that was passed over."""

    rel_path: str
    reason: str


class Scan(NamedTuple):
    """The folder at one moment; each part sorted by path."""

    files: tuple[SourceFile, ...]
    skipped: tuple[SkippedFile, ...]
    unreadable: frozenset[str]
    """Those of `skipped` that could not be looked at: what was known of them, and of files below, still holds."""


class _PassedOverError(Exception):
    """This is no source."""


class SourceFolder:
    """The documents below `folder`, up to `max_bytes` each. One thread at a time may scan."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._root = folder
        self._max_bytes = max_bytes
        # What reading told of each file, good for as long as size and mtime stay: a scan of unchanged files only stats.
        self._verdicts: dict[SourceFile, str] = {}

    def scan(self) -> Scan:
        """Look through the folder. Raises SourceError where the folder itself cannot be read."""
        root = self._resolved_root()
        found = _Found()
        verdicts: dict[SourceFile, str] = {}
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(root / folder) as listing:
                    entries = list(listing)
            except OSError as error:
                if not folder:
                    raise self._no_root(error) from error
                found.could_not_look(folder, error)
                continue
            for entry in entries:
                rel_path = f"{folder}/{entry.name}" if folder else entry.name
                with found.passing_over(rel_path):
                    _check_name(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(rel_path)
                        continue
                    file = self._looked_at(root, rel_path)
                    verdicts[file] = self._verdict(root, file)
                    if verdicts[file]:
                        raise _PassedOverError(verdicts[file])
                    found.files.append(file)
        self._verdicts = verdicts
        return Scan(tuple(sorted(found.files)), tuple(sorted(found.skipped)), frozenset(found.unreadable))

    def read(self, rel_path: str) -> str:
        """The text of a document, without a byte order mark.

        Raises SourceError where it is gone, cannot be read, is no document (see `Scan.skipped`), or lies outside.
        """
        root = self._resolved_root()
        try:
            return self._text(root, self._looked_at(root, rel_path).rel_path)
        except _PassedOverError as reason:
            raise SourceError(f"{_printable(rel_path)} in {self._root} is no source: {reason}") from None
        except OSError as error:
            raise SourceError(
                f"{_printable(rel_path)} in {self._root} could not be read ({error.strerror}); "
                "check that it is there, and its permissions"
            ) from error

    def _resolved_root(self) -> Path:
        try:
            return Path(os.path.realpath(self._root, strict=True))
        except OSError as error:
            raise self._no_root(error) from error

    def _no_root(self, error: OSError) -> SourceError:
        return SourceError(
            f"the sources folder {self._root} cannot be read ({error.strerror}); "
            "make it and put your documents there, or let kb.sources_dir name another"
        )

    def _looked_at(self, root: Path, rel_path: str) -> SourceFile:
        """The file as it is now. Raises _PassedOverError or OSError."""
        for name in rel_path.split("/"):
            if name in {"", ".", ".."}:
                raise _PassedOverError("it is no path inside the folder")
            _check_name(name)
        if PurePosixPath(rel_path).suffix.lower() not in SUFFIXES:
            raise _PassedOverError(f"only {', '.join(sorted(SUFFIXES))} files are read")
        target = Path(os.path.realpath(root / rel_path, strict=True))
        if not target.is_relative_to(root):
            raise _PassedOverError("it is a link that points outside the folder")
        status = target.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _PassedOverError("it is no regular file")
        if status.st_size > self._max_bytes:
            raise _PassedOverError(f"its {status.st_size} bytes are more than the {self._max_bytes} allowed")
        return SourceFile(rel_path, status.st_size, status.st_mtime_ns)

    def _verdict(self, root: Path, file: SourceFile) -> str:
        """Why the file's content makes it no source; empty where it is one."""
        known = self._verdicts.get(file)
        if known is not None:
            return known
        try:
            self._text(root, file.rel_path)
        except _PassedOverError as reason:
            return str(reason)
        return ""

    def _text(self, root: Path, rel_path: str) -> str:
        with (root / rel_path).open("rb") as file:
            data = file.read(self._max_bytes + 1)
        if len(data) > self._max_bytes:
            raise _PassedOverError(f"it has grown beyond the {self._max_bytes} bytes allowed")
        if b"\0" in data:
            raise _PassedOverError("it is binary, not text")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise _PassedOverError("it is not UTF-8 text") from None


class _Found:
    """What a scan has come upon so far."""

    def __init__(self) -> None:
        self.files: list[SourceFile] = []
        self.skipped: list[SkippedFile] = []
        self.unreadable: set[str] = set()

    @contextmanager
    def passing_over(self, rel_path: str) -> Generator[None, None, None]:
        """Note why a file is none of ours, and go on."""
        try:
            yield
        except _PassedOverError as reason:
            self.skipped.append(SkippedFile(_printable(rel_path), str(reason)))
        except FileNotFoundError:
            self.skipped.append(SkippedFile(rel_path, "it is gone, or a link to nothing"))
        except OSError as error:
            self.could_not_look(rel_path, error)

    def could_not_look(self, rel_path: str, error: OSError) -> None:
        """Note that a file or folder may well hold sources, but not today."""
        self.skipped.append(SkippedFile(rel_path, f"it cannot be read ({error.strerror})"))
        self.unreadable.add(rel_path)


def _check_name(name: str) -> None:
    if name.startswith("."):
        raise _PassedOverError("it is hidden")
    if name.endswith(("~", ".tmp", ".swp")) or name.startswith("~$") or (name[0] == "#" and name[-1] == "#"):
        raise _PassedOverError("it is temporary")
    if _printable(name) != name:
        raise _PassedOverError("its name holds control characters or is not UTF-8")


def _printable(text: str) -> str:
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _UNPRINTABLE else char for char in text
    )
