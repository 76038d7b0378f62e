"""The descriptions of sources in text files: the indices, and the cache of each.

In an index, an entry is a source id on a line and a description on the next, then a blank line. No description and no
file name can forge an entry.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from intern.core.ids import SourceId, TopicName
from intern.core.knowledge import IndexEntry
from intern.core.log import get_logger
from intern.stores.files import FileLayer

_log = get_logger(__name__)

# The names that `intern.core.text.topic_names.make_topic_name` makes.
_SLUG = re.compile(r"[a-z0-9-]{1,64}")


def is_slug(name: str) -> bool:
    """Return whether it can be a topic's name, and so that of its file."""
    return bool(_SLUG.fullmatch(name))


_PREFIXES = ("kb:", "team:")
_URLS = ("kb:http://", "kb:https://")

# Control characters, halves of surrogate pairs, line and paragraph separators: no id of ours needs them.
_NO_ID_CHARACTERS = frozenset({"Cc", "Cs", "Zl", "Zp"})


def topic_id(name: TopicName) -> SourceId:
    """Return the id of a topic in the team's index."""
    return SourceId(f"team:{name}.txt")


def topic_from_id(source_id: str) -> TopicName:
    """Return the topic of such an id."""
    return TopicName(source_id.removeprefix("team:").removesuffix(".txt"))


def is_url(source_id: SourceId) -> bool:
    """Return whether the source is a web page rather than a file."""
    return source_id.startswith(_URLS)


def is_source_id(text: str) -> bool:
    """Return whether `text` can be an id in an index. A file name with a line break, for example, cannot."""
    return (
        text.startswith(_PREFIXES)
        and bool(text.partition(":")[2].strip())
        # The first says the same of almost every id, at once.
        and (text.isprintable() or not any(unicodedata.category(each) in _NO_ID_CHARACTERS for each in text))
    )


def flatten_description(description: str) -> str:
    """Return the description as one paragraph on one line: runs of blanks and line breaks become one space."""
    return " ".join(description.encode("utf-8", "replace").decode("utf-8").split())


def format_index(entries: Iterable[IndexEntry]) -> str:
    """Return the index as text: files before URLs, each sorted by id. Entries with an unfit id are left out."""
    fit = [entry for entry in entries if is_source_id(entry.source_id)]
    fit.sort(key=lambda entry: (is_url(entry.source_id), entry.source_id))
    return "".join(map(_format_entry, fit))


def parse_index(text: str) -> tuple[IndexEntry, ...]:
    """Return the entries of an index in order. Descriptions may run over lines; blocks without an id are ignored."""
    blocks: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.strip():
            blocks[-1].append(line.removesuffix("\r"))
        elif blocks[-1]:
            blocks.append([])
    named = (lines for lines in blocks if lines and is_source_id(lines[0]))
    return tuple(IndexEntry(SourceId(first), flatten_description(" ".join(more))) for first, *more in named)


def content_hash(text: str) -> str:
    """Return the SHA-256 (hexadecimal) of a text. Line ends, trailing blanks and blank outer lines do not count."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    bare = "\n".join(line.rstrip() for line in lines).strip("\n")
    return hashlib.sha256(bare.encode("utf-8", "surrogatepass")).hexdigest()


class DescriptionAttempts(Struct, frozen=True, kw_only=True):
    """Tries in a row that brought no description of a text."""

    failed: int = 0
    """Failures because of the text itself: the model's reply was of no use."""
    unheard: int = 0
    """Later failures, because no model was available."""
    next_at: datetime | None = None
    """When it is tried again without a request."""


class _CachedEntry(Struct, frozen=True, kw_only=True, tag_field="source_type"):
    content_hash: str
    summary_text: str
    last_indexed_at: datetime
    summary_pending: bool = False
    """The text is a provisional description, or of an earlier version: a summary is still owed."""
    provisional: bool = False
    """No model has described it yet: the text is its own beginning, or there is none."""
    last_error: str | None = None
    """Why the last try to read or to describe it failed."""
    tries: DescriptionAttempts | None = None
    """The failed tries to describe this very text."""

    @property
    def described_at(self) -> datetime | None:
        """When a model described it last; None where none has."""
        return None if self.provisional else self.last_indexed_at


class IncludedFile(NamedTuple):
    """A file whose text a document includes, as `stat` described it before it was read; zeros if it was not there."""

    rel_path: str
    size_bytes: int = 0
    version: int = 0


class CachedFile(_CachedEntry, frozen=True, kw_only=True, tag="file"):
    """The cached state of a file. With the same size and version (its mtime) it is unchanged; else the hash decides.

    The same is true of the files that it includes.
    """

    rel_path: str
    size_bytes: int
    version: int = msgspec.field(name="mtime_ns")
    includes: tuple[IncludedFile, ...] = ()


class CachedTopic(CachedFile, frozen=True, kw_only=True, tag="topic"):
    """The cached state of a topic. Its version is the position of its newest change."""

    version: int = msgspec.field(name="version")


FRESH = "ok"
NEEDS_SCRIPTS = "needs JavaScript"
RENDERED = "rendered"


class CachedPage(_CachedEntry, frozen=True, kw_only=True, tag="url"):
    """The cached state of a web page. One without a description was never fetched, or is gone; no index lists it."""

    url: str
    last_fetched_at: datetime | None = None
    etag: str | None = None
    last_modified: str | None = None
    fetch_status: str | None = None
    """The result of the last fetch: `FRESH`, `NEEDS_SCRIPTS`, `RENDERED`, or an error."""
    next_check_at: datetime | None = None
    failures: int = 0
    """Failed fetches in a row."""
    missing: int = 0
    """Fetches in a row that found no such page."""


CachedSource = CachedFile | CachedTopic | CachedPage

Index = Literal["kb", "team"]
"""The index of the operator's sources, and that of the team's topics."""


class IndexCache(Struct, frozen=True, kw_only=True):
    """The sources that the last indexing found, by id."""

    sources: Mapping[SourceId, CachedSource] = {}
    generated_at: datetime | None = None
    """UTC; None in a cache that was never saved."""
    schema_version: Literal[1] = 1

    @classmethod
    def load(cls, path: Path, *, files: FileLayer | None = None) -> IndexCache:
        """Return the cache on disk. A missing one is empty, and so is a damaged or newer one, with a warning.

        Raises KnowledgeError where the file cannot be read.
        """
        data = (files or FileLayer()).read(path)
        if data is None:
            return cls()
        try:
            return cls.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.warning("index_cache_rebuilt", file=str(path), reason=str(error))
            return cls()

    def encode(self) -> bytes:
        """Return the cache as text, sources sorted by id."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=1) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> IndexCache:
        """Read such a text. Raises msgspec's DecodeError or UnicodeDecodeError."""
        msgspec.json.decode(data, type=_CacheVersion)  # refuses a cache that does not say its version
        return msgspec.json.decode(data, type=cls)


class _CacheVersion(Struct):
    schema_version: Literal[1]


def _format_entry(entry: IndexEntry) -> str:
    description = flatten_description(entry.description)
    return f"{entry.source_id}\n{description}\n\n" if description else f"{entry.source_id}\n\n"
