"""Vectors that were paid for, by what they were made from: the same text is not sent to an endpoint again.

Derived: lost, it is paid for again. Bounded: what was used longest ago goes. It holds no text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from intern.core.clock import Clock
from intern.core.ids import MessageId
from intern.stores.sqlite.columns import IN, as_json, keep_first
from intern.stores.sqlite.database import Database, Transaction

MOST_REMEMBERED = 20_000
"""Vectors; of 1,536 numbers each they take 120 MB."""

_RECALL = f"select key, vector from vector_memory where key {IN}"
_USED = f"update vector_memory set used_at = ? where key {IN} and used_at < ?"
_REMEMBER = (
    "insert into vector_memory (key, vector, used_at) values (?, ?, ?)"
    " on conflict (key) do update set vector = excluded.vector, used_at = excluded.used_at"
)
_DAY = 86_400


class VectorMemory:
    """Remembers vectors by the hash of model and text. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock, most: int = MOST_REMEMBERED) -> None:
        self._db = db
        self._clock = clock
        self._most = most

    async def recall(self, keys: Sequence[str], /) -> Mapping[str, bytes]:
        """The vectors that are known."""
        known = dict(msgspec.convert(await self._db.rows(_RECALL, (as_json(keys),)), list[tuple[str, bytes]]))
        if known:
            now = int(self._clock.now().timestamp())
            # Once a day is enough, or each question would write.
            await self._db.run(_USED, (now, as_json(known), now - _DAY))
        return known

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Let go of all, for a vector tells something of its text, and nobody knows whose text that was."""
        if message_ids:
            await self._db.run("delete from vector_memory")

    async def remember(self, vectors: Mapping[str, bytes], /) -> None:
        """Keep vectors, and let go of those that were used longest ago."""
        now = int(self._clock.now().timestamp())

        def work(db: Transaction) -> None:
            db.run_each(_REMEMBER, [(key, vector, now) for key, vector in vectors.items()])
            keep_first(db, "vector_memory", "key", "used_at desc", self._most)

        await self._db.write(work)
