"""Messages and channels as Discord holds them, reduced to what intern needs."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal

from msgspec import Struct

from intern.domain.ids import ChannelId, GuildId, MessageId, RoleId, UserId

AuthorType = Literal["bot", "team_member", "community_user"]
"""`bot`: any bot or webhook, intern itself included."""

_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_MENTION = re.compile(r"<@!?([0-9]{1,20})>")

ChannelKind = Literal["channel", "thread", "post"]
"""`post`: a thread in a forum or media channel, whose first message has the thread's own id."""


class Author(Struct, frozen=True, kw_only=True):
    """Who wrote a message."""

    id: UserId
    name: str
    type: AuthorType
    is_self: bool = False
    """True for intern's own messages only."""
    handles: tuple[str, ...] = ()
    """What else they are called, as far as Discord tells: who is known by a nickname has an account's name, too."""

    @property
    def names(self) -> tuple[str, ...]:
        """All that they are called."""
        return tuple(dict.fromkeys((self.name, *self.handles)))


class Attachment(Struct, frozen=True, kw_only=True):
    """A file beside a message. Its `url` is signed and expires; read the message again for a fresh one."""

    id: str
    filename: str
    url: str
    size: int
    """Bytes."""
    content_type: str | None = None
    width: int | None = None
    height: int | None = None

    @property
    def is_image(self) -> bool:
        """Whether Discord takes it for a picture, going by its name; its bytes may say otherwise."""
        return (self.content_type or "").startswith("image/")


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One message of people or bots. System messages (joins, pins, thread starters) never become one."""

    id: MessageId
    guild_id: GuildId | None
    """None for a private message."""
    channel_id: ChannelId
    """The thread's id where the message stands in a thread."""
    author: Author
    text: str
    at: datetime
    """When it was written; UTC, aware."""
    edited_at: datetime | None = None
    reply_to: MessageId | None = None
    reply_to_channel: ChannelId | None = None
    """The channel of `reply_to` where Discord names one."""
    reply_to_author: UserId | None = None
    """Who wrote `reply_to`, where the payload tells."""
    attachments: tuple[Attachment, ...] = ()
    mentions_bot: bool = False
    """It mentions intern by `@name`; a reply's automatic ping does not count."""
    mentioned_staff: frozenset[UserId] = frozenset()
    """Of the accounts that it mentions, bots and team members, as far as that is known."""
    thread_id: ChannelId | None = None
    """The thread that hangs on this message, where the payload tells."""

    @property
    def mentions(self) -> frozenset[UserId]:
        """The accounts that its text mentions by `@name`, intern included; not those in code, and not its author."""
        if "<@" not in self.text:
            return frozenset()
        named = frozenset(map(UserId, _MENTION.findall(_CODE.sub("", self.text))))
        return named - {self.author.id}


class Channel(Struct, frozen=True, kw_only=True):
    """A place where messages stand."""

    id: ChannelId
    guild_id: GuildId | None
    kind: ChannelKind
    name: str = ""
    parent_id: ChannelId | None = None
    """The channel that a thread or post hangs in."""
    private: bool = False
    """A thread for those who were invited, whoever may read the channel that it hangs in."""

    @property
    def is_thread(self) -> bool:
        """Threads and forum posts: messages there are answered in place."""
        return self.kind != "channel"


class Page(Struct, frozen=True, kw_only=True):
    """A stretch of a channel's history. Discord's own messages count, though they are not among `messages`."""

    messages: tuple[ChatMessage, ...]
    """Oldest first; maybe none, though there is more."""
    read_to: MessageId
    """Everything up to here was read: the newest message of the page, system messages included."""
    more: bool
    """Discord may hold newer ones."""


class Button(Struct, frozen=True, kw_only=True):
    """A button under a message of ours; a label, an emoji, or both."""

    custom_id: str
    """What pressing it tells us; 1 to 100 characters."""
    label: str = ""
    """At most 80 characters."""
    emoji: str = ""
    """A Unicode emoji."""


class MemberRoles(Struct, frozen=True):
    """What roles a member has on a server, as last seen."""

    guild_id: GuildId
    user_id: UserId
    roles: tuple[RoleId, ...]


class Lookups:
    """A request's bound on looking up authors one by one: Discord does not say with a message what roles they have.

    Whoever is past it counts as a community user, and is asked about by the next request.
    """

    def __init__(self, most: int) -> None:
        self.made = 0
        self.refused = False
        """Somebody was past the bound."""
        self._most = most

    def take(self) -> bool:
        """Whether one more may be made; it counts as made then."""
        allowed = self.made < self._most
        self.made += allowed
        self.refused = self.refused or not allowed
        return allowed
