"""A community's rows: copied to another database, of the same engine or of another one, or erased."""

from __future__ import annotations

from collections.abc import Iterator, Set as AbstractSet
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

import apsw
from anyio.to_thread import run_sync

from intern.core.errors import ConfigError
from intern.core.progress import report_progress
from intern.stores.database import Database, Row, Transaction, Value
from intern.stores.engines.sqlite.database import SCHEMA
from intern.stores.tables.store import OURS

_SOME = 500
"""Rows that are held at a time."""

_NOT_MOVED = frozenset({"search_origins"})  # a search file is of one database, and of no copy of it
_ARCHIVE = "captures"


class _CommunityTable(NamedTuple):
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """The columns of its key, without the community."""
    number: str | None
    """The column that counts the rows by itself."""
    older: str | None
    """The column that names another row of the same table."""


async def copy_community(source: Database, target: Database, *, with_archive: bool = True) -> int:
    """Copy all rows of the community, with those of its archive or without, in one transaction; return how many.

    Raises ConfigError where the target has rows of the community, and KnowledgeError.
    """
    tables = await run_sync(partial(_list_tables, _NOT_MOVED if with_archive else _NOT_MOVED | {_ARCHIVE}))

    def work(to: Transaction) -> int:
        for table in tables:
            if to.row(f"select 1 from {table.name} {OURS} limit 1"):
                raise ConfigError(f"the database to move to holds {table.name} already; name an empty one")
        return source.read_blocking(lambda db: sum(_copy_table(db, to, table) for table in tables))

    here = copy_context()  # so that progress is heard
    return await target.write(lambda to: here.run(work, to))


async def erase_community(db: Database) -> int:
    """Delete all rows of the community, a table at a time, and return how many. Harmless when repeated."""
    tables = await run_sync(partial(_list_tables, frozenset()))
    return sum([await db.run(f"delete from {each.name} {OURS}") for each in reversed(tables)])


def _copy_table(source: Transaction, target: Transaction, table: _CommunityTable) -> int:
    columns = ", ".join(table.columns)
    insert = f"insert into {table.name} (community, {columns}) values (:community{', ?' * len(table.columns)})"
    total = source.number(f"select count(*) from {table.name} {OURS}")
    moved = 0
    for rows in _read_in_blocks(source, table):
        target.run_each(insert, [_clear_reference(table, row) for row in rows])
        moved += len(rows)
        report_progress("Moving {total} rows of {note}", moved, total, table.name)
    if table.older:
        point = f"update {table.name} set {table.older} = ? {OURS} and {table.key[0]} = ?"
        older, key = table.columns.index(table.older), table.columns.index(table.key[0])
        for rows in _read_in_blocks(source, table):
            target.run_each(point, [(row[older], row[key]) for row in rows if row[older] is not None])
    if table.number:
        target.advance_numbering(table.name, table.number)
    return moved


def _clear_reference(table: _CommunityTable, row: Row) -> Row:
    """Return the row without its reference to another one, which may not be there yet."""
    return tuple(None if name == table.older else value for name, value in zip(table.columns, row, strict=True))


def _read_in_blocks(source: Transaction, table: _CommunityTable) -> Iterator[list[Row]]:
    key = ", ".join(table.key)
    statement = f"select {', '.join(table.columns)} from {table.name} {OURS}"
    places = [table.columns.index(each) for each in table.key]
    after, last = "", tuple[Value, ...]()
    while rows := source.rows(f"{statement}{after}{f' order by {key}' if key else ''} limit {_SOME}", last):
        yield rows
        if len(rows) < _SOME:
            return
        last = tuple(rows[-1][place] for place in places)
        after = f" and ({key}) > ({', '.join('?' * len(last))})"


def _list_tables(without: AbstractSet[str] = _NOT_MOVED) -> list[_CommunityTable]:
    """Return the tables with rows of a community, those that others refer to first."""
    db: Any = apsw.Connection(":memory:")
    with db:
        db.execute(SCHEMA.read_text(encoding="utf-8")).fetchall()
        names = [
            str(name) for (name,) in db.execute("select name from sqlite_schema where type = 'table' order by rowid")
        ]
        return [found for name in names if name not in without and (found := _describe_table(db, name))]


def _describe_table(db: Any, name: str) -> _CommunityTable | None:
    about = db.execute("select name, type, pk from pragma_table_info(?) order by pk", (name,)).fetchall()
    columns = tuple(column for column, _, _ in about if column != "community")
    if len(columns) == len(about):
        return None
    key = tuple(column for column, _, pk in about if pk and column != "community")
    number = next((column for column, kind, pk in about if pk == 1 and kind.lower() == "integer"), None)
    older = db.execute(
        """select "from" from pragma_foreign_key_list(?) where "table" = ? and "from" <> 'community'""", (name, name)
    ).fetchall()
    return _CommunityTable(name, columns, key, number, older[0][0] if older else None)
