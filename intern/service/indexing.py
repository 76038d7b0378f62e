"""Indices, search and vectors, kept up to date with the sources and topics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set as AbstractSet
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path

from anyio import Lock
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.answering.distilled_sources import DistilledSourceFinder
from intern.core.clock import Clock
from intern.core.errors import KnowledgeError, ModelError, SourceError
from intern.core.ids import SourceId, TopicName
from intern.core.knowledge import IndexEntry, SourceText
from intern.core.log import get_logger
from intern.core.search_documents import PassageHit, SearchDocument, SearchKind
from intern.documents.sandboxed import keep_processes
from intern.models.prompt import Model
from intern.search.embedder import Embedder, SimilarityThresholds
from intern.search.hybrid_search import HybridSearch
from intern.service.databases import is_made, open_database
from intern.service.embedding import embedding_model
from intern.service.stores import Stores
from intern.settings.settings import Settings
from intern.sources.addresses import DialPolicy
from intern.sources.catalogue import (
    Catalogue,
    EmbeddingUpdater,
    SourceContent,
    divide_document,
    divide_topic,
    update_search_index,
)
from intern.sources.fetching import PageFetcher
from intern.sources.library import Library, PageCopies
from intern.sources.pages import IN_SETTINGS, OpenWeb, refresh_pages
from intern.sources.refresh import RefreshReport, describe_provisionally, refresh_sources, refresh_topics
from intern.sources.scanning import FileUnreadableError, Scanner, read_file, shorten_paths
from intern.sources.source_folder import SourceFolder, drop_hidden_files
from intern.stores.archive import Archive
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.source_cache import CachedSource, topic_id
from intern.stores.tables.documents import DocumentStore
from intern.stores.tables.knowledge import KnowledgeStore

_log = get_logger(__name__)


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
        learned = DistilledSourceFinder(
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
        """The addresses that may be fetched."""
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
