"""An index and its cache on disk, changed together; and how long a source rests that the model could not describe.

A model that answers junk to one source, or refuses it, will most likely do so again, and each try is paid for. So
the next try waits for a new text, a command, or a pause. An outage says nothing about a source: its pauses are short,
and only keep an endpoint that fails for one source from being asked with every capture.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from intern.core.clock import Clock
from intern.core.errors import ModelError, ModelRefusedError, ModelReplyError
from intern.core.ids import SourceId
from intern.core.records import IndexEntry
from intern.stores.files import FileLayer, stamp_of
from intern.stores.library import (
    CachedFile,
    CachedPage,
    CachedSource,
    IndexCache,
    Tries,
    folded,
    is_source_id,
    is_url,
    read_index,
    write_index,
)

# No text has this hash.
_UNKNOWN = ""

# What is added behind is written once it is this part of the index, one in…
_GROWTH = 10


def is_recovered(source: CachedSource) -> bool:
    """Return whether only the description is known; its text is no newer than a file's `mtime_ns`."""
    return source.content_hash == _UNKNOWN


Stamp: TypeAlias = tuple[int, int, int]
"""A file's stamp, as `stamp_of` gives it."""


class _Noted(Struct, frozen=True, kw_only=True):
    """A line of the journal."""

    of: Stamp | None
    """The cache that this adds to; None where there was none."""
    source_id: SourceId
    source: CachedSource


class _Known(NamedTuple):
    """The content of the cache."""

    stamp: object
    """Of the file; None if it must be read."""
    sources: Mapping[SourceId, CachedSource]
    unwritten: int = 0
    """The number of entries that the file lacks."""


class Catalogue:
    """One index (of the sources, or of the team's topics). Any thread may change it; changes do not undo each other.

    The cache is the truth, the index is written from it; where the cache is lost, the index still tells the
    descriptions. Beside the cache lies a journal of what was noted since it was written. The cache is read again only
    when its file is another one. Synchronous; raises KnowledgeError where the disk fails.
    """

    def __init__(self, *, cache_path: Path, index_path: Path, clock: Clock, files: FileLayer | None = None) -> None:
        self._cache_path = cache_path
        self._index_path = index_path
        self._clock = clock
        self._files = files or FileLayer()
        self._journal_path = cache_path.with_name(f"{cache_path.stem}-journal.jsonl")
        self._guard = threading.Lock()
        self._notes: dict[SourceId, CachedSource] = {}
        # One attribute, set at once: any thread may look while another one changes it.
        self._known = _Known(None, {})
        self._listed: tuple[Mapping[SourceId, CachedSource], Mapping[SourceId, IndexEntry]] = ({}, {})

    def sources(self) -> Mapping[SourceId, CachedSource]:
        """Return the result of the last indexing; if it is lost, the descriptions alone (see `is_recovered`)."""
        written = self._written()
        return {**written, **self._notes} if self._notes else written

    def _written(self) -> Mapping[SourceId, CachedSource]:
        """Return the entries that are written."""
        known = self._known
        if known.unwritten:
            return known.sources
        stamp = stamp_of(self._cache_path)
        if stamp is None or stamp != known.stamp:
            cache = IndexCache.load(self._cache_path, files=self._files)
            if cache.generated_at is None:
                return {**self._recovered(), **self._noted(stamp)}
            self._known = known = _Known(stamp, {**cache.sources, **self._noted(stamp)})
        return known.sources

    def entries(self) -> Mapping[SourceId, IndexEntry]:
        """Return the entries of the index. Unchanged entries are the same objects as before."""
        sources, (known, listed) = self._written(), self._listed
        if sources is not known:
            listed = {
                source_id: listed[source_id] if known.get(source_id) is source else _listed(source_id, source)
                for source_id, source in sources.items()
                if source.summary_text
            }
            self._listed = (sources, listed)
        return listed

    def change(self, put: Mapping[SourceId, CachedSource], drop: Collection[SourceId] = ()) -> None:
        """Put entries in, take others out. Files whose content stays the same are not written."""
        with self._guard:
            self._save(self.sources(), put, drop)

    def note(self, source_id: SourceId, source: CachedSource) -> None:
        """Put one entry in by a line of the journal; the index shows it with the next change."""
        with self._guard:
            line = msgspec.json.encode(_Noted(of=stamp_of(self._cache_path), source_id=source_id, source=source))
            self._files.append_durably(self._journal_path, line + b"\n", fresh_line=True)
            self._notes[source_id] = source

    def add(self, source_id: SourceId, source: CachedSource, *, behind: bool = False) -> bool:
        """Put an entry in unless there is one, and say whether there was none.

        `behind`: the files are written once a tenth of the list is new, so that many entries cost only a few writes.
        Call `write` at the end; a process that dies before loses what was not written.
        """
        with self._guard:
            known = self.sources()
            if source_id in known:
                return False
            sources, unwritten = {**known, source_id: source}, self._known.unwritten + 1
            if behind and unwritten * _GROWTH < len(sources):
                self._known = _Known(None, sources, unwritten)
                before, listed = self._listed
                if before is known and source.summary_text:
                    self._listed = (sources, {**listed, source_id: _listed(source_id, source)})
            else:
                self._save(sources)
            return True

    def write(self) -> None:
        """Write entries that were added with `behind`."""
        with self._guard:
            if self._known.unwritten:
                self._save(self._known.sources)

    def _noted(self, stamp: Stamp | None) -> dict[SourceId, CachedSource]:
        """Read the journal lines since the cache with this stamp was written. The last line may be torn."""
        noted: dict[SourceId, CachedSource] = {}
        for line in (self._files.read(self._journal_path) or b"").splitlines():
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                entry = msgspec.json.decode(line, type=_Noted)
                if entry.of == stamp:
                    noted[entry.source_id] = entry.source
        return noted

    def _recovered(self) -> Mapping[SourceId, CachedSource]:
        try:
            written = self._index_path.stat()
        except OSError:
            return {}
        at = datetime.fromtimestamp(written.st_mtime, UTC)
        return {
            entry.source_id: _recovered(entry, at, written.st_mtime_ns)
            for entry in read_index(self._index_path, files=self._files)
        }

    def _save(
        self,
        sources: Mapping[SourceId, CachedSource],
        put: Mapping[SourceId, CachedSource] = MappingProxyType({}),
        drop: Collection[SourceId] = (),
    ) -> None:
        every = {**sources, **self._notes, **put}
        kept = {source_id: source for source_id, source in every.items() if source_id not in drop}
        # The cache first: killed in between, the next change writes the index that fits it, and the journal of the
        # earlier cache counts for nothing.
        IndexCache(sources=kept, generated_at=self._clock.now()).save(self._cache_path, files=self._files)
        entries = (
            IndexEntry(source_id, source.summary_text) for source_id, source in kept.items() if source.summary_text
        )
        write_index(self._index_path, entries, files=self._files)
        self._notes.clear()
        if self._journal_path.exists():
            self._files.remove(self._journal_path)
        # No file holds the others.
        fit = {source_id: source for source_id, source in kept.items() if is_source_id(source_id)}
        self._known = _Known(stamp_of(self._cache_path), fit)


def _listed(source_id: SourceId, source: CachedSource) -> IndexEntry:
    return IndexEntry(source_id, folded(source.summary_text))


def _recovered(entry: IndexEntry, at: datetime, mtime_ns: int) -> CachedSource:
    name = entry.source_id.partition(":")[2]
    if is_url(entry.source_id):
        return CachedPage(content_hash=_UNKNOWN, summary_text=entry.description, last_indexed_at=at, url=name)
    return CachedFile(
        content_hash=_UNKNOWN,
        summary_text=entry.description,
        last_indexed_at=at,
        summary_pending=False,
        rel_path=name,
        size_bytes=0,
        mtime_ns=mtime_ns,
    )


PAUSES = (timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6), timedelta(days=1))
"""After the first, second and third time in a row that the same text was not described, and after each further one."""
OUTAGE_PAUSES = (timedelta(0), timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=10))
"""The same, if no model was available."""

_unasked: ContextVar[bool] = ContextVar("intern_indexing_unasked", default=False)


@contextmanager
def unasked() -> Generator[None]:
    """Mark a refresh that no person asked for: it respects the pauses. Otherwise, every summary is tried now."""
    token = _unasked.set(True)
    try:
        yield
    finally:
        _unasked.reset(token)


def rests(source: CachedSource, now: datetime) -> bool:
    """Return whether the pause of this text is not over."""
    next_at = source.tries.next_at if source.tries else None
    if not (_unasked.get() and source.summary_pending and next_at):
        return False
    # A time further off was written by a clock that was wrong.
    return now < next_at <= now + PAUSES[-1]


def not_described(entry: CachedSource, error: ModelError, now: datetime) -> CachedSource:
    """Return the entry after a failed try to describe its text."""
    before = entry.tries or Tries()
    if isinstance(error, ModelReplyError | ModelRefusedError):
        failed, unheard = before.failed + 1, 0
        pause = PAUSES[min(failed, len(PAUSES)) - 1]
    else:
        failed, unheard = before.failed, before.unheard + 1
        pause = OUTAGE_PAUSES[min(unheard, len(OUTAGE_PAUSES)) - 1]
    tries = Tries(failed=failed, unheard=unheard, next_at=now + pause)
    return replace(entry, last_error=str(error) or type(error).__name__, tries=tries)


def described(entry: CachedSource, description: str, now: datetime) -> CachedSource:
    """Return the entry with a model's description of its present text."""
    # The error of a page that could not be fetched stays.
    unfetched = entry.fetch_status if isinstance(entry, CachedPage) and entry.failures else None
    return replace(
        entry,
        summary_text=description,
        last_indexed_at=now,
        summary_pending=False,
        provisional=False,
        last_error=unfetched,
        tries=None,
    )
