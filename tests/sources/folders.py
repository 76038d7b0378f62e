"""Folders, stores and a counting disk for the tests of this room."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from intern.core.ids import ConversationId, TopicName
from intern.core.records import IndexEntry, TopicBlock, Turn
from intern.sources.catalogue import Catalogue
from intern.sources.descriptions import SummarizeIn, SummarizeOut
from intern.sources.files import SourceFolder
from intern.sources.options import IndexingOptions
from intern.sources.refresh import Refreshed, refresh_sources, refresh_topics
from intern.stores.blocks import qa_id_of
from intern.stores.files import FileLayer
from intern.stores.library import CachedSource, TopicLibrary, read_index
from tests.fakes import HandClock, ScriptedModel


class CountingLayer(FileLayer):
    """The disk, and what was written to it."""

    def __init__(self) -> None:
        self.renamed: list[str] = []

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.renamed.append(new.name)


def praised(given: SummarizeIn) -> SummarizeOut:
    """A summary that tells whose it is, and how long its text was."""
    return SummarizeOut(description=f"All about {given.source_id}, {len(given.text)} characters.")


def block(question: str, answer: str, *, n: int = 0) -> TopicBlock:
    at = datetime(2026, 2, 1, tzinfo=UTC) + timedelta(seconds=n)
    return TopicBlock(
        qa_id=qa_id_of(at),
        timestamp=at,
        turns=(Turn("User", question), Turn("Team", answer)),
        conversation_id=ConversationId(f"reply_{n}"),
        answered_at=at,
    )


class Shelf:
    """A data folder with documents, topics and their two indices."""

    def __init__(self, folder: Path, **options: int) -> None:
        self.sources_dir = folder / "sources"
        self.sources_dir.mkdir(exist_ok=True)
        self.topics_dir = folder / "topics"
        self.clock = HandClock()
        self.model = ScriptedModel()
        self.disk = CountingLayer()
        self.options = IndexingOptions(**options)
        self.folder = SourceFolder(self.sources_dir, 1_000_000)
        self.topics = TopicLibrary(self.topics_dir)
        self.index_path = folder / "index.txt"
        self.cache_path = folder / "index-cache.json"
        self.journal_path = folder / "index-cache-journal.jsonl"
        self.catalogue = Catalogue(
            cache_path=self.cache_path, index_path=self.index_path, clock=self.clock, files=self.disk
        )

    def source(self, name: str, text: str) -> None:
        path = self.sources_dir / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)

    def topic(self, name: str, *blocks: TopicBlock) -> None:
        for each in blocks:
            self.topics.update(TopicName(name), each)

    async def refresh_sources(self) -> Refreshed:
        return await refresh_sources(self.model, self.folder, self.catalogue, options=self.options)

    async def refresh_topics(self) -> Refreshed:
        return await refresh_topics(self.model, self.topics, self.catalogue, options=self.options)

    def index(self) -> dict[str, str]:
        return {entry.source_id: entry.description for entry in self.entries()}

    def entries(self) -> tuple[IndexEntry, ...]:
        return read_index(self.index_path)

    def cached(self, source_id: str) -> CachedSource:
        return {str(key): source for key, source in self.catalogue.sources().items()}[source_id]
