"""The operator's settings of Discord itself: the table `[discord]`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from intern.chat.options import ConversationOptions
from intern.core.errors import ConfigError
from intern.core.ids import ChannelId, GuildId, RoleId, UserId
from intern.core.text.secret_values import Secret, settings_repr

NO_ACCOUNT = "discord.token is not set: put the bot's token in INTERN__DISCORD__TOKEN or in intern.toml"
NO_SERVERS = 'discord.guild_ids is not set: list the ids of your servers, as in guild_ids = ["123…"]'


_HOST = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)+")


class ShardChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """Some of a bot's shards, for this process."""

    ids: tuple[int, ...]
    """The shards that this process connects, from 0 to `of` - 1."""
    of: Annotated[int, Meta(ge=1, le=100_000)]
    """The number of all shards of the bot; the same number in every process."""

    def __post_init__(self) -> None:
        if not self.ids:
            raise ValueError("ids is empty: name at least one shard, as in { ids = [0], of = 1 }")
        if beyond := [each for each in self.ids if not 0 <= each < self.of]:
            raise ValueError(f"ids has {beyond[0]}, but shards are numbered from 0 to {self.of - 1} (of = {self.of})")
        if len(set(self.ids)) < len(self.ids):
            raise ValueError("ids must name each shard once")


def shard_index(guild_id: GuildId, of: int) -> int:
    """Return the shard that Discord sends the events of a server to."""
    return (int(guild_id) >> 22) % max(1, of)


def shard_advice(count: int, recommended: int) -> str:
    """Return advice if Discord recommends more shards than there are; empty if it does not."""
    if not 0 < count < recommended:
        return ""
    return (
        f"Discord recommends {recommended} shards for this bot, and it has {count}: set discord.shards to "
        f'"auto" or of = {recommended}, and restart every process of this bot'
    )


class DiscordOptions(ConversationOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bot account, the servers it serves, and their team."""

    token: Secret = Secret()
    guild_ids: tuple[GuildId, ...] = ()
    """Other servers are ignored."""
    team_member_ids: tuple[UserId, ...] = ()
    team_role_ids: tuple[RoleId, ...] = ()
    """Members with one of these roles are team members, too."""
    listed_channel_ids: tuple[ChannelId, ...] = ()
    """Channels that not everyone can read, and threads in them or private ones, where intern works all the same."""
    max_questions_per_user_per_hour: Annotated[int, Meta(ge=0)] = 20
    """Batches of one member that go to a model within an hour, whether or not they turn out to be questions; 0: no
    limit."""
    read_files: bool = True
    """Whether the text files beside messages are read."""
    files_per_hour: Annotated[int, Meta(ge=0)] = 20
    """Files of one member that are read of the messages of an hour; 0: no limit."""
    paste_hosts: tuple[str, ...] = ()
    """Hosts of paste sites, whose texts are read like files of the message that links them."""
    first_lookback: Annotated[float, Meta(ge=0, le=31_536_000)] = 0.0
    """Seconds of history that are read when a server is met for the first time."""
    handoff_role_id: RoleId = RoleId("")
    """The one role that may ever be mentioned, and only where a question is handed over to the team."""
    shards: str | ShardChoice = "auto"
    """The shards of the gateway that this process connects: "auto" (all, as many as Discord recommends), or some of a
    number, such as { ids = [0, 1], of = 12 }. Only a bot on more than 2,500 servers needs several."""
    rest_url: str = "https://discord.com/api/v10"
    """Discord, or another server that speaks as Discord does. The gateway's own address is requested there."""

    def __repr__(self) -> str:
        return settings_repr(self)

    def __post_init__(self) -> None:
        for name in ("guild_ids", "team_member_ids", "team_role_ids", "listed_channel_ids"):
            _check_snowflakes(name, getattr(self, name))
        _check_snowflakes("channels", (rule.id for rule in self.channels))
        if len({rule.id for rule in self.channels}) < len(self.channels):
            raise ValueError("channels must name each channel once")
        if not all(map(_HOST.fullmatch, self.paste_hosts)):
            raise ValueError('paste_hosts must hold names of hosts in small letters, as in "paste.example.org"')
        if self.handoff_role_id:
            _check_snowflakes("handoff_role_id", (self.handoff_role_id,))
        if isinstance(self.shards, str) and self.shards != "auto":
            raise ValueError('shards must be "auto" or a table, as in { ids = [0, 1], of = 12 }')
        if not self.rest_url.startswith(("http://", "https://")):
            raise ValueError("rest_url must begin with https:// (or http://)")

    def require_shards(self) -> None:
        """Raise ConfigError if the shards of this process leave out one of its servers."""
        if isinstance(self.shards, ShardChoice):
            for guild_id in self.guild_ids:
                if (shard := shard_index(guild_id, self.shards.of)) not in self.shards.ids:
                    raise ConfigError(
                        f"discord.shards leaves out shard {shard}, which server {guild_id} of discord.guild_ids is on: "
                        f'add {shard} to discord.shards.ids, or set discord.shards = "auto"'
                    )

    @property
    def site(self) -> str:
        """The beginning of links to messages and invitations: the server of `rest_url`."""
        return self.rest_url.partition("/api")[0].rstrip("/")


class HostingOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each server that invites the bot is a community by itself, with these limits unless it has its own."""

    enabled: bool = False
    open_communities: Annotated[int, Meta(ge=1, le=100_000)] = 200
    """At the same time; beyond, those without an event for longest are closed as soon as they have no work."""
    questions_per_day: Annotated[int, Meta(ge=0)] = 0
    """Batches that go to a model on a day (UTC); 0: no limit."""
    sources: Annotated[int, Meta(ge=0)] = 0
    """Addresses of documents; 0: no limit."""
    cost_per_day: Annotated[float, Meta(ge=0)] = 0.0
    """In the currency of `llm.prices`; 0: no limit."""


def _check_snowflakes(name: str, snowflakes: Iterable[str]) -> None:
    if not all(each.isascii() and each.isdigit() and len(each) <= 20 for each in snowflakes):
        # The value is not repeated: it may be a token in the wrong place.
        raise ValueError(f"{name} must hold Discord's ids, each of 17 to 20 digits")
