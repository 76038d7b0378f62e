"""A measurement of how well an import groups messages, on real chat, against people's annotations."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from intern.core.ids import MessageId
from intern.service.history_import import ImportRequest, ImportResult, import_history
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase
from intern.stores.tables.knowledge import KnowledgeStore
from tests.eval.chats import chat_lines, exchanges
from tests.eval.irc_export import Exported, export

WHOLE_BAR = 0.90
SHARE_BAR = 0.65


class Measured(NamedTuple):
    """The results of an import of the IRC logs."""

    done: ImportResult
    asked: int
    """Exchanges whose opening is not cut."""
    whole: int
    """Of these, those of which all questions and answers stand in one surviving block."""
    share: float
    """Of a surviving block's messages, those of the one conversation that it holds most of; the mean."""
    exchange_share: float
    """Of the messages of the block that holds an exchange, those of its conversation; the mean over exchanges."""
    blocks: int
    cpu_seconds: float


def settings_in(folder: Path) -> Settings:
    """Without a model, and without what takes long and changes no block: vectors, and learning from what was filed."""
    return load_settings(
        environ={},
        overrides={
            "data": {"dir": str(folder)},
            "llm": {"provider": "offline"},
            "embeddings": {"provider": "none"},
            "extraction": {"auto": False},
        },
    )


async def measure(folder: Path) -> Measured:
    """Import all of it into a folder, and look at what survives."""
    exported = export(folder)
    begun = time.process_time()
    done = await imported(folder, exported)
    cpu = time.process_time() - begun
    return _measured(done, surviving(folder), exported, cpu)


async def imported(folder: Path, exported: Exported) -> ImportResult:
    """Import the files into a folder."""
    return await import_history(
        settings_in(folder / "data"), ImportRequest(files=exported.files, team_ids=exported.team_ids)
    )


def surviving(folder: Path) -> list[frozenset[MessageId]]:
    """The messages of each block that stands in a topic."""
    settings = settings_in(folder / "data")
    archive, topics = Archive(settings.paths.raw), KnowledgeStore(ReadOnlySqliteDatabase(settings.paths.database))
    pairs = [archive.get(block.qa_id) for name in topics.topic_names() for block in topics.read_topic(name)]
    return [frozenset(pair.message_ids) for pair in pairs if pair is not None]


def _measured(done: ImportResult, blocks: Sequence[frozenset[MessageId]], exported: Exported, cpu: float) -> Measured:
    conversations = {exported.ids[line.message_id]: line.conversation_id for line in chat_lines().values()}
    asked = [each for each in exchanges() if not each.starts_in_context]
    whole, shares = 0, list[float]()
    for each in asked:
        wanted = frozenset(exported.ids[message_id] for message_id in (*each.question_ids, *each.answer_ids))
        best = max(blocks, key=lambda block: len(block & wanted), default=frozenset[MessageId]())
        whole += wanted <= best
        if wanted & best:
            shares.append(mean(conversations[message_id] == each.conversation_id for message_id in best))
    return Measured(
        done=done,
        asked=len(asked),
        whole=whole,
        share=mean(_purity(block, conversations) for block in blocks),
        exchange_share=mean(shares),
        blocks=len(blocks),
        cpu_seconds=cpu,
    )


def _purity(block: frozenset[MessageId], conversations: Mapping[MessageId, str | None]) -> float:
    held = Counter(conversations[message_id] for message_id in block)
    del held[None]
    return max(held.values(), default=0) / len(block)
