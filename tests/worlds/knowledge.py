"""A community's knowledge in a database of its own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync

from intern.core.captures import CapturedPair, TopicBlock
from intern.core.clock import Clock
from intern.core.decisions import Decision
from intern.core.ids import TopicName
from intern.stores.database import DEFAULT_COMMUNITY
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeStore
from tests.engines import open_database
from tests.worlds.clock import HandClock

T = TypeVar("T")


@asynccontextmanager
async def knowledge_in(
    folder: Path, clock: Clock | None = None, *, community: str = DEFAULT_COMMUNITY
) -> AsyncGenerator[KnowledgeStore]:
    """The knowledge in a folder, until the block ends."""
    async with await open_database(folder / "intern.db") as db:
        yield await run_sync(partial(KnowledgeStore, db.for_community(community), clock=clock or HandClock()))


def known(folder: Path, work: Callable[[KnowledgeStore], T]) -> T:
    """Ask the knowledge in a folder, where no event loop runs."""

    async def run() -> T:
        async with knowledge_in(folder) as knowledge:
            return await run_sync(work, knowledge)

    return anyio.run(run)


def change(folder: Path, work: Callable[[KnowledgeChange], None]) -> None:
    """Change the knowledge in a folder, where no event loop runs."""

    async def run() -> None:
        async with knowledge_in(folder) as knowledge:
            await knowledge.change(work)

    anyio.run(run)


def decide(folder: Path, *decisions: Decision) -> None:
    """Log decisions in a folder, where no event loop runs."""
    change(folder, lambda db: db.decide(*decisions))


def put(folder: Path, topic: TopicName, *pairs: CapturedPair) -> None:
    """Put pairs into a topic, where no event loop runs."""
    change(folder, lambda db: db.file_blocks(topic, *map(block_of, pairs)))


def block_of(pair: CapturedPair) -> TopicBlock:
    """Return a pair as its topic has it."""
    return TopicBlock(qa_id=pair.qa_id, timestamp=pair.timestamp, turns=pair.turns, answered_at=pair.answered_at)
