"""The operator's own documents: the files in the folder, and the text of one. Read only.

Links and paths never lead outside the folder, and skipped files are named with their reason. The bytes of a file decide
its kind. A scan opens no file; its content is checked when it is read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import unicodedata
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from intern.core.errors import SourceError
from intern.sources.extracting import (
    Kind,
    NoTextError,
    check_ending,
    html_text,
    kind_of,
    notebook_text,
    pdf_text,
    plain_text,
)

# Extracted texts that are kept for the next question, in characters: of what was loaded for a few.
_KEPT_CHARS = 4_000_000

_TEMPORARY = ("~", ".tmp", ".temp", ".swp", ".swo", ".swx")
# Names that browsers and copying programs give to what they are still fetching.
_UNFINISHED = (".part", ".partial", ".filepart", ".crdownload", ".download")
# Names that editors, patch, merges and packages give to other states of a file: an older one would win over its
# correction. "Copy of …" is left alone: people call documents so, and mean them.
_COPY = re.compile(r"\.(bak|backup|old|orig|rej|save|dpkg-(old|dist|new)|rpm(save|orig|new))[-.]?[0-9]*$")

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


class NotASourceError(SourceError):
    """What is there is no document."""

    def __init__(self, rel_path: str, folder: Path, reason: str) -> None:
        super().__init__(f"{_printable(rel_path)} in {folder} is no source: {reason}")
        self.reason = reason


class _PassedOverError(Exception):
    """This is no source."""


class SourceFolder:
    """The documents below `folder`, up to `max_bytes` each. One thread at a time may scan, and any may read."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._root = folder
        self._max_bytes = max_bytes
        # What reading told of files that are no sources after all, good for as long as size and mtime stay.
        self._unfit: dict[SourceFile, str] = {}
        self._extracted = _Extracted(_KEPT_CHARS)

    def scan(self) -> Scan:
        """Look through the folder, into no file. Raises SourceError where the folder itself cannot be read.

        Some of the files may turn out to be no sources when they are read; from then on they are passed over.
        """
        root = self._resolved_root()
        found = _Found()
        unfit: dict[SourceFile, str] = {}
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
                    if reason := self._unfit.get(file):
                        unfit[file] = reason
                        raise _PassedOverError(reason)
                    found.files.append(file)
        self._unfit = unfit
        return Scan(tuple(sorted(found.files)), tuple(sorted(found.skipped)), frozenset(found.unreadable))

    def read(self, rel_path: str) -> str:
        """Read the text of a document: as written, without a byte order mark, or as extracted.

        Raises NotASourceError where it is no document or lies outside, and SourceError where it is gone or cannot be
        read.
        """
        try:
            file = self._looked_at(self._root, rel_path)
            return self._extracted.get(file) or self._text(self._root, file)
        except _PassedOverError as reason:
            raise NotASourceError(rel_path, self._root, str(reason)) from None
        except OSError as error:
            self._resolved_root()  # that the folder itself is gone is the better word
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
        """Return the file as it is now. Raises _PassedOverError or OSError."""
        for name in rel_path.split("/"):
            if name in {"", ".", ".."}:
                raise _PassedOverError("it is no path inside the folder")
            _check_name(name)
        try:
            check_ending(rel_path)
        except NoTextError as reason:
            raise _PassedOverError(str(reason)) from None
        target = self._target(root, rel_path)
        status = os.stat(target)  # noqa: PTH116
        if not stat.S_ISREG(status.st_mode):
            raise _PassedOverError("it is no regular file")
        self._check_size(status.st_size)
        if not os.access(target, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return SourceFile(rel_path, status.st_size, status.st_mtime_ns)

    def _target(self, root: Path, rel_path: str) -> str:
        # Paths are resolved where there is a link only: for each source of each answer that would take longer than to
        # read it.
        target = str(root)
        for name in rel_path.split("/"):
            target = f"{target}/{name}"
            if stat.S_ISLNK(os.lstat(target).st_mode):
                break
        else:
            return target
        resolved = Path(os.path.realpath(root / rel_path, strict=True))
        if not resolved.is_relative_to(self._resolved_root()):
            raise _PassedOverError("it is a link that points outside the folder")
        return str(resolved)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise _PassedOverError(
                f"its {size} bytes are more than the {self._max_bytes} allowed (kb.max_source_bytes)"
            )

    def _text(self, root: Path, file: SourceFile) -> str:
        try:
            data = self._data(root, file.rel_path)
            kind = kind_of(file.rel_path, data)
            text = self._extract(kind, data)
        except NoTextError as reason:
            self._unfit[file] = str(reason)
            raise _PassedOverError(str(reason)) from None
        if kind != "text":
            self._extracted.put(file, text)
        return text

    def _data(self, root: Path, rel_path: str) -> bytes:
        # Neither through a link that was put there since, nor waiting for what is no file any more.
        fd = os.open(self._target(root, rel_path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            data = file.read(self._max_bytes + 1)
        self._check_size(len(data))
        return data

    def _extract(self, kind: Kind, data: bytes) -> str:
        match kind:
            case "text":
                return plain_text(data)
            case "html":
                return html_text(data)
            case "notebook":
                return notebook_text(data)
            case "pdf":
                return pdf_text(data, self._max_bytes)


class _Extracted:
    """What was extracted last, by file, size and mtime: a PDF takes seconds, and a popular one is asked about often."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._texts: dict[SourceFile, str] = {}
        self._guard = threading.Lock()

    def get(self, file: SourceFile) -> str | None:
        with self._guard:
            text = self._texts.pop(file, None)
            if text is not None:
                self._texts[file] = text  # the last to go
            return text

    def put(self, file: SourceFile, text: str) -> None:
        with self._guard:
            self._texts.pop(file, None)
            self._texts[file] = text
            while sum(map(len, self._texts.values())) > self._room:
                del self._texts[next(iter(self._texts))]


class _Found:
    """The results of a scan so far."""

    def __init__(self) -> None:
        self.files: list[SourceFile] = []
        self.skipped: list[SkippedFile] = []
        self.unreadable: set[str] = set()

    @contextmanager
    def passing_over(self, rel_path: str) -> Generator[None, None, None]:
        """Note why a file is skipped, and go on."""
        try:
            yield
        except _PassedOverError as reason:
            self.skipped.append(SkippedFile(_printable(rel_path), str(reason)))
        except FileNotFoundError:
            self.skipped.append(SkippedFile(rel_path, "it is gone, or a link to nothing"))
        except OSError as error:
            self.could_not_look(rel_path, error)

    def could_not_look(self, rel_path: str, error: OSError) -> None:
        """Note that a file or folder cannot be read now."""
        self.skipped.append(SkippedFile(rel_path, f"it cannot be read ({error.strerror})"))
        self.unreadable.add(rel_path)


def noteworthy(skipped: Iterable[SkippedFile]) -> list[SkippedFile]:
    """Skipped sources, without hidden and temporary files."""
    return [each for each in skipped if _set_aside(each.rel_path.rpartition("/")[2]) is None]


def _set_aside(name: str) -> str | None:
    if name.startswith("."):
        return "it is hidden"
    if name.endswith(_TEMPORARY) or name.startswith("~$") or (name[0] == "#" and name[-1] == "#"):
        return "it is temporary"
    return None


def _left_behind(name: str) -> str | None:
    """Return why a name looks like another version of a document; None otherwise."""
    lower = name.lower()
    if lower.endswith(_UNFINISHED):
        return "its name says that it is not whole"
    return "its name says that it is a copy that a program left behind" if _COPY.search(lower) else None


def _check_name(name: str) -> None:
    """Raise _PassedOverError if the name alone shows that it is no source."""
    if reason := _set_aside(name):
        raise _PassedOverError(reason)
    if reason := _left_behind(name):
        raise _PassedOverError(reason)
    if not name.isprintable() and _printable(name) != name:  # the first is quick, and true of almost every name
        raise _PassedOverError("its name holds control characters or is not UTF-8")


def _printable(text: str) -> str:
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _UNPRINTABLE else char for char in text
    )
