"""The files that answers are drawn from: topics, the indices of all sources, and the cache of what is known of these.

A topic is one file called `<slug>.txt`, rewritten whole and at once; hidden, temporary and foreign files, folders and
links are none. In an index, an entry is a source id on a line and a description on the next, then a blank line. No
description and no file name can forge an entry. All of it can be rebuilt from the archive and the sources.

One thread at a time may update topics; any may read meanwhile.
"""

from __future__ import annotations

import hashlib
import re
import threading
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from intern.core.errors import SourceError
from intern.core.ids import ConversationId, QAId, SourceId, TopicName
from intern.core.log import get_logger
from intern.core.records import IndexEntry, TopicBlock
from intern.core.text.masking import whole
from intern.stores.blocks import BlockWarning, Parsed, format_topic, parse_blocks, time_of
from intern.stores.files import FileLayer, unreadable

_log = get_logger(__name__)

# What `intern.core.text.words.topic_name` makes.
_SLUG = re.compile(r"[a-z0-9-]{1,64}")


class TopicLibrary:
    """The topics in `topics_dir`. Opening reads every file once. Raises KnowledgeError where one cannot be read."""

    def __init__(self, topics_dir: Path, files: FileLayer | None = None) -> None:
        self.folder = topics_dir
        self._files = files or FileLayer()
        self._places = _Places()
        self.damaged: tuple[BlockWarning, ...] = ()
        """What was passed over when the files were read."""
        self.reload()

    def reload(self) -> None:
        """Read every file again, after the folder was replaced as a whole. Raises KnowledgeError."""
        places = _Places()
        damaged: list[BlockWarning] = []
        for name in self._names_on_disk():
            blocks, warnings = self._parsed(name, self._files.read(self._path(name)) or b"")
            places.put(name, blocks)
            damaged += warnings
        self._places = places
        self.damaged = tuple(damaged)

    def names(self) -> tuple[TopicName, ...]:
        """Return all topics, sorted."""
        return self._places.names()

    def read(self, name: TopicName) -> tuple[TopicBlock, ...]:
        """Return the blocks of a topic, in order of `answered_at`; none where there is no such topic.

        A damaged block is passed over with a warning. Raises KnowledgeError where the file cannot be read, and
        ValueError for a name that is no slug.
        """
        return self._parsed(name, self._files.read(self._path(name)) or b"")[0]

    def text(self, name: TopicName) -> str:
        """Return the file as it is, for a model to read. Raises SourceError where there is no such topic."""
        data = self._files.read(self._path(name))
        if data is None:
            raise SourceError(f"there is no topic {name}")
        return data.decode("utf-8-sig", errors="replace")

    def update(self, name: TopicName, add: TopicBlock | None = None, remove: Collection[QAId] = ()) -> tuple[QAId, ...]:
        """Put a block into a topic, making it if it is new, and take others out; return those that were there.

        All at once: on disk when this returns. A block of the same id is replaced; ids that are not in this topic
        are passed over; a topic without blocks is gone. Raises KnowledgeError, and nothing has changed then.
        """
        return self._rewrite(name, () if add is None else (add,), remove)

    def put(self, name: TopicName, blocks: Collection[TopicBlock]) -> None:
        """Put many blocks into a topic, as `update` does with one."""
        self._rewrite(name, blocks, ())

    def doubles(self) -> dict[QAId, tuple[TopicName, ...]]:
        """Return the blocks that are in several topics, with these topics: a move was interrupted."""
        return self._places.doubles()

    def _rewrite(self, name: TopicName, add: Iterable[TopicBlock], remove: Collection[QAId]) -> tuple[QAId, ...]:
        path = self._path(name)
        data = self._files.read(path)
        before, damaged = self._parsed(name, data or b"")
        doomed = set(_times(remove))
        kept = {time: block for block in before if (time := time_of(block.qa_id)) not in doomed}
        removed = tuple(block.qa_id for block in before if time_of(block.qa_id) in doomed)
        kept.update((time_of(block.qa_id), block) for block in add)
        blocks = tuple(sorted(kept.values(), key=_by_answer))
        if blocks != before:
            if damaged and data:
                # A person may have edited it: we keep a copy of the text that we cannot read.
                self._files.append_durably(path.with_name(f".{path.name}.damaged"), data, fresh_line=True)
            self._write(path, blocks)
        self._places.put(name, blocks)
        return removed

    def topic_of(self, qa_id: QAId) -> TopicName | None:
        """Return the topic with the pair's block; None where there is none."""
        return next((self._places.topic_at(time) for time in _times((qa_id,))), None)

    def of_conversation(self, conversation_id: ConversationId) -> list[tuple[TopicName, QAId]]:
        """Return topic and id of each block of a conversation, oldest first."""
        return self._places.of_conversation(conversation_id)

    def _path(self, name: TopicName) -> Path:
        if not _SLUG.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no topic name; topic names are slugs")
        return self.folder / f"{name}.txt"

    def _names_on_disk(self) -> list[TopicName]:
        try:
            entries = list(self.folder.iterdir()) if self.folder.exists() else []
            return sorted(
                TopicName(entry.stem)
                for entry in entries
                if entry.suffix == ".txt" and _SLUG.fullmatch(entry.stem) and entry.is_file() and not entry.is_symlink()
            )
        except OSError as error:
            raise unreadable(self.folder, error) from error

    def _parsed(self, name: TopicName, data: bytes) -> Parsed:
        parsed = _parse(data, f"{name}.txt")
        for warning in parsed.warnings:
            _log.warning("topic_block_damaged", file=warning.file, line=warning.line, reason=warning.reason)
        return Parsed(tuple(sorted(parsed.blocks, key=_by_answer)), parsed.warnings)

    def _write(self, path: Path, blocks: Iterable[TopicBlock]) -> None:
        text = whole("".join(map(format_topic, blocks)))
        if text:
            self._files.write_atomically(path, text.encode())
        else:
            self._files.remove(path)


# A topic that a pair is filed in is read several times before it changes.
@lru_cache(maxsize=8)
def _parse(data: bytes, file: str) -> Parsed:
    return parse_blocks(data, file=file)


class _Places:
    """Which blocks stand where. Any thread may ask at any moment, and sees a topic as it was or as it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[TopicName, list[tuple[datetime, QAId, ConversationId | None]]] = {}
        self._topics_at: dict[datetime, set[TopicName]] = defaultdict(set)
        self._conversations: dict[ConversationId | None, set[tuple[datetime, TopicName, QAId]]] = defaultdict(set)

    def names(self) -> tuple[TopicName, ...]:
        with self._lock:
            return tuple(sorted(self._blocks))

    def topic_at(self, time: datetime) -> TopicName | None:
        with self._lock:
            return min(self._topics_at.get(time, ()), default=None)

    def doubles(self) -> dict[QAId, tuple[TopicName, ...]]:
        with self._lock:
            several = {time: tuple(sorted(names)) for time, names in self._topics_at.items() if len(names) > 1}
            ids = {time: qa_id for names in several.values() for time, qa_id, _ in self._blocks[names[0]]}
            return {ids[time]: names for time, names in sorted(several.items())}

    def of_conversation(self, conversation_id: ConversationId) -> list[tuple[TopicName, QAId]]:
        with self._lock:
            found = sorted(self._conversations.get(conversation_id, ()))
        return [(name, qa_id) for _, name, qa_id in found]

    def put(self, name: TopicName, blocks: Collection[TopicBlock]) -> None:
        """Replace the blocks of a topic."""
        with self._lock:
            for time, qa_id, conversation_id in self._blocks.pop(name, ()):
                self._topics_at[time].discard(name)
                self._conversations[conversation_id].discard((time, name, qa_id))
            places = [(time_of(block.qa_id), block.qa_id, block.conversation_id) for block in blocks]
            if places:
                self._blocks[name] = places
            for time, qa_id, conversation_id in places:
                self._topics_at[time].add(name)
                self._conversations[conversation_id].add((time, name, qa_id))


def _by_answer(block: TopicBlock) -> tuple[datetime, datetime]:
    """Older knowledge first."""
    return block.answered_at or block.timestamp, block.timestamp


def _times(qa_ids: Iterable[QAId]) -> Iterable[datetime]:
    """Yield the times of those that are ids; a model may name anything."""
    for qa_id in qa_ids:
        try:
            yield time_of(qa_id)
        except ValueError:
            continue


_PREFIXES = ("kb:", "team:")
_URLS = ("kb:http://", "kb:https://")

# Control characters, halves of surrogate pairs, line and paragraph separators: no id of ours needs them.
_NO_ID_CHARACTERS = frozenset({"Cc", "Cs", "Zl", "Zp"})


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
    """Return the SHA-256 (hexadecimal) of a text. Line ends, trailing blanks and blank outer lines do not count."""
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
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            if _decoded(layer.read(path) or b"").sources == sources:
                return False
        encoded = msgspec.json.encode(msgspec.structs.replace(self, sources=sources), order="sorted")
        layer.write_atomically(path, msgspec.json.format(encoded, indent=1) + b"\n")
        return True


class _Version(Struct):
    schema_version: Literal[1]


def _decoded(data: bytes) -> IndexCache:
    msgspec.json.decode(data, type=_Version)  # refuses a cache that does not say its version
    return msgspec.json.decode(data, type=IndexCache)


def _formatted(entry: IndexEntry) -> str:
    description = folded(entry.description)
    return f"{entry.source_id}\n{description}\n\n" if description else f"{entry.source_id}\n\n"
