"""All that a community has is copied to another database, row by row, or nothing is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from anyio import fail_after

from intern.core.errors import ConfigError, KnowledgeError
from intern.core.progress import send_progress_to
from intern.stores.database import Database as AnyDatabase, Transaction
from intern.stores.engines.sqlite.database import SCHEMA, SqliteDatabase
from intern.stores.tables.community_rows import copy_community, erase_community
from tests.engines import open_database

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]


MANY = 503
"""Rows of each table, more than are read at a time."""

_ONE_OF = re.compile(r"check \((\w+) in \((?:'', )?'([^']+)'")


def filled(community: str, many: int) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Yield a statement for each table, with made-up rows: each column differs, and some rows point to later ones."""
    db: Any = apsw.Connection(":memory:")
    with db:
        db.execute(SCHEMA.read_text(encoding="utf-8")).fetchall()
        tables = db.execute("select name, sql from sqlite_schema where type = 'table' order by rowid").fetchall()
        keys = 'select ?1, "from", "table", "to" from pragma_foreign_key_list(?1)'
        parents = {
            (table, column): (parent, of)
            for name, _ in tables
            for table, column, parent, of in db.execute(keys, (name,))
        }
        for table, sql in tables:
            about = db.execute("select name, lower(type), pk from pragma_table_info(?)", (table,)).fetchall()
            columns = [column for column, _, _ in about]
            if "community" not in columns or table == "search_origins":
                continue
            one_row = [column for column, _, pk in about if pk] == ["community"]
            allowed = dict(_ONE_OF.findall(sql))
            rows = [
                tuple(
                    community if name == "community" else allowed.get(name) or _value((table, name), kind, n, parents)
                    for name, kind, _ in about
                )
                for n in range(1, 2 if one_row else many + 1)
            ]
            yield f"insert into {table} ({', '.join(columns)}) values ({', '.join('?' * len(about))})", rows


def _value(place: tuple[str, str], kind: str, n: int, parents: dict[tuple[str, str], tuple[str, str]]) -> object:
    parent = parents.get(place)
    if parent and parent[0] == place[0]:
        return f"{place[0]}.id {n + 1}" if n % 7 == 4 else None  # a row that comes after it
    if parent:
        return _value(parent, kind, n, parents)
    made: dict[str, object] = {
        "integer": n if n % 2 else n * 4_000_000_000,
        "real": n / 3,
        "blob": bytes([n % 256, 0]),
        "text": f"{'.'.join(place)} {n}" if place[1] == "id" else f"{'.'.join(place)} {n} \0 é 🦊",
    }
    return made[kind]


async def fill(db: AnyDatabase, many: int = MANY) -> None:
    def work(tx: Transaction) -> None:
        if isinstance(db, SqliteDatabase):
            tx.run("pragma defer_foreign_keys = 1")
        for statement, rows in filled(db.community, many):
            tx.run_each(statement, rows)

    await db.write(work)


async def everything(db: AnyDatabase) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for statement, _ in filled(db.community, 1):
        table, columns = re.findall(r"insert into (\w+) \(([^)]*)\)", statement)[0]
        rows = await db.rows(f"select {columns} from {table} where community = :community")
        found[table] = sorted(rows, key=repr)
    return found


@pytest.mark.rest
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_each_row_of_each_table_is_copied_to_either_engine_and_back(tmp_path: Path) -> None:
    with fail_after(60):
        async with (
            await SqliteDatabase.open(tmp_path / "one.db") as one,
            await open_database(tmp_path / "two.db") as two,
            await SqliteDatabase.open(tmp_path / "three.db") as three,
        ):
            await fill(one)
            before = await everything(one)
            moved = await copy_community(one, two)
            assert moved == sum(map(len, before.values()))
            assert await everything(two) == before
            assert await copy_community(two, three) == moved
            assert await everything(three) == before


async def test_rows_that_come_later_are_numbered_after_those_that_were_moved(tmp_path: Path) -> None:
    with fail_after(30):
        async with (
            await SqliteDatabase.open(tmp_path / "one.db") as one,
            await open_database(tmp_path / "two.db") as two,
        ):
            await fill(one, 3)
            await copy_community(one, two)
            largest = await two.number("select max(rid) from attachment_texts where community = :community")
            await two.run(
                "insert into attachment_texts (community, message_id, attachment_id, text)"
                " values (:community, '1', '2', 'new')"
            )
            newest = "select rid from attachment_texts where community = :community and text = 'new'"
            assert await two.number(newest) > largest


async def test_a_database_that_holds_something_is_not_moved_to(tmp_path: Path) -> None:
    with fail_after(30):
        async with (
            await SqliteDatabase.open(tmp_path / "one.db") as one,
            await open_database(tmp_path / "two.db") as two,
        ):
            await fill(one, 2)
            await fill(two, 1)
            before = await everything(two)
            with pytest.raises(ConfigError, match="holds communities already"):
                await copy_community(one, two)
            assert await everything(two) == before


@pytest.mark.rest
async def test_no_row_of_an_erased_community_is_left_and_each_of_another_is(tmp_path: Path) -> None:
    with fail_after(30):
        async with await open_database(tmp_path / "one.db") as db:
            one, other = db.for_community("one"), db.for_community("other")
            await fill(one, 3)
            await one.run("insert into search_origins (community, id) values (:community, 'x')")
            before = await everything(one)
            assert await everything(other) == {table: [] for table in before}
            assert await erase_community(other) == 0
            assert await everything(one) == before
            assert await erase_community(one) == sum(map(len, before.values())) + 1
            assert not any((await everything(one)).values())
            assert await erase_community(one) == 0


async def test_a_move_that_fails_midway_leaves_nothing(tmp_path: Path) -> None:
    def full(what: str, done: int, total: int, note: str = "") -> None:
        assert what == "Moving {total} rows of {note}"
        assert done == total
        if note == "usage":
            raise KnowledgeError("the disk is full")

    with fail_after(30):
        async with (
            await SqliteDatabase.open(tmp_path / "one.db") as one,
            await open_database(tmp_path / "two.db") as two,
        ):
            await fill(one, 2)
            with send_progress_to(full), pytest.raises(KnowledgeError, match="the disk is full"):
                await copy_community(one, two)
            assert not any((await everything(two)).values())
