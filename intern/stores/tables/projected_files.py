"""Text files that were written from the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from intern.stores.database import Transaction
from intern.stores.tables.store import OURS


class ProjectedFile(NamedTuple):
    """A text file that was written from all this: hashes of its text and of the text before it, its size and time."""

    digest: bytes
    before: bytes
    size: int = -1
    mtime_ns: int = -1


def read_projected_files(db: Transaction) -> dict[str, ProjectedFile]:
    """Return the records of the text files, by name."""
    rows = db.rows(f"select file, digest, before, size, mtime_ns from projected_files {OURS}")
    return {str(file): msgspec.convert(each, ProjectedFile) for file, *each in rows}


def record_projected_files(db: Transaction, files: Mapping[str, ProjectedFile | None]) -> None:
    """Record the new and the previous content of text files; None for a file that is gone."""
    db.run_each(
        "insert into projected_files (community, file, digest, before, size, mtime_ns)"
        " values (:community, ?, ?, ?, ?, ?)"
        " on conflict (community, file) do update set digest = excluded.digest, before = excluded.before,"
        " size = excluded.size, mtime_ns = excluded.mtime_ns",
        ((file, *written) for file, written in files.items() if written),
    )
    gone = ((file,) for file, written in files.items() if not written)
    db.run_each(f"delete from projected_files {OURS} and file = ?", gone)
