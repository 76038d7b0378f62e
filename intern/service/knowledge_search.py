"""The search in all knowledge, and whether its results are current."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

from anyio.to_thread import run_sync
from msgspec import Struct, convert
from msgspec.structs import asdict

from intern.core.clock import Clock
from intern.core.errors import ConfigError, KnowledgeError, SourceError
from intern.core.ids import SourceId, TopicName
from intern.core.log import get_logger
from intern.core.search_documents import SearchDocument, SearchFilter, SearchKind
from intern.search.embedder import Embedder
from intern.search.hybrid_search import HybridSearch
from intern.search.ranking import SearchHit, find_and_rerank
from intern.service import job_kinds as kinds
from intern.service.indexing import list_ignored_paths
from intern.service.paging import PagedList
from intern.service.questions import RunJob
from intern.settings.settings import Settings
from intern.sources.catalogue import Catalogue
from intern.sources.discovery import is_stale
from intern.sources.scanning import Scanner
from intern.sources.source_folder import SourceFolder
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.source_cache import CachedFile, is_source_id
from intern.stores.tables.knowledge import KnowledgeStore
from intern.stores.tables.skipped_sources import read_skipped_sources

_log = get_logger(__name__)

_FOUND = 20  # results on a page
EntryKind = Literal["topic", "document", "page", "fact", "nugget", "file"]
KINDS: Final[Mapping[EntryKind, SearchFilter]] = {
    "topic": SearchFilter(kinds=("source",), type="topic"),
    "document": SearchFilter(kinds=("source",), type="document"),
    "page": SearchFilter(kinds=("source",), type="page"),
    "fact": SearchFilter(kinds=("fact",), retired=True),
    "nugget": SearchFilter(kinds=("nugget",)),
    "file": SearchFilter(kinds=("file",)),
}
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


class KnowledgeSearch:
    """Searches all knowledge. Secret facts are never found. Methods raise KnowledgeError."""

    def __init__(
        self,
        settings: Settings,
        knowledge: KnowledgeStore,
        search: SqliteSearchStore,
        embedder: Embedder | None,
        clock: Clock,
    ) -> None:
        self._settings, self._knowledge, self._store, self._clock = settings, knowledge, search, clock
        self._finder = HybridSearch(search, embedder)
        self._sources = settings.paths.sources
        self._scanner = Scanner(settings.discovery, never=list_ignored_paths(settings))

    async def find_page(self, text: str, kind: EntryKind | None, offset: int = 0) -> PagedList[SearchResult]:
        """Search all, or one kind of it, best first. Results may be out of date."""
        if not text.strip():
            return PagedList(rows=(), total=0)
        found = await self._find(text, KINDS[kind] if kind else SearchFilter(), offset + _FOUND + 1)
        rows = tuple(_build_search_result(hit) for hit in found[offset : offset + _FOUND])
        return PagedList(rows=rows, total=len(found), offset=offset, size=_FOUND)

    async def find_current(
        self, text: str, wanted: SearchFilter, limit: int, run_job: RunJob
    ) -> tuple[SearchResult, ...]:
        """Search with a filter, best first. `run_job` first indexes what has changed; deleted results are left out.

        Raises ConfigError for a server that is not configured and has no content here.
        """
        await self._check_guild(wanted.guild_id)
        await self._refresh_documents(run_job)
        found = await self._find(text, wanted, limit)
        outdated = await run_sync(self._find_outdated, found)
        if outdated:
            await self._refresh_results([hit.document for hit in found if hit.document.source_id in outdated], run_job)
            found = await self._find(text, wanted, limit)
            outdated = await run_sync(self._find_outdated, found)
        kept = (hit for hit in found if not outdated.get(hit.document.source_id))
        return tuple(_build_search_result(hit, stale=hit.document.source_id in outdated) for hit in kept)

    async def _find(self, text: str, wanted: SearchFilter, limit: int) -> tuple[SearchHit, ...]:
        return await find_and_rerank(self._finder.find, text, wanted, limit, now=self._clock.now())

    async def _check_guild(self, guild_id: str | None) -> None:
        if guild_id is not None:
            known = {*self._settings.discord.guild_ids, *await self._store.read_guild_ids()}
            if guild_id not in known:
                raise ConfigError(f"{guild_id!a} is no known server: {', '.join(sorted(known)) or 'there is none'}")

    async def _refresh_documents(self, run_job: RunJob) -> None:
        """Index new, changed and deleted documents by their words, without a model call."""
        try:
            if await run_sync(self._have_documents_changed):
                await run_job(kinds.REFRESH, None)
        except (KnowledgeError, SourceError) as error:
            # Documents indexed before can still be searched.
            _log.warning("documents_not_looked_at", reason=str(error))

    async def _refresh_results(self, outdated: Sequence[SearchDocument], run_job: RunJob) -> None:
        paths = sorted(document.path for document in outdated if document.kind == "file")
        try:
            if len(paths) < len(outdated):
                # Files and topics only: pages have their own times, and a person waits for the search.
                await run_job(kinds.REFRESH, None)
            if paths:
                await run_job(kinds.FRESHEN, paths)
        except KnowledgeError as error:  # the documents found are still listed, as stale
            _log.warning("results_not_freshened", reason=str(error))

    # From here on: worker threads.

    def _find_outdated(self, found: Iterable[SearchHit]) -> Mapping[SourceId, bool]:
        """Return the results that changed since they were indexed, each with whether it is gone.

        A file that cannot be read counts as unchanged.
        """
        outdated: dict[SourceId, bool] = {}
        for document in (hit.document for hit in found if hit.document.kind not in _SPOKEN):
            try:
                mtime = self._mtime(document)
            except OSError:
                continue
            if mtime is None or is_stale(document, mtime):
                outdated[document.source_id] = mtime is None
        return outdated

    def _have_documents_changed(self) -> bool:
        """Return whether a document is new, changed or deleted since all were indexed. Reads none.

        Raises SourceError and KnowledgeError.
        """
        files = [
            source for source in Catalogue(self._knowledge, "kb").sources().values() if isinstance(source, CachedFile)
        ]
        known = {file.rel_path: (file.size_bytes, file.version, file.includes) for file in files}
        if not known:
            return False  # never indexed; that may take minutes, so only a request for it starts it
        scan = SourceFolder(self._sources, self._settings.kb.max_source_bytes).scan(files)
        found = {file.rel_path: file[1:] for file in scan.files}
        left_out = {each.place for each in read_skipped_sources(self._knowledge.db) if each.kind == "document"}
        fit = (path for path in found if path in known or (path not in left_out and is_source_id(f"kb:{path}")))
        if any(found[path] != known.get(path) for path in fit):
            return True
        # Files below an unreadable folder are neither deleted nor present.
        return not scan.unreadable and not known.keys() <= found.keys()

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


def _build_search_result(hit: SearchHit, *, stale: bool = False) -> SearchResult:
    document, meta = hit.document, hit.document.meta
    told = {
        **asdict(document),
        **asdict(hit),
        "score": round(hit.score, 4),
        "bm25": round(hit.bm25, 4),
        "summary": str(meta.get("summary") or (document.text if document.kind in _SPOKEN else "")),
        "likeness": None if hit.likeness is None else round(hit.likeness, 4),
        "indexed_at": str(meta["indexed_at"]) if meta.get("indexed_at") else None,
        "stale": stale,
    }
    return convert(told, SearchResult)
