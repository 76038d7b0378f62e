"""What people thought of the answers: the votes of the buttons under each."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from intern.domain import MessageId, UserId
from intern.knowledge.database import Database, Transaction
from intern.knowledge.replies import drop_replies
from intern.observe.clock import Clock


class Votes(Struct, frozen=True, kw_only=True):
    """How many found an answer helpful, and how many did not."""

    up: int = 0
    down: int = 0


class FeedbackStore:
    """One vote for each person and question; the latest counts. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def vote(self, question_id: MessageId, user_id: UserId, *, up: bool) -> None:
        """Keep somebody's vote on the answer to a question. Voting the same again changes nothing.

        An answer that somebody found unhelpful is not repeated.
        """
        values = (question_id, user_id, "up" if up else "down", self._clock.now().isoformat())

        def work(db: Transaction) -> None:
            db.run(
                "insert into feedback (question_id, user_id, vote, at) values (?, ?, ?, ?)"
                " on conflict (question_id, user_id) do update set vote = excluded.vote, at = excluded.at"
                " where vote <> excluded.vote",
                values,
            )
            if not up:
                drop_replies(db, [question_id])

        await self._db.write(work)

    async def of(self, question_id: MessageId) -> Votes:
        """The votes on the answer to a question."""
        return await self._db.read(lambda db: _counted(db, "where question_id = ?", question_id))

    async def all(self) -> Votes:
        """The votes on all answers."""
        return await self._db.read(lambda db: _counted(db, ""))


def _counted(db: Transaction, condition: str, *values: str) -> Votes:
    rows = db.rows(f"select vote, count(*) from feedback {condition} group by vote", values)  # noqa: S608 - our own text
    return msgspec.convert(dict(msgspec.convert(rows, list[tuple[str, int]])), Votes)
