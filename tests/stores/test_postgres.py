"""PostgreSQL alone: communities apart, connections that are lost, and what the operator reads about each trouble."""

from __future__ import annotations

import os
import resource
import signal
import socket
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given, strategies as st

pytest.importorskip("psycopg", reason="the extra postgres is not installed")

import psycopg

from intern.core.errors import ConfigError, FolderBusyError, KnowledgeError
from intern.stores.database import SCHEMA_VERSION, Transaction
from intern.stores.engines.postgres.connection import (
    PostgresTransaction,
    escape_zero_bytes,
    explain_error,
    unescape_zero_bytes,
)
from intern.stores.engines.postgres.database import PostgresDatabase
from intern.stores.tables.store import json_array
from tests.contracts.database import INSERT, SHARED, Gate
from tests.engines import ROLE, Opening, Server, serving

pytestmark = [pytest.mark.anyio, pytest.mark.rest]

ALL = "select text from notes order by text"


@pytest.fixture
def schema(postgres: Server) -> Generator[str]:
    with postgres.schema() as name:
        yield name


@pytest.fixture
def opening(postgres: Server, schema: str) -> Opening:
    return partial(postgres.opening(schema), schema=SHARED)


def add(n: int, tx: Transaction) -> None:
    tx.run(INSERT, (n, str(n)))


async def count(db: Any) -> int:
    return int(await db.number("select count(*) from notes where community = :community"))


async def test_a_statement_without_the_condition_sees_and_changes_nothing_of_others(opening: Opening) -> None:
    with anyio.fail_after(10):
        async with await opening() as db:
            other = db.for_community("other")
            await db.write(partial(add, 1))
            await other.write(partial(add, 2))
            assert await db.texts(ALL) == ["? :community % 1"]
            assert await other.texts(ALL) == ["? :community % 2"]
            assert await other.run("delete from notes") == 1
            assert await db.texts(ALL) == ["? :community % 1"]
            with pytest.raises(KnowledgeError, match="row-level security"):
                await db.run("insert into notes (community, n, text) values ('other', 3, 'x')")


@given(st.text(st.sampled_from("\0\U0010fffe01ab") | st.characters(codec="utf-8")))
def test_any_text_reaches_the_server_without_zero_bytes_and_comes_back(text: str) -> None:
    sent = escape_zero_bytes(text)
    assert "\0" not in sent
    assert unescape_zero_bytes(sent) == text


async def test_a_text_with_zero_bytes_is_found_in_a_list(opening: Opening) -> None:
    statement = "select text from notes where community = :community and text in (select value from json_each(?))"
    with anyio.fail_after(10):
        async with await opening() as db:
            await db.run("insert into notes (community, n, text) values (:community, 1, ?)", ("a\0",))
            assert await db.texts(statement, (json_array(["b", "a\0"]),)) == ["a\0"]


async def test_each_table_of_a_community_has_the_second_lock(postgres: Server, schema: str) -> None:
    with anyio.fail_after(10):
        async with await postgres.opening(schema)():
            pass
    open_ones = postgres.run(
        "select t.relname from pg_class t join pg_namespace s on s.oid = t.relnamespace"
        f" where s.nspname = '{schema}' and t.relkind = 'r' and not (t.relrowsecurity and t.relforcerowsecurity)"
    )
    ours = {str(name) for (name,) in open_ones if not str(name).startswith("search_")}
    leases = {"identify_turns", "lease_members", "leases"}
    assert ours == {"endpoint_forms", "hosted_communities", "schema_version", *leases}, "the same for all communities"


async def test_a_database_that_was_restarted_is_used_again(postgres: Server, schema: str) -> None:
    with anyio.fail_after(60):
        async with await PostgresDatabase.open(postgres.url(schema), schema=SHARED) as db:
            await db.write(partial(add, 1))
            postgres.end_connections()
            await db.write(partial(add, 2))
            postgres.end_connections()
            assert await count(db) == 2
            postgres.kill()
            db.patience = 0.3
            for call in (partial(db.write, partial(add, 3)), partial(count, db)):
                with pytest.raises(KnowledgeError, match=r"cannot be reached .* check that the server runs"):
                    await call()
            postgres.start()
            await db.write(partial(add, 4))
            assert await count(db) == 3


@pytest.mark.parametrize("arrived", [True, False])
async def test_a_commit_whose_answer_is_lost_takes_effect_once(postgres: Server, schema: str, *, arrived: bool) -> None:
    losses: list[object] = []

    class Losing(PostgresDatabase):
        def _commit(self, tx: PostgresTransaction) -> None:
            if losses:
                super()._commit(tx)
                return
            losses.append(tx)
            if arrived:
                super()._commit(tx)
            tx._db.close()
            raise psycopg.OperationalError("the connection was lost")

    ran: list[int] = []

    def work(tx: Transaction) -> None:
        ran.append(1)
        add(1, tx)

    with anyio.fail_after(20):
        async with await Losing.open(postgres.url(schema), schema=SHARED) as db:
            await db.write(work)
            assert await count(db) == 1
    assert len(ran) == (1 if arrived else 2)


async def test_a_commit_that_nobody_knows_of_is_not_repeated(postgres: Server, schema: str) -> None:
    ran: list[int] = []

    class Losing(PostgresDatabase):
        def _read_xid(self, tx: PostgresTransaction) -> str:
            super()._read_xid(tx)
            return str(1 << 40)  # as of another server

        def _commit(self, tx: PostgresTransaction) -> None:
            tx._db.close()
            raise psycopg.OperationalError("the connection was lost")

    def work(tx: Transaction) -> None:
        ran.append(1)
        add(1, tx)

    with anyio.fail_after(20):
        async with await Losing.open(postgres.url(schema), schema=SHARED) as db:
            db.patience = 0.3
            with pytest.raises(KnowledgeError, match="cannot say whether that took effect"):
                await db.write(work)
    assert len(ran) == 1


@pytest.mark.parametrize("dies", ["the server", "one of its processes"])
async def test_a_server_that_crashed_meanwhile_is_not_believed_that_a_commit_took_effect(
    postgres: Server, schema: str, *, dies: str
) -> None:
    class Losing(PostgresDatabase):
        def _read_xid(self, tx: PostgresTransaction) -> str:
            super()._read_xid(tx)
            return committed[0]  # as if the server had given the number away again

        def _commit(self, tx: PostgresTransaction) -> None:
            if dies == "the server":
                postgres.kill()
                postgres.start()
            else:
                with psycopg.connect(postgres.address) as other, suppress(psycopg.OperationalError):
                    os.kill(tx._db.info.backend_pid, signal.SIGKILL)
                    other.execute("select pg_sleep(20)")  # until the server has ended all others, and recovers
            tx.end("select")

    with anyio.fail_after(30):
        async with await Losing.open(postgres.url(schema), schema=SHARED) as db:
            committed = await db.texts("select pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1")
            with pytest.raises(KnowledgeError, match="cannot say whether that took effect"):
                await db.write(partial(add, 1))
            assert await count(db) == 0


async def test_writers_who_wait_for_each_other_leave_connections_to_readers(opening: Opening) -> None:
    gate = Gate()
    with anyio.fail_after(10):
        async with await opening() as db, anyio.create_task_group() as tg:
            tg.start_soon(db.write, gate.hold)
            await gate.is_reached()
            for n in range(8):
                tg.start_soon(db.write, partial(add, n))
            await anyio.wait_all_tasks_blocked()
            assert await count(db) == 0
            assert await db.for_community("other").run(INSERT, (1, "x")) == 1
            gate.opened.set()


async def test_however_many_threads_read_their_connections_are_few_and_stay(postgres: Server, schema: str) -> None:
    def looked(tx: Transaction) -> int:
        tx.rows("select pg_sleep(0.02)")
        return tx.number("select pg_backend_pid()")

    async def read(db: PostgresDatabase, seen: set[int]) -> None:
        seen.add(await anyio.to_thread.run_sync(db.read_blocking, looked))

    with anyio.fail_after(20):
        async with await PostgresDatabase.open(postgres.url(schema), schema=SHARED) as db:
            rounds = [set[int](), set[int]()]
            for seen in rounds:
                async with anyio.create_task_group() as tg:
                    for _ in range(40):
                        tg.start_soon(read, db, seen)
            first, again = rounds
            assert 1 < len(first) <= 16
            assert again <= first


async def test_one_process_holds_a_community_until_it_ends(opening: Opening) -> None:
    with anyio.fail_after(10):
        async with await opening() as db:
            async with await opening() as first:
                await first.lock_community()
                await first.lock_community()
                with pytest.raises(FolderBusyError, match=rf"in use by process {os.getpid()} on .*; stop that first"):
                    await db.lock_community()
                await db.for_community("other").lock_community()
                await db.write(partial(add, 1))
                await first.write(partial(add, 2))
            await db.lock_community()
            assert await count(db) == 2


async def test_a_lost_connection_takes_its_community_again_unless_another_process_has_it(
    postgres: Server, opening: Opening
) -> None:
    with anyio.fail_after(20):
        async with await opening() as db, await opening() as other:
            await db.lock_community()
            postgres.end_connections()
            await db.write(partial(add, 1))
            with pytest.raises(FolderBusyError):
                await other.lock_community()
            postgres.end_connections()
            await other.lock_community()
            with pytest.raises(FolderBusyError, match="in use by"):
                await db.write(partial(add, 2))
            assert await count(db) == 1


async def test_a_connection_that_only_the_server_takes_for_alive_gives_up_its_community(
    postgres: Server, schema: str
) -> None:
    with anyio.fail_after(20):
        async with await PostgresDatabase.open(postgres.url(schema), schema=SHARED) as db:
            await db.lock_community()
            ours = db._held["default"].connection.fileno()
            alive = os.dup(ours)  # so that the server sees no end of it
            ended, far = socket.socketpair()
            with ended, far:
                far.close()
                os.dup2(ended.fileno(), ours)
            try:
                await db.write(partial(add, 1))
                assert await count(db) == 1
            finally:
                os.close(alive)


async def test_a_conflict_is_repeated_and_gives_up_in_the_end(opening: Opening) -> None:
    clashes = [2]

    def clashing(tx: Transaction) -> None:
        add(clashes[0], tx)
        if clashes[0]:
            clashes[0] -= 1
            tx.rows("do $$ begin raise exception 'a clash' using errcode = '40001'; end $$")

    with anyio.fail_after(10):
        async with await opening() as db:
            await db.write(clashing)
            assert await count(db) == 1
            clashes[0] = 99
            with pytest.raises(KnowledgeError, match="is too busy"):
                await db.write(clashing)
            assert await count(db) == 1


async def test_two_that_lock_each_other_out_both_finish(opening: Opening) -> None:
    """The server ends one of the two, whose work is done again."""
    barrier = anyio.Event()

    def write(first: str, second: str, tx: Transaction) -> None:
        for name in (first, second):
            tx.rows("select pg_advisory_xact_lock(hashtext(?))", (name,))
            if name == first and not barrier.is_set():
                anyio.from_thread.run(barrier_reached)
        tx.run(INSERT, (1, first))

    reached: list[int] = []

    async def barrier_reached() -> None:
        reached.append(1)
        if len(reached) == 2:
            barrier.set()
        await barrier.wait()

    with anyio.fail_after(30):
        async with await opening() as db:
            async with anyio.create_task_group() as tg:
                tg.start_soon(db.for_community("one").write, partial(write, "a", "b"))
                tg.start_soon(db.for_community("two").write, partial(write, "b", "a"))
            assert [await count(db.for_community(each)) for each in ("one", "two")] == [1, 1]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("53100", "no space left"),
        ("25006", "cannot be opened for writing"),
        ("42501", "lacks a right"),
        ("55P03", "held by another program"),
        ("53200", "read the server's log"),
        ("XX001", "read the server's log"),
    ],
)
async def test_each_trouble_of_the_server_is_one_clear_line(opening: Opening, code: str, said: str) -> None:
    with anyio.fail_after(10):
        async with await opening() as db:
            with pytest.raises(KnowledgeError, match=f"^PostgreSQL at .*{said}") as caught:
                await db.run(f"do $$ begin raise exception 'trouble' using errcode = '{code}'; end $$")
            assert "\n" not in str(caught.value)
            await db.write(partial(add, 1))


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://someone:s3cret@127.0.0.1:1/nowhere",
        "postgresql://someone:s3cret@no.such.host.invalid/nowhere",
        "postgresql://someone:s3cret@127.0.0.1:port/nowhere",
        "postgresql://someone:s3cret@[::1/nowhere?x",
        "mysql:s3cret",
    ],
)
async def test_an_address_that_does_not_work_is_told_without_its_password(address: str) -> None:
    with anyio.fail_after(10):
        with pytest.raises((KnowledgeError, ConfigError)) as caught:
            await PostgresDatabase.open(address)
        assert "s3cret" not in str(caught.value)
        assert "data.url" in str(caught.value)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (f"{ROLE}:hush", f"{ROLE}:s3cret", "password authentication failed"),
        (f"{ROLE}:hush", "nobody:s3cret", 'role "nobody" does not exist'),
        ("/postgres?", "/nowhere?", 'database "nowhere" does not exist'),
    ],
)
async def test_a_server_that_refuses_the_connection_is_no_server_that_is_away(
    postgres: Server, schema: str, right: str, wrong: str, said: str
) -> None:
    with anyio.fail_after(20):
        with pytest.raises(KnowledgeError, match=rf"refuses the connection \({said}.*\); check user, pass") as caught:
            await PostgresDatabase.open(postgres.url(schema).replace(right, wrong))
        assert not any(each in str(caught.value) for each in ("hush", "s3cret", "\n"))


# Finding I2.
@pytest.mark.parametrize("said", ["the database system is starting up", "the database system is shutting down"])
def test_a_server_that_starts_up_asks_for_patience_and_not_for_another_password(said: str) -> None:
    error = psycopg.OperationalError(f"connection failed: connection to server on socket failed: FATAL:  {said}")
    told = str(explain_error("PostgreSQL at db:5432/intern", error))
    assert (said in told, "wait until it takes connections" in told, "password" in told) == (True, True, False)


async def test_a_server_that_takes_no_writes_is_read_and_never_written(postgres: Server, schema: str) -> None:
    for_reading = postgres.url(schema).replace("options=", "options=-cdefault_transaction_read_only%3Don%20")
    refused = pytest.raises(KnowledgeError, match=r"cannot be opened for writing; connect to the primary server")
    with anyio.fail_after(20):
        with refused:
            await PostgresDatabase.open(for_reading, schema=SHARED)
        async with await PostgresDatabase.open(postgres.url(schema), schema=SHARED) as db:
            await db.write(partial(add, 1))
            async with await PostgresDatabase.open(for_reading, schema=SHARED) as other:
                for call in (partial(other.write, partial(add, 2)), other.lock_community):
                    with refused:
                        await call()
                assert await count(other) == 1
            await db.lock_community()


async def test_a_server_whose_disk_takes_no_more_undoes_all_and_goes_on_with_less() -> None:
    """The disk is a limit for the size of a file, which the server has from us: a quota ends in the same error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, limits[1]))  # its log of changes needs 16 MiB
    with serving() as small, small.schema() as schema:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        with anyio.fail_after(60):
            async with await PostgresDatabase.open(small.url(schema), schema=SHARED) as db:
                await db.lock_community()
                much = [(n, os.urandom(1 << 19).hex()) for n in range(25)]
                with pytest.raises(KnowledgeError, match=r"failed \(could not extend .*\); read the server's log"):
                    await db.write(lambda tx: tx.run_each(INSERT, much))
                assert await count(db) == 0
                await db.write(partial(add, 1))
                assert await count(db) == 1


@pytest.mark.parametrize("held", [False, True])
async def test_work_whose_connection_ends_midway_is_done_again_and_takes_effect_once(
    postgres: Server, opening: Opening, *, held: bool
) -> None:
    ran: list[int] = []

    def work(tx: Transaction) -> None:
        ran.append(1)
        add(len(ran), tx)
        if len(ran) == 1:
            postgres.end_connections()
        add(10, tx)

    with anyio.fail_after(20):
        async with await opening() as db:
            if held:
                await db.lock_community()
            await db.write(work)
            assert await db.texts("select n from notes order by n") == ["2", "10"]
    assert len(ran) == 2


async def test_a_newer_schema_is_refused_with_the_order_of_an_upgrade(postgres: Server, schema: str) -> None:
    opening = partial(postgres.opening(schema), schema=SHARED)
    with anyio.fail_after(10):
        async with await opening():
            pass
        postgres.run(f"update {schema}.schema_version set version = {SCHEMA_VERSION + 1}")
        with pytest.raises(KnowledgeError, match=r"has schema 2, .* stop every intern, back up, install the new one"):
            await opening()
        postgres.run(f"update {schema}.schema_version set version = 0")
        with pytest.raises(KnowledgeError, match=r"has schema 0, .* export with the intern that wrote it"):
            await opening()


async def test_a_role_that_may_make_no_tables_is_told_so(postgres: Server, schema: str) -> None:
    postgres.run(f"alter schema {schema} owner to postgres", f"grant usage on schema {schema} to {ROLE}")
    with anyio.fail_after(10), pytest.raises(KnowledgeError, match="lacks a right"):
        await postgres.opening(schema)(schema=SHARED)


async def test_programs_that_start_together_make_the_tables_once(postgres: Server, schema: str) -> None:
    async def start() -> None:
        async with await postgres.opening(schema)() as db:
            assert await db.number("select count(*) from changes where community = :community") == 0

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tg:
            for _ in range(3):
                tg.start_soon(start)
