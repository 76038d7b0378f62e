"""A library built anew, an epoch of pairs at a time, much of it side by side, and the same however much.

The pairs of an epoch are classified against the index as it stood at the epoch's start. Those that would open a new
topic are classified again, in order, once an earlier one has opened one: or two pairs would open the same topic under
two names. Then each topic takes its pairs in order, beside all others; a conversation has one pair, so they never meet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from anyio import create_task_group
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.core.errors import InternError
from intern.core.flow import Filing, Skip, Topic
from intern.core.ids import QAId, SourceId, TopicName
from intern.core.records import CapturedPair, IndexEntry, Parked, TopicBlock
from intern.core.text.untrusted import whole
from intern.learning.classifying import choose_topic
from intern.learning.draft import Chosen, Classified, Draft, Journal
from intern.learning.filing import Choice, Filer, choice_for
from intern.learning.material import block_of
from intern.learning.options import LearningOptions
from intern.models.prompt import Model
from intern.stores.topics import TopicLibrary

T = TypeVar("T")
Describe = Callable[[Sequence[TopicBlock]], str]


class PairById(Protocol):
    """Finds a pair (see `intern.stores.archive`)."""

    def get(self, qa_id: QAId) -> CapturedPair | None:
        """The pair of that id."""
        ...


class Parts(NamedTuple):
    """What a library is built from and with."""

    model: Model
    archive: PairById
    library: TopicLibrary
    journal: Journal
    draft: Draft
    filer: Filer
    describe: Describe
    """Gives the index entries that the classifier sees meanwhile."""
    options: LearningOptions
    concurrency: int


class Building:
    """The new library as it grows."""

    def __init__(self, parts: Parts, tell: Callable[[], None]) -> None:
        """`tell` is called after each step. Blocks."""
        self._parts = parts
        self._tell = tell
        self._entries: dict[TopicName, IndexEntry] = {}
        # Those that may be too long. A kill may have come before the last ones were split.
        self._grown = set(parts.library.names())
        self._list(self._grown)
        epochs = parts.journal.epochs[: parts.journal.finished + 1]
        decided = [decision for epoch in epochs for qa_id in epoch if (decision := parts.draft.of(qa_id))]
        self.decided = len(decided)
        self.parked = sum(isinstance(each, Parked) for each in decided)
        self.classified = sum(map(len, epochs[: parts.journal.finished])) + len(parts.journal.first)

    async def epoch(self, number: int, qa_ids: Sequence[QAId]) -> None:
        """Decide these pairs, as far as they are not; then make sure that no topic is too long.

        Raises ModelUnavailableError and KnowledgeError; what was chosen and decided by then need not be done again.
        """
        pairs = await run_sync(self._read, qa_ids)
        choices = await self._choices(number, pairs)
        filings = [Filing(pair=pair, choice=choices[pair.qa_id]) for pair in pairs]
        await _side_by_side(self._file, _by_topic(filings), self._parts.concurrency)
        touched = {choice.name for choice in choices.values() if isinstance(choice, Topic)}
        self._grown |= touched
        await self._split_outgrown()
        await run_sync(self._list, touched)

    async def _split_outgrown(self) -> None:
        # Always the first by name, and from the beginning after each: so it matters not where a kill came in between.
        while self._grown:
            for topic in sorted(self._grown & set(self._parts.library.names())):
                new = await self._parts.filer.split_outgrown(topic)
                if new is not None:
                    self._grown |= {topic, new}
                    break
                self._grown.discard(topic)
            else:
                self._grown.clear()

    def _read(self, qa_ids: Iterable[QAId]) -> list[CapturedPair]:
        # A block that was damaged since is passed over, with a warning.
        return [pair for qa_id in qa_ids if (pair := self._parts.archive.get(qa_id)) is not None]

    def _list(self, topics: Iterable[TopicName]) -> None:
        """Describe these topics, and those that are new, as they stand."""
        library = self._parts.library
        names = library.names()
        for name in (set(topics) | set(names) - self._entries.keys()) & set(names):
            self._entries[name] = _entry(name, self._parts.describe(library.read(name)))
        # Sorted: what fits equally well goes into a prompt by its place.
        self._entries = {name: self._entries[name] for name in names}

    async def _choices(self, number: int, pairs: Sequence[CapturedPair]) -> Mapping[QAId, Choice]:
        journal = self._parts.journal
        if journal.classified <= number:
            left = [pair for pair in pairs if pair.qa_id not in journal.first]
            await _side_by_side(self._classify, left, self._parts.concurrency)
            await self._classify_again(pairs)
            await run_sync(journal.write, Classified(epoch=number))
        return {**journal.first, **journal.again}

    async def _classify(self, pair: CapturedPair) -> None:
        choice = await self._choose(pair, self._entries)
        await run_sync(self._parts.journal.write, Chosen(qa_id=pair.qa_id, choice=choice))
        self.classified += 1
        self._tell()

    async def _classify_again(self, pairs: Iterable[CapturedPair]) -> None:
        journal = self._parts.journal
        opened: defaultdict[TopicName, list[TopicBlock]] = defaultdict(list)
        for pair in pairs:
            choice = journal.first[pair.qa_id]
            if opened and isinstance(choice, Topic) and choice.name not in {**self._entries, **opened}:
                if pair.qa_id not in journal.again:
                    new = {name: _entry(name, self._parts.describe(blocks)) for name, blocks in opened.items()}
                    choice = await self._choose(pair, {**self._entries, **new})
                    await run_sync(journal.write, Chosen(qa_id=pair.qa_id, choice=choice, again=True))
                choice = journal.again[pair.qa_id]
            if isinstance(choice, Topic) and choice.name not in self._entries:
                opened[choice.name].append(block_of(self._parts.filer.left_of(pair) or pair))

    async def _choose(self, pair: CapturedPair, entries: Mapping[TopicName, IndexEntry]) -> Choice:
        async def choose(left: CapturedPair) -> Topic | Skip:
            listed = {entry.source_id: entry for entry in entries.values()}
            return await choose_topic(self._parts.model, left, listed, self._parts.options)

        choice = await choice_for(pair, filer=self._parts.filer, choose=choose)
        return choice if isinstance(choice, Topic) else replace(choice, reason=whole(choice.reason))

    async def _file(self, filings: Sequence[Filing]) -> None:
        for filing in filings:
            # A parked pair is decided, too: asking once more would cost as much, and is `intern retry`'s part.
            if self._parts.draft.of(filing.pair.qa_id) is None:
                decision = await self._parts.filer.file(filing)
                self.decided += 1
                self.parked += isinstance(decision, Parked)
                self._tell()


def _entry(name: TopicName, description: str) -> IndexEntry:
    return IndexEntry(SourceId(f"team:{name}.txt"), description)


def _by_topic(filings: Iterable[Filing]) -> list[list[Filing]]:
    """The filings of each topic, in their order; the most first, for they take longest."""
    topics: defaultdict[TopicName | None, list[Filing]] = defaultdict(list)
    for filing in filings:
        topics[filing.choice.name if isinstance(filing.choice, Topic) else None].append(filing)
    return sorted(topics.values(), key=len, reverse=True)


async def _side_by_side(work: Callable[[T], Awaitable[None]], items: Iterable[T], at_once: int) -> None:
    """Do the work for each item, in order, so many at a time. The first error ends it all, and is raised as it is."""
    failed: list[InternError] = []
    waiting = iter(items)

    async def do_next() -> None:
        try:
            for item in waiting:
                await work(item)
        except InternError as error:
            failed.append(error)
            tg.cancel_scope.cancel()

    async with create_task_group() as tg:
        for _ in range(at_once):
            tg.start_soon(do_next)
    if failed:
        raise failed[0]
