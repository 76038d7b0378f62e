"""How far each channel was read and settled, on disk: where reading takes up after a restart.

A channel without a mark of its own stands where its server does. Losing the newest marks costs reading again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec import Struct

from intern.core.ids import ChannelId, GuildId, MessageId
from intern.stores.sqlite.database import Database, Transaction


class Mark(Struct, frozen=True, kw_only=True):
    """A channel's mark."""

    guild_id: GuildId
    settled_to: MessageId
    """Nothing up to here needs to be read again."""


class Marks(Struct, frozen=True, kw_only=True):
    """Where servers and channels stand, or how that changed."""

    attended: Mapping[GuildId, MessageId] = {}
    """By server: nothing up to here needs to be read again, in any of its channels."""
    channels: Mapping[ChannelId, Mark] = {}
    """Channels that are further than their server."""

    def then(self, later: Marks) -> Marks:
        """Return these marks with later changes."""
        return Marks(attended={**self.attended, **later.attended}, channels={**self.channels, **later.channels})


class MarkStore:
    """Marks in the database. All methods raise KnowledgeError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def open(self, guild_ids: Collection[GuildId], first: MessageId) -> Marks:
        """Return the stored marks. A server without one gets `first`."""

        def work(db: Transaction) -> Marks:
            db.run_each(
                "insert into attended (guild_id, until) values (?, ?) on conflict do nothing",
                [(guild_id, int(first)) for guild_id in guild_ids],
            )
            attended = msgspec.convert(db.rows("select guild_id, until from attended"), list[tuple[str, int]])
            marks = msgspec.convert(db.rows("select channel_id, guild_id, mark from marks"), list[tuple[str, str, int]])
            return Marks(
                attended={GuildId(guild_id): MessageId(str(until)) for guild_id, until in attended},
                channels={
                    ChannelId(channel_id): Mark(guild_id=GuildId(guild_id), settled_to=MessageId(str(mark)))
                    for channel_id, guild_id, mark in marks
                },
            )

        return await self._db.write(work)

    async def keep(self, moved: Marks) -> None:
        """Write down what changed. Channels that their server has caught up with need no mark any more."""

        def work(db: Transaction) -> None:
            db.run_each(
                "insert into marks (channel_id, guild_id, mark) values (?, ?, ?)"
                " on conflict (channel_id) do update set guild_id = excluded.guild_id, mark = excluded.mark",
                [(channel_id, mark.guild_id, int(mark.settled_to)) for channel_id, mark in moved.channels.items()],
            )
            until = [(guild_id, int(settled_to)) for guild_id, settled_to in moved.attended.items()]
            db.run_each(
                "insert into attended (guild_id, until) values (?, ?)"
                " on conflict (guild_id) do update set until = max(until, excluded.until)",
                until,
            )
            db.run_each("delete from marks where guild_id = ? and mark <= ?", until)

        if moved.attended or moved.channels:
            await self._db.write(work)
