"""Attempts to file a pair, and when to retry.

A pair that ends the process cannot do so for ever, and one that cannot be filed is tried again after growing pauses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from intern.core.decisions import PairDecision, PairParked
from intern.core.ids import QAId
from intern.stores.database import Transaction
from intern.stores.tables.store import OURS, Store, writes

PAUSES = (timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6))
"""The pauses after the first, second and third time that a pair is parked. Then it waits for a person."""


class Retry(Struct, frozen=True):
    """The state of a parked pair."""

    tries: int
    """The number of times that it was tried and parked."""
    next_at: datetime | None
    """When it is tried again by itself; None if only a person can ask for that."""


class AttemptStore(Store):
    """Counts in the database."""

    @writes
    def begin(self, db: Transaction, qa_id: QAId) -> int:
        """Count an attempt, on disk before the work begins; return how many there were, this one included."""
        return db.number(
            "insert into attempts (community, qa_id, begun) values (:community, ?, 1)"
            " on conflict (community, qa_id) do update set begun = attempts.begun + 1 returning begun",
            (qa_id,),
        )

    async def clear(self, qa_id: QAId) -> None:
        """Forget that work was begun: it ended without a decision, but not by a crash. Harmless if it was not begun."""
        await self.db.run(_NOT_BEGUN, (qa_id,))

    @writes
    def end(self, db: Transaction, decision: PairDecision, *, again: bool = True) -> None:
        """Note that a pair was decided. A parked one is tried again by itself after a pause, unless not `again`."""
        db.run_each(_NOT_BEGUN, [(decision.qa_id,)])
        parked = f"from retries {OURS} and qa_id = ?"
        tries = db.number(f"select tries {parked}", (decision.qa_id,))
        db.run_each(f"delete {parked}", [(decision.qa_id,)])
        if isinstance(decision, PairParked):
            retry = _plan_retry(decision, tries + 1)
            next_at = retry.next_at.isoformat() if again and retry.next_at else None
            db.run(
                "insert into retries (community, qa_id, tries, next_at) values (:community, ?, ?, ?)",
                (decision.qa_id, retry.tries, next_at),
            )

    async def read_retries(self) -> Mapping[QAId, Retry]:
        """Return every pair that was parked, as far as it was counted."""
        return parse_retries(await self.db.rows(RETRIES))


_NOT_BEGUN = f"delete from attempts {OURS} and qa_id = ?"

RETRIES = f"select qa_id, tries, next_at from retries {OURS}"


def _plan_retry(parked: PairParked, tries: int) -> Retry:
    return Retry(tries, parked.at + PAUSES[tries - 1] if tries <= len(PAUSES) else None)


def parse_retries(rows: Iterable[Collection[object]]) -> Mapping[QAId, Retry]:
    """Return the pairs in rows of id, tries and time."""
    converted = msgspec.convert(list(rows), list[tuple[QAId, int, datetime | None]])
    return {qa_id: Retry(tries, next_at) for qa_id, tries, next_at in converted}


def find_retry(parked: PairParked, retries: Mapping[QAId, Retry]) -> Retry:
    """Return the state of a parked pair, also if it is not counted yet, after a crash or a regeneration."""
    known = retries.get(parked.qa_id)
    if known is None:
        return _plan_retry(parked, 1)
    if known.next_at is not None and known.next_at <= parked.at:
        return _plan_retry(parked, known.tries + 1)  # it was tried again since
    return known
