"""An index and its cache on disk, changed together."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from intern.domain import IndexEntry, SourceId
from intern.knowledge.files import FileLayer
from intern.knowledge.indices import CachedSource, IndexCache, write_index
from intern.observe.clock import Clock


class Catalogue:
    """One index (of the sources, or of the team's topics). Any thread may change it; changes do not undo each other.

    The cache is the truth, the index is written from it. Synchronous; raises KnowledgeError where the disk fails.
    """

    def __init__(self, *, cache_path: Path, index_path: Path, clock: Clock, files: FileLayer | None = None) -> None:
        self._cache_path = cache_path
        self._index_path = index_path
        self._clock = clock
        self._files = files or FileLayer()
        self._guard = threading.Lock()

    def sources(self) -> Mapping[SourceId, CachedSource]:
        """What the last indexing found."""
        return IndexCache.load(self._cache_path, files=self._files).sources

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

    def _save(self, sources: Mapping[SourceId, CachedSource], drop: Collection[SourceId]) -> None:
        kept = {source_id: source for source_id, source in sources.items() if source_id not in drop}
        # The cache first: killed in between, the next change writes the index that fits it.
        IndexCache(sources=kept, generated_at=self._clock.now()).save(self._cache_path, files=self._files)
        entries = (IndexEntry(source_id, source.summary_text) for source_id, source in kept.items())
        write_index(self._index_path, entries, files=self._files)
