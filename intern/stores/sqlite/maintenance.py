"""The database file as a whole: copied while others write to it, and looked through. Blocks; raises KnowledgeError.

Figures for `intern status`, read without changing anything.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import apsw
import msgspec
from msgspec import Struct

from intern.core.errors import KnowledgeError
from intern.core.ids import SourceId
from intern.core.progress import tell
from intern.stores.sqlite.database import Database, Transaction, explained, has_tables
from intern.stores.sqlite.replies import COUNT_OUTDATED

_PAGES = 4096
"""Copied at a time; 16 MB."""

_FULL_TEXT = "select name from sqlite_schema where sql like 'create virtual table%using fts5%' order by name"

_BUSY_SECONDS = 30  # copying may wait


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
    """Return what SQLite finds wrong in a file: pages and rows first, then rows that point to nothing; bounded."""
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
    """Return the full-text tables that do not match the tables that they index.

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


@contextmanager
def at_rest(path: Path) -> Generator[Transaction | None]:
    """Read a database as it is, whether or not a bot is at work; None where there is none, or an empty one.

    Raises KnowledgeError where it cannot be read.
    """
    if not path.exists():
        yield None
        return
    uri = path.absolute().as_uri()
    # No process has it open, and all data is in the one file: SQLite need not make others beside it to read it.
    alone = not path.with_name(f"{path.name}-wal").exists()
    try:
        db: Any = apsw.Connection(f"{uri}?immutable=1" if alone else uri, flags=_READ_ONLY)
        try:
            db.set_busy_timeout(5_000)
            yield Transaction(db) if has_tables(db, path) else None
        finally:
            db.close()
    except apsw.Error as error:
        raise KnowledgeError(f"{path} cannot be read ({error}); check the file and its rights") from error


_READ_ONLY = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI

_FIGURES = {
    "counts": "select day, name, number from counts",
    "retries": "select qa_id, tries, next_at from retries",
    "spent": "select day, sum(prompt_tokens + completion_tokens), sum(cost) from usage group by day",
    "votes": "select vote, count(*) from feedback group by vote",
    "pending_images": "select since, reason from pending_captures order by rid",
    "attended": "select guild_id, until, (select count(*) from marks where marks.guild_id = attended.guild_id),"
    " max(until, coalesce((select max(mark) from marks where marks.guild_id = attended.guild_id), 0))"
    " from attended order by guild_id",
    "vectors": "select model, count(*) from search_vectors group by model",
}
_NUMBERS = {
    "secret_facts": "select coalesce(sum(facts_secret), 0) from extraction_log",
    "outdated_answers": COUNT_OUTDATED,
    "pending_posts": "select count(*) from posts where state = 'open'",
    "waiting_jobs": "select count(*) from jobs where state <> 'finished'",
    "documents": "select count(*) from search_documents",
}


class Figures(Struct, frozen=True, kw_only=True):
    """What a database holds, in numbers; nothing where there is none."""

    counts: tuple[tuple[str, str, int], ...] = ()
    """Day, name and number."""
    retries: tuple[tuple[str, int, str | None], ...] = ()
    """Pair, tries and the time of the next one."""
    spent: tuple[tuple[str, int, float], ...] = ()
    """Day, tokens and money."""
    votes: tuple[tuple[str, int], ...] = ()
    pending_images: tuple[tuple[str, str], ...] = ()
    """Since when a capture waits, and why; oldest first."""
    attended: tuple[tuple[str, int, int, int], ...] = ()
    """Server, how far it was read, how many channels are further, and how far the furthest is."""
    vectors: tuple[tuple[str, int], ...] = ()
    """Model and how many documents have a vector of it."""
    secret_facts: int = 0
    outdated_answers: int = 0
    pending_posts: int = 0
    waiting_jobs: int = 0
    documents: int = 0


def figures_of(path: Path) -> Figures:
    """Return the figures of a database, as it is."""
    with at_rest(path) as db:
        if db is None:
            return Figures()
        found = {name: db.rows(statement) for name, statement in _FIGURES.items()}
        return msgspec.convert(found | {name: db.number(each) for name, each in _NUMBERS.items()}, Figures)


class DiscoveredFile(NamedTuple):
    """A discovered file, as it can be searched."""

    source_id: SourceId
    type: str
    status: str
    path: str
    meta: str


def discovered_in(path: Path) -> tuple[DiscoveredFile, ...]:
    """Return all discovered files, by path."""
    columns = ", ".join(DiscoveredFile._fields)
    with at_rest(path) as db:
        rows = db.rows(f"select {columns} from search_documents where kind = 'file' order by path") if db else []
    return msgspec.convert(rows, tuple[DiscoveredFile, ...])


async def write_heartbeat(db: Database, at: datetime) -> None:
    """Write a row, to learn whether the disk takes what is written."""
    statement = "insert into heartbeat (one, at) values (1, ?) on conflict (one) do update set at = excluded.at"
    await db.write(lambda tx: tx.run(statement, (at.isoformat(),)))
