"""Permissions: the channels that everyone can read, from gateway events, and the bot's own permissions, over REST.

The rules are Discord's (its reference, "Permissions"). A channel is closed while its permissions are unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Final

import msgspec
from anyio import Event
from hikari.internal import routes
from msgspec import Meta, Struct

from intern.core import errors
from intern.core.flow import ChannelSnapshot, SessionStarted
from intern.core.ids import ChannelId, GuildId, RoleId, UserId
from intern.core.messages import Channel
from intern.core.progress import report_progress
from intern.platforms.discord.events import build_channel
from intern.platforms.discord.options import DiscordOptions
from intern.platforms.discord.payloads import (
    FORUMS,
    RawApplication,
    RawChannel,
    RawGuild,
    RawMember,
    parse_items,
    parse_leniently,
)
from intern.platforms.discord.rest import LOGIN_REFUSED, NO_API, HikariRest, compile_route
from intern.platforms.discord.shards import LOST

ADMINISTRATOR: Final = 1 << 3
VIEW_CHANNEL: Final = 1 << 10
SEND_MESSAGES: Final = 1 << 11
READ_MESSAGE_HISTORY: Final = 1 << 16
MENTION_EVERYONE: Final = 1 << 17
CONNECT: Final = 1 << 20
CREATE_PUBLIC_THREADS: Final = 1 << 35
SEND_MESSAGES_IN_THREADS: Final = 1 << 38
READ: Final = VIEW_CHANNEL | READ_MESSAGE_HISTORY
"""The permissions that reading a channel and its history takes."""

_SPOKEN: Final = frozenset({2, 13})  # voice and stage channels: only members who may connect read their chat

# Application flags: the Message Content intent is switched on, for a verified bot and for any other.
_MESSAGE_CONTENT: Final = 1 << 18 | 1 << 19

_ALL: Final = -1
_Bits = Annotated[str, Meta(pattern=r"\A[0-9]{1,40}\Z")]  # decimal, and longer than 64 bits one day


class Overwrite(Struct, frozen=True):
    """A channel's change of permissions for one role or member; the role of everyone has the server's own id."""

    id: str
    allow: _Bits = "0"
    deny: _Bits = "0"


def compute_permissions(
    guild_id: GuildId,
    roles: Mapping[RoleId, int],
    overwrites: Iterable[Overwrite],
    *,
    held: Collection[RoleId] = (),
    member: UserId | None = None,
) -> int:
    """Return the permission bits in a channel for a holder of these roles and of everyone's role.

    Without roles and member: of everyone. The server's owner, who may do everything, is not known here.
    """
    everyone = RoleId(guild_id)
    bits = 0
    for role in (everyone, *held):
        bits |= roles.get(role, 0)
    if bits & ADMINISTRATOR:
        return _ALL
    by_id = {overwrite.id: overwrite for overwrite in overwrites}
    groups: tuple[Iterable[str], ...] = ((everyone,), set(held) - {everyone}, (member,) if member else ())
    for group in groups:
        met = [by_id[one] for one in group if one in by_id]
        for overwrite in met:
            bits &= ~int(overwrite.deny)
        # Among roles, one that allows wins over all that deny.
        for overwrite in met:
            bits |= int(overwrite.allow)
    return bits


def may_read(bits: int, kind: int | None = None) -> bool:
    """Return whether these permissions allow to read a channel of Discord's type `kind`, and its history."""
    needed = READ | CONNECT if kind in _SPOKEN else READ
    return bits & needed == needed


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
                self._add_guild(parse_leniently(payload, RawGuild), shard)
            case "GUILD_DELETE":
                self._remove_guild(parse_leniently(payload, RawGuild))
            case "GUILD_ROLE_CREATE" | "GUILD_ROLE_UPDATE":
                self._change_role(msgspec.convert(payload, _RawRoleChange))
            case "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "CHANNEL_DELETE":
                self._change_channel(name, msgspec.convert(payload, _RawGuildChannel), payload)
            case _:
                pass

    def _add_guild(self, told: RawGuild, shard: int) -> None:
        if told.unavailable:
            return
        guild = self._guilds[told.id] = _EveryonePermissions(told.id)
        roles = parse_items(told.roles, RawRole)
        guild.everyone = next((role.bits for role in roles if role.id == RoleId(told.id)), 0)
        for channel in parse_items(told.channels, RawPermissions):
            guild.set_channel(channel)
        self.sessions[told.id] = shard
        if waiting := self._waiting.pop(told.id, None):
            waiting.set()

    def _remove_guild(self, told: RawGuild) -> None:
        # An outage is announced in the same words, and ends with a GUILD_CREATE.
        (self.sessions if told.unavailable else self._guilds).pop(told.id, None)

    def _change_role(self, told: _RawRoleChange) -> None:
        guild = self._guilds.get(told.guild_id)
        if guild is None or told.role.get("id") != guild.id:
            return
        guild.everyone = 0
        guild.everyone = msgspec.convert(told.role, RawRole).bits

    def _change_channel(self, name: str, place: _RawGuildChannel, payload: Mapping[str, Any]) -> None:
        guild = self._guilds.get(place.guild_id)
        if guild is None:
            return
        guild.channels.pop(place.id, None)
        if name != "CHANNEL_DELETE":
            guild.set_channel(msgspec.convert(payload, RawPermissions))


class _EveryonePermissions:
    """The permissions that all members of a server share: those of everyone's role, and its overwrites in channels."""

    def __init__(self, guild_id: GuildId) -> None:
        self.id = guild_id
        self.everyone = 0
        self.channels: dict[ChannelId, tuple[int | None, tuple[Overwrite, ...]]] = {}

    def set_channel(self, channel: RawPermissions) -> None:
        self.channels[channel.id] = channel.type, tuple(one for one in channel.overwrites if one.id == self.id)

    def is_open(self, channel_id: ChannelId) -> bool:
        if channel_id not in self.channels:
            return False
        kind, overwrites = self.channels[channel_id]
        return may_read(compute_permissions(self.id, {RoleId(self.id): self.everyone}, overwrites), kind)


class RawPermissions(Struct, frozen=True, rename={"overwrites": "permission_overwrites"}):
    """The permissions of a channel. Threads have no overwrites; a channel always has a list of them."""

    id: ChannelId
    overwrites: list[Overwrite]
    type: int | None


class RawRole(Struct, frozen=True):
    """A role, as far as permissions go."""

    id: RoleId
    permissions: _Bits

    @property
    def bits(self) -> int:
        """The permissions as a number."""
        return int(self.permissions)


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
    told = parse_leniently(payload, RawGuild)
    if told.unavailable:
        return None
    open_to_us = _find_readable_channels(told, bot_id)
    channels = [raw for raw in parse_items(told.channels, RawChannel) if raw.id in open_to_us and raw.holds_messages]
    threads = [raw for raw in parse_items(told.threads, RawChannel) if raw.is_thread and raw.parent_id in open_to_us]
    seen = [msgspec.structs.replace(raw, guild_id=told.id) for raw in (*channels, *threads)]
    kinds = {raw.id: raw.type for raw in channels}
    return SessionStarted(
        guild_id=told.id,
        channels=tuple(ChannelSnapshot(channel=build_channel(raw, kinds), last_message_id=raw.newest) for raw in seen),
    )


def read_own_roles(payload: Mapping[str, Any], bot_id: UserId) -> frozenset[RoleId]:
    """Read the bot's own roles from a GUILD_CREATE. Raises msgspec.ValidationError."""
    told = parse_leniently(payload, RawGuild)
    return frozenset(role.id for role in parse_items(told.roles, _RawTaggedRole) if role.tags.bot_id == bot_id)


def _find_readable_channels(told: RawGuild, bot_id: UserId) -> set[ChannelId]:
    roles = {role.id: role.bits for role in parse_items(told.roles, RawRole)}
    channels = list(parse_items(told.channels, RawPermissions))
    members = parse_items(told.members, RawMember)
    ours = next((one.role_ids or () for one in members if one.user and one.user.id == bot_id), None)
    if ours is None or not roles:
        return {channel.id for channel in channels}  # Discord itself refuses the channels that we may not read
    return {
        channel.id
        for channel in channels
        if may_read(compute_permissions(told.id, roles, channel.overwrites, held=ours, member=bot_id), channel.type)
    }


class NamedRole(RawRole, frozen=True):
    """A role, for a report."""

    name: str = ""
    mentionable: bool = False


class NamedChannel(RawPermissions, frozen=True):
    """A channel, for a report."""

    type: int = -1
    name: str = ""

    @property
    def holds_answers(self) -> bool:
        """It can hold threads, and so answers: text, announcements, forums and media channels."""
        return self.is_text or self.type in FORUMS

    @property
    def is_text(self) -> bool:
        """A channel for text or announcements."""
        return self.type in {0, 5}


class _RawGuildName(Struct, frozen=True):
    id: GuildId
    name: str = ""


class ServerSnapshot(Struct, frozen=True):
    """A server, as far as the bot can see it."""

    id: GuildId
    name: str
    roles: Mapping[RoleId, NamedRole]
    channels: tuple[NamedChannel, ...]
    bot_id: UserId
    held: tuple[RoleId, ...]
    """The bot's roles."""

    def own_permissions(self, channel: NamedChannel | None = None) -> int:
        """Return the bot's permissions in a channel, or on the server before any channel changes them."""
        overwrites = channel.overwrites if channel else ()
        return compute_permissions(self.id, self._bits, overwrites, held=self.held, member=self.bot_id)

    def is_public(self, channel: NamedChannel) -> bool:
        """Return whether everyone can read there."""
        return may_read(compute_permissions(self.id, self._bits, channel.overwrites), channel.type)

    @property
    def _bits(self) -> Mapping[RoleId, int]:
        return {role_id: role.bits for role_id, role in self.roles.items()}


class PlatformSetup(Struct, frozen=True, kw_only=True):
    """The set-up on Discord. Lost members and channels are found only if it is complete."""

    application_id: str
    reads_messages: bool
    """The Message Content intent is on."""
    shards: int
    """The number of shards that Discord recommends; 0 if we did not ask, since discord.shards is "auto"."""
    servers: Mapping[GuildId, ServerSnapshot | None]
    """None where the bot is not on it."""
    lost_members: tuple[UserId, ...] = ()
    """Members of the team that are on no server."""
    lost_channels: tuple[ChannelId, ...] = ()
    """Channels of the options that are on no server."""

    @property
    def joined(self) -> tuple[ServerSnapshot, ...]:
        """The servers that the bot is on."""
        return tuple(filter(None, self.servers.values()))

    @property
    def is_complete(self) -> bool:
        """The bot is on all servers, so an id that is not found is wrong."""
        return bool(self.servers) and None not in self.servers.values()


async def inspect_setup(options: DiscordOptions) -> PlatformSetup:
    """Look at the set-up over REST; change nothing.

    Raises ConfigError for a token that is wrong, ChatUnavailableError where Discord cannot be asked.
    """
    async with HikariRest(options, max_retries=1) as rest:
        return await _inspect(rest, options)


async def _inspect(rest: HikariRest, options: DiscordOptions) -> PlatformSetup:
    application = await _fetch_application(rest)
    bot_id = await rest.own_id()
    servers: dict[GuildId, ServerSnapshot | None] = {}
    for guild_id in options.guild_ids:
        report_progress("Looking at {total} servers", len(servers), len(options.guild_ids))
        servers[guild_id] = await _fetch_server(rest, guild_id, bot_id)
    reads = bool(application.flags & _MESSAGE_CONTENT)
    shards = 0 if options.shards == "auto" else (await rest.gateway()).shards
    found = PlatformSetup(application_id=application.id, reads_messages=reads, shards=shards, servers=servers)
    if not found.is_complete:
        return found
    lost_members: list[UserId] = []
    for user_id in options.team_member_ids:
        what = f"look up member {user_id}"
        asked = [compile_route(routes.GET_GUILD_MEMBER, guild=each, user=user_id) for each in servers]
        if not any([await _exists(rest, what, route) for route in asked]):
            lost_members.append(user_id)
    there = {channel.id for server in found.joined for channel in server.channels}
    # Threads are in no server's list.
    lost_channels = [
        each
        for each in dict.fromkeys((*(rule.id for rule in options.channels), *options.listed_channel_ids))
        if each not in there
        and not await _exists(rest, "look up a channel", compile_route(routes.GET_CHANNEL, channel=each))
    ]
    return msgspec.structs.replace(found, lost_members=tuple(lost_members), lost_channels=tuple(lost_channels))


async def _fetch_application(rest: HikariRest) -> RawApplication:
    # hikari's own route, below /oauth2, leaves out the flags (Discord's reference, "Get Current Bot Application
    # Information").
    route = routes.Route("GET", "/applications/@me").compile()
    try:
        return await rest.send_and_parse("look up the application", route, RawApplication)
    except errors.ChatUnauthorizedError:
        raise errors.ConfigError(LOGIN_REFUSED) from None
    except errors.ChatNotFoundError:
        raise errors.ConfigError(NO_API) from None


async def _fetch_server(rest: HikariRest, guild_id: GuildId, bot_id: UserId) -> ServerSnapshot | None:
    what = f"look at server {guild_id}"
    try:
        guild = await rest.send_and_parse(what, compile_route(routes.GET_GUILD, guild=guild_id), _RawGuildName)
        member = await rest.send_and_parse(
            what, compile_route(routes.GET_GUILD_MEMBER, guild=guild_id, user=bot_id), RawMember
        )
    except errors.ChatRefusedError:
        return None
    roles = await rest.send_and_parse(what, compile_route(routes.GET_GUILD_ROLES, guild=guild_id), list[Any])
    channels = await rest.send_and_parse(what, compile_route(routes.GET_GUILD_CHANNELS, guild=guild_id), list[Any])
    return ServerSnapshot(
        id=guild.id,
        name=guild.name,
        roles={role.id: role for role in parse_items(roles, NamedRole)},
        channels=tuple(parse_items(channels, NamedChannel)),
        bot_id=bot_id,
        held=member.role_ids or (),
    )


async def _exists(rest: HikariRest, what: str, route: routes.CompiledRoute) -> bool:
    try:
        await rest.send_request(what, route)
    except errors.ChatRefusedError:
        return False
    return True
