"""A connection to PostgreSQL and its transactions: conversion of values, checks of the server, and errors.

An error names the place and the next step. No message holds the password of the address.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, cast

import msgspec
import psycopg
from psycopg import errors
from psycopg.adapt import Buffer, Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumperUnknown

from intern.core.errors import ConfigError, KnowledgeError
from intern.stores.database import (
    DEFAULT_COMMUNITY,
    PROCESS,
    SCHEMA_VERSION,
    Row,
    Transaction,
    Value,
    resolve_placeholders,
)
from intern.stores.engines.postgres.dialect import translate_schema, translate_statement
from intern.stores.engines.postgres.leases import TABLES
from intern.stores.engines.sqlite.database import SCHEMA


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection, and the community whose rows are open to it outside of transactions."""

    community: str | None = None
    takes_no_writes: bool = False
    """The server refuses writes, by its own default or as a standby."""
    recovered: str = ""
    """When the server last recovered from a crash: its own, or that of one of its processes."""

    def check_writable(self) -> None:
        """Raise ReadOnlySqlTransaction where the server takes no writes, though it would take ours."""
        if self.takes_no_writes:
            raise errors.ReadOnlySqlTransaction


class ServerAwayError(psycopg.OperationalError):
    """The server accepts no connection now."""


_SETTINGS = """
    set lock_timeout = '5s'; set client_min_messages = warning; set timezone = 'UTC';
    set default_transaction_read_only = on
"""

# A server that is gone without a word is noticed within a minute.
_NETWORK: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms
}

_OLDEST = 14  # the oldest version that its makers still fix

# "intern": the advisory lock while tables are made; communities have two of their own.
MAKING = 0x696E7465726E
HOLDING = MAKING + 1

_ESCAPE = "\U0010fffe"  # no character: Unicode keeps it for the inner use of programs


def escape_zero_bytes(text: str) -> str:
    """Return a text as PostgreSQL takes it, which refuses zero bytes; `unescape_zero_bytes` reverses it."""
    if "\0" not in text and _ESCAPE not in text:
        return text
    return text.replace(_ESCAPE, f"{_ESCAPE}1").replace("\0", f"{_ESCAPE}0")


def unescape_zero_bytes(text: str) -> str:
    """Return a text as it was given."""
    return text.replace(f"{_ESCAPE}0", "\0").replace(f"{_ESCAPE}1", _ESCAPE) if _ESCAPE in text else text


class _TextDumper(StrDumperUnknown):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(escape_zero_bytes(obj))


class _TextLoader(Loader):
    def load(self, data: Buffer) -> str:
        return unescape_zero_bytes(bytes(data).decode())


class _BoolLoader(Loader):
    """Load a boolean as a number, as in SQLite."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


class _NumericLoader(Loader):
    """Load a sum of whole numbers as a whole number."""

    def load(self, data: Buffer) -> int | float:
        number = Decimal(bytes(data).decode())
        return int(number) if number == number.to_integral_value() else float(number)


class _BoolDumper(Int8Dumper):
    def dump(self, obj: Any) -> Buffer | None:
        return super().dump(int(obj))


def encode_sql(statement: str) -> bytes:
    """Return a statement of ours as psycopg takes it: it takes no text, so that no value gets into one."""
    return statement.encode()


def quote_literal(text: str) -> str:
    """Return a text as a literal of SQL."""
    if "\0" in text:
        raise ValueError("a community's name contains a zero byte")
    return "'" + text.replace("'", "''") + "'"


def connect(url: str) -> Connection:
    """Connect. Raises ServerAwayError, and KnowledgeError where a pooler changes the session between statements."""
    try:
        db = Connection.connect(url, autocommit=True, application_name=PROCESS, **_NETWORK)
        try:
            _configure_session(db, url)
        except BaseException:
            db.close()
            raise
    except psycopg.OperationalError as error:  # a pooler lets clients in while its server is away
        raise ServerAwayError(str(error)) from error
    return db


def _configure_session(db: Connection, url: str) -> None:
    _check_session(db, url)
    db.adapters.register_dumper(str, _TextDumper)
    db.adapters.register_loader("text", _TextLoader)
    db.adapters.register_dumper(int, Int8Dumper)
    db.adapters.register_dumper(bool, _BoolDumper)
    db.adapters.register_loader("bool", _BoolLoader)
    db.adapters.register_loader("numeric", _NumericLoader)
    said = map(db.info.parameter_status, ("default_transaction_read_only", "in_hot_standby"))
    db.takes_no_writes = "on" in said
    db.execute(_SETTINGS)
    # Statistics begin again then; the server's start does not show a crash of one process.
    db.recovered = db.execute("select stats_reset::text from pg_stat_bgwriter").fetchall()[0][0]


_ROUNDS = 8  # other clients of a pooler may take a server's connection between two statements of ours


def _check_session(db: Connection, url: str) -> None:
    """Raise KnowledgeError where a pooler lends a server's connection for less than a session.

    Locks and settings would stay behind on it then, for other clients. A pooler answers with a process number of its
    own. Each of two connections asks twice in a row: a pooler takes the one that was used last, or the one least used.
    """
    if _read_server_pid(db) == db.info.backend_pid:
        return
    with psycopg.connect(url, autocommit=True, **_NETWORK) as other:
        asked = [(each, _read_server_pid(each)) for each in (db, db, other, other) * _ROUNDS]
    if len({*asked}) > len({db, other}) or len({pid for _, pid in asked}) < len({db, other}):
        raise KnowledgeError(
            f"{describe_address(url)} is a pooler that changes the connection between statements, such as PgBouncer"
            " with pool_mode = transaction; set pool_mode = session, or let data.url name the server itself"
        )


def _read_server_pid(db: psycopg.Connection[tuple[Any, ...]]) -> int:
    # A prepared statement would stay behind.
    return int(db.execute("select pg_backend_pid()", prepare=False).fetchall()[0][0])


def open_connection(url: str, schema: str | None = None) -> Connection:
    """Connect, and make the tables where they are missing. Raises ConfigError and KnowledgeError."""
    where = describe_address(url)
    try:
        db = connect(url)
        try:
            if not has_tables(db, where):
                _make_tables(db, where, schema or SCHEMA.read_text(encoding="utf-8"))
        except BaseException:
            db.close()
            raise
    except psycopg.Error as error:
        raise explain_error(where, error) from error
    return db


def _make_tables(db: Connection, where: str, schema: str) -> None:
    """Make the tables. Other processes that start at the same time wait, and find them made."""
    db.check_writable()
    with db.transaction():
        db.execute("set transaction read write")
        db.execute("select pg_advisory_xact_lock(%s)", (MAKING,))
        if has_tables(db, where):
            return
        versions = "create table schema_version (version bigint not null)"
        db.execute(encode_sql(";".join([*translate_schema(schema), TABLES, versions])))
        db.execute("insert into schema_version values (%s)", (SCHEMA_VERSION,))


def _check_server(db: Connection, where: str) -> None:
    if db.info.server_version < _OLDEST * 10_000:
        raise KnowledgeError(
            f"{where} is PostgreSQL {db.info.server_version // 10_000}; intern needs {_OLDEST} or newer"
        )
    if db.info.parameter_status("server_encoding") != "UTF8":
        raise KnowledgeError(
            f"{where} cannot hold every text; make its database anew, with: encoding 'UTF8' template template0"
        )


def has_tables(db: Connection, where: str) -> bool:
    """Return whether the database has our tables; False where it has none.

    Raises KnowledgeError for other ones, and for a server that cannot be used.
    """
    _check_server(db, where)
    if not db.execute("select to_regclass('schema_version') is not null").fetchall()[0][0]:
        return False
    [(version,)] = db.execute("select version from schema_version").fetchall()
    if version != SCHEMA_VERSION:
        todo = (
            "install the newer intern here, too (the order of an upgrade: stop every intern, back up, install the new "
            "one everywhere, start one, then the others)"
            if version > SCHEMA_VERSION
            else "this intern cannot change it: export with the intern that wrote it, and restore into a new one"
        )
        raise KnowledgeError(f"{where} has schema {version}, and this intern knows schema {SCHEMA_VERSION}: {todo}")
    return True


class PostgresInspection(NamedTuple):
    """A server and a role, for the operator."""

    role: str
    schema: str | None
    """The schema of the tables."""
    version: str
    is_read_only: bool
    is_unguarded: bool
    """Row-level security does not hold for the role."""
    may_create: bool
    closed: str | None
    """The tables that the role may not read and write."""
    is_made: bool


_EXAMINED = """
    select current_user, current_schema(), current_setting('server_version'),
        pg_is_in_recovery()
            or (select reset_val = 'on' from pg_settings where name = 'default_transaction_read_only'),
        (select rolsuper or rolbypassrls from pg_roles where rolname = current_user),
        coalesce(has_schema_privilege(current_schema(), 'create'), false),
        (select string_agg(relname, ', ' order by relname) from pg_class
            where relkind = 'r' and relnamespace = to_regnamespace(quote_ident(current_schema())) and not (
                has_table_privilege(oid, 'select') and has_table_privilege(oid, 'insert')
                and has_table_privilege(oid, 'update') and has_table_privilege(oid, 'delete')
            ))
"""


def inspect_server(db: Connection, where: str) -> PostgresInspection:
    """Read the rights that the server and the role have. Raises KnowledgeError for a server that cannot be used."""
    [row] = db.execute(_EXAMINED).fetchall()
    return PostgresInspection._make([*row, has_tables(db, where)])


CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected)
"""Another transaction was in the way; the same work may succeed when it is repeated."""


def describe_address(url: str) -> str:
    """Return an address without user and password. Raises ConfigError when it is not one."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # its message repeats parts of the address
        raise ConfigError(
            "data.url is not an address of PostgreSQL; it should read postgresql://USER@HOST:5432/DATABASE"
        ) from None
    host = parts.get("host") or parts.get("hostaddr") or "localhost"
    return f"PostgreSQL at {host}:{parts.get('port') or 5432}/{parts.get('dbname') or parts.get('user') or ''}"


# A server that refuses a connection sends words, and psycopg gives no code.
_NOT_READY = re.compile(r"starting up|shutting down|in recovery mode|not accepting|not yet accepting")


def explain_error(where: str, error: psycopg.Error) -> Exception:  # noqa: PLR0911
    """Return an error that names the next step; or the same one if only wrong SQL causes it, which is a bug."""
    match error:
        case errors.SerializationFailure() | errors.DeadlockDetected():
            return KnowledgeError(f"{where} is too busy: other transactions were in the way each time; try again")
        case errors.LockNotAvailable() | errors.QueryCanceled():
            return KnowledgeError(f"{where} is held by another program for too long; end it and try again")
        case errors.DiskFull():
            return KnowledgeError(f"{where} has no space left; free some on the server and try again")
        case errors.ReadOnlySqlTransaction():
            return KnowledgeError(
                f"{where} cannot be opened for writing; connect to the primary server, and check "
                "default_transaction_read_only"
            )
        case errors.InsufficientPrivilege() | errors.InvalidSchemaName():
            return KnowledgeError(
                f"{where} lacks a right ({_first_line(error)}); let the role of data.url own its tables and create in "
                "its schema"
            )
        case (
            errors.OutOfMemory()
            | errors.InsufficientResources()
            | errors.DataCorrupted()
            | errors.IoError()
            | errors.SystemError()
            | errors.IdleInTransactionSessionTimeout()
            | errors.InternalError_()  # such as a quota that is used up
        ):
            return KnowledgeError(f"{where} failed ({_first_line(error)}); read the server's log")
        case psycopg.OperationalError() if (said := _first_line(error).partition("FATAL:"))[1]:
            check = "check user, password and database in data.url, and the server's log"
            todo = "wait until it takes connections, then try again" if _NOT_READY.search(said[2]) else check
            return KnowledgeError(f"{where} refuses the connection ({said[2].strip()}); {todo}")
        case psycopg.OperationalError():
            return KnowledgeError(
                f"{where} cannot be reached ({_first_line(error)}); check that the server runs, the address and the "
                "password in data.url"
            )
        case _:
            return error


def _first_line(error: psycopg.Error) -> str:
    said = error.diag.message_primary or str(error)
    return said.strip().splitlines()[0] if said.strip() else type(error).__name__


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
            self._queue_statement(each)

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        cursor = self._run(statement, values)
        return cast("list[Row]", cursor.fetchall()) if cursor.description else []

    def run(self, statement: str, values: Sequence[Value] = ()) -> int:
        return self._run(statement, values).rowcount

    def run_each(self, statement: str, values: Iterable[Sequence[Value]]) -> None:
        plain, places = resolve_placeholders(statement)
        said, lists = translate_statement(plain)
        given = [self._adapt_values(each, places, lists) for each in values]
        if len(given) > 1:
            self._waiting.append(lambda: self._execute_many(said, given))
        elif given:
            self._queue_statement(said, given[0])

    def advance_numbering(self, table: str, column: str) -> None:
        numbers = f"pg_get_serial_sequence('{table}', '{column}')"  # of all communities; the largest one seen is ours
        self._queue_statement(f"select setval({numbers}, greatest(max({column}), nextval({numbers}))) from {table}")

    @property
    def xid(self) -> str:
        """The number that the server gave the transaction."""
        if not self._xid:
            self._send_queued()
        return self._xid

    def end(self, how: str) -> None:
        """Send the waiting statements, and end the transaction."""
        self._queue_statement(how)
        self._send_queued()

    def _run(self, statement: str, values: Sequence[Value]) -> psycopg.Cursor[tuple[Any, ...]]:
        plain, places = resolve_placeholders(statement)
        said, lists = translate_statement(plain)
        self._queue_statement(said, self._adapt_values(values, places, lists))
        return self._send_queued()

    def _queue_statement(self, statement: str, given: Sequence[object] = ()) -> None:
        self._waiting.append(lambda: self._db.execute(encode_sql(statement), given))

    def _execute_many(self, statement: str, given: Sequence[Sequence[object]]) -> psycopg.Cursor[tuple[Any, ...]]:
        cursor = self._db.cursor()
        cursor.executemany(encode_sql(statement), given)
        return cursor

    def _send_queued(self) -> psycopg.Cursor[tuple[Any, ...]]:
        """Send all waiting statements in one round trip, and return the cursor of the last."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) == 1:
            return waiting[0]()
        cursors: list[psycopg.Cursor[tuple[Any, ...]]] = []
        try:
            with self._db.pipeline():
                for each in waiting:
                    cursors.append(each())  # noqa: PERF401 those before an error are looked at
        except psycopg.Error:
            self._read_xid(cursors)
            raise
        self._read_xid(cursors)
        return cursors[-1]

    def _read_xid(self, cursors: Sequence[psycopg.Cursor[tuple[Any, ...]]]) -> None:
        """Take the number of the transaction from the last statement that opened it."""
        if not 0 < self._beginning <= len(cursors):
            return
        last = cursors[self._beginning - 1]
        if last.pgresult is not None and last.pgresult.status == psycopg.pq.ExecStatus.TUPLES_OK:
            self._beginning = 0
            if (row := last.fetchone()) is None:
                raise NoLeaseError
            self._xid = str(row[-1])

    def _adapt_values(self, values: Sequence[Value], places: Sequence[int], lists: Sequence[int]) -> Sequence[object]:
        given: list[object] = [*self._with_community(values, places)]
        for n in lists:
            given[n] = [*map(str, msgspec.json.decode(cast("str", given[n]), type=list[str | int]))]
        return given
