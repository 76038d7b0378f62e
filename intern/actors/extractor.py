"""The extractor follows the decisions: what is filed becomes nuggets and facts, what stands no more is withdrawn.

It asks a model in its own time and holds up nobody. An absent model makes it wait; whatever else goes wrong with a
conversation is written down, and the next one is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from anyio import sleep
from anyio.streams.memory import MemoryObjectReceiveStream

from intern.actors.events import Events
from intern.actors.filing import forget_attempts, forgotten_when_cancelled
from intern.actors.loops import Backoff, DueLog, Log, exponential_backoff, follow, patient, persistently, surviving
from intern.core.errors import InternError, KnowledgeError, ModelUnavailableError
from intern.core.flow import Decided
from intern.core.ids import ConversationId, QAId
from intern.core.log import get_logger
from intern.facts.extracting import Came
from intern.learning.attempts import MOST_ATTEMPTS, Attempts

_log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Conversations to look at, since a decision was about them, or their time has come."""

    conversations: tuple[ConversationId, ...]
    position: int | None = None
    """Where the decision ends in its log; None for what is tried again."""


class Extraction(Protocol):
    """Learns from one conversation at a time."""

    async def extract(self, conversation_id: ConversationId, /) -> Came:
        """Learn what there is to learn from it as it stands now. Raises the ModelError and KnowledgeError families."""
        ...

    async def park(self, conversation_id: ConversationId, why: str, /) -> None:
        """Nobody reads it again until it changes. Raises KnowledgeError."""
        ...

    async def followed(self, position: int, /) -> None:
        """All up to there was looked at. Raises KnowledgeError."""
        ...


async def extractor(
    decisions: Log[int, Step],
    wakeups: MemoryObjectReceiveStream[Decided],
    *,
    after: int | None,
    extraction: Extraction,
    again: DueLog[Step],
    attempts: Attempts,
    events: Events,
    backoff: Backoff = exponential_backoff,
) -> None:
    """Look at what each decision after `after` was about, in order, and at what is due `again`, until the wakeups end.

    A conversation that ended the process MOST_ATTEMPTS times is parked.
    """
    worker = _Worker(extraction, attempts, events, backoff)

    def delayed(error: InternError, pause: float) -> None:
        _log.warning("extraction_delayed", reason=str(error), again_in_seconds=pause)

    async def some_after(position: int | None) -> Sequence[Step]:
        return await persistently(partial(decisions, position), InternError, backoff=backoff(), delayed=delayed)

    due = patient(again, "extraction_retries_delayed")
    steps = follow(some_after, wakeups, after=after, position_of=lambda step: step.position or 0, again=due)
    async with wakeups, aclosing(steps) as followed:
        async for step in followed:
            for conversation_id in step.conversations:
                await worker.look_at(conversation_id)
            if step.position is not None:
                # Lost, it costs a replay, in which nothing has changed.
                with surviving("extractor"):
                    await extraction.followed(step.position)


class _Worker:
    def __init__(self, extraction: Extraction, attempts: Attempts, events: Events, backoff: Backoff) -> None:
        self._extraction = extraction
        self._attempts = attempts
        self._events = events
        self._backoff = backoff

    async def look_at(self, conversation_id: ConversationId) -> None:
        # Counted under a name of its own: the pair of the same conversation has its own attempts.
        key = QAId(f"extract {conversation_id}")
        async with forgotten_when_cancelled(self._attempts, key):
            came = await self._come_of(conversation_id, key)
        await forget_attempts(self._attempts, key)
        self._events.extracted(conversation_id, came)

    async def _come_of(self, conversation_id: ConversationId, key: QAId) -> Came:
        backoff = self._backoff()
        while True:
            try:
                if await self._attempts.begin(key) <= MOST_ATTEMPTS:
                    return await self._extraction.extract(conversation_id)
                why = f"{MOST_ATTEMPTS} attempts to read it did not finish: the process ended each time"
                await self._extraction.park(conversation_id, why)
            except (ModelUnavailableError, KnowledgeError) as error:
                # The conversations behind would fail in the same way; the log holds them all until it works again.
                pause, event = next(backoff), "extraction_delayed"
                _log.warning(event, conversation_id=conversation_id, reason=str(error), again_in_seconds=pause)
                await forget_attempts(self._attempts, key)
                await sleep(pause)
            else:
                return "failed"
