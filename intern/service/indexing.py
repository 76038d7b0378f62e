"""The indices and the search of a data folder, kept true to its topics, documents and pages."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path

from anyio import Lock
from anyio.to_thread import run_sync

from intern.core.clock import Clock
from intern.core.errors import KnowledgeError, ModelError
from intern.core.ids import TopicName
from intern.core.log import get_logger
from intern.models.prompt import Model
from intern.search.finding import Embedder
from intern.service.models import embedding_model
from intern.service.searching import Searchable
from intern.service.stores import Stores
from intern.settings.loading import Settings
from intern.sources.addresses import Policy
from intern.sources.catalogue import Catalogue
from intern.sources.fetching import PageFetcher
from intern.sources.files import noteworthy
from intern.sources.library import Library
from intern.sources.pages import OpenWeb, refresh_pages
from intern.sources.refresh import (
    Refreshed,
    add_topic_provisionally,
    describe_provisionally,
    refresh_sources,
    refresh_topics,
)
from intern.sources.searchable import Embedding
from intern.stores.files import FileLayer
from intern.stores.sqlite.database import Database
from intern.stores.sqlite.search_index import SqliteSearchStore

_log = get_logger(__name__)


class Indexing:
    """Keeps both indices, the search and its vectors up to date."""

    def __init__(
        self,
        settings: Settings,
        stores: Stores,
        model: Model,
        clock: Clock,
        files: FileLayer | None = None,
        *,
        web: OpenWeb | None = None,
        policy: Policy | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        """`web` fetches pages and `policy` says which; both are for tests."""
        paths = settings.paths
        self._settings = settings
        self._stores = stores
        self._model = model
        self._clock = clock
        self._open_web: OpenWeb = web or partial(PageFetcher, settings.web)
        self._policy = policy
        self._kb_catalogue = Catalogue(cache_path=paths.index_cache, index_path=paths.index, clock=clock, files=files)
        self.team_catalogue = Catalogue(
            cache_path=paths.team_index_cache, index_path=paths.team_index, clock=clock, files=files
        )
        self.embedding = None if embedder is None else Embedding(stores.search, embedder)
        self._searchable = Searchable(
            stores.search,
            library=Library(
                kb_index=paths.index,
                team_index=paths.team_index,
                sources=stores.sources,
                topics=stores.topics,
                archive=stores.archive,
                files=files,
                pages=stores.pages,
            ),
            topics=stores.topics,
            catalogues=(self._kb_catalogue, self.team_catalogue),
        )
        self.turn = Lock()

        # Apart from the others: slow sites hold up neither topics nor documents.
        self._fetching = Lock()

    async def refresh(self, *, describe: bool = True) -> Refreshed:
        """Bring both indices up to date with topics and files; without `describe`, no model is asked."""
        async with self.turn:
            topics = await self._refresh_topics(describe=describe)
            sources = await refresh_sources(
                self._model,
                self._stores.sources,
                self._kb_catalogue,
                clock=self._clock,
                options=self._settings.indexing,
                describe=describe,
            )
            await self._keep_searchable()
            await self._stores.left_out.keep("document", noteworthy(sources.skipped))
        return joined(topics, sources)

    async def refresh_pages(self) -> Refreshed:
        """Bring the index up to date with the listed pages. A big site takes minutes, so it has its own lock."""
        settings, paths = self._settings, self._settings.paths
        async with self._fetching:
            refreshed = await refresh_pages(
                self._model,
                paths.links,
                self._stores.pages,
                self._kb_catalogue,
                web=self._open_web,
                clock=self._clock,
                interval=timedelta(hours=settings.kb.url_refresh_min_interval_hours),
                options=settings.indexing,
                policy=self._policy,
                renders=bool(settings.kb.render_command),
            )
            # Pages that could not be fetched are listed, each with its error; a line without an address is not.
            lines = [each for each in refreshed.skipped if each.rel_path.startswith(f"{paths.links.name}:")]
            await self._stores.left_out.keep("link", lines)
        if refreshed.changed or refreshed.removed or refreshed.pending:
            async with self.turn:
                await self._keep_searchable()
        return refreshed

    async def embed(self, within: float = math.inf) -> None:
        """Give every document its vector, as far as that goes `within` so many seconds.

        Raises KnowledgeError. Without vectors, search uses words alone.
        """
        if self.embedding is None:
            return
        try:
            await self.embedding.all(within)
        except ModelError as error:
            _log.warning("documents_not_embedded", reason=str(error))

    async def topics_changed(self, *, describe: bool = True) -> None:
        """Describe the topics that changed, and let them be found; without `describe`, no model is asked."""
        async with self.turn:
            await self._refresh_topics(describe=describe)
            await self._keep_searchable()

    async def cleared(self, topics: AbstractSet[TopicName]) -> None:
        """Describe these topics anew by rules, and let nothing lead to what stood in them; in the `turn`."""
        await describe_provisionally(
            self._stores.topics,
            self._settings.paths.topics,
            topics,
            catalogue=self.team_catalogue,
            clock=self._clock,
        )
        # What stands in them now can be found again once they are described.
        await self._searchable.forget(topics)

    async def take_over_vectors(self, database: Path) -> None:
        """Use the vectors that another folder's database has of the same documents, where there are such."""
        model = embedding_model(self._settings)
        if self.embedding is None or model is None or not await run_sync(database.is_file):
            return
        try:
            async with await Database.open(database) as db:
                await self.embedding.take_over(SqliteSearchStore(db).embedded(model))
        except KnowledgeError as error:
            _log.warning("vectors_not_taken_over", reason=str(error))

    async def _keep_searchable(self) -> None:
        await self._searchable.keep()
        if self.embedding is not None:
            self.embedding.nudge()

    async def _refresh_topics(self, *, describe: bool = True) -> Refreshed:
        return await refresh_topics(
            self._model,
            self._stores.topics,
            self._settings.paths.topics,
            self.team_catalogue,
            clock=self._clock,
            options=self._settings.indexing,
            describe=describe,
        )

    async def list_all(self) -> None:
        """List the topics that no index lists. A process that was killed may not have come to it."""
        listed = await run_sync(self.team_catalogue.sources)
        for name in self._stores.topics.names():
            if f"team:{name}.txt" not in listed:
                await self.list(name, behind=True)

    async def list(self, topic: TopicName, *, behind: bool = False) -> None:
        """`behind` is for many of them; see `Catalogue.add`."""
        await add_topic_provisionally(
            self._stores.topics,
            self._settings.paths.topics,
            topic,
            catalogue=self.team_catalogue,
            clock=self._clock,
            behind=behind,
        )


def joined(*refreshed: Refreshed) -> Refreshed:
    """All of these refreshes in one."""
    return Refreshed(
        changed=tuple(chain.from_iterable(each.changed for each in refreshed)),
        removed=tuple(chain.from_iterable(each.removed for each in refreshed)),
        pending=tuple(chain.from_iterable(each.pending for each in refreshed)),
        skipped=tuple(chain.from_iterable(each.skipped for each in refreshed)),
    )
