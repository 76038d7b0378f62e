"""Filing: a captured pair into its topic, and the decision about it. The only code that changes topics.

The topic file is renamed into place first, then the decision is written, then the cursor. Killed anywhere in between,
the next run finds the block in its topic, asks no model, and writes what is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import anyio.to_thread
from msgspec import Struct

from intern.domain import (
    CapturedPair,
    Decision,
    Failed,
    Filed,
    Filing,
    Parked,
    QAId,
    Replaced,
    Skip,
    Skipped,
    Topic,
    TopicBlock,
    TopicName,
)
from intern.errors import ModelError, ModelUnavailableError
from intern.knowledge.blocks import time_of
from intern.knowledge.decisions import write_state
from intern.knowledge.files import FileLayer
from intern.knowledge.topics import TopicLibrary
from intern.learning.material import age_of, block_material, block_of, blocks_material, text_of
from intern.learning.options import LearningOptions
from intern.learning.prompts import INTEGRATE, IntegrateIn, IntegrateOut
from intern.llm.prompt import Model
from intern.observe.clock import Clock
from intern.observe.log import get_logger

_log = get_logger(__name__)

T = TypeVar("T")
Choice = Topic | Skip | Failed

# Pairs read from the archive at a time: a thread each for one would cost more than the reading.
_READ_AHEAD = 32


class Decisions(Protocol):
    """Where decisions are written down (see `intern.knowledge.decisions`)."""

    def append(self, decision: Decision) -> None:
        """Write a decision down, durably."""
        ...

    def of(self, qa_id: QAId) -> Decision | None:
        """The last decision about a pair."""
        ...

    def cursor(self) -> QAId | None:
        """The newest pair that was decided."""
        ...


class PairsAfter(Protocol):
    """What can be read on from a position (see `intern.knowledge.archive`)."""

    def after(self, qa_id: QAId | None) -> Iterator[CapturedPair]:
        """The pairs archived later, oldest first; None: all."""
        ...


class Tally(Struct, frozen=True, kw_only=True):
    """How many pairs came to which end."""

    filed: int = 0
    skipped: int = 0
    parked: int = 0
    replaced: int = 0

    @classmethod
    def of(cls, decisions: Iterable[Decision]) -> Tally:
        """Count each decision once."""
        names = [type(decision).__name__.lower() for decision in decisions]
        return cls(**{name: names.count(name) for name in set(names)})


class _Standing(NamedTuple):
    """What is on disk about a pair and its conversation before it is filed."""

    settled: Decision | None
    """There is nothing left to do."""
    topic: TopicName | None
    """Where the conversation stands already."""
    older: tuple[tuple[TopicName, QAId], ...]
    """The blocks that this pair is a fuller version of."""


class Filer:
    """Puts pairs into topics, one at a time: its caller waits for one `file` before it begins the next."""

    def __init__(
        self,
        *,
        model: Model,
        topics: TopicLibrary,
        decisions: Decisions,
        state_path: Path | None,
        clock: Clock,
        options: LearningOptions | None = None,
        files: FileLayer | None = None,
    ) -> None:
        """`state_path` is where the cursor goes (`state.json`); with None, no cursor is kept."""
        self._model = model
        self._topics = topics
        self._decisions = decisions
        self._state_path = state_path
        self._clock = clock
        self._options = options or LearningOptions()
        self._files = files
        # The classifier asks what is known while the integrator writes.
        self._guard = threading.Lock()

    async def known_topic(self, pair: CapturedPair) -> TopicName | None:
        """The topic that the pair, or an older capture of its conversation, stands in: no model need be asked."""
        return await self._on_disk(self._known_topic, pair)

    async def file(self, filing: Filing) -> Decision:
        """Carry out a filing, and return the decision that was written down about the pair.

        A conversation keeps its topic, whatever the filing says: a fuller capture takes its older block's place there.
        Where the integrating model's reply makes no sense, the pair is parked. A pair that was decided before (parked
        aside) is left as it is. Raises ModelUnavailableError while the model is away, and KnowledgeError where the
        disk fails; the pair is then undecided.
        """
        pair, choice = filing.pair, filing.choice
        standing = await self._on_disk(self._look_up, pair)
        if standing.settled is not None:
            return standing.settled
        topic = standing.topic or (choice.name if isinstance(choice, Topic) else None)
        if topic is None:
            return await self._on_disk(self._set_aside, pair, choice)
        blocks = await self._on_disk(self._others, topic, pair)
        try:
            verdict = await self._integrate(topic, blocks, pair)
        except ModelError as error:
            _log.warning("llm_integration_failed", qa_id=pair.qa_id, topic_name=topic, reason=str(error))
            if isinstance(error, ModelUnavailableError):
                raise
            return await self._on_disk(self._set_aside, pair, Failed(reason=str(error)))
        if verdict.skip and not standing.older:
            return await self._on_disk(self._set_aside, pair, Skip(reason=f"{topic} says all of it already"))
        removable = self._removable(verdict.remove_ids, topic, blocks, pair)
        return await self._on_disk(self._put, pair, topic, standing.older, removable)

    async def _integrate(self, topic: TopicName, blocks: Sequence[TopicBlock], pair: CapturedPair) -> IntegrateOut:
        if not blocks:
            return IntegrateOut(skip=False, remove_ids=())
        bounds = self._options
        shown = await anyio.to_thread.run_sync(blocks_material, blocks, text_of(pair.turns), bounds.max_topic_chars)
        given = IntegrateIn(topic=topic, blocks=shown, pair=block_material(block_of(pair), bounds.max_pair_chars))
        return await self._model.ask(INTEGRATE, given)

    def _removable(
        self, asked: Sequence[str], topic: TopicName, blocks: Sequence[TopicBlock], pair: CapturedPair
    ) -> tuple[QAId, ...]:
        """Of the ids that a model named: blocks of this topic, none newer than the pair, and not many at once."""
        older = {time_of(block.qa_id): block.qa_id for block in blocks if age_of(block) <= pair.answered_at}
        wanted = dict.fromkeys(older[time] for time in _times(asked) if time in older)
        removable = tuple(wanted)[: self._options.max_removals]
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
        # Never abandoned: a cancelled caller waits until topic and decision are both written.
        return await anyio.to_thread.run_sync(partial(self._guarded, work, *args))

    def _guarded(self, work: Callable[..., T], *args: object) -> T:
        with self._guard:
            return work(*args)

    def _known_topic(self, pair: CapturedPair) -> TopicName | None:
        places = self._topics.of_conversation(pair.conversation_id)
        return self._topics.topic_of(pair.qa_id) or (places[-1][0] if places else None)

    def _look_up(self, pair: CapturedPair) -> _Standing:
        decided = self._decisions.of(pair.qa_id)
        if decided is not None and not isinstance(decided, Parked):
            return _Standing(decided, None, ())
        own = self._topics.topic_of(pair.qa_id)
        places = self._topics.of_conversation(pair.conversation_id)
        older = tuple(place for place in places if time_of(place[1]) < time_of(pair.qa_id))
        if own is not None:
            return _Standing(self._finish(pair, own, older), own, ())
        newer = [qa_id for _, qa_id in places if time_of(qa_id) > time_of(pair.qa_id)]
        if newer:
            replaced = Replaced(
                qa_id=pair.qa_id, by=newer[-1], at=self._clock.now(), reason="a fuller capture stands already"
            )
            return _Standing(self._settle(replaced), None, ())
        return _Standing(None, older[-1][0] if older else None, older)

    def _others(self, topic: TopicName, pair: CapturedPair) -> tuple[TopicBlock, ...]:
        """The blocks of a topic, but for those of the pair's own conversation."""
        return tuple(block for block in self._topics.read(topic) if block.conversation_id != pair.conversation_id)

    def _put(
        self,
        pair: CapturedPair,
        topic: TopicName,
        older: Collection[tuple[TopicName, QAId]],
        removable: Collection[QAId],
    ) -> Decision:
        gone = self._topics.update(
            topic, block_of(pair), [*(qa_id for name, qa_id in older if name == topic), *removable]
        )
        removed = tuple(qa_id for qa_id in gone if qa_id in set(removable))
        self._retire(pair, topic, older)
        _log.info("topic_file_updated", topic_name=topic, qa_id=pair.qa_id, removed=list(removed))
        return self._settle(Filed(qa_id=pair.qa_id, topic=topic, removed=removed, at=self._clock.now()))

    def _finish(self, pair: CapturedPair, topic: TopicName, older: Collection[tuple[TopicName, QAId]]) -> Decision:
        """The block was written, and then we were killed: what is left is to say so."""
        replaced = pair.replaces
        if replaced and isinstance(self._decisions.of(replaced), Filed) and not self._topics.topic_of(replaced):
            older = [*older, (topic, replaced)]
        self._retire(pair, topic, older)
        reason = "it stood in its topic already"
        return self._settle(Filed(qa_id=pair.qa_id, topic=topic, at=self._clock.now(), reason=reason))

    def _retire(self, pair: CapturedPair, topic: TopicName, older: Collection[tuple[TopicName, QAId]]) -> None:
        """Take the older blocks out of whatever topics they are still in, and write down what replaced them."""
        for name, qa_id in older:
            if name != topic or self._topics.topic_of(qa_id) == name:
                self._topics.update(name, None, [qa_id])
            self._decisions.append(Replaced(qa_id=qa_id, by=pair.qa_id, at=self._clock.now()))

    def _set_aside(self, pair: CapturedPair, choice: Choice) -> Decision:
        assert not isinstance(choice, Topic)
        end = Skipped if isinstance(choice, Skip) else Parked
        return self._settle(end(qa_id=pair.qa_id, reason=choice.reason, at=self._clock.now()))

    def _settle(self, decision: Decision) -> Decision:
        self._decisions.append(decision)
        if self._state_path is not None:
            write_state(self._state_path, self._decisions.cursor(), self._files)
        return decision


async def choice_for(
    pair: CapturedPair, *, filer: Filer, choose: Callable[[CapturedPair], Awaitable[Topic | Skip]]
) -> Choice:
    """The topic that the conversation stands in already, else what `choose` says, else why it could not.

    Raises ModelUnavailableError while the model is away.
    """
    known = await filer.known_topic(pair)
    if known is not None:
        return Topic(name=known)
    try:
        return await choose(pair)
    except ModelUnavailableError:
        raise  # the next pair would fare no better
    except ModelError as error:
        return Failed(reason=str(error))


async def catch_up(
    archive: PairsAfter,
    after: QAId | None,
    *,
    filer: Filer,
    choose: Callable[[CapturedPair], Awaitable[Topic | Skip]],
    filed: Callable[[CapturedPair, Decision], Awaitable[None]] | None = None,
) -> Tally:
    """Classify and file every pair archived after a position, in order, one by one; `filed` hears of each.

    A pair whose replies make no sense is parked, and the next one goes on. Raises ModelUnavailableError while the model
    is away, and KnowledgeError where the disk fails; what is filed by then stays so.
    """
    decisions: list[Decision] = []
    pairs = archive.after(after)
    while ahead := await anyio.to_thread.run_sync(_next_of, pairs):
        for pair in ahead:
            choice = await choice_for(pair, filer=filer, choose=choose)
            decision = await filer.file(Filing(pair=pair, choice=choice))
            decisions.append(decision)
            if filed is not None:
                await filed(pair, decision)
    return Tally.of(decisions)


def _next_of(pairs: Iterator[CapturedPair]) -> list[CapturedPair]:
    return list(islice(pairs, _READ_AHEAD))


def _times(ids: Iterable[str]) -> Iterator[datetime]:
    """The times of those that are ids; a model may name anything."""
    for qa_id in ids:
        try:
            yield time_of(QAId(qa_id))
        except ValueError:
            continue
