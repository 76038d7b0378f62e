"""All that changes a data folder, put together: what the actors, the jobs and the door do to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice

import msgspec
from anyio import CancelScope, Lock
from anyio.to_thread import run_sync

from intern.domain import (
    Capture,
    CapturedPair,
    Decision,
    Failed,
    Filed,
    Filing,
    MessageId,
    QAId,
    Skip,
    Topic,
    TopicName,
    Withdrawn,
)
from intern.errors import KnowledgeError
from intern.indexing.catalogue import Catalogue
from intern.indexing.offline import describe_by_rules
from intern.indexing.provisional import add_topic_provisionally
from intern.indexing.refresh import Refreshed, refresh_sources, refresh_topics
from intern.knowledge.archive import Archive
from intern.knowledge.blocks import time_of
from intern.knowledge.database import Database
from intern.knowledge.decisions import DecisionLog, recover_state
from intern.knowledge.indices import read_index
from intern.knowledge.jobs import Job, Jobs
from intern.knowledge.posts import PostLedger
from intern.knowledge.sources import SourceFolder
from intern.knowledge.topics import TopicLibrary
from intern.learning.archiving import Archivist
from intern.learning.classifying import choose_topic
from intern.learning.filing import Filer, Tally, catch_up, choice_for
from intern.learning.regenerating import Regenerated, finish_swap, regenerate
from intern.llm.prompt import Model
from intern.observe.clock import Clock
from intern.settings import Settings

_READ_AHEAD = 32  # pairs; a follower asks again when it is through


class Workshop:
    """All that changes the data folder. Only the process that holds the folder's lock has one."""

    def __init__(self, settings: Settings, db: Database, model: Model, clock: Clock) -> None:
        """Open the stores, and finish what a killed process left half done. Raises KnowledgeError. Blocks."""
        paths = settings.paths
        self.decisions = DecisionLog(paths.decisions)
        finish_swap(paths.topics, self.decisions)
        self._settings = settings
        self._model = model
        self._clock = clock
        self.archive = Archive(paths.raw, clock=clock)
        self.topics = TopicLibrary(paths.topics)
        self._recovered = recover_state(paths.state, self.decisions)
        self.sources = SourceFolder(paths.sources, settings.kb.max_source_bytes)
        self.posts = PostLedger(db, clock=clock)
        self.jobs = Jobs(db)
        self._archivist = Archivist(
            self.archive, mask=settings.kb.mask_secrets, is_withdrawn=self.decisions.is_withdrawn
        )
        self._filer = Filer(
            model=model,
            topics=self.topics,
            decisions=self.decisions,
            state_path=paths.state,
            clock=clock,
            options=settings.learning,
        )
        self._kb_catalogue = Catalogue(cache_path=paths.index_cache, index_path=paths.index, clock=clock)
        self._team_catalogue = Catalogue(cache_path=paths.team_index_cache, index_path=paths.team_index, clock=clock)
        # Regeneration replaces the library as a whole, so nobody may file meanwhile.
        self._filing = Lock()
        self._indexing = Lock()

    async def after(self, position: QAId | None) -> Sequence[CapturedPair]:
        """Some of the archived pairs after `position`, oldest first: the log that the classifier follows."""
        return await run_sync(lambda: list(islice(self.archive.after(position), _READ_AHEAD)))

    async def keep(self, capture: Capture) -> CapturedPair | None:
        """Archive a capture; None where the archive holds all of it already."""
        return await self._archivist.keep(capture)

    async def choose_topic(self, pair: CapturedPair) -> Topic | Skip | Failed:
        """Where a pair belongs: the topic of its conversation, else what the model says of the topics listed now."""
        return await choice_for(pair, filer=self._filer, choose=self._choose)

    async def file(self, filing: Filing) -> Decision:
        """File a pair; a new topic is in the index when this returns."""
        async with self._filing:
            decision = await self._filer.file(filing)
            await self._list(filing.pair, decision)
            return decision

    async def withdraw(self, message_ids: Sequence[MessageId]) -> Withdrawn | None:
        """Write down that messages teach nothing any more, whoever is filing meanwhile."""
        return await self._filer.withdraw(message_ids)

    async def clear_withdrawn(self) -> Sequence[TopicName]:
        """Take what was withdrawn out of the topics, and say which changed; waits for a filing or a regeneration."""
        async with self._filing:
            return await self._filer.clear_withdrawn(self.archive)

    async def catch_up(self) -> Tally:
        """File all that was archived and not decided yet."""
        async with self._filing:
            return await catch_up(
                self.archive,
                self.archived_until(),
                filer=self._filer,
                choose=self._choose,
                filed=self._list,
            )

    def archived_until(self) -> QAId | None:
        """The newest pair that was decided, or that the operator wants passed over."""
        passed_over = QAId(self._settings.kb.qa_raw_last_processed_id) or None
        known = [qa_id for qa_id in (self._recovered, self.decisions.cursor(), passed_over) if qa_id is not None]
        return max(known, key=time_of, default=None)

    async def refresh(self) -> Refreshed:
        """Bring both indices up to date."""
        async with self._indexing:
            topics = await self._refresh_topics()
            sources = await refresh_sources(
                self._model, self.sources, self._kb_catalogue, clock=self._clock, options=self._settings.indexing
            )
        return _joined(topics, sources)

    async def regenerate(self) -> Regenerated:
        """Rebuild the topics from the archive, and the team index from them."""
        async with self._filing:
            try:
                done = await regenerate(
                    self._model,
                    self.archive,
                    self.decisions,
                    topics_dir=self._settings.paths.topics,
                    state_path=self._settings.paths.state,
                    describe=describe_by_rules,
                    clock=self._clock,
                    options=self._settings.learning,
                )
            finally:
                # Even where it failed, the new library may stand already.
                with CancelScope(shield=True):
                    await run_sync(self.topics.reload)
        async with self._indexing:
            await self._refresh_topics()
        return done

    async def do(self, job: Job, look: Callable[[], None] = lambda: None) -> bytes:
        """Do what a command asked for, and encode what it gave. `look` is called once there is something to see."""
        match job.kind:
            case "index":
                return msgspec.json.encode(await self.refresh())
            case "regenerate":
                done = await self.regenerate()
                look()
                return msgspec.json.encode(done)
            case "capture":
                pair = await self.keep(msgspec.json.decode(job.payload, type=Capture))
                await self.catch_up()
                look()
                return msgspec.json.encode(pair)
            case unknown:
                raise KnowledgeError(f"this version of intern knows no job {unknown!r}; update the one that is running")

    async def _refresh_topics(self) -> Refreshed:
        return await refresh_topics(
            self._model,
            self.topics,
            self._settings.paths.topics,
            self._team_catalogue,
            clock=self._clock,
            options=self._settings.indexing,
        )

    async def _choose(self, pair: CapturedPair) -> Topic | Skip:
        entries = await run_sync(read_index, self._settings.paths.team_index)
        return await choose_topic(self._model, pair, entries, self._settings.learning)

    async def _list(self, pair: CapturedPair, decision: Decision) -> None:
        del pair
        if isinstance(decision, Filed):
            await add_topic_provisionally(
                self.topics,
                self._settings.paths.topics,
                decision.topic,
                catalogue=self._team_catalogue,
                clock=self._clock,
            )


def _joined(*refreshed: Refreshed) -> Refreshed:
    return Refreshed(
        changed=tuple(chain.from_iterable(each.changed for each in refreshed)),
        removed=tuple(chain.from_iterable(each.removed for each in refreshed)),
        pending=tuple(chain.from_iterable(each.pending for each in refreshed)),
        skipped=tuple(chain.from_iterable(each.skipped for each in refreshed)),
    )
