"""The search over all indices; results are compared with the disk."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path

from anyio import Lock
from anyio.to_thread import run_sync
from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from intern.answering.learned import LearnedSourceFinder
from intern.core.clock import Clock
from intern.core.errors import ConfigError, KnowledgeError, ModelError, SourceError
from intern.core.ids import SourceId, TopicName
from intern.core.log import get_logger
from intern.core.records import IndexEntry, PassageHit, SearchDocument, SearchFilter, SearchKind, SourceText
from intern.documents.sandboxed import keep_processes
from intern.models.prompt import Model
from intern.search.finding import Embedder, HybridSearch, SearchHit, SimilarityThresholds
from intern.service.databases import is_made, open_database
from intern.service.embedding import embedding_model
from intern.service.stores import Stores
from intern.settings.loading import Settings
from intern.sources.addresses import DialPolicy
from intern.sources.catalogue import (
    Catalogue,
    EmbeddingUpdater,
    SourceContent,
    divide_document,
    divide_topic,
    update_search_index,
)
from intern.sources.discovery import is_stale
from intern.sources.fetching import PageFetcher
from intern.sources.files import SourceFolder, drop_hidden_files
from intern.sources.library import Library, PageCopies
from intern.sources.pages import IN_SETTINGS, OpenWeb, refresh_pages
from intern.sources.refresh import RefreshReport, describe_provisionally, refresh_sources, refresh_topics
from intern.sources.scanning import FileUnreadableError, Scanner, read_file, shorten_paths
from intern.stores.archive import Archive
from intern.stores.library import CachedFile, CachedSource, is_source_id, topic_id
from intern.stores.sqlite.documents import DocumentStore
from intern.stores.sqlite.knowledge import KnowledgeStore
from intern.stores.sqlite.search_index import SqliteSearchStore

_log = get_logger(__name__)


_SPOKEN: frozenset[SearchKind] = frozenset({"nugget", "fact"})
"""Sources distilled from messages: they are no files, so they cannot have changed."""


class DiscoveredSources:
    """Discovered files as sources of answers, named by their paths below their scan paths.

    Models and members can read these names, which reveal nothing about the machine; the store has hashes of whole
    paths.
    """

    def __init__(self, settings: Settings, store: SqliteSearchStore) -> None:
        self._store, self._scan_paths = store, settings.discovery.scan_paths
        self._named: Mapping[SourceId, SourceId] = {}
        self._secrets = settings.secrets
        self._scanner = Scanner(settings.discovery, never=list_ignored_paths(settings))

    async def entries(self) -> tuple[IndexEntry, ...]:
        """List the files that can be summarised. Raises KnowledgeError."""
        documents = [each for each in await self._store.list_documents("file") if each.status == "ok"]
        await self._update_names(documents)
        told = ((self._named[each.source_id], f"{each.title}: {each.meta.get('summary')}") for each in documents)
        return tuple(IndexEntry(*each) for each in told)

    async def replace_file_ids(self, source_ids: Sequence[SourceId]) -> list[SourceId]:
        """Replace the ids of discovered files by those used here. Raises KnowledgeError."""
        if any(each.startswith("file:") and each not in self._named for each in source_ids):
            await self.entries()
        return [self._named.get(each, each) for each in source_ids]

    async def load(self, source_id: SourceId, /) -> SourceText | None:
        """Read the present text, secrets masked; None for other sources. Raises SourceError."""
        if not source_id.startswith("file:"):
            return None
        if source_id not in self._named.values():
            await self.entries()
        stored = [known for known, named in self._named.items() if named == source_id]
        for document in await self._store.list_documents("file", stored) if stored else ():
            return await run_sync(self._read_text, source_id, document)
        raise SourceError(f"{source_id!a} was not discovered")

    async def _update_names(self, documents: Sequence[SearchDocument]) -> None:
        names = await run_sync(shorten_paths, [each.path for each in documents], self._scan_paths)
        self._named = {each.source_id: SourceId(f"file:{names[each.path]}") for each in documents}

    def _read_text(self, source_id: SourceId, document: SearchDocument) -> SourceText:
        try:
            found = self._scanner.check_file(document.path)
        except OSError as error:
            raise SourceError(f"{document.path} cannot be looked at ({error.strerror})") from error
        if found is None:
            raise SourceError(f"{document.path} could not be read: it is gone")
        try:
            text = read_file(document.path, self._secrets).text
        except FileUnreadableError as error:
            raise SourceError(f"{document.path} could not be read: {error}") from error
        return SourceText(source_id=source_id, text=text, title=document.title)


class PassageRanking:
    """A search in all sources of answers."""

    def __init__(self, settings: Settings, finder: HybridSearch, discovered: DiscoveredSources | None = None) -> None:
        self._finder, self._discovered = finder, discovered
        self._kinds: tuple[SearchKind, ...] = ("source", "file") if settings.discovery.answer else ("source",)

    async def find_hits(self, text: str, limit: int, /) -> list[PassageHit]:
        """Return the best passages, best first. Raises KnowledgeError."""
        # Even with little similarity: a model decides whether they answer, even without a common word.
        found = await self._finder.find_passages(text, limit, self._kinds, least=SimilarityThresholds())
        if self._discovered is None:
            return found
        names = await self._discovered.replace_file_ids([each.source_id for each in found])
        return [replace(each, source_id=name) for each, name in zip(found, names, strict=True)]


def open_library(
    settings: Settings,
    archive: Archive,
    knowledge: KnowledgeStore,
    *,
    search: SqliteSearchStore | None,
    embedder: Embedder | None,
    clock: Clock,
    sources: SourceFolder | None = None,
) -> Library:
    """Open all sources of answers; without a database, only the listed ones."""
    paths, site = settings.paths, settings.discord.site
    ranking = discovered = learned = None
    if search is not None:
        finder = HybridSearch(search, embedder)
        discovered = DiscoveredSources(settings, search) if settings.discovery.answer else None
        ranking = PassageRanking(settings, finder, discovered)
        sure = settings.facts.min_confidence
        learned = LearnedSourceFinder(
            search.db, search, finder, archive=archive, decisions=knowledge, clock=clock, min_confidence=sure, site=site
        )
    return Library(
        indices=(Catalogue(knowledge, "kb"), Catalogue(knowledge, "team")),
        sources=sources or SourceFolder(paths.sources, settings.kb.max_source_bytes),
        topics=knowledge,
        archive=archive,
        pages=PageCopies(paths.web_cache),
        rank=ranking.find_hits if ranking else None,
        more=discovered,
        distilled=learned,
        site=site,
    )


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
    known = {file.rel_path: (file.size_bytes, file.version) for file in files}
    if not known:
        return False  # never indexed; that may take minutes, so only a request for it starts it
    scan = SourceFolder(settings.paths.sources, settings.kb.max_source_bytes).scan()
    found = {file.rel_path: (file.size_bytes, file.version) for file in scan.files}
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


async def check_server(wanted: SearchFilter | None, settings: Settings, search: SqliteSearchStore) -> None:
    """Raise ConfigError for a search on a server that is not configured and has no content here."""
    if wanted is not None and wanted.guild_id is not None:
        known = {*settings.discord.guild_ids, *await search.read_guild_ids()}
        if wanted.guild_id not in known:
            named = ", ".join(sorted(known)) or "there is none"
            raise ConfigError(f"{wanted.guild_id!a} is no known server: {named}")


def list_ignored_paths(settings: Settings) -> tuple[Path, ...]:
    """Return the paths that discovery ignores: the archive may have to be forgotten, and sources are indexed anyway."""
    paths = settings.paths
    files = (paths.index, paths.index_cache, paths.team_index, paths.team_index_cache)
    return (paths.data, paths.sources, paths.raw, paths.topics, *files)


class Indexing:
    """Keeps both indices, the search and its vectors up to date."""

    def __init__(self, stores: Stores, model: Model, embedder: Embedder | None) -> None:
        self._settings, self._stores, self._model = stores.settings, stores, model
        self.open_web: OpenWeb = partial(PageFetcher, stores.settings.web)
        """Fetches pages; tests put their own here."""
        self.policy = DialPolicy()
        """Says which addresses may be fetched; None: the usual one."""
        self._kb_catalogue = Catalogue(stores.knowledge, "kb")
        self.team_catalogue = Catalogue(stores.knowledge, "team")
        self.embedding = None if embedder is None else EmbeddingUpdater(stores.search, embedder)
        both, archive = (self._kb_catalogue, self.team_catalogue), stores.archive
        sources, topics = stores.sources, stores.knowledge
        self._library = Library(indices=both, sources=sources, topics=topics, archive=archive, pages=stores.pages)
        self.turn = Lock()
        # Apart from the others: slow sites delay neither topics nor documents.
        self._fetching = Lock()
        self._words = Lock()

    async def refresh(self, *, describe: bool = True) -> RefreshReport:
        """Bring both indices up to date with topics and files; without `describe`, no model is asked."""
        async with self.turn:
            topics = await self._refresh_topics(describe=describe)
            folder, options = self._stores.sources, self._settings.indexing
            with keep_processes():
                sources = await refresh_sources(self._model, folder, self._kb_catalogue, options, describe=describe)
            await self._keep_searchable()
            await self._stores.left_out.save("document", drop_hidden_files(sources.skipped))
        return merge_refreshes(topics, sources)

    async def refresh_pages(self) -> RefreshReport:
        """Bring the index up to date with the listed pages. A big site takes minutes, so it has its own lock."""
        settings, paths = self._settings, self._settings.paths
        async with self._fetching:
            refreshed = await refresh_pages(
                self._model,
                paths.links,
                self._stores.pages,
                self._kb_catalogue,
                web=self.open_web,
                interval=timedelta(hours=settings.kb.url_refresh_min_interval_hours),
                options=settings.indexing,
                policy=self.policy,
                renders=bool(settings.kb.render_command),
                also=settings.kb.links,
            )
            # Pages that could not be fetched are listed, each with its error; a line without an address is not.
            places = (f"{paths.links.name}:", f"{IN_SETTINGS}:")
            lines = [each for each in refreshed.skipped if each.rel_path.startswith(places)]
            await self._stores.left_out.save("link", lines)
        if refreshed.changed or refreshed.removed or refreshed.pending:
            async with self.turn:
                await self._keep_searchable()
        return refreshed

    async def make_vectors(self, within: float = math.inf) -> None:
        """Make missing vectors for at most `within` seconds. Raises KnowledgeError."""
        if self.embedding is None:
            return
        try:
            await self.embedding.update_all(within)
        except ModelError as error:
            _log.warning("documents_not_embedded", reason=str(error))
        await self._stores.sync_vector_engine()

    async def make_vectors_after_words(self) -> None:
        """Make all missing vectors, but none while words are indexed. Raises KnowledgeError, and ModelError."""
        while self.embedding is not None:
            async with self._words:
                pass
            if not await self.embedding.update_batch():
                return

    async def index_changed_topics(self, *, describe: bool = True) -> None:
        """Describe the changed topics and index them; without `describe`, no model is asked."""
        async with self.turn:
            await self._refresh_topics(describe=describe)
            await self._keep_searchable()

    async def clear_topics(self, topics: AbstractSet[TopicName]) -> None:
        """Describe these topics by rules, and remove their old content from the search; in the `turn`."""
        now = self._stores.clock.now()
        await self._stores.knowledge.change(lambda change: describe_provisionally(change, topics, now))
        # Their present content can be found again after their description.
        await self._stores.search.delete_sources([topic_id(name) for name in sorted(topics)])

    async def take_over_vectors(self, other: Settings) -> None:
        """Reuse the vectors that another folder's database has of the same documents."""
        model = embedding_model(self._settings)
        if self.embedding is None or model is None:
            return
        try:
            if not await run_sync(is_made, other):
                return
            async with await open_database(other) as db:
                await self.embedding.import_vectors(DocumentStore(db).read_embedded(model))
        except KnowledgeError as error:
            _log.warning("vectors_not_taken_over", reason=str(error))

    async def _keep_searchable(self) -> None:
        listed: dict[SourceId, CachedSource] = {}
        for catalogue in (self._kb_catalogue, self.team_catalogue):
            listed.update(await run_sync(catalogue.sources))
        async with self._words:
            with keep_processes():
                await update_search_index(self._stores.search, listed, self._load_covered)
        if self.embedding is not None:
            self.embedding.wake()

    async def _load_covered(self, source_id: SourceId) -> SourceContent:
        if not source_id.startswith("team:"):
            source = await self._library.load(source_id)
            return await run_sync(divide_document, source.title, source.text)
        name = TopicName(source_id.partition(":")[2].removesuffix(".txt"))
        return divide_topic(name.replace("-", " "), await run_sync(self._stores.knowledge.read_topic, name))

    async def _refresh_topics(self, *, describe: bool = True) -> RefreshReport:
        knowledge, options = self._stores.knowledge, self._settings.indexing
        return await refresh_topics(self._model, knowledge, self.team_catalogue, options, describe=describe)


def merge_refreshes(*refreshed: RefreshReport) -> RefreshReport:
    """Merge these refreshes into one."""
    return RefreshReport(
        changed=tuple(chain.from_iterable(each.changed for each in refreshed)),
        removed=tuple(chain.from_iterable(each.removed for each in refreshed)),
        pending=tuple(chain.from_iterable(each.pending for each in refreshed)),
        skipped=tuple(chain.from_iterable(each.skipped for each in refreshed)),
    )
