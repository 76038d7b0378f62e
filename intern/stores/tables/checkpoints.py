"""The checkpoint of each channel. A channel without one has that of its server.

Losing the newest checkpoints costs reading again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec import Struct

from intern.core.ids import ChannelId, GuildId, MessageId
from intern.stores.database import Transaction
from intern.stores.tables.store import (
    OURS,
    Store,
    writes,
)


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The checkpoint of a channel."""

    guild_id: GuildId
    settled_to: MessageId
    """Nothing up to here needs to be read again."""


class StoredCheckpoints(Struct, frozen=True, kw_only=True):
    """The checkpoints of servers and channels, or how they changed."""

    attended: Mapping[GuildId, MessageId] = {}
    """By server: nothing up to here needs to be read again, in any of its channels."""
    channels: Mapping[ChannelId, Checkpoint] = {}
    """Channels that are further than their server."""

    def merge(self, later: StoredCheckpoints) -> StoredCheckpoints:
        """Return these checkpoints with later changes."""
        return StoredCheckpoints(
            attended={**self.attended, **later.attended}, channels={**self.channels, **later.channels}
        )


def read_checkpoints(db: Transaction) -> StoredCheckpoints:
    """Return the stored checkpoints of a community as they are."""
    rows = db.rows(
        f"select guild_id, cast(until as text), null from attended_servers {OURS} union all"
        f" select guild_id, cast(settled_to as text), channel_id from checkpoints {OURS}"
    )
    attended, channels = dict[GuildId, MessageId](), dict[ChannelId, Checkpoint]()
    for guild_id, settled_to, channel_id in msgspec.convert(rows, list[tuple[GuildId, MessageId, ChannelId | None]]):
        if channel_id is None:
            attended[guild_id] = settled_to
        else:
            channels[channel_id] = Checkpoint(guild_id=guild_id, settled_to=settled_to)
    return StoredCheckpoints(attended=attended, channels=channels)


class CheckpointStore(Store):
    """Checkpoints in the database."""

    @writes
    def load_or_create(self, db: Transaction, guild_ids: Collection[GuildId], first: MessageId) -> StoredCheckpoints:
        """Return the stored checkpoints. A server without one gets `first`."""
        db.run_each(
            "insert into attended_servers (community, guild_id, until) values (:community, ?, ?)"
            " on conflict do nothing",
            [(guild_id, int(first)) for guild_id in guild_ids],
        )
        return read_checkpoints(db)

    async def save(self, moved: StoredCheckpoints) -> None:
        """Store changes. Channels that their server has caught up with need none any more."""
        if moved.attended or moved.channels:
            await self._save(moved)

    @writes
    def _save(self, db: Transaction, moved: StoredCheckpoints) -> None:
        db.run_each(
            "insert into checkpoints (community, channel_id, guild_id, settled_to) values (:community, ?, ?, ?)"
            " on conflict (community, channel_id) do update"
            " set guild_id = excluded.guild_id, settled_to = excluded.settled_to",
            [(channel_id, point.guild_id, int(point.settled_to)) for channel_id, point in moved.channels.items()],
        )
        until = [(guild_id, int(settled_to)) for guild_id, settled_to in moved.attended.items()]
        db.run_each(
            "insert into attended_servers (community, guild_id, until) values (:community, ?, ?)"
            " on conflict (community, guild_id) do update set until = excluded.until"
            " where attended_servers.until < excluded.until",
            until,
        )
        db.run_each(f"delete from checkpoints {OURS} and guild_id = ? and settled_to <= ?", until)
