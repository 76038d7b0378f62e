"""The servers that the bot serves, and the team of each. A role of one server means nothing on another."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from hikari.applications import get_token_id
from msgspec.structs import replace

from intern.core.errors import ConfigError
from intern.core.flow import GuildJoined
from intern.core.ids import GuildId, RoleId, UserId
from intern.core.text.encoding import replace_surrogates
from intern.platforms.discord.messages import Team
from intern.platforms.discord.options import NO_ACCOUNT, DiscordOptions
from intern.platforms.discord.payloads import RawGuild

_DISCORD: Final = "https://discord.com"
_NOT_A_BOTS: Final = (
    "discord.token is no bot token: copy the whole of it from the developer portal (your application, Bot, "
    "Reset Token), without the word Bot before it"
)


class ServerRegistry:
    """The servers of one bot account, each with its team. They can be added, changed and dropped at any time."""

    def __init__(self, bot_id: UserId, options: DiscordOptions) -> None:
        self.options = options
        self._own_roles: dict[GuildId, frozenset[RoleId]] = {}
        # On a server that is not served, and in private, the options name the team members, but no role counts.
        self.elsewhere = Team(bot_id=bot_id, member_ids=frozenset(options.team_member_ids))
        self._teams: dict[GuildId, Team] = {}
        for guild_id in options.guild_ids:
            self.serve(guild_id, member_ids=options.team_member_ids, role_ids=options.team_role_ids)

    @property
    def bot_id(self) -> UserId:
        """The bot's own id. Until Discord sends it, it may be unknown (""), or the one in the token."""
        return self.elsewhere.bot_id

    def __contains__(self, guild_id: object) -> bool:
        return guild_id in self._teams

    def team_for(self, guild_id: GuildId | None) -> Team:
        """Return the team of a server, or of private messages."""
        return self.elsewhere if guild_id is None else self._teams.get(guild_id, self.elsewhere)

    def serve(self, guild_id: GuildId, *, member_ids: Collection[UserId], role_ids: Collection[RoleId]) -> None:
        """Serve a server from now on, or with another team."""
        self._teams[guild_id] = replace(
            self.elsewhere,
            member_ids=frozenset(member_ids),
            role_ids=frozenset(role_ids),
            bot_roles=self._own_roles.get(guild_id, frozenset()),
        )

    def drop(self, guild_id: GuildId) -> None:
        """Stop serving a server."""
        self._teams.pop(guild_id, None)

    def find_missing(self, there: Collection[GuildId]) -> list[GuildId]:
        """Return the servers that are served, but for these."""
        return [guild_id for guild_id in self._teams if guild_id not in there]

    def set_bot_id(self, bot_id: UserId) -> None:
        """Store the bot's own id."""
        self.elsewhere = replace(self.elsewhere, bot_id=bot_id)
        self._teams = {guild_id: replace(team, bot_id=bot_id) for guild_id, team in self._teams.items()}

    def note_own_roles(self, guild_id: GuildId, roles: frozenset[RoleId]) -> None:
        """Store the bot's own roles on a server."""
        self._own_roles[guild_id] = roles
        if team := self._teams.get(guild_id):
            self._teams[guild_id] = replace(team, bot_roles=roles)


def read_guild_joined(told: RawGuild) -> GuildJoined:
    """Read the greeting's place, name and language from a GUILD_CREATE."""
    return GuildJoined(
        guild_id=told.id,
        name=replace_surrogates(told.name or ""),
        greets_in=told.system_channel_id,
        locale=told.preferred_locale or "",
    )


def create_server_registry(options: DiscordOptions) -> ServerRegistry:
    """Return the servers of the options; the bot's id is read from its token, if that holds it.

    Raises ConfigError for a text that is no token.
    """
    token = options.token.reveal().strip()
    if not token:
        raise ConfigError(NO_ACCOUNT)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(_NOT_A_BOTS)
    try:
        bot_id = UserId(str(get_token_id(token)))
    except ValueError:
        if options.site == _DISCORD:
            raise ConfigError(_NOT_A_BOTS) from None  # its message may hold a part of the token
        bot_id = UserId("")  # other servers have tokens of another form, and give the bot's id on request
    return ServerRegistry(bot_id, options)
