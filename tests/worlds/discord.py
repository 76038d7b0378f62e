"""The options with which a bot works on a double of Discord."""

from __future__ import annotations

from typing import Any

from intern.core.ids import GuildId, RoleId
from intern.core.text.secret_values import Secret
from intern.platforms.discord.options import DiscordOptions
from tests.double.discord import DiscordDouble


def make_section(discord: DiscordDouble, **over: Any) -> dict[str, Any]:
    """Return the table `[discord]` of the settings of a bot on this server, whose team has the role `Team`."""
    return {
        "token": discord.token,
        "rest_url": discord.rest_url,
        "guild_ids": [discord.guild.id],
        "team_role_ids": [discord.team_role.id],
        **over,
    }


def make_options(discord: DiscordDouble, **over: Any) -> DiscordOptions:
    """Return the same as options of the adapter."""
    chosen: dict[str, Any] = {
        "token": Secret(discord.token),
        "rest_url": discord.rest_url,
        "guild_ids": (GuildId(discord.guild.id),),
        "team_role_ids": (RoleId(discord.team_role.id),),
    }
    return DiscordOptions(**(chosen | over))
