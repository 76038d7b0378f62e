"""Servers, channels and rights, as `intern doctor` checks them."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final

import msgspec
from hikari.internal import routes
from msgspec import Struct

from intern.core import errors
from intern.core.ids import ChannelId, GuildId, RoleId, UserId
from intern.core.progress import report_progress
from intern.platforms.discord import payloads
from intern.platforms.discord.options import DiscordOptions
from intern.platforms.discord.permissions import compute_permissions, may_read
from intern.platforms.discord.rest import LOGIN_REFUSED, NO_API, HikariRest

# Application flags: the Message Content intent is switched on, for a verified bot and for any other.
_MESSAGE_CONTENT: Final = 1 << 18 | 1 << 19


class NamedRole(payloads.RawRole, frozen=True):
    """A role, for a report."""

    name: str = ""
    mentionable: bool = False


class NamedChannel(payloads.RawPermissions, frozen=True):
    """A channel, for a report."""

    type: int = -1
    name: str = ""

    @property
    def holds_answers(self) -> bool:
        """It can hold threads, and so answers: text, announcements, forums and media channels."""
        return self.type in payloads.THREAD_PARENTS

    @property
    def is_text(self) -> bool:
        """A channel for text or announcements."""
        return self.type in {0, 5}


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
        what, route = f"look up member {user_id}", routes.GET_GUILD_MEMBER
        if not any([await _exists(rest.send_request(what, route, guild=each, user=user_id)) for each in servers]):
            lost_members.append(user_id)
    there = {channel.id for server in found.joined for channel in server.channels}
    # Threads are in no server's list.
    lost_channels = [
        each
        for each in dict.fromkeys((*(rule.id for rule in options.channels), *options.listed_channel_ids))
        if each not in there
        and not await _exists(rest.send_request("look up a channel", routes.GET_CHANNEL, channel=each))
    ]
    return msgspec.structs.replace(found, lost_members=tuple(lost_members), lost_channels=tuple(lost_channels))


async def _fetch_application(rest: HikariRest) -> payloads.RawApplication:
    # hikari's own route, below /oauth2, leaves out the flags (Discord's reference, "Get Current Bot Application
    # Information").
    route = routes.Route("GET", "/applications/@me")
    try:
        return await rest.send_and_parse("look up the application", route, payloads.RawApplication)
    except errors.ChatUnauthorizedError:
        raise errors.ConfigError(LOGIN_REFUSED) from None
    except errors.ChatNotFoundError:
        raise errors.ConfigError(NO_API) from None


async def _fetch_server(rest: HikariRest, guild_id: GuildId, bot_id: UserId) -> ServerSnapshot | None:
    what = f"look at server {guild_id}"
    try:
        guild = await rest.send_and_parse(what, routes.GET_GUILD, payloads.RawGuild, guild=guild_id)
        route = routes.GET_GUILD_MEMBER
        member = await rest.send_and_parse(what, route, payloads.RawMember, guild=guild_id, user=bot_id)
    except errors.ChatRefusedError:
        return None
    roles = await rest.send_and_parse(what, routes.GET_GUILD_ROLES, list[Any], guild=guild_id)
    channels = await rest.send_and_parse(what, routes.GET_GUILD_CHANNELS, list[Any], guild=guild_id)
    return ServerSnapshot(
        id=guild.id,
        name=guild.name or "",
        roles={role.id: role for role in payloads.parse_items(roles, NamedRole)},
        channels=tuple(payloads.parse_items(channels, NamedChannel)),
        bot_id=bot_id,
        held=member.role_ids or (),
    )


async def _exists(request: Awaitable[object]) -> bool:
    try:
        await request
    except errors.ChatRefusedError:
        return False
    return True
