"""The one SQLite file: a single writer thread that commits in groups, and readers beside it.

A write that returned is on disk (WAL, `synchronous=FULL`); a write that raised left no trace. Works on asyncio and
on trio, and several processes may hold the file open at once. `schema.sql` has all tables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, Self, TypeAlias, TypeVar, cast

import anyio
import apsw
from anyio import CapacityLimiter, RunFinishedError, from_thread, to_thread
from anyio.lowlevel import EventLoopToken, current_token

from intern.core.errors import KnowledgeError
from intern.core.log import get_logger
from intern.stores import database
from intern.stores.database import DEFAULT_COMMUNITY, SCHEMA_VERSION, Row, Transaction, Value, resolve_placeholders

_log = get_logger(__name__)

T = TypeVar("T")
_Connection: TypeAlias = Any
"""An `apsw.Connection`. Its own stubs need Python 3.12 for their `Buffer`."""


class SqliteTransaction(Transaction):
    """A transaction on a connection of SQLite."""

    def __init__(self, db: _Connection, community: str = DEFAULT_COMMUNITY) -> None:
        super().__init__(community)
        self._db = db

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        plain, places = resolve_placeholders(statement)
        rows: list[Row] = self._db.execute(plain, self._with_community(values, places)).fetchall()
        return rows

    def run(self, statement: str, values: Sequence[Value] = ()) -> int:
        self.rows(statement, values)
        return int(self._db.changes())

    def run_each(self, statement: str, values: Iterable[Sequence[Value]]) -> None:
        plain, places = resolve_placeholders(statement)
        self._db.executemany(plain, (self._with_community(each, places) for each in values)).fetchall()


SCHEMA = Path(__file__).parents[2] / "schema.sql"


def database_files(path: Path) -> list[Path]:
    """Return a database's file, and those that SQLite may keep beside it."""
    return [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal")]


# Without figures, SQLite takes any column for selective and reads all rows of a community instead of those of a key.
# Each file says of itself: one community has all rows, one generation or kind has them, too, and a partial index few of
# them. The first line makes the table of figures. A plain `analyze` would say of the empty full-text tables that they
# have two rows, for ever on this connection: FTS5 then deletes merged pieces by a scan of the whole table.
_FIGURES = """
    analyze sqlite_schema;
    insert into sqlite_stat1
        select tables.name, iif(keys.origin = 'pk', tables.name, keys.name), rows || (
            select group_concat(' ' || iif(coarse, rows, iif(keys."unique" and cid = last, 1, 10)), '') from (
                select name in ('community', 'generation', 'draft', 'kind', 'catalogue') as coarse, cid,
                    last_value(cid) over (
                        order by seqno rows between unbounded preceding and unbounded following
                    ) as last from pragma_index_info(keys.name)
            )
        )
        from (select name from sqlite_schema where type = 'table') as tables, pragma_index_list(tables.name) as keys,
            (select 0 as partial, 100000 as rows union select 1, 100) as sizes
        where keys.partial = sizes.partial
            and (select name from pragma_index_info(keys.name) where seqno = 0) = 'community';
    analyze sqlite_schema;
"""

# The longest commit we know is a checkpoint of some hundred ms; a program that holds the file longer is stuck.
_BUSY_SECONDS = 5

# The first caller of a group waits for the last: 256 operations are 3 ms, against 0.2 ms for the commit itself.
_LARGEST_GROUP = 256

# Reads are short; two cores gain nothing from more, and each connection keeps a page cache of 2 MB.
_READERS = 4

# Closing waits this long for queued work. If the process ends earlier, SQLite rolls back open transactions.
_CLOSE_SECONDS = 30


class SqliteDatabase(database.Database):
    """One open file. Several callers' writes may share a commit, never the fate."""

    def __init__(self, path: Path, writer: _Connection, token: EventLoopToken) -> None:
        super().__init__(str(path))
        self._path = path
        self._token = token
        # Holds no more than one operation per task, as each waits for its own.
        self._queue: SimpleQueue[_WriteOperation[object] | None] = SimpleQueue()
        self._idle_readers: list[_Connection] = []
        self._limiter = CapacityLimiter(_READERS)
        self._closing = threading.Event()
        self._ended = anyio.Event()
        # A daemon, so that a loop that died without `close` does not keep the process alive.
        threading.Thread(target=self._run_writer, args=(writer,), name="database writer", daemon=True).start()

    @classmethod
    async def open(cls, path: Path, *, schema: str | None = None) -> Self:
        """Open the file, made with its folders and tables where it is missing. `schema`: other tables, for tests.

        Raises KnowledgeError when it is damaged, unwritable, held by another program, or has another schema.
        """
        writer = await to_thread.run_sync(_open_file, path, schema)
        return cls(path, writer, current_token())

    async def write(self, work: Callable[[Transaction], T]) -> T:
        return await self._submit(_WriteOperation(work, self.community))

    async def read(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        if self._closing.is_set():
            raise RuntimeError(f"{self._path} is closed")
        return await to_thread.run_sync(self._read_in_thread, work, steady, limiter=self._limiter)

    def read_blocking(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        return self._read_in_thread(work, steady)

    async def scrub(self) -> None:
        """Remove deleted and overwritten data from the disk, in the file and in its log.

        Takes as long as writing the file anew; other writes wait. Raises KnowledgeError, also where a reader holds
        the log for too long to empty it; it may still contain deleted data then.
        """
        await self._submit(_ScrubOperation(self._path.parent))

    async def close(self) -> None:
        await self._close_dependents()
        if not self._closing.is_set():
            self._closing.set()
            self._queue.put(None)
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await self._ended.wait()
            return
        _log.warning("database_close_timed_out", path=str(self._path), seconds=_CLOSE_SECONDS)

    async def _submit(self, operation: _WriteOperation[T]) -> T:
        if self._closing.is_set():
            raise RuntimeError(f"{self._path} is closed")
        self._queue.put(cast("_WriteOperation[object]", operation))
        await operation.done.wait()
        error = operation.error
        if isinstance(error, apsw.Error):
            raise explain_error(self._path, error) from error
        if error is not None:
            raise error
        return cast("T", operation.value)

    # From here on: worker threads.

    def _read_in_thread(self, work: Callable[[Transaction], T], steady: bool) -> T:  # noqa: FBT001 by position into a thread
        try:
            reader = self._idle_reader() or _connect(self._path, read_only=True)
            try:
                if steady:
                    reader.execute("begin")
                return work(SqliteTransaction(reader, self.community))
            finally:
                if reader.in_transaction:
                    reader.execute("rollback")
                self._idle_readers.append(reader)
                if self._closing.is_set():
                    self._close_readers()
        except apsw.Error as error:
            raise explain_error(self._path, error) from error

    def _idle_reader(self) -> _Connection | None:
        try:
            return self._idle_readers.pop()
        except IndexError:
            return None

    def _close_readers(self) -> None:
        while reader := self._idle_reader():
            reader.close()

    def _run_writer(self, writer: _Connection) -> None:
        try:
            while group := self._next_group():
                _run_group(writer, group)
                self._wake_callers(group)
        finally:
            self._close_readers()
            writer.close()
            self._call_in_loop(self._ended.set)

    def _next_group(self) -> list[_WriteOperation[object]]:
        """Return all waiting operations, in order; at least one, or none once the database is closed."""
        first = self._queue.get()
        if first is None:
            return []
        group = [first]
        while len(group) < _LARGEST_GROUP:
            try:
                operation = self._queue.get_nowait()
            except Empty:
                break
            if operation is None:  # keep the mark for the next round: this group comes first
                self._queue.put(None)
                break
            group.append(operation)
        return group

    def _wake_callers(self, group: Sequence[_WriteOperation[object]]) -> None:
        def wake() -> None:
            for operation in group:
                operation.done.set()

        self._call_in_loop(wake)

    def _call_in_loop(self, call: Callable[[], None]) -> None:
        with suppress(RunFinishedError):  # the loop is gone, and so are all waiting callers
            from_thread.run_sync(call, token=self._token)


class _WriteOperation(Generic[T]):
    """One caller's work, and its result."""

    def __init__(self, work: Callable[[Transaction], T], community: str) -> None:
        self.done = anyio.Event()
        self._community = community
        self.value: T | None = None
        self.error: BaseException | None = None
        self._work = work

    def run(self, db: _Connection) -> None:
        """Do the work under a savepoint. Raises only when the whole transaction is lost."""
        db.execute("savepoint operation")
        try:
            self.value = self._work(SqliteTransaction(db, self._community))
            db.execute("release operation")
        except BaseException as error:  # any error belongs to the caller, not to this thread
            self.error = error
            if not db.in_transaction:  # SQLite itself rolls back all of it on some errors, such as a full disk
                raise
            db.execute("rollback to operation")
            db.execute("release operation")


class _ScrubOperation(_WriteOperation[None]):
    """SQLite does this outside of any transaction."""

    def __init__(self, folder: Path) -> None:
        super().__init__(lambda _: None, "")
        self._folder = folder

    def run(self, db: _Connection) -> None:
        try:
            # VACUUM copies the content into the log, and the checkpoint over the old content; then the log is cut.
            # The copy may be too large for memory. The folder holds for the whole process, and only while this runs.
            db.pragma("temp_store_directory", str(self._folder))
            db.pragma("temp_store", "file")
            try:
                db.execute("vacuum").fetchall()
            finally:
                db.pragma("temp_store", "memory")
            [(busy, _, _)] = db.execute("pragma wal_checkpoint(truncate)").fetchall()
            if busy:
                self.error = apsw.BusyError("a reader holds the log")
        except Exception as error:  # noqa: BLE001 - raised to the caller, who would wait for ever otherwise
            self.error = error


def _run_group(db: _Connection, group: Sequence[_WriteOperation[object]]) -> None:
    """Do the work of a group. Each operation knows afterwards how it ended; nothing is raised."""
    together = [operation for operation in group if not isinstance(operation, _ScrubOperation)]
    if together:
        _run_in_transaction(db, together)
    for operation in group:
        if isinstance(operation, _ScrubOperation):
            operation.run(db)


def _run_in_transaction(db: _Connection, group: Sequence[_WriteOperation[object]]) -> None:
    """Run the group in one transaction."""
    try:
        db.execute("begin immediate")
        for operation in group:
            operation.run(db)
        db.execute("commit")
    except BaseException as error:  # noqa: BLE001 - raised to each caller, who would wait for ever otherwise
        if db.in_transaction:
            db.execute("rollback")
        for operation in group:
            operation.error = operation.error or error


def _open_file(path: Path, schema: str | None) -> _Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        db = _connect(path)
        try:
            if not has_tables(db, path):  # the usual case takes no lock
                _make_tables(db, path, schema or SCHEMA.read_text(encoding="utf-8"))
        except BaseException:
            db.close()
            raise
    except apsw.Error as error:
        raise explain_error(path, error) from error
    except OSError as error:
        raise KnowledgeError(f"{path.parent} cannot be made or opened ({error.strerror}); check its rights") from error
    return db


def _connect(path: Path, *, read_only: bool = False) -> _Connection:
    db: _Connection = apsw.Connection(str(path))
    try:
        db.set_busy_timeout(_BUSY_SECONDS * 1000)
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        db.pragma("foreign_keys", 1)
        db.pragma("temp_store", "memory")  # nothing is written outside of the data folder
        db.pragma("query_only", int(read_only))
    except BaseException:
        db.close()
        raise
    return db


def _make_tables(db: _Connection, path: Path, schema: str) -> None:
    db.execute("begin immediate")
    try:
        if not has_tables(db, path):  # another process may have been faster
            db.execute(f"{schema};{_FIGURES}").fetchall()
            db.pragma("user_version", SCHEMA_VERSION)
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise


def has_tables(db: _Connection, path: Path) -> bool:
    """Return whether a file has the tables of `schema.sql`; False for an empty one.

    Raises KnowledgeError where it has others.
    """
    version = int(db.pragma("user_version"))
    if version == SCHEMA_VERSION:
        return True
    if version or db.execute("select 1 from sqlite_schema").fetchall():
        raise KnowledgeError(
            f"{path} has schema {version}, and this intern knows schema {SCHEMA_VERSION} only: "
            "install the intern that wrote it, or choose another data folder"
        )
    return False


_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError)


def is_damage(error: KnowledgeError) -> bool:
    """Return whether a file cannot be used any more: it is damaged, or has the schema of another version."""
    return error.__cause__ is None or isinstance(error.__cause__, _DAMAGE)


def explain_error(path: Path, error: apsw.Error) -> Exception:
    """Return an error that names the next step; or the same one if only wrong SQL causes it, which is a bug."""
    match error:
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return KnowledgeError(f"{path} is held by another program for over {_BUSY_SECONDS} s; end it and try again")
        case apsw.CorruptError() | apsw.NotADBError() | apsw.FormatError():
            return KnowledgeError(
                f"{path} is damaged ({error}); put its backup in its place, or move it (with -wal and -shm) away"
                f" and run: intern restore {path.parent}"
            )
        case apsw.FullError():
            return KnowledgeError(f"no space is left for {path}; free some and try again")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
            return KnowledgeError(f"{path} cannot be opened for writing ({error}); check the rights of file and folder")
        case apsw.IOError() | apsw.NoLFSError() | apsw.NoMemError() | apsw.InterruptError():
            return KnowledgeError(f"{path} could not be read or written ({error}); check disk and memory")
        case _:
            return error


@contextmanager
def open_read_only(path: Path, community: str) -> Generator[Transaction | None]:
    """Open a database for reading, whether or not a bot is running; yield None if there is none, or an empty one.

    Raises KnowledgeError where it cannot be read.
    """
    if not path.exists():
        yield None
        return
    uri = path.absolute().as_uri()
    # No process has it open, and all data is in the one file: SQLite need not make others beside it to read it.
    alone = not path.with_name(f"{path.name}-wal").exists()
    try:
        db: _Connection = apsw.Connection(f"{uri}?immutable=1" if alone else uri, flags=_READ_ONLY)
        try:
            db.set_busy_timeout(5_000)
            yield SqliteTransaction(db, community) if has_tables(db, path) else None
        finally:
            db.close()
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise explain_error(path, error) from error
    except apsw.Error as error:
        raise KnowledgeError(f"{path} cannot be read ({error}); check the file and its rights") from error


_READ_ONLY = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI


class ReadOnlySqliteDatabase(database.ReadOnlyDatabase):
    """A file for reading only, opened again for each read; an empty database if there is none."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def read_blocking(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        del steady
        with open_read_only(self._path, self.community) as db:
            return work(db or open_empty())


def open_empty() -> Transaction:
    """Return a database with all tables and no rows, in memory."""
    db: _Connection = apsw.Connection(":memory:")
    db.execute(SCHEMA.read_text(encoding="utf-8")).fetchall()
    return SqliteTransaction(db)
