"""PostgreSQL: each piece of work is a transaction of its own, on one of a few connections, in a worker thread.

Writes of a community wait for each other, under a lock that the server holds for the transaction. So each sees the
changes of the one before, as with SQLite, also where several processes write. Writes of other communities go on beside.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from copy import copy
from typing import NamedTuple, Self, TypeVar

import anyio
import psycopg
from anyio import CapacityLimiter, Lock, to_thread

from intern.core.errors import FolderBusyError, KnowledgeError, LeaseLostError
from intern.core.log import get_logger
from intern.stores import database
from intern.stores.database import Transaction
from intern.stores.engines.postgres.connection import (
    CONFLICTS,
    HOLDING,
    MAKING,
    Connection,
    NoLeaseError,
    PostgresInspection,
    PostgresTransaction,
    ServerAwayError,
    connect,
    describe_address,
    encode_sql,
    explain_error,
    has_tables,
    inspect_server,
    open_connection,
    quote_literal,
)
from intern.stores.engines.postgres.leases import HELD, HOLDER, Lease
from intern.stores.engines.sqlite.database import open_empty

T = TypeVar("T")

_log = get_logger(__name__)

# Transactions are short; a server has 100 connections by default, for all of its clients.
_CONNECTIONS = 4  # to write, and as many to read for tasks
_READING = 8  # with those for threads that look

# A conflict is over when the other transaction ended, which takes milliseconds.
_ATTEMPTS = 5

_PAUSE_SECONDS = 0.1  # between two attempts to connect
_LONG_PAUSE_SECONDS = 1.0  # of a bot, whose patience is over

# Closing waits this long for work under way. If the process ends earlier, the server rolls back open transactions.
_CLOSE_SECONDS = 30

_BEGIN = {
    "write": "begin isolation level read committed read write",
    "read": "begin isolation level repeatable read read only",
}

_HOLDERS = """
    select application_name, case when pid = %s then pg_terminate_backend(pid, 5000) end
    from pg_locks left join pg_stat_activity using (pid) where locktype = 'advisory' and objsubid = 1
    and (classid::bigint << 32) | objid::bigint = {key}
"""


class PostgresDatabase(database.Database):
    """A database on a server, bound to a community."""

    patience = 10.0
    """Seconds for a server that restarts, until it accepts connections and knows the committed transactions. A bot at
    work waits on: work that it gave up would wait for the next start."""

    def __init__(self, url: str, first: Connection | None = None) -> None:
        super().__init__(describe_address(url))
        self._url = url
        self._idle = [] if first is None else [first]
        # Apart, so that readers need not wait for writers who wait for each other.
        self._readers, self._writers = CapacityLimiter(_CONNECTIONS), CapacityLimiter(_CONNECTIONS)
        self._looks = threading.Semaphore(_READING)
        # Writers of a community wait for each other here, and not with a connection each.
        self._turns = defaultdict[str, Lock](Lock)
        self._held: dict[str, _LockingConnection] = {}
        self._lease: Lease | None = None
        self._stop: anyio.Event | None = None
        self._closing = threading.Event()

    @classmethod
    async def open(cls, url: str, *, schema: str | None = None) -> Self:
        """Connect, and make the tables where they are missing. `schema`: other tables, for tests.

        Raises ConfigError when `url` is no address, and KnowledgeError when the server cannot be reached, lacks a
        right, or has another schema.
        """
        return cls(url, await to_thread.run_sync(open_connection, url, schema))

    def with_fence(self, lease: Lease) -> Self:
        """Return the same database, for the communities of a leased shard: it writes nothing once the lease ended.

        Each transaction that writes looks at the lease first and keeps it from being taken until it ends; without the
        lease it raises LeaseLostError. So no `lock_community` is needed, which takes a connection for each community.
        """
        other = copy(self)
        other._lease = lease  # noqa: SLF001 - the same class
        return other

    def with_own_limits(self) -> Self:
        other = copy(self)
        other._readers, other._writers = CapacityLimiter(1), CapacityLimiter(1)  # noqa: SLF001 - the same class
        other._looks = threading.Semaphore(1)  # noqa: SLF001 - the same class
        return other

    async def lock_community(self, *, beside_leases: bool = False) -> None:
        async with self._turns[self.community]:
            if self.community in self._held:
                return
            if self._lease is not None:
                # A command may have begun when no process had a lease. It looks at leases once it has its lock.
                if holders := await self._in_thread(lambda: self._retry(self._holders), self._readers):
                    raise self._busy_error(holders[0])
                return
            await self._in_thread(self._acquire_lock, self._writers)
            if not beside_leases and (holders := await self.texts(HOLDER)):
                await to_thread.run_sync(self._held.pop(self.community).connection.close)
                raise FolderBusyError(f"{self.place} is in use by {holders[0]}; stop all processes that host there")

    async def unlock_community(self) -> None:
        async with self._turns[self.community]:
            if (held := self._held.pop(self.community, None)) is not None:
                await to_thread.run_sync(held.connection.close)

    def wait_for_server_until(self, stop: anyio.Event) -> None:
        self._stop = stop

    async def write(self, work: Callable[[Transaction], T]) -> T:
        async with self._turns[self.community]:
            return await self._in_thread(
                lambda: self._retry(lambda db: self._run_and_commit(db, work), writes=True), self._writers
            )

    async def read(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        return await self._in_thread(lambda: self._read_with_retry(work, steady=steady), self._readers)

    def read_blocking(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        began = time.monotonic()
        while True:
            try:
                return self._read_with_retry(work, steady=steady)
            except ServerAwayError as away:
                time.sleep(self._retry_pause(began, away))

    def _read_with_retry(self, work: Callable[[Transaction], T], *, steady: bool) -> T:
        with self._looks:
            return self._retry(lambda db: _run_read(db, work, self.community, steady=steady))

    async def scrub(self) -> None:
        """Rewrite all tables without deleted data. The server's WAL and its backups are out of reach."""

        def vacuum(db: Connection) -> None:
            db.execute("set default_transaction_read_only = off")
            for (table,) in db.execute(
                "select quote_ident(tablename) from pg_tables where schemaname = current_schema()"
            ):
                db.execute(encode_sql(f"vacuum full {table}"))
            db.execute("set default_transaction_read_only = on")

        await self._in_thread(lambda: self._retry(vacuum), self._writers)

    async def close(self) -> None:
        await self._close_dependents()
        self._closing.set()
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await to_thread.run_sync(self._close_idle)
            for community in [*self._held]:
                async with self._turns[community]:
                    await to_thread.run_sync(self._held.pop(community).connection.close)

    async def _in_thread(self, call: Callable[[], T], limiter: CapacityLimiter) -> T:
        """Call in a thread; again while the server is away. Only the wait in between can be cancelled."""
        began = time.monotonic()
        while True:
            if self._closing.is_set():
                raise RuntimeError(f"{self.place} is closed")
            try:
                return await to_thread.run_sync(call, limiter=limiter)
            except ServerAwayError as away:
                pause = self._retry_pause(began, away)
            await anyio.sleep(pause)

    # From here on: worker threads.

    def _retry(self, call: Callable[[Connection], T], *, writes: bool = False) -> T:
        """Call with a connection; again after a conflict, and on a new one where it was lost."""
        attempt = 1
        while True:
            try:
                return self._with_connection(call, writes=writes)
            except ServerAwayError:
                raise
            except _ConnectionLostError as lost:
                error: psycopg.Error = lost.error
                again = attempt < _ATTEMPTS
            except psycopg.Error as other:
                error = other
                again = isinstance(other, CONFLICTS) and attempt < _ATTEMPTS
            if not again:
                raise explain_error(self.place, error) from error
            attempt += 1

    def _with_connection(self, call: Callable[[Connection], T], *, writes: bool) -> T:
        held = self._held.get(self.community) if writes and self._lease is None else None
        if held is not None:
            connection = self._connect_with_lock(held.pid) if held.connection.closed else held.connection
        else:
            connection = self._idle_connection() or connect(self._url)
        try:
            return call(connection)
        except psycopg.Error as error:
            if connection.closed:
                self._close_idle()  # the loss of one connection means the loss of all
                raise _ConnectionLostError(error) from error
            raise
        finally:
            if held is None:
                self._release(connection)

    def _retry_pause(self, began: float, error: psycopg.Error) -> float:
        """Return in how many seconds to try again to connect. Raises KnowledgeError where it has waited enough."""
        waited = time.monotonic() - began
        if waited <= self.patience:
            return _PAUSE_SECONDS
        away = explain_error(self.place, error)
        if self._stop is None or self._stop.is_set() or self._closing.is_set():
            raise away from error
        if waited <= self.patience + _LONG_PAUSE_SECONDS:
            _log.warning("database_away", seconds=round(waited), reason=str(away))
        return _LONG_PAUSE_SECONDS

    def _acquire_lock(self) -> None:
        try:
            self._connect_with_lock()
        except psycopg.Error as error:
            raise explain_error(self.place, error) from error

    def _connect_with_lock(self, lost: int = 0) -> Connection:
        """Lock the community, with a lock that ends with its connection. All of its writes use that connection.

        So nothing is written once another process holds it: raises FolderBusyError then. `lost`: the server's process
        for our own connection before.
        """
        db = connect(self._url)
        try:
            db.check_writable()
            name = "another process"
            for _ in range(_ATTEMPTS):
                # A pooler gives its clients other process numbers than the server's.
                [(is_ours, pid)] = db.execute(
                    encode_sql(f"select pg_try_advisory_lock({self._key}), pg_backend_pid()")
                ).fetchall()
                if is_ours:
                    self._held[self.community] = _LockingConnection(db, pid)
                    return db
                # The server may not know yet that our connection is lost.
                name = next(iter(self._holders(db, lost)), name)
                time.sleep(_PAUSE_SECONDS)  # nor that a process which has just ended let go
        except BaseException:
            db.close()
            raise
        db.close()
        raise self._busy_error(name)

    @property
    def _key(self) -> str:
        return f"hashtextextended(current_schema() || {quote_literal(f'.{self.community}')}, {HOLDING})"

    def _holders(self, db: Connection, lost: int = 0) -> list[str]:
        return [name for name, *_ in db.execute(encode_sql(_HOLDERS.format(key=self._key)), (lost,)).fetchall()]

    def _busy_error(self, name: str) -> FolderBusyError:
        return FolderBusyError(f"{self.place} is in use by {name}; stop that first, or choose another database")

    def _run_and_commit(self, db: Connection, work: Callable[[Transaction], T]) -> T:
        db.check_writable()
        community = quote_literal(self.community)
        # The lock is that of the community's writers.
        lock = f"select pg_advisory_xact_lock(hashtextextended({community}, {MAKING}))"
        bind = f"{_bind_statement(self.community, local=True)}, pg_current_xact_id()::text"
        fence = [] if self._lease is None else [HELD.format(*self._lease)]
        tx = PostgresTransaction(db, self.community, _BEGIN["write"], lock, bind, *fence)
        try:
            value = work(tx)
            number = self._read_xid(tx)
            _check_open(db)
        except NoLeaseError:
            _roll_back(db)
            assert self._lease is not None
            raise LeaseLostError(self.place, self._lease.shard) from None
        except BaseException:
            _roll_back(db)
            raise
        try:
            self._commit(tx)
        except psycopg.Error:
            _roll_back(db)
            if not db.closed or not self._took_effect(number, db.recovered):
                raise
        return value

    def _read_xid(self, tx: PostgresTransaction) -> str:
        return tx.xid

    def _commit(self, tx: PostgresTransaction) -> None:
        tx.end("commit")

    def _took_effect(self, number: str, recovered: str) -> bool:
        """Ask the server whether a transaction was committed, if the connection was lost before the answer.

        After a crash its yes is not believed: the server gives the numbers of lost transactions away again.
        """
        began, status = time.monotonic(), "in progress"
        # It has waited enough; or the server never knew the number, and may be another one.
        with suppress(KnowledgeError, psycopg.DataError):
            while status == "in progress":
                try:
                    with connect(self._url) as db:  # None for transactions that the server has forgotten
                        status = db.execute("select pg_xact_status(%s::text::xid8)", (number,)).fetchall()[0][0]
                        if status == "in progress":
                            raise psycopg.OperationalError("its transaction goes on")  # noqa: TRY301 tried again below
                        if status == "committed" and db.recovered != recovered:
                            status = "unknown"
                except psycopg.OperationalError as error:
                    time.sleep(self._retry_pause(began, error))
        if status in {"committed", "aborted"}:
            return bool(status == "committed")
        raise KnowledgeError(
            f"{self.place} was lost while it saved a change, and cannot say whether that took effect; check that the "
            "server runs, then whether the last change is there"
        )

    # psycopg_pool hides why a server refuses a connection behind PoolTimeout, and adds four threads.

    def _idle_connection(self) -> Connection | None:
        with suppress(IndexError):
            while (connection := self._idle.pop()).closed:
                pass
            return connection
        return None

    def _release(self, connection: Connection) -> None:
        self._idle.append(connection)  # to connect costs the server a process
        if self._closing.is_set():
            self._close_idle()

    def _close_idle(self) -> None:
        while connection := self._idle_connection():
            connection.close()


class ReadOnlyPostgresDatabase(database.ReadOnlyDatabase):
    """A database on a server for reading only, connected again for each read; an empty one if it has no tables."""

    def __init__(self, url: str) -> None:
        super().__init__(describe_address(url))
        self._url = url

    def read_blocking(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        with self._connection() as db:
            if not has_tables(db, self.place):
                return work(open_empty())
            return _run_read(db, work, self.community, steady=steady)

    def is_made(self) -> bool:
        """Return whether it has its tables. Blocks; raises KnowledgeError."""
        with self._connection() as db:
            return has_tables(db, self.place)

    def inspect_server(self) -> PostgresInspection:
        """Read the rights that the server and the role have. Blocks; raises KnowledgeError."""
        with self._connection() as db:
            return inspect_server(db, self.place)

    @contextmanager
    def _connection(self) -> Generator[Connection]:
        try:
            with connect(self._url) as db:
                yield db
        except psycopg.Error as error:
            raise explain_error(self.place, error) from error


class _LockingConnection(NamedTuple):
    """The connection that holds a community, and the server's process for it."""

    connection: Connection
    pid: int


class _ConnectionLostError(Exception):
    """The connection was lost before the transaction was committed: its work can be done again."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


def _run_read(db: Connection, work: Callable[[Transaction], T], community: str, *, steady: bool) -> T:
    if not steady:
        if db.community != community:
            db.execute(encode_sql(_bind_statement(community, local=False)))
            db.community = community
        return work(PostgresTransaction(db, community))
    try:
        return work(PostgresTransaction(db, community, _BEGIN["read"], _bind_statement(community, local=True)))
    finally:
        _roll_back(db)


def _bind_statement(community: str, *, local: bool) -> str:
    """Return the statement that opens the rows of a community, to a transaction or to the connection."""
    return f"select set_config('intern.community', {quote_literal(community)}, {local})"


def _check_open(db: Connection) -> None:
    if db.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
        raise psycopg.ProgrammingError("the work ended its transaction")


def _roll_back(db: Connection) -> None:
    with suppress(psycopg.OperationalError):  # a lost connection rolls back by itself
        if not db.closed and db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            db.execute("rollback")
