"""Nuggets, as they were distilled: a conversation's are written and replaced with all else that it taught."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from intern.core import knowledge
from intern.core.ids import ConversationId, NuggetId
from intern.stores.database import Transaction
from intern.stores.tables.store import (
    BEGINS,
    IN,
    NO_LIMIT,
    OURS,
    Store,
    Table,
    join_conditions,
    prefix_values,
    reads,
    text_array,
)

_LISTS = ("keywords", "source_message_ids", "user_ids_involved")
_NUGGETS = Table("nuggets", knowledge.Nugget, millis=("timestamp",), json=_LISTS)


class NuggetStore(Store):
    """All current nuggets. `ExtractionLog` writes them."""

    @reads
    def all(
        self, db: Transaction, status: knowledge.NuggetStatus | None = None, *, limit: int = NO_LIMIT, offset: int = 0
    ) -> tuple[knowledge.Nugget, ...]:
        """Return nuggets, newest first."""
        where, values = join_conditions(("status = ?", status))
        rest = f"{OURS} and {where} order by timestamp desc, id limit ? offset ?"
        return _NUGGETS.all(db, rest, (*values, limit, offset))

    @reads
    def count(self, db: Transaction, status: knowledge.NuggetStatus | None = None) -> int:
        """Return how many there are."""
        where, values = join_conditions(("status = ?", status))
        return db.number(f"select count(*) from nuggets {OURS} and {where}", values)

    @reads
    def stamps(self, db: Transaction) -> Mapping[NuggetId, str]:
        """Return a stamp of each nugget that changes with it."""
        return {each.id: each.stamp for each in _NUGGETS.all(db, OURS)}

    @reads
    def by_ids(self, db: Transaction, ids: Collection[NuggetId]) -> tuple[knowledge.Nugget, ...]:
        """Return those of these that still exist, newest first."""
        return _NUGGETS.all(db, f"{OURS} and id {IN} order by timestamp desc, id", (text_array(ids),))

    @reads
    def read_for_conversation(self, db: Transaction, conversation_id: ConversationId) -> tuple[knowledge.Nugget, ...]:
        """Return the nuggets of a conversation, in the order of their making."""
        return _NUGGETS.all(db, f"{OURS} and conversation_id = ? order by rid", (conversation_id,))

    @reads
    def find_by_prefix(self, db: Transaction, prefix: str) -> tuple[knowledge.Nugget, ...]:
        """Return the nuggets whose id begins with `prefix`, by id."""
        return _NUGGETS.all(db, f"{OURS} and {BEGINS} order by id", prefix_values(prefix))


def replace_nuggets(db: Transaction, conversation_id: ConversationId, nuggets: Sequence[knowledge.Nugget]) -> None:
    """Replace all nuggets of a conversation."""
    db.run(f"delete from nuggets {OURS} and conversation_id = ?", (conversation_id,))
    db.run_each(_NUGGETS.insert, map(_NUGGETS.to_row, nuggets))
