"""The library built anew from the archive, beside the old one, and swapped in when it is whole.

Killed at any moment, either library stands: the old one until the new one says `COMPLETE`, the new one from then on.
The decisions that belong to the new one lie in its folder until they are in the log. `finish_swap`, called at start-up
before the library is opened, completes or clears away what was interrupted.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import anyio.to_thread
import msgspec
from msgspec import Struct

from intern.domain import (
    CapturedPair,
    ConversationId,
    Decision,
    Filed,
    Filing,
    IndexEntry,
    MessageId,
    PairDecision,
    Parked,
    QAId,
    Replaced,
    Skip,
    SourceId,
    Topic,
    TopicBlock,
    TopicName,
    Withdrawn,
)
from intern.errors import KnowledgeError, ModelRefusedError, ModelReplyError
from intern.knowledge.blocks import time_of
from intern.knowledge.decisions import DecisionLog, write_state
from intern.knowledge.files import FileLayer
from intern.knowledge.topics import TopicLibrary
from intern.learning.classifying import choose_topic
from intern.learning.filing import Decisions, Filer, Tally, choice_for
from intern.learning.material import IsWithdrawn
from intern.learning.options import LearningOptions
from intern.llm.prompt import Model
from intern.observe.clock import Clock
from intern.observe.log import get_logger

_log = get_logger(__name__)

COMPLETE = "COMPLETE"
"""A file of this name in `topics.next` says that it may take the old library's place."""

DRAFTED = "decisions.jsonl"
"""A file of this name in `topics.next`, later in `topics`, holds the decisions that are still to be written down."""


class DecisionBook(Decisions, Protocol):
    """Where decisions are written down, many at a time (see `intern.knowledge.decisions`)."""

    def extend(self, decisions: Iterable[Decision], /) -> None:
        """Write all of them down, durably, or none."""
        ...


class ArchivedPairs(Protocol):
    """What can be read again (see `intern.knowledge.archive`)."""

    def after(self, qa_id: QAId | None) -> Iterator[CapturedPair]:
        """The pairs archived later, oldest first; None: all."""
        ...

    def get(self, qa_id: QAId) -> CapturedPair | None:
        """The pair of that id."""
        ...

    def conversations_of(self, message_id: MessageId) -> tuple[ConversationId, ...]:
        """All conversations that a message was captured with."""
        ...


class Regenerated(Struct, frozen=True, kw_only=True):
    """What a regeneration did."""

    pairs: int
    """Pairs in the archive, older captures of the same conversations included."""
    tally: Tally
    topics: int
    parked: tuple[QAId, ...]


async def regenerate(
    model: Model,
    archive: ArchivedPairs,
    decisions: DecisionBook,
    *,
    topics_dir: Path,
    state_path: Path,
    describe: Callable[[Sequence[TopicBlock]], str],
    clock: Clock,
    options: LearningOptions | None = None,
    files: FileLayer | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Regenerated:
    """Classify and integrate every conversation again, its most complete capture, oldest answer first.

    `describe` gives the index entries that the classifier sees meanwhile. The caller keeps everybody else from filing
    until this returns; what is archived meanwhile is filed, too. What was withdrawn, be it meanwhile, is left out.
    Afterwards libraries that were open are stale, and the team index is to be refreshed.

    Raises ModelUnavailableError when the model is down, ModelRefusedError when it refuses a pair, and KnowledgeError,
    also where nothing would be left of a library that holds something; the old library then still stands. (Only where
    the log takes no more decisions, the new one does; the next `finish_swap` writes them down. So open libraries are
    stale after a KnowledgeError, too.)
    """
    layer = files or FileLayer()
    await anyio.to_thread.run_sync(finish_swap, topics_dir, decisions, layer)
    library = await anyio.to_thread.run_sync(TopicLibrary, _next(topics_dir), layer)
    rebuild = _Rebuild(model, library, decisions, describe=describe, clock=clock, options=options or LearningOptions())
    plan = await anyio.to_thread.run_sync(_planned, archive, None, decisions.is_withdrawn)
    if not plan.pairs and await anyio.to_thread.run_sync(_holds_topics, topics_dir):
        raise KnowledgeError(
            f"the archive holds no pairs, so regenerating would empty {topics_dir}; nothing was changed. "
            "Put the archive back, or move that folder away to begin without topics"
        )
    _log.info("regeneration_started", pairs=plan.pairs, conversations=len(plan.order))
    pairs = done = 0
    while plan.pairs:
        total = done + len(plan.order)
        for qa_id in plan.order:
            pair = await anyio.to_thread.run_sync(archive.get, qa_id)
            if pair is not None:
                await rebuild.add(pair)
            done += 1
            if progress is not None:
                progress(done, total)
        rebuild.draft.replaced(plan.replaced, clock.now())
        pairs += plan.pairs
        # What was captured in the meantime.
        plan = await anyio.to_thread.run_sync(_planned, archive, plan.last, decisions.is_withdrawn)
    await rebuild.filer.clear_withdrawn(archive)
    if not library.names() and await anyio.to_thread.run_sync(_holds_topics, topics_dir):
        _refuse_if_parked(rebuild.draft, topics_dir)
    await anyio.to_thread.run_sync(_swap_in, topics_dir, rebuild.draft, decisions, state_path, layer)
    taken = rebuild.draft.taken.values()
    result = Regenerated(
        pairs=pairs,
        tally=Tally.of(taken),
        topics=len(library.names()),
        parked=tuple(decision.qa_id for decision in taken if isinstance(decision, Parked)),
    )
    _log.info("regeneration_completed", pairs=pairs, topics=result.topics, **msgspec.structs.asdict(result.tally))
    return result


def finish_swap(topics_dir: Path, decisions: DecisionBook | None = None, files: FileLayer | None = None) -> bool:
    """Complete the swap of a regeneration that was killed, or clear away what it had begun; say whether one was due.

    To be called before the library is opened. The decisions that belong to the new library go into `decisions`;
    without, they wait beside the topics for the next call. Raises KnowledgeError where the disk refuses; nothing is
    lost then.
    """
    layer = files or FileLayer()
    upcoming, previous = _next(topics_dir), topics_dir.with_name(f"{topics_dir.name}.prev")
    try:
        due = (upcoming / COMPLETE).exists()
        if due:
            if topics_dir.exists() and any(topics_dir.iterdir()):
                _clear(previous)
                layer.rename(topics_dir, previous)
            try:
                layer.rename(upcoming, topics_dir)
            except OSError:
                with suppress(OSError):  # the first one says more
                    layer.rename(previous, topics_dir)
                raise
            _sync(topics_dir.parent, layer)
        else:
            _clear(upcoming)
        (topics_dir / COMPLETE).unlink(missing_ok=True)
    except OSError as error:
        raise KnowledgeError(
            f"the regenerated topics in {upcoming} could not take the place of {topics_dir} ({error.strerror}); "
            "check the permissions there, then start again"
        ) from error
    if decisions is not None:
        _write_down(topics_dir / DRAFTED, decisions, layer)
    return due


class _Plan(Struct, frozen=True):
    """Which pairs to process, by dedupe and age."""

    pairs: int
    order: tuple[QAId, ...]
    replaced: tuple[tuple[QAId, QAId], ...]
    """Older captures, each with the one that stands for its conversation."""
    last: QAId | None


class _Draft:
    """Decisions that count only if the new library comes to stand. What is withdrawn, is so for good and at once."""

    def __init__(self, decisions: Decisions) -> None:
        self.taken: dict[datetime, PairDecision] = {}
        """The last one for each pair, in the order in which they were taken."""
        self._decisions = decisions

    def append(self, decision: Decision) -> None:
        if isinstance(decision, Withdrawn):
            self._decisions.append(decision)
            return
        self.taken.pop(time_of(decision.qa_id), None)
        self.taken[time_of(decision.qa_id)] = decision

    def of(self, qa_id: QAId) -> PairDecision | None:
        return self.taken.get(time_of(qa_id))

    def all(self) -> Iterator[Decision]:
        return iter(tuple(self.taken.values()))

    def is_withdrawn(self, message_id: MessageId) -> bool:
        return self._decisions.is_withdrawn(message_id)

    def withdrawn(self, since: int = 0) -> Sequence[MessageId]:
        return self._decisions.withdrawn(since)

    def cursor(self) -> QAId | None:
        return self.taken[max(self.taken)].qa_id if self.taken else None

    def replaced(self, captures: Sequence[tuple[QAId, QAId]], at: datetime) -> None:
        for qa_id, by in captures:
            self.append(Replaced(qa_id=qa_id, by=by, at=at))


class _Rebuild:
    """The new library as it grows."""

    def __init__(
        self,
        model: Model,
        library: TopicLibrary,
        decisions: Decisions,
        *,
        describe: Callable[[Sequence[TopicBlock]], str],
        clock: Clock,
        options: LearningOptions,
    ) -> None:
        self.draft = _Draft(decisions)
        self._model = model
        self._library = library
        self.filer = Filer(
            model=model,
            topics=library,
            decisions=self.draft,
            state_path=None,
            clock=clock,
            options=options,
            # Parked here, a pair would lose the place that it has. So a refusal ends it all.
            parks=(ModelReplyError,),
        )
        self._describe = describe
        self._options = options
        self._entries: dict[TopicName, IndexEntry] = {}

    async def add(self, pair: CapturedPair) -> None:
        try:
            choice = await choice_for(pair, filer=self.filer, choose=self._choose)
            decision = await self.filer.file(Filing(pair=pair, choice=choice))
        except ModelRefusedError as error:
            raise ModelRefusedError(f"the topics stay as they were, for {pair.qa_id} was refused: {error}") from error
        if isinstance(decision, Filed):
            await anyio.to_thread.run_sync(self._list, decision.topic)

    async def _choose(self, pair: CapturedPair) -> Topic | Skip:
        return await choose_topic(self._model, pair, tuple(self._entries.values()), self._options)

    def _list(self, topic: TopicName) -> None:
        description = self._describe(self._library.read(topic))
        self._entries[topic] = IndexEntry(SourceId(f"team:{topic}.txt"), description)


class _Version(NamedTuple):
    """A capture of a conversation; the greatest is the one to keep."""

    messages: int
    """Less those that were withdrawn since."""
    archived: datetime
    answered: datetime
    qa_id: QAId


def _planned(archive: ArchivedPairs, after: QAId | None, is_withdrawn: IsWithdrawn) -> _Plan:
    versions: defaultdict[ConversationId, list[_Version]] = defaultdict(list)
    pairs, last = 0, after
    for pair in archive.after(after):
        pairs, last = pairs + 1, pair.qa_id
        messages = len(pair.message_ids) - sum(map(is_withdrawn, pair.message_ids))
        version = _Version(messages, pair.timestamp, pair.answered_at, pair.qa_id)
        versions[pair.conversation_id].append(version)
    kept = sorted(map(max, versions.values()), key=lambda version: (version.answered, version.archived))
    replaced = [(version.qa_id, max(group).qa_id) for group in versions.values() for version in sorted(group)[:-1]]
    return _Plan(pairs, tuple(version.qa_id for version in kept), tuple(replaced), last)


def _swap_in(topics_dir: Path, draft: _Draft, decisions: DecisionBook, state_path: Path, layer: FileLayer) -> None:
    # What counts as filed stands in a topic, whenever we are killed: the log hears of the new library last.
    DecisionLog(_next(topics_dir) / DRAFTED, layer).extend(draft.taken.values())
    layer.write_atomically(_next(topics_dir) / COMPLETE, b"")
    try:
        finish_swap(topics_dir, decisions, layer)
    except KnowledgeError:
        if topics_dir.exists():
            # Where the old library stays, it goes on growing: no later start may put this one in its place.
            with suppress(OSError):
                (_next(topics_dir) / COMPLETE).unlink(missing_ok=True)
        raise
    write_state(state_path, decisions.cursor(), layer)


def _write_down(drafted: Path, decisions: DecisionBook, layer: FileLayer) -> None:
    """Move drafted decisions into the log; what it holds already, or has newer, it keeps."""
    if drafted.exists():
        decisions.extend([each for each in DecisionLog(drafted, layer).all() if _is_news(each, decisions)])
        layer.remove(drafted)


def _is_news(drafted: Decision, decisions: DecisionBook) -> bool:
    if isinstance(drafted, Withdrawn):
        return False
    known = decisions.of(drafted.qa_id)
    return known is None or (known != drafted and known.at <= drafted.at)


def _holds_topics(topics_dir: Path) -> bool:
    return bool(TopicLibrary(topics_dir).names())


def _refuse_if_parked(draft: _Draft, topics_dir: Path) -> None:
    parked = [decision for decision in draft.taken.values() if isinstance(decision, Parked)]
    if parked:
        raise KnowledgeError(
            f"no pair could be filed, so regenerating would empty {topics_dir}; nothing was changed. "
            f"See to the model, then regenerate again. {len(parked)} pairs failed, the last one: {parked[-1].reason}"
        )


def _next(topics_dir: Path) -> Path:
    return topics_dir.with_name(f"{topics_dir.name}.next")


def _clear(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync(folder: Path, layer: FileLayer) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        layer.fsync(fd)
    finally:
        os.close(fd)
