"""Learning from the team's answers: archive, file under topics, review, retry and rebuild."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set as AbstractSet
from functools import partial
from itertools import chain, count, islice

from anyio import Lock
from anyio.to_thread import run_sync

from intern.actors.loops import DueRecord
from intern.answering.triage import is_chatter
from intern.core import progress
from intern.core.captures import Capture, CapturedPair
from intern.core.decisions import PairApproved, PairDecision, PairFiled, PairParked, PairRejected
from intern.core.errors import ConfigError, KnowledgeError, ModelError
from intern.core.flow import FailedChoice, FilingDecision, SkipChoice, TopicChoice
from intern.core.ids import MessageId, QAId, UserId
from intern.core.log import get_logger
from intern.learning.archivist import Archivist, iter_author_names
from intern.learning.classifying import choose_topic
from intern.learning.filing import DecisionCounts, TopicFiler, attempt_filing, file_pairs
from intern.learning.importing import ImportCounts, archive_imported
from intern.learning.prompts import strip_withdrawn
from intern.learning.regenerating import Regeneration, RegenerationProgress, RegenerationResult
from intern.learning.regeneration_journal import make_review_check
from intern.learning.review import (
    DuePairs,
    Review,
    apply_edits,
    approve_edited,
    check_awaits_review,
    find_due_pairs,
    find_waiting_pairs,
    get_pair,
    make_review_decisions,
)
from intern.learning.withdrawing import MessageRemoval, withdraw_messages
from intern.models.prompt import Model
from intern.service.databases import open_read_only
from intern.service.indexing import Indexing
from intern.service.models import describe_regeneration_basis
from intern.service.status import MASKED
from intern.service.stores import Stores
from intern.settings.settings import Settings
from intern.sources.descriptions import describe_by_rules
from intern.sources.refresh import list_topic
from intern.stores.qa_ids import qa_id_time
from intern.stores.tables.attempts import PAUSES, Retry
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeStore

_log = get_logger(__name__)

_READ_AHEAD = 32  # pairs; a follower asks again after these


class CaptureService:
    """Archives captures and files them. One filing or regeneration at a time."""

    def __init__(self, stores: Stores, model: Model, indexing: Indexing) -> None:
        settings, clock = stores.settings, stores.clock
        self._settings, self._clock, self._stores = settings, clock, stores
        self._archive, self._knowledge = stores.archive, stores.knowledge
        self._model, self._indexing = model, indexing
        self.archivist = Archivist(
            stores.archive,
            mask=settings.kb.mask_secrets,
            mask_emails=settings.kb.mask_emails,
            is_withdrawn=stores.knowledge.is_withdrawn,
            is_forgotten=stores.knowledge.is_forgotten,
            masked=self._count_masked,
        )
        self._filer = TopicFiler(
            model=model,
            knowledge=stores.knowledge,
            archive=stores.archive,
            clock=clock,
            options=settings.learning,
            says_nothing=is_chatter,
            listed=lambda change, topic: list_topic(change, topic, clock.now()),
        )
        # Regeneration replaces the library as a whole, so no pair may be filed meanwhile.
        self.filing = Lock()

    async def read_pairs_after(self, position: QAId | None) -> Sequence[CapturedPair]:
        """Return some of the archived pairs after `position`, oldest first: the classifier's log."""
        return await run_sync(lambda: list(islice(self._archive.pairs_after(position), _READ_AHEAD)))

    async def keep(self, capture: Capture) -> CapturedPair | None:
        """Archive a capture; None where the archive holds all of it already."""
        await self._note_names((capture,))
        pair = await self.archivist.archive_capture(capture)
        try:
            # The team answered these questions, so the replies to them are not repeated.
            await self._stores.replies.drop(capture.message_ids)
            await self._stores.answers.close_gaps(capture.message_ids, "answered")
            await self._stores.judgements.judge_corrected(capture.message_ids, tuple(_team_message_ids(capture)))
            await self._stores.counts.store()
        except KnowledgeError as error:
            # The capture is safe; the counts are stored with the next one.
            _log.warning("counts_not_stored", reason=str(error))
        return pair

    async def choose_topic(self, pair: CapturedPair) -> TopicChoice | SkipChoice | FailedChoice:
        """Choose the topic of a pair: that of its conversation, else the model's choice among the topics listed now."""
        return await self._filer.choose_topic(pair, self._choose)

    async def file(self, filing: FilingDecision) -> PairDecision:
        """File a pair; a new topic is in the index when this returns."""
        async with self.filing:
            decision = await self._filer.file(filing)
            await self._split_if_outgrown(filing.pair, decision)
            return decision

    async def find_next_due(self, handed: AbstractSet[Hashable]) -> DueRecord[CapturedPair]:
        """Return the next pair to file: approved, or parked for long enough. Its decision is the key."""
        retries = await self._stores.attempts.read_retries()
        return await run_sync(self._find_due, retries, handed)

    async def find_waiting_pairs(self, message_id: MessageId) -> Sequence[CapturedPair]:
        """Return the waiting pairs with this message, newest first. Raises KnowledgeError."""
        return await run_sync(find_waiting_pairs, message_id, self._knowledge, self._archive)

    async def review(self, review: Review) -> tuple[PairDecision, ...]:
        """Store a review of waiting pairs, and return the last decision about each.

        Approved pairs are due from then on. Raises ConfigError for an unknown id or a pair that is not waiting, and
        KnowledgeError; nothing is stored then.
        """
        return await self._knowledge.change(partial(self._review, review))

    async def review_and_file(self, review: Review) -> tuple[PairDecision, ...]:
        """Store a review and file the approved pairs, if a model is available. Raises as `review` does."""
        said = await (self._approve_edited(review) if review.edited else self.review(review))
        for n, decision in enumerate(said):
            if isinstance(decision, PairApproved):
                progress.report_progress("Filing {total} reviewed pairs", n, len(said))
                try:
                    async with self.filing:
                        await self._try_filing(await run_sync(get_pair, decision.qa_id, self._archive))
                except ModelError as error:
                    _log.warning("filing_delayed", qa_id=decision.qa_id, approved=len(said) - n, reason=str(error))
                    break
        return tuple(self._knowledge.last_decision(each.qa_id) or each for each in said)

    async def _approve_edited(self, review: Review) -> tuple[PairDecision, ...]:
        """Archive the reviewer's version of a waiting pair, and approve that."""
        async with self.filing:  # else the classifier could put the new version on hold meanwhile
            capture = await run_sync(apply_edits, review, self._knowledge, self._archive)
            pair = None if capture is None else await self.archivist.archive_capture(capture)
            if pair is not None:
                at = self._clock.now()
                said = await run_sync(approve_edited, review, pair, self._knowledge, self._archive, at)
                await self._knowledge.change(lambda change: change.decide(*said))
                return said[:1]
        return await self.review(review)

    async def retry(self, qa_ids: Sequence[QAId] = ()) -> tuple[PairDecision, ...]:
        """File parked pairs now, all or these, and return the last decision about each.

        One that fails is parked again, with the new reason, and the next one follows. A pair with a final decision
        keeps it. Raises ConfigError for an unknown id or a pair that is not decided yet, and the KnowledgeError and
        ModelError families while nothing can be filed; pairs filed by then stay filed.
        """
        pairs = await run_sync(self._select_for_retry, qa_ids)
        decisions: list[PairDecision] = []
        for done, pair in enumerate(pairs):
            progress.report_progress("Filing {total} parked pairs", done, len(pairs))
            # One by one, so that others are filed in between.
            async with self.filing:
                decided = self._knowledge.last_decision(pair.qa_id)
                if decided is None or isinstance(decided, PairParked):
                    decided = await self._try_filing(pair)
                decisions.append(decided)
        return tuple(decisions)

    async def withdraw(self, message_ids: Sequence[MessageId]) -> MessageRemoval | None:
        """Withdraw all lessons of these messages, even during a filing."""
        withdrawn = await withdraw_messages(self._knowledge, self._archive, message_ids, self._clock.now())
        await self._stores.files.clear_edited()
        await self._stores.pending.forget(message_ids)
        await self._stores.answers.withdraw(message_ids)
        await self._stores.replies.drop(message_ids)
        await self._stores.recorder.forget(message_ids, topics=withdrawn.topics if withdrawn else ())
        return withdrawn

    async def keep_imported(self, captures: Sequence[Capture]) -> ImportCounts:
        """Archive the captures that an import rehearsed."""
        await self._note_names(captures)
        return await archive_imported(captures, self._archive, self.archivist)

    async def catch_up(self, tell: Callable[[int], None] = lambda _: None) -> DecisionCounts:
        """File all undecided archived pairs and all pairs that are due again; `tell` gets the number of pairs."""
        decided = count(1)

        async def report_filed(pair: CapturedPair, decision: PairDecision) -> None:
            await self._split_if_outgrown(pair, decision)
            tell(next(decided))

        async with self.filing:
            retries = await self._stores.attempts.read_retries()
            due = (await run_sync(self._find_retries, retries)).due
            pairs = chain(
                self._archive.pairs_after(self._stores.find_last_decided()), await run_sync(self._load_pairs, due)
            )
            attempts = self._stores.attempts
            return await file_pairs(
                pairs, filer=self._filer, choose=self._choose, attempts=attempts, filed=report_filed
            )

    async def regenerate(self, progress: Callable[[RegenerationProgress], None] | None = None) -> RegenerationResult:
        """Rebuild the topics from the archive, and the team index from them; or continue doing so."""
        basis = await run_sync(describe_regeneration_basis, self._settings)
        async with self.filing:
            unreviewed = make_review_check(self._knowledge, self._stores.passed_over)
            done = await Regeneration(
                model=self._model,
                archive=self._archive,
                knowledge=self._knowledge,
                describe=describe_by_rules,
                clock=self._clock,
                options=self._settings.learning,
                concurrency=self._settings.kb.regenerate_concurrency,
                basis=basis,
                awaits_review=unreviewed if self._settings.kb.review else lambda _: False,
                progress=progress,
            ).run()
        await self._indexing.index_changed_topics()
        return done

    async def _note_names(self, captures: Sequence[Capture]) -> None:
        """Store the names of people, which the archive lacks. Leave out people who are forgotten, even just now."""
        await self._stores.claim_archive()

        def find_forgotten(capture: Capture) -> set[UserId]:
            written = zip(capture.message_ids, capture.author_ids, strict=False)
            return {author for each, author in written if author and self._knowledge.is_forgotten(author, each)}

        told = [(capture, find_forgotten(capture)) for capture in captures]
        spoken = [pair for each in captures for pair in zip(each.author_ids, each.turns, strict=False)]
        await self._stores.names.add(
            (
                (author, names)
                for capture, gone in told
                for author, names in iter_author_names(capture)
                if author not in gone
            ),
            {author for author, turn in spoken if turn.speaker == "Team"},
        )
        for capture, gone in told:
            for author in find_forgotten(capture) - gone:
                await self._stores.names.forget_author(author)

    def _count_masked(self, kinds: Mapping[str, int]) -> None:
        for kind, number in kinds.items():
            self._stores.counts.add(f"{MASKED}{kind}", number)

    async def _choose(self, pair: CapturedPair) -> TopicChoice | SkipChoice:
        entries = await run_sync(self._indexing.team_catalogue.entries)
        return await choose_topic(self._model, pair, entries, self._settings.learning)

    async def _try_filing(self, pair: CapturedPair) -> PairDecision:
        decision = await attempt_filing(pair, filer=self._filer, choose=self._choose, attempts=self._stores.attempts)
        await self._split_if_outgrown(pair, decision)
        return decision

    async def _split_if_outgrown(self, pair: CapturedPair, decision: PairDecision) -> None:
        """Split the topic that a pair was filed in, if it has grown too long."""
        if not isinstance(decision, PairFiled):
            return
        try:
            await self._filer.split_outgrown(decision.topic)
        except ModelError as error:
            # The pair is filed anyway; the next pair in the topic tries the split again.
            _log.warning("topic_split_delayed", topic_name=decision.topic, qa_id=pair.qa_id, reason=str(error))

    def drop_forgotten_messages(self, pair: CapturedPair | None) -> CapturedPair | None:
        """Return a pair without messages that were forgotten while it waited to be filed."""
        if pair is None or not any(map(self._knowledge.is_withdrawn, pair.message_ids)):
            return pair
        return strip_withdrawn(pair, self._knowledge.is_withdrawn)

    def _review(self, review: Review, change: KnowledgeChange) -> tuple[PairDecision, ...]:
        said = make_review_decisions(review, self._knowledge, self._archive, self._clock.now())
        change.decide(*said)
        last = {qa_id_time(each.qa_id): each for each in said}
        decisions = (
            last.get(qa_id_time(each)) or self._knowledge.last_decision(each) for each in dict.fromkeys(review.qa_ids)
        )
        return tuple(each for each in decisions if each is not None)

    def _find_due(self, retries: Mapping[QAId, Retry], handed: AbstractSet[Hashable]) -> DueRecord[CapturedPair]:
        waiting = self._find_retries(retries)
        for decision in waiting.due:
            if decision not in handed and (pair := self._archive.get(decision.qa_id)) is not None:
                return DueRecord(record=pair, key=decision)
        if waiting.due or next(self._archive.pairs_after(self._stores.find_last_decided()), None) is not None:
            # A pair in work may be parked, and comes again after this pause at the earliest.
            return DueRecord(seconds=min(PAUSES[0].total_seconds(), waiting.seconds or math.inf))
        return DueRecord(seconds=waiting.seconds)

    def _find_retries(self, retries: Mapping[QAId, Retry]) -> DuePairs:
        found = find_due_pairs(self._knowledge.list_parked(), retries, self._clock.now(), self._stores.passed_over)
        return found._replace(due=(*self._knowledge.list_due(), *found.due))

    def _load_pairs(self, decisions: Sequence[PairDecision]) -> list[CapturedPair]:
        return [pair for each in decisions if (pair := self._archive.get(each.qa_id)) is not None]

    def _select_for_retry(self, qa_ids: Sequence[QAId]) -> list[CapturedPair]:
        if not qa_ids:
            return self._load_pairs(self._knowledge.list_parked())
        pairs = [get_pair(qa_id, self._archive) for qa_id in dict.fromkeys(qa_ids)]
        for pair in pairs:
            if self._knowledge.last_decision(pair.qa_id) is None:
                raise ConfigError(f"{pair.qa_id} is not parked: it was not looked at yet; intern files it by itself")
        return pairs


def _team_message_ids(capture: Capture) -> Iterator[MessageId]:
    """Yield the messages in which the team says more than thanks or assent."""
    for turn, message_id in zip(capture.turns, capture.message_ids, strict=False):
        if turn.speaker == "Team" and not is_chatter(turn.text):
            yield message_id


def check_parked(settings: Settings, qa_ids: Sequence[QAId]) -> None:
    """Check that none of these pairs is decided already: a job may run twice, but a command is meant once. Blocks."""
    if not qa_ids:
        return
    decisions = KnowledgeStore(open_read_only(settings))
    for qa_id in qa_ids:
        decided = decisions.last_decision(qa_id)
        if decided is not None and not isinstance(decided, PairParked):
            word = str(decided.__struct_config__.tag).replace("_", " ")
            raise ConfigError(f"{qa_id} is not parked but {word}; `intern status` lists those that are")


def check_waiting(settings: Settings, review: Review) -> None:
    """Check that none of these pairs has such a decision already, as `check_parked`. Blocks.

    An approved pair that is not filed yet may be approved again, which files it.
    """
    decisions = KnowledgeStore(open_read_only(settings))
    for qa_id in review.qa_ids:
        said = decisions.last_decision(qa_id) and decisions.last_review(qa_id)
        if said is not None and (
            isinstance(said, PairRejected) or not isinstance(decisions.last_decision(qa_id), PairApproved)
        ):
            check_awaits_review(qa_id, decisions)
