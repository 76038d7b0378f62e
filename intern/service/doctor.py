"""A check of the settings and of the bot's permissions on its servers. It changes nothing. asyncio only.

The findings come in the order in which to correct them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from anyio.to_thread import run_sync
from msgspec import Struct

from intern.core.messages import Channel
from intern.platforms.discord.audience import (
    ADMINISTRATOR,
    CREATE_PUBLIC_THREADS,
    MENTION_EVERYONE,
    READ_MESSAGE_HISTORY,
    SEND_MESSAGES,
    SEND_MESSAGES_IN_THREADS,
    VIEW_CHANNEL,
    NamedChannel,
    Server,
    SetUp,
    look,
)
from intern.service.probing import NAMED_AT_MOST, Finding, LocalChecks, ask_endpoints, good
from intern.settings.loading import Settings

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
    return await _Doctor(settings, await look(settings.discord)).examine()


def _report(findings: Sequence[Finding], invite: str) -> Report:
    todo = next((finding.do for finding in findings if finding.level == "todo"), "")
    return Report(
        ok=not todo, next=todo or "nothing; `intern run` can do its work", invite=invite, findings=tuple(findings)
    )


def invite_link(application_id: str, site: str) -> str:
    """The link by which a server's manager adds intern."""
    return f"{site}/oauth2/authorize?client_id={application_id}&scope=bot+applications.commands&permissions={WANTED}"


class _Doctor:
    def __init__(self, settings: Settings, found: SetUp) -> None:
        self._settings = settings
        self._discord = settings.discord
        self._found = found

    async def examine(self) -> Report:
        invite = invite_link(self._found.application_id, self._discord.site)
        joined, complete = self._found.joined, self._found.is_complete
        looked = LocalChecks(self._settings)
        findings = [
            good("Discord accepts the token"),
            self._intent(),
            *self._guilds(invite),
            looked.model(),
            *await ask_endpoints(self._settings),
            *looked.prices(),
            *await run_sync(looked.folder),
            *(self._team(joined) if complete else ()),
            *(found for server in joined for found in self._permissions(server, invite)),
            *(self._channels() if complete else ()),
            *(self._handoff(joined) if complete else ()),
        ]
        return _report(findings, invite)

    def _intent(self) -> Finding:
        if self._found.reads_messages:
            return good("the Message Content Intent is on")
        return Finding(
            level="todo",
            what="the bot may not read messages",
            do="switch on the Message Content Intent: https://discord.com/developers/applications/"
            f"{self._found.application_id}/bot, Privileged Gateway Intents",
        )

    def _guilds(self, invite: str) -> Iterator[Finding]:
        if not self._discord.guild_ids:
            yield Finding(
                level="todo",
                what="no server is named",
                do='set discord.guild_ids to the ids of your servers, as in guild_ids = ["123…"]',
            )
        for guild_id, server in self._found.servers.items():
            if server is None:
                yield Finding(
                    level="todo",
                    what=f"the bot is not on server {guild_id}",
                    do=f"open this link and choose it: {invite}",
                )
            else:
                yield good(f"the bot is on {server.name or guild_id}")

    def _team(self, servers: Sequence[Server]) -> list[Finding]:
        if not (self._discord.team_role_ids or self._discord.team_member_ids):
            mend = "set discord.team_role_ids or discord.team_member_ids, or nothing is ever learned"
            return [Finding(level="todo", what="no team is set", do=mend)]
        lost = [
            _lost("role", role_id, "discord.team_role_ids")
            for role_id in self._discord.team_role_ids
            if not any(role_id in server.roles for server in servers)
        ]
        lost += [_lost("member", user_id, "discord.team_member_ids") for user_id in self._found.lost_members]
        return lost or [good("the team is there")]

    def _channels(self) -> list[Finding]:
        named = [(rule.id, "discord.channels") for rule in self._discord.channels]
        named += [(channel_id, "discord.listed_channel_ids") for channel_id in self._discord.listed_channel_ids]
        return [
            _lost("channel", channel_id, key) for channel_id, key in named if channel_id in self._found.lost_channels
        ]

    def _handoff(self, servers: Sequence[Server]) -> list[Finding]:
        role_id = self._discord.handoff_role_id
        if not role_id:
            return []
        found = next(((server, server.roles[role_id]) for server in servers if role_id in server.roles), None)
        if found is None:
            return [_lost("role", role_id, "discord.handoff_role_id")]
        server, role = found
        if role.mentionable or server.ours() & MENTION_EVERYONE:
            return [good(f"{role.name} can be mentioned")]
        mend = f"allow anyone to mention the role {role.name}, in the settings of {server.name}, Roles"
        return [Finding(level="todo", what=f"the bot may not mention {role.name}", do=mend)]

    def _permissions(self, server: Server, invite: str) -> Iterator[Finding]:
        lacking: dict[int, list[NamedChannel]] = {}
        wishes: list[NamedChannel] = []
        seen = 0
        for channel in server.channels:
            needed = self._needed(server, channel)
            seen += bool(needed)
            ours = server.ours(channel)
            if missing := needed & ~ours:
                lacking.setdefault(missing, []).append(channel)
            if needed & SEND_MESSAGES_IN_THREADS and channel.is_text and not ours & SEND_MESSAGES:
                wishes.append(channel)
        for missing, channels in lacking.items():
            everywhere = missing & ~server.ours()
            mend = f"open this link again, and choose {server.name}: {invite}"
            if not everywhere:
                mend = f"allow it for the bot's role in the settings of {_named(channels)}"
            yield Finding(level="todo", what=f"{_words(missing)} is missing in {_named(channels)}", do=mend)
        if wishes:
            what = f"Send Messages is missing in {_named(wishes)}: answers to /ask cannot be shared there"
            yield Finding(level="note", what=what)
        if server.ours() & ADMINISTRATOR:
            yield Finding(level="note", what=f"the bot is an administrator of {server.name}, and need not be")
        if not seen:
            mend = "open a channel to everyone, or name private ones in discord.listed_channel_ids"
            yield Finding(level="todo", what=f"no channel of {server.name} is open to everyone and not off", do=mend)
        elif not lacking:
            yield good(f"permissions suffice in {seen} channel{'s' if seen > 1 else ''} of {server.name}")

    def _needed(self, server: Server, channel: NamedChannel) -> int:
        """The permissions that the bot needs in a channel; 0 where it keeps out."""
        if not channel.holds_answers:
            return 0
        if not server.is_public(channel) and channel.id not in self._discord.listed_channel_ids:
            return 0
        mode = self._settings.conversations.mode_of(Channel(id=channel.id, guild_id=server.id, kind="channel"))
        match mode:
            case "off":
                return 0
            case "capture_only":
                return _TO_LISTEN
            case "answer" | "mention_only":
                return _TO_ANSWER | (CREATE_PUBLIC_THREADS if channel.is_text else 0)


def _lost(kind: str, lost_id: str, key: str) -> Finding:
    return Finding(
        level="todo",
        what=f"the bot finds no {kind} {lost_id} on its servers",
        do=f"correct or remove {lost_id} in {key}",
    )


def _named(channels: Sequence[NamedChannel]) -> str:
    shown = ", ".join(f"#{channel.name or channel.id}" for channel in channels[:NAMED_AT_MOST])
    more = len(channels) - NAMED_AT_MOST
    return f"{shown} and {more} more" if more > 0 else shown


def _words(bits: int) -> str:
    return ", ".join(name for bit, name in _NAMES.items() if bits & bit)
