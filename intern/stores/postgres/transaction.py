"""A transaction on PostgreSQL, which sends in one round trip what needs no answer of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import msgspec
import psycopg

from intern.stores.database import DEFAULT_COMMUNITY, Row, Transaction, Value, positional
from intern.stores.postgres.connection import Connection, sql
from intern.stores.postgres.dialect import translated


class NoLeaseError(Exception):
    """The lease that a transaction needs is not held any more."""


class PostgresTransaction(Transaction):
    """A transaction on a connection of PostgreSQL.

    Statements without a result wait for the next one with a result, or for the end, and are sent with it.
    """

    def __init__(self, db: Connection, community: str = DEFAULT_COMMUNITY, *before: str) -> None:
        super().__init__(community)
        self._db = db
        self._waiting: list[Callable[[], psycopg.Cursor[tuple[Any, ...]]]] = []
        self._beginning, self._xid = len(before), ""
        for each in before:
            self._later(each)

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        cursor = self._run(statement, values)
        return cast("list[Row]", cursor.fetchall()) if cursor.description else []

    def run(self, statement: str, values: Sequence[Value] = ()) -> int:
        return self._run(statement, values).rowcount

    def run_each(self, statement: str, values: Iterable[Sequence[Value]]) -> None:
        plain, places = positional(statement)
        said, lists = translated(plain)
        given = [self._given(each, places, lists) for each in values]
        if len(given) > 1:
            self._waiting.append(lambda: self._many(said, given))
        elif given:
            self._later(said, given[0])

    def count_on(self, table: str, column: str) -> None:
        numbers = f"pg_get_serial_sequence('{table}', '{column}')"  # of all communities; the largest one seen is ours
        self._later(f"select setval({numbers}, greatest(max({column}), nextval({numbers}))) from {table}")

    @property
    def xid(self) -> str:
        """The number that the server gave the transaction."""
        if not self._xid:
            self._send()
        return self._xid

    def end(self, how: str) -> None:
        """Send what waits, and end the transaction."""
        self._later(how)
        self._send()

    def _run(self, statement: str, values: Sequence[Value]) -> psycopg.Cursor[tuple[Any, ...]]:
        plain, places = positional(statement)
        said, lists = translated(plain)
        self._later(said, self._given(values, places, lists))
        return self._send()

    def _later(self, statement: str, given: Sequence[object] = ()) -> None:
        self._waiting.append(lambda: self._db.execute(sql(statement), given))

    def _many(self, statement: str, given: Sequence[Sequence[object]]) -> psycopg.Cursor[tuple[Any, ...]]:
        cursor = self._db.cursor()
        cursor.executemany(sql(statement), given)
        return cursor

    def _send(self) -> psycopg.Cursor[tuple[Any, ...]]:
        """Send all that waits in one round trip, and return the cursor of the last."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) == 1:
            return waiting[0]()
        cursors: list[psycopg.Cursor[tuple[Any, ...]]] = []
        try:
            with self._db.pipeline():
                for each in waiting:
                    cursors.append(each())  # noqa: PERF401 those before an error are looked at
        except psycopg.Error:
            self._begin(cursors)
            raise
        self._begin(cursors)
        return cursors[-1]

    def _begin(self, cursors: Sequence[psycopg.Cursor[tuple[Any, ...]]]) -> None:
        """Take the number of the transaction from the last statement that opened it."""
        if not 0 < self._beginning <= len(cursors):
            return
        last = cursors[self._beginning - 1]
        if last.pgresult is not None and last.pgresult.status == psycopg.pq.ExecStatus.TUPLES_OK:
            self._beginning = 0
            if (row := last.fetchone()) is None:
                raise NoLeaseError
            self._xid = str(row[-1])

    def _given(self, values: Sequence[Value], places: Sequence[int], lists: Sequence[int]) -> Sequence[object]:
        given: list[object] = [*self._with_community(values, places)]
        for n in lists:
            given[n] = [*map(str, msgspec.json.decode(cast("str", given[n]), type=list[str | int]))]
        return given
