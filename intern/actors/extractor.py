"""The extractor follows the decisions: it extracts nuggets and facts from filed pairs, and withdraws those of others.

It delays no other actor. An absent model makes it wait. It notes any other failure with a conversation, and takes the
next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from anyio.streams.memory import MemoryObjectReceiveStream as Receiver

from intern.actors import loops
from intern.actors.activity import ActivityReporter
from intern.actors.classifier import forget_attempts, forget_attempts_on_error
from intern.core.errors import InternError, KnowledgeError, ModelUnavailableError
from intern.core.flow import DecisionRecorded
from intern.core.ids import ConversationId, QAId
from intern.core.log import get_logger
from intern.facts.extraction import ExtractionOutcome
from intern.learning.attempts import MOST_ATTEMPTS, AttemptCounter
from intern.stores.tables.store import save_record

_log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class ExtractionStep:
    """Conversations to read, because of a decision about them or for a retry."""

    conversations: tuple[ConversationId, ...]
    position: int | None = None
    """The position of the decision in its log; None for a retry."""


class ConversationLearner(Protocol):
    """Learns from one conversation at a time."""

    async def extract(self, conversation_id: ConversationId, /) -> ExtractionOutcome:
        """Learn from the conversation as it is now. Raises the ModelError and KnowledgeError families."""
        ...

    async def park(self, conversation_id: ConversationId, why: str, /) -> None:
        """Do not read it again until it changes. Raises KnowledgeError."""

    async def save_position(self, position: int, /) -> None:
        """Note that all decisions up to there were followed. Raises KnowledgeError."""


@dataclass(frozen=True, kw_only=True)
class ExtractionWorker:
    """Follows the decisions, and extracts from each conversation that they concern."""

    decisions: loops.ReadAfter[int, ExtractionStep]
    after: int | None
    """The position up to which the decisions were followed."""
    extraction: ConversationLearner
    again: loops.FindNextDue[ExtractionStep]
    attempts: AttemptCounter
    events: ActivityReporter
    backoff: loops.Backoff = loops.exponential_backoff

    async def run(self, wakeups: Receiver[DecisionRecorded]) -> None:
        """Follow the decisions behind `after`, in order, and the retries that `again` returns, until the wakeups end.

        A conversation that crashed the process MOST_ATTEMPTS times is parked.
        """
        due = loops.tolerate_read_errors(self.again, "extraction_retries_delayed")
        steps = loops.follow(
            self._read_steps_after, wakeups, after=self.after, position_of=lambda it: it.position or 0, again=due
        )
        async with wakeups, aclosing(steps) as followed:
            async for step in followed:
                for conversation_id in step.conversations:
                    await self._extract_conversation(conversation_id)
                if step.position is not None:
                    # If it is lost, the decisions are replayed, which changes nothing.
                    await save_record(partial(self.extraction.save_position, step.position))

    async def _read_steps_after(self, position: int | None) -> Sequence[ExtractionStep]:
        delayed = loops.make_delay_logger(_log, "extraction_delayed")
        act = partial(self.decisions, position)
        return await loops.retry(act, InternError, backoff=self.backoff(), delayed=delayed)

    async def _extract_conversation(self, conversation_id: ConversationId) -> None:
        # Count it under another name: the pair of the same conversation has its own attempts.
        key = QAId(f"extract {conversation_id}")
        # The next conversations would fail in the same way; the log holds them all until it works again.
        survived = (ModelUnavailableError, KnowledgeError)

        async def act() -> ExtractionOutcome:
            async with forget_attempts_on_error(self.attempts, key, *survived):
                if await self.attempts.begin(key) <= MOST_ATTEMPTS:
                    return await self.extraction.extract(conversation_id)
                why = f"{MOST_ATTEMPTS} attempts to read it did not finish: the process ended each time"
                await self.extraction.park(conversation_id, why)
                return "failed"

        delayed = loops.make_delay_logger(_log, "extraction_delayed", conversation_id=conversation_id)
        came = await loops.retry(act, *survived, backoff=self.backoff(), delayed=delayed)
        await forget_attempts(self.attempts, key)
        self.events.report_extraction(conversation_id, came)
