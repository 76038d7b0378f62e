"""All changes of a data folder, for the process that holds its lock, and the jobs that request them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence, Set as AbstractSet
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import msgspec
from anyio import Lock, current_time, sleep
from anyio.to_thread import run_sync
from msgspec import Struct

from intern.actors.extractor import ExtractionStep
from intern.actors.loops import DueRecord
from intern.core.captures import Capture, CapturedPair
from intern.core.clock import Clock
from intern.core.decisions import Decision, MessagesForgotten, MessagesWithdrawn
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.ids import ConversationId, MessageId, QAId, UserId, bot_answer_conversation, bot_answer_thread
from intern.core.log import get_logger
from intern.core.memory import CacheBudget
from intern.facts.extraction import ExtractionOutcome, KnowledgeExtractor, return_at_once
from intern.facts.reconciliation import FactRetirement
from intern.facts.segments import Segment, find_concerned_conversations
from intern.learning.answered_threads import AnsweredThreadLearner
from intern.learning.forgetting import (
    ForgetMessages,
    ForgetRequest,
    ForgetResult,
    ForgetScope,
    build_forget_result,
    find_forget_scope,
    make_tombstone,
)
from intern.learning.regenerating import read_progress
from intern.learning.review import Review
from intern.learning.withdrawing import remove_messages
from intern.models.limits import RateWindow
from intern.models.prompt import Model
from intern.search.embedder import Embedder
from intern.service.calibration import calibrate
from intern.service.captures import Learning
from intern.service.indexing import Indexing, list_ignored_paths, merge_refreshes
from intern.service.models import load_templates
from intern.service.questions import GapSettlement
from intern.service.reading import parse_topic_name
from intern.service.restoring import TopicAdoption, adopt
from intern.service.stores import OpenTemplates, Stores
from intern.settings.settings import Settings
from intern.sources.catalogue import respect_pauses
from intern.sources.discovery import Discovery, DiscoveryReport
from intern.sources.refresh import RefreshReport
from intern.sources.scanning import Scanner
from intern.stores.archive import ArchiveErasure
from intern.stores.database import Database
from intern.stores.files import FileLayer
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.tables.answered_threads import AnsweredThreads
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.facts import FactStore
from intern.stores.tables.jobs import Job, JobOutcome
from intern.stores.tables.judgements import Judgement
from intern.stores.tables.nuggets import NuggetStore
from intern.stores.tables.vector_cache import VectorMemory

_log = get_logger(__name__)


FOLLOWER = "extractor"
"""The follower whose position this is."""

# Jobs whose results are worth showing at once.
_LOOKED_AFTER = frozenset({"regenerate", "capture", "import", "forget", "review", "retry"})
_READ_AHEAD = 32  # decisions; a follower asks again when it has these


class NotesJob(Struct, frozen=True, kw_only=True):
    """The input of an import of notes."""

    notes: tuple[Segment, ...] = ()
    withdrawn: tuple[ConversationId, ...] = ()
    """Notes that were deleted."""


def read_job_result(outcome: JobOutcome) -> bytes:
    """Return the result of a job. Raises its error as ConfigError or KnowledgeError."""
    if outcome.error is not None:
        raise (ConfigError if outcome.exit_code == ConfigError.exit_code else KnowledgeError)(outcome.error)
    return outcome.result or b"null"


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

    async def read_notes(self, asked: NotesJob) -> Mapping[ExtractionOutcome, int]:
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


class Writer:
    """Makes all changes of a data folder. Only the process that holds the folder's lock has one."""

    def __init__(
        self,
        settings: Settings,
        db: Database,
        model: Model,
        clock: Clock,
        files: FileLayer | None = None,
        *,
        embedder: Embedder | None = None,
        templates: OpenTemplates = load_templates,
        room: CacheBudget | None = None,
    ) -> None:
        """Open the stores, and finish the work of a killed process. Blocks.

        Raises KnowledgeError, and ConfigError if the setting of ignored pairs includes future pairs. `web` fetches
        pages and `policy` limits the addresses; both are for tests.
        """
        self._settings, self._clock = settings, clock
        self.stores = stores = Stores(settings, db, clock, files, templates=templates, room=room)
        model = stores.recorder.wrap_model(model, settings.kb_model.display_name)
        self.indexing = Indexing(stores, model, embedder)
        self.learning = Learning(stores, model, self.indexing)
        self.extraction = ExtractionService(stores, model)
        self._derived: tuple[ForgetMessages, ...] = (
            *(stores.pending.forget, stores.remains.forget, stores.questions.forget, stores.cited.forget),
            *(stores.replies.forget, self.extraction.forget, VectorMemory(db, clock=clock).forget),
        )
        self._discovery = build_discovery(settings, stores.search, model, clock)
        self._discovering = Lock()
        self._jobs: Mapping[str, tuple[Any, Callable[..., Awaitable[object]]]] = {
            "index": (None, self._index),
            "refresh": (None, self._refresh),
            "regenerate": (None, self.learning.regenerate),
            "capture": (Capture, self._capture),
            "import": (list[Capture], self.learning.keep_imported),
            "forget": (ForgetRequest, self.forget),
            "review": (Review, self.learning.review_and_file),
            "retry": (tuple[QAId, ...], self.learning.retry),
            "discover": (None, self.discover),
            "freshen": (tuple[str, ...], self.freshen),
            "extract": (None, self.extraction.extract_unread),
            "import_notes": (NotesJob, self.extraction.read_notes),
            "retire_fact": (FactRetirement, self.extraction.retire),
            "adopt": (str, self.adopt),
            "calibrate": (tuple[Judgement, ...], partial(calibrate, self.stores.judgements, self._settings)),
            "rebuild_search": (None, self._rebuild_search),
            "settle": (GapSettlement, self._settle),
        }

    async def adopt(self, label: str) -> TopicAdoption:
        """Apply a topic that a person edited. Raises ConfigError if there is none, and KnowledgeError."""
        stores = self.stores
        knowledge, files, name = stores.knowledge, stores.files, parse_topic_name(label)
        async with self.learning.filing:
            if await run_sync(read_progress, knowledge) is not None:
                raise ConfigError("the topics are being regenerated; finish that with `intern regenerate`, then adopt")
            await files.catch_up(name)  # this also keeps an edit that was not noticed yet
            path = await run_sync(files.find_edit, name)
            data = await run_sync(files.layer.read, path) or b""
            work = partial(adopt, name=name, path=path, data=data, knowledge=knowledge, archive=stores.archive)
            adopted = await knowledge.change(work)
        await run_sync(files.layer.remove, path)
        await self.indexing.index_changed_topics()
        return adopted

    async def discover(self) -> DiscoveryReport:
        """Process the weightiest questions of discovery's feed. Raises KnowledgeError."""
        async with self._discovering:
            return await self._discovery.run_cycle()

    async def freshen(self, paths: Sequence[str]) -> DiscoveryReport:
        """Read these discovered files again, since a search found them. Raises KnowledgeError."""
        async with self._discovering:
            return await self._discovery.refresh_files(paths)

    async def forget(self, asked: ForgetRequest) -> ForgetResult:
        """Remove a member's messages, or single ones, from all stores; `erase`: also from the archive.

        After a kill, asking again finishes it. Raises ConfigError for an impossible id, and KnowledgeError.
        """
        user_id = asked.validate().user_id
        also = await self._find_messages_by(user_id) if user_id is not None else frozenset[MessageId]()
        async with self.learning.archivist.writing:
            knowledge, archive = self.stores.knowledge, self.stores.archive
            found = await run_sync(find_forget_scope, asked, archive, knowledge, also)
            said = make_tombstone(asked, found, self._clock.now())
            cleared = None
            if said is not None:
                cleared = await knowledge.change(partial(remove_messages, knowledge, archive, said, found.message_ids))
            # From here on, no restore from the text files brings it back. An edit that was not noticed is kept beside.
            await self.stores.files.catch_up(*found.topics)
        ids = found.message_ids
        held = bool(also) or await self.stores.remains.holds(ids) or await self.extraction.has_learned_from(ids)
        # At once: below, this waits for a refresh to end.
        await self.extraction.forget(found.message_ids)
        changed = set(cleared.topics if cleared else ())
        async with self.indexing.turn:
            await self.indexing.clear_topics({*found.topics, *changed})
        await self.stores.files.clear_edited()
        # A thread that was being read just then may have added unknown messages.
        late = frozenset[MessageId]() if user_id is None else await self.extraction.find_messages_by(user_id)
        for forget in self._derived:
            await forget({*found.message_ids, *late})
        if user_id is not None:
            await self.stores.remains.forget_member(user_id)
            await self.stores.names.forget_author(user_id)
            await self.stores.roles.forget_author(user_id)
        gone, topics = {*found.message_ids, *late}, {*found.topics, *changed}
        held = await self.stores.recorder.forget(gone, topics=topics, user_id=user_id) or held
        erased = await self._erase(found) if asked.erase else None
        await self.indexing.index_changed_topics()
        await self.stores.files.catch_up()
        done = build_forget_result(
            found, held=held, topics=changed, erased=erased, owed=await self.stores.sync_vector_engine()
        )
        _log.info("messages_forgotten", messages=done.messages, captures=done.captures, topics=list(done.topics))
        return done

    async def _find_messages_by(self, user_id: UserId) -> frozenset[MessageId]:
        """Find a member's messages that are in no archive."""
        kept = await self.stores.remains.find_messages_by(user_id) | await self.stores.questions.find_messages_by(
            user_id
        )
        return (
            kept | await self.extraction.find_messages_by(user_id) | await self.stores.cited.find_messages_by(user_id)
        )

    async def _erase(self, found: ForgetScope) -> ArchiveErasure:
        async with self.learning.archivist.writing:
            erased = await run_sync(self.stores.archive.erase, found.message_ids)
        await self.stores.db.scrub()
        await self.stores.search.scrub()
        _log.warning("archive_erased", **msgspec.structs.asdict(erased))
        return erased

    async def run_job(self, job: Job, look: Callable[[], None] = lambda: None) -> bytes:
        """Do the job of a command, and encode the result. `look` is called after jobs with a visible result."""
        if job.kind not in self._jobs:
            raise KnowledgeError(f"this version of intern knows no job {job.kind!r}; update the one that is running")
        takes, work = self._jobs[job.kind]
        try:
            given = () if takes is None else (msgspec.json.decode(job.payload or b"[]", type=takes),)
            return msgspec.json.encode(await work(*given))
        finally:
            if job.kind in _LOOKED_AFTER:
                look()

    async def _rebuild_search(self) -> None:
        await self.stores.search.rebuild()
        if self.stores.search.engine is not None:
            await self.stores.search.engine.refill()

    async def _index(self) -> RefreshReport:
        return merge_refreshes(await self.indexing.refresh(), await self.indexing.refresh_pages())

    async def _refresh(self) -> RefreshReport:
        with respect_pauses():  # for a search, which itself makes no model call
            return await self.indexing.refresh(describe=self._settings.kb_model.kind == "offline")

    async def _settle(self, settling: GapSettlement) -> None:
        await self.stores.questions.close_gaps(settling.question_ids, settling.how)

    async def _capture(self, capture: Capture) -> CapturedPair | None:
        pair = await self.learning.keep(capture)
        await self.learning.catch_up()
        await self.indexing.index_changed_topics(describe=False)
        return self.learning.drop_forgotten_messages(pair)


def build_discovery(settings: Settings, store: SqliteSearchStore, model: Model, clock: Clock) -> Discovery:
    """Return discovery with the operator's settings."""
    options, secrets = settings.discovery, settings.secrets
    scanner = Scanner(options, never=list_ignored_paths(settings))
    return Discovery(options, store=store, scanner=scanner, model=model, clock=clock, secrets=secrets)
