"""Counters of each day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date

import msgspec

from intern.core.clock import Clock
from intern.core.errors import KnowledgeError
from intern.stores.database import Database, Transaction
from intern.stores.tables.store import OURS, Store, writes


class DailyCounts(Store):
    """Counts by the UTC day, such as questions that were dropped: in memory at once, on disk with `store`."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        super().__init__(db, clock=clock)
        self._fresh: Counter[tuple[str, str]] = Counter()

    def add(self, name: str, number: int = 1) -> None:
        """Add to a count of today; never waits."""
        self._fresh[self.clock.now().date().isoformat(), name] += number

    async def store(self) -> None:
        """Write the counts since the last time to disk. Raises KnowledgeError; the counts are kept then."""
        fresh, self._fresh = self._fresh, Counter()
        try:
            if fresh:
                await self._store([(day, name, number) for (day, name), number in fresh.items()])
        except KnowledgeError:
            self._fresh.update(fresh)
            raise

    @writes
    def _store(self, db: Transaction, rows: Sequence[tuple[str, str, int]]) -> None:
        db.run_each(
            "insert into daily_counts (community, day, name, number) values (:community, ?, ?, ?)"
            " on conflict (community, day, name) do update set number = daily_counts.number + excluded.number",
            rows,
        )

    async def read_day(self, day: date) -> dict[str, int]:
        """Return the stored counts of a day, by name."""
        statement = f"select name, number from daily_counts {OURS} and day = ? order by name"
        rows = await self.db.rows(statement, (day.isoformat(),))
        return dict(msgspec.convert(rows, list[tuple[str, int]]))

    async def read_since(self, day: date) -> dict[date, dict[str, int]]:
        """Return the stored counts of each day from `day` on, by name; days without any are left out."""
        rows = await self.db.rows(f"select day, name, number from daily_counts {OURS} and day >= ?", (day.isoformat(),))
        days: dict[date, dict[str, int]] = {}
        for at, name, number in msgspec.convert(rows, list[tuple[date, str, int]]):
            days.setdefault(at, {})[name] = number
        return days
