"""All changes of a data folder, for the process that holds its lock, and the jobs that request them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from anyio import Lock
from anyio.to_thread import run_sync

from intern.actors.job_worker import JobHandler, JobHandlers
from intern.core.captures import Capture, CapturedPair
from intern.core.clock import Clock
from intern.core.errors import ConfigError
from intern.core.ids import MessageId, UserId
from intern.core.log import get_logger
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
from intern.learning.withdrawing import remove_messages
from intern.models.prompt import Model
from intern.search.embedder import Embedder
from intern.service import job_kinds as kinds
from intern.service.calibration import calibrate
from intern.service.captures import CaptureService
from intern.service.extraction import ExtractionService
from intern.service.indexing import Indexing, list_ignored_paths, merge_refreshes
from intern.service.restoring import TopicAdoption, adopt
from intern.service.stores import Stores
from intern.service.topics import parse_topic_name
from intern.settings.settings import Settings
from intern.sources.catalogue import respect_pauses
from intern.sources.discovery import Discovery, DiscoveryReport
from intern.sources.refresh import RefreshReport
from intern.sources.scanning import Scanner
from intern.stores.archive import ArchiveErasure
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.tables.vector_cache import VectorMemory

_log = get_logger(__name__)


class Writer:
    """Makes all changes of a data folder. Only the process that holds the folder's lock has one."""

    def __init__(self, stores: Stores, model: Model, embedder: Embedder | None = None) -> None:
        """`model` is that of capture and indexing, wrapped."""
        self.stores = stores
        self._settings, self._clock, db = stores.settings, stores.clock, stores.db
        self.indexing = Indexing(stores, model, embedder)
        self.learning = CaptureService(stores, model, self.indexing)
        self.extraction = ExtractionService(stores, model)
        self._derived: tuple[ForgetMessages, ...] = (
            *(stores.pending.forget, stores.remains.forget, stores.answers.forget, stores.replies.forget),
            *(self.extraction.forget, VectorMemory(db, clock=stores.clock).forget),
        )
        self._discovery = build_discovery(stores.settings, stores.search, model, stores.clock)
        self._discovering = Lock()
        self.handlers = self._build_handlers()

    def _build_handlers(self) -> JobHandlers:
        """Return the work for each kind of job."""
        learning, extraction, judgements = self.learning, self.extraction, self.stores.judgements
        return JobHandlers(
            JobHandler(kinds.INDEX, lambda _: self._index()),
            JobHandler(kinds.REFRESH, lambda _: self._refresh()),
            JobHandler(kinds.FRESHEN, self.freshen),
            JobHandler(kinds.DISCOVER, lambda _: self.discover()),
            JobHandler(kinds.REBUILD_SEARCH, lambda _: self._rebuild_search()),
            JobHandler(kinds.CAPTURE, self._capture),
            JobHandler(kinds.IMPORT, learning.keep_imported),
            JobHandler(kinds.REGENERATE, lambda _: learning.regenerate()),
            JobHandler(kinds.REVIEW, learning.review_and_file),
            JobHandler(kinds.RETRY, learning.retry),
            JobHandler(kinds.ADOPT, self.adopt),
            JobHandler(kinds.FORGET, self.forget),
            JobHandler(kinds.EXTRACT, lambda _: extraction.extract_unread()),
            JobHandler(kinds.IMPORT_NOTES, extraction.learn_from_notes),
            JobHandler(kinds.RETIRE_FACT, extraction.retire),
            JobHandler(kinds.CALIBRATE, partial(calibrate, judgements, self._settings)),
            JobHandler(kinds.CLOSE_GAPS, self._close_gaps),
        )

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
        kept = await self.stores.remains.find_messages_by(user_id) | await self.stores.answers.find_messages_by(user_id)
        return kept | await self.extraction.find_messages_by(user_id)

    async def _erase(self, found: ForgetScope) -> ArchiveErasure:
        async with self.learning.archivist.writing:
            erased = await run_sync(self.stores.archive.erase, found.message_ids)
        await self.stores.db.scrub()
        await self.stores.search.scrub()
        _log.warning("archive_erased", **msgspec.structs.asdict(erased))
        return erased

    async def _rebuild_search(self) -> None:
        await self.stores.search.rebuild()
        if self.stores.search.engine is not None:
            await self.stores.search.engine.refill()

    async def _index(self) -> RefreshReport:
        return merge_refreshes(await self.indexing.refresh(), await self.indexing.refresh_pages())

    async def _refresh(self) -> RefreshReport:
        with respect_pauses():  # for a search, which itself makes no model call
            return await self.indexing.refresh(describe=self._settings.kb_model.kind == "offline")

    async def _close_gaps(self, settling: kinds.GapClosing) -> None:
        await self.stores.answers.close_gaps(settling.question_ids, settling.how)

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
