"""The application: the operations of scripts, commands and evaluations on a data folder."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
from anyio import CancelScope, current_time, sleep
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from intern.actors.job_worker import do_all_jobs
from intern.answering.answer_trace import list_steps, tokens_by_prompt
from intern.answering.answerer import Answerer
from intern.answering.prepared_question import PreparedQuestion, prepare_question
from intern.answering.triage import is_chatter
from intern.core.captures import Capture, CapturedPair
from intern.core.clock import Clock
from intern.core.decisions import PairDecision
from intern.core.errors import ConfigError, FolderBusyError, KnowledgeError, ModelUnavailableError
from intern.core.ids import QAId
from intern.core.knowledge import IndexEntry
from intern.core.log import get_logger
from intern.core.messages import AnswerResult, Conversation, RequestContext
from intern.core.progress import report_progress
from intern.core.search_documents import SearchFilter
from intern.facts.extraction import ExtractionOutcome
from intern.learning.filing import DecisionCounts
from intern.learning.regenerating import RegenerationProgress, RegenerationResult, read_progress
from intern.learning.review import Review
from intern.search.embedder import Embedder
from intern.service import job_kinds as kinds
from intern.service.calibration import CalibrationStatus, check_calibration, describe_setup
from intern.service.captured_pairs import CapturedPairs
from intern.service.captures import check_parked, check_waiting
from intern.service.databases import find_worker, open_archive, open_read_only
from intern.service.extraction import FOLLOWER
from intern.service.facts import LearnedFacts
from intern.service.indexing import open_library
from intern.service.knowledge_search import KnowledgeSearch, SearchResult
from intern.service.model_wrapping import wrap_models
from intern.service.models import Models, answering_options, load_templates
from intern.service.questions import AskedQuestions
from intern.service.recordings import RecordingDetails, Recordings, ReplayedRecording
from intern.service.restoring import RestoreResult, copy_archive, export, restore
from intern.service.stores import Stores, open_search
from intern.service.writer import Writer, build_discovery
from intern.settings.settings import Paths, Settings
from intern.sources.discovery import DiscoveryFeed
from intern.sources.refresh import RefreshReport
from intern.stores.database import Database
from intern.stores.folder_lock import FolderLock
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.tables.jobs import GivesT, JobKind, JobQueue, TakesT
from intern.stores.tables.judgements import Judgement, JudgementStore
from intern.stores.tables.knowledge import KnowledgeStore

# For the lab, which reads the outcome of a question.
__all__ = ["PreparedQuestion", "is_chatter", "list_steps", "prepare_question", "tokens_by_prompt"]

_POLL_SECONDS = 0.2  # a person waits
_SAID_AFTER = 1.0  # seconds until that person learns which process this waits for
_VECTORS_STUCK = 60.0  # seconds without a new vector; then the process with the folder makes none

_log = get_logger(__name__)


class Intern:
    """One data folder, to ask, to search and to change. Made by `open_intern`.

    Reading takes no lock. Writing takes the folder's lock, or asks the process that holds it and waits.
    """

    def __init__(
        self, settings: Settings, db: Database | KnowledgeError, models: Models, clock: Clock, embedder: Embedder | None
    ) -> None:
        """Block: read the stored knowledge."""
        self._settings, self._usable, self._models = settings, db, models
        self._clock, self._embedder = clock, embedder
        # One for all: it holds the vectors in memory.
        self._store = None if isinstance(db, KnowledgeError) else open_search(settings, db)
        self._lock = FolderLock(settings.home)
        self._writer: Writer | None = None
        self._open_sources()

    async def answer(
        self, conversation: Conversation, context: RequestContext | None = None, *, addressed: bool = True
    ) -> AnswerResult:
        """Return a verified answer with citations, or silence with its reason. Raises no `InternError`."""
        context = context or RequestContext(platform="script")
        result = await self._answerer.answer(conversation, context, addressed=addressed)
        if result.reason in {"no_sources", "no_answer"} and isinstance(self._usable, KnowledgeError):
            # Nuggets, facts and texts were not searched: the answer may well be known.
            debug = {**(result.debug or {}), "error": str(self._usable)}
            return msgspec.structs.replace(result, reason="knowledge_failed", debug=debug)
        return result

    async def entries(self) -> tuple[IndexEntry, ...]:
        """Return the entries of the indices; none before the first indexing. Raises KnowledgeError."""
        return await self._library.entries()

    async def index(self, *, vectors_within: float = math.inf) -> RefreshReport:
        """Bring the indices, nuggets and facts up to date. Raises KnowledgeError.

        Sources that the model could not describe are `pending`; the next call retries unread conversations. Words can
        be searched when this returns. Making vectors is limited to these seconds: see `finish_vectors`.
        """
        refreshed = await self.run_job(kinds.INDEX, None)
        await self._extract(vectors_within=vectors_within)
        return refreshed

    async def extract(
        self, tell: Callable[[int, int], None] = lambda _done, _of: None, *, vectors_within: float = math.inf
    ) -> Mapping[ExtractionOutcome, int]:
        """Read the filed conversations that were never read, and count the outcomes.

        `tell` gets the number of conversations checked and their total, unless another process does the work. Raises
        the KnowledgeError and ModelError families; progress is kept.
        """
        came = await self.run_job(kinds.EXTRACT, None, here=lambda writer: writer.extraction.extract_unread(tell))
        if self._writer is not None:
            await self._writer.indexing.make_vectors(vectors_within)
        return came

    @property
    def holds_folder(self) -> bool:
        """Whether this process does the work. Otherwise another one does, such as the running bot."""
        return self._lock.is_held

    async def count_without_vectors(self) -> int:
        """Return how many documents still need a vector. Raises KnowledgeError."""
        return 0 if self._embedder is None else await self._search.count_unembedded(self._embedder.model)

    async def finish_vectors(self) -> int:
        """Make all vectors, or wait for the process that does, and return the number missing. Raises KnowledgeError."""
        if self._writer is not None:
            await self._writer.indexing.make_vectors()
            return await self.count_without_vectors()
        most = left = await self.count_without_vectors()
        changed_at = current_time()
        while left and current_time() - changed_at < _VECTORS_STUCK and not await self._holds_folder():
            report_progress("Waiting for the vectors of {total} passages", most - left, most)
            await sleep(_POLL_SECONDS)
            before, left = left, await self.count_without_vectors()
            if left != before:
                most, changed_at = max(most, left), current_time()
        if left and await self._holds_folder():
            await (await self._open_writer()).indexing.make_vectors()
        return await self.count_without_vectors()

    async def capture(self, capture: Capture) -> CapturedPair | None:
        """Archive a team answer and file it; when this returns, a question can find it.

        None where the archive holds all of it already. Raises the KnowledgeError and ModelError families.
        """
        return await self.run_job(kinds.CAPTURE, capture)

    async def regenerate(self, progress: Callable[[RegenerationProgress], None] | None = None) -> RegenerationResult:
        """Rebuild the topics from the archive, or continue doing so. Raises the KnowledgeError and ModelError families.

        `progress` gets the state so far, or only that of the last epoch if another process does the work.
        """

        async def report_state() -> None:
            so_far = await run_sync(read_progress, self._knowledge)
            if so_far is not None and progress is not None:
                progress(so_far)

        return await self.run_job(
            kinds.REGENERATE,
            None,
            here=lambda writer: writer.learning.regenerate(progress),
            meanwhile=report_state,
        )

    async def file_archived(
        self,
        tell: Callable[[int], None] = lambda _: None,
        tell_read: Callable[[int], None] = lambda _: None,
        *,
        vectors_within: float = math.inf,
    ) -> DecisionCounts | None:
        """File all archived pairs without a decision; None if the process that holds the folder does so.

        `tell` gets the number of decided pairs, `tell_read` the number of conversations read after that. Making vectors
        is limited to these seconds: see `finish_vectors`. Raises the KnowledgeError and ModelError families.
        """
        async with self._hold_folder() as writer:
            if writer is None:
                return None
            tally = await writer.learning.catch_up(tell)
        await self._extract(tell_read, vectors_within=vectors_within)
        return tally

    async def restore(self, folder: Path) -> RestoreResult:
        """Rebuild the database from the text files of a data folder, which may be this one; ask no model.

        Raises ConfigError if it holds decisions already, FolderBusyError beside a running bot, and KnowledgeError.
        """
        if self._settings.moves:
            raise ConfigError("a community that several processes may host is restored with the tools of PostgreSQL")
        await self._acquire()
        paths = self._settings.paths
        # Another folder has its files where they are by default.
        where = paths if await run_sync(folder.resolve) == await run_sync(paths.data.resolve) else Paths(folder)
        restored = await restore(self._db, paths, where, self._clock, follower=FOLLOWER)
        await self._search.rebuild()  # an older file may contain messages that were forgotten since
        return restored

    async def export(self, folder: Path) -> tuple[str, ...]:
        """Write archive, decisions, topics and indices as text files into an empty folder; return their names.

        Raises ConfigError where the folder is not empty, and KnowledgeError.
        """
        knowledge = await run_sync(partial(KnowledgeStore, self._db, clock=self._clock))
        copy = self._archive.copy_to if self._settings.moves else partial(copy_archive, self._settings.paths.raw)
        return await export(knowledge, copy, Paths(folder))

    async def review(self, review: Review) -> tuple[PairDecision, ...]:
        """Approve or reject waiting captures, file them if possible, and return the last decision about each.

        Raises ConfigError for an unknown id or a pair that is not waiting, and KnowledgeError.
        """
        await run_sync(check_waiting, self._settings, review)
        return await self.run_job(kinds.REVIEW, review)

    @property
    def facts(self) -> LearnedFacts:
        """The learned facts and nuggets. Raises KnowledgeError."""
        return LearnedFacts(self._db, self._clock)

    @property
    def captures(self) -> CapturedPairs:
        """The captured pairs. Raises KnowledgeError."""
        return CapturedPairs(self._settings, self._knowledge, self._archive, self._search)

    async def explain(self, name: str = "", *, limit: int = 20) -> tuple[RecordingDetails, ...]:
        """Return the recordings of a message, its link, a pair or a source; without a name, the newest.

        Raises ConfigError if there are none, and KnowledgeError.
        """
        return await (self._recordings.explain(name) if name else self._recordings.list_newest(limit))

    @property
    def questions(self) -> AskedQuestions:
        """The questions of members, and the open gaps. Raises KnowledgeError."""
        return AskedQuestions(self._settings, self._db, self._recordings, self.run_job, self._clock)

    async def replay(
        self, wanted: str | datetime, *, offline: bool = False, only: str = ""
    ) -> tuple[ReplayedRecording, ...]:
        """Replay the recordings of a name, or all answers since a time, as `Recordings.replay` does."""
        learning, templates = self._models.learning, await run_sync(load_templates, self._settings)
        return await self._recordings.replay(
            wanted, answerer=self._answerer, learning=learning, templates=templates, offline=offline, only=only
        )

    async def calibrate(self, judged: Sequence[Judgement] = (), *, dry_run: bool = False) -> CalibrationStatus:
        """Store judgements and calibrate by all; with `dry_run`, only return the result. Raises KnowledgeError."""
        if dry_run:
            return await check_calibration(self._db, self._settings)
        return await self.run_job(kinds.CALIBRATE, judged)

    async def retry(self, qa_ids: Sequence[QAId] = ()) -> tuple[PairDecision, ...]:
        """File parked pairs now, all or these, and return the last decision about each.

        Raises ConfigError for an unknown id or a pair that is not parked, and the KnowledgeError and ModelError
        families while nothing can be filed.
        """
        await run_sync(check_parked, self._settings, qa_ids)
        return await self.run_job(kinds.RETRY, tuple(qa_ids))

    async def search(self, text: str, wanted: SearchFilter | None = None, limit: int = 10) -> tuple[SearchResult, ...]:
        """Search all knowledge for a text, best results first. Raises KnowledgeError.

        Documents that changed since they were indexed are indexed again first, if possible; deleted ones are left out.
        Raises ConfigError for a server that is not configured and has no content here.
        """
        finder = KnowledgeSearch(self._settings, self._knowledge, self._search, self._embedder, self._clock)
        return await finder.find_current(text, wanted or SearchFilter(), limit, self.run_job)

    async def preview_discovery(self) -> DiscoveryFeed:
        """List the files that discovery would read, and the places that it cannot read. Raises KnowledgeError."""
        return await build_discovery(self._settings, self._search, self._models.learning, self._clock).find_questions()

    async def _extract(self, tell: Callable[[int], None] = lambda _: None, *, vectors_within: float = math.inf) -> None:
        """Learn from filed conversations and make vectors, unless another process does so in this folder."""
        if self._writer is None:
            return
        try:
            await self._writer.extraction.extractor.repair_search()
            await self._writer.extraction.catch_up(tell)
        except ModelUnavailableError as error:
            _log.warning("extraction_delayed", reason=str(error))
        await self._writer.indexing.make_vectors(vectors_within)

    async def write_files(self) -> None:
        """Bring text files and the vector engine up to date. If one fails, the next start does it."""
        if self._writer is not None:
            with CancelScope(shield=True):
                try:
                    await self._writer.stores.files.catch_up()
                except KnowledgeError as error:
                    _log.warning("text_files_behind", reason=str(error))
            await self._writer.stores.sync_vector_engine()
            await self._writer.stores.recorder.store()

    def close(self) -> None:
        """Release the folder."""
        self._lock.release()

    @property
    def _answerer(self) -> Answerer:
        judgements = None if isinstance(self._usable, KnowledgeError) else JudgementStore(self._usable)
        models, options, setup = self._models, answering_options(self._settings), describe_setup(self._settings)
        return Answerer(models.answering, self._library, options, models.nearest, judgements, setup)

    @property
    def _recordings(self) -> Recordings:
        return Recordings(self._db, self._archive, self._knowledge)

    @property
    def _search(self) -> SqliteSearchStore:
        return self._store or open_search(self._settings, self._db)

    @property
    def _db(self) -> Database:
        if isinstance(self._usable, KnowledgeError):
            raise self._usable
        return self._usable

    async def run_job(
        self,
        kind: JobKind[TakesT, GivesT],
        given: TakesT,
        *,
        here: Callable[[Writer], Awaitable[GivesT]] | None = None,
        meanwhile: Callable[[], Awaitable[object]] = checkpoint,
    ) -> GivesT:
        """Do a job (with `here`), or wait for the process that holds the folder to do it (and call `meanwhile`)."""
        jobs, said_after = JobQueue(self._db), current_time() + _SAID_AFTER
        async with self._hold_folder() as writer:
            if writer is not None:
                return await (here(writer) if here else writer.handlers.run(kind, given))

        async def take_over_or_report() -> None:
            # Where the process that held the folder is gone, its jobs are ours now.
            if not await self.do_jobs():
                if current_time() >= said_after:
                    report_progress(
                        f"{await find_worker(self._settings, self._db)} works on this folder; waiting (Ctrl-C to stop)"
                    )
                await meanwhile()

        try:
            return await jobs.wait(kind, await jobs.submit(kind, given), take_over_or_report)
        finally:
            if self._writer is None:
                # Another process has written data that our stores have not read.
                await run_sync(self._open_sources)

    async def do_jobs(self) -> bool:
        """Do the waiting jobs and return True; False where another process holds the folder. Raises KnowledgeError."""
        async with self._hold_folder() as writer:
            if writer is not None:
                await writer.stores.jobs.reclaim()
                await do_all_jobs(writer.stores.jobs, writer.handlers)
        return writer is not None

    async def acquire_writer(self) -> Writer:
        """Return the writer of a folder that no other process uses. Raises FolderBusyError and KnowledgeError."""
        await self._acquire()
        return await self._open_writer()

    async def _acquire(self) -> None:
        held = self._lock.is_held
        await run_sync(self._lock.acquire)
        try:
            await self._db.lock_community()
        except KnowledgeError:
            if not held:
                self._lock.release()
            raise

    async def _holds_folder(self) -> bool:
        with suppress(FolderBusyError):
            await self._acquire()
            return True
        return False

    @asynccontextmanager
    async def _hold_folder(self) -> AsyncGenerator[Writer | None]:
        """Hold the folder, and write its files at the end; None where another process holds it."""
        if not await self._holds_folder():
            yield None
            return
        try:
            yield await self._open_writer()
        finally:
            await self.write_files()

    async def _open_writer(self) -> Writer:
        if self._writer is None:
            stores = await run_sync(Stores, self._settings, self._db, self._clock)
            _, model = wrap_models(self._models, stores)
            self._writer = await run_sync(Writer, stores, model, self._embedder)
            await run_sync(self._open_sources)
        return self._writer

    def _open_sources(self) -> None:
        """Open the sources of answers: the writer's stores, which are the newest, or else the files on disk."""
        settings, stores = self._settings, self._writer and self._writer.stores
        usable = open_read_only(settings) if isinstance(self._usable, KnowledgeError) else self._usable
        self._knowledge = stores.knowledge if stores else KnowledgeStore(usable, clock=self._clock)
        self._archive = stores.archive if stores else open_archive(settings, usable, clock=self._clock)
        self._archive.newest_time()  # reads it, in this thread
        opened = partial(open_library, settings, self._archive, self._knowledge, clock=self._clock)
        self._library = opened(search=self._store, embedder=self._embedder)
