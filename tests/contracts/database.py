"""The contract of every engine with the stores."""

from __future__ import annotations

import threading
from functools import partial

import anyio
import pytest

from intern.core.errors import KnowledgeError
from intern.stores.database import Transaction
from tests.engines import Opening

NOTES = "create table notes (id integer primary key, text text not null) strict;"
SHARED = (
    "create table notes (community text not null, n integer not null, text text not null,"
    " primary key (community, n)) strict, without rowid;"
)
INSERT = "insert into notes (n, community, text) values (?, :community, '? :community % ' || cast(? as text))"
SELECT = "select text from notes where n = ? and community = :community"


def add(text: str, db: Transaction) -> None:
    db.run("insert into notes (text) values (?)", (text,))


def texts(db: Transaction) -> list[str]:
    return db.texts("select text from notes order by id")


class Gate:
    """Work that waits in its thread until the test lets it go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def hold(self, _: Transaction) -> None:
        self.reached.set()
        assert self.opened.wait(5)

    async def is_reached(self) -> None:
        assert await anyio.to_thread.run_sync(self.reached.wait, 5)


class DatabaseContract:
    """Tests of an engine. A subclass gives the fixture `opening`."""

    async def test_what_was_written_is_read_and_survives_closing(self, opening: Opening) -> None:
        with anyio.fail_after(10):
            async with await opening(schema=NOTES) as db:
                await db.write(partial(add, "one"))
                assert await db.read(texts) == ["one"]
            async with await opening(schema=NOTES) as db:
                assert await db.read(texts) == ["one"]

    async def test_work_that_fails_undoes_itself_and_nothing_else(self, opening: Opening) -> None:
        def broken(tx: Transaction) -> None:
            add("half", tx)
            raise error

        with anyio.fail_after(10):
            async with await opening(schema=NOTES) as db:
                await db.write(partial(add, "before"))
                for error in (KnowledgeError("of our own family"), ZeroDivisionError("a bug")):
                    with pytest.raises(type(error)) as caught:
                        await db.write(broken)
                    assert caught.value is error
                await db.write(partial(add, "after"))
                assert await db.read(texts) == ["before", "after"]

    @pytest.mark.parametrize("statement", ["insert into nowhere values (1)", "insert into notes (text) values (null)"])
    async def test_wrong_sql_is_a_bug_and_not_a_knowledge_error(self, opening: Opening, statement: str) -> None:
        with anyio.fail_after(10):
            async with await opening(schema=NOTES) as db:
                with pytest.raises(Exception, match=r"nowhere|(?i:not null|not-null)") as caught:
                    await db.run(statement)
                assert not isinstance(caught.value, KnowledgeError)
                await db.write(partial(add, "still working"))
                assert await db.read(texts) == ["still working"]

    async def test_work_that_ends_the_transaction_raises_and_later_writes_go_on(self, opening: Opening) -> None:
        with anyio.fail_after(10):
            async with await opening(schema=NOTES) as db:
                with pytest.raises(Exception, match=r"transaction|savepoint") as caught:
                    await db.write(lambda tx: tx.rows("rollback"))
                assert not isinstance(caught.value, KnowledgeError)
                await db.write(partial(add, "next"))
                assert await db.read(texts) == ["next"]

    async def test_a_hundred_writers_at_once_all_write(self, opening: Opening) -> None:
        async with await opening(schema=NOTES) as db:
            with anyio.fail_after(10):
                async with anyio.create_task_group() as tg:
                    for n in range(100):
                        tg.start_soon(db.write, partial(add, str(n)))
                assert sorted(map(int, await db.read(texts))) == list(range(100))

    async def test_writers_of_a_community_see_what_the_one_before_them_did(self, opening: Opening) -> None:
        def count_one_more(tx: Transaction) -> None:
            tx.run(INSERT, (tx.number("select count(*) from notes where community = :community"), "x"))

        async with await opening(schema=SHARED) as db, await opening(schema=SHARED) as other:
            with anyio.fail_after(10):
                async with anyio.create_task_group() as tg:
                    for each in [db, other] * 10:
                        tg.start_soon(each.write, count_one_more)
                assert await db.number("select max(n) from notes where community = :community") == 19

    async def test_a_cancelled_writer_has_written_or_has_not(self, opening: Opening) -> None:
        gate = Gate()

        def work(tx: Transaction) -> None:
            gate.hold(tx)
            add("whole", tx)

        with anyio.fail_after(10):
            async with await opening(schema=NOTES) as db:
                async with anyio.create_task_group() as tg:
                    tg.start_soon(db.write, work)
                    await gate.is_reached()
                    tg.cancel_scope.cancel()
                    gate.opened.set()
                await db.write(partial(add, "next"))
                assert await db.read(texts) == ["whole", "next"]

    async def test_a_closed_database_refuses_work(self, opening: Opening) -> None:
        with anyio.fail_after(10):
            db = await opening(schema=NOTES)
            await db.close()
            await db.close()
            with pytest.raises(RuntimeError, match="closed"):
                await db.write(partial(add, "late"))
            with pytest.raises(RuntimeError, match="closed"):
                await db.read(texts)

    async def test_readers_cannot_write_and_see_one_moment(self, opening: Opening) -> None:
        gate = Gate()
        seen: list[tuple[list[str], list[str]]] = []

        def twice(tx: Transaction) -> tuple[list[str], list[str]]:
            before = texts(tx)
            gate.hold(tx)
            return before, texts(tx)

        with anyio.fail_after(10):
            async with await opening(schema=NOTES) as db:

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

    async def test_tables_that_cannot_be_made_leave_nothing(self, opening: Opening) -> None:
        with anyio.fail_after(10):
            with pytest.raises(Exception, match="notes"):
                await opening(schema=f"{NOTES} {NOTES}")
            async with await opening(schema=NOTES) as db:
                assert await db.read(texts) == []

    async def test_a_database_bound_to_a_community_reads_and_writes_what_is_its_own(self, opening: Opening) -> None:
        with anyio.fail_after(10):
            async with await opening(schema=SHARED) as db:
                other = db.for_community("it's another")
                assert await db.run(INSERT, (1, "own")) == 1

                def write(tx: Transaction) -> None:
                    tx.run_each(INSERT, [(1, "theirs"), (2, "more")])

                await other.write(write)
                assert await db.texts(SELECT, (1,)) == ["? :community % own"]
                assert await other.texts(SELECT, (1,)) == ["? :community % theirs"]

                def second(tx: Transaction) -> list[str]:
                    return tx.texts(SELECT, (2,))

                assert await anyio.to_thread.run_sync(db.read_blocking, second) == []
                assert await anyio.to_thread.run_sync(other.read_blocking, second) == ["? :community % more"]

    async def test_values_come_back_as_they_were_given(self, opening: Opening) -> None:
        table = "create table values_of (n integer, r real, t text, b blob) strict;"
        given = [(2**62, 0.1, "Ärger\n'\"%?", b"\0\xff"), (-1, -1e300, "", b""), (None, None, None, None)]
        with anyio.fail_after(10):
            async with await opening(schema=table) as db:

                def write(tx: Transaction) -> None:
                    tx.run_each("insert into values_of values (?, ?, ?, ?)", given)

                await db.write(write)
                kept = await db.rows("select n, r, t, b from values_of")
                assert sorted(kept, key=str) == sorted(given, key=str)
                assert await db.row("select sum(n), n > 0 from values_of where n > 0 group by n") == (2**62, 1)

    async def test_texts_with_zero_bytes_come_back_and_are_found(self, opening: Opening) -> None:
        given = ["\0", "a\0b", "a b", "\U0010fffe", "\U0010fffe0", "\\u0000", "\0\U0010fffe1"]
        with anyio.fail_after(10):
            async with await opening(schema=NOTES) as db:
                await db.write(
                    lambda tx: tx.run_each("insert into notes (text) values (?)", [(each,) for each in given])
                )
                assert await db.read(texts) == given
                for each in given:
                    assert await db.texts("select text from notes where text = ?", (each,)) == [each]

    async def test_texts_sort_by_code_point_and_a_list_is_searched(self, opening: Opening) -> None:
        with anyio.fail_after(10):
            async with await opening(schema=NOTES) as db:
                for text in ("b", "B", "ä", "a"):
                    await db.write(partial(add, text))
                order = "select text from notes where text in (select value from json_each(?)) order by text"
                assert await db.texts(order, ('["b", "B", "ä", "z"]',)) == ["B", "b", "ä"]
                assert await db.texts("select text from notes where text like 'B%' order by text") == ["B", "b"]

    async def test_scrubbing_keeps_what_was_not_deleted(self, opening: Opening) -> None:
        with anyio.fail_after(10):
            async with await opening(schema=NOTES) as db:
                await db.write(partial(add, "gone"))
                await db.write(partial(add, "kept"))
                await db.run("delete from notes where text = 'gone'")
                await db.scrub()
                assert await db.read(texts) == ["kept"]
