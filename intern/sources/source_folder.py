"""The operator's own documents: the files in the folder, and the text of each. Read only.

Links and paths never lead outside the folder, and skipped files are named with their reason. The bytes of a file decide
its format, not its name alone. A scan opens no file; its content is checked when it is read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import unicodedata
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from intern.core.errors import SourceError
from intern.core.log import get_logger
from intern.documents.blocks import write_document
from intern.documents.parsing import MOST_MARKUP, NotADocumentError, check_ending, decode_text, parse_document
from intern.stores.source_cache import CachedFile, IncludedFile

_log = get_logger(__name__)

# Characters of documents that are kept: indexing reads each twice, and the next question asks about a popular one.
# To parse Markdown costs as much as all else of indexing, and a PDF takes seconds.
_MOST_KEPT = 8_000_000

_TEMPORARY = ("~", ".tmp", ".temp", ".swp", ".swo", ".swx")
# Names that browsers and copying programs give to unfinished files.
_UNFINISHED = (".part", ".partial", ".filepart", ".crdownload", ".download")
# Names that editors, patch, merges and packages give to other states of a file: an older one would win over its
# correction. "Copy of …" is accepted: people give real documents such names.
_COPY = re.compile(r"\.(bak|backup|old|orig|rej|save|dpkg-(old|dist|new)|rpm(save|orig|new))[-.]?[0-9]*$")

# Characters that could forge a line of the index, or that UTF-8 cannot carry.
_UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}


class SourceFile(NamedTuple):
    """A document, as `stat` describes it. `rel_path` has `/` between its parts, on every system."""

    rel_path: str
    size_bytes: int
    version: int
    """When it was last written, in nanoseconds; of a topic, the position of its newest change."""
    includes: tuple[IncludedFile, ...] = ()
    """The files that its text includes, as far as they are known."""


class SkippedFile(NamedTuple):
    """A file or folder that was skipped."""

    rel_path: str
    reason: str


class FolderScan(NamedTuple):
    """The folder at one moment; each part sorted by path."""

    files: tuple[SourceFile, ...]
    skipped: tuple[SkippedFile, ...]
    unreadable: frozenset[str]
    """Those of `skipped` that could not be read: earlier knowledge of them, and of files below, stays."""


class NotASourceError(SourceError):
    """The file is no document."""

    def __init__(self, rel_path: str, folder: Path, reason: str) -> None:
        super().__init__(f"{_escape_unprintable(rel_path)} in {folder} is no source: {reason}")
        self.reason = reason


class SourceFolder:
    """The documents below `folder`, up to `max_bytes` each. One thread at a time may scan, and any may read."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._root = folder
        self._max_bytes = max_bytes
        # Why files turned out to be no sources when they were read; valid while size and mtime stay.
        self._unfit: dict[SourceFile, str] = {}
        self._kept: dict[tuple[str, bytes], str] = {}  # by path and hash of the bytes, least recently used first
        self._held = 0
        self._keeping = Lock()
        self.includes: dict[str, tuple[IncludedFile, ...]] = {}
        """The files that a document included when it was read last, by the document's path."""

    def scan(self, known: Iterable[CachedFile] = ()) -> FolderScan:
        """List the folder without opening files, and the files that those in `known` include.

        Some of the files may turn out to be no sources when they are read; from then on they are skipped. Raises
        SourceError if the folder itself cannot be read.
        """
        including = {each.rel_path: each.includes for each in known if each.includes}
        root = self._resolve_root()
        files: list[SourceFile] = []
        skipped: dict[str, NotADocumentError | OSError] = {}
        unreadable: set[str] = set()
        unfit: dict[SourceFile, str] = {}
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(root / folder) as listing:
                    entries = list(listing)
            except OSError as error:
                if not folder:
                    raise self._root_error(error) from error
                skipped[folder] = error
                unreadable.add(folder)
                continue
            for entry in entries:
                rel_path = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    _check_name(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(rel_path)
                        continue
                    file = self._check_file(root, rel_path)
                    if reason := self._unfit.get(file):
                        unfit[file], skipped[rel_path] = reason, NotADocumentError(reason)
                    else:
                        includes = (self._stat_included(each.rel_path) for each in including.get(rel_path, ()))
                        files.append(file._replace(includes=tuple(includes)))
                except (NotADocumentError, OSError) as error:
                    skipped[rel_path] = error
                    unreadable.update([] if isinstance(error, NotADocumentError | FileNotFoundError) else [rel_path])
        self._unfit = unfit
        told = sorted(
            SkippedFile(_escape_unprintable(rel_path), _describe_error(error)) for rel_path, error in skipped.items()
        )
        return FolderScan(tuple(sorted(files)), tuple(told), frozenset(unreadable))

    def read(self, rel_path: str) -> str:
        """Read the text of a document as Markdown.

        Raises NotASourceError if it is no document or lies outside, and SourceError if it is gone or cannot be read.
        """
        try:
            return self._read_text(self._root, self._check_file(self._root, rel_path))
        except NotADocumentError as reason:
            raise NotASourceError(rel_path, self._root, str(reason)) from None
        except OSError as error:
            self._resolve_root()  # if the folder itself is gone, its error says more
            raise SourceError(
                f"{_escape_unprintable(rel_path)} in {self._root} could not be read ({error.strerror}); "
                "check that it is there, and its permissions"
            ) from error

    def _resolve_root(self) -> Path:
        try:
            return Path(os.path.realpath(self._root, strict=True))
        except OSError as error:
            raise self._root_error(error) from error

    def _root_error(self, error: OSError) -> SourceError:
        return SourceError(
            f"the sources folder {self._root} cannot be read ({error.strerror}); "
            "make it and put your documents there, or let kb.sources_dir name another"
        )

    def _check_file(self, root: Path, rel_path: str) -> SourceFile:
        """Return the file as it is now. Raises NotADocumentError or OSError."""
        for name in rel_path.split("/"):
            if name in {"", ".", ".."}:
                raise NotADocumentError("it is no path inside the folder")
            _check_name(name)
        check_ending(rel_path)
        target = self._resolve_target(root, rel_path)
        status = os.stat(target)  # noqa: PTH116
        if not stat.S_ISREG(status.st_mode):
            raise NotADocumentError("it is no regular file")
        self._check_size(status.st_size)
        if not os.access(target, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return SourceFile(rel_path, status.st_size, status.st_mtime_ns)

    def _resolve_target(self, root: Path, rel_path: str) -> str:
        # Only paths with a link are resolved: otherwise this would take longer than reading, for each source of each
        # answer.
        target = str(root)
        for name in rel_path.split("/"):
            target = f"{target}/{name}"
            if stat.S_ISLNK(os.lstat(target).st_mode):
                break
        else:
            return target
        resolved = Path(os.path.realpath(root / rel_path, strict=True))
        if not resolved.is_relative_to(self._resolve_root()):
            raise NotADocumentError("it is a link that points outside the folder")
        return str(resolved)

    def _check_size(self, size: int) -> None:
        if size > MOST_MARKUP * self._max_bytes:
            raise NotADocumentError(
                f"its {size} bytes are more than the {MOST_MARKUP * self._max_bytes} allowed (kb.max_source_bytes)"
            )

    def _read_text(self, root: Path, file: SourceFile) -> str:
        data = self._read_bytes(root, file.rel_path)
        try:
            return self._extract_cached(file.rel_path, data)
        except NotADocumentError as reason:
            self._unfit[file] = str(reason)
            raise

    def _extract_cached(self, rel_path: str, data: bytes) -> str:
        """Return the text, from memory if it is there, and keep it."""
        key = (rel_path, sha256(data).digest())
        included: list[IncludedFile] = []
        with self._keeping:
            text = self._kept.pop(key, None)
            self._held -= len(text or "")
        text = self._extract_text(rel_path, data, included) if text is None else text
        self.includes[rel_path] = tuple(included)
        with self._keeping:
            if not included and key not in self._kept:  # included files may change without it
                self._kept[key] = text
                self._held += len(text)
            while self._held > _MOST_KEPT:
                self._held -= len(self._kept.pop(next(iter(self._kept))))
        return text

    def _extract_text(self, rel_path: str, data: bytes, included: list[IncludedFile]) -> str:
        def read(path: str) -> str | None:
            included.append(self._stat_included(path))
            return self._read_included(path)

        document = parse_document(data, rel_path, max_chars=self._max_bytes, read=read)
        for oddity in document.oddities:
            _log.warning("document_odd", path=rel_path, reason=oddity)
        return write_document(document)

    def _stat_included(self, rel_path: str) -> IncludedFile:
        try:
            return IncludedFile(*self._check_file(self._root, rel_path)[:3])
        except (NotADocumentError, OSError):
            return IncludedFile(rel_path)

    def _read_included(self, rel_path: str) -> str | None:
        """Return the text of a file that another one includes; None if it is none, or lies outside."""
        try:
            self._check_file(self._root, rel_path)
            return decode_text(self._read_bytes(self._root, rel_path))[0]
        except (NotADocumentError, OSError):
            return None

    def _read_bytes(self, root: Path, rel_path: str) -> bytes:
        # Do not follow a link that was made since, and do not wait if it is no file any more.
        fd = os.open(self._resolve_target(root, rel_path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            data = file.read(MOST_MARKUP * self._max_bytes + 1)
        self._check_size(len(data))
        return data


def _describe_error(error: NotADocumentError | OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is gone, or a link to nothing"
    return f"it cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)


def drop_hidden_files(skipped: Iterable[SkippedFile]) -> list[SkippedFile]:
    """Return the skipped sources, without hidden and temporary files."""
    return [each for each in skipped if _reason_to_hide(each.rel_path.rpartition("/")[2]) is None]


def _reason_to_hide(name: str) -> str | None:
    if name.startswith("."):
        return "it is hidden"
    if name.endswith(_TEMPORARY) or name.startswith("~$") or (name[0] == "#" and name[-1] == "#"):
        return "it is temporary"
    return None


def _check_name(name: str) -> None:
    """Raise NotADocumentError if the name alone shows that it is no source."""
    if reason := _reason_to_hide(name):
        raise NotADocumentError(reason)
    if name.lower().endswith(_UNFINISHED):
        raise NotADocumentError("its name says that it is not whole")
    if _COPY.search(name.lower()):
        raise NotADocumentError("its name says that it is a copy that a program left behind")
    if (
        not name.isprintable() and _escape_unprintable(name) != name
    ):  # the first is quick, and true of almost every name
        raise NotADocumentError("its name holds control characters or is not UTF-8")


def _escape_unprintable(text: str) -> str:
    escapes = {char: char.encode("unicode_escape").decode() for char in text}
    return "".join(escapes[char] if unicodedata.category(char) in _UNPRINTABLE else char for char in text)
