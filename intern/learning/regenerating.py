"""The library built anew from the archive, beside the old one, and swapped in when it is whole.

Killed at any moment, either library stands: the old one until the new one says `COMPLETE`, the new one from then on.
`finish_swap`, called at start-up before the library is opened, completes or clears away what was interrupted.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
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
    Parked,
    QAId,
    Replaced,
    Skip,
    SourceId,
    Topic,
    TopicBlock,
    TopicName,
)
from intern.errors import KnowledgeError
from intern.knowledge.blocks import time_of
from intern.knowledge.decisions import write_state
from intern.knowledge.files import FileLayer
from intern.knowledge.topics import TopicLibrary
from intern.learning.classifying import choose_topic
from intern.learning.filing import Decisions, Filer, Tally, choice_for
from intern.learning.options import LearningOptions
from intern.llm.prompt import Model
from intern.observe.clock import Clock
from intern.observe.log import get_logger

_log = get_logger(__name__)

COMPLETE = "COMPLETE"
"""A file of this name in `topics.next` says that it may take the old library's place."""


class ArchivedPairs(Protocol):
    """What can be read again (see `intern.knowledge.archive`)."""

    def after(self, qa_id: QAId | None) -> Iterator[CapturedPair]:
        """The pairs archived later, oldest first; None: all."""
        ...

    def get(self, qa_id: QAId) -> CapturedPair | None:
        """The pair of that id."""
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
    decisions: Decisions,
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
    until this returns; what is archived meanwhile is filed, too. Afterwards libraries that were open are stale, and
    the team index is to be refreshed. Raises ModelUnavailableError when the model is down, and KnowledgeError; the old
    library then still stands.
    """
    layer = files or FileLayer()
    await anyio.to_thread.run_sync(finish_swap, topics_dir, layer)
    library = await anyio.to_thread.run_sync(TopicLibrary, _next(topics_dir), layer)
    rebuild = _Rebuild(model, library, describe=describe, clock=clock, options=options or LearningOptions())
    plan = await anyio.to_thread.run_sync(_planned, archive, None)
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
        plan = await anyio.to_thread.run_sync(_planned, archive, plan.last)
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


def finish_swap(topics_dir: Path, files: FileLayer | None = None) -> bool:
    """Complete the swap of a regeneration that was killed, or clear away what it had begun; say whether one was due.

    To be called before the library is opened. Raises KnowledgeError where the disk refuses; nothing is lost then.
    """
    layer = files or FileLayer()
    upcoming, previous = _next(topics_dir), topics_dir.with_name(f"{topics_dir.name}.prev")
    try:
        due = (upcoming / COMPLETE).exists()
        if due:
            if topics_dir.exists() and any(topics_dir.iterdir()):
                _clear(previous)
                layer.rename(topics_dir, previous)
            layer.rename(upcoming, topics_dir)
            _sync(topics_dir.parent, layer)
        else:
            _clear(upcoming)
        (topics_dir / COMPLETE).unlink(missing_ok=True)
    except OSError as error:
        raise KnowledgeError(
            f"the regenerated topics in {upcoming} could not take the place of {topics_dir} ({error.strerror}); "
            "check the permissions there, then start again"
        ) from error
    return due


class _Plan(Struct, frozen=True):
    """Which pairs to process, by dedupe and age."""

    pairs: int
    order: tuple[QAId, ...]
    replaced: tuple[tuple[QAId, QAId], ...]
    """Older captures, each with the one that stands for its conversation."""
    last: QAId | None


class _Draft:
    """Decisions that count only if the new library comes to stand."""

    def __init__(self) -> None:
        self.taken: dict[datetime, Decision] = {}
        """The last one for each pair, in the order in which they were taken."""

    def append(self, decision: Decision) -> None:
        self.taken.pop(time_of(decision.qa_id), None)
        self.taken[time_of(decision.qa_id)] = decision

    def of(self, qa_id: QAId) -> Decision | None:
        return self.taken.get(time_of(qa_id))

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
        *,
        describe: Callable[[Sequence[TopicBlock]], str],
        clock: Clock,
        options: LearningOptions,
    ) -> None:
        self.draft = _Draft()
        self._model = model
        self._library = library
        self._filer = Filer(
            model=model, topics=library, decisions=self.draft, state_path=None, clock=clock, options=options
        )
        self._describe = describe
        self._options = options
        self._entries: dict[TopicName, IndexEntry] = {}

    async def add(self, pair: CapturedPair) -> None:
        choice = await choice_for(pair, filer=self._filer, choose=self._choose)
        decision = await self._filer.file(Filing(pair=pair, choice=choice))
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
    archived: datetime
    answered: datetime
    qa_id: QAId


def _planned(archive: ArchivedPairs, after: QAId | None) -> _Plan:
    versions: defaultdict[ConversationId, list[_Version]] = defaultdict(list)
    pairs, last = 0, after
    for pair in archive.after(after):
        pairs, last = pairs + 1, pair.qa_id
        version = _Version(len(pair.message_ids), pair.timestamp, pair.answered_at, pair.qa_id)
        versions[pair.conversation_id].append(version)
    kept = sorted(map(max, versions.values()), key=lambda version: (version.answered, version.archived))
    replaced = [(version.qa_id, max(group).qa_id) for group in versions.values() for version in sorted(group)[:-1]]
    return _Plan(pairs, tuple(version.qa_id for version in kept), tuple(replaced), last)


def _swap_in(topics_dir: Path, draft: _Draft, decisions: Decisions, state_path: Path, layer: FileLayer) -> None:
    # Decisions first. Killed before the swap, the old library still holds more than they say, which harms nobody;
    # the other way round it would hold less, and nobody would ever look for it.
    for decision in draft.taken.values():
        decisions.append(decision)
    write_state(state_path, decisions.cursor(), layer)
    layer.write_atomically(_next(topics_dir) / COMPLETE, b"")
    finish_swap(topics_dir, layer)


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
