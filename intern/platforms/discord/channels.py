"""Channels as Discord's JSON tells of them, and what the gateway told, remembered. Pure, but for `Memory`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Annotated, Final, Generic, TypeVar

from msgspec import Meta, Struct

from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, UserId
from intern.core.messages import Channel, ChannelKind, MemberRoles
from intern.core.text.masking import whole

# Channel types (its reference, "Channel Types").
_TALKS: Final = frozenset({0, 2, 5, 13})  # text, voice, announcements, stage: messages stand in them
FORUMS: Final = frozenset({15, 16})  # forums and media channels: only threads stand in them
_THREAD_PARENTS: Final = frozenset({0, 5}) | FORUMS
_PRIVATE_THREAD = 12
_THREADS: Final = frozenset({10, 11, _PRIVATE_THREAD})


SNOWFLAKE = Meta(pattern=r"\A[0-9]{1,20}\Z")
GuildField = Annotated[GuildId, SNOWFLAKE]
ChannelField = Annotated[ChannelId, SNOWFLAKE]
MessageField = Annotated[MessageId, SNOWFLAKE]
UserField = Annotated[UserId, SNOWFLAKE]


class _Kept(Struct, frozen=True):
    """Whether a thread is kept among those that are active."""

    archived: bool = False


class RawChannel(Struct, frozen=True):
    """A channel or thread."""

    id: ChannelField
    type: int
    guild_id: GuildField | None = None
    parent_id: ChannelField | None = None
    name: str | None = None
    last_message_id: MessageField | None = None
    """As of when this was written. In a forum it names the newest post."""
    thread_metadata: _Kept | None = None

    @property
    def is_archived(self) -> bool:
        """A thread that rests until somebody writes in it."""
        return self.thread_metadata is not None and self.thread_metadata.archived

    @property
    def is_thread(self) -> bool:
        """A thread or forum post; which of the two, its parent's type tells."""
        return self.type in _THREADS

    @property
    def holds_messages(self) -> bool:
        """Something can be read there, or in threads that hang there."""
        return self.type in _TALKS | _THREADS | FORUMS

    @property
    def holds_threads(self) -> bool:
        """Threads or posts can hang there."""
        return self.type in _THREAD_PARENTS

    @property
    def newest(self) -> MessageId | None:
        """Its newest message, as of when this was written."""
        return None if self.type in FORUMS else self.last_message_id


class ChannelsSeen(Struct, frozen=True):
    """Channels and threads are there, or look different now."""

    channels: tuple[RawChannel, ...]
    all_of: GuildId | None = None
    """A server of which these are all: others were deleted or archived while nobody told us."""


class ChannelGone(Struct, frozen=True):
    """A channel or thread was deleted."""

    channel_id: ChannelId


ChannelEvent = ChannelsSeen | ChannelGone


def channel_of(raw: RawChannel, kinds: Mapping[ChannelId, int]) -> Channel:
    """The channel; `kinds` holds Discord's types of known channels and tells posts from other threads."""
    kind: ChannelKind = "channel"
    if raw.is_thread:
        kind = "post" if raw.parent_id and kinds.get(raw.parent_id) in FORUMS else "thread"
    return Channel(
        id=raw.id,
        guild_id=raw.guild_id,
        kind=kind,
        name=whole(raw.name or ""),
        parent_id=raw.parent_id if raw.is_thread else None,
        private=raw.type == _PRIVATE_THREAD,
    )


_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _Latest(Generic[_Key, _Value]):
    """The entries that were written or read last, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: _Key, value: _Value) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def drop_where(self, holds: Callable[[_Value], bool]) -> None:
        for key in [key for key, value in self._entries.items() if holds(value)]:
            self.drop(key)

    def drop(self, key: _Key) -> None:
        self._entries.pop(key, None)

    def taken(self) -> list[tuple[_Key, _Value]]:
        """All entries, the latest last; they are dropped."""
        entries = list(self._entries.items())
        self._entries.clear()
        return entries


class Memory:
    """What the gateway told, so that REST need not be asked: channels, roles, edits.

    Bounded: a thread goes as it is archived, or with the next session's word where that happened while none was there;
    else goes whatever was not needed for longest. Of archived threads there is no end, and one is needed only while it
    is read; so those that were asked for have a bound of their own.
    """

    def __init__(self, limit: int = 10_000, archived: int = 1_000) -> None:
        self._channels: _Latest[ChannelId, RawChannel] = _Latest(limit)
        self._archived: _Latest[ChannelId, RawChannel] = _Latest(archived)
        self._roles: _Latest[tuple[GuildId, UserId], tuple[RoleId, ...]] = _Latest(limit)
        self._noted: _Latest[tuple[GuildId, UserId], tuple[RoleId, ...]] = _Latest(limit)
        self._edits: _Latest[MessageId, object] = _Latest(limit)

    def take(self, event: ChannelEvent) -> None:
        """Learn of channels."""
        match event:
            case ChannelsSeen(channels, all_of):
                if all_of:
                    self._channels.drop_where(lambda raw: raw.guild_id == all_of)
                for channel in channels:
                    self._drop(channel.id)
                    if not channel.is_archived:
                        self.keep(channel)
            case ChannelGone(channel_id):
                self._drop(channel_id)

    def keep(self, raw: RawChannel) -> None:
        """Learn of a channel that was asked for, archived or not: it will be needed at once."""
        (self._archived if raw.is_archived else self._channels).put(raw.id, raw)

    def _drop(self, channel_id: ChannelId) -> None:
        self._channels.drop(channel_id)
        self._archived.drop(channel_id)

    def channel(self, channel_id: ChannelId) -> Channel | None:
        """The channel, if it and the parent that tells its kind are known."""
        raw = self._channels.get(channel_id) or self._archived.get(channel_id)
        return self.told(raw) if raw else None

    def told(self, raw: RawChannel) -> Channel | None:
        """What Discord tells of a channel; None for a thread whose parent is not known, which tells its kind."""
        if not raw.is_thread:
            return channel_of(raw, {})
        parent = self._channels.get(raw.parent_id) if raw.parent_id else None
        return channel_of(raw, {parent.id: parent.type}) if parent else None

    def holds_threads(self, channel_id: ChannelId) -> bool | None:
        """Whether threads can hang there; None where nobody told us."""
        raw = self._channels.get(channel_id)
        return raw.holds_threads if raw else None

    def roles(self, guild_id: GuildId, user_id: UserId) -> tuple[RoleId, ...] | None:
        """A member's roles as last seen; None where nobody told us."""
        return self._roles.get((guild_id, user_id))

    def note_roles(self, guild_id: GuildId, user_id: UserId, roles: Collection[RoleId]) -> None:
        """Learn a member's roles."""
        self._roles.put((guild_id, user_id), tuple(roles))
        self._noted.put((guild_id, user_id), tuple(roles))

    def noted_roles(self) -> tuple[MemberRoles, ...]:
        """The roles that were learned since this was asked last."""
        return tuple(MemberRoles(guild_id, user_id, roles) for (guild_id, user_id), roles in self._noted.taken())

    def recall_roles(self, known: Iterable[MemberRoles]) -> None:
        """Learn what an earlier start had learned; it is not noted anew."""
        for each in known:
            self._roles.put((each.guild_id, each.user_id), each.roles)

    def is_new_edit(self, message_id: MessageId, edited_at: object) -> bool:
        """False where this very edit was told before: then only an embed or a thread came to the message."""
        if self._edits.get(message_id) == edited_at:
            return False
        self._edits.put(message_id, edited_at)
        return True
