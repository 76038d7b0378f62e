"""The change log lists the newest changes by position; projections (files, search) follow it.

A name is listed once for each kind, at its newest change, so the log does not grow. A follower that reads all names
after its position sees each as it is now, and may read a name twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from intern.stores.database import Transaction
from intern.stores.tables.store import IN, OURS, text_array

NEXT = (
    "insert into communities (community, position) values (:community, 1)"
    " on conflict (community) do update set position = communities.position + 1"
)
"""Takes the next position."""
HERE = f"select position from communities {OURS}"
"""The position that was taken last."""


class ChangeLogEntry(NamedTuple):
    """A name of a kind, and the position of its newest change."""

    kind: str
    name: str
    position: int


def next_position(db: Transaction) -> int:
    """Return the position of a new change. The community's row stays locked until the transaction ends."""
    return db.number(f"{NEXT} returning position")


def log_changes(db: Transaction, kind: str, names: Iterable[str]) -> None:
    """Log a change of these names, all at one position."""
    db.run_each(NEXT, [()])
    db.run_each(
        f"insert into changes (community, kind, name, position) values (:community, ?, ?, ({HERE}))"
        " on conflict (community, kind, name) do update set position = excluded.position",
        ((kind, name) for name in names),
    )


def read_changes(db: Transaction, position: int, kinds: Collection[str]) -> list[ChangeLogEntry]:
    """List the changes after a position, oldest first."""
    statement = (
        f"select kind, name, position from changes {OURS} and position > ? and kind {IN} order by position, name"
    )
    return [
        ChangeLogEntry(str(kind), str(name), int(str(at)))
        for kind, name, at in db.rows(statement, (position, text_array(kinds)))
    ]
