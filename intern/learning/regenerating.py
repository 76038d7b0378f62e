"""Regenerate the library: rebuild it from the archive beside the old one, and swap it in once it is complete.

After a crash, the next run continues without repeating a model call. The old library is in use until the swap.

The library is built in epochs of pairs, with several model calls at a time; their number does not change the result.
The pairs of an epoch are classified with the index at its start. Pairs that would open a new topic are classified
again, in order, once an earlier pair has opened one; otherwise two pairs could open one topic under two names. Then
the topics take their pairs in order, side by side. A conversation has one pair, so topics do not depend on each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import NoReturn, TypeVar

import msgspec
from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.core import captures, decisions, errors
from intern.core.clock import Clock
from intern.core.flow import FilingDecision, SkipChoice, TopicChoice
from intern.core.ids import QAId, TopicName
from intern.core.knowledge import IndexEntry
from intern.core.log import get_logger
from intern.core.messages import Image
from intern.core.tasks import run_each
from intern.core.text.encoding import replace_surrogates
from intern.learning.classifying import Choice, choose_topic
from intern.learning.filing import WITHDRAWN, DecisionCounts, TopicFiler
from intern.learning.prompts import LearningOptions, build_block
from intern.learning.regeneration_journal import (
    EPOCH,
    EpochClassified,
    EpochFinished,
    PairClassified,
    RegenerationJournal,
    is_held_back,
    open_journal,
    plan_round,
    sort_decisions,
)
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.usage import measure_usage
from intern.stores.archive import Archive
from intern.stores.qa_ids import qa_id_time
from intern.stores.source_cache import topic_id
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeDraft, KnowledgeStore

_log = get_logger(__name__)

T = TypeVar("T")
Describe = Callable[[Sequence[captures.TopicBlock]], str]
"""Describes a topic in the index that the classifier sees meanwhile."""

CONCURRENCY = 8


class RegenerationProgress(Struct, frozen=True, kw_only=True):
    """The progress of a regeneration, including earlier runs."""

    classified: int
    decided: int
    total: int
    """Conversations. The number grows if some are captured meanwhile."""
    calls: int
    """Model calls."""
    tokens: int


class RegenerationResult(Struct, frozen=True, kw_only=True):
    """The result of a regeneration."""

    pairs: int
    """Pairs in the archive, including older captures of the same conversations."""
    tally: DecisionCounts
    topics: int
    parked: tuple[QAId, ...]
    calls: int = 0
    """Model calls, including those of earlier runs."""
    tokens: int = 0


class _BudgetStoppingModel:
    """A model that ends the regeneration if a call exceeds the budget of a day.

    If such calls parked their pairs, the new library would lack most of the biggest topics.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        try:
            return await self._model.ask(prompt, given, images=images)
        except errors.ModelBudgetTooSmallError as error:
            raise errors.ModelBudgetError(str(error)) from error


@dataclass(kw_only=True)
class Regeneration:
    """Classify and integrate the most complete capture of every conversation again, oldest answer first.

    An unfinished regeneration continues if it has the same `options` and `basis`, and the archive still has the pairs
    that it read. Otherwise a new one starts.
    """

    model: Model
    archive: Archive
    knowledge: KnowledgeStore
    describe: Describe
    clock: Clock
    options: LearningOptions = field(default_factory=LearningOptions)
    concurrency: int = CONCURRENCY
    basis: str = ""
    """The prompts, and everything else that determines the result."""
    awaits_review: Callable[[QAId], bool] = lambda _: False
    """Returns whether a pair without a decision waits for review."""
    progress: Callable[[RegenerationProgress], None] | None = None
    """Called after each step."""

    async def run(self) -> RegenerationResult:
        """Rebuild the library, and swap it in.

        The caller must let nothing else be filed until this returns. Pairs that are archived meanwhile are filed, too.
        Withdrawn messages are left out, and so are pairs that wait for review or were rejected. A pair is parked if the
        replies make no sense, or if the model refuses it. Afterwards open libraries are stale, and the team index must
        be refreshed.

        Raises ModelUnavailableError if the model is down or the budget is used up. Raises KnowledgeError also if hardly
        anything would be left of the old library, which is then still in place.
        """
        with measure_usage() as self._meter:
            self._journal = await open_journal(
                self.knowledge, self.archive, basis=fingerprint(self.basis, self.options)
            )
            await run_sync(self._open)
            _log.info("regeneration_started", decided_before=self._decided)
            try:
                await self._run_rounds()
            except errors.ModelUnavailableError as error:
                raise _make_resumable_error(error, self._read_progress()) from error
            drafted = await self._finish_library()
            result = await run_sync(self._build_result, drafted)
        _log.info("regeneration_completed", pairs=result.pairs, topics=result.topics, calls=result.calls)
        return result

    def _open(self) -> None:
        """Open the draft. Blocks; raises KnowledgeError."""
        self._draft = KnowledgeDraft(self.knowledge)
        self._model = _BudgetStoppingModel(self.model)
        self._filer = TopicFiler(
            model=self._model,
            knowledge=self._draft,
            archive=self.archive,
            clock=self.clock,
            # The plan leaves out the pairs that wait for review.
            options=replace(self.options, review=False),
            waits_for_newest=False,
        )
        self._calls_before, self._tokens_before = self._journal.calls, self._journal.tokens
        self._replaces_topics = bool(self.knowledge.topic_names())
        self._entries: dict[TopicName, IndexEntry] = {}
        # Topics that may be too long. A crash may have come before the last ones were split.
        self._grown = set(self._draft.topic_names())
        self._update_index(self._grown)
        epochs = self._journal.epochs[: self._journal.finished + 1]
        decided = [decision for epoch in epochs for qa_id in epoch if (decision := self._draft.last_decision(qa_id))]
        self._decided = len(decided)
        self._parked = sum(isinstance(each, decisions.PairParked) for each in decided)
        self._classified = sum(map(len, epochs[: self._journal.finished])) + len(self._journal.first)

    def _read_progress(self) -> RegenerationProgress:
        """Return the progress."""
        return RegenerationProgress(
            classified=self._classified,
            decided=self._decided,
            total=self._journal.total,
            calls=self._calls_before + self._meter.calls,
            tokens=self._tokens_before + self._meter.tokens,
        )

    async def _run_rounds(self) -> None:
        """Decide all archived pairs, then those archived meanwhile, until none are left.

        Raises ModelUnavailableError and KnowledgeError; a later run keeps the choices and decisions made before.
        """
        journal = self._journal
        while True:
            for number, qa_ids in list(enumerate(journal.epochs))[journal.finished :]:
                await self._run_epoch(number, qa_ids)
                spent = self._read_progress()
                await journal.write(EpochFinished(epoch=number, calls=spent.calls, tokens=spent.tokens))
                if self._decided >= EPOCH:
                    await self._refuse_if_most_failed()
            await self._draft.change(self._log_replaced)
            last = journal.rounds[-1].last if journal.rounds else None
            following = await run_sync(plan_round, self.archive, last, self.knowledge, self.awaits_review)
            if not following.pairs:
                return
            await journal.write(following)

    async def _finish_library(self) -> list[decisions.PairDecision]:
        """Finish the library, make it the current one, and return its decisions. Raises KnowledgeError."""
        await self._draft.change(self._remove_held_back)
        if self._replaces_topics:
            await self._refuse_if_most_failed()
            await self._refuse_if_nothing_is_left()
        taken = await run_sync(self._draft.list_decisions)
        return await self.knowledge.change(partial(self._switch_library, taken))

    def _switch_library(
        self, taken: Sequence[decisions.PairDecision], change: KnowledgeChange
    ) -> list[decisions.PairDecision]:
        draft, knowledge = change.as_draft(), self.knowledge
        # Again: more may have been withdrawn or rejected meanwhile.
        drafted = sort_decisions([*taken, *self._remove_held_back(draft)], self._journal.epochs)
        known = (knowledge.last_decision(each.qa_id) for each in drafted)
        # They must be newer than all decisions about the old library, even if the clock was ahead then.
        now = max(chain([self.clock.now()], (each.at for each in known if each is not None)))
        said = [replace(each, at=now) for each in drafted if not is_held_back(each.qa_id, knowledge)]
        change.switch_to_draft(said)
        return said

    def _build_result(self, drafted: Iterable[decisions.PairDecision]) -> RegenerationResult:
        """Return the result."""
        last = {qa_id_time(each.qa_id): each for each in drafted}
        spent = self._read_progress()
        return RegenerationResult(
            pairs=sum(each.pairs for each in self._journal.rounds),
            tally=DecisionCounts.count_decisions(last.values()),
            topics=len(self.knowledge.topic_names()),
            parked=tuple(each.qa_id for each in last.values() if isinstance(each, decisions.PairParked)),
            calls=spent.calls,
            tokens=spent.tokens,
        )

    async def _run_epoch(self, number: int, qa_ids: Sequence[QAId]) -> None:
        """Decide the undecided ones of these pairs, then split the topics that are too long."""
        pairs = await run_sync(self._read_pairs, qa_ids)
        choices = await self._choose_topics(number, pairs)
        filings = [FilingDecision(pair=pair, choice=choices[pair.qa_id]) for pair in pairs]
        await run_each(self._file, _group_by_topic(filings), self.concurrency)
        touched = {choice.name for choice in choices.values() if isinstance(choice, TopicChoice)}
        self._grown |= touched
        await self._split_outgrown()
        await run_sync(self._update_index, touched)

    async def _split_outgrown(self) -> None:
        # Always the first by name, and from the start again after each split. So a crash does not change the order.
        while self._grown:
            for topic in sorted(self._grown & set(await run_sync(self._draft.topic_names))):
                new = await self._filer.split_outgrown(topic)
                if new is not None:
                    self._grown |= {topic, new}
                    break
                self._grown.discard(topic)
            else:
                self._grown.clear()

    def _read_pairs(self, qa_ids: Iterable[QAId]) -> list[captures.CapturedPair]:
        # The archive skips a damaged block, with a warning.
        return [pair for qa_id in qa_ids if (pair := self.archive.get(qa_id)) is not None]

    def _update_index(self, topics: Iterable[TopicName]) -> None:
        """Describe these topics and the new ones."""
        names = self._draft.topic_names()
        for name in (set(topics) | set(names) - self._entries.keys()) & set(names):
            self._entries[name] = self._make_entry(name, self._draft.read_topic(name))
        # Sorted: equal matches go into a prompt in this order.
        self._entries = {name: self._entries[name] for name in names}

    def _make_entry(self, name: TopicName, blocks: Sequence[captures.TopicBlock]) -> IndexEntry:
        return IndexEntry(topic_id(name), self.describe(blocks))

    async def _choose_topics(self, number: int, pairs: Sequence[captures.CapturedPair]) -> Mapping[QAId, Choice]:
        journal = self._journal
        if journal.classified <= number:
            left = [pair for pair in pairs if pair.qa_id not in journal.first]
            await run_each(self._classify, left, self.concurrency)
            await self._classify_again(pairs)
            await journal.write(EpochClassified(epoch=number))
        return {**journal.first, **journal.again}

    async def _classify(self, pair: captures.CapturedPair) -> None:
        choice = await self._choose(pair, self._entries)
        await self._journal.write(PairClassified(qa_id=pair.qa_id, choice=choice))
        self._classified += 1
        self._report_progress()

    async def _classify_again(self, pairs: Iterable[captures.CapturedPair]) -> None:
        journal = self._journal
        new_topics: defaultdict[TopicName, list[captures.TopicBlock]] = defaultdict(list)
        for pair in pairs:
            choice = journal.first[pair.qa_id]
            if new_topics and isinstance(choice, TopicChoice) and choice.name not in {**self._entries, **new_topics}:
                if pair.qa_id not in journal.again:
                    entries = {name: self._make_entry(name, blocks) for name, blocks in new_topics.items()}
                    choice = await self._choose(pair, {**self._entries, **entries})
                    await journal.write(PairClassified(qa_id=pair.qa_id, choice=choice, again=True))
                choice = journal.again[pair.qa_id]
            if isinstance(choice, TopicChoice) and choice.name not in self._entries:
                new_topics[choice.name].append(build_block(self._filer.strip_withdrawn(pair) or pair))

    async def _choose(self, pair: captures.CapturedPair, entries: Mapping[TopicName, IndexEntry]) -> Choice:
        async def choose(left: captures.CapturedPair) -> TopicChoice | SkipChoice:
            listed = {entry.source_id: entry for entry in entries.values()}
            return await choose_topic(self._model, left, listed, self.options)

        choice = await self._filer.choose_topic(pair, choose)
        return choice if isinstance(choice, TopicChoice) else replace(choice, reason=replace_surrogates(choice.reason))

    async def _file(self, filings: Sequence[FilingDecision]) -> None:
        for filing in filings:
            # A parked pair is decided, too. `intern retry` tries it again.
            if self._draft.last_decision(filing.pair.qa_id) is None:
                decision = await self._filer.file(filing)
                self._decided += 1
                self._parked += isinstance(decision, decisions.PairParked)
                self._report_progress()

    def _report_progress(self) -> None:
        if self.progress is not None:
            self.progress(self._read_progress())

    def _remove_held_back(self, draft: KnowledgeChange) -> list[decisions.PairRemoved]:
        """Take what is held back out of the draft, and log the removal of pairs that were withdrawn or forgotten."""
        pairs = list(chain(*self._journal.epochs))
        draft.remove_blocks(qa_id for qa_id in pairs if is_held_back(qa_id, self.knowledge))
        removed: list[decisions.PairRemoved] = []
        for qa_id in pairs:
            if (
                isinstance(self._draft.last_decision(qa_id), decisions.PairFiled | decisions.PairMoved)
                and draft.find_topic(qa_id) is None
            ):
                pair = self.archive.get(qa_id)
                if pair is not None and self._filer.strip_withdrawn(pair) is None:
                    removed.append(decisions.PairRemoved(qa_id=qa_id, reason=WITHDRAWN, at=self.clock.now()))
        draft.decide(*removed)
        return removed

    def _log_replaced(self, draft: KnowledgeChange) -> None:
        """Log that the older captures were replaced."""
        now, pairs = self.clock.now(), chain(*(each.replaced for each in self._journal.rounds))
        draft.decide(
            *(
                decisions.PairReplaced(qa_id=qa_id, by=by, at=now)
                for qa_id, by in pairs
                if self._draft.last_decision(qa_id) is None
            )
        )

    async def _refuse_if_most_failed(self) -> None:
        """Stop if most pairs failed, so that a bad model does not replace a good library."""
        if self._parked * 2 > self._decided:
            taken = await run_sync(self._draft.list_decisions)
            reasons = (each.reason for each in reversed(taken) if isinstance(each, decisions.PairParked))
            failed = f"{self._parked} of {self._decided} conversations failed"
            await self._refuse(f"{failed}, the last one so: {next(reasons)}")

    async def _refuse_if_nothing_is_left(self) -> None:
        """Stop if there is no topic, unless all pairs were withdrawn or held back."""
        skipped = sum(isinstance(each, decisions.PairSkipped) for each in await run_sync(self._draft.list_decisions))
        if skipped and not await run_sync(self._draft.topic_names):
            await self._refuse(f"the model skipped all {skipped} conversations")
        if not self._journal.rounds:
            await self._refuse(
                "the archive holds no pairs", "Put the archive back, or move that folder away to begin anew"
            )

    async def _refuse(
        self, why: str, what_to_do: str = "See to the model and its prompts, then regenerate again"
    ) -> NoReturn:
        # Delete the draft: continuing it would end here again.
        await self.knowledge.change(KnowledgeChange.discard_draft)
        raise errors.KnowledgeError(f"{why}; the topics stay as they were. {what_to_do}")


def _group_by_topic(filings: Iterable[FilingDecision]) -> list[list[FilingDecision]]:
    """Group the filings by topic, in their order. The largest group comes first, because it takes longest."""
    topics: defaultdict[TopicName | None, list[FilingDecision]] = defaultdict(list)
    for filing in filings:
        topics[filing.choice.name if isinstance(filing.choice, TopicChoice) else None].append(filing)
    return sorted(topics.values(), key=len, reverse=True)


def fingerprint(basis: str, options: LearningOptions) -> str:
    """Return a hash of everything that must not change while a regeneration is unfinished."""
    return sha256(msgspec.json.encode([basis, replace(options, review=False), EPOCH])).hexdigest()


def read_progress(knowledge: KnowledgeStore) -> RegenerationProgress | None:
    """Return the progress of the running or stopped regeneration, by epochs; None without one. Blocks.

    Safe to call at any time. Raises KnowledgeError.
    """
    journal = RegenerationJournal(knowledge)
    if not journal.rounds:
        return None
    decided = sum(map(len, journal.epochs[: journal.finished]))
    return RegenerationProgress(
        classified=decided + len(journal.first),
        decided=decided,
        total=journal.total,
        calls=journal.calls,
        tokens=journal.tokens,
    )


def _make_resumable_error(
    error: errors.ModelUnavailableError, so_far: RegenerationProgress
) -> errors.ModelUnavailableError:
    # One of the family's own classes: the endpoint's class has details that are no use here.
    kind = next(
        (kind for kind in (errors.ModelAccessError, errors.ModelBudgetError) if isinstance(error, kind)),
        errors.ModelUnavailableError,
    )
    kept = f"{so_far.decided} of {so_far.total} conversations are done and kept; regenerate again to go on from there"
    return kind(f"{error}; {kept}")
