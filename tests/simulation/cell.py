"""Several processes that share a community by leases: they come and go, die, pause, and take over from one another.

Each has its own folder, its own connections and its own clock. Leases end by the simulated time, also in the database.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio
import pytest
from anyio import CancelScope, Event, create_task_group, fail_after, sleep

from intern.actors.activity import ActivityReporter
from intern.actors.pipeline import PipelineParts
from intern.core.clock import Wakeup
from intern.core.errors import InternError, KnowledgeError
from intern.core.flow import Interaction
from intern.core.messages import Author, ChatMessage
from intern.runtime.bot import _LocalFiles
from intern.runtime.communities import Communities
from intern.runtime.hosting import build_communities
from intern.runtime.leases import LeaseHolder
from intern.runtime.parts import open_community_parts
from intern.runtime.resources import ProcessResources
from intern.service.models import SharedResources
from intern.settings import communities
from intern.settings.communities import build_community_settings
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.database import DEFAULT_COMMUNITY, Transaction
from intern.stores.engines.postgres.connection import Connection
from intern.stores.engines.postgres.database import PostgresDatabase
from intern.stores.engines.postgres.leases import Lease, LeaseStore
from intern.stores.folder_lock import FolderLock
from intern.stores.tables.communities import CommunityStore, RegisteredCommunity
from intern.stores.tables.database_archive import DatabaseArchive
from tests.engines import Schemas
from tests.simulation.community import HANDOFF, HEARD, LAST_LOOK, WINDOW, Community, World
from tests.simulation.machine import SimulatedTime
from tests.simulation.people import Act, Change, Said, write_documents

T = TypeVar("T")

_NAME = DEFAULT_COMMUNITY  # so that the books are read as ever
_SHARDS = 2
_MOST = 3  # processes at a time
_TAKEN = 30.0  # seconds within which another process serves the community
_LATE = 3.0  # seconds for what a process does right after a pause, before it sees that its lease is gone

CLOCK = """
    create or replace function {schema}.clock_timestamp() returns timestamptz language sql
    as $$ select to_timestamp(current_setting('intern.now')::double precision) $$
"""
"""Instead of the server's own, in a schema that is searched before the server's."""


def prepare(server: Schemas, schema: str) -> str:
    """Give a schema the simulated clock, and return its address."""
    server.run(CLOCK.format(schema=schema))
    return server.url(f"{schema},pg_catalog")


class Process:
    """A process, as long as it lives."""

    def __init__(self, name: str, folder: Path, time: SimulatedTime) -> None:
        self.name, self.folder, self._time = name, folder, time
        self.scope, self.stop, self.over = CancelScope(), Event(), Event()
        self.communities: Communities
        self.awake = Event()
        self.awake.set()
        self.is_dead = False
        self.host: ProcessResources
        self.asleep_since: float | None = None
        self.life = 0
        """The number of its time with the community; 0 without."""

    def seconds(self) -> float:
        """Return the time of its own clock. A paused process does not read it."""
        return self._time.seconds() if self.asleep_since is None else self.asleep_since

    async def runs(self) -> None:
        """Wait while it is paused. Raises KnowledgeError once it is dead."""
        await self.awake.wait()
        if self.is_dead:
            raise KnowledgeError("a dead process reaches nothing")


_here = ContextVar[Process | None]("_here", default=None)


async def _runs() -> None:
    if (process := _here.get()) is not None:
        await process.runs()


class CellWorld(World):
    """A paused process sends nothing, and hears no answer."""

    async def _travel(self) -> None:
        await super()._travel()
        await _runs()


class CellDatabase(PostgresDatabase):
    """A database that tells the server the simulated time, and that a paused process does not reach."""

    time: SimulatedTime
    strays: list[str]
    """Writes without a lease."""

    async def _in_thread(self, call: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
        await _runs()
        value = await super()._in_thread(call, limiter)
        await _runs()
        return value

    def _with_connection(self, call: Callable[[Connection], T], *, writes: bool) -> T:
        def timed(db: Connection) -> T:
            db.execute("select set_config('intern.now', %s, false)", (str(1e9 + self.time.seconds()),))
            value = call(db)
            if writes and self._lease is not None:
                shard, token = self._lease
                held = f"select token, ends_at > clock_timestamp() from leases where shard = {shard}"
                if (found := db.execute(held.encode()).fetchall()) != [(token, True)]:
                    self.strays.append(f"something was written with token {token}, but the lease is {found}")
            return value

        return super()._with_connection(timed, writes=writes)

    def write_now(self, work: Callable[[Transaction], T]) -> T:
        """Write at once: threads are none here."""
        return self._retry(lambda db: self._run_and_commit(db, work), writes=True)

    @classmethod
    async def at(cls, url: str, time: SimulatedTime, strays: list[str]) -> Self:
        db = await cls.open(url)
        db.time, db.strays = time, strays
        return db


def _write_now(archive: DatabaseArchive, work: Callable[[Transaction], Any]) -> Any:
    db = archive._db
    assert isinstance(db, CellDatabase)
    return db.write_now(work)


class Cell(Community):
    """One run."""

    def __init__(self, seed: int, folder: Path, time: SimulatedTime, *, length: int, url: str) -> None:
        self._processes: list[Process] = []
        super().__init__(seed, folder, time, length=length, url=url, world=CellWorld)
        self._started = 0
        self._attended = Event()
        """Set once a process knows the community."""
        self.hard_ends: list[float] = []
        self.pauses: list[tuple[float, float]] = []
        self._shard = (int(self.world.guild_id) >> 22) % _SHARDS
        self._known = communities.Community(
            name=_NAME, guild_ids=(self.world.guild_id,), chosen={"discord": {"handoff_role_id": HANDOFF}}
        )

    def _defaults(self, folder: Path) -> Settings:
        return load_settings(
            environ={},
            overrides={
                "data": {"dir": str(folder), "url": self._url},
                "llm": {"provider": "offline"},
                "hosting": {"enabled": True},
                "discord": {"message_batch_wait_seconds": WINDOW, "max_questions_per_user_per_hour": 0},
                "kb": {"settle_seconds": 0, "scan_interval_seconds": 100_000},
            },
        )

    @property
    def settings(self) -> Settings:
        return build_community_settings(self._known, self._defaults(self._folder))

    # Questions of the laws.

    def crashes_after(self, said: Said) -> int:
        return sum(at > self.when(said.message) for at in self.hard_ends)

    def came_too_late(self, post: ChatMessage, question: Said) -> bool:
        return super().came_too_late(post, question) and not self._woke_up(post, question.deleted or 0)

    def spoke_in_private(self, post: ChatMessage) -> bool:
        places = (post.channel_id, self.parent_of(post.channel_id) or post.channel_id)
        since = min((self.private_from[place] for place in places if place in self.private_from), default=0)
        return super().spoke_in_private(post) and not self._woke_up(post, since)

    def _woke_up(self, post: ChatMessage, since: float) -> bool:
        """Return whether a process looked before `since`, was paused, and then posted: that cannot be undone."""
        at = self.when(post)
        return any(begin - LAST_LOOK < since and end <= at <= end + _LATE for begin, end in self.pauses)

    # The machines.

    @property
    def _is_up(self) -> bool:
        """Whether a process serves the community, and is not paused."""
        return self._at_work() is not None

    async def live(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DatabaseArchive, "_write", _write_now)
            await super().live()

    def _begin(self) -> Process:
        self._started += 1
        folder = self._folder.with_name(f"process-{self._started}")
        process = Process(f"process-{self._started}", folder, self.time)
        write_documents(build_community_settings(self._known, self._defaults(folder)).data.dir)
        self._processes.append(process)
        self.note(f"{process.name} starts")
        self._tasks.start_soon(self._run, process)
        return process

    async def _lose_connection(self) -> None:
        await super()._lose_connection()
        self._resumes = None  # it is uncertain which process hears the missed events then

    def _is_open(self, process: Process) -> bool:
        known = process.communities._known.get(_NAME)
        return known is not None and known.deliver is not None

    async def _start(self) -> None:
        async with await CellDatabase.at(self._url, self.time, self.strays) as db:
            known = RegisteredCommunity(name=_NAME, guild_ids=self._known.guild_ids, joined_at=self.time.now())
            await CommunityStore(db, clock=self.time).import_communities((known,))
        while len(self._processes) < 2:
            self._begin()
        with fail_after(120):
            await self.world.wait_ready()
            await self._attended.wait()

    async def _run(self, process: Process) -> None:
        _here.set(process)
        stopped = Event()
        try:
            with process.scope, FolderLock(process.folder) as lock:
                async with await CellDatabase.at(self._url, self.time, self.strays) as db, SharedResources() as shared:
                    store = LeaseStore(db, process.name)
                    await store.register_process(_SHARDS)
                    leases = LeaseHolder(
                        store,
                        shards=_SHARDS,
                        took=partial(self._took, process, ProcessResources(lock, db, shared, self.time)),
                        leave=partial(self._left, process, at_once=False),
                        lost=partial(self._left, process, at_once=True),
                        seconds=process.seconds,
                    )
                    process.communities = build_communities(
                        lambda _: process.host,
                        self._defaults(process.folder),
                        self.world,
                        self.responses,
                        _LocalFiles(),
                        parts=partial(self._parts, process),
                    )
                    async with create_task_group() as tg:
                        tg.start_soon(partial(process.communities.run, stop=stopped))
                        await leases.run(stop=process.stop)
                        stopped.set()
        except* InternError:
            if not process.is_dead:
                raise
        finally:
            process.over.set()

    async def _took(self, process: Process, host: ProcessResources, lease: Lease) -> None:
        if lease.shard != self._shard:
            return
        assert isinstance(host.db, CellDatabase)
        process.host = host._replace(db=host.db.with_fence(lease))
        await process.communities.add(self._known)
        self._attended.set()
        self._new_life(process)
        if _NAME in await CommunityStore(host.db, clock=self.time).list_open():
            process.communities.open_now(_NAME)
        process.communities.receive(self.world._build_session_start())

    async def _left(self, process: Process, shard: int, *, at_once: bool) -> None:
        if shard == self._shard:
            self._end_life(process, is_hard=at_once)
            process.life = 0
            await process.communities.remove(_NAME, at_once=at_once)

    @asynccontextmanager
    async def _parts(
        self, process: Process, *given: Any, events: ActivityReporter, jobs_came: Wakeup | None
    ) -> AsyncGenerator[PipelineParts]:
        del events
        _here.set(process)  # a task begins with the context of the event that opened the community
        async with open_community_parts(*given, events=self.looking, models=self.models, jobs_came=jobs_came) as parts:
            yield parts

    def _new_life(self, process: Process) -> None:
        self._lives += 1
        process.life = self._lives
        self.note(f"life {self._lives} begins in {process.name}")

    def _end_life(self, process: Process, *, is_hard: bool) -> None:
        if process.life and process.life not in self.crashes:
            self.note(f"life {process.life} ends")
            self.crashes[process.life] = self.time.seconds()
            if is_hard:
                self.hard_ends.append(self.time.seconds())

    async def _end(self) -> None:
        self._wake_all()
        await sleep(_TAKEN)
        await sleep(HEARD)
        self.note("ends calmly")
        for process in self._processes:
            process.stop.set()
        for process in self._processes:
            await process.over.wait()

    async def _crash(self) -> None:
        """End a process as in a power cut. It hands nothing over."""
        for _ in range(self.rng.choice((0, 0, 1, 2, 3, 5, 8, 13, 21, 34))):
            await anyio.lowlevel.checkpoint()
        if not self._processes:
            return
        process = self._at_work() if self.rng.random() < 0.7 else self.rng.choice(self._processes)
        await self._kill(process or self.rng.choice(self._processes))

    async def _kill(self, process: Process) -> None:
        self.note(f"{process.name} dies")
        self._end_life(process, is_hard=True)
        self._processes.remove(process)
        process.is_dead, process.life, process.asleep_since = True, 0, None
        process.scope.cancel()
        process.awake.set()
        await process.over.wait()

    def _at_work(self) -> Process | None:
        return next((each for each in self._processes if each.life and each.life not in self.crashes), None)

    async def _join(self) -> None:
        if len(self._processes) < _MOST:
            self._begin()

    async def _leave(self) -> None:
        """Stop a process calmly, as for an update."""
        if len(self._processes) > 1:
            process = self.rng.choice([each for each in self._processes if each.asleep_since is None] or [None])
            if process is not None:
                self.note(f"{process.name} is stopped")
                self._processes.remove(process)
                process.stop.set()

    async def _pause(self) -> None:
        process = self._at_work()
        if process is None or self.rng.random() < 0.2:
            process = self.rng.choice(self._processes or [None])
        if process is None or process.asleep_since is not None:
            return
        seconds = self.rng.choice((1.0, 4.0, 9.5, 11.0, 14.0, 30.0))
        self.note(f"{process.name} is paused for {seconds}")
        process.asleep_since = self.time.seconds()
        process.awake = Event()
        self._end_life(process, is_hard=False)
        self._tasks.start_soon(self._resume, process, seconds)

    async def _resume(self, process: Process, seconds: float) -> None:
        await sleep(seconds)
        self._wake(process)

    def _wake(self, process: Process) -> None:
        if process.asleep_since is not None:
            self.note(f"{process.name} goes on")
            self.pauses.append((process.asleep_since, self.time.seconds()))
            process.asleep_since = None
            process.awake.set()
            if process.life:
                self._new_life(process)

    def _wake_all(self) -> None:
        for process in self._processes:
            self._wake(process)

    def _changed(self) -> Change:
        change = Change(at=self.time.seconds())
        process = self._at_work()
        if self._away:
            self._untold.append(change)
        elif process is not None and self._is_open(process):
            change.heard, change.life = change.at, process.life
        return change

    def _use(self, user: Author, interaction: Interaction) -> None:
        if interaction.interaction.guild_id is not None:  # what is private belongs to no community
            super()._use(user, interaction)

    @property
    def acts(self) -> Mapping[Act, int]:
        return {**super().acts, self._join: 4, self._leave: 3, self._pause: 6}
