"""The indices: what each source covers, as text for models and people, and the cache that saves asking again.

In the text, an entry is a source id on a line and a description on the next, then a blank line. No description and no
file name can forge an entry. The cache is derived from the sources: lost or damaged, it is built again.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from intern.core.ids import SourceId
from intern.core.log import get_logger
from intern.core.records import IndexEntry
from intern.stores.files import FileLayer

_log = get_logger(__name__)

SCHEMA_VERSION = 1

_PREFIXES = ("kb:", "team:")
_URLS = ("kb:http://", "kb:https://")

# Control characters, halves of surrogate pairs, line and paragraph separators: no id of ours needs them.
_NO_ID_CHARACTERS = frozenset({"Cc", "Cs", "Zl", "Zp"})


def is_url(source_id: SourceId) -> bool:
    """Whether the source is a web page rather than a file."""
    return source_id.startswith(_URLS)


def is_source_id(text: str) -> bool:
    """Whether `text` can stand as an id in an index. A file name with a line break, for example, cannot."""
    return (
        text.startswith(_PREFIXES)
        and bool(text.partition(":")[2].strip())
        # The first says the same of almost every id, at once.
        and (text.isprintable() or not any(unicodedata.category(each) in _NO_ID_CHARACTERS for each in text))
    )


def folded(description: str) -> str:
    """Return the description as one paragraph on one line: runs of blanks and line breaks become one space."""
    return " ".join(description.encode("utf-8", "replace").decode("utf-8").split())


def format_index(entries: Iterable[IndexEntry]) -> str:
    """Return the index as text: files before URLs, each sorted by id. Entries with an unfit id are left out."""
    fit = sorted(
        (entry for entry in entries if is_source_id(entry.source_id)),
        key=lambda entry: (is_url(entry.source_id), entry.source_id),
    )
    return "".join(_formatted(entry) for entry in fit)


def parse_index(text: str) -> tuple[IndexEntry, ...]:
    """Return the entries of an index in order. Descriptions may run over lines; blocks without an id are ignored."""
    blocks: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.strip():
            blocks[-1].append(line.removesuffix("\r"))
        elif blocks[-1]:
            blocks.append([])
    return tuple(
        IndexEntry(SourceId(lines[0]), folded(" ".join(lines[1:])))
        for lines in blocks
        if lines and is_source_id(lines[0])
    )


def read_index(path: Path, *, files: FileLayer | None = None) -> tuple[IndexEntry, ...]:
    """Return the entries on disk; none where there is no index yet. Raises KnowledgeError where it cannot be read."""
    data = (files or FileLayer()).read(path)
    return parse_index(data.decode("utf-8-sig", "replace")) if data else ()


def write_index(path: Path, entries: Iterable[IndexEntry], *, files: FileLayer | None = None) -> bool:
    """Replace the index on disk, and say whether it differed; the same text is not written again.

    Raises KnowledgeError. Entries with an unfit id are left out with a warning.
    """
    layer = files or FileLayer()
    listed = tuple(entries)
    for entry in listed:
        if not is_source_id(entry.source_id):
            _log.warning("index_entry_refused", source_id=ascii(entry.source_id), index=str(path))
    data = format_index(listed).encode()
    if layer.read(path) == data:
        return False
    layer.write_atomically(path, data)
    return True


def content_hash(text: str) -> str:
    """SHA-256 (hexadecimal) of what matters in a text.

    Which is: lines that end in a bare newline, no trailing blanks, no blank first or last lines.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    bare = "\n".join(line.rstrip() for line in lines).strip("\n")
    return hashlib.sha256(bare.encode("utf-8", "surrogatepass")).hexdigest()


class Tries(Struct, frozen=True, kw_only=True):
    """Tries in a row that brought no description of a text."""

    failed: int = 0
    """For a reason of its own: what the model said of it was of no use."""
    unheard: int = 0
    """Since then: no model was there."""
    next_at: datetime | None = None
    """When it is tried again without a request."""


class _Cached(Struct, frozen=True, kw_only=True, tag_field="source_type"):
    content_hash: str
    summary_text: str
    last_indexed_at: datetime
    summary_pending: bool = False
    """The text is a provisional description, or of an earlier version: a summary is still owed."""
    provisional: bool = False
    """No model has described it yet: the text is its own beginning, or there is none."""
    last_error: str | None = None
    """Why the last try to read or to describe it failed."""
    tries: Tries | None = None
    """What was tried in vain to describe this very text."""

    @property
    def described_at(self) -> datetime | None:
        """When a model described it last; None where none has."""
        return None if self.provisional else self.last_indexed_at


class CachedFile(_Cached, frozen=True, kw_only=True, tag="file"):
    """What is known of a file. The same size and mtime mean: unchanged; otherwise the hash decides."""

    rel_path: str
    size_bytes: int
    mtime_ns: int


FRESH = "ok"
NEEDS_SCRIPTS = "needs JavaScript"
RENDERED = "rendered"


class CachedPage(_Cached, frozen=True, kw_only=True, tag="url"):
    """What is known of a web page. One without a description was never had, or is gone; no index lists it."""

    url: str
    last_fetched_at: datetime | None = None
    etag: str | None = None
    last_modified: str | None = None
    fetch_status: str | None = None
    """What the last look gave: `FRESH`, `NEEDS_SCRIPTS`, `RENDERED`, or an error."""
    next_check_at: datetime | None = None
    failures: int = 0
    """Looks in a row that failed."""
    missing: int = 0
    """Looks in a row that found that there is no such page."""


CachedSource = CachedFile | CachedPage


class IndexCache(Struct, frozen=True, kw_only=True):
    """What the last indexing found, by source id."""

    sources: Mapping[SourceId, CachedSource] = {}
    generated_at: datetime | None = None
    """UTC; None in a cache that was never saved."""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def load(cls, path: Path, *, files: FileLayer | None = None) -> IndexCache:
        """Return the cache on disk. A missing one is empty, and so is a damaged or newer one, with a warning.

        Raises KnowledgeError where the file cannot be read.
        """
        data = (files or FileLayer()).read(path)
        if data is None:
            return cls()
        try:
            return _decoded(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("index_cache_rebuilt", file=str(path), reason=str(error))
            return cls()

    def save(self, path: Path, *, files: FileLayer | None = None) -> bool:
        """Replace the cache on disk, and say whether its sources differed; otherwise nothing is written.

        Raises KnowledgeError. Sources with an id that no index can hold are left out.
        """
        layer = files or FileLayer()
        sources = {source_id: source for source_id, source in self.sources.items() if is_source_id(source_id)}
        data = layer.read(path)
        if data is not None and _sources_in(data) == sources:
            return False
        encoded = msgspec.json.encode(msgspec.structs.replace(self, sources=sources), order="sorted")
        layer.write_atomically(path, msgspec.json.format(encoded, indent=1) + b"\n")
        return True


class _Version(Struct):
    schema_version: int


def _decoded(data: bytes) -> IndexCache:
    version = msgspec.json.decode(data, type=_Version).schema_version
    if version != SCHEMA_VERSION:
        raise msgspec.ValidationError(f"schema {version}; this intern knows schema {SCHEMA_VERSION}")
    return msgspec.json.decode(data, type=IndexCache)


def _sources_in(data: bytes) -> Mapping[SourceId, CachedSource] | None:
    try:
        return _decoded(data).sources
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _formatted(entry: IndexEntry) -> str:
    description = folded(entry.description)
    return f"{entry.source_id}\n{description}\n\n" if description else f"{entry.source_id}\n\n"
