"""The channels that everyone on a server may read, from gateway events.

A channel is closed while its permissions are unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from anyio import Event
from msgspec import Struct

from intern.core import errors
from intern.core.flow import ChannelSnapshot, SessionStarted
from intern.core.ids import ChannelId, GuildId, RoleId, UserId
from intern.core.messages import Channel
from intern.platforms.discord import payloads
from intern.platforms.discord.gateway_cache import build_channel
from intern.platforms.discord.permissions import Overwrite, compute_permissions, may_read
from intern.platforms.discord.shards import LOST


class ChannelVisibility:
    """The channels that a member without any role can read, and those that the operator has listed.

    A thread is as open as its channel, unless it is private.

    A lost session does not report a channel that turns private. So reads over REST must wait
    (`wait_for_permissions`) until a session is open again and has caught up.
    """

    def __init__(self, listed: Collection[ChannelId] = ()) -> None:
        self._listed = frozenset(listed)
        self._guilds: dict[GuildId, _EveryonePermissions] = {}
        self.sessions: dict[GuildId, int] = {}
        """The servers that their shard's newest session, open or lost, has reported; with the shard."""
        self._lost: set[int] = set()
        self._waiting: dict[GuildId, Event] = {}
        self._is_closed = False

    def admits(self, channel: Channel) -> bool:
        """Whether intern may listen and speak there."""
        if channel.id in self._listed:
            return True
        if channel.private or channel.guild_id is None:
            return False
        place = channel.parent_id if channel.is_thread else channel.id
        guild = self._guilds.get(channel.guild_id)
        return place in self._listed or bool(guild and place and guild.is_open(place))

    async def wait_for_permissions(self, guild_id: GuildId | None) -> None:
        """Wait until an open session has reported the server's permissions and all missed events.

        Raises ChatUnavailableError once it is closed, unless such a session is open.
        """
        while guild_id is not None and (guild_id not in self.sessions or self.sessions[guild_id] in self._lost):
            if self._is_closed:
                raise errors.ChatUnavailableError(f"Discord has not told yet who may read on server {guild_id}")
            await self._waiting.setdefault(guild_id, Event()).wait()

    def track_session(self, shard: int, name: str) -> None:
        """Learn from the name of a dispatch, or from LOST, whether the shard's session is open."""
        if name == LOST:
            self._lost.add(shard)
        elif name == "READY":  # a new session, which has yet to report each server
            self._lost.discard(shard)
            self.sessions = {guild_id: at for guild_id, at in self.sessions.items() if at != shard}
        elif name == "RESUMED":  # missed events were delivered right before
            self._lost.discard(shard)
            for guild_id in [each for each in self._waiting if self.sessions.get(each) == shard]:
                self._waiting.pop(guild_id).set()

    def close(self) -> None:
        """End all waiting, because no further dispatches arrive."""
        self._is_closed = True
        for waiting in self._waiting.values():
            waiting.set()

    def receive(self, name: str, payload: Mapping[str, Any], shard: int = 0) -> None:
        """Learn from a gateway dispatch of any name.

        Raises msgspec.ValidationError for one that cannot be read; its channel or role is closed then.
        """
        match name:
            case "GUILD_CREATE":
                self._add_guild(payloads.parse_leniently(payload, payloads.RawGuild), shard)
            case "GUILD_DELETE":
                self._remove_guild(payloads.parse_leniently(payload, payloads.RawGuild))
            case "GUILD_ROLE_CREATE" | "GUILD_ROLE_UPDATE":
                self._change_role(msgspec.convert(payload, _RawRoleChange))
            case "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "CHANNEL_DELETE":
                self._change_channel(name, msgspec.convert(payload, _RawGuildChannel), payload)
            case _:
                pass

    def _add_guild(self, told: payloads.RawGuild, shard: int) -> None:
        if told.unavailable:
            return
        guild = self._guilds[told.id] = _EveryonePermissions(told.id)
        roles = payloads.parse_items(told.roles, payloads.RawRole)
        guild.everyone = next((role.bits for role in roles if role.id == RoleId(told.id)), 0)
        for channel in payloads.parse_items(told.channels, payloads.RawPermissions):
            guild.set_channel(channel)
        self.sessions[told.id] = shard
        if waiting := self._waiting.pop(told.id, None):
            waiting.set()

    def _remove_guild(self, told: payloads.RawGuild) -> None:
        # An outage is announced in the same words, and ends with a GUILD_CREATE.
        (self.sessions if told.unavailable else self._guilds).pop(told.id, None)

    def _change_role(self, told: _RawRoleChange) -> None:
        guild = self._guilds.get(told.guild_id)
        if guild is None or told.role.get("id") != guild.id:
            return
        guild.everyone = 0
        guild.everyone = msgspec.convert(told.role, payloads.RawRole).bits

    def _change_channel(self, name: str, place: _RawGuildChannel, payload: Mapping[str, Any]) -> None:
        guild = self._guilds.get(place.guild_id)
        if guild is None:
            return
        guild.channels.pop(place.id, None)
        if name != "CHANNEL_DELETE":
            guild.set_channel(msgspec.convert(payload, payloads.RawPermissions))


class _EveryonePermissions:
    """The permissions that all members of a server share: those of everyone's role, and its overwrites in channels."""

    def __init__(self, guild_id: GuildId) -> None:
        self.id = guild_id
        self.everyone = 0
        self.channels: dict[ChannelId, tuple[int | None, tuple[Overwrite, ...]]] = {}

    def set_channel(self, channel: payloads.RawPermissions) -> None:
        self.channels[channel.id] = channel.type, tuple(one for one in channel.overwrites if one.id == self.id)

    def is_open(self, channel_id: ChannelId) -> bool:
        if channel_id not in self.channels:
            return False
        kind, overwrites = self.channels[channel_id]
        return may_read(compute_permissions(self.id, {RoleId(self.id): self.everyone}, overwrites), kind)


class _RawRoleChange(Struct, frozen=True):
    guild_id: GuildId
    role: dict[str, Any]


class _RawGuildChannel(Struct, frozen=True):
    id: ChannelId
    guild_id: GuildId


class _RawRoleTags(Struct, frozen=True):
    bot_id: UserId | None = None


class _RawTaggedRole(Struct, frozen=True):
    id: RoleId
    tags: _RawRoleTags = _RawRoleTags()


def read_session_start(payload: Mapping[str, Any], bot_id: UserId) -> SessionStarted | None:
    """Read from a GUILD_CREATE the channels and active threads that the bot can read; None for an outage.

    Discord sends one for each server at the start of a session, and when a server comes back or is joined. In all these
    cases, earlier events there were not delivered. It sends none after a resume. Raises msgspec.ValidationError.
    """
    told = payloads.parse_leniently(payload, payloads.RawGuild)
    if told.unavailable:
        return None
    open_to_us = _find_readable_channels(told, bot_id)
    listed, running = (payloads.parse_items(each, payloads.RawChannel) for each in (told.channels, told.threads))
    channels = [raw for raw in listed if raw.id in open_to_us and raw.holds_messages]
    threads = [raw for raw in running if raw.is_thread and raw.parent_id in open_to_us]
    seen = [msgspec.structs.replace(raw, guild_id=told.id) for raw in (*channels, *threads)]
    kinds = {raw.id: raw.type for raw in channels}
    return SessionStarted(
        guild_id=told.id,
        channels=tuple(ChannelSnapshot(channel=build_channel(raw, kinds), last_message_id=raw.newest) for raw in seen),
    )


def read_own_roles(payload: Mapping[str, Any], bot_id: UserId) -> frozenset[RoleId]:
    """Read the bot's own roles from a GUILD_CREATE. Raises msgspec.ValidationError."""
    told = payloads.parse_leniently(payload, payloads.RawGuild)
    return frozenset(role.id for role in payloads.parse_items(told.roles, _RawTaggedRole) if role.tags.bot_id == bot_id)


def _find_readable_channels(told: payloads.RawGuild, bot_id: UserId) -> set[ChannelId]:
    roles = {role.id: role.bits for role in payloads.parse_items(told.roles, payloads.RawRole)}
    channels = list(payloads.parse_items(told.channels, payloads.RawPermissions))
    members = payloads.parse_items(told.members, payloads.RawMember)
    ours = next((one.role_ids or () for one in members if one.user and one.user.id == bot_id), None)
    if ours is None or not roles:
        return {channel.id for channel in channels}  # Discord itself refuses the channels that we may not read
    return {
        channel.id
        for channel in channels
        if may_read(compute_permissions(told.id, roles, channel.overwrites, held=ours, member=bot_id), channel.type)
    }
