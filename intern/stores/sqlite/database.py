"""The one SQLite file: a single writer thread that commits in groups, and readers beside it.

A write that returned is on disk (WAL, `synchronous=FULL`); a write that raised left no trace. Works on asyncio and
on trio, and several processes may hold the file open at once. `schema.sql` has all tables.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar, cast

import anyio
import apsw
from anyio import CapacityLimiter, RunFinishedError, from_thread, to_thread
from anyio.lowlevel import EventLoopToken, current_token

from intern.core.errors import KnowledgeError
from intern.core.log import get_logger

_log = get_logger(__name__)

T = TypeVar("T")
Value: TypeAlias = str | int | float | bytes | None
Row: TypeAlias = tuple[Value, ...]


_Connection: TypeAlias = Any
"""An `apsw.Connection`. Its own stubs need Python 3.12 for their `Buffer`."""


DEFAULT_COMMUNITY = "default"
"""The one community of a data folder."""


_PLACEHOLDER = re.compile(r"'[^']*'|\?|:community\b")


@lru_cache(maxsize=2048)
def _positional(statement: str) -> tuple[str, tuple[int, ...]]:
    """Return the statement with `?` alone, and which of these are `:community`, by number."""
    marks = [each for each in _PLACEHOLDER.findall(statement) if not each.startswith("'")]
    plain = _PLACEHOLDER.sub(lambda found: "?" if found[0] == ":community" else found[0], statement)
    return plain, tuple(n for n, each in enumerate(marks) if each == ":community")


class Transaction:
    """What a piece of work may do inside its transaction. Statements are run to their end, so none outlives it.

    `:community` in a statement stands for the community that the store is bound to; `?` for the values, in order.
    """

    def __init__(self, db: _Connection, community: str = DEFAULT_COMMUNITY) -> None:
        self._db = db
        self._community = community

    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """Return all rows that the statement gives."""
        plain, places = _positional(statement)
        rows: list[Row] = self._db.execute(plain, self._with_community(values, places)).fetchall()
        return rows

    def row(self, statement: str, values: Sequence[Value] = ()) -> Row | None:
        """Return the first row that the statement gives, or None."""
        return next(iter(self.rows(statement, values)), None)

    def texts(self, statement: str, values: Sequence[Value] = ()) -> list[str]:
        """Return the first column of all rows, as texts."""
        return [str(row[0]) for row in self.rows(statement, values)]

    def number(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Return the one number that the statement gives; 0 where it gives none."""
        return next((int(cast("int", row[0] or 0)) for row in self.rows(statement, values)), 0)

    def run(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Return how many rows the statement (insert, update or delete) touched."""
        self.rows(statement, values)
        return int(self._db.changes())

    def run_each(self, statement: str, values: Iterable[Sequence[Value]]) -> None:
        """Run the statement once for each set of values."""
        plain, places = _positional(statement)
        self._db.executemany(plain, (self._with_community(each, places) for each in values)).fetchall()

    def _with_community(self, values: Sequence[Value], places: Sequence[int]) -> Sequence[Value]:
        if not places:
            return values
        given = list(values)
        for place in places:
            given.insert(place, self._community)
        return given


SCHEMA_VERSION = 1
"""Another one for each change of `schema.sql` that a database made before does not have."""

_SCHEMA = Path(__file__).with_name("schema.sql")

# The longest commit we know is a checkpoint of some hundred ms; a program that holds the file longer is stuck.
_BUSY_SECONDS = 5

# The first caller of a group waits for the last: 256 operations are 3 ms, against 0.2 ms for the commit itself.
_LARGEST_GROUP = 256

# Reads are short; two cores gain nothing from more, and each connection keeps a page cache of 2 MB.
_READERS = 4

# Closing waits this long for what is queued. SQLite undoes what a process that ends earlier had not committed.
_CLOSE_SECONDS = 30


class Database:
    """One open file, bound to a community. Belongs to the event loop that opened it.

    Close it there, also after an error.
    """

    def __init__(self, path: Path, writer: _Connection, token: EventLoopToken) -> None:
        self._path = path
        self._token = token
        self.community = DEFAULT_COMMUNITY
        # Holds no more than one operation per task, as each waits for its own.
        self._queue: SimpleQueue[_Operation[object] | None] = SimpleQueue()
        self._idle_readers: list[_Connection] = []
        self._limiter = CapacityLimiter(_READERS)
        self._closing = threading.Event()
        self._ended = anyio.Event()
        # A daemon, so that a loop that died without `close` does not keep the process alive.
        threading.Thread(target=self._work_off, args=(writer,), name="database writer", daemon=True).start()

    @classmethod
    async def open(cls, path: Path, *, schema: str | None = None) -> Self:
        """Open the file, made with its folders and tables where it is missing. `schema`: other tables, for tests.

        Raises KnowledgeError when it is damaged, unwritable, held by another program, or has another schema.
        """
        writer = await to_thread.run_sync(_opened, path, schema)
        return cls(path, writer, current_token())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a transaction on the writer thread; once this returns, its changes survive any crash.

        Other callers' work may share the commit, never the fate: what `work` raises undoes its own changes only and
        is raised here. Where the caller is cancelled, the work is still done, or not at all. `work` does not commit.
        Raises KnowledgeError when the file is busy, damaged, full or unwritable.
        """
        return await self._done(_Operation(work, self.community))

    async def read(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        """Run `work` on a worker thread against one unchanging view of what is committed. It cannot write.

        Unless it is `steady`, what it reads may change between two statements: one alone needs no more, and a
        transaction takes as long as a look at some rows. Raises KnowledgeError when the file is damaged or cannot be
        read.
        """
        if self._closing.is_set():
            raise RuntimeError(f"{self._path} is closed")
        return await to_thread.run_sync(self._read, work, steady, limiter=self._limiter)

    def look(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        """Read as `read` does, in the calling thread, which must be a worker thread. Blocks."""
        return self._read(work, steady)

    def of(self, community: str) -> Self:
        """Return the same file, bound to another community."""
        other = copy(self)
        other.community = community
        return other

    async def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """Read all rows that one statement gives. Raises KnowledgeError as `read` does."""
        return await self.read(lambda db: db.rows(statement, values))

    async def row(self, statement: str, values: Sequence[Value] = ()) -> Row | None:
        """Read the first row that one statement gives, or None. Raises KnowledgeError as `read` does."""
        return await self.read(lambda db: db.row(statement, values))

    async def texts(self, statement: str, values: Sequence[Value] = ()) -> list[str]:
        """Read the first column that one statement gives, as texts. Raises KnowledgeError as `read` does."""
        return await self.read(lambda db: db.texts(statement, values))

    async def number(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Read the one number that one statement gives. Raises KnowledgeError as `read` does."""
        return await self.read(lambda db: db.number(statement, values))

    async def run(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run one statement as `write` does, and return how many rows it touched."""
        return await self.write(lambda db: db.run(statement, values))

    async def scrub(self) -> None:
        """Leave nothing on disk of what was deleted or overwritten, in the file or in its log.

        Takes as long as writing the file anew; other writes wait. Raises KnowledgeError, also where a reader holds
        the log for too long to empty it; it may still contain deleted data then.
        """
        await self._done(_Scrubbing(self._path.parent))

    async def close(self) -> None:
        """Finish what is queued, then let the file go. Harmless when repeated."""
        if not self._closing.is_set():
            self._closing.set()
            self._queue.put(None)
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await self._ended.wait()
            return
        _log.warning("database_close_timed_out", path=str(self._path), seconds=_CLOSE_SECONDS)

    async def _done(self, operation: _Operation[T]) -> T:
        if self._closing.is_set():
            raise RuntimeError(f"{self._path} is closed")
        self._queue.put(cast("_Operation[object]", operation))
        await operation.done.wait()
        error = operation.error
        if isinstance(error, apsw.Error):
            raise explained(self._path, error) from error
        if error is not None:
            raise error
        return cast("T", operation.value)

    # From here on: worker threads.

    def _read(self, work: Callable[[Transaction], T], steady: bool) -> T:  # noqa: FBT001 by position into a thread
        try:
            reader = self._idle_reader() or _connected(self._path, read_only=True)
            try:
                if steady:
                    reader.execute("begin")
                return work(Transaction(reader, self.community))
            finally:
                if reader.in_transaction:
                    reader.execute("rollback")
                self._idle_readers.append(reader)
                if self._closing.is_set():
                    self._close_readers()
        except apsw.Error as error:
            raise explained(self._path, error) from error

    def _idle_reader(self) -> _Connection | None:
        try:
            return self._idle_readers.pop()
        except IndexError:
            return None

    def _close_readers(self) -> None:
        while reader := self._idle_reader():
            reader.close()

    def _work_off(self, writer: _Connection) -> None:
        try:
            while group := self._next_group():
                _run(writer, group)
                self._wake(group)
        finally:
            self._close_readers()
            writer.close()
            self._in_loop(self._ended.set)

    def _next_group(self) -> list[_Operation[object]]:
        """Everything that waits, in order; at least one operation, or nothing once the database is closed."""
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

    def _wake(self, group: Sequence[_Operation[object]]) -> None:
        def wake() -> None:
            for operation in group:
                operation.done.set()

        self._in_loop(wake)

    def _in_loop(self, call: Callable[[], None]) -> None:
        with suppress(RunFinishedError):  # the loop is gone, and with it everybody who waited
            from_thread.run_sync(call, token=self._token)


class _Operation(Generic[T]):
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
            self.value = self._work(Transaction(db, self._community))
            db.execute("release operation")
        except BaseException as error:  # any error belongs to the caller, not to this thread
            self.error = error
            if not db.in_transaction:  # SQLite itself rolls back all of it on some errors, such as a full disk
                raise
            db.execute("rollback to operation")
            db.execute("release operation")


class _Scrubbing(_Operation[None]):
    """SQLite does this outside of any transaction."""

    def __init__(self, folder: Path) -> None:
        super().__init__(lambda _: None, "")
        self._folder = folder

    def run(self, db: _Connection) -> None:
        try:
            # VACUUM copies what is there into the log, and the checkpoint over what was there; then the log is cut.
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


def _run(db: _Connection, group: Sequence[_Operation[object]]) -> None:
    """Do the work of a group. Each operation knows afterwards how it ended; nothing is raised."""
    together = [operation for operation in group if not isinstance(operation, _Scrubbing)]
    if together:
        _run_together(db, together)
    for operation in group:
        if isinstance(operation, _Scrubbing):
            operation.run(db)


def _run_together(db: _Connection, group: Sequence[_Operation[object]]) -> None:
    """One transaction for the group."""
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


def _opened(path: Path, schema: str | None) -> _Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        db = _connected(path)
        try:
            if not has_tables(db, path):  # the usual case takes no lock
                _make_tables(db, path, schema or _SCHEMA.read_text(encoding="utf-8"))
        except BaseException:
            db.close()
            raise
    except apsw.Error as error:
        raise explained(path, error) from error
    except OSError as error:
        raise KnowledgeError(f"{path.parent} cannot be made or opened ({error.strerror}); check its rights") from error
    return db


def _connected(path: Path, *, read_only: bool = False) -> _Connection:
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
            db.execute(schema).fetchall()
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


def explained(path: Path, error: apsw.Error) -> Exception:
    """Return the error that says what to do. An error that only wrong SQL can cause is a bug and stays as it is."""
    match error:
        case apsw.BusyError() | apsw.LockedError() | apsw.ProtocolError():
            return KnowledgeError(f"{path} is held by another program for over {_BUSY_SECONDS} s; end it and try again")
        case apsw.CorruptError() | apsw.NotADBError() | apsw.FormatError():
            return KnowledgeError(
                f"{path} is damaged ({error}); move it away with its -wal and -shm files and start again "
                "(archive, decisions and topics are kept elsewhere)"
            )
        case apsw.FullError():
            return KnowledgeError(f"no space is left for {path}; free some and try again")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
            return KnowledgeError(f"{path} cannot be opened for writing ({error}); check the rights of file and folder")
        case apsw.IOError() | apsw.NoLFSError() | apsw.NoMemError() | apsw.InterruptError():
            return KnowledgeError(f"{path} could not be read or written ({error}); check disk and memory")
        case _:
            return error
