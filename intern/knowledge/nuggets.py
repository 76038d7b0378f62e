"""Nuggets, as they were distilled: a conversation's are written and replaced with all else that it taught."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from intern.domain import ConversationId, Nugget, NuggetId, NuggetStatus
from intern.knowledge.columns import carried, listed, millis, moment, parts
from intern.knowledge.database import Database, Row, Transaction, Value

_COLUMNS = (
    "id, conversation_id, topic, timestamp, topic_summary, detailed_analysis, status, keywords, source_message_ids,"
    " user_ids_involved, guild_id, channel_id"
)
_SELECT = f"select {_COLUMNS} from nuggets"  # noqa: S608
_INSERT = f"insert into nuggets ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
_IN = "in (select value from json_each(?))"


class NuggetStore:
    """All nuggets that stand. All methods raise KnowledgeError. `ExtractionLog` writes them."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def all(self, status: NuggetStatus | None = None, *, limit: int = -1, offset: int = 0) -> tuple[Nugget, ...]:
        """Nuggets, newest first; at most so many, unless the limit is below 0."""
        wanted, values = ("", ()) if status is None else (" where status = ?", (status,))
        statement = f"{_SELECT}{wanted} order by timestamp desc, id limit ? offset ?"
        return await self._select(statement, (*values, limit, offset))

    async def count(self) -> int:
        """How many there are."""
        row = await self._db.read(lambda db: db.row("select count(*) from nuggets"))
        return 0 if row is None else int(str(row[0]))

    async def stamps(self) -> Mapping[NuggetId, str]:
        """What tells of each nugget whether it has changed."""
        return await self._db.read(lambda db: {each.id: each.stamp for each in map(_nugget_of, db.rows(_SELECT))})

    async def by_ids(self, ids: Collection[NuggetId]) -> tuple[Nugget, ...]:
        """Those of these that stand, newest first."""
        return await self._select(f"{_SELECT} where id {_IN} order by timestamp desc, id", (listed(ids),))

    async def of_conversation(self, conversation_id: ConversationId) -> tuple[Nugget, ...]:
        """What was distilled from a conversation, in the order of its making."""
        return await self._select(f"{_SELECT} where conversation_id = ? order by rid", (conversation_id,))

    async def beginning(self, prefix: str) -> tuple[Nugget, ...]:
        """Nuggets whose id begins like that, by id."""
        statement = f"{_SELECT} where substr(id, 1, length(?1)) = ?1 order by id"
        return await self._select(statement, (carried(prefix).lower(),))

    async def _select(self, statement: str, values: Sequence[Value]) -> tuple[Nugget, ...]:
        # On the reading thread, all of it: there may be tens of thousands.
        return await self._db.read(lambda db: tuple(map(_nugget_of, db.rows(statement, values))))


def replace_nuggets(db: Transaction, conversation_id: ConversationId, nuggets: Sequence[Nugget]) -> None:
    """These are from now on all the nuggets of a conversation."""
    db.run("delete from nuggets where conversation_id = ?", (conversation_id,))
    db.run_each(_INSERT, map(_row_of, nuggets))


def _row_of(nugget: Nugget) -> Row:
    return (
        nugget.id,
        nugget.conversation_id,
        carried(nugget.topic),
        millis(nugget.timestamp),
        carried(nugget.topic_summary),
        carried(nugget.detailed_analysis),
        nugget.status,
        listed(nugget.keywords),
        listed(nugget.source_message_ids),
        listed(nugget.user_ids_involved),
        nugget.guild_id,
        nugget.channel_id,
    )


def _nugget_of(row: Row) -> Nugget:
    fields: dict[str, object] = dict(zip(_COLUMNS.split(", "), row, strict=True))
    fields["timestamp"] = moment(msgspec.convert(fields["timestamp"], int))
    for name in ("keywords", "source_message_ids", "user_ids_involved"):
        fields[name] = parts(fields[name])
    return msgspec.convert(fields, Nugget)
