"""Leases in PostgreSQL, and those in memory for tests, are held to one contract; then the writes that they fence."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import anyio
import pytest
from anyio import fail_after
from anyio.to_thread import run_sync

from intern.core.errors import FolderBusyError, LeaseLostError
from intern.stores.engines.postgres.leases import Lease, LeaseStore
from tests.contracts.database import INSERT, SHARED, Gate
from tests.contracts.leases import LeasesContract, MemoryLeases, MemoryLeaseStore
from tests.engines import ROLE, Server

pytest.importorskip("psycopg", reason="the extra postgres is not installed")

from intern.stores.database import Transaction
from intern.stores.engines.postgres.database import PostgresDatabase

pytestmark = pytest.mark.anyio


class MemoryCell:
    def __init__(self) -> None:
        self._now = 100.0
        self._leases = MemoryLeases(lambda: self._now)

    def of(self, holder: str) -> MemoryLeaseStore:
        return self._leases.of(holder)

    def pass_time(self, seconds: float) -> None:
        self._now += seconds


class PostgresCell:
    """A schema of a server; time passes by moving what was noted into the past."""

    def __init__(self, server: Server, schema: str, *databases: PostgresDatabase) -> None:
        self.server, self.schema, self.databases = server, schema, [*databases]
        self._used: dict[str, PostgresDatabase] = {}

    def of(self, holder: str) -> LeaseStore:
        if holder not in self._used:
            self._used[holder] = self.databases[len(self._used)]
        return LeaseStore(self._used[holder], holder)

    def pass_time(self, seconds: float) -> None:
        by = f"make_interval(secs => {seconds})"
        self.server.run(
            f"update {self.schema}.leases set ends_at = ends_at - {by}",
            f"update {self.schema}.lease_members set seen_at = seen_at - {by}",
        )

    @asynccontextmanager
    async def leased(self) -> AsyncGenerator[tuple[LeaseStore, LeaseStore, PostgresDatabase]]:
        """One holds shard 0, and the other would like to."""
        one, two = self.of("one"), self.of("two")
        with fail_after(30):
            await one.register_process(1)
            await two.register_process(1)
            assert await one.take_leases(1, (0,)) == [Lease(0, 1)]
            yield one, two, one.fence_database(Lease(0, 1)).for_community("a-community")


class TestMemory(LeasesContract):
    @pytest.fixture
    def cell(self) -> MemoryCell:
        return MemoryCell()


@pytest.fixture(scope="module")
def schema(postgres: Server) -> Generator[str]:
    with postgres.schema() as name:
        yield name


@pytest.fixture
async def on_server(postgres: Server, schema: str) -> AsyncGenerator[PostgresCell]:
    async with (
        await PostgresDatabase.open(postgres.url(schema), schema=SHARED) as one,
        await PostgresDatabase.open(postgres.url(schema)) as two,
        await PostgresDatabase.open(postgres.url(schema)) as three,
        await PostgresDatabase.open(postgres.url(schema)) as four,
    ):
        yield PostgresCell(postgres, schema, one, two, three, four)
        await run_sync(
            postgres.run, f"truncate {schema}.leases, {schema}.lease_members, {schema}.identify_turns, {schema}.notes"
        )


@pytest.mark.rest
class TestPostgres(LeasesContract):
    @pytest.fixture
    def cell(self, on_server: PostgresCell) -> PostgresCell:
        return on_server


def add(tx: Transaction) -> None:
    tx.run(INSERT, (1, "1"))


@pytest.mark.rest
async def test_nothing_is_written_after_the_lease_ended_whoever_has_it_now(on_server: PostgresCell) -> None:
    async with on_server.leased() as (one, two, db):
        await db.write(add)
        on_server.pass_time(11)
        ran: list[int] = []
        for _ in ("ended", "taken by another one", "taken again"):
            with pytest.raises(LeaseLostError, match=r"shard 0 at .* ended"):
                await db.run(INSERT, (2, "2"))
            with pytest.raises(LeaseLostError):
                await db.write(lambda _: ran.append(1))
            assert await db.number("select count(*) from notes where community = :community") == 1
            if await two.take_leases(1, (0,)):
                await two.release_lease(0, 2)
            await one.take_leases(1, (0,))
        [lease] = [Lease(*each) for each in (await one.renew_leases(1)).held.items()]
        await one.fence_database(lease).for_community("a-community").run(INSERT, (2, "2"))
        assert ran == [1, 1, 1], "work without a statement is run before the server is asked, and once"


@pytest.mark.rest
async def test_a_lease_is_not_taken_while_a_transaction_of_its_holder_goes_on(on_server: PostgresCell) -> None:
    gate = Gate()

    def slow(tx: Transaction) -> None:
        add(tx)
        gate.hold(tx)

    async with on_server.leased() as (one, two, db), anyio.create_task_group() as tg:
        tg.start_soon(db.write, slow)
        await gate.is_reached()
        assert (await one.renew_leases(1)).held == {0: 1}, "its holder renews it meanwhile"
        await one.release_lease(0, 1)
        assert await two.take_leases(1, (0,)) == []
        gate.opened.set()
        while not (leases := await two.take_leases(1, (0,))):
            await anyio.lowlevel.checkpoint()
        assert leases == [Lease(0, 2)]
        assert (
            await two.fence_database(leases[0]).for_community("a-community").number("select count(*) from notes") == 1
        )


@pytest.mark.rest
async def test_a_holder_that_is_paused_within_a_transaction_blocks_no_take_over(
    on_server: PostgresCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intern.stores.engines.postgres.leases._STALLED_SECONDS", 0.1)
    attempts: list[int] = []
    reached, resumed = anyio.Event(), threading.Event()
    failed: list[Exception] = []

    def paused(tx: Transaction) -> None:
        attempts.append(1)
        add(tx)
        if len(attempts) == 1:
            anyio.from_thread.run_sync(reached.set)
            assert resumed.wait(20)
        tx.run(INSERT, (2, "2"))

    async def work(db: PostgresDatabase) -> None:
        try:
            await db.write(paused)
        except LeaseLostError as error:
            failed.append(error)

    async with on_server.leased() as (_, two, db):
        async with anyio.create_task_group() as tg:
            tg.start_soon(work, db)
            await reached.wait()
            on_server.pass_time(11)
            assert await two.take_leases(1, (0,)) == []
            while not (leases := await two.take_leases(1, (0,))):
                await two.renew_leases(1)
            await two.fence_database(leases[0]).for_community("a-community").write(add)
            resumed.set()
        assert failed
        assert await db.texts("select text from notes") == ["? :community % 1"]


@pytest.mark.rest
async def test_a_lease_outlives_a_restart_of_the_database(on_server: PostgresCell) -> None:
    async with on_server.leased() as (one, two, db):
        await run_sync(on_server.server.kill)
        await run_sync(on_server.server.start)
        assert (await one.renew_leases(1)).held == {0: 1}
        assert await two.take_leases(1, (0,)) == []
        await db.write(add)


@pytest.mark.rest
async def test_two_hundred_communities_of_a_shard_need_a_handful_of_connections(
    postgres: Server, on_server: PostgresCell
) -> None:
    written: list[int] = []
    all_wrote, counted = anyio.Event(), anyio.Event()

    async def write(db: PostgresDatabase, n: int) -> None:
        async with db.community_scope(f"community-{n}") as own:
            await own.lock_community()
            await own.run(INSERT, (1, "1"))
            written.append(n)
            if len(written) == 200:
                all_wrote.set()
            await counted.wait()

    async with on_server.leased() as (_, _, db), anyio.create_task_group() as tg:
        for n in range(200):
            tg.start_soon(write, db, n)
        await all_wrote.wait()
        count = f"select count(*) from pg_stat_activity where usename = '{ROLE}'"
        [(connections,)] = await run_sync(postgres.run, count)
        counted.set()
        assert connections <= 12, "four databases are open, and one is at work"


@pytest.mark.rest
async def test_a_lease_is_renewed_while_communities_use_all_connections(on_server: PostgresCell) -> None:
    gates = [Gate() for _ in range(12)]  # at most four write and four read at a time
    async with on_server.leased() as (one, _, db), anyio.create_task_group() as tg:
        for n, gate in enumerate(gates):
            own = db.for_community(f"community-{n}")
            tg.start_soon(own.read if n % 2 else own.write, gate.hold)
        while sum(gate.reached.is_set() for gate in gates) < 8:
            await anyio.lowlevel.checkpoint()
        with fail_after(4):
            assert (await one.renew_leases(1)).held == {0: 1}
            async with one.identify_turn(0):
                pass
        assert not all(gate.reached.is_set() for gate in gates), "some wait for a connection"
        for gate in gates:
            gate.opened.set()


@pytest.mark.rest
async def test_no_process_holds_a_community_beside_those_with_leases(on_server: PostgresCell) -> None:
    async with on_server.leased() as (one, _, _):
        other = on_server.databases[1]
        with pytest.raises(FolderBusyError, match="in use by one; stop all"):
            await other.lock_community()
        await other.for_community("left").lock_community(beside_leases=True)
        await one.release_lease(0, 1)
        await other.lock_community()


@pytest.mark.rest
async def test_a_process_with_a_lease_waits_for_a_command_that_began_before(on_server: PostgresCell) -> None:
    one, other = on_server.of("one"), on_server.databases[1].for_community("a-community")
    with fail_after(30):
        await one.register_process(1)
        await other.lock_community()
        [lease] = await one.take_leases(1, (0,))
        leased = one.fence_database(lease).for_community("a-community")
        with pytest.raises(FolderBusyError, match=r"in use by process \d+ on .*; stop that first"):
            await leased.lock_community()
        await leased.for_community("another").lock_community()
        await other.unlock_community()
        while not await _holds(leased):  # the server frees a lock soon after its connection is closed
            pass


async def _holds(db: PostgresDatabase) -> bool:
    with suppress(FolderBusyError):
        await db.lock_community()
        return True
    return False


def _once_without_an_answer(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Do what is asked for, and say that it failed, as for a caller that is cancelled meanwhile; but only once."""
    writes = count()

    async def written(work: Callable[..., Any]) -> Any:
        result = await write(work)
        if next(writes) == 0:
            raise ConnectionError
        return result

    return written


@pytest.mark.rest
async def test_processes_identify_one_after_another(on_server: PostgresCell, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def passes(seconds: float) -> None:
        waited.append(seconds)
        by = f"make_interval(secs => {seconds})"
        await run_sync(on_server.server.run, f"update {on_server.schema}.identify_turns set free_at = free_at - {by}")

    monkeypatch.setattr("intern.stores.engines.postgres.leases.sleep", passes)
    one, two = on_server.of("one"), on_server.of("two")

    async def waits_for(bucket: int) -> float:
        """Return the seconds from `began` until the turn: those of sleep, and those that really passed."""
        waited.clear()
        async with two.identify_turn(bucket):
            return sum(waited) + time.monotonic() - began

    with fail_after(20):
        for bucket in range(2):
            async with two.identify_turn(bucket):
                assert waited == []
        async with one.identify_turn(2):
            pass
        began = time.monotonic()
        assert await waits_for(2) == pytest.approx(5, abs=0.3)
        with monkeypatch.context() as patched:
            patched.setattr(one._turns, "write", _once_without_an_answer(one._turns.write))
            with pytest.raises(ConnectionError):
                async with one.identify_turn(5):
                    pass
        began = time.monotonic()
        assert await waits_for(5) == pytest.approx(0, abs=0.3)
        with pytest.raises(ConnectionError):
            async with one.identify_turn(4):
                raise ConnectionError  # before it identified
        began = time.monotonic()
        assert await waits_for(4) == pytest.approx(0, abs=0.3)
        began = time.monotonic()
        async with one.identify_turn(3):  # as a process that dies before its shard is welcomed
            assert await waits_for(3) == pytest.approx(6, abs=0.3)
