"""The database file as a whole: copied while others write to it, and looked through. Blocks; raises KnowledgeError.

What intern.db holds of people's words beside its own business, so that it can be taken out of there.

Answers that were posted, why questions were answered, and what commands asked for. A store with a business of its own
(pending captures) sees to it itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set as AbstractSet
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar, cast

import apsw
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from intern.core.errors import KnowledgeError
from intern.core.flow import CaptureRequest
from intern.core.ids import MessageId, UserId
from intern.core.progress import tell
from intern.core.records import Capture
from intern.stores.blocks import bare
from intern.stores.sqlite.columns import IN, listed
from intern.stores.sqlite.database import Database, Transaction, explained, has_tables

_PAGES = 4096
"""Copied at a time; 16 MB."""

_FULL_TEXT = "select name from sqlite_schema where sql like 'create virtual table%using fts5%' order by name"

_BUSY_SECONDS = 30  # whoever copies has time


def copied(source: Path, to: Path) -> None:
    """Write what the file holds at one moment to a new one, without a log beside it."""
    at = source
    try:
        reading = _opened(source)
        try:
            # A reader's view does not change, however much is written meanwhile, so the copy need never start anew.
            reading.execute("begin; select count(*) from sqlite_schema").fetchall()
            at = to
            writing: Any = apsw.Connection(str(to))
            try:
                with writing.backup("main", reading, "main") as copy:
                    while not copy.done:
                        copy.step(_PAGES)
                        tell("Copying {total} database pages", copy.page_count - copy.remaining, copy.page_count)
                writing.pragma("journal_mode", "delete")
            finally:
                writing.close()
        finally:
            reading.close()
    except apsw.Error as error:
        raise explained(at, error) from error


def is_made(path: Path) -> bool:
    """Return whether the file has its tables, and is not empty yet."""
    try:
        db = _opened(path)
        try:
            return has_tables(db, path)
        finally:
            db.close()
    except apsw.Error as error:
        raise explained(path, error) from error


def problems(path: Path, most: int) -> tuple[str, ...]:
    """What SQLite finds wrong in a file, pages and rows first, then rows that point to nothing; bounded."""
    try:
        db = _opened(path)
        try:
            # SQLite does not say how far this is.
            tell("Checking {total} database pages", 0, int(db.pragma("page_count")))
            integrity = [str(row[0]) for row in db.execute(f"pragma integrity_check({most})").fetchall()]
            wrong = [] if integrity == ["ok"] else integrity
            for table, rid, parent, _ in db.execute("pragma foreign_key_check").fetchall()[:most]:
                wrong.append(f"row {rid} of {table} points to nothing in {parent}")
            return tuple(wrong[:most])
        finally:
            db.close()
    except apsw.CorruptError as error:
        return (str(error),)
    except apsw.NotADBError as error:
        return (str(error),)
    except apsw.Error as error:
        raise explained(path, error) from error


def unsearchable(path: Path) -> tuple[str, ...]:
    """Full-text tables that do not say what stands in the tables that they are of.

    Looked at in a copy, since SQLite takes this for writing, and others write here. It needs room for that.
    """
    with TemporaryDirectory(prefix="intern-") as folder:
        copy = Path(folder) / "copy.db"
        copied(path, copy)
        db: Any = apsw.Connection(str(copy))
        try:
            tables = [str(name) for (name,) in db.execute(_FULL_TEXT).fetchall()]
            return tuple(table for table in tables if not _is_sound(db, table))
        except apsw.Error as error:
            raise explained(copy, error) from error
        finally:
            db.close()


def _is_sound(db: Any, table: str) -> bool:
    try:
        db.execute(f"insert into {table} ({table}, rank) values ('integrity-check', 1)").fetchall()
    except apsw.CorruptError:
        return False
    return True


def _opened(path: Path) -> Any:
    if not path.is_file():
        raise KnowledgeError(f"there is no database {path}")
    db = cast("Any", apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE))
    db.set_busy_timeout(_BUSY_SECONDS * 1000)
    db.pragma("query_only", 1)
    return db


StructT = TypeVar("StructT", bound=Struct)

_CAPTURES = "select id, kind, state, payload, coalesce(result, x'') from jobs where kind in ('capture', 'import')"
_NOTHING = b"null"


class Remains:
    """Traces, posts, jobs, votes and greetings. All methods raise KnowledgeError, and nothing is changed then."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def written_by(self, user_id: UserId) -> frozenset[MessageId]:
        """A member's messages that are on their way to the archive, or were brought there by a command."""

        def work(db: Transaction) -> frozenset[MessageId]:
            requests = _readable(db, "select request from pending_captures", CaptureRequest)
            waiting = {each.id for request in requests for each in request.messages if each.author.id == user_id}
            captures = (each for job in _jobs(db) for each in _captures_in(job.payload) or ())
            return frozenset(waiting.union(*(_by(capture, user_id) for capture in captures)))

        return await self._db.read(work)

    async def held(self, message_ids: Collection[MessageId]) -> bool:
        """Whether anything here is about these messages."""
        gone = frozenset(map(bare, message_ids))

        def work(db: Transaction) -> bool:
            return any(db.row(statement, (listed(gone),) * statement.count("?")) for statement in _ABOUT) or any(
                _names(job.payload, gone) for job in _jobs(db)
            )

        return await self._db.read(work)

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Take messages out.

        Replies to them are dropped if they are not on Discord yet. Of replies that are posted or given up only the ids
        stay, whatever they answered: they may quote anybody, and nobody needs their text any more.
        """
        gone = frozenset(map(bare, message_ids))

        def work(db: Transaction) -> None:
            for statement in _FORGETTING:
                db.run(statement, (listed(gone),) * statement.count("?"))
            for job in _jobs(db):
                if _names(job.payload, gone) or _names(job.result, gone):
                    payload = _NOTHING if job.state == "finished" else _left(job, gone)
                    # Of an import, the result is numbers; of a capture, it is the pair.
                    result = job.result if job.kind == "import" else _NOTHING
                    db.run(
                        "update jobs set payload = ?, result = ? where id = ?",
                        (payload, result if job.state == "finished" else None, job.id),
                    )

        await self._db.write(work)

    async def forget_member(self, user_id: UserId) -> None:
        """Take out a member's votes, and that they were greeted."""

        def work(db: Transaction) -> None:
            db.run("delete from feedback where user_id = ?", (user_id,))
            db.run("delete from greeted where user_id = ?", (user_id,))

        await self._db.write(work)


_POSTS = f"(question_id {IN} or question_id in (select question_id from post_messages where message_id {IN}))"
_TRACES = f"rid in (select trace from trace_messages where message_id {IN})"
_ABOUT = (
    f"select 1 from traces where {_TRACES}",
    f"select 1 from posts where {_POSTS}",
    f"select 1 from pending_messages where message_id {IN}",
)
_FORGETTING = (
    f"delete from traces where {_TRACES}",
    f"update posts set state = 'dropped', reason = 'forgotten' where state = 'open' and {_POSTS}",
    "update post_parts set text = '' where question_id in (select question_id from posts where state <> 'open')",
)


def _readable(db: Transaction, statement: str, kind: type[StructT]) -> Iterator[StructT]:
    """What can be understood of a column of JSON; what cannot does not tell its authors either."""
    for (data,) in msgspec.convert(db.rows(statement), list[tuple[bytes]]):
        try:
            yield msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError:
            continue


class _Job(NamedTuple):
    """A job that holds captures."""

    id: int
    kind: str
    state: str
    payload: bytes
    result: bytes


def _jobs(db: Transaction) -> list[_Job]:
    return msgspec.convert(db.rows(_CAPTURES), list[_Job])


def _captures_in(data: bytes) -> Sequence[Capture] | None:
    """A capture, the pair that it became, or several; None where that cannot be understood."""
    try:
        found: Capture | list[Capture] | None = msgspec.json.decode(
            data or _NOTHING, type=Capture | list[Capture] | None
        )
    except msgspec.MsgspecError:
        return None
    match found:
        case None:
            return ()
        case Capture():
            return (found,)
        case _:
            return found


def _by(capture: Capture, user_id: UserId) -> Iterator[MessageId]:
    written = zip(capture.message_ids, capture.author_ids, strict=False)
    return (message_id for message_id, author in written if author == user_id)


def _names(data: bytes, gone: AbstractSet[str]) -> bool:
    """Whether one of these messages stands in a job's payload or result."""
    captures = _captures_in(data)
    if captures is None:
        return any(each.encode() in data for each in gone)
    return any(not gone.isdisjoint(map(bare, capture.message_ids)) for capture in captures)


def _left(job: _Job, gone: AbstractSet[str]) -> bytes:
    """What is still to be archived, less these messages. What cannot be understood, nobody could do either."""
    captures = [_without(capture, gone) for capture in _captures_in(job.payload) or ()]
    if job.kind == "import":
        return msgspec.json.encode(captures)
    return msgspec.json.encode(captures[0] if captures else None)


def _without(capture: Capture, gone: AbstractSet[str]) -> Capture:
    kept = [n for n, message_id in enumerate(capture.message_ids) if bare(message_id) not in gone]
    aligned = len(capture.turns) == len(capture.message_ids)
    return replace(
        capture,
        turns=tuple(capture.turns[n] for n in kept) if aligned else (),
        message_ids=tuple(capture.message_ids[n] for n in kept) if aligned else (),
        author_ids=tuple(capture.author_ids[n] for n in kept) if aligned and capture.author_ids else (),
        author_names=tuple(capture.author_names[n] for n in kept) if aligned and capture.author_names else (),
    )
