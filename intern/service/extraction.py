"""The stores and steps that the extractor uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence, Set as AbstractSet
from dataclasses import replace
from itertools import chain

from anyio import Lock, current_time, sleep
from anyio.to_thread import run_sync
from msgspec import Struct

from intern.actors.extractor import ExtractionStep
from intern.actors.loops import DueRecord
from intern.core.decisions import Decision, MessagesForgotten, MessagesWithdrawn
from intern.core.errors import ConfigError
from intern.core.ids import ConversationId, MessageId, UserId, bot_answer_conversation, bot_answer_thread
from intern.facts.extraction import ExtractionOutcome, KnowledgeExtractor, return_at_once
from intern.facts.reconciliation import FactRetirement
from intern.facts.segments import Segment, find_concerned_conversations
from intern.learning.answered_threads import AnsweredThreadLearner
from intern.models.limits import RateWindow
from intern.models.prompt import Model
from intern.service.stores import Stores
from intern.stores.tables.answered_threads import AnsweredThreads
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.facts import FactStore
from intern.stores.tables.nuggets import NuggetStore

FOLLOWER = "extractor"
"""The follower whose position this is."""
_READ_AHEAD = 32  # decisions; a follower asks again when it has these


class NotesJob(Struct, frozen=True, kw_only=True):
    """The input of an import of notes."""

    notes: tuple[Segment, ...] = ()
    withdrawn: tuple[ConversationId, ...] = ()
    """Notes that were deleted."""


class _ReadingPace:
    """Waits until one more conversation may be read. All readers of this process share it."""

    def __init__(self, most: int) -> None:
        """Allow `most` conversations a minute."""
        self._window = RateWindow(most)
        self._turns = Lock()

    async def __call__(self) -> None:
        async with self._turns:
            await sleep(self._window.seconds_until_start(current_time()))
            self._window.count_start(current_time())


class ExtractionService:
    """The stores and steps that the extractor uses. All methods raise KnowledgeError."""

    def __init__(self, stores: Stores, model: Model) -> None:
        settings, db, clock = stores.settings, stores.db, stores.clock
        self.facts = FactStore(db, clock=clock)
        self.nuggets = NuggetStore(db)
        self.log = ExtractionLog(db, clock=clock)
        # Rules cost almost nothing, so they have no limit.
        paced = settings.kb_model.kind == "endpoint"
        self._auto = settings.extraction.auto
        self._archive = archive = stores.archive
        self._knowledge = decisions = stores.knowledge
        self.extractor = KnowledgeExtractor(
            model=model,
            model_name=settings.kb_model.model if paced else "offline",
            archive=archive,
            decisions=decisions,
            log=self.log,
            facts=self.facts,
            nuggets=self.nuggets,
            documents=stores.search,
            clock=clock,
            options=settings.extraction,
            fact_options=settings.facts,
            names=stores.names,
            pace=_ReadingPace(settings.extraction.max_per_minute) if paced else return_at_once,
        )
        self.answered = AnsweredThreadLearner(
            options=settings.extraction,
            mask=settings.kb.mask_text,
            threads=AnsweredThreads(db),
            posts=stores.posts,
            archive=archive,
            pending=stores.pending,
            decisions=decisions,
            log=self.log,
            extractor=self.extractor,
            clock=clock,
        )

    async def position(self) -> int:
        """Return the position up to which decisions were followed; the start where none is stored."""
        position = await self.log.read_position(FOLLOWER)
        return int(position) if position is not None and position.isascii() and position.isdigit() else 0

    async def save_position(self, position: int) -> None:
        """Store the position up to which decisions were read."""
        await self.log.save_position(FOLLOWER, str(position))

    async def read_steps_after(self, position: int | None) -> Sequence[ExtractionStep]:
        """Return some of the decisions after `position`, with the conversations of each."""
        steps = list[ExtractionStep]()
        for step, decision in await run_sync(self._read_steps, position or 0):
            if isinstance(decision, MessagesWithdrawn | MessagesForgotten):
                also = await self.answered.find_conversations(decision.message_ids)
                steps.append(replace(step, conversations=(*step.conversations, *also)))
            else:
                steps.append(step)
        return steps

    async def find_next_due(self, handed: AbstractSet[Hashable]) -> DueRecord[ExtractionStep]:
        """Return the next conversation to retry, or the next thread that is due."""
        del handed  # a failed one that is retried is due again later, or never
        conversation_id, seconds = await self.extractor.next_retry()
        if conversation_id is None:
            # Forgotten messages were part of it; the remaining ones are read again.
            conversation_id = await self.log.next_due()
        if conversation_id is None:
            thread_id, later = await self.answered.find_due_thread()
            if thread_id is None:
                return DueRecord(seconds=min((each for each in (seconds, later) if each is not None), default=None))
            conversation_id = bot_answer_conversation(thread_id)
        return DueRecord(record=ExtractionStep(conversations=(conversation_id,)), key=conversation_id)

    async def extract(self, conversation_id: ConversationId) -> ExtractionOutcome:
        """Learn from the present state of a conversation; also raises the ModelError family.

        Where automatic extraction is off, outdated lessons are withdrawn all the same.
        """
        thread_id = bot_answer_thread(conversation_id)
        if thread_id is not None:
            return await self.answered.learn_from_thread(thread_id)
        return await self._extract(conversation_id, learns=self._auto)

    async def _extract(self, conversation_id: ConversationId, *, learns: bool) -> ExtractionOutcome:
        pair = await run_sync(self._archive.latest_capture, conversation_id)
        if pair is not None:
            await self.answered.withdraw_archived(pair.message_ids)
        came = await self.extractor.extract(conversation_id, learns=learns)
        await self.log.clear_due(conversation_id)
        return came

    async def park(self, conversation_id: ConversationId, why: str) -> None:
        """Leave a conversation alone until it changes."""
        thread_id = bot_answer_thread(conversation_id)
        if thread_id is not None:
            await self.answered.park(thread_id)
        else:
            await self.extractor.park(conversation_id, why)
            await self.log.clear_due(conversation_id)

    async def extract_unread(
        self, tell: Callable[[int, int], None] = lambda _done, _of: None
    ) -> Mapping[ExtractionOutcome, int]:
        """Read all filed conversations that were never read, and return their number by outcome.

        They were filed while extraction was off, or were too short for an older setting. Also raises
        ModelUnavailableError; conversations read by then stay read. `tell` gets the number of conversations checked and
        their total.
        """
        came: Counter[ExtractionOutcome] = Counter()
        archive = self._archive
        conversations = await run_sync(
            lambda: dict.fromkeys(pair.conversation_id for pair in archive.pairs_after(None))
        )
        for done, conversation_id in enumerate(conversations, 1):
            came[await self._extract(conversation_id, learns=True)] += 1
            tell(done, len(conversations))
        return came

    async def catch_up(self, tell: Callable[[int], None] = lambda _: None) -> int:
        """Read all conversations decided since the last time, and return their number.

        Also raises ModelUnavailableError; conversations read by then stay read. `tell` gets the number so far.
        """
        looked, position = 0, await self.position()
        while steps := await self.read_steps_after(position):
            for conversation_id in dict.fromkeys(chain.from_iterable(step.conversations for step in steps)):
                await self.extract(conversation_id)
                looked += 1
                tell(looked)
            position = steps[-1].position or position
            await self.save_position(position)
        while (due := await self.log.next_due()) is not None:
            await self.extract(due)
            looked += 1
        return looked

    async def retire(self, asked: FactRetirement) -> FactRetirement:
        """Mark a fact as outdated, with the reason. Raises ConfigError if there is no such fact."""
        try:
            fact = await self.facts.retire(asked.fact_id, asked.why)
        except LookupError:
            raise ConfigError(f"there is no fact {asked.fact_id}; `intern facts list` tells their ids") from None
        await self.extractor.update_search((fact.id,))
        return FactRetirement(fact_id=fact.id, why=fact.retired_why)

    async def learn_from_notes(self, asked: NotesJob) -> Mapping[ExtractionOutcome, int]:
        """Learn from notes; withdraw the lessons of deleted ones. Also raises ModelUnavailableError."""
        for conversation_id in asked.withdrawn:
            await self.extractor.withdraw(conversation_id)
        return Counter([await self.extractor.extract_segment(note) for note in asked.notes])

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Delete these messages, and everything made from them. Safe to repeat."""
        await self.extractor.forget(message_ids)
        await self.answered.forget(message_ids)

    async def find_messages_by(self, user_id: UserId) -> frozenset[MessageId]:
        """Find a member's messages that may have taught something, though they are in no archive."""
        return await self.answered.threads.find_messages_by(user_id)

    async def has_learned_from(self, message_ids: Collection[MessageId]) -> bool:
        """Whether something was learned from one of these messages."""
        return bool(
            await self.log.find_conversations(message_ids) or await self.answered.threads.find_threads(message_ids)
        )

    def _read_steps(self, position: int) -> list[tuple[ExtractionStep, Decision]]:
        return [
            (
                ExtractionStep(
                    conversations=find_concerned_conversations(placed, self._archive), position=placed.position
                ),
                placed.decision,
            )
            for placed in self._knowledge.decisions_after(position, _READ_AHEAD)
        ]
