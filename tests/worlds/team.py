"""A team that teaches: its archive, its database and the filing of what it says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Self, TypeVar
from zlib import crc32

from intern.core.captures import Capture, CapturedPair, Speaker, TopicBlock, Turn
from intern.core.decisions import Decision
from intern.core.flow import TopicChoice
from intern.core.ids import ConversationId, MessageId, TopicName, UserId
from intern.learning.archivist import Archivist
from intern.learning.filing import TopicFiler
from intern.learning.prompts import INTEGRATE, IntegrateOut, LearningOptions, build_block
from intern.learning.withdrawing import MessageRemoval, withdraw_messages
from intern.stores.archive import Archive
from intern.stores.database import Transaction
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.change_log import ChangeLogEntry, read_changes
from intern.stores.tables.knowledge import TOPIC, KnowledgeStore
from tests.worlds.clock import HandClock
from tests.worlds.disk import KilledError
from tests.worlds.model import ScriptedModel

T = TypeVar("T")

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)


def capture(
    question: str,
    answer: str,
    *,
    conversation: str = "",
    messages: int = 2,
    answered_at: datetime = NOON,
) -> Capture:
    """Make a capture; without a conversation id, it is a conversation of its own."""
    conversation = conversation or f"reply_{crc32((question + answer).encode())}"
    return Capture(
        conversation_id=ConversationId(conversation),
        turns=(Turn("User", question), Turn("Team", answer)),
        message_ids=tuple(MessageId(f"{conversation}{n}") for n in range(messages)),
        answered_at=answered_at,
    )


async def unasked(pair: CapturedPair) -> TopicChoice:
    """Choose no topic: the conversation has one."""
    raise AssertionError(pair)


class MortalDatabase(SqliteDatabase):
    """A database whose process ends, or whose disk fails, at the nth step: before a write, or right after it."""

    steps: float = inf
    error: Callable[[], BaseException] = KilledError

    async def write(self, work: Callable[[Transaction], T]) -> T:
        self._step()
        result = await super().write(work)
        self._step()
        return result

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise self.error()


class Team:
    """An archive and a database with everything that filing needs, on a fake clock."""

    def __init__(self, folder: Path, db: MortalDatabase) -> None:
        self.raw = folder / "raw"
        self.db = db
        self.clock = HandClock()
        self.model = ScriptedModel()
        self.options = LearningOptions()
        self.open()

    @classmethod
    @asynccontextmanager
    async def at(cls, folder: Path) -> AsyncGenerator[Self]:
        """Open a team in this folder, until the block ends."""
        async with await MortalDatabase.open(folder / "intern.db") as db:
            yield cls(folder, db)

    def open(self, steps: float = inf) -> None:
        """Read everything, as a new process would; it is killed after so many steps."""
        self.db.steps = steps
        self.archive = Archive(self.raw, clock=self.clock)
        self.knowledge = KnowledgeStore(self.db, clock=self.clock)
        self.filer = TopicFiler(
            model=self.model,
            knowledge=self.knowledge,
            archive=self.archive,
            clock=self.clock,
            options=self.options,
        )

    def archived(
        self,
        question: str = "How do I start a node?",
        answer: str = "Run the container.",
        *,
        conversation: str = "",
        messages: int = 2,
        after: float = 0,
    ) -> CapturedPair:
        """Archive a pair now, answered so many days after noon of 15 January."""
        self.clock.turn(seconds=1)
        at = NOON + timedelta(days=after)
        return self.archive.append(
            capture(question, answer, conversation=conversation, messages=messages, answered_at=at)
        )

    async def placed(self, topic: str, pair: CapturedPair) -> TopicBlock:
        """Put a pair into a topic without a decision."""
        block = build_block(pair)
        await self.knowledge.change(lambda change: change.file_blocks(TopicName(topic), block))
        return block

    async def decided(self, *decisions: Decision) -> None:
        """Log decisions."""
        await self.knowledge.change(lambda change: change.decide(*decisions))

    async def changed(self, *, after: int = 0) -> list[ChangeLogEntry]:
        """Return the topics that changed after a position, as a follower reads them."""
        return await self.db.read(lambda db: read_changes(db, after, [TOPIC]))

    async def withdraw(self, message_ids: Collection[MessageId]) -> MessageRemoval | None:
        """Withdraw messages that were deleted on Discord."""
        return await withdraw_messages(self.knowledge, self.archive, message_ids, self.clock.now())


NODES = TopicName("nodes")
_SPEAKERS: dict[str, Speaker] = {"q": "User", "a": "Team"}


class Writers(Team):
    """A team whose captures name each message: `q1` asks, `a2` answers, and the author of the nth is 50 and n."""

    def open(self, steps: float = inf) -> None:
        super().open(steps)
        self.model.always(INTEGRATE, IntegrateOut(skip=False, remove_ids=()))
        self.archivist = Archivist(
            self.archive,
            mask=True,
            is_withdrawn=self.knowledge.is_withdrawn,
            is_forgotten=self.knowledge.is_forgotten,
        )

    async def captured(self, *said: str, conversation: str = "thread_1") -> CapturedPair | None:
        """Keep messages such as `q1` or `a2: new text`."""
        self.clock.turn(seconds=1)
        named = [text.partition(": ")[::2] for text in said]
        return await self.archivist.archive_capture(
            Capture(
                conversation_id=ConversationId(conversation),
                turns=tuple(Turn(_SPEAKERS[name[0]], text or name) for name, text in named),
                message_ids=tuple(MessageId(name[1:]) for name, _ in named),
                author_ids=tuple(UserId(f"50{name[1:]}") for name, _ in named),
                answered_at=NOON,
            )
        )

    def held(self) -> list[list[str]]:
        """Return the texts of the blocks of all topics."""
        return blocks_of(self.knowledge)


def blocks_of(knowledge: KnowledgeStore) -> list[list[str]]:
    return [
        [turn.text for turn in block.turns] for name in knowledge.topic_names() for block in knowledge.read_topic(name)
    ]


def held(knowledge: KnowledgeStore) -> dict[str, list[str]]:
    """Return the answers in each topic."""
    return {name: [block.turns[-1].text for block in knowledge.read_topic(name)] for name in knowledge.topic_names()}
