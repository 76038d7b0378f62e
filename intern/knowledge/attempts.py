"""How often work on a pair was begun and did not end, and how often the pair was parked.

So one that ends the process cannot do so for ever, and one that cannot be filed is tried again after growing pauses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from intern.domain import PairDecision, Parked, QAId
from intern.knowledge.database import Database, Transaction

PAUSES = (timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6))
"""After the first, second and third time that a pair is parked. From then on it waits for a person."""


class Retry(Struct, frozen=True):
    """How a parked pair stands."""

    tries: int
    """How often it was tried and parked."""
    next_at: datetime | None
    """When it is tried again by itself; None where only a person can ask for that."""


class Attempts:
    """Counts in the database. All methods raise KnowledgeError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def begin(self, qa_id: QAId) -> int:
        """Count an attempt, on disk before the work begins; returns how many there were, this one included."""

        def work(db: Transaction) -> int:
            row = db.row(
                "insert into attempts (qa_id, begun) values (?, 1)"
                " on conflict (qa_id) do update set begun = begun + 1 returning begun",
                (qa_id,),
            )
            return msgspec.convert(row, tuple[int])[0]

        return await self._db.write(work)

    async def clear(self, qa_id: QAId) -> None:
        """Work ended without a decision, and not by a crash; forget that it was begun. Harmless where it was not."""
        await self._db.write(lambda db: db.run("delete from attempts where qa_id = ?", (qa_id,)))

    async def end(self, decision: PairDecision, *, again: bool = True) -> None:
        """The pair was decided. One that was parked is tried again by itself after a pause, unless not `again`."""

        def work(db: Transaction) -> None:
            db.run("delete from attempts where qa_id = ?", (decision.qa_id,))
            if isinstance(decision, Parked):
                _count(db, decision, again=again)
            else:
                db.run("delete from retries where qa_id = ?", (decision.qa_id,))

        await self._db.write(work)

    async def retries(self) -> Mapping[QAId, Retry]:
        """Every pair that was parked, as far as it was counted."""
        return await self._db.read(
            lambda db: retries_of(db.rows("select qa_id, tries, next_at from retries"))  # few: pairs, not captures
        )


def _count(db: Transaction, parked: Parked, *, again: bool) -> None:
    row = db.row("select tries from retries where qa_id = ?", (parked.qa_id,))
    counted = _counted(parked, 1 + (msgspec.convert(row, tuple[int])[0] if row else 0))
    next_at = counted.next_at if again else None
    db.run(
        "insert into retries (qa_id, tries, next_at) values (?, ?, ?)"
        " on conflict (qa_id) do update set tries = excluded.tries, next_at = excluded.next_at",
        (parked.qa_id, counted.tries, None if next_at is None else next_at.isoformat()),
    )


def _counted(parked: Parked, tries: int) -> Retry:
    return Retry(tries, parked.at + PAUSES[tries - 1] if tries <= len(PAUSES) else None)


def retries_of(rows: Iterable[Collection[object]]) -> Mapping[QAId, Retry]:
    """The pairs in rows of id, tries and time."""
    converted = msgspec.convert(list(rows), list[tuple[str, int, datetime | None]])
    return {QAId(qa_id): Retry(tries, next_at) for qa_id, tries, next_at in converted}


def retry_of(parked: Parked, retries: Mapping[QAId, Retry]) -> Retry:
    """How a parked pair stands, also where nobody has counted it yet: a crash, a regeneration."""
    known = retries.get(parked.qa_id)
    if known is None:
        return _counted(parked, 1)
    if known.next_at is not None and known.next_at <= parked.at:
        return _counted(parked, known.tries + 1)  # it was tried again since
    return known
