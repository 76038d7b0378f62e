"""All that changes a data folder, put together for the process that holds its lock, and the jobs that ask for it."""

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

from intern.actors.extractor import Step
from intern.actors.loops import Due
from intern.core.clock import Clock
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.ids import ConversationId, MessageId, QAId, UserId, answered_conversation, answered_thread
from intern.core.log import get_logger
from intern.core.memory import Room
from intern.core.records import Capture, CapturedPair, Decision, Forgotten, Withdrawn
from intern.facts.extracting import Came, Extractor, at_once
from intern.facts.reconciling import Retirement
from intern.facts.segments import Segment, concerned
from intern.learning.answered_threads import Answered
from intern.learning.filing import take_out
from intern.learning.forgetting import Forget, Forgets, Forgot, Search, search, told, tombstone
from intern.learning.regenerating import progress_of
from intern.learning.review import Review
from intern.models.limits import Window
from intern.models.prompt import Model
from intern.search.finding import Embedder
from intern.service.calibration import calibrate
from intern.service.learning import Learning
from intern.service.models import templates_of
from intern.service.questions import Settling
from intern.service.reading import named_topic
from intern.service.restoring import Adopted, adopt
from intern.service.searching import Indexing, joined, never_discovered
from intern.service.stores import OpenTemplates, Stores
from intern.settings.loading import Settings
from intern.sources.catalogue import unasked
from intern.sources.discovery import Discovered, Discovery
from intern.sources.refresh import Refreshed
from intern.sources.scanning import Scanner
from intern.stores.archive import Erased
from intern.stores.database import Database
from intern.stores.files import FileLayer
from intern.stores.sqlite.chat import AnsweredThreads
from intern.stores.sqlite.extractions import ExtractionLog, NuggetStore
from intern.stores.sqlite.facts import FactStore
from intern.stores.sqlite.judgements import Judgement
from intern.stores.sqlite.search_index import SqliteSearchStore
from intern.stores.sqlite.usage import VectorMemory
from intern.stores.sqlite.work import Job, JobOutcome

_log = get_logger(__name__)


FOLLOWER = "extractor"
"""Whose position it is."""

# Jobs that leave something to see.
_LOOKED_AFTER = frozenset({"regenerate", "capture", "import", "forget", "review", "retry"})
_READ_AHEAD = 32  # decisions; a follower asks again when it is through


class NotesJob(Struct, frozen=True, kw_only=True):
    """What an import of notes asks for."""

    notes: tuple[Segment, ...] = ()
    withdrawn: tuple[ConversationId, ...] = ()
    """Notes that are no more."""


def given_by(outcome: JobOutcome) -> bytes:
    """Return what a job gave. Raises what it ended with, as ConfigError or KnowledgeError."""
    if outcome.error is not None:
        raise (ConfigError if outcome.exit_code == ConfigError.exit_code else KnowledgeError)(outcome.error)
    return outcome.result or b"null"


class _Pacing:
    """Waits until one more conversation may be read. All who read in this process share it."""

    def __init__(self, most: int) -> None:
        """`most` in any minute."""
        self._window = Window(most)
        self._turns = Lock()

    async def __call__(self) -> None:
        async with self._turns:
            await sleep(self._window.wait(current_time()))
            self._window.start(current_time())


class Extraction:
    """What the extractor works with. All methods raise KnowledgeError."""

    def __init__(self, stores: Stores, model: Model) -> None:
        settings, db, clock = stores.settings, stores.db, stores.clock
        self.facts = FactStore(db, clock=clock)
        self.nuggets = NuggetStore(db)
        self.log = ExtractionLog(db, clock=clock)
        # Rules cost nothing that is worth a bound.
        paced = settings.kb_model.kind == "endpoint"
        self._auto = settings.extraction.auto
        self._archive = archive = stores.archive
        self._knowledge = decisions = stores.knowledge
        self.extractor = Extractor(
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
            pace=_Pacing(settings.extraction.max_per_minute) if paced else at_once,
        )
        self.answered = Answered(
            options=settings.extraction,
            mask=settings.kb.masked,
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
        position = await self.log.position(FOLLOWER)
        return int(position) if position is not None and position.isascii() and position.isdigit() else 0

    async def followed(self, position: int) -> None:
        """All up to there was looked at."""
        await self.log.move(FOLLOWER, str(position))

    async def after(self, position: int | None) -> Sequence[Step]:
        """Return some of the decisions after `position`, and which conversations each is about."""
        steps = list[Step]()
        for step, decision in await run_sync(self._after, position or 0):
            if isinstance(decision, Withdrawn | Forgotten):
                also = await self.answered.concerned(decision.message_ids)
                steps.append(replace(step, conversations=(*step.conversations, *also)))
            else:
                steps.append(step)
        return steps

    async def due(self, handed: AbstractSet[Hashable]) -> Due[Step]:
        """Return the next conversation to retry, or the next thread that is due."""
        del handed  # a failure that is tried again is due again later, or never
        conversation_id, seconds = await self.extractor.next_retry()
        if conversation_id is None:
            # Forgotten messages stood in it; what else did is read anew.
            conversation_id = await self.log.due()
        if conversation_id is None:
            thread_id, later = await self.answered.due()
            if thread_id is None:
                return Due(seconds=min((each for each in (seconds, later) if each is not None), default=None))
            conversation_id = answered_conversation(thread_id)
        return Due(record=Step(conversations=(conversation_id,)), key=conversation_id)

    async def extract(self, conversation_id: ConversationId) -> Came:
        """Learn what there is to learn from a conversation as it stands now; also raises the ModelError family.

        Where nothing is to be extracted by itself, what stands no more is withdrawn all the same.
        """
        thread_id = answered_thread(conversation_id)
        if thread_id is not None:
            return await self.answered.look(thread_id)
        return await self._extract(conversation_id, learns=self._auto)

    async def _extract(self, conversation_id: ConversationId, *, learns: bool) -> Came:
        pair = await run_sync(self._archive.latest_of, conversation_id)
        if pair is not None:
            await self.answered.give_way(pair.message_ids)
        came = await self.extractor.extract(conversation_id, learns=learns)
        await self.log.looked(conversation_id)
        return came

    async def park(self, conversation_id: ConversationId, why: str) -> None:
        """Leave a conversation alone until it changes."""
        thread_id = answered_thread(conversation_id)
        if thread_id is not None:
            await self.answered.park(thread_id)
        else:
            await self.extractor.park(conversation_id, why)
            await self.log.looked(conversation_id)

    async def take_up(self, tell: Callable[[int, int], None] = lambda _done, _of: None) -> Mapping[Came, int]:
        """Read all conversations that stand and were never read, and say how many came to which end.

        They were filed while nothing was to be extracted, or were too short for an older setting. Also raises
        ModelUnavailableError; what was read by then stays so. `tell` hears how many of how many were looked at.
        """
        came: Counter[Came] = Counter()
        archive = self._archive
        conversations = await run_sync(lambda: dict.fromkeys(pair.conversation_id for pair in archive.after(None)))
        for done, conversation_id in enumerate(conversations, 1):
            came[await self._extract(conversation_id, learns=True)] += 1
            tell(done, len(conversations))
        return came

    async def catch_up(self, tell: Callable[[int], None] = lambda _: None) -> int:
        """Read all conversations decided since the last time, and return their number.

        Also raises ModelUnavailableError; what was looked at by then stays so. `tell` hears how many that are so far.
        """
        looked, position = 0, await self.position()
        while steps := await self.after(position):
            for conversation_id in dict.fromkeys(chain.from_iterable(step.conversations for step in steps)):
                await self.extract(conversation_id)
                looked += 1
                tell(looked)
            position = steps[-1].position or position
            await self.followed(position)
        while (due := await self.log.due()) is not None:
            await self.extract(due)
            looked += 1
        return looked

    async def retire(self, asked: Retirement) -> Retirement:
        """Have a fact believed no more, and say why it is not. Raises ConfigError where there is no such fact."""
        try:
            fact = await self.facts.retire(asked.fact_id, asked.why)
        except LookupError:
            raise ConfigError(f"there is no fact {asked.fact_id}; `intern facts list` tells their ids") from None
        await self.extractor.show((fact.id,))
        return Retirement(fact_id=fact.id, why=fact.retired_why)

    async def read_notes(self, asked: NotesJob) -> Mapping[Came, int]:
        """Learn from notes, and withdraw what others taught. Also raises ModelUnavailableError."""
        for conversation_id in asked.withdrawn:
            await self.extractor.withdraw(conversation_id)
        return Counter([await self.extractor.read(note) for note in asked.notes])

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Keep nothing of these messages, nor of what was made from them. Bears repetition."""
        await self.extractor.forget(message_ids)
        await self.answered.forget(message_ids)

    async def written_by(self, user_id: UserId) -> frozenset[MessageId]:
        """Find a member's messages that may have taught something, though no archive holds them."""
        return await self.answered.threads.written_by(user_id)

    async def holds(self, message_ids: Collection[MessageId]) -> bool:
        """Whether something was learned from one of these messages."""
        return bool(await self.log.holding(message_ids) or await self.answered.threads.holding(message_ids))

    def _after(self, position: int) -> list[tuple[Step, Decision]]:
        return [
            (Step(conversations=concerned(placed, self._archive), position=placed.position), placed.decision)
            for placed in self._knowledge.after(position, _READ_AHEAD)
        ]


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
        embedder: Embedder | None = None,
        templates: OpenTemplates = templates_of,
        room: Room | None = None,
    ) -> None:
        """Open the stores, and finish what a killed process left half done. Blocks.

        Raises KnowledgeError, and ConfigError where the setting of what is passed over would swallow what is to come.
        `web` fetches pages and `policy` says which; both are for tests.
        """
        self._settings, self._clock = settings, clock
        self.stores = stores = Stores(settings, db, clock, files, templates=templates, room=room)
        model = stores.recorder.over(model, settings.kb_model.known_as)
        self.indexing = Indexing(stores, model, embedder)
        self.learning = Learning(stores, model, self.indexing)
        self.extraction = Extraction(stores, model)
        self._derived: tuple[Forgets, ...] = (
            *(stores.pending, stores.remains, stores.questions, stores.cited, stores.replies),
            *(self.extraction, VectorMemory(db, clock=clock)),
        )
        self._discovery = discovery_of(settings, stores.search, model, clock)
        self._discovering = Lock()
        self._jobs: Mapping[str, tuple[Any, Callable[..., Awaitable[object]]]] = {
            "index": (None, self._index),
            "refresh": (None, self._refresh),
            "regenerate": (None, self.learning.regenerate),
            "capture": (Capture, self._capture),
            "import": (list[Capture], self.learning.keep_imported),
            "forget": (Forget, self.forget),
            "review": (Review, self.learning.review_and_file),
            "retry": (tuple[QAId, ...], self.learning.retry),
            "discover": (None, self.discover),
            "freshen": (tuple[str, ...], self.freshen),
            "extract": (None, self.extraction.take_up),
            "import_notes": (NotesJob, self.extraction.read_notes),
            "retire_fact": (Retirement, self.extraction.retire),
            "adopt": (str, self.adopt),
            "calibrate": (tuple[Judgement, ...], partial(calibrate, self.stores.judgements, self._settings)),
            "rebuild_search": (None, self._rebuild_search),
            "settle": (Settling, self._settle),
        }

    async def adopt(self, label: str) -> Adopted:
        """Take in a topic that a person edited. Raises ConfigError where there is none, and KnowledgeError."""
        stores = self.stores
        knowledge, files, name = stores.knowledge, stores.files, named_topic(label)
        async with self.learning.filing:
            if await run_sync(progress_of, knowledge) is not None:
                raise ConfigError("the topics are being regenerated; finish that with `intern regenerate`, then adopt")
            await files.catch_up(name)  # which keeps an edit beside that was not noticed yet
            path = await run_sync(files.edit_of, name)
            data = await run_sync(files.layer.read, path) or b""
            work = partial(adopt, name=name, path=path, data=data, knowledge=knowledge, archive=stores.archive)
            adopted = await knowledge.change(work)
        await run_sync(files.layer.remove, path)
        await self.indexing.topics_changed()
        return adopted

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
        async with self.learning.archivist.writing:
            knowledge, archive = self.stores.knowledge, self.stores.archive
            found = await run_sync(search, asked, archive, knowledge, also)
            said = tombstone(asked, found, self._clock.now())
            cleared = None
            if said is not None:
                cleared = await knowledge.change(partial(take_out, knowledge, archive, said, found.message_ids))
            # No restore from the text files brings it back from here on. An edit that was not noticed is kept beside.
            await self.stores.files.catch_up(*found.topics)
        ids = found.message_ids
        held = bool(also) or await self.stores.remains.held(ids) or await self.extraction.holds(ids)
        # At once: below, this waits for a refresh to end.
        await self.extraction.forget(found.message_ids)
        changed = set(cleared.topics if cleared else ())
        async with self.indexing.turn:
            await self.indexing.cleared({*found.topics, *changed})
        await self.stores.files.clear_edited()
        # A thread that was being read just then may have brought messages that were unknown before.
        late = frozenset[MessageId]() if user_id is None else await self.extraction.written_by(user_id)
        for store in self._derived:
            await store.forget({*found.message_ids, *late})
        if user_id is not None:
            await self.stores.remains.forget_member(user_id)
            await self.stores.names.forget_author(user_id)
            await self.stores.roles.forget_author(user_id)
        gone, topics = {*found.message_ids, *late}, {*found.topics, *changed}
        held = await self.stores.recorder.forget(gone, topics=topics, user_id=user_id) or held
        erased = await self._erase(found) if asked.erase else None
        await self.indexing.topics_changed()
        await self.stores.files.catch_up()
        done = told(found, held=held, topics=changed, erased=erased, owed=await self.stores.settle_vectors())
        _log.info("messages_forgotten", messages=done.messages, captures=done.captures, topics=list(done.topics))
        return done

    async def _written_by(self, user_id: UserId) -> frozenset[MessageId]:
        """Find a member's messages that are in no archive."""
        kept = await self.stores.remains.written_by(user_id) | await self.stores.questions.written_by(user_id)
        return kept | await self.extraction.written_by(user_id) | await self.stores.cited.written_by(user_id)

    async def _erase(self, found: Search) -> Erased:
        async with self.learning.archivist.writing:
            erased = await run_sync(self.stores.archive.erase, found.message_ids)
        await self.stores.db.scrub()
        await self.stores.search.scrub()
        _log.warning("archive_erased", **msgspec.structs.asdict(erased))
        return erased

    async def do(self, job: Job, look: Callable[[], None] = lambda: None) -> bytes:
        """Do what a command asked for, and encode the result. `look` is called after what leaves something to see."""
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

    async def _index(self) -> Refreshed:
        return joined(await self.indexing.refresh(), await self.indexing.refresh_pages())

    async def _refresh(self) -> Refreshed:
        with unasked():  # for a search, which makes no model call by itself
            return await self.indexing.refresh(describe=self._settings.kb_model.kind == "offline")

    async def _settle(self, settling: Settling) -> None:
        await self.stores.questions.settle(settling.question_ids, settling.how)

    async def _capture(self, capture: Capture) -> CapturedPair | None:
        pair = await self.learning.keep(capture)
        await self.learning.catch_up()
        await self.indexing.topics_changed(describe=False)
        return self.learning.unforgotten(pair)


def discovery_of(settings: Settings, store: SqliteSearchStore, model: Model, clock: Clock) -> Discovery:
    """Discovery as the operator wants it."""
    options, secrets = settings.discovery, settings.secrets
    scanner = Scanner(options, never=never_discovered(settings))
    return Discovery(options, store=store, scanner=scanner, model=model, clock=clock, secrets=secrets)
