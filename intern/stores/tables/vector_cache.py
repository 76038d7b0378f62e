"""Vectors by a hash of model and text, so that none is paid for twice. Bounded, and made again if lost."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from intern.core.ids import MessageId
from intern.stores.database import Transaction
from intern.stores.tables.store import IN, Store, json_array, keep_first, writes

_RECALL = f"select key, vector from vector_cache where community = :community and key {IN}"
_USED = f"update vector_cache set used_at = ? where community = :community and key {IN} and used_at < ?"
_REMEMBER = (
    "insert into vector_cache (community, key, vector, used_at) values (:community, ?, ?, ?)"
    " on conflict (community, key) do update set vector = excluded.vector, used_at = excluded.used_at"
)
_DAY = 86_400


class VectorMemory(Store):
    """Vectors by the hash of model and text."""

    most = 20_000
    """Vectors; of 1,536 numbers each they take 120 MB."""

    async def recall(self, keys: Sequence[str], /) -> Mapping[str, bytes]:
        """Return the known vectors."""
        known = dict(msgspec.convert(await self.db.rows(_RECALL, (json_array(keys),)), list[tuple[str, bytes]]))
        if known:
            now = int(self.clock.now().timestamp())
            # Once a day is enough, or each question would write.
            await self.db.run(_USED, (now, json_array(known), now - _DAY))
        return known

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Delete all vectors: each says something about its text, and the author of that text is not stored."""
        if message_ids:
            await self.db.run("delete from vector_cache where community = :community")

    @writes
    def remember(self, db: Transaction, vectors: Mapping[str, bytes], /) -> None:
        """Keep vectors, and delete those that were used longest ago."""
        now = int(self.clock.now().timestamp())
        db.run_each(_REMEMBER, [(key, vector, now) for key, vector in vectors.items()])
        keep_first(db, "vector_cache", "key", "used_at desc", self.most)
