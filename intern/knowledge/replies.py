"""What the model replied to questions, by a digest of the whole request, so that a repeated question costs no call.

Each reply knows the questions that it was used for. It is let go of once anything speaks against one of these.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

import msgspec

from intern.domain import MessageId
from intern.knowledge.blocks import bare
from intern.knowledge.database import Database, Transaction
from intern.observe.clock import Clock

KEPT = 1_000
"""Replies; a question takes two to four."""
MAX_AGE = timedelta(days=7)
"""A provider may put another model behind the same name."""


class ReplyStore:
    """The replies that were used last. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def recall(self, key: str, question_id: MessageId | None) -> bytes | None:
        """The reply to a request, for one more question; None where there is none, or it is too old."""
        now = self._clock.now()
        oldest = (now - MAX_AGE).isoformat()

        def work(db: Transaction) -> bytes | None:
            row = db.row("select reply from model_replies where key = ? and made_at >= ?", (key, oldest))
            if row is None:
                return None
            db.run("update model_replies set used_at = ? where key = ?", (now.isoformat(), key))
            _use(db, key, question_id, now)
            return msgspec.convert(row, tuple[bytes])[0]

        known = "select 1 from model_replies where key = ?"
        if await self._db.read(lambda db: db.row(known, (key,))) is None:
            return None  # as mostly; nobody waits for the disk then
        return await self._db.write(work)

    async def forgettings(self) -> int:
        """How often anybody was forgotten here."""
        return await self._db.read(_forgettings)

    async def keep(self, key: str, reply: bytes, question_id: MessageId | None, forgettings: int) -> None:
        """Keep a reply; the ones that were used longest ago make room.

        `forgettings` were counted before the model was asked: a reply that was made meanwhile is not kept.
        """
        now = self._clock.now()
        oldest = (now - MAX_AGE).isoformat()

        def work(db: Transaction) -> None:
            if _forgettings(db) != forgettings:
                return
            db.run("delete from model_replies where key = ? or made_at < ?", (key, oldest))
            db.run("delete from reply_uses where at < ?", (oldest,))
            values = (key, reply, now.isoformat(), now.isoformat())
            db.run("insert into model_replies (key, reply, made_at, used_at) values (?, ?, ?, ?)", values)
            _use(db, key, question_id, now)
            db.run(_PRUNE, (KEPT,))

        await self._db.write(work)

    async def drop(self, message_ids: Collection[MessageId]) -> None:
        """Let go of the replies that were used for these questions."""
        await self._db.write(lambda db: drop_replies(db, message_ids))

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Let go of all replies: they may quote anybody."""
        if not message_ids:
            return
        listed = _listed(message_ids)

        def work(db: Transaction) -> None:
            db.run("delete from model_replies")
            db.run("update reply_forgettings set count = count + 1")
            db.run("delete from reply_uses where message_id in (select value from json_each(?))", (listed,))

        await self._db.write(work)


def drop_replies(db: Transaction, message_ids: Collection[MessageId]) -> None:
    """Let go of the replies that were used for these questions, in the caller's own transaction."""
    db.run(_DROP, (_listed(message_ids),))


def _forgettings(db: Transaction) -> int:
    return msgspec.convert(db.row("select count from reply_forgettings", ()), tuple[int])[0]


def _listed(message_ids: Collection[MessageId]) -> str:
    return msgspec.json.encode(sorted(map(bare, message_ids))).decode()


def _use(db: Transaction, key: str, question_id: MessageId | None, now: datetime) -> None:
    # It outlives the reply: what speaks against an answer speaks against a later one to the same request, too.
    if question_id is not None:
        statement = "insert into reply_uses (message_id, key, at) values (?, ?, ?) on conflict do nothing"
        db.run(statement, (question_id, key, now.isoformat()))


_DROP = (
    "delete from model_replies where key in"
    " (select key from reply_uses where message_id in (select value from json_each(?)))"
)
_PRUNE = (
    "delete from model_replies where key in"
    " (select key from model_replies order by used_at desc, key limit -1 offset ?)"
)
