"""What stands between intern and its server: settings and permissions, looked at through REST. asyncio only.

Changes nothing on Discord. The findings come in the order in which to mend them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from anyio.to_thread import run_sync
from hikari.internal import routes
from msgspec import Struct

from intern.core.errors import ChatNotFoundError, ChatRefusedError, ChatUnauthorizedError, ConfigError
from intern.core.ids import GuildId, RoleId, UserId
from intern.core.messages import Channel
from intern.core.progress import tell
from intern.platforms.discord.audience import (
    ADMINISTRATOR,
    READ_MESSAGE_HISTORY,
    VIEW_CHANNEL,
    RawPermissions,
    RawRole,
    may_read,
    permissions,
)
from intern.platforms.discord.payloads import FORUMS, RawMember, ids, read, readable
from intern.platforms.discord.rest import LOGIN_REFUSED, HikariRest
from intern.service.probing import NAMED_AT_MOST, Finding, LocalChecks, ask_endpoints, good
from intern.settings.loading import Settings

# Bits of Discord's reference, "Permissions".
SEND_MESSAGES: Final = 1 << 11
MENTION_EVERYONE: Final = 1 << 17
CREATE_PUBLIC_THREADS: Final = 1 << 35
SEND_MESSAGES_IN_THREADS: Final = 1 << 38

_NAMES: Final[Mapping[int, str]] = {
    VIEW_CHANNEL: "View Channel",
    READ_MESSAGE_HISTORY: "Read Message History",
    CREATE_PUBLIC_THREADS: "Create Public Threads",
    SEND_MESSAGES_IN_THREADS: "Send Messages in Threads",
    SEND_MESSAGES: "Send Messages",
    MENTION_EVERYONE: "Mention Everyone, Here, and All Roles",
}
_TO_LISTEN: Final = VIEW_CHANNEL | READ_MESSAGE_HISTORY
_TO_ANSWER: Final = _TO_LISTEN | SEND_MESSAGES_IN_THREADS
WANTED: Final = _TO_ANSWER | CREATE_PUBLIC_THREADS | SEND_MESSAGES
"""The least that does all: Send Messages is only for sharing an answer to /ask."""

# Application flags: the Message Content intent is switched on, for a verified bot and for any other.
_MESSAGE_CONTENT: Final = 1 << 18 | 1 << 19
# Where threads can be made, and so answers be given: text, announcements, forums and media channels.
_TEXT: Final = frozenset({0, 5})

_Kind = TypeVar("_Kind")


class Report(Struct, frozen=True, kw_only=True):
    """All that was looked at."""

    ok: bool
    """There is nothing to do."""
    next: str
    """The one thing to do now."""
    invite: str
    """The link that puts intern on a server, with no more permissions than it needs."""
    findings: tuple[Finding, ...]


async def examine(settings: Settings) -> Report:
    """Look at everything, and ask each model one question; at Discord only with a token.

    Raises ConfigError for a token that is wrong, ChatUnavailableError where Discord cannot be asked.
    """
    if not settings.discord.token:
        looked = LocalChecks(settings)
        findings = [looked.model(), *await ask_endpoints(settings), *looked.prices(), *await run_sync(looked.folder)]
        # Last: what is damaged is worse than what is not set up yet.
        findings.append(
            Finding(
                level="todo",
                what="Discord was not looked at, for there is no token",
                do="put the bot's token in INTERN__DISCORD__TOKEN or, as discord.token, in intern.toml",
            )
        )
        return _report(findings, "")
    async with HikariRest(settings.discord, max_retries=1) as rest:
        return await _Doctor(settings, rest).examine()


def _report(findings: Sequence[Finding], invite: str) -> Report:
    todo = next((finding.do for finding in findings if finding.level == "todo"), "")
    return Report(
        ok=not todo, next=todo or "nothing; `intern run` can do its work", invite=invite, findings=tuple(findings)
    )


def invite_link(application_id: str, site: str) -> str:
    """The link by which a server's manager adds intern."""
    return f"{site}/oauth2/authorize?client_id={application_id}&scope=bot+applications.commands&permissions={WANTED}"


class _Application(Struct, frozen=True):
    id: str
    flags: int = 0


class _Guild(Struct, frozen=True):
    id: GuildId
    name: str = ""


class _Role(RawRole, frozen=True):
    name: str = ""
    mentionable: bool = False


class _Channel(RawPermissions, frozen=True):
    type: int = -1
    name: str = ""


class _Server(Struct, frozen=True):
    """A server, as far as it was shown to us."""

    guild: _Guild
    roles: Mapping[RoleId, _Role]
    channels: tuple[_Channel, ...]
    bot_id: UserId
    held: tuple[RoleId, ...]
    """The bot's roles."""

    def ours(self, channel: _Channel | None = None) -> int:
        """What the bot may do in a channel, or on the server but for what its channels change."""
        overwrites = channel.overwrites if channel else ()
        return permissions(self.guild.id, self._bits, overwrites, held=self.held, member=self.bot_id)

    def is_public(self, channel: _Channel) -> bool:
        """Whether everyone can read there."""
        return may_read(permissions(self.guild.id, self._bits, channel.overwrites), channel.type)

    @property
    def _bits(self) -> Mapping[RoleId, int]:
        return {role_id: role.bits for role_id, role in self.roles.items()}


class _Doctor:
    def __init__(self, settings: Settings, rest: HikariRest) -> None:
        self._settings = settings
        self._discord = settings.discord
        self._rest = rest

    async def examine(self) -> Report:
        application = await self._application()
        invite = invite_link(application.id, self._discord.site)
        bot_id = (await self._rest.known()).bot_id
        servers: list[tuple[GuildId, _Server | None]] = []
        for guild_id in self._discord.guild_ids:
            tell("Looking at {total} servers", len(servers), len(self._discord.guild_ids))
            servers.append((guild_id, await self._server(guild_id, bot_id)))
        joined = [server for _, server in servers if server is not None]
        # What is not found may be on a server that is not shown to us.
        complete = bool(joined) and len(joined) == len(servers)
        looked = LocalChecks(self._settings)
        findings = [
            good("Discord accepts the token"),
            _intent(application),
            *self._guilds(servers, invite),
            looked.model(),
            *await ask_endpoints(self._settings),
            *looked.prices(),
            *await run_sync(looked.folder),
            *(await self._team(joined) if complete else ()),
            *(found for server in joined for found in self._permissions(server, invite)),
            *(await self._channels(joined) if complete else ()),
            *(self._handoff(joined) if complete else ()),
        ]
        return _report(findings, invite)

    # What is asked

    async def _get(self, what: str, route: routes.CompiledRoute, kind: type[_Kind]) -> _Kind:
        return read(what, await self._rest.ask(what, route), kind)

    async def _application(self) -> _Application:
        # hikari's own route, below /oauth2, leaves out the flags (Discord's reference, "Get Current Bot Application
        # Information").
        route = routes.Route("GET", "/applications/@me").compile()
        try:
            return await self._get("look up the application", route, _Application)
        except ChatUnauthorizedError:
            raise ConfigError(LOGIN_REFUSED) from None
        except ChatNotFoundError:
            raise ConfigError(
                "discord.rest_url: no Discord API answers there; it should be https://discord.com/api/v10"
            ) from None

    async def _server(self, guild_id: GuildId, bot_id: UserId) -> _Server | None:
        """None where the bot is not on it."""
        where, what = ids(guild=guild_id), f"look at server {guild_id}"
        try:
            guild = await self._get(what, routes.GET_GUILD.compile(**where), _Guild)
            member = routes.GET_GUILD_MEMBER.compile(**where, **ids(user=bot_id))
            held = (await self._get(what, member, RawMember)).role_ids or ()
        except ChatRefusedError:
            return None
        roles = await self._get(what, routes.GET_GUILD_ROLES.compile(**where), list[Any])
        channels = await self._get(what, routes.GET_GUILD_CHANNELS.compile(**where), list[Any])
        return _Server(
            guild=guild,
            roles={role.id: role for role in readable(roles, _Role)},
            channels=tuple(readable(channels, _Channel)),
            bot_id=bot_id,
            held=held,
        )

    async def _exists(self, what: str, route: routes.CompiledRoute) -> bool:
        try:
            await self._rest.ask(what, route)
        except ChatRefusedError:
            return False
        return True

    # What is made of it

    def _guilds(self, servers: Iterable[tuple[GuildId, _Server | None]], invite: str) -> Iterator[Finding]:
        if not self._discord.guild_ids:
            yield Finding(
                level="todo",
                what="no server is named",
                do='set discord.guild_ids to the ids of your servers, as in guild_ids = ["123…"]',
            )
        for guild_id, server in servers:
            if server is None:
                yield Finding(
                    level="todo",
                    what=f"the bot is not on server {guild_id}",
                    do=f"open this link and choose it: {invite}",
                )
            else:
                yield good(f"the bot is on {server.guild.name or guild_id}")

    async def _team(self, servers: Sequence[_Server]) -> list[Finding]:
        if not (self._discord.team_role_ids or self._discord.team_member_ids):
            mend = "set discord.team_role_ids or discord.team_member_ids, or nothing is ever learned"
            return [Finding(level="todo", what="no team is set", do=mend)]
        lost = [
            _lost("role", role_id, "discord.team_role_ids")
            for role_id in self._discord.team_role_ids
            if not any(role_id in server.roles for server in servers)
        ]
        for user_id in self._discord.team_member_ids:
            asked = [ids(guild=server.guild.id, user=user_id) for server in servers]
            if not any([await self._is_member(where) for where in asked]):
                lost.append(_lost("member", user_id, "discord.team_member_ids"))
        return lost or [good("the team is there")]

    async def _is_member(self, where: Mapping[str, str]) -> bool:
        return await self._exists(f"look up member {where['user']}", routes.GET_GUILD_MEMBER.compile(**where))

    async def _channels(self, servers: Iterable[_Server]) -> list[Finding]:
        there = {channel.id for server in servers for channel in server.channels}
        named = [(rule.id, "discord.channels") for rule in self._discord.channels]
        named += [(channel_id, "discord.listed_channel_ids") for channel_id in self._discord.listed_channel_ids]
        # Threads are in no server's list.
        return [
            _lost("channel", channel_id, key)
            for channel_id, key in named
            if channel_id not in there
            and not await self._exists("look up a channel", routes.GET_CHANNEL.compile(**ids(channel=channel_id)))
        ]

    def _handoff(self, servers: Sequence[_Server]) -> list[Finding]:
        role_id = self._discord.handoff_role_id
        if not role_id:
            return []
        found = next(((server, server.roles[role_id]) for server in servers if role_id in server.roles), None)
        if found is None:
            return [_lost("role", role_id, "discord.handoff_role_id")]
        server, role = found
        if role.mentionable or server.ours() & MENTION_EVERYONE:
            return [good(f"{role.name} can be mentioned")]
        mend = f"allow anyone to mention the role {role.name}, in the settings of {server.guild.name}, Roles"
        return [Finding(level="todo", what=f"the bot may not mention {role.name}", do=mend)]

    def _permissions(self, server: _Server, invite: str) -> Iterator[Finding]:
        lacking: dict[int, list[_Channel]] = {}
        wishes: list[_Channel] = []
        seen = 0
        for channel in server.channels:
            needed = self._needed(server, channel)
            seen += bool(needed)
            ours = server.ours(channel)
            if missing := needed & ~ours:
                lacking.setdefault(missing, []).append(channel)
            if needed & SEND_MESSAGES_IN_THREADS and channel.type in _TEXT and not ours & SEND_MESSAGES:
                wishes.append(channel)
        for missing, channels in lacking.items():
            everywhere = missing & ~server.ours()
            mend = f"open this link again, and choose {server.guild.name}: {invite}"
            if not everywhere:
                mend = f"allow it for the bot's role in the settings of {_named(channels)}"
            yield Finding(level="todo", what=f"{_words(missing)} is missing in {_named(channels)}", do=mend)
        if wishes:
            what = f"Send Messages is missing in {_named(wishes)}: answers to /ask cannot be shared there"
            yield Finding(level="note", what=what)
        if server.ours() & ADMINISTRATOR:
            yield Finding(level="note", what=f"the bot is an administrator of {server.guild.name}, and need not be")
        if not seen:
            mend = "open a channel to everyone, or name private ones in discord.listed_channel_ids"
            yield Finding(
                level="todo", what=f"no channel of {server.guild.name} is open to everyone and not off", do=mend
            )
        elif not lacking:
            yield good(f"permissions suffice in {seen} channel{'s' if seen > 1 else ''} of {server.guild.name}")

    def _needed(self, server: _Server, channel: _Channel) -> int:
        """The permissions that the bot needs in a channel; 0 where it keeps out."""
        if channel.type not in _TEXT | FORUMS:
            return 0
        if not server.is_public(channel) and channel.id not in self._discord.listed_channel_ids:
            return 0
        mode = self._settings.conversations.mode_of(Channel(id=channel.id, guild_id=server.guild.id, kind="channel"))
        match mode:
            case "off":
                return 0
            case "capture_only":
                return _TO_LISTEN
            case "answer" | "mention_only":
                return _TO_ANSWER | (CREATE_PUBLIC_THREADS if channel.type in _TEXT else 0)


def _intent(application: _Application) -> Finding:
    if application.flags & _MESSAGE_CONTENT:
        return good("the Message Content Intent is on")
    return Finding(
        level="todo",
        what="the bot may not read messages",
        do="switch on the Message Content Intent: https://discord.com/developers/applications/"
        f"{application.id}/bot, Privileged Gateway Intents",
    )


def _lost(kind: str, snowflake: str, key: str) -> Finding:
    return Finding(
        level="todo",
        what=f"the bot finds no {kind} {snowflake} on its servers",
        do=f"correct or remove {snowflake} in {key}",
    )


def _named(channels: Sequence[_Channel]) -> str:
    shown = ", ".join(f"#{channel.name or channel.id}" for channel in channels[:NAMED_AT_MOST])
    more = len(channels) - NAMED_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown


def _words(bits: int) -> str:
    return ", ".join(name for bit, name in _NAMES.items() if bits & bit)
