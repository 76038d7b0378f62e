"""Walking the scan paths: which files are there, of which type. Never out of them, whatever a link says.

A file is known by its real path, so one that is met by several ways is one file.
"""

from __future__ import annotations

import glob
import os
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from intern.discovery.options import DiscoveryOptions

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


class Scanned(Struct, frozen=True, kw_only=True):
    """What is there, by path; and where nobody could look."""

    files: tuple[FoundFile, ...]
    unreadable: tuple[str, ...]
    """Files, folders and scan paths that could not be looked at: what was known of them, and below, still holds."""


class _Root(NamedTuple):
    start: str
    """What is walked: a file or a folder."""
    within: str
    """The folder that nothing found here may lie outside of."""


class Scanner:
    """Looks through the scan paths. Blocks; raises nothing."""

    def __init__(self, options: DiscoveryOptions, *, never: Sequence[Path] = ()) -> None:
        """`never` are folders that are none of its business: intern's own, for one."""
        self._options = options
        self._never = tuple(os.path.realpath(path) for path in never)

    def scan(self) -> Scanned:
        """Look through all of them."""
        found: dict[str, FoundFile] = {}
        unreadable: set[str] = set()
        for root in self._roots(unreadable):
            for file in self._below(root, unreadable):
                found.setdefault(file.path, file)
        return Scanned(files=tuple(found[path] for path in sorted(found)), unreadable=tuple(sorted(unreadable)))

    def look(self, path: str) -> FoundFile | None:
        """A file as it is now; None where it is gone, of no type, or not below a scan path. Raises OSError."""
        real = os.path.realpath(path)
        if real != path:
            return None
        for root in self._roots(set()):
            if _is_in(real, root.start) and not self._is_skipped(real, root.start):
                return self._file(real, root)
        return None

    def _roots(self, unreadable: set[str]) -> Iterator[_Root]:
        for scan_path in self._options.scan_paths:
            path = os.path.abspath(os.path.expanduser(scan_path))  # noqa: PTH100, PTH111 a Path would lose nothing, but glob wants text
            if not glob.has_magic(path):
                real = os.path.realpath(path)
                if os.path.lexists(real):
                    yield _Root(real, real)
                else:
                    unreadable.add(real)  # an unmounted disk, maybe
                continue
            within = os.path.realpath(_fixed_part(path))
            if not os.path.isdir(within):  # noqa: PTH112
                unreadable.add(within)
            for match in sorted(glob.glob(path, recursive=True)):  # noqa: PTH207
                real = os.path.realpath(match)
                if _is_in(real, within):
                    yield _Root(real, within)

    def _below(self, root: _Root, unreadable: set[str]) -> Iterator[FoundFile]:
        folders = [root.start]
        while folders:
            folder = folders.pop()
            if folder in self._never:
                continue
            try:
                if not os.path.isdir(folder):  # noqa: PTH112
                    names, above = [os.path.basename(folder)], os.path.dirname(folder)  # noqa: PTH119, PTH120
                else:
                    names, above = sorted(os.listdir(folder)), folder  # noqa: PTH208
            except OSError:
                unreadable.add(folder)
                continue
            for name in names:
                path = os.path.join(above, name)  # noqa: PTH118
                if path != root.start and self._skips(name):
                    continue
                try:
                    # Links to folders are not followed: what they point to is found by itself, if it is inside.
                    if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
                        folders.append(path)
                    elif (file := self._file(path, root)) is not None:
                        yield file
                except OSError:
                    unreadable.add(path)

    def _file(self, path: str, root: _Root) -> FoundFile | None:
        kind = self._type_of(os.path.basename(path))  # noqa: PTH119
        if not kind or not _is_printable(path):
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

    def _type_of(self, name: str) -> str:
        return next((kind for kind, patterns in self._options.patterns if _matches(name, patterns)), "")

    def _skips(self, name: str) -> bool:
        return _matches(name, self._options.skip)

    def _is_skipped(self, path: str, root: str) -> bool:
        below = os.path.relpath(path, root)
        return below != "." and any(self._skips(name) for name in Path(below).parts)


def is_below(path: str, others: Iterable[str]) -> bool:
    """Whether a path is one of the others, or lies below one of them."""
    return any(_is_in(path, other) for other in others)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def _fixed_part(pattern: str) -> str:
    """The folder above the first part of a pattern that may match several."""
    parts = Path(pattern).parts
    magic = next(n for n, part in enumerate(parts) if glob.has_magic(part))
    return str(Path(*parts[:magic]))


def _is_printable(path: str) -> bool:
    return not any(unicodedata.category(character) in _UNPRINTABLE for character in path)
