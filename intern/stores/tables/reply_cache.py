"""A model's replies, by a digest of the whole request, so that none is paid for twice. Bounded, and made again if lost.

Each reply knows the questions that it was used for, and is dropped once anything speaks against an answer to one of
these.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import msgspec
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.ids import MessageId
from intern.stores.database import Database, Transaction
from intern.stores.tables.store import IN, Store, bare_id_array, keep_first, writes

KEPT_REPLIES = 1_000
"""Replies; a question takes two to four."""
MAX_AGE_REPLIES = timedelta(days=7)
"""A provider may put another model behind the same name."""


class ReplyLookup(Struct, frozen=True):
    """The result of looking up a request."""

    reply: bytes | None
    """None where there is no reply, or it is too old."""
    drops: int
    """The number of drops of replies so far; see `save`."""


class ReplyStore(Store):
    """The replies that were used last."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        super().__init__(db, clock=clock)
        self._undropped: set[MessageId] = set()
        """The questions of drops that failed: until they succeed, no reply is recalled or kept."""

    async def recall(self, key: str, question_id: MessageId | None) -> ReplyLookup:
        """Find the reply to a request, for one more question."""
        await self._drop_failed()
        found = await self.db.read(lambda db: self._find_reply(db, key))
        # Mostly there is none; then the answer does not wait for the disk.
        return found if found.reply is None else await self._use(key, question_id)

    def _find_reply(self, db: Transaction, key: str) -> ReplyLookup:
        statement = "select reply from model_replies where community = :community and key = ? and made_at >= ?"
        row = db.row(statement, (key, self._oldest()))
        return ReplyLookup(None if row is None else msgspec.convert(row, tuple[bytes])[0], _count_drops(db))

    @writes
    def _use(self, db: Transaction, key: str, question_id: MessageId | None) -> ReplyLookup:
        found = self._find_reply(db, key)
        if found.reply is not None:
            statement = "update model_replies set used_at = ? where community = :community and key = ?"
            db.run(statement, (self.now(), key))
            self._note_use(db, key, question_id)
        return found

    async def save(self, key: str, reply: bytes, question_id: MessageId | None, drops: int) -> None:
        """Keep a reply; those that were used longest ago make room.

        `drops` is from before the model was asked: if any reply was dropped since then, this one is not kept, because
        the drop may have been about its question.
        """
        await self._drop_failed()
        await self._save(key, reply, question_id, drops)

    @writes
    def _save(self, db: Transaction, key: str, reply: bytes, question_id: MessageId | None, drops: int) -> None:
        if _count_drops(db) == drops:
            stale = "delete from model_replies where community = :community and (key = ? or made_at < ?)"
            db.run(stale, (key, self._oldest()))
            db.run("delete from reply_uses where community = :community and at < ?", (self._oldest(),))
            now = self.now()
            db.run(
                "insert into model_replies (community, key, reply, made_at, used_at) values (:community, ?, ?, ?, ?)",
                (key, reply, now, now),
            )
            self._note_use(db, key, question_id)
            keep_first(db, "model_replies", "key", "used_at desc, key", KEPT_REPLIES)

    async def drop(self, message_ids: Collection[MessageId]) -> None:
        """Drop the replies that were used for these questions. Until a failed drop is repeated, none is recalled."""
        self._undropped.update(message_ids)
        await self._drop_failed()

    async def _drop_failed(self) -> None:
        if ids := frozenset(self._undropped):
            await self.db.write(lambda db: drop_replies(db, ids))
            self._undropped -= ids

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Drop all replies: they may quote anybody."""
        if message_ids:
            await self._forget(message_ids)

    @writes
    def _forget(self, db: Transaction, message_ids: Collection[MessageId]) -> None:
        db.run("delete from model_replies where community = :community")
        db.run(_COUNT_DROP)
        uses = f"delete from reply_uses where community = :community and message_id {IN}"
        db.run(uses, (bare_id_array(message_ids),))

    def _oldest(self) -> str:
        return (self.clock.now() - MAX_AGE_REPLIES).isoformat()

    def _note_use(self, db: Transaction, key: str, question_id: MessageId | None) -> None:
        # It outlives the reply: a reason against an answer applies to a later one to the same request, too.
        if question_id is not None:
            db.run(
                "insert into reply_uses (community, message_id, key, at) values (:community, ?, ?, ?)"
                " on conflict do nothing",
                (question_id, key, self.now()),
            )


def drop_replies(db: Transaction, message_ids: Collection[MessageId]) -> None:
    """Drop the replies that were used for these questions, in the caller's own transaction."""
    db.run(
        "delete from model_replies where community = :community and key in"
        f" (select key from reply_uses where community = :community and message_id {IN})",
        (bare_id_array(message_ids),),
    )
    db.run(_COUNT_DROP)


def _count_drops(db: Transaction) -> int:
    return db.number("select count from reply_drops where community = :community")


_COUNT_DROP = (
    "insert into reply_drops (community, count) values (:community, 1)"
    " on conflict (community) do update set count = reply_drops.count + 1"
)
