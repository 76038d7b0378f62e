"""Positions of readers in the change log."""

from __future__ import annotations

from intern.stores.database import Transaction
from intern.stores.tables.store import (
    OURS,
)


def read_position(db: Transaction, follower: str) -> str | None:
    """Return how far a follower has read; None where it has not begun."""
    return next(iter(db.texts(f"select position from positions {OURS} and follower = ?", (follower,))), None)


def save_position(db: Transaction, follower: str, position: str) -> None:
    """Keep how far a follower has read."""
    db.run(
        "insert into positions (community, follower, position) values (:community, ?, ?)"
        " on conflict (community, follower) do update set position = excluded.position",
        (follower, position),
    )
