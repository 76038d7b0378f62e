"""File captured pairs in topics, and log the decisions.

Beside this code, only regeneration and a request to forget change topics. Each decision is one transaction: the blocks,
the decision and the entry of a new topic in the index. What was read before a model call is read again in it.

An attempt at a pair is counted before the work begins, so a pair that crashes the process is given up in the end. An
outage or a normal shutdown does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from anyio import CancelScope, get_cancelled_exc_class
from anyio.to_thread import run_sync
from msgspec import Struct
from structlog.contextvars import bound_contextvars

from intern.core import captures, errors, flow
from intern.core.clock import Clock
from intern.core.decisions import (
    PairApproved,
    PairDecision,
    PairFiled,
    PairMoved,
    PairParked,
    PairRemoved,
    PairReplaced,
    PairReviewRequested,
    PairSkipped,
)
from intern.core.ids import QAId, TopicName
from intern.core.log import get_logger
from intern.learning import classifying, prompts
from intern.learning.attempts import AttemptCounter, AttemptsExhausted, count_attempt
from intern.models.prompt import Model
from intern.stores.archive import Archive
from intern.stores.block_format import format_topic_block
from intern.stores.qa_ids import qa_id_time, qa_id_times
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeStore

_log = get_logger(__name__)
Choose = Callable[[captures.CapturedPair], Awaitable[flow.TopicChoice | flow.SkipChoice]]
# A topic that the model could not split is not tried again until it has grown by this factor.
_GROWTH = 1.25
WITHDRAWN = "its question or its answer was withdrawn"
_ENDED = (PairFiled, PairMoved, PairSkipped)
ADDS_NOTHING = "it adds nothing but thanks or the like"
OnTopicListed = Callable[[KnowledgeChange, TopicName], None]
"""Lists a topic in the index, if it is new."""


@dataclass(kw_only=True, eq=False)
class TopicFiler:
    """Files pairs in topics, one at a time: the caller waits for each `file`."""

    model: Model
    knowledge: KnowledgeStore
    archive: Archive
    clock: Clock
    options: prompts.LearningOptions = field(default_factory=prompts.LearningOptions)
    waits_for_newest: bool = True
    """Only the newest pair of a conversation is filed; older ones cost no call."""
    listed: OnTopicListed = field(default=lambda _change, _topic: None)
    says_nothing: Callable[[str], bool] = lambda _text: False
    """Whether a message only gives thanks or the like. A pair that adds nothing else costs no call."""

    # Topics that the model could not split, with their lengths.
    _whole: dict[TopicName, int] = field(default_factory=dict[TopicName, int], init=False)

    async def choose_topic(self, pair: captures.CapturedPair, choose: Choose) -> classifying.Choice:
        """Return the conversation's present topic, or the one that a reviewer chose; else the result of `choose`.

        `choose` gets the pair without withdrawn messages. It is not called if nothing is left of the pair, if the pair
        adds nothing, waits for review or has a final decision. Raises ModelUnavailableError while the model is away.
        """
        known = await run_sync(self.knowledge.find_conversation_topic, pair.conversation_id)
        if known is not None:
            return flow.TopicChoice(name=known)
        decided = self.knowledge.last_decision(pair.qa_id)
        ended = decided is not None and not isinstance(decided, PairParked | PairApproved)
        waits = self.options.review or self._find_newer_pair(pair) is not None
        if ended or (decided is None and (waits or await run_sync(self._adds_nothing, pair))):
            return flow.SkipChoice(reason="it is not to be filed now")
        left = self.strip_withdrawn(pair)
        if left is None:
            return flow.SkipChoice(reason=WITHDRAWN)
        if isinstance(decided, PairApproved) and decided.topic is not None:
            return flow.TopicChoice(name=decided.topic)
        try:
            return await choose(left)
        except classifying.OF_ONE_PAIR as error:
            _log.warning("llm_classification_failed", qa_id=pair.qa_id, reason=str(error))
            return classifying.describe_failure(prompts.CLASSIFY.name, error)

    def strip_withdrawn(self, pair: captures.CapturedPair) -> captures.CapturedPair | None:
        """Return the pair without withdrawn messages; None once its question or its answer was withdrawn."""
        return prompts.strip_withdrawn(pair, self.knowledge.is_withdrawn)

    async def file(self, filing: flow.FilingDecision) -> PairDecision:
        """Carry out a filing, and return the logged decision.

        A conversation keeps its topic, even if the filing names another one: a fuller capture replaces the older block
        there. If the integrating model's reply makes no sense, the pair is parked. Withdrawn messages are left out; a
        pair without a question or an answer is removed. A pair that was decided before is left alone, unless it was
        parked or approved. With review, a new pair waits for it, without a model call. Raises ModelUnavailableError
        while the model is away, and KnowledgeError if the disk fails; the pair is then undecided.
        """
        pair, choice = filing.pair, filing.choice
        change = self.knowledge.change
        decided = await change(partial(self._decide_without_model, pair))
        if decided is not None:
            return decided
        known = await run_sync(self.knowledge.find_conversation_topic, pair.conversation_id)
        topic = known or (choice.name if isinstance(choice, flow.TopicChoice) else None)
        if topic is None or isinstance(choice, AttemptsExhausted):
            return await change(partial(self._set_aside, pair, choice))
        stored = await run_sync(self.knowledge.read_topic, topic)
        blocks = [block for block in stored if block.conversation_id != pair.conversation_id]
        try:
            verdict = await self._integrate(topic, blocks, self.strip_withdrawn(pair) or pair)
        except classifying.OF_ONE_PAIR as error:
            _log.warning("llm_integration_failed", qa_id=pair.qa_id, topic_name=topic, reason=str(error))
            return await change(
                partial(self._set_aside, pair, classifying.describe_failure(prompts.INTEGRATE.name, error))
            )
        if verdict.skip and known is None:
            return await change(
                partial(self._set_aside, pair, flow.SkipChoice(reason=f"{topic} says all of it already"))
            )
        removable = self._limit_removals(verdict.remove_ids, topic, blocks, pair)
        return await change(partial(self._store_block, pair, topic, removable))

    async def split_outgrown(self, topic: TopicName) -> TopicName | None:
        """Let the model split a topic that is too long, and return the new topic; None without one.

        After a senseless reply, the topic is not tried again before it has grown by a quarter. The caller must not let
        pairs be filed in this topic meanwhile. Raises as `file` does.
        """
        blocks = await run_sync(self._read_outgrown, topic)
        if not blocks:
            return None
        try:
            split = await classifying.choose_split(self.model, topic, blocks, self.options)
        except classifying.OF_ONE_PAIR as error:
            _log.warning("topic_split_failed", topic_name=topic, blocks=len(blocks), reason=str(error))
            self._whole[topic] = sum(len(format_topic_block(block)) for block in blocks)
            return None
        return await self.knowledge.change(partial(self._move_blocks, topic, split))

    async def _integrate(
        self, topic: TopicName, blocks: Sequence[captures.TopicBlock], pair: captures.CapturedPair
    ) -> prompts.IntegrateOut:
        if not await run_sync(prompts.is_alike, blocks, pair):
            return prompts.IntegrateOut(skip=False, remove_ids=())
        bounds = self.options
        shown = await run_sync(prompts.render_blocks, blocks, prompts.join_texts(pair.turns), bounds.max_blocks_chars)
        material = prompts.render_block(prompts.build_block(pair), bounds.max_pair_chars)
        given = prompts.IntegrateIn(topic=topic, blocks=shown, pair=material)
        with bound_contextvars(qa_id=pair.qa_id):
            verdict = await self.model.ask(prompts.INTEGRATE, given)
        if verdict.contradiction:
            raise errors.ModelReplyError(f"integrate contradicts itself: {verdict.contradiction}")
        return verdict

    def _limit_removals(
        self, asked: Sequence[str], topic: TopicName, blocks: Sequence[captures.TopicBlock], pair: captures.CapturedPair
    ) -> tuple[QAId, ...]:
        """Return the named blocks that may be removed: of this topic, not newer than the pair, and a few at most."""
        older = {
            qa_id_time(block.qa_id): block.qa_id for block in blocks if prompts.answer_time(block) <= pair.answered_at
        }
        wanted = tuple(dict.fromkeys(older[time] for time in qa_id_times(asked) if time in older))
        removable = wanted[: self.options.max_removals]
        if len(removable) < len(set(asked)):
            counts = {"asked": len(set(asked)), "removed": len(removable)}
            _log.warning("topic_removals_refused", qa_id=pair.qa_id, topic_name=topic, **counts)
        return removable

    def _find_newer_pair(self, pair: captures.CapturedPair) -> QAId | None:
        """Return the newest pair of the same conversation; None if it is this one."""
        newest = self.archive.latest_capture_id(pair.conversation_id) if self.waits_for_newest else None
        return newest if newest is not None and qa_id_time(newest) > qa_id_time(pair.qa_id) else None

    def _adds_nothing(self, pair: captures.CapturedPair) -> bool:
        """Whether a pair only adds thanks and the like to an older version that was filed or skipped. Blocks."""
        before = self.archive.get(pair.replaces) if pair.replaces else None
        if before is None or not isinstance(self.knowledge.last_decision(before.qa_id), _ENDED):
            return False
        old, new = (dict(zip(each.message_ids, each.turns, strict=False)) for each in (before, pair))
        added = new.keys() - old.keys()
        return old.items() <= new.items() and all(self.says_nothing(new[each].text) for each in added)

    def _decide_without_model(self, pair: captures.CapturedPair, change: KnowledgeChange) -> PairDecision | None:
        """Return the decision if there is nothing to ask a model; else None."""
        decided = self.knowledge.last_decision(pair.qa_id)
        if decided is not None and not isinstance(decided, PairParked | PairApproved):
            return decided
        places = change.find_conversation_pairs(pair.conversation_id)
        newer = [qa_id for _, qa_id in places if qa_id_time(qa_id) > qa_id_time(pair.qa_id)]
        by, reason = (newer[-1], "a fuller capture stands already") if newer else (None, "a fuller capture follows")
        if by is None and decided is None and not self.options.review:
            by = self._find_newer_pair(pair)
        if by is not None:
            return _log_decision(change, PairReplaced(qa_id=pair.qa_id, by=by, at=self.clock.now(), reason=reason))
        if self.strip_withdrawn(pair) is None:
            return self._remove_pair(pair, change)
        if decided is None and self._adds_nothing(pair):
            return self._set_aside(pair, flow.SkipChoice(reason=ADDS_NOTHING), change)
        if decided is None and self.options.review:
            # The older blocks stay until this one is approved.
            return _log_decision(change, PairReviewRequested(qa_id=pair.qa_id, at=self.clock.now()))
        return None

    def _store_block(
        self, pair: captures.CapturedPair, topic: TopicName, removable: Collection[QAId], change: KnowledgeChange
    ) -> PairDecision:
        left = self.strip_withdrawn(pair)  # again: messages may have been withdrawn during the model call
        if left is None:
            return self._remove_pair(pair, change)
        self._replace_older(pair, change)
        removed = tuple(qa_id for _, qa_id in change.remove_blocks(removable))
        change.file_blocks(topic, prompts.build_block(left))
        self.listed(change, topic)
        change.log_after_commit(_log, "topic_file_updated", topic_name=topic, qa_id=pair.qa_id, removed=list(removed))
        return _log_decision(change, PairFiled(qa_id=pair.qa_id, topic=topic, removed=removed, at=self.clock.now()))

    def _read_outgrown(self, topic: TopicName) -> tuple[captures.TopicBlock, ...]:
        """Return the blocks of a topic that is too long; none for other topics."""
        try:
            length = len(self.knowledge.read_text(topic))
        except errors.SourceError:  # all its blocks were withdrawn meanwhile
            return ()
        if length <= self.options.max_topic_chars or length < _GROWTH * self._whole.get(topic, 0):
            return ()
        blocks = self.knowledge.read_topic(topic)
        return blocks if len(blocks) > 1 else ()

    def _move_blocks(
        self, topic: TopicName, split: classifying.TopicSplit, change: KnowledgeChange
    ) -> TopicName | None:
        leaving = set(qa_id_times(split.moves))
        blocks = change.read_topic(topic)  # again: messages may have been withdrawn during the model call
        moving = [block for block in blocks if qa_id_time(block.qa_id) in leaving]
        if not moving or len(moving) == len(blocks):
            return None
        name = classifying.free_name(split.name, change.topic_names())
        change.file_blocks(name, *moving)
        change.decide(*(PairMoved(qa_id=block.qa_id, topic=name, at=self.clock.now()) for block in moving))
        self.listed(change, name)
        self._whole.pop(topic, None)
        stayed = len(blocks) - len(moving)
        change.log_after_commit(
            _log, "topic_split", topic_name=topic, new_topic_name=name, moved=len(moving), stayed=stayed
        )
        return name

    def _replace_older(self, pair: captures.CapturedPair, change: KnowledgeChange) -> None:
        """Take the older versions of the pair out of their topics, and log that they were replaced."""
        places = change.find_conversation_pairs(pair.conversation_id)
        older = [qa_id for _, qa_id in places if qa_id_time(qa_id) < qa_id_time(pair.qa_id)]
        change.remove_blocks(older)
        change.decide(*(PairReplaced(qa_id=qa_id, by=pair.qa_id, at=self.clock.now()) for qa_id in older))

    def _remove_pair(self, pair: captures.CapturedPair, change: KnowledgeChange) -> PairDecision:
        """Remove the pair and its older versions, because nothing is left of it."""
        self._replace_older(pair, change)
        change.log_after_commit(_log, "qa_pair_removed", qa_id=pair.qa_id)
        return _log_decision(change, PairRemoved(qa_id=pair.qa_id, reason=WITHDRAWN, at=self.clock.now()))

    def _set_aside(
        self, pair: captures.CapturedPair, choice: classifying.Choice, change: KnowledgeChange
    ) -> PairDecision:
        assert not isinstance(choice, flow.TopicChoice)
        end = PairSkipped if isinstance(choice, flow.SkipChoice) else PairParked
        return _log_decision(change, end(qa_id=pair.qa_id, reason=choice.reason, at=self.clock.now()))


def _log_decision(change: KnowledgeChange, decision: PairDecision) -> PairDecision:
    change.decide(decision)
    return decision


# Pairs read from the archive at a time: starting a thread for each would cost more than reading it.
_READ_AHEAD = 32


class DecisionCounts(Struct, frozen=True, kw_only=True):
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
    def count_decisions(cls, decisions: Iterable[PairDecision]) -> DecisionCounts:
        """Count each decision once."""
        return cls(**Counter(str(type(decision).__struct_config__.tag) for decision in decisions))


async def attempt_filing(
    pair: captures.CapturedPair, *, filer: TopicFiler, choose: Choose, attempts: AttemptCounter
) -> PairDecision:
    """Classify and file one pair, as a counted attempt. Raises as `TopicFiler.file` does, without counting then."""
    try:
        choice = await count_attempt(attempts, pair.qa_id) or await filer.choose_topic(pair, choose)
        decision = await filer.file(flow.FilingDecision(pair=pair, choice=choice))
    except (errors.InternError, get_cancelled_exc_class()):
        with CancelScope(shield=True), suppress(errors.KnowledgeError):  # the first error says more
            await attempts.clear(pair.qa_id)
        raise
    await attempts.end(decision, again=not isinstance(choice, AttemptsExhausted))
    return decision


OnFiled = Callable[[captures.CapturedPair, PairDecision], Awaitable[None]]


async def file_pairs(
    pairs: Iterator[captures.CapturedPair],
    *,
    filer: TopicFiler,
    choose: Choose,
    attempts: AttemptCounter,
    filed: OnFiled | None = None,
) -> DecisionCounts:
    """Classify and file the pairs, in order.

    Each is a counted attempt, and `filed` is called with each decision. A pair with senseless replies is parked, and
    the next one follows. Raises ModelUnavailableError while the model is away, and KnowledgeError if the disk fails.
    Pairs filed before that stay filed.
    """
    decisions: list[PairDecision] = []
    while ahead := await run_sync(lambda: list(islice(pairs, _READ_AHEAD))):
        for pair in ahead:
            decision = await attempt_filing(pair, filer=filer, choose=choose, attempts=attempts)
            decisions.append(decision)
            if filed is not None:
                await filed(pair, decision)
    return DecisionCounts.count_decisions(decisions)
