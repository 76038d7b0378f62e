"""A chat in memory with several servers."""

from __future__ import annotations

from msgspec import structs

from intern.chat.platform import Deliver
from intern.core.flow import SessionStarted
from intern.core.ids import ChannelId, GuildId, MessageId
from tests.sandbox import Sandbox


class Town(Sandbox):
    """A chat whose first server is separate from those added by name: each of these has one channel to begin with."""

    def add_server(self, *channels: str) -> tuple[GuildId, ChannelId]:
        """Add a server with these channels, or with one; return it and its first channel."""
        guild_id = GuildId(self._next_id())
        first, *_ = [self.add_channel_on(guild_id, name) for name in channels or ("general",)]
        return guild_id, first

    def add_channel_on(self, guild_id: GuildId, name: str) -> ChannelId:
        channel_id = self.add_channel(name)
        self._channels[channel_id] = structs.replace(self._channels[channel_id], guild_id=guild_id)
        return channel_id

    @property
    def guild_ids(self) -> tuple[GuildId, ...]:
        return tuple(dict.fromkeys(each.guild_id for each in self._channels.values() if each.guild_id))

    def _greet(self, deliver: Deliver) -> None:
        for guild_id in self.guild_ids:
            deliver(self.session_of(guild_id))

    def lose_session(self) -> None:
        """Begin a new session on every server."""
        for deliver in tuple(self._listeners):
            self._greet(deliver)

    def session_of(self, guild_id: GuildId) -> SessionStarted:
        there = [self._build_channel_seen(place) for place in self._channels.values() if place.guild_id == guild_id]
        return SessionStarted(guild_id=guild_id, channels=tuple(there))

    def open_thread(self, channel_id: ChannelId, message_id: MessageId, name: str) -> ChannelId:
        thread = super().open_thread(channel_id, message_id, name)
        guild_id = self._channels[channel_id].guild_id
        self._channels[thread] = structs.replace(self._channels[thread], guild_id=guild_id)
        return thread
