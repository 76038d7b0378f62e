"""Results of `intern search`, and whether they are current."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from datetime import datetime

from msgspec import Struct, convert
from msgspec.structs import asdict

from intern.core.ids import SourceId, TopicName
from intern.core.search_documents import SearchDocument, SearchKind
from intern.search.ranking import SearchHit
from intern.service.indexing import list_ignored_paths
from intern.settings.settings import Settings
from intern.sources.catalogue import (
    Catalogue,
)
from intern.sources.discovery import is_stale
from intern.sources.scanning import Scanner
from intern.sources.source_folder import SourceFolder
from intern.stores.source_cache import CachedFile, is_source_id
from intern.stores.tables.knowledge import KnowledgeStore

_SPOKEN: frozenset[SearchKind] = frozenset({"nugget", "fact"})
"""Sources distilled from messages: they are no files, so they cannot have changed."""


class SearchResult(Struct, frozen=True, kw_only=True):
    """A search result with the reasons for its rank."""

    source_id: SourceId
    kind: SearchKind
    type: str
    path: str
    """The whole path of a discovered file, the path in its folder for others, or the address of a page. Else empty."""
    title: str
    summary: str
    """The text of a nugget or a fact."""
    text: str
    """The best passage, as it is indexed."""
    score: float
    """The score of words and similarity together; not comparable between questions."""
    matched: tuple[str, ...]
    """The words of the question that it contains."""
    bm25: float
    """The score of its words; not comparable between questions."""
    words_place: int | None
    """Its rank among results by words, from 1."""
    likeness: float | None
    """Its similarity to the question, at most 1; None if it has no vector, or vectors were not searched."""
    likeness_place: int | None
    """Its rank by similarity, from 1."""
    words_only: bool
    """Whether paraphrases could not be searched; some may be missing here."""
    status: str
    visibility: str
    guild_id: str
    indexed_at: str | None
    at: datetime
    stale: bool = False
    """Whether the file was changed since and could not be read again just now."""


class OutdatedResults(Struct, frozen=True):
    """The results that changed since they were indexed."""

    sources: frozenset[SourceId] = frozenset()
    """The ids of listed sources."""
    files: frozenset[SourceId] = frozenset()  # discovered files
    gone: frozenset[SourceId] = frozenset()
    """The results of both kinds that do not exist any more."""

    def __contains__(self, source_id: object) -> bool:
        return source_id in self.sources or source_id in self.files


def documents_changed(settings: Settings, catalogue: Catalogue, left_out: Collection[str]) -> bool:
    """Whether a document is new, changed or deleted since all were indexed; `left_out` names files that are ignored.

    Reads no file. Blocks; raises SourceError and KnowledgeError.
    """
    files = [source for source in catalogue.sources().values() if isinstance(source, CachedFile)]
    known = {file.rel_path: (file.size_bytes, file.version, file.includes) for file in files}
    if not known:
        return False  # never indexed; that may take minutes, so only a request for it starts it
    scan = SourceFolder(settings.paths.sources, settings.kb.max_source_bytes).scan(files)
    found = {file.rel_path: file[1:] for file in scan.files}
    fit = (path for path in found if path in known or (path not in left_out and is_source_id(f"kb:{path}")))
    if any(found[path] != known.get(path) for path in fit):
        return True
    # Files below an unreadable folder are neither deleted nor present.
    return not scan.unreadable and not known.keys() <= found.keys()


class Freshness:
    """Compares results with the disk. Blocks; raises nothing: a file that cannot be read counts as unchanged."""

    def __init__(self, settings: Settings, knowledge: KnowledgeStore) -> None:
        self._sources, self._knowledge = settings.paths.sources, knowledge
        self._scanner = Scanner(settings.discovery, never=list_ignored_paths(settings))

    def find_outdated(self, found: Iterable[SearchHit]) -> OutdatedResults:
        """Find results that changed since, or were deleted."""
        sources: set[SourceId] = set()
        files: set[SourceId] = set()
        gone: set[SourceId] = set()
        for document in (each.document for each in found if each.document.kind not in _SPOKEN):
            try:
                mtime = self._mtime(document)
            except OSError:
                continue
            if mtime is None:
                gone.add(document.source_id)
            elif not is_stale(document, mtime):
                continue
            (files if document.kind == "file" else sources).add(document.source_id)
        return OutdatedResults(frozenset(sources), frozenset(files), frozenset(gone))

    def _mtime(self, document: SearchDocument) -> float | None:
        """Return the time of the last change; None if the file was deleted. Raises OSError."""
        if document.kind == "file":
            file = self._scanner.check_file(document.path)
            return None if file is None else file.mtime
        if document.type == "topic":
            name = TopicName(document.path.removesuffix(".txt"))
            known = self._knowledge.topic_versions(name).get(name)
            return None if known is None else known[1]
        if document.type != "document":
            # A page: it has its own refresh interval.
            indexed = document.meta.get("indexed_mtime")
            return indexed if isinstance(indexed, float) else 0.0
        try:
            return os.stat(self._sources / document.path).st_mtime_ns / 1e9  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            os.listdir(self._sources)  # noqa: PTH208 if the whole folder is unreachable, no file counts as deleted
            return None


def build_search_result(found: SearchHit, outdated: OutdatedResults) -> SearchResult:
    """Make the result for a found document."""
    document, meta = found.document, found.document.meta
    figures = {"score": round(found.score, 4), "bm25": round(found.bm25, 4)}
    told = {
        **asdict(document),
        **asdict(found),
        **figures,
        "summary": str(meta.get("summary") or (document.text if document.kind in _SPOKEN else "")),
        "likeness": None if found.likeness is None else round(found.likeness, 4),
        "indexed_at": str(meta["indexed_at"]) if meta.get("indexed_at") else None,
        "stale": document.source_id in outdated,
    }
    return convert(told, SearchResult)
