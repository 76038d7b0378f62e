"""File captured pairs in topics, and log the decisions. Only this code changes topics.

The topic file is renamed into place first, then the decision is written, then the cursor. After a crash in between, the
next run finds the block in its topic and writes the rest, without a model call.

A block that moves to another topic is written there first, then the decision, then it is removed from the old one.
After a crash in between, it is in both. The next start calls `mend`, which leaves it where the last decision says.

A withdrawal is the other way round, because Discord reports a deletion only once. It is logged first, and from then on
no filed pair has the message. Then the message is removed from the existing blocks.

An attempt at a pair is counted before the work begins, so a pair that crashes the process is given up in the end. An
outage or a normal shutdown does not count.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from anyio import CancelScope, get_cancelled_exc_class
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.core.clock import Clock
from intern.core.errors import InternError, KnowledgeError, ModelReplyError
from intern.core.flow import Filing, Skip, Topic
from intern.core.ids import ConversationId, MessageId, QAId, TopicName
from intern.core.log import get_logger
from intern.core.records import (
    Approved,
    AwaitingReview,
    CapturedPair,
    Filed,
    Forgotten,
    Moved,
    PairDecision,
    Parked,
    Removed,
    Replaced,
    Skipped,
    TopicBlock,
    Withdrawn,
)
from intern.learning.classifying import (
    OF_ONE_PAIR,
    Attempts,
    Choice,
    GivenUp,
    Split,
    begun,
    choose_split,
    failed,
    free_name,
    times_of,
)
from intern.learning.prompts import (
    CLASSIFY,
    INTEGRATE,
    IntegrateIn,
    IntegrateOut,
    LearningOptions,
    age_of,
    block_material,
    block_of,
    blocks_material,
    is_alike,
    left_of,
    text_of,
)
from intern.models.prompt import Model
from intern.stores.archive import Archive
from intern.stores.blocks import time_of
from intern.stores.decisions import DecisionLog, write_state
from intern.stores.files import FileLayer
from intern.stores.library import TopicLibrary

_log = get_logger(__name__)

T = TypeVar("T")
Older = Sequence[tuple[TopicName, QAId]]
Choose = Callable[[CapturedPair], Awaitable[Topic | Skip]]
# A topic that the model could not split is not tried again until it has grown by this factor.
_GROWTH = 1.25


class _Standing(NamedTuple):
    """An undecided pair and its conversation before filing."""

    pair: CapturedPair
    """Without the withdrawn messages."""
    older: Older
    """The blocks that this pair replaces, as a fuller version."""


@dataclass(kw_only=True, eq=False)
class Filer:
    """Files pairs in topics, one at a time: the caller waits for each `file`."""

    model: Model
    topics: TopicLibrary
    decisions: DecisionLog
    state_path: Path | None
    """The cursor's file (`state.json`); None: keep no cursor."""
    clock: Clock
    options: LearningOptions = field(default_factory=LearningOptions)
    files: FileLayer | None = None
    newest_of: Callable[[ConversationId], QAId | None] = lambda _: None
    """Returns the newest pair of a conversation; older ones are not filed, and cost no call."""

    # Topics that the model could not split, with their lengths.
    _whole: dict[TopicName, int] = field(default_factory=dict[TopicName, int], init=False)
    # Whether a crash or a disk error may have left blocks in two topics.
    _torn: bool = field(default=True, init=False)
    # The classifier reads topics while the integrator writes.
    _guard: threading.Lock = field(default_factory=threading.Lock, init=False)
    # How many withdrawn messages were removed from blocks. A new process starts at 0 and repeats the work.
    _cleared: int = field(default=0, init=False)

    async def choice(self, pair: CapturedPair, choose: Choose) -> Choice:
        """Return the topic that the conversation is in already; else the result of `choose`, or its failure.

        `choose` gets the pair without withdrawn messages. It is not called if nothing is left of the pair, or if the
        pair waits for review or has a final decision. Raises ModelUnavailableError while the model is away.
        """
        known = await self._on_disk(self._known_topic, pair)
        if known is not None:
            return Topic(name=known)
        decided = self.decisions.of(pair.qa_id)
        ended = decided is not None and not isinstance(decided, Parked | Approved)
        if ended or (decided is None and (self.options.review or self._fuller(pair) is not None)):
            return Skip(reason="it is not to be filed now")
        left = self.left_of(pair)
        if left is None:
            return Skip(reason="its question or its answer was withdrawn")
        try:
            return await choose(left)
        except OF_ONE_PAIR as error:
            _log.warning("llm_classification_failed", qa_id=pair.qa_id, reason=str(error))
            return failed(CLASSIFY.name, error)

    def left_of(self, pair: CapturedPair) -> CapturedPair | None:
        """Return the pair without withdrawn messages; None once its question or its answer was withdrawn."""
        return left_of(pair, self.decisions.is_withdrawn)

    async def withdraw(self, message_ids: Collection[MessageId]) -> Withdrawn | None:
        """Log that these messages are withdrawn; return None if all of them were before.

        No pair that is filed or archived later has them. `clear_withdrawn` handles pairs that were filed before. Call
        it at any time. Raises KnowledgeError; then nothing is withdrawn.
        """
        return await self._on_disk(self._withdraw, message_ids)

    async def clear_withdrawn(self, archive: Archive) -> tuple[TopicName, ...]:
        """Remove withdrawn messages from all blocks, and return the changed topics.

        A block without a question or an answer is removed. The first call checks all withdrawn messages, so it finishes
        the work of a crashed process. Raises KnowledgeError; call it again then.
        """
        return await self._on_disk(self._clear, archive)

    async def file(self, filing: Filing) -> PairDecision:
        """Carry out a filing, and return the logged decision.

        A conversation keeps its topic, even if the filing names another one: a fuller capture replaces the older block
        there. If the integrating model's reply makes no sense, the pair is parked. Withdrawn messages are left out; a
        pair without a question or an answer is removed. A pair that was decided before is left alone, unless it was
        parked or approved. With review, a new pair waits for it, without a model call. Raises ModelUnavailableError
        while the model is away, and KnowledgeError if the disk fails; the pair is then undecided.
        """
        pair, choice = filing.pair, filing.choice
        standing = await self._on_disk(self._look_up, pair)
        if not isinstance(standing, _Standing):
            return standing
        topic = standing.older[-1][0] if standing.older else choice.name if isinstance(choice, Topic) else None
        if topic is None or isinstance(choice, GivenUp):
            return await self._on_disk(self._set_aside, pair, choice)
        stored = await self._on_disk(self.topics.read, topic)
        blocks = [block for block in stored if block.conversation_id != pair.conversation_id]
        try:
            verdict = await self._integrate(topic, blocks, standing.pair)
        except OF_ONE_PAIR as error:
            _log.warning("llm_integration_failed", qa_id=pair.qa_id, topic_name=topic, reason=str(error))
            return await self._on_disk(self._set_aside, pair, failed(INTEGRATE.name, error))
        if verdict.skip and not standing.older:
            return await self._on_disk(self._set_aside, pair, Skip(reason=f"{topic} says all of it already"))
        removable = self._removable(verdict.remove_ids, topic, blocks, pair)
        return await self._on_disk(self._put, pair, topic, standing.older, removable)

    async def split_outgrown(self, topic: TopicName) -> TopicName | None:
        """Let the model split a topic that is too long, and return the new topic; None without one.

        After a senseless reply, the topic is not tried again before it has grown by a quarter. The caller must not let
        pairs be filed in this topic meanwhile. Raises as `file` does.
        """
        blocks = await self._on_disk(self._outgrown, topic)
        if not blocks:
            return None
        try:
            split = await choose_split(self.model, topic, blocks, self.options)
        except OF_ONE_PAIR as error:
            _log.warning("topic_split_failed", topic_name=topic, blocks=len(blocks), reason=str(error))
            self._whole[topic] = len(await self._on_disk(self.topics.text, topic))
            return None
        return await self._on_disk(self._move, topic, split)

    def mend(self) -> None:
        """Leave each block in one topic only, after a crash left it in two. Blocks; raises KnowledgeError."""
        self._guarded(lambda: None)

    async def _integrate(self, topic: TopicName, blocks: Sequence[TopicBlock], pair: CapturedPair) -> IntegrateOut:
        if not await run_sync(is_alike, blocks, pair):
            return IntegrateOut(skip=False, remove_ids=())
        bounds = self.options
        shown = await run_sync(blocks_material, blocks, text_of(pair.turns), bounds.max_blocks_chars)
        given = IntegrateIn(topic=topic, blocks=shown, pair=block_material(block_of(pair), bounds.max_pair_chars))
        verdict = await self.model.ask(INTEGRATE, given)
        if verdict.contradiction:
            raise ModelReplyError(f"integrate contradicts itself: {verdict.contradiction}")
        return verdict

    def _removable(
        self, asked: Sequence[str], topic: TopicName, blocks: Sequence[TopicBlock], pair: CapturedPair
    ) -> tuple[QAId, ...]:
        """Return the named blocks that may be removed: of this topic, not newer than the pair, and a few at most."""
        older = {time_of(block.qa_id): block.qa_id for block in blocks if age_of(block) <= pair.answered_at}
        wanted = tuple(dict.fromkeys(older[time] for time in times_of(asked) if time in older))
        removable = wanted[: self.options.max_removals]
        if len(removable) < len(set(asked)):
            _log.warning(
                "topic_removals_refused",
                qa_id=pair.qa_id,
                topic_name=topic,
                asked=len(set(asked)),
                removed=len(removable),
            )
        return removable

    async def _on_disk(self, work: Callable[..., T], *args: object) -> T:
        # Not abandoned on cancellation: the caller waits until topic and decision are both written.
        return await run_sync(partial(self._guarded, work, *args))

    def _guarded(self, work: Callable[..., T], *args: object) -> T:
        with self._guard:
            if self._torn:
                self._mend()
            return work(*args)

    def _known_topic(self, pair: CapturedPair) -> TopicName | None:
        places = self.topics.of_conversation(pair.conversation_id)
        return self.topics.topic_of(pair.qa_id) or (places[-1][0] if places else None)

    def _look_up(self, pair: CapturedPair) -> PairDecision | _Standing:
        """Return the decision if there is nothing to ask a model, else the pair's state."""
        decided = self.decisions.of(pair.qa_id)
        if decided is not None and not isinstance(decided, Parked | Approved):
            return decided
        own = self.topics.topic_of(pair.qa_id)
        places = self.topics.of_conversation(pair.conversation_id)
        older = tuple(place for place in places if time_of(place[1]) < time_of(pair.qa_id))
        if own is not None:
            return self._finish(pair, own, older)
        newer = [qa_id for _, qa_id in places if time_of(qa_id) > time_of(pair.qa_id)]
        by, reason = (newer[-1], "a fuller capture stands already") if newer else (None, "a fuller capture follows")
        if by is None and decided is None and not self.options.review:
            by = self._fuller(pair)
        if by is not None:
            return self._settle(Replaced(qa_id=pair.qa_id, by=by, at=self.clock.now(), reason=reason))
        left = self.left_of(pair)
        if left is None:
            return self._drop(pair, older)
        if decided is None and self.options.review:
            # The older blocks stay until this one is approved.
            return self._settle(AwaitingReview(qa_id=pair.qa_id, at=self.clock.now()))
        return _Standing(left, older)

    def _fuller(self, pair: CapturedPair) -> QAId | None:
        """Return the newest pair of the same conversation; None if it is this one."""
        newest = self.newest_of(pair.conversation_id)
        return newest if newest is not None and time_of(newest) > time_of(pair.qa_id) else None

    def _put(self, pair: CapturedPair, topic: TopicName, older: Older, removable: Collection[QAId]) -> PairDecision:
        left = self.left_of(pair)  # again: messages may have been withdrawn during the model call
        if left is None:
            return self._drop(pair, older)
        gone = self.topics.update(
            topic, block_of(left), [*(qa_id for name, qa_id in older if name == topic), *removable]
        )
        removed = tuple(qa_id for qa_id in gone if qa_id in set(removable))
        self._retire(pair, topic, older)
        _log.info("topic_file_updated", topic_name=topic, qa_id=pair.qa_id, removed=list(removed))
        return self._settle(Filed(qa_id=pair.qa_id, topic=topic, removed=removed, at=self.clock.now()))

    def _finish(self, pair: CapturedPair, topic: TopicName, older: Older) -> PairDecision:
        """Log the decision for a block that was written before a crash."""
        replaced = pair.replaces
        if replaced and isinstance(self.decisions.of(replaced), Filed | Moved) and not self.topics.topic_of(replaced):
            older = [*older, (topic, replaced)]
        self._retire(pair, topic, older)
        reason = "it stood in its topic already"
        removed = self._unexplained(topic)
        return self._settle(Filed(qa_id=pair.qa_id, topic=topic, removed=removed, at=self.clock.now(), reason=reason))

    def _unexplained(self, topic: TopicName) -> tuple[QAId, ...]:
        """Return the pairs that were filed in a topic, and are gone from it without a decision.

        After a crash between writing a topic and its decision, these are the blocks that the writing removed.
        """
        filed: dict[datetime, QAId] = {}
        for decision in self.decisions.all():
            if isinstance(decision, Withdrawn | Forgotten):
                continue
            filed.pop(time_of(decision.qa_id), None)
            if isinstance(decision, Filed):
                for time in times_of(decision.removed):
                    filed.pop(time, None)
            if isinstance(decision, Filed | Moved) and decision.topic == topic:
                filed[time_of(decision.qa_id)] = decision.qa_id
        return tuple(qa_id for qa_id in filed.values() if self.topics.topic_of(qa_id) is None)

    def _outgrown(self, topic: TopicName) -> tuple[TopicBlock, ...]:
        """Return the blocks of a topic that is too long; none for other topics."""
        length = len(self.topics.text(topic))
        if length <= self.options.max_topic_chars or length < _GROWTH * self._whole.get(topic, 0):
            return ()
        blocks = self.topics.read(topic)
        return blocks if len(blocks) > 1 else ()

    def _move(self, topic: TopicName, split: Split) -> TopicName | None:
        leaving = set(times_of(split.moves))
        blocks = self.topics.read(topic)  # again: messages may have been withdrawn during the model call
        moving = [block for block in blocks if time_of(block.qa_id) in leaving]
        if not moving or len(moving) == len(blocks):
            return None
        name = free_name(split.name, self.topics.names())
        self._torn = True
        self.topics.put(name, moving)
        # In one write: after a crash, all of them have moved or none.
        self.decisions.extend(Moved(qa_id=block.qa_id, topic=name, at=self.clock.now()) for block in moving)
        self.topics.update(topic, None, [block.qa_id for block in moving])
        self._torn = False
        self._whole.pop(topic, None)
        _log.info(
            "topic_split", topic_name=topic, new_topic_name=name, moved=len(moving), stayed=len(blocks) - len(moving)
        )
        return name

    def _mend(self) -> None:
        doomed: dict[TopicName, list[QAId]] = defaultdict(list)
        for qa_id, places in self.topics.doubles().items():
            decided = self.decisions.of(qa_id)
            said = decided.topic if isinstance(decided, Filed | Moved) else None
            home = said if said in places else places[0]
            for topic in places:
                if topic != home:
                    doomed[topic].append(qa_id)
        for topic, qa_ids in doomed.items():
            self.topics.update(topic, None, qa_ids)
            _log.warning("topic_mended", topic_name=topic, qa_ids=qa_ids)
        self._torn = False

    def _retire(self, pair: CapturedPair, topic: TopicName, older: Older) -> None:
        """Remove the older blocks from their topics, and log that they were replaced."""
        for name, qa_id in older:
            if name != topic or self.topics.topic_of(qa_id) == name:
                self.topics.update(name, None, [qa_id])
            self.decisions.append(Replaced(qa_id=qa_id, by=pair.qa_id, at=self.clock.now()))

    def _drop(self, pair: CapturedPair, older: Older) -> PairDecision:
        """Remove the pair and its older versions, because nothing is left of it."""
        for name, qa_id in older:
            self.decisions.append(Replaced(qa_id=qa_id, by=pair.qa_id, at=self.clock.now()))
            self.topics.update(name, None, [qa_id])
        return self._settle(self._removed(pair.qa_id))

    def _removed(self, qa_id: QAId) -> Removed:
        _log.info("qa_pair_removed", qa_id=qa_id)
        return Removed(qa_id=qa_id, reason="its question or its answer was withdrawn", at=self.clock.now())

    def _withdraw(self, message_ids: Collection[MessageId]) -> Withdrawn | None:
        fresh = tuple(each for each in dict.fromkeys(message_ids) if not self.decisions.is_withdrawn(each))
        if not fresh:
            return None
        decision = Withdrawn(message_ids=fresh, reason="deleted on Discord", at=self.clock.now())
        self.decisions.append(decision)
        _log.info("messages_withdrawn", message_ids=list(fresh))
        return decision

    def _clear(self, archive: Archive) -> tuple[TopicName, ...]:
        fresh = self.decisions.withdrawn(self._cleared)
        conversations = dict.fromkeys(chain.from_iterable(map(archive.conversations_of, fresh)))
        changed = {
            name: None
            for conversation in conversations
            for name, qa_id in self.topics.of_conversation(conversation)
            if self._clear_block(name, qa_id, archive.get(qa_id))
        }
        self._cleared += len(fresh)
        return tuple(changed)

    def _clear_block(self, name: TopicName, qa_id: QAId, pair: CapturedPair | None) -> bool:
        # The archive lacks this block's pair, so the block may have any message of its conversation.
        left = None if pair is None else self.left_of(pair)
        if left is None:
            # The decision first: after a crash, the next start still finds the block, and repeats the removal.
            if not isinstance(self.decisions.of(qa_id), Removed):
                self.decisions.append(self._removed(qa_id))
            self.topics.update(name, None, [qa_id])
            return True
        [block] = [block for block in self.topics.read(name) if time_of(block.qa_id) == time_of(qa_id)]
        if block.turns == left.turns:
            return False
        self.topics.update(name, replace(block, turns=left.turns))
        _log.info("topic_file_updated", topic_name=name, qa_id=qa_id, withdrawn=True)
        return True

    def _set_aside(self, pair: CapturedPair, choice: Choice) -> PairDecision:
        assert not isinstance(choice, Topic)
        end = Skipped if isinstance(choice, Skip) else Parked
        return self._settle(end(qa_id=pair.qa_id, reason=choice.reason, at=self.clock.now()))

    def _settle(self, decision: PairDecision) -> PairDecision:
        self.decisions.append(decision)
        if self.state_path is not None:
            write_state(self.state_path, self.decisions.cursor(), self.files)
        return decision


# Pairs read from the archive at a time: starting a thread for each would cost more than reading it.
_READ_AHEAD = 32


class Tally(Struct, frozen=True, kw_only=True):
    """The number of pairs for each kind of decision."""

    filed: int = 0
    skipped: int = 0
    parked: int = 0
    replaced: int = 0
    removed: int = 0
    moved: int = 0
    awaiting_review: int = 0
    approved: int = 0
    rejected: int = 0

    @classmethod
    def of(cls, decisions: Iterable[PairDecision]) -> Tally:
        """Count each decision once."""
        return cls(**Counter(str(type(decision).__struct_config__.tag) for decision in decisions))


async def try_once(pair: CapturedPair, *, filer: Filer, choose: Choose, attempts: Attempts) -> PairDecision:
    """Classify and file one pair, as a counted attempt. Raises as `Filer.file` does; that attempt does not count."""
    try:
        choice = await begun(attempts, pair.qa_id) or await filer.choice(pair, choose)
        decision = await filer.file(Filing(pair=pair, choice=choice))
    except (InternError, get_cancelled_exc_class()):
        with CancelScope(shield=True), suppress(KnowledgeError):  # the first error says more
            await attempts.clear(pair.qa_id)
        raise
    await attempts.end(decision, again=not isinstance(choice, GivenUp))
    return decision


async def catch_up(
    archive: Archive,
    after: QAId | None,
    *,
    filer: Filer,
    choose: Choose,
    filed: Callable[[CapturedPair, PairDecision], Awaitable[None]] | None = None,
    due: Sequence[CapturedPair] = (),
    attempts: Attempts,
) -> Tally:
    """Classify and file all pairs that were archived after a position, in order, then the `due` ones.

    Each is a counted attempt, and `filed` hears of each. A pair with senseless replies is parked, and the next one
    follows. Raises ModelUnavailableError while the model is away, and KnowledgeError if the disk fails. Pairs filed
    before that stay filed.
    """
    decisions: list[PairDecision] = []
    pairs = chain(archive.after(after), due)
    while ahead := await run_sync(lambda: list(islice(pairs, _READ_AHEAD))):
        for pair in ahead:
            decision = await try_once(pair, filer=filer, choose=choose, attempts=attempts)
            decisions.append(decision)
            if filed is not None:
                await filed(pair, decision)
    return Tally.of(decisions)
