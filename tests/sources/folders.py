"""A folder with its stores, for the tests of this room."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from intern.core.captures import TopicBlock, Turn
from intern.core.ids import ConversationId, SourceId, TopicName
from intern.core.knowledge import IndexEntry
from intern.sources.catalogue import Catalogue
from intern.sources.descriptions import SummarizeIn, SummarizeOut
from intern.sources.options import IndexingOptions
from intern.sources.refresh import RefreshReport, list_topic, refresh_sources, refresh_topics
from intern.sources.source_folder import SourceFolder
from intern.stores.qa_ids import make_qa_id
from intern.stores.source_cache import CachedSource
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeStore
from tests.worlds.clock import HandClock
from tests.worlds.knowledge import knowledge_in
from tests.worlds.model import ScriptedModel


def praised(given: SummarizeIn) -> SummarizeOut:
    """Return a summary that names its source and the length of its text."""
    return SummarizeOut(description=f"All about {given.source_id}, {len(given.text)} characters.")


def block(question: str, answer: str, *, n: int = 0) -> TopicBlock:
    at = datetime(2026, 2, 1, tzinfo=UTC) + timedelta(seconds=n)
    return TopicBlock(
        qa_id=make_qa_id(at),
        timestamp=at,
        turns=(Turn("User", question), Turn("Team", answer)),
        conversation_id=ConversationId(f"reply_{n}"),
        answered_at=at,
    )


class Shelf:
    """A data folder with documents, topics and their two indices."""

    def __init__(self, folder: Path, knowledge: KnowledgeStore, clock: HandClock) -> None:
        self.sources_dir = folder / "sources"
        self.sources_dir.mkdir(exist_ok=True)
        self.clock = clock
        self.model = ScriptedModel()
        self.options = IndexingOptions()
        self.folder = SourceFolder(self.sources_dir, 1_000_000)
        self.knowledge = knowledge
        self.catalogue = Catalogue(knowledge, "kb")
        self.team = Catalogue(knowledge, "team")

    @classmethod
    @asynccontextmanager
    async def at(cls, folder: Path) -> AsyncGenerator[Self]:
        """A shelf in this folder, until the block ends."""
        clock = HandClock()
        async with knowledge_in(folder, clock) as knowledge:
            yield cls(folder, knowledge, clock)

    def source(self, name: str, text: str) -> None:
        path = self.sources_dir / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)

    async def topic(self, name: str, *blocks: TopicBlock, without: Collection[TopicBlock] = ()) -> None:
        """Put blocks into a topic, and take others out."""

        def work(change: KnowledgeChange) -> None:
            change.remove_blocks([each.qa_id for each in without])
            change.file_blocks(TopicName(name), *blocks)

        await self.knowledge.change(work)

    async def list_topic(self, name: str) -> None:
        """List a topic at once, as filing does."""
        await self.knowledge.change(lambda change: list_topic(change, TopicName(name), self.clock.now()))

    async def refresh_sources(self) -> RefreshReport:
        return await refresh_sources(self.model, self.folder, self.catalogue, self.options)

    async def refresh_topics(self) -> RefreshReport:
        return await refresh_topics(self.model, self.knowledge, self.team, self.options)

    def index(self) -> dict[str, str]:
        return {entry.source_id: entry.description for entry in self.entries()}

    def entries(self) -> list[IndexEntry]:
        return [entry for each in (self.catalogue, self.team) for entry in each.entries().values()]

    def cached(self, source_id: str) -> CachedSource:
        catalogue = self.team if source_id.startswith("team:") else self.catalogue
        return catalogue.sources()[SourceId(source_id)]

    def newest_change(self) -> int:
        """The position of the newest change of an index."""
        return max(self.knowledge.read_source_changes("kb", 0)[0], self.knowledge.read_source_changes("team", 0)[0])
