"""How often work on a pair was begun and did not end, so that a pair that ends the process cannot do so for ever."""

from __future__ import annotations

import msgspec

from intern.domain import QAId
from intern.knowledge.database import Database, Transaction


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
        """The pair was decided; forget its attempts. Harmless where there were none."""
        await self._db.write(lambda db: db.run("delete from attempts where qa_id = ?", (qa_id,)))
