"""An index and its cache on disk, changed together."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

from intern.domain import IndexEntry, SourceId
from intern.knowledge.files import FileLayer
from intern.knowledge.indices import CachedFile, CachedPage, CachedSource, IndexCache, is_url, read_index, write_index
from intern.observe.clock import Clock

# No text has this hash.
_UNKNOWN = ""


def is_recovered(source: CachedSource) -> bool:
    """Whether only its description is known: the text that it describes is no newer than a file's `mtime_ns`."""
    return source.content_hash == _UNKNOWN


class Catalogue:
    """One index (of the sources, or of the team's topics). Any thread may change it; changes do not undo each other.

    The cache is the truth, the index is written from it; where the cache is lost, the index still tells the
    descriptions. Synchronous; raises KnowledgeError where the disk fails.
    """

    def __init__(self, *, cache_path: Path, index_path: Path, clock: Clock, files: FileLayer | None = None) -> None:
        self._cache_path = cache_path
        self._index_path = index_path
        self._clock = clock
        self._files = files or FileLayer()
        self._guard = threading.Lock()

    def sources(self) -> Mapping[SourceId, CachedSource]:
        """What the last indexing found; where that is lost, the descriptions alone (see `is_recovered`)."""
        cache = IndexCache.load(self._cache_path, files=self._files)
        return self._recovered() if cache.generated_at is None else cache.sources

    def change(self, put: Mapping[SourceId, CachedSource], drop: Collection[SourceId] = ()) -> None:
        """Put entries in, take others out. Files whose content stays the same are not written."""
        with self._guard:
            self._save({**self.sources(), **put}, drop)

    def add(self, source_id: SourceId, source: CachedSource) -> bool:
        """Put an entry in unless there is one, and say whether there was none."""
        with self._guard:
            known = self.sources()
            if source_id not in known:
                self._save({**known, source_id: source}, ())
            return source_id not in known

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

    def _save(self, sources: Mapping[SourceId, CachedSource], drop: Collection[SourceId]) -> None:
        kept = {source_id: source for source_id, source in sources.items() if source_id not in drop}
        # The cache first: killed in between, the next change writes the index that fits it.
        IndexCache(sources=kept, generated_at=self._clock.now()).save(self._cache_path, files=self._files)
        entries = (
            IndexEntry(source_id, source.summary_text) for source_id, source in kept.items() if source.summary_text
        )
        write_index(self._index_path, entries, files=self._files)


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
