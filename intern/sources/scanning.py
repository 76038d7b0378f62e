"""The files below the scan paths, their texts without secrets, and waiting for changes there.

Links never lead out of the scan paths.

A file is known by its real path, so a file with several paths counts once.

Changes are noticed if `watchfiles` is installed. That only shortens a wait: the next scan finds all changes anyway.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from anyio import sleep_forever, to_thread
from msgspec import Struct

from intern.core.log import get_logger
from intern.core.progress import report_progress
from intern.core.text.fences import remove_invisible
from intern.core.text.masking import mask_secrets
from intern.core.text.secret_values import make_hider
from intern.documents.blocks import write_document
from intern.documents.parsing import NotADocumentError, format_by_ending, parse_document
from intern.sources.options import DiscoveryOptions

_log = get_logger(__name__)

# Control characters, halves of surrogate pairs, line and paragraph separators.
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})


class FoundFile(Struct, frozen=True, kw_only=True):
    """A file that may hold knowledge."""

    path: str
    """Real and absolute."""
    type: str
    """`documentation`, `configuration`, `source_code` or `services`."""
    size: int
    mtime: float


class ScanResult(Struct, frozen=True, kw_only=True):
    """The files, by path, and the paths that could not be read."""

    files: tuple[FoundFile, ...]
    troubles: Mapping[str, str] = {}
    """Files, folders and scan paths that could not be read, and why: earlier knowledge of them and below stays."""
    nowhere: bool = False
    """None of the scan paths could be read."""


class _ScanRoot(NamedTuple):
    start: str
    """The file or folder to walk."""
    within: str
    """The folder that must contain all files found here."""


class Scanner:
    """A scanner of the scan paths. It blocks, and raises nothing."""

    def __init__(self, options: DiscoveryOptions, *, never: Sequence[Path] = ()) -> None:
        """Take `never`, folders to leave out, such as intern's own."""
        self._options = options
        self._never = tuple(os.path.realpath(path) for path in never)

    def scan(self) -> ScanResult:
        """Scan all of them."""
        found: dict[str, FoundFile] = {}
        look = _ScanProgress()
        for root in self._find_roots(look):
            for file in self._walk_root(root, look):
                found.setdefault(file.path, file)
        return ScanResult(
            files=tuple(found[path] for path in sorted(found)),
            troubles=look.troubles,
            nowhere=bool(look.troubles) and not look.reached,
        )

    def find_unreadable_paths(self) -> Mapping[str, str]:
        """Return the scan paths that could not be read, with reasons, without walking further."""
        look = _ScanProgress()
        for root in self._find_roots(look):
            with look.note_errors(root.start):
                _list_folder(root.start)
        return look.troubles

    def check_file(self, path: str) -> FoundFile | None:
        """Return a file as it is now; None if it is gone, of no type, or not below a scan path.

        Raises OSError if it, or its scan path, cannot be read.
        """
        real = os.path.realpath(path)
        if real != path:
            return None
        look = _ScanProgress()
        for root in self._find_roots(look):
            if _is_in(real, root.start) and not self._is_skipped(real, root.start):
                return self._stat_file(real, root)
        for folder, reason in look.troubles.items():
            if _is_in(real, folder):
                raise OSError(errno.EIO, reason, folder)
        return None

    def _find_roots(self, look: _ScanProgress) -> Iterator[_ScanRoot]:
        for scan_path in self._options.scan_paths:
            path = os.path.abspath(os.path.expanduser(scan_path))  # noqa: PTH100, PTH111 a Path would lose nothing, but glob wants text
            if not glob.has_magic(path):
                real = os.path.realpath(path)
                with look.note_errors(real):
                    os.lstat(real)  # an unmounted disk, maybe
                if real not in look.troubles:
                    yield _ScanRoot(real, real)
                continue
            within = os.path.realpath(_literal_folder(path))
            _check_pattern_folders(path, look)
            for match in sorted(glob.glob(path, recursive=True)):  # noqa: PTH207
                real = os.path.realpath(match)
                if _is_in(real, within):
                    yield _ScanRoot(real, within)

    def _walk_root(self, root: _ScanRoot, look: _ScanProgress) -> Iterator[FoundFile]:
        folders = [root.start]
        while folders:
            folder = folders.pop()
            look.looked += 1
            report_progress("Looking through {total} scan paths and folders", look.looked, look.looked + len(folders))
            if folder in self._never:
                continue
            entries: list[tuple[str, bool]] = []
            with look.note_errors(folder):
                entries = _list_folder(folder)
                look.reached |= entries != [(folder, False)]
            for path, is_folder in entries:
                if path != root.start and self._skips(os.path.basename(path)):  # noqa: PTH119
                    continue
                if is_folder:
                    folders.append(path)
                    continue
                file = None
                with look.note_errors(path):
                    file = self._stat_file(path, root)
                    look.reached = True
                if file is not None:
                    yield file

    def _stat_file(self, path: str, root: _ScanRoot) -> FoundFile | None:
        kind = self._match_type(os.path.basename(path))  # noqa: PTH119
        if not kind or any(unicodedata.category(character) in _UNPRINTABLE for character in path):
            return None
        real = os.path.realpath(path)
        if not _is_in(real, root.within) or any(_is_in(real, folder) for folder in self._never):
            return None
        try:
            status = os.stat(real)  # noqa: PTH116
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return FoundFile(path=real, type=kind, size=status.st_size, mtime=status.st_mtime_ns / 1e9)

    def _match_type(self, name: str) -> str:
        return next((kind for kind, patterns in self._options.patterns if _matches(name, patterns)), "")

    def _skips(self, name: str) -> bool:
        return _matches(name, self._options.skip)

    def _is_skipped(self, path: str, root: str) -> bool:
        below = os.path.relpath(path, root)
        return below != "." and any(self._skips(name) for name in Path(below).parts)


def shorten_paths(paths: Iterable[str], scan_paths: Sequence[str]) -> dict[str, str]:
    """Return the name of each file: its path below its scan path, with more folders above if names are equal."""
    folders = [_base_folder(scan_path) for scan_path in scan_paths]
    parts = {path: Path(path).parts[1:] for path in paths}
    named = {path: _count_parts_below(path, folders) for path in parts}
    while several := {
        name for name, times in Counter(parts[each][-n:] for each, n in named.items()).items() if times > 1
    }:
        for path, number in named.items():
            if parts[path][-number:] in several:
                named[path] = number + 1
    return {path: "/".join(parts[path][-number:]) for path, number in named.items()}


def _base_folder(scan_path: str) -> str:
    """Return the folder of a scan path: itself, its parent, or the beginning of its pattern."""
    path = os.path.abspath(os.path.expanduser(scan_path))  # noqa: PTH100, PTH111
    real = os.path.realpath(_literal_folder(path) if glob.has_magic(path) else path)
    return os.path.dirname(real) if os.path.isfile(real) else real  # noqa: PTH113, PTH120


def _count_parts_below(path: str, folders: Iterable[str]) -> int:
    folder = next((each for each in folders if _is_in(path, each)), os.path.dirname(path))  # noqa: PTH120
    return len(Path(os.path.relpath(path, folder)).parts)


class _ScanProgress:
    """The progress of one scan, and its errors."""

    def __init__(self) -> None:
        self.troubles: dict[str, str] = {}
        self.reached = False
        self.looked = 0  # scan paths, or what their patterns match, and folders below them

    @contextmanager
    def note_errors(self, path: str) -> Generator[None]:
        """Note an error that keeps us from reading a path."""
        try:
            yield
        except OSError as error:
            self.troubles[path] = error.strerror or "it cannot be read"


def _list_folder(start: str) -> list[tuple[str, bool]]:
    """List a folder, sorted, and whether each entry is a folder; a file is its own entry. Raises OSError.

    Links to folders are not followed: their targets are found by themselves, if they are inside.
    """
    if not stat.S_ISDIR(os.stat(start).st_mode):  # noqa: PTH116
        return [(start, False)]
    with os.scandir(start) as listing:
        return sorted((entry.path, entry.is_dir(follow_symlinks=False)) for entry in listing)


def _check_pattern_folders(pattern: str, look: _ScanProgress) -> None:
    """Note the unreadable folders in a pattern's path: `glob` takes them for empty."""
    parts = Path(pattern).parts
    fixed = len(Path(_literal_folder(pattern)).parts)
    with look.note_errors(os.path.realpath(_literal_folder(pattern))):
        with os.scandir(_literal_folder(pattern)):
            look.reached = True
        for depth in range(fixed + 1, len(parts)):
            mode = os.X_OK | (os.R_OK if glob.has_magic(parts[depth]) else 0)
            for folder in glob.glob(str(Path(*parts[:depth])), recursive=True):  # noqa: PTH207
                if os.path.isdir(folder) and not os.access(folder, mode):  # noqa: PTH112
                    look.troubles[os.path.realpath(folder)] = os.strerror(errno.EACCES)


def is_below(path: str, others: Iterable[str]) -> bool:
    """Return whether a path is one of the others, or lies below one of them."""
    return any(_is_in(path, other) for other in others)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def _literal_folder(pattern: str) -> str:
    """Return the folder above the first part of a pattern with wildcards."""
    parts = Path(pattern).parts
    magic = next(n for n, part in enumerate(parts) if glob.has_magic(part))
    return str(Path(*parts[:magic]))


# The interval at which its thread checks whether it should stop; a shutdown may take this much longer.
_LOOK_MS = 500


class FileWatcher:
    """Changes below the scan paths."""

    def __init__(self, options: DiscoveryOptions, never: Sequence[Path] = ()) -> None:
        self._options = options
        self._never = tuple(f"{os.path.realpath(path)}{os.sep}" for path in never)
        self._watching: Any = import_module("watchfiles").awatch if find_spec("watchfiles") else None

    async def wait(self) -> None:
        """Return once a file changed that the next cycle may index."""
        paths = await to_thread.run_sync(self._existing_paths)
        if self._watching is not None and paths:
            try:
                watching = self._watching(*paths, watch_filter=self._concerns, rust_timeout=_LOOK_MS)
                async with aclosing(watching):
                    async for _ in watching:
                        return
            except OSError as error:  # too many folders for the system, or one that is gone
                _log.warning("files_not_watched", reason=str(error))
        await sleep_forever()

    def _existing_paths(self) -> list[str]:
        paths = (os.path.realpath(os.path.expanduser(path)) for path in self._options.scan_paths)  # noqa: PTH111
        return [path for path in paths if os.path.exists(path)]  # noqa: PTH110

    def _concerns(self, _: object, path: str) -> bool:
        *above, name = Path(path).parts
        skipped = any(_matches(each, self._options.skip) for each in (*above[-8:], name))
        wanted = any(_matches(name, patterns) for _, patterns in self._options.patterns)
        return wanted and not skipped and not path.startswith(self._never)


ReadProblem = Literal["unsupported_type", "permission_denied", "gone"]

MOST_LINES = 10_000
FIRST_LINES = 5_000
LAST_LINES = 1_000

# Far more than any text for people has; reading on would only fill the memory.
_MOST_BYTES = 64_000_000


class FileText(Struct, frozen=True, kw_only=True):
    """A file that could be read."""

    text: str
    size: int
    mtime: float
    original_size: int | None = None
    """The number of its lines, if only the first and the last of them are in `text`."""


class FileUnreadableError(Exception):
    """A file could not be read."""

    def __init__(self, trouble: ReadProblem, reason: str) -> None:
        super().__init__(reason)
        self.trouble = trouble


def read_file(path: str, secrets: Collection[str] = ()) -> FileText:
    """Read a file at the path where it was found: a link in its place is not followed.

    Masks `secrets`, and anything that looks like one. Blocks; raises FileUnreadableError.
    """
    try:
        data, status = _read_bytes(path)
        text = _extract_text(data, path)
    except OSError as error:
        raise _unreadable_error(error) from error
    # Before it is cut, or half a key could stay.
    cut, original = drop_middle_lines(mask_text_secrets(text, secrets))
    return FileText(text=cut, size=status.st_size, mtime=status.st_mtime_ns / 1e9, original_size=original)


def mask_text_secrets(text: str, secrets: Collection[str]) -> str:
    """Mask these secrets, and anything that looks like one."""
    return mask_secrets(make_hider(secrets)(text)).text


def drop_middle_lines(text: str) -> tuple[str, int | None]:
    """Return the text, or of a very long one the first and last lines, and the number of its lines."""
    lines = text.split("\n")
    number = len(lines) - (not lines[-1])  # a line break at the end begins no line
    if number <= MOST_LINES:
        return text, None
    left_out = number - FIRST_LINES - LAST_LINES
    return "\n".join([*lines[:FIRST_LINES], f"[… {left_out} lines …]", *lines[number - LAST_LINES : number]]), number


def _read_bytes(path: str) -> tuple[bytes, os.stat_result]:
    """Read the file at this very path, following no link. Raises FileUnreadableError and OSError."""
    # Not blocking: a pipe may have replaced the file.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise FileUnreadableError("unsupported_type", "it is no regular file")
    with os.fdopen(fd, "rb") as file:
        if os.path.realpath(path) != path or not os.path.samestat(status, os.lstat(path)):
            raise FileUnreadableError("gone", "a link leads there by now")
        data = file.read(_MOST_BYTES + 1)
    return data, status


_DOCUMENTS = frozenset({"markdown", "restructured", "asciidoc", "notebook"})


def _extract_text(data: bytes, path: str) -> str:
    """Return the text that a document's readers see; of other files, such as settings, all text."""
    text = _decode(data)
    if format_by_ending(path) not in _DOCUMENTS:
        return remove_invisible(text)
    try:
        return write_document(parse_document(data, path, max_chars=len(text) + 1))
    except NotADocumentError as error:
        raise FileUnreadableError("unsupported_type", str(error)) from None


def _decode(data: bytes) -> str:
    if len(data) > _MOST_BYTES:
        raise FileUnreadableError("unsupported_type", f"it is larger than {_MOST_BYTES} bytes")
    if b"\0" in data:
        raise FileUnreadableError("unsupported_type", "it is binary, not text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FileUnreadableError("unsupported_type", "it is not UTF-8 text") from None


def _unreadable_error(error: OSError) -> FileUnreadableError:
    is_gone = isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == errno.ELOOP
    return FileUnreadableError("gone" if is_gone else "permission_denied", error.strerror or "it cannot be read")
