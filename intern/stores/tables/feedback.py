"""Votes on answers."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import msgspec
from msgspec import Struct

from intern.core.ids import MessageId, UserId
from intern.stores.database import Transaction
from intern.stores.tables.judgements import judge_answer
from intern.stores.tables.reply_cache import drop_replies
from intern.stores.tables.store import IN, OURS, Store, join_conditions, text_array, writes


class Votes(Struct, frozen=True, kw_only=True):
    """The numbers of members who found an answer helpful, and who did not."""

    up: int = 0
    down: int = 0


VOTES = "sum(case vote when 'up' then 1 else 0 end), sum(case vote when 'down' then 1 else 0 end)"
"""Both numbers, as columns of `feedback`."""


class FeedbackStore(Store):
    """One vote for each person and question; the latest counts."""

    @writes
    def vote(self, db: Transaction, question_id: MessageId, user_id: UserId, *, up: bool) -> None:
        """Keep a member's vote on the answer to a question. Voting the same again changes nothing.

        An answer with a vote against it is not repeated.
        """
        db.run(
            "insert into feedback (community, question_id, user_id, vote, at) values (:community, ?, ?, ?, ?)"
            " on conflict (community, question_id, user_id) do update set vote = excluded.vote, at = excluded.at"
            " where feedback.vote <> excluded.vote",
            (question_id, user_id, "up" if up else "down", self.now()),
        )
        if not up:
            drop_replies(db, [question_id])
        down, votes = db.row(
            f"select sum(case vote when 'down' then 1 else 0 end), count(*) from feedback {OURS} and question_id = ?",
            (question_id,),
        ) or (0, 0)
        judge_answer(db, question_id, "vote", wrong=2 * cast("int", down) >= cast("int", votes), at=self.clock.now())

    async def read_votes_each(self, question_ids: Collection[MessageId]) -> dict[MessageId, Votes]:
        """Return the votes on the answers to these questions; those without any are missing."""
        statement = f"select question_id, {VOTES} from feedback {OURS} and question_id {IN} group by question_id"
        rows = msgspec.convert(
            await self.db.rows(statement, (text_array(question_ids),)), list[tuple[MessageId, int, int]]
        )
        return {question_id: Votes(up=up, down=down) for question_id, up, down in rows}

    async def read_votes(self, question_id: MessageId | None = None) -> Votes:
        """Return the votes on all answers, or on the answer to one question."""
        where, values = join_conditions(("question_id = ?", question_id))
        rows = await self.db.rows(f"select vote, count(*) from feedback {OURS} and {where} group by vote", values)
        return msgspec.convert(dict(msgspec.convert(rows, list[tuple[str, int]])), Votes)
