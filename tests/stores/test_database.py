"""One writer, group commit, and the fate of work that fails, is cancelled, or is killed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import apsw
import pytest
from anyio import wait_all_tasks_blocked

from intern.core.errors import KnowledgeError
from intern.stores.database import SCHEMA_VERSION, Transaction
from intern.stores.engines.sqlite.database import SqliteDatabase, SqliteTransaction

pytestmark = pytest.mark.anyio

NOTES = "create table notes (id integer primary key, text text not null) strict"


def add(text: str, db: Transaction) -> None:
    db.run("insert into notes (text) values (?)", (text,))


def texts(db: Transaction) -> list[str]:
    return [str(text) for (text,) in db.rows("select text from notes order by id")]


class Gate:
    """Work that holds the writer thread until the test lets it go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def hold(self, _: Transaction) -> None:
        self.reached.set()
        assert self.opened.wait(5)

    async def is_reached(self) -> None:
        assert await anyio.to_thread.run_sync(self.reached.wait, 5)


async def test_what_was_written_is_read_and_survives_closing(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "intern.db"
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(path, schema=NOTES) as db:
            await db.write(partial(add, "one"))
            assert await db.read(texts) == ["one"]
        async with await SqliteDatabase.open(path, schema=NOTES) as db:
            assert await db.read(texts) == ["one"]


async def test_work_that_fails_undoes_itself_and_nothing_else(tmp_path: Path) -> None:
    gate = Gate()
    raised: list[Exception] = []

    async def broken(db: SqliteDatabase, error: Exception) -> None:
        def work(tx: Transaction) -> None:
            add("half", tx)
            raise error

        with pytest.raises(type(error)) as caught:
            await db.write(work)
        assert caught.value is error
        raised.append(error)

    with anyio.fail_after(5):
        async with await SqliteDatabase.open(tmp_path / "intern.db", schema=NOTES) as db:
            async with anyio.create_task_group() as tg:
                tg.start_soon(db.write, gate.hold)
                await gate.is_reached()  # so that the rest shares one commit
                tg.start_soon(db.write, partial(add, "before"))
                await wait_all_tasks_blocked()
                tg.start_soon(broken, db, KnowledgeError("of our own family"))
                tg.start_soon(broken, db, ZeroDivisionError("a bug"))
                await wait_all_tasks_blocked()
                tg.start_soon(db.write, partial(add, "after"))
                await wait_all_tasks_blocked()
                gate.opened.set()
            assert await db.read(texts) == ["before", "after"]
    assert len(raised) == 2


async def test_wrong_sql_is_a_bug_and_not_a_knowledge_error(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(tmp_path / "intern.db", schema=NOTES) as db:
            with pytest.raises(apsw.SQLError):
                await db.write(lambda tx: tx.run("insert into nowhere values (1)"))
            with pytest.raises(apsw.ConstraintError):
                await db.write(lambda tx: tx.run("insert into notes (text) values (null)"))
            await db.write(partial(add, "still working"))
            assert await db.read(texts) == ["still working"]


async def test_work_that_ends_the_transaction_is_told_and_the_writer_goes_on(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(tmp_path / "intern.db", schema=NOTES) as db:
            with pytest.raises(apsw.SQLError):
                await db.write(lambda tx: tx.rows("rollback"))
            await db.write(partial(add, "next"))
            assert await db.read(texts) == ["next"]


async def test_many_writers_at_once_share_few_commits(tmp_path: Path) -> None:
    gate = Gate()
    commits: list[int] = []

    async with await SqliteDatabase.open(tmp_path / "intern.db", schema=NOTES) as db:
        with anyio.fail_after(5):
            await db.write(partial(count_commits, commits))
            commits.clear()
            async with anyio.create_task_group() as tg:
                tg.start_soon(db.write, gate.hold)
                await gate.is_reached()
                for n in range(100):
                    tg.start_soon(db.write, partial(add, str(n)))
                await wait_all_tasks_blocked()
                gate.opened.set()
            assert sorted(map(int, await db.read(texts))) == list(range(100))
    assert len(commits) == 2, "one for the gate, one for the hundred that waited meanwhile"


def count_commits(commits: list[int], tx: Transaction) -> None:
    def committed() -> bool:
        commits.append(1)
        return False

    cast("SqliteTransaction", tx)._db.set_commit_hook(committed)


async def test_a_group_has_a_largest_size(tmp_path: Path) -> None:
    gate = Gate()
    commits: list[int] = []
    async with await SqliteDatabase.open(tmp_path / "intern.db", schema=NOTES) as db:
        with anyio.fail_after(10):
            await db.write(partial(count_commits, commits))
            commits.clear()
            async with anyio.create_task_group() as tg:
                tg.start_soon(db.write, gate.hold)
                await gate.is_reached()
                for n in range(300):
                    tg.start_soon(db.write, partial(add, str(n)))
                await wait_all_tasks_blocked()
                gate.opened.set()
    assert len(commits) == 3, "the gate, 256, and what was left"


async def test_a_cancelled_writer_harms_nobody(tmp_path: Path) -> None:
    gate = Gate()
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(tmp_path / "intern.db", schema=NOTES) as db:
            async with anyio.create_task_group() as tg:
                tg.start_soon(db.write, gate.hold)
                await gate.is_reached()
                with anyio.CancelScope() as scope:
                    tg.start_soon(partial(cancel, scope))
                    await db.write(partial(add, "nobody waits"))
                assert scope.cancelled_caught
                tg.start_soon(db.write, partial(add, "somebody waits"))
                gate.opened.set()
            assert await db.read(texts) == ["nobody waits", "somebody waits"]


async def cancel(scope: anyio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_closing_finishes_what_is_queued_and_takes_no_more(tmp_path: Path) -> None:
    gate = Gate()
    with anyio.fail_after(5):
        db = await SqliteDatabase.open(tmp_path / "intern.db", schema=NOTES)
        async with anyio.create_task_group() as tg:
            tg.start_soon(db.write, gate.hold)
            await gate.is_reached()
            tg.start_soon(db.write, partial(add, "queued"))
            await wait_all_tasks_blocked()
            tg.start_soon(db.close)
            await wait_all_tasks_blocked()
            with pytest.raises(RuntimeError, match="closed"):
                await db.write(partial(add, "late"))
            gate.opened.set()
        await db.close()
        with pytest.raises(RuntimeError, match="closed"):
            await db.read(texts)
        assert names_in(tmp_path) == ["intern.db"], "the last to close tidies the WAL"
        async with await SqliteDatabase.open(tmp_path / "intern.db", schema=NOTES) as again:
            assert await again.read(texts) == ["queued"]


async def test_readers_cannot_write_and_see_one_moment(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(tmp_path / "intern.db", schema=NOTES) as db:
            gate = Gate()

            def twice(tx: Transaction) -> tuple[list[str], list[str]]:
                before = texts(tx)
                gate.hold(tx)
                return before, texts(tx)

            seen: list[tuple[list[str], list[str]]] = []

            async def look() -> None:
                seen.append(await db.read(twice))

            async with anyio.create_task_group() as tg:
                tg.start_soon(look)
                await gate.is_reached()
                await db.write(partial(add, "meanwhile"))
                gate.opened.set()
            assert seen == [([], [])]
            with pytest.raises(KnowledgeError, match="opened for writing"):
                await db.read(partial(add, "no"))
            assert await db.read(texts) == ["meanwhile"]


async def test_tables_that_cannot_be_made_leave_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "intern.db"
    with anyio.fail_after(5):
        with pytest.raises(apsw.SQLError):
            await SqliteDatabase.open(path, schema=f"{NOTES}; drop table notes; drop table nowhere")
        async with await SqliteDatabase.open(path, schema=NOTES) as db:
            assert await db.read(texts) == []


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1])
async def test_another_schema_is_refused_by_file_and_numbers(tmp_path: Path, version: int) -> None:
    path = tmp_path / "intern.db"
    other: Any = apsw.Connection(str(path))
    with closing(other):
        other.execute("create table notes (text text)").fetchall()
        other.pragma("user_version", version)
    said = rf"intern\.db has schema {version}, and this intern knows schema {SCHEMA_VERSION} only"
    with anyio.fail_after(5), pytest.raises(KnowledgeError, match=said):
        await SqliteDatabase.open(path)


async def test_the_schema_is_made_once(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        for _ in range(2):
            async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
                assert await db.read(lambda tx: tx.row("pragma user_version")) == (SCHEMA_VERSION,)
                assert await db.read(lambda tx: tx.row("pragma journal_mode")) == ("wal",)
                assert await db.write(lambda tx: tx.row("pragma synchronous")) == (2,)


async def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "intern.db"
    path.write_bytes(b"this was a database once " * 1000)
    with anyio.fail_after(5), pytest.raises(KnowledgeError, match=r"intern\.db is damaged"):
        await SqliteDatabase.open(path)


async def test_damage_found_while_reading_is_a_knowledge_error(tmp_path: Path) -> None:
    path = tmp_path / "intern.db"
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(path, schema=NOTES) as db:
            for n in range(200):
                await db.write(partial(add, f"{n}" * 100))
        data = bytearray(path.read_bytes())
        data[8192:] = b"\xff" * (len(data) - 8192)
        path.write_bytes(data)
        async with await SqliteDatabase.open(path, schema=NOTES) as db:
            with pytest.raises(KnowledgeError, match="damaged"):
                await db.read(texts)
            with pytest.raises(KnowledgeError, match="damaged"):
                await db.write(texts)


async def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder" / "intern.db").mkdir(parents=True)
    with anyio.fail_after(5):
        with pytest.raises(KnowledgeError, match="file cannot be made"):
            await SqliteDatabase.open(tmp_path / "file" / "intern.db")
        with pytest.raises(KnowledgeError, match=r"intern\.db cannot be opened"):
            await SqliteDatabase.open(tmp_path / "folder" / "intern.db")


async def test_a_file_that_another_program_holds_is_named(tmp_path: Path) -> None:
    path = tmp_path / "intern.db"
    with anyio.fail_after(20):
        async with await SqliteDatabase.open(path, schema=NOTES) as db:
            other: Any = apsw.Connection(str(path))
            await db.write(lambda tx: tx.rows("pragma busy_timeout = 1"))
            other.execute("begin immediate")
            with pytest.raises(KnowledgeError, match=r"intern\.db is held by another program"):
                await db.write(partial(add, "refused"))
            other.execute("rollback")
            other.close()
            await db.write(partial(add, "taken"))
            assert await db.read(texts) == ["taken"]


async def test_a_full_disk_fails_each_caller_and_later_writes_go_on(tmp_path: Path) -> None:
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(tmp_path / "intern.db", schema=NOTES) as db:
            await db.write(lambda tx: tx.rows("pragma max_page_count = 10"))
            with pytest.raises(KnowledgeError, match="no space is left"):
                await db.write(partial(add, "x" * 100_000))
            await db.write(partial(add, "small"))
            assert await db.read(texts) == ["small"]


CHILD = """
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio

from intern.stores.database import Database, Transaction
from intern.stores.engines.sqlite.database import SqliteDatabase


def add(n: int, db: Transaction) -> None:
    db.run("insert into notes (id, text) values (?, 'x')", (n,))


async def write(db: Database, start: int) -> None:
    for n in range(start, 1_000_000, 4):
        await db.write(partial(add, n))
        print(n, flush=True)


async def main() -> None:
    notes = "create table notes (id integer primary key, text text not null) strict"
    async with await SqliteDatabase.open(Path(sys.argv[1]), schema=notes) as db, anyio.create_task_group() as tg:
        for start in range(4):
            tg.start_soon(write, db, start)


anyio.run(main, backend=sys.argv[2])
"""


@pytest.mark.rest
async def test_every_acknowledged_row_survives_a_sigkill(tmp_path: Path, anyio_backend: str) -> None:
    path = tmp_path / "intern.db"
    acknowledged = await anyio.to_thread.run_sync(write_until_killed, path, anyio_backend)
    assert len(acknowledged) >= 200
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(path, schema=NOTES) as db:
            kept = {row[0] for row in await db.read(lambda tx: tx.rows("select id from notes"))}
            assert await db.read(lambda tx: tx.row("pragma integrity_check")) == ("ok",)
    assert acknowledged <= kept
    assert len(kept) <= len(acknowledged) + 4, "at most what each writer had in work"


def write_until_killed(path: Path, backend: str) -> set[int]:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD), str(path), backend],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        acknowledged = {int(child.stdout.readline()) for _ in range(200)}
        child.kill()
        whole, _, _torn = child.stdout.read().rpartition("\n")
        return acknowledged | {int(line) for line in whole.split()}


async def test_a_database_bound_to_a_community_reads_and_writes_what_is_its_own(tmp_path: Path) -> None:
    schema = "create table notes (community text, n integer, text text, primary key (community, n)) strict"
    insert = "insert into notes (n, community, text) values (?, :community, '? :community ' || ?)"
    select = "select text from notes where n = ? and community = :community"
    with anyio.fail_after(5):
        async with await SqliteDatabase.open(tmp_path / "intern.db", schema=schema) as db:
            other = db.for_community("other")
            await db.run(insert, (1, "own"))

            def write(tx: Transaction) -> None:
                tx.run_each(insert, [(1, "theirs"), (2, "more")])

            await other.write(write)
            assert await db.texts(select, (1,)) == ["? :community own"]
            assert await other.texts(select, (1,)) == ["? :community theirs"]

            def second(tx: Transaction) -> list[str]:
                return tx.texts(select, (2,))

            assert await anyio.to_thread.run_sync(db.read_blocking, second) == []
            assert await anyio.to_thread.run_sync(other.read_blocking, second) == ["? :community more"]
