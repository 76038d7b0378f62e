"""What exists in the pretended Discord: plain structs, and the ids that order them."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]

DISCORD_EPOCH = datetime(2015, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(2024, 1, 1, tzinfo=UTC)  # when the default community was made: older than anything a test says

TEXT, PUBLIC_THREAD, FORUM = 0, 11, 15  # channel types
DEFAULT, THREAD_CREATED, REPLY, THREAD_STARTER = 0, 18, 19, 21  # message types
HAS_THREAD = 1 << 5  # message flag
VIEW_CHANNEL, READ_MESSAGE_HISTORY = 1 << 10, 1 << 16  # permissions


def utc_now() -> datetime:
    return datetime.now(UTC)


class Snowflakes:
    """Ids that are unique and carry their time; within a millisecond they keep the order of asking."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._counter = itertools.count()

    def next(self, at: datetime | None = None) -> str:
        milliseconds = ((at or self._now()) - DISCORD_EPOCH) // timedelta(milliseconds=1)
        return str((milliseconds << 22) | (next(self._counter) & 0x3FFFFF))


@dataclass(kw_only=True, slots=True)
class User:
    id: str
    username: str
    bot: bool = False

    @property
    def mention(self) -> str:
        return f"<@{self.id}>"


@dataclass(kw_only=True, slots=True)
class Role:
    id: str
    name: str
    permissions: int = VIEW_CHANNEL | READ_MESSAGE_HISTORY
    managed_by: str | None = None  # the bot that this role belongs to


@dataclass(kw_only=True, slots=True)
class Member:
    user: User
    roles: list[str] = field(default_factory=list[str])
    joined_at: datetime = LONG_AGO


@dataclass(kw_only=True, slots=True)
class Guild:
    id: str
    name: str
    owner_id: str
    roles: dict[str, Role] = field(default_factory=dict[str, Role])
    members: dict[str, Member] = field(default_factory=dict[str, Member])


@dataclass(kw_only=True, slots=True)
class Channel:
    """A text channel, a forum, or a thread (then `parent_id` is set)."""

    id: str
    guild_id: str
    type: int
    name: str
    made_at: datetime
    parent_id: str | None = None
    overwrites: list[Json] = field(default_factory=list[Json])
    last_message_id: str | None = None
    # Threads only:
    owner_id: str = ""
    archived: bool = False
    locked: bool = False
    archived_at: datetime = LONG_AGO
    auto_archive_duration: int = 1440
    message_count: int = 0
    joined: list[str] = field(default_factory=list[str])

    @property
    def is_thread(self) -> bool:
        return self.type == PUBLIC_THREAD


@dataclass(kw_only=True, slots=True)
class Message:
    id: str
    channel_id: str
    author: User
    content: str
    timestamp: datetime
    type: int = DEFAULT
    edited_timestamp: datetime | None = None
    flags: int = 0
    reference: Json | None = None
    attachments: list[Json] = field(default_factory=list[Json])
    embeds: list[Json] = field(default_factory=list[Json])
    components: list[Json] = field(default_factory=list[Json])
    mentions: list[str] = field(default_factory=list[str])  # who is really notified, after allowed_mentions
    mention_roles: list[str] = field(default_factory=list[str])
    mention_everyone: bool = False
    nonce: str | int | None = None
    webhook_id: str | None = None
    application_id: str | None = None
    reactions: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # emoji -> who


@dataclass(kw_only=True, slots=True)
class Application:
    id: str
    commands: list[Json] = field(default_factory=list[Json])


@dataclass(kw_only=True, slots=True)
class Interaction:
    """A command or button that somebody used, and what they were answered; `original` is what the bot may edit."""

    id: str
    token: str
    user: User
    channel_id: str
    at: datetime
    payload: Json
    callback: Json | None = None  # the body of the first response; None: nobody answered yet
    original: Message | None = None
    follow_ups: list[Message] = field(default_factory=list[Message])


class World:
    """All of it, with the small community that most tests need.

    One guild; the text channels `help` and `general`, the forum `forum`; the members alice and bob (community) and
    tess (team, by role); and the bot.
    """

    def __init__(self, now: Callable[[], datetime] = utc_now) -> None:
        self.now = now
        self.ids = Snowflakes(now)
        self.users: dict[str, User] = {}
        self.guilds: dict[str, Guild] = {}
        self.channels: dict[str, Channel] = {}
        self._messages: dict[str, dict[str, Message]] = {}
        self.interactions: dict[str, Interaction] = {}  # by token
        self.session_starts_left = 1000  # of 1,000 within a day
        self.session_starts_reset_after = 86_400.0  # seconds
        self.shards = 1  # recommended
        self.max_concurrency = 1

        self.bot = self.new_user("intern", bot=True)
        # A bot's user and its application have the same id, but for very old bots.
        self.application = Application(id=self.bot.id)
        name = base64.urlsafe_b64encode(self.bot.id.encode()).decode().rstrip("=")
        self.token = f"{name}.double.token"
        self.guild = self.new_guild("Community")
        self.help = self.new_channel("help")
        self.general = self.new_channel("general")
        self.forum = self.new_channel("forum", kind=FORUM)
        self.team_role = self.new_role("Team")
        self.alice = self.new_member("alice")
        self.bob = self.new_member("bob")
        self.tess = self.new_member("tess", roles=[self.team_role.id])

    def new_user(self, name: str, *, bot: bool = False) -> User:
        user = User(id=self.ids.next(LONG_AGO), username=name, bot=bot)
        self.users[user.id] = user
        return user

    def new_guild(self, name: str) -> Guild:
        """Make a guild; the bot is in it, with a role of its own."""
        owner = self.new_user(f"owner of {name}")
        # A millisecond apart, as a guild's shard comes from the time in its id.
        made_at = LONG_AGO + timedelta(milliseconds=len(self.guilds))
        guild = Guild(id=self.ids.next(made_at), name=name, owner_id=owner.id)
        self.guilds[guild.id] = guild
        guild.roles[guild.id] = Role(id=guild.id, name="@everyone")  # its role has the guild's own id
        guild.members[owner.id] = Member(user=owner)
        own_role = Role(id=self.ids.next(LONG_AGO), name=self.bot.username, managed_by=self.bot.id)
        guild.roles[own_role.id] = own_role
        guild.members[self.bot.id] = Member(user=self.bot, roles=[own_role.id])
        return guild

    def new_role(self, name: str, guild: Guild | None = None) -> Role:
        role = Role(id=self.ids.next(LONG_AGO), name=name)
        (guild or self.guild).roles[role.id] = role
        return role

    def new_member(
        self, name: str, *, roles: Iterable[str] = (), bot: bool = False, guild: Guild | None = None
    ) -> User:
        user = self.new_user(name, bot=bot)
        (guild or self.guild).members[user.id] = Member(user=user, roles=list(roles))
        return user

    def new_channel(self, name: str, *, kind: int = TEXT, guild: Guild | None = None, hidden: bool = False) -> Channel:
        """Make a channel. A hidden one denies VIEW_CHANNEL to @everyone (as data: the double checks no permissions)."""
        guild_id = (guild or self.guild).id
        overwrites = self.hiding_overwrites(guild_id) if hidden else []
        channel = Channel(
            id=self.ids.next(LONG_AGO), guild_id=guild_id, type=kind, name=name, made_at=LONG_AGO, overwrites=overwrites
        )
        self.add_channel(channel)
        return channel

    def hiding_overwrites(self, guild_id: str) -> list[Json]:
        """What hides a channel from everyone but the bot."""
        return [
            {"id": guild_id, "type": 0, "allow": "0", "deny": str(VIEW_CHANNEL)},
            {"id": self.bot.id, "type": 1, "allow": str(VIEW_CHANNEL), "deny": "0"},
        ]

    def add_channel(self, channel: Channel) -> None:
        self.channels[channel.id] = channel
        self._messages.setdefault(channel.id, {})

    def add_message(self, message: Message) -> None:
        self._messages[message.channel_id][message.id] = message
        channel = self.channels[message.channel_id]
        if channel.last_message_id is None or int(channel.last_message_id) < int(message.id):
            channel.last_message_id = message.id  # never goes back, also when that message is deleted

    def remove_message(self, message: Message) -> None:
        del self._messages[message.channel_id][message.id]

    def message(self, channel_id: str, message_id: str) -> Message | None:
        return self._messages.get(channel_id, {}).get(message_id)

    def messages(self, channel_id: str) -> list[Message]:
        """The messages that a channel still holds, oldest first."""
        return sorted(self._messages[channel_id].values(), key=lambda message: int(message.id))

    def threads(self, parent_id: str | None = None) -> list[Channel]:
        """Threads, oldest first; of one channel, or of all."""
        return [c for c in self.channels.values() if c.is_thread and parent_id in {None, c.parent_id}]
