"""Killed before any single step on disk, and in the middle of any write: nothing acknowledged is lost or doubled.

A writer does all that it can, once, and the folder is copied at each write, fsync, rename and deletion, and after each
transaction, together with the rows on a server: what the copy holds is what a process that is killed there leaves
behind. Each copy is opened by a new writer, which catches up.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import NamedTuple, Self, TypeVar

import pytest
from anyio import Lock, fail_after
from anyio.to_thread import run_sync

from intern.chat.conversations import build_capture
from intern.core.decisions import PairMoved
from intern.core.ids import MessageId, parse_position
from intern.learning.forgetting import ForgetRequest
from intern.models.prompt import OfflineModel
from intern.service.databases import open_database, open_read_only
from intern.service.models import collect_offline_rules
from intern.service.writer import Writer
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.database import Database, Transaction
from intern.stores.files import FileLayer
from intern.stores.tables.knowledge import KnowledgeStore
from tests.engines import Rows, Schemas
from tests.service.writers import open_writer
from tests.worlds.clock import HandClock
from tests.worlds.history import Act, Asked, Community, Deleted, Forgotten, Taught, Told, faults, faults_in_the_end

T = TypeVar("T")

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]


@pytest.fixture
def anyio_backend() -> str:
    """One is enough: the steps are those of worker threads."""
    return "asyncio"


_OFTEN = 84  # each eighty-fourth step is checked in make test
_MORE = 4  # each fourth one in make test-all, and all others where INTERN_KILL_MOMENTS is set, as by make soak-kills


class Watched(FileLayer):
    """Reports before each step, and after the first half of each write; knows the changes that a crash may lose."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.unsafe: set[tuple[str, int]] = set()
        """Inodes of files with bytes, and of folders with names, that the next power cut may take."""

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._tell("write")
        half = len(data) // 2
        if half:
            written = os.write(fd, data[:half])
            self._tell("half a write")
            data = data[written:]
        self.unsafe.add(("file", os.fstat(fd).st_ino))
        return half + super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._tell("fsync")
        super().fsync(fd)
        self.unsafe -= {("file", os.fstat(fd).st_ino), ("folder", os.fstat(fd).st_ino)}

    def rename(self, old: Path, new: Path) -> None:
        assert ("file", old.stat().st_ino) not in self.unsafe, f"{old} is renamed before it is on disk"
        self._tell("rename")
        super().rename(old, new)
        self.unsafe.add(("folder", new.parent.stat().st_ino))

    def remove(self, path: Path) -> None:
        self._tell("remove")
        super().remove(path)


class WatchedDatabase(Database):
    """Reports after each transaction."""

    def __init__(self, db: Database, tell: Callable[[str], None]) -> None:
        super().__init__(db.place)
        self._db = db
        self._tell = tell
        self._turn = Lock()  # so that nothing is written while the folder is copied

    def for_community(self, community: str) -> Self:
        other = super().for_community(community)
        other._db = self._db.for_community(community)
        return other

    async def lock_community(self, *, beside_leases: bool = False) -> None:
        await self._db.lock_community(beside_leases=beside_leases)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        async with self._turn:
            value = await self._db.write(work)
            await run_sync(self._tell, "transaction")
        return value

    async def read(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        return await self._db.read(work, steady=steady)

    def read_blocking(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        return self._db.read_blocking(work, steady=steady)

    async def scrub(self) -> None:
        await self._db.scrub()
        await run_sync(self._tell, "scrub")

    async def close(self) -> None:
        await self._close_dependents()
        await self._db.close()


class Left(NamedTuple):
    """The state that a process killed at a step leaves."""

    step: str
    folder: Path
    rows: Rows | None
    """The rows on a server."""
    told: Told
    doing: Act | None


class Life:
    """A writer at work; its folder is copied at the steps to check, and its rows on a server."""

    def __init__(self, folder: Path, server: Schemas | None, schema: str, looked_at: Callable[[int], bool]) -> None:
        self.folder = folder / "data"
        self.settings = _settings(self.folder, server.url(schema) if server else "")
        self.steps = 0
        self.left: list[Left] = []
        self.told = Told()
        self.doing: Act | None = None
        self.files = Watched(self._copy)
        self._looked_at = looked_at
        self._copies = folder / "copies"
        self._server, self._schema = server, schema
        self._transactions = 0
        self._seen: set[str] = set()

    def _copy(self, step: str) -> None:
        self._transactions += step == "transaction"
        seen = _fingerprint(self.folder, self.doing, sum(self.told.captures.values()), self._transactions)
        if seen in self._seen:
            return  # an fsync changes nothing that a kill could leave
        self._seen.add(seen)
        self.steps += 1
        if not self._looked_at(self.steps):
            return
        rows = self._server.rows(self._schema) if self._server else None
        copy = self._copies / str(self.steps)
        shutil.copytree(self.folder, copy, ignore=shutil.ignore_patterns("*-shm"))
        name = f"{step}, {self.steps}, {self.doing}"
        self.left.append(Left(name, copy, rows, deepcopy(self.told), self.doing))

    async def live(self, acts: list[Act], clock: HandClock) -> None:
        async with WatchedDatabase(await open_database(self.settings), self._copy) as db:
            await db.lock_community()
            writer = await run_sync(open_writer, self.settings, db, _model(), clock, self.files)
            for act in acts:
                clock.turn(seconds=1)
                self.doing = act
                await _do(act, writer)
                assert self.files.unsafe == set(), f"acknowledged before it was on disk: {act}"
                self.told.hear(act)
                self.doing = None
                await writer.learning.catch_up()
                await writer.stores.files.catch_up()


def _fingerprint(folder: Path, *also: object) -> str:
    digest = sha256(repr(also).encode())
    for path in sorted(each for each in folder.rglob("*") if each.is_file() and not each.name.startswith("intern.db")):
        digest.update(f"{path} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()


def _model() -> OfflineModel:
    return OfflineModel(collect_offline_rules())


def _settings(folder: Path, url: str) -> Settings:
    (folder / "knowledge-base" / "sources").mkdir(parents=True, exist_ok=True)
    # Topics that split early.
    data = {"dir": str(folder), "url": url}
    return load_settings(environ={}, overrides={"data": data, "kb": {"max_topic_chars": 1500}})


async def _do(act: Act, writer: Writer) -> None:
    match act:
        case Taught():
            await writer.learning.keep(build_capture(act.request()))
        case Deleted(message_ids=ids):
            await writer.learning.withdraw(ids)
        case Forgotten(message_ids=ids, erase=erase):
            await writer.forget(ForgetRequest(message_ids=ids, erase=erase))
        case Asked(kind="index"):
            await writer.indexing.refresh()
        case Asked():
            await writer.learning.regenerate()


def _acts() -> list[Act]:
    """Yield captures, fuller ones, edits, deletions; between them all other writes."""
    told, acts = Told(), list[Act]()
    community = Community(Random(3))

    def happens(act: Act) -> None:
        told.hear(act)
        acts.append(act)

    for after in (Asked("index"), Asked("regenerate"), None, None):
        for act in community.acts_after(told, 4):
            happens(act)
        if after is not None:
            happens(after)
        else:
            standing = next(each for each in reversed(told.messages) if told.block(each))
            [*_, message_id] = (each for each in told.messages[standing] if each not in told.deleted)
            happens(Forgotten((message_id,), erase=True))
    happens(Asked("regenerate"))
    happens(Asked("index"))
    return acts


@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.rest)])
async def test_killed_before_any_step_it_has_lost_nothing_doubled_nothing_and_can_go_on(
    server: Schemas | None, tmp_path: Path, *, rest: bool
) -> None:
    is_soak = "INTERN_KILL_MOMENTS" in os.environ
    if server and rest and not is_soak:
        pytest.skip("on PostgreSQL some of the steps are enough, unless INTERN_KILL_MOMENTS is set")

    def looked_at(step: int) -> bool:
        return rest and (is_soak or step % _MORE == 0) if step % _OFTEN else not rest

    clock = HandClock(parse_position(MessageId("1467356551315456000")).time)
    acts = _acts()
    with server.emptied() if server else nullcontext("") as schema:
        life = Life(tmp_path, server, schema, looked_at)
        with fail_after(200):
            await life.live(acts, clock)
        assert faults(life.settings, life.told) == []
        decisions = KnowledgeStore(open_read_only(life.settings)).read_decisions()
    assert {type(act) for act in acts} == {Taught, Deleted, Forgotten, Asked}
    assert any(isinstance(decision, PairMoved) for decision in decisions)
    assert life.steps > 600
    assert len(life.left) >= life.steps // _OFTEN
    for left in life.left:
        with fail_after(30), server.filled(left.rows) if server and left.rows else nullcontext("") as copy:
            found = await _faults_after(left, _settings(left.folder, server.url(copy) if server else ""), clock)
        assert found == [], left.step


async def _faults_after(left: Left, settings: Settings, clock: HandClock) -> list[str]:
    found = faults(settings, left.told, left.doing)
    async with await open_database(settings) as db:
        await db.lock_community()
        writer = await run_sync(open_writer, settings, db, _model(), clock)
        if left.doing is not None:
            await _do(left.doing, writer)
        await writer.learning.catch_up()
        await writer.indexing.refresh()
        await writer.stores.files.catch_up()
    return found + faults_in_the_end(settings, left.told.also(left.doing))
