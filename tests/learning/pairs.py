"""Pairs and stores for the tests of this room."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zlib import crc32

from intern.core.flow import Topic
from intern.core.ids import ConversationId, MessageId, TopicName
from intern.core.records import Capture, CapturedPair, TopicBlock, Turn
from intern.learning.filing import Filer
from intern.learning.prompts import LearningOptions, block_of
from intern.stores.archive import Archive
from intern.stores.decisions import DecisionLog
from intern.stores.files import FileLayer
from intern.stores.library import TopicLibrary
from tests.fakes import HandClock, ScriptedModel

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)


def capture(
    question: str,
    answer: str,
    *,
    conversation: str = "",
    messages: int = 2,
    answered_at: datetime = NOON,
) -> Capture:
    """A capture; without a conversation id it is one of its own."""
    conversation = conversation or f"reply_{crc32((question + answer).encode())}"
    return Capture(
        conversation_id=ConversationId(conversation),
        turns=(Turn("User", question), Turn("Team", answer)),
        message_ids=tuple(MessageId(f"{conversation}{n}") for n in range(messages)),
        answered_at=answered_at,
    )


async def unasked(pair: CapturedPair) -> Topic:
    """Choose no topic: the conversation has one."""
    raise AssertionError(pair)


class KilledError(BaseException):
    """The process is gone."""


class KillingLayer(FileLayer):
    """The process ends at the nth step on disk."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise KilledError

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._step()
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._step()
        super().fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)


class Team:
    """A data folder with everything that filing needs, on a clock turned by hand."""

    def __init__(self, folder: Path, *, max_removals: int = 3, review: bool = False) -> None:
        self.topics_dir = folder / "topics"
        self.state_path = folder / "state.json"
        self.decisions_path = folder / "decisions.jsonl"
        self.clock = HandClock()
        self.model = ScriptedModel()
        self.archive = Archive(folder / "raw", clock=self.clock)
        self.options = LearningOptions(max_removals=max_removals, review=review)
        self.open()

    def open(self, files: FileLayer | None = None) -> None:
        """Open the stores, as a new process would."""
        self.topics = TopicLibrary(self.topics_dir, files)
        self.decisions = DecisionLog(self.decisions_path, files)
        self.filer = Filer(
            model=self.model,
            topics=self.topics,
            decisions=self.decisions,
            state_path=self.state_path,
            clock=self.clock,
            options=self.options,
            files=files,
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
        """A pair, archived now; answered so many days after noon of 15 January."""
        self.clock.turn(seconds=1)
        at = NOON + timedelta(days=after)
        return self.archive.append(
            capture(question, answer, conversation=conversation, messages=messages, answered_at=at)
        )

    def placed(self, topic: str, pair: CapturedPair) -> TopicBlock:
        """Put a pair into a topic behind everybody's back."""
        self.topics.update(TopicName(topic), block_of(pair))
        return block_of(pair)
