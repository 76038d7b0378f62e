"""The library built anew from the archive, beside the old one, and swapped in when it is whole.

Killed at any moment, it goes on where it was when it is asked for again, and asks no model twice; meanwhile the old
library stands.

It is built an epoch of pairs at a time, much of it side by side, and the same however much. The pairs of an epoch are
classified against the index as it stood at the epoch's start. Those that would open a new topic are classified again,
in order, once an earlier one has opened one: or two pairs would open the same topic under two names. Then each topic
takes its pairs in order, beside all others; a conversation has one pair, so they never meet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
from anyio import create_task_group
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.core.clock import Clock
from intern.core.errors import (
    InternError,
    KnowledgeError,
    ModelAccessError,
    ModelBudgetError,
    ModelBudgetTooSmallError,
    ModelUnavailableError,
)
from intern.core.flow import Filing, Skip, Topic
from intern.core.ids import QAId, SourceId, TopicName
from intern.core.log import get_logger
from intern.core.messages import Image
from intern.core.records import (
    CapturedPair,
    Filed,
    IndexEntry,
    Moved,
    PairDecision,
    Parked,
    Removed,
    Replaced,
    Skipped,
    TopicBlock,
)
from intern.core.text.untrusted import whole
from intern.learning.attempts import Tally, choice_for
from intern.learning.classifying import Choice, choose_topic
from intern.learning.draft import (
    EPOCH,
    Chosen,
    Classified,
    Draft,
    Finished,
    Journal,
    Round,
    discard,
    finish_swap,
    in_order,
    is_held_back,
    opened,
    planned,
    swap_in,
    upcoming,
)
from intern.learning.filing import Filer
from intern.learning.material import block_of
from intern.learning.options import LearningOptions
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.usage import Meter, metered
from intern.stores.archive import Archive
from intern.stores.blocks import qa_id_of, time_of
from intern.stores.decisions import DecisionLog, write_state
from intern.stores.files import FileLayer
from intern.stores.topics import TopicLibrary

_log = get_logger(__name__)

T = TypeVar("T")
Describe = Callable[[Sequence[TopicBlock]], str]
"""Gives the index entry of a topic, as the classifier sees it meanwhile."""

CONCURRENCY = 8


class Progress(Struct, frozen=True, kw_only=True):
    """How far a regeneration came, what was done before it was stopped included."""

    classified: int
    decided: int
    total: int
    """Conversations; more than at first, where some were captured meanwhile."""
    calls: int
    """Of the model."""
    tokens: int


class Regenerated(Struct, frozen=True, kw_only=True):
    """What a regeneration did."""

    pairs: int
    """Pairs in the archive, older captures of the same conversations included."""
    tally: Tally
    topics: int
    parked: tuple[QAId, ...]
    calls: int = 0
    """Of the model, those before it was stopped and resumed included."""
    tokens: int = 0


async def regenerate(
    model: Model,
    archive: Archive,
    decisions: DecisionLog,
    *,
    topics_dir: Path,
    state_path: Path,
    describe: Describe,
    clock: Clock,
    options: LearningOptions | None = None,
    concurrency: int = CONCURRENCY,
    basis: str = "",
    awaits_review: Callable[[QAId], bool] = lambda _: False,
    files: FileLayer | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Regenerated:
    """Classify and integrate every conversation again, its most complete capture, oldest answer first.

    One that was begun before and did not come to its end goes on, if it has the same `options` and `basis` (prompts
    and whatever else decides the result), and the archive still holds what was read; else it is begun anew.

    `describe` gives the index entries that the classifier sees meanwhile. The caller keeps everybody else from filing
    until this returns; what is archived meanwhile is filed, too. What was withdrawn, be it meanwhile, is left out, and
    so is what the team has not approved or has rejected; `awaits_review` tells of pairs about which that is not
    written down yet. A pair whose replies make no sense, or that the model refuses, is parked.
    Afterwards libraries that were open are stale, and the team index is to be refreshed.

    Raises ModelUnavailableError when the model is down or the budget has no room, and KnowledgeError, also where hardly
    anything would be left of a library that holds something; the old library then still stands. (Only where the log
    takes no more decisions, the new one does; the next `finish_swap` writes them down. So open libraries are stale
    after a KnowledgeError, too.)
    """
    layer = files or FileLayer()
    # Who may be filed is settled before, by the plan.
    bounds = replace(options or LearningOptions(), review=False)
    await run_sync(finish_swap, topics_dir, decisions, layer)
    with metered() as meter:
        run = await run_sync(
            lambda: _Run(
                model=_Payable(model),
                archive=archive,
                decisions=decisions,
                topics_dir=topics_dir,
                basis=basis,
                describe=describe,
                clock=clock,
                options=bounds,
                concurrency=concurrency,
                layer=layer,
                meter=meter,
                tell=progress,
            )
        )
        _log.info("regeneration_started", decided_before=run.so_far().decided)
        try:
            await run.rounds(lambda after: planned(archive, after, decisions, awaits_review))
        except ModelUnavailableError as error:
            raise _resumable(error, run.so_far()) from error
        await run.filer.clear_withdrawn(archive)
        drafted = await run_sync(run.finished)
        await run_sync(swap_in, topics_dir, drafted, decisions, layer)
        await run_sync(write_state, state_path, decisions.cursor(), layer)
        result = run.result(drafted)
    _log.info("regeneration_completed", pairs=result.pairs, topics=result.topics, calls=result.calls)
    return result


class _Payable:
    """The model; a call that fits into no day's budget ends the regeneration.

    If it parked its pair, a library without most of its biggest topics would take the place of the one that stands.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        try:
            return await self._model.ask(prompt, given, images=images)
        except ModelBudgetTooSmallError as error:
            raise ModelBudgetError(str(error)) from error


@dataclass(kw_only=True)
class _Run:
    """A regeneration at work, new or resumed: the new library as it grows."""

    model: Model
    archive: Archive
    decisions: DecisionLog
    topics_dir: Path
    basis: str
    describe: Describe
    clock: Clock
    options: LearningOptions
    concurrency: int
    layer: FileLayer
    meter: Meter
    tell: Callable[[Progress], None] | None
    """Called after each step."""

    def __post_init__(self) -> None:
        """Blocks."""
        self._journal = opened(
            self.topics_dir, self.archive, basis=fingerprint(self.basis, self.options), files=self.layer
        )
        self._library = TopicLibrary(upcoming(self.topics_dir), self.layer)
        self._draft = Draft(upcoming(self.topics_dir), self.decisions, self.layer)
        self.filer = Filer(
            model=self.model,
            topics=self._library,
            decisions=self._draft,
            state_path=None,
            clock=self.clock,
            options=self.options,
        )
        self.filer.mend()
        self._calls_before, self._tokens_before = self._journal.calls, self._journal.tokens
        self._replaces_topics = bool(TopicLibrary(self.topics_dir).names())
        self._entries: dict[TopicName, IndexEntry] = {}
        # Those that may be too long. A kill may have come before the last ones were split.
        self._grown = set(self._library.names())
        self._list(self._grown)
        epochs = self._journal.epochs[: self._journal.finished + 1]
        decided = [decision for epoch in epochs for qa_id in epoch if (decision := self._draft.of(qa_id))]
        self._decided = len(decided)
        self._parked = sum(isinstance(each, Parked) for each in decided)
        self._classified = sum(map(len, epochs[: self._journal.finished])) + len(self._journal.first)

    def so_far(self) -> Progress:
        """Where it stands."""
        return Progress(
            classified=self._classified,
            decided=self._decided,
            total=self._journal.total,
            calls=self._calls_before + self.meter.calls,
            tokens=self._tokens_before + self.meter.tokens,
        )

    async def rounds(self, plan: Callable[[QAId | None], Round]) -> None:
        """Decide all that is archived, then what was archived meanwhile, until nothing is left.

        Raises ModelUnavailableError and KnowledgeError; what was chosen and decided by then need not be done again.
        """
        journal = self._journal
        while True:
            for number, qa_ids in list(enumerate(journal.epochs))[journal.finished :]:
                await self._epoch(number, qa_ids)
                spent = self.so_far()
                await run_sync(journal.write, Finished(epoch=number, calls=spent.calls, tokens=spent.tokens))
                if self._decided >= EPOCH:
                    await run_sync(self._refuse_if_most_failed)
            await run_sync(self._replace)
            following = await run_sync(plan, journal.rounds[-1].last if journal.rounds else None)
            if not following.pairs:
                return
            await run_sync(journal.write, following)

    def finished(self) -> list[PairDecision]:
        """Make the library fit to stand, and give the decisions that belong to it, as of now. Raises KnowledgeError."""
        library, journal, decisions = self._library, self._journal, self.decisions
        held_back = {time_of(qa_id) for qa_id in chain(*journal.epochs) if is_held_back(qa_id, decisions)}
        for qa_id in map(qa_id_of, sorted(held_back)):
            topic = library.topic_of(qa_id)
            if topic is not None:
                library.update(topic, None, [qa_id])
        self._say_what_was_forgotten()
        if self._replaces_topics:
            self._refuse_if_most_failed()
            self._refuse_if_nothing_is_left()
        drafted = in_order(self._draft.taken(), journal.epochs)
        known = (decisions.of(each.qa_id) for each in drafted)
        # They hold from now on, whatever was decided about the old library meanwhile, be it by a clock that was ahead.
        now = max(chain([self.clock.now()], (each.at for each in known if each is not None)))
        return [replace(each, at=now) for each in drafted if time_of(each.qa_id) not in held_back]

    def result(self, drafted: Iterable[PairDecision]) -> Regenerated:
        """What was done."""
        last = {time_of(each.qa_id): each for each in drafted}
        spent = self.so_far()
        return Regenerated(
            pairs=sum(each.pairs for each in self._journal.rounds),
            tally=Tally.of(last.values()),
            topics=len(self._library.names()),
            parked=tuple(each.qa_id for each in last.values() if isinstance(each, Parked)),
            calls=spent.calls,
            tokens=spent.tokens,
        )

    async def _epoch(self, number: int, qa_ids: Sequence[QAId]) -> None:
        """Decide these pairs, as far as they are not; then make sure that no topic is too long."""
        pairs = await run_sync(self._read, qa_ids)
        choices = await self._choices(number, pairs)
        filings = [Filing(pair=pair, choice=choices[pair.qa_id]) for pair in pairs]
        await _side_by_side(self._file, _by_topic(filings), self.concurrency)
        touched = {choice.name for choice in choices.values() if isinstance(choice, Topic)}
        self._grown |= touched
        await self._split_outgrown()
        await run_sync(self._list, touched)

    async def _split_outgrown(self) -> None:
        # Always the first by name, and from the beginning after each: so it matters not where a kill came in between.
        while self._grown:
            for topic in sorted(self._grown & set(self._library.names())):
                new = await self.filer.split_outgrown(topic)
                if new is not None:
                    self._grown |= {topic, new}
                    break
                self._grown.discard(topic)
            else:
                self._grown.clear()

    def _read(self, qa_ids: Iterable[QAId]) -> list[CapturedPair]:
        # A block that was damaged since is passed over, with a warning.
        return [pair for qa_id in qa_ids if (pair := self.archive.get(qa_id)) is not None]

    def _list(self, topics: Iterable[TopicName]) -> None:
        """Describe these topics, and those that are new, as they stand."""
        names = self._library.names()
        for name in (set(topics) | set(names) - self._entries.keys()) & set(names):
            self._entries[name] = self._entry(name, self._library.read(name))
        # Sorted: what fits equally well goes into a prompt by its place.
        self._entries = {name: self._entries[name] for name in names}

    def _entry(self, name: TopicName, blocks: Sequence[TopicBlock]) -> IndexEntry:
        return IndexEntry(SourceId(f"team:{name}.txt"), self.describe(blocks))

    async def _choices(self, number: int, pairs: Sequence[CapturedPair]) -> Mapping[QAId, Choice]:
        journal = self._journal
        if journal.classified <= number:
            left = [pair for pair in pairs if pair.qa_id not in journal.first]
            await _side_by_side(self._classify, left, self.concurrency)
            await self._classify_again(pairs)
            await run_sync(journal.write, Classified(epoch=number))
        return {**journal.first, **journal.again}

    async def _classify(self, pair: CapturedPair) -> None:
        choice = await self._choose(pair, self._entries)
        await run_sync(self._journal.write, Chosen(qa_id=pair.qa_id, choice=choice))
        self._classified += 1
        self._tell_progress()

    async def _classify_again(self, pairs: Iterable[CapturedPair]) -> None:
        journal = self._journal
        new_topics: defaultdict[TopicName, list[TopicBlock]] = defaultdict(list)
        for pair in pairs:
            choice = journal.first[pair.qa_id]
            if new_topics and isinstance(choice, Topic) and choice.name not in {**self._entries, **new_topics}:
                if pair.qa_id not in journal.again:
                    entries = {name: self._entry(name, blocks) for name, blocks in new_topics.items()}
                    choice = await self._choose(pair, {**self._entries, **entries})
                    await run_sync(journal.write, Chosen(qa_id=pair.qa_id, choice=choice, again=True))
                choice = journal.again[pair.qa_id]
            if isinstance(choice, Topic) and choice.name not in self._entries:
                new_topics[choice.name].append(block_of(self.filer.left_of(pair) or pair))

    async def _choose(self, pair: CapturedPair, entries: Mapping[TopicName, IndexEntry]) -> Choice:
        async def choose(left: CapturedPair) -> Topic | Skip:
            listed = {entry.source_id: entry for entry in entries.values()}
            return await choose_topic(self.model, left, listed, self.options)

        choice = await choice_for(pair, filer=self.filer, choose=choose)
        return choice if isinstance(choice, Topic) else replace(choice, reason=whole(choice.reason))

    async def _file(self, filings: Sequence[Filing]) -> None:
        for filing in filings:
            # A parked pair is decided, too: asking once more would cost as much, and is `intern retry`'s part.
            if self._draft.of(filing.pair.qa_id) is None:
                decision = await self.filer.file(filing)
                self._decided += 1
                self._parked += isinstance(decision, Parked)
                self._tell_progress()

    def _tell_progress(self) -> None:
        if self.tell is not None:
            self.tell(self.so_far())

    def _say_what_was_forgotten(self) -> None:
        """While this library lay unfinished, somebody may have been forgotten, whose blocks were taken out at once."""
        for qa_id in chain(*self._journal.epochs):
            if isinstance(self._draft.of(qa_id), Filed | Moved) and self._library.topic_of(qa_id) is None:
                pair = self.archive.get(qa_id)
                if pair is not None and self.filer.left_of(pair) is None:
                    reason = "its question or its answer was withdrawn"
                    self._draft.append(Removed(qa_id=qa_id, reason=reason, at=self.clock.now()))

    def _replace(self) -> None:
        """Say of the older captures which ones stand for them."""
        draft, now = self._draft, self.clock.now()
        pairs = chain(*(each.replaced for each in self._journal.rounds))
        draft.extend(Replaced(qa_id=qa_id, by=by, at=now) for qa_id, by in pairs if draft.of(qa_id) is None)

    def _refuse_if_most_failed(self) -> None:
        """A model that refuses nearly everything must not cost what another one has learned."""
        if self._parked * 2 > self._decided:
            reasons = (each.reason for each in reversed(self._draft.taken()) if isinstance(each, Parked))
            failed = f"{self._parked} of {self._decided} conversations failed"
            self._refuse(f"{failed}, the last one so: {next(reasons)}")

    def _refuse_if_nothing_is_left(self) -> None:
        """No topic at all is right only where nothing could be filed: all of it was withdrawn, or is held back."""
        skipped = sum(isinstance(each, Skipped) for each in self._draft.taken())
        if not self._library.names() and skipped:
            self._refuse(f"the model skipped all {skipped} conversations")
        if not self._journal.rounds:
            self._refuse("the archive holds no pairs", "Put the archive back, or move that folder away to begin anew")

    def _refuse(
        self, why: str, what_to_do: str = "See to the model and its prompts, then regenerate again"
    ) -> NoReturn:
        # What is kept would be gone on with, and would end here again.
        discard(self.topics_dir, self.layer)
        raise KnowledgeError(f"{why}; {self.topics_dir} stays as it was. {what_to_do}")


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


def fingerprint(basis: str, options: LearningOptions) -> str:
    """Tells whether a regeneration that was begun may go on. Who may be filed is settled by its plan, not by this."""
    return sha256(msgspec.json.encode([basis, replace(options, review=False), EPOCH])).hexdigest()


def progress_of(topics_dir: Path) -> Progress | None:
    """How far the regeneration came that is at work or was stopped, to an epoch; None where there is none. Blocks.

    Anybody may look, at any time. Raises KnowledgeError.
    """
    journal = Journal(upcoming(topics_dir), FileLayer())
    if not journal.rounds:
        return None
    decided = sum(map(len, journal.epochs[: journal.finished]))
    return Progress(
        classified=decided + len(journal.first),
        decided=decided,
        total=journal.total,
        calls=journal.calls,
        tokens=journal.tokens,
    )


def _resumable(error: ModelUnavailableError, so_far: Progress) -> ModelUnavailableError:
    # As the family has it: what the endpoint's own class holds beside the message helps nobody any more.
    kind = next(
        (kind for kind in (ModelAccessError, ModelBudgetError) if isinstance(error, kind)), ModelUnavailableError
    )
    kept = f"{so_far.decided} of {so_far.total} conversations are done and kept; regenerate again to go on from there"
    return kind(f"{error}; {kept}")
