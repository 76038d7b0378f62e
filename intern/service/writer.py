"""All that changes a data folder, put together for the process that holds its lock, and the jobs that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from anyio import Lock
from anyio.to_thread import run_sync

from intern.core.clock import Clock
from intern.core.errors import KnowledgeError
from intern.core.ids import MessageId, QAId, TopicName, UserId
from intern.core.log import get_logger
from intern.core.records import Capture
from intern.facts.reconciling import Retirement
from intern.learning.forgetting import Forget, Forgets, Forgot, Search, bury, clear, removed, search, told
from intern.learning.review import Review
from intern.models.prompt import Model
from intern.search.finding import Embedder
from intern.service.extraction import Extraction, NotesJob
from intern.service.indexing import Indexing, joined
from intern.service.learning import Learning
from intern.service.searching import never_discovered
from intern.service.stores import Stores
from intern.settings.loading import Settings
from intern.sources.addresses import Policy
from intern.sources.catalogue import unasked
from intern.sources.investigating import Discovered, Discovery
from intern.sources.pages import OpenWeb
from intern.sources.scanning import Scanner
from intern.stores.archive import Erased
from intern.stores.files import FileLayer
from intern.stores.sqlite.database import Database
from intern.stores.sqlite.jobs import Job
from intern.stores.sqlite.search_index import SqliteSearchStore
from intern.stores.sqlite.usage import VectorMemory
from intern.stores.topics import TopicLibrary

_log = get_logger(__name__)


class Writer:
    """All that changes a data folder. Only the process that holds the folder's lock has one."""

    def __init__(
        self,
        settings: Settings,
        db: Database,
        model: Model,
        clock: Clock,
        files: FileLayer | None = None,
        *,
        web: OpenWeb | None = None,
        policy: Policy | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        """Open the stores, and finish what a killed process left half done. Blocks.

        Raises KnowledgeError, and ConfigError where the setting of what is passed over would swallow what is to come.
        `web` fetches pages and `policy` says which; both are for tests.
        """
        self._settings = settings
        self._db = db
        self._clock = clock
        self._files = files
        self.stores = stores = Stores(settings, db, clock, files)
        self.indexing = Indexing(settings, stores, model, clock, files, web=web, policy=policy, embedder=embedder)
        self.learning = Learning(settings, stores, model, clock, files, indexing=self.indexing)
        self.extraction = Extraction(settings, db, model, clock, stores=stores)
        self._derived: tuple[Forgets, ...] = (
            stores.pending,
            stores.remains,
            stores.unanswered,
            stores.cited,
            stores.replies,
            self.extraction,
            VectorMemory(db, clock=clock),
        )
        self._discovery = discovery_of(settings, stores.search, model, clock)
        self._discovering = Lock()

    async def discover(self) -> Discovered:
        """Work off the weightiest questions of discovery's feed. Raises KnowledgeError."""
        async with self._discovering:
            return await self._discovery.work()

    async def freshen(self, paths: Sequence[str]) -> Discovered:
        """Look at these discovered files again, since a search found them. Raises KnowledgeError."""
        async with self._discovering:
            return await self._discovery.freshen(paths)

    async def forget(self, asked: Forget) -> Forgot:
        """Take a member's messages, or single ones, out of all that is held; `erase`: also out of the archive.

        Killed in between, asking again does the rest. Raises ConfigError for what can be no id, and KnowledgeError.
        """
        user_id = asked.checked().user_id
        also = await self._written_by(user_id) if user_id is not None else frozenset[MessageId]()
        async with self.learning.archivist.held():
            found = await run_sync(search, asked, self.stores.archive, self.stores.decisions, also)
            await run_sync(bury, asked, found, self.stores.decisions, self._clock)
        held = (
            bool(also)
            or await self.stores.remains.held(found.message_ids)
            or await self.extraction.holds(found.message_ids)
        )
        # At once: below, this waits for a filing to end.
        await self.extraction.forget(found.message_ids)
        async with self.learning.filing, self.indexing.turn:
            cleared = await self.learning.take_out_withdrawn()
            changed = {*cleared, *await run_sync(self._clear_libraries, found)}
            await self.indexing.cleared({*found.topics, *changed})
        # A thread that was being read just then may have brought messages that were unknown before.
        late = frozenset[MessageId]() if user_id is None else await self.extraction.written_by(user_id)
        for store in self._derived:
            await store.forget({*found.message_ids, *late})
        if user_id is not None:
            await self.stores.remains.forget_member(user_id)
            await self.stores.names.forget_author(user_id)
            await self.stores.roles.forget_author(user_id)
        erased = await self._erase(found) if asked.erase else None
        done = told(found, held=held, topics=changed, erased=erased)
        _log.info("messages_forgotten", messages=done.messages, captures=done.captures, topics=list(done.topics))
        await self.indexing.topics_changed()
        return done

    async def _written_by(self, user_id: UserId) -> frozenset[MessageId]:
        """A member's messages that stand in no archive."""
        kept = await self.stores.remains.written_by(user_id) | await self.stores.unanswered.written_by(user_id)
        return kept | await self.extraction.written_by(user_id) | await self.stores.cited.written_by(user_id)

    def _clear_libraries(self, found: Search) -> set[TopicName]:
        """The topics, and the libraries that stand beside them: the one before, and one that is being built."""
        folder = self._settings.paths.topics
        gone = self.stores.decisions.is_withdrawn
        changed = clear(self.stores.topics, folder, found, self.stores.archive, gone)
        removed(changed.values(), self.stores.decisions, self._clock)
        for beside in (folder.with_name(f"{folder.name}.prev"), folder.with_name(f"{folder.name}.next")):
            if beside.is_dir():
                clear(TopicLibrary(beside, self._files), beside, found, self.stores.archive, gone)
        return set(changed)

    async def _erase(self, found: Search) -> Erased:
        erased = await self.learning.archivist.erase(found.message_ids)
        await self._db.scrub()
        _log.warning("archive_erased", **msgspec.structs.asdict(erased))
        return erased

    async def do(self, job: Job, look: Callable[[], None] = lambda: None) -> bytes:
        """Do what a command asked for, and encode what it gave. `look` is called once there is something to see."""
        result: object
        match job.kind:
            case "index":
                result = joined(await self.indexing.refresh(), await self.indexing.refresh_pages())
            case "refresh":  # for a search, which makes no model call by itself
                with unasked():
                    result = await self.indexing.refresh(describe=self._settings.kb_model.kind == "offline")
            case "regenerate":
                done = await self.learning.regenerate()
                look()
                result = done
            case "capture":
                pair = await self.learning.keep(msgspec.json.decode(job.payload, type=Capture))
                await self.learning.catch_up()
                await self.indexing.topics_changed(describe=False)
                look()
                result = self.learning.unforgotten(pair)
            case "import":
                kept = await self.learning.keep_imported(msgspec.json.decode(job.payload, type=list[Capture]))
                look()
                result = kept
            case "forget":
                forgot = await self.forget(msgspec.json.decode(job.payload, type=Forget))
                look()
                result = forgot
            case "review":
                said = await self.learning.review_and_file(msgspec.json.decode(job.payload, type=Review))
                look()
                result = said
            case "retry":
                try:
                    retried = await self.learning.retry(
                        msgspec.json.decode(job.payload or b"[]", type=tuple[QAId, ...])
                    )
                finally:
                    look()
                result = retried
            case _:
                result = await self._do_quietly(job)
        return msgspec.json.encode(result)

    async def _do_quietly(self, job: Job) -> object:
        """Jobs that leave nothing to look at."""
        match job.kind:
            case "discover":
                return await self.discover()
            case "freshen":
                return await self.freshen(msgspec.json.decode(job.payload, type=tuple[str, ...]))
            case "extract":
                return await self.extraction.take_up()
            case "import_notes":
                return await self.extraction.read_notes(msgspec.json.decode(job.payload, type=NotesJob))
            case "retire_fact":
                return await self.extraction.retire(msgspec.json.decode(job.payload, type=Retirement))
            case unknown:
                raise KnowledgeError(f"this version of intern knows no job {unknown!r}; update the one that is running")


def discovery_of(settings: Settings, store: SqliteSearchStore, model: Model, clock: Clock) -> Discovery:
    """Discovery as the operator wants it."""
    return Discovery(
        settings.discovery,
        store=store,
        scanner=Scanner(settings.discovery, never=never_discovered(settings)),
        model=model,
        clock=clock,
        secrets=settings.secrets,
    )
