"""Copies of a database file, and checks that they are whole."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from intern.core.errors import KnowledgeError
from intern.core.progress import report_progress
from intern.stores.engines.sqlite.database import explain_error, has_tables

_PAGES = 4096
"""Copied at a time; 16 MB."""

_FULL_TEXT = "select name from sqlite_schema where sql like 'create virtual table%using fts5%' order by name"

_BUSY_SECONDS = 30  # copying may wait


@contextmanager
def _open_file(path: Path, flags: int = apsw.SQLITE_OPEN_READWRITE) -> Generator[Any]:
    try:
        db: Any = apsw.Connection(str(path), flags=flags)
        try:
            db.set_busy_timeout(_BUSY_SECONDS * 1000)
            yield db
        finally:
            db.close()
    except apsw.Error as error:
        raise explain_error(path, error) from error


@contextmanager
def _open_read_only(path: Path) -> Generator[Any]:
    if not path.is_file():
        raise KnowledgeError(f"there is no database {path}")
    with _open_file(path) as db:
        db.pragma("query_only", 1)
        yield db


@contextmanager
def _open_copy(source: Path, to: Path) -> Generator[Any]:
    """Write the content of the file at one moment to a new one, and open that."""
    with _open_read_only(source) as reading:
        # A reader's view does not change, however much is written meanwhile, so the copy need never start anew.
        reading.execute("begin; select count(*) from sqlite_schema").fetchall()
        with _open_file(to, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) as writing:
            with writing.backup("main", reading, "main") as copy:
                while not copy.done:
                    copy.step(_PAGES)
                    report_progress("Copying {total} database pages", copy.page_count - copy.remaining, copy.page_count)
            yield writing


def copy_database(source: Path, to: Path) -> None:
    """Write the database at one moment, without recordings, to a new file, without a log beside it."""
    with _open_copy(source, to) as copy:
        if has_tables(copy, to):
            # Where it takes the original's place, the search must not go on from the changes that came after.
            copy.execute("delete from search_origins")
            # A copy lasts longer than recordings may.
            copy.execute("delete from recorded_texts")
            copy.execute("delete from recordings")
            if copy.changes():
                copy.execute("vacuum")
        copy.pragma("journal_mode", "delete")


def is_made(path: Path) -> bool:
    """Return whether the file has its tables, and is not empty yet."""
    with _open_read_only(path) as db:
        return has_tables(db, path)


def find_problems(path: Path, most: int) -> tuple[str, ...]:
    """Return the problems that SQLite finds in a file: pages and rows first, then dangling references; bounded."""
    with _open_read_only(path) as db:
        try:
            # SQLite does not say how far this is.
            report_progress("Checking {total} database pages", 0, int(db.pragma("page_count")))
            integrity = [str(row[0]) for row in db.execute(f"pragma integrity_check({most})").fetchall()]
            wrong = [] if integrity == ["ok"] else integrity
            for table, rid, parent, _ in db.execute("pragma foreign_key_check").fetchall()[:most]:
                wrong.append(f"{'a row' if rid is None else f'row {rid}'} of {table} points to nothing in {parent}")
            return tuple(wrong[:most])
        except (apsw.CorruptError, apsw.NotADBError) as error:
            return (str(error),)


def find_broken_indexes(path: Path) -> tuple[str, ...]:
    """Return the full-text tables that do not match the tables that they index.

    Checks a copy, since SQLite treats this as writing, and others write here. It needs room for that.
    """
    from tempfile import TemporaryDirectory  # noqa: PLC0415 `intern status` needs none

    with TemporaryDirectory(prefix="intern-") as folder, _open_copy(path, Path(folder) / "copy.db") as db:
        tables = [str(name) for (name,) in db.execute(_FULL_TEXT).fetchall()]
        return tuple(table for table in tables if not _is_sound(db, table))


def _is_sound(db: Any, table: str) -> bool:
    try:
        db.execute(f"insert into {table} ({table}, rank) values ('integrity-check', 1)").fetchall()
    except apsw.CorruptError:
        return False
    return True
