"""The database file as a whole: copied while others write to it, and looked through. Blocks; raises KnowledgeError."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import apsw

from intern.errors import KnowledgeError
from intern.knowledge.database import MIGRATIONS, explained
from intern.observe.progress import tell

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


def schema_of(path: Path) -> tuple[int, int]:
    """The number of the file's schema, and of the newest one that is known here."""
    try:
        db = _opened(path)
        try:
            return int(db.pragma("user_version")), len(MIGRATIONS)
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
        db.execute(f"insert into {table} ({table}, rank) values ('integrity-check', 1)").fetchall()  # noqa: S608
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
