"""The door: what scripts, commands and evaluations do with a data folder."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256

import msgspec
from anyio import sleep
from anyio.to_thread import run_sync

from intern.actors.clerk import do_all
from intern.answering.workflow import Answerer
from intern.app.models import Models, open_models
from intern.app.workshop import Workshop
from intern.domain import AIResult, Capture, CapturedPair, Conversation, IndexEntry, RequestContext
from intern.errors import ConfigError, FolderBusyError, KnowledgeError
from intern.indexing.refresh import Refreshed
from intern.knowledge.archive import Archive
from intern.knowledge.database import Database
from intern.knowledge.jobs import Job, Jobs
from intern.knowledge.library import Library
from intern.knowledge.lock import FolderLock
from intern.knowledge.sources import SourceFolder
from intern.knowledge.topics import TopicLibrary
from intern.knowledge.usage import UsageLog
from intern.learning.regenerating import Regenerated
from intern.observe.clock import Clock, SystemClock
from intern.observe.log import get_logger
from intern.settings import Settings

_POLL_SECONDS = 0.2  # a person waits

_log = get_logger(__name__)


class Intern:
    """The door: what scripts, commands and evaluations do with a data folder. Made by `open_intern`.

    Reading takes no lock. What writes takes the folder's lock, or asks the process that holds it, and waits.
    """

    def __init__(
        self,
        settings: Settings,
        db: Database | KnowledgeError,
        *,
        models: Models,
        archive: Archive,
        topics: TopicLibrary,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._usable = db
        self._models = models
        self._clock = clock
        self._library = self._read_from(archive, topics)
        self._lock = FolderLock(settings.data.dir)
        self._workshop: Workshop | None = None

    async def answer(
        self, conversation: Conversation, context: RequestContext | None = None, *, addressed: bool = True
    ) -> AIResult:
        """A verified answer with its citations, or silence with its reason. Raises no `InternError`."""
        answerer = Answerer(self._models.answering, self._library, self._settings.ai)
        return await answerer.answer(conversation, context or RequestContext(platform="script"), addressed=addressed)

    async def entries(self) -> tuple[IndexEntry, ...]:
        """What the indices list; nothing before the first indexing. Raises KnowledgeError."""
        return await self._library.entries()

    async def index(self) -> Refreshed:
        """Bring the indices up to date. Raises KnowledgeError; what the model could not describe is `pending`."""
        return msgspec.json.decode(await self._have_done("index"), type=Refreshed)

    async def capture(self, capture: Capture) -> CapturedPair | None:
        """Archive a team answer and file it; when this returns, a question can find it.

        None where the archive holds all of it already. Raises the KnowledgeError and ModelError families.
        """
        payload = msgspec.json.encode(capture)
        return msgspec.json.decode(await self._have_done("capture", payload), type=CapturedPair | None)

    async def regenerate(self) -> Regenerated:
        """Rebuild the topics from the archive. Raises the KnowledgeError and ModelError families."""
        return msgspec.json.decode(await self._have_done("regenerate"), type=Regenerated)

    def close(self) -> None:
        """Let go of the folder."""
        self._lock.release()

    @property
    def _db(self) -> Database:
        if isinstance(self._usable, KnowledgeError):
            raise self._usable
        return self._usable

    async def _have_done(self, kind: str, payload: bytes = b"") -> bytes:
        """Do a job, or have it done by the process that holds the folder."""
        jobs = Jobs(self._db)
        if await self._holds_folder():
            return await (await self._opened()).do(Job(id=0, kind=kind, key="", payload=payload))
        job_id = await jobs.submit(kind, payload, key=sha256(payload).hexdigest())
        while True:
            outcome = await jobs.result(job_id)
            if outcome is not None:
                if outcome.error is not None:
                    raise (ConfigError if outcome.exit_code == ConfigError.exit_code else KnowledgeError)(outcome.error)
                if self._workshop is None:
                    # Another process has written what our stores have not seen.
                    self._library = self._read_from(*await run_sync(_stores, self._settings, self._clock))
                return outcome.result or b""
            if await self._holds_folder():
                # Whoever held the folder is gone: what it left is ours now.
                workshop = await self._opened()
                await jobs.reclaim()
                await do_all(jobs, workshop.do)
            await sleep(_POLL_SECONDS)

    async def _holds_folder(self) -> bool:
        try:
            await run_sync(self._lock.acquire)
        except FolderBusyError:
            return False
        return True

    async def _opened(self) -> Workshop:
        if self._workshop is None:
            workshop = await run_sync(Workshop, self._settings, self._db, self._models.learning, self._clock)
            # Whoever writes knows best what is there.
            self._workshop, self._library = workshop, self._read_from(workshop.archive, workshop.topics)
        return self._workshop

    def _read_from(self, archive: Archive, topics: TopicLibrary) -> Library:
        paths = self._settings.paths
        return Library(
            kb_index=paths.index,
            team_index=paths.team_index,
            sources=SourceFolder(paths.sources, self._settings.kb.max_source_bytes),
            topics=topics,
            archive=archive,
        )


@asynccontextmanager
async def open_intern(settings: Settings, *, clock: Clock | None = None) -> AsyncGenerator[Intern]:
    """Open a data folder. Raises ConfigError where the settings cannot work, KnowledgeError where the disk fails.

    A folder that cannot be written to can still be asked; what models cost is not kept then.
    """
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        db: Database | KnowledgeError
        try:
            db = await stack.enter_async_context(await Database.open(settings.paths.database))
        except KnowledgeError as error:
            _log.warning("database_not_opened", reason=str(error))
            db = error
        usage = None if isinstance(db, KnowledgeError) else UsageLog(db)
        models = await stack.enter_async_context(open_models(settings, usage, clock))
        archive, topics = await run_sync(_stores, settings, clock)
        intern = Intern(settings, db, models=models, archive=archive, topics=topics, clock=clock)
        try:
            yield intern
        finally:
            intern.close()


def _stores(settings: Settings, clock: Clock) -> tuple[Archive, TopicLibrary]:
    """What answers read. Blocks; raises KnowledgeError."""
    return Archive(settings.paths.raw, clock=clock), TopicLibrary(settings.paths.topics)
