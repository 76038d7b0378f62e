"""Channels, roles and edits, as the gateway sent them."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, UserId
from intern.core.messages import Channel, ChannelKind, MemberRoles
from intern.core.text.encoding import replace_surrogates
from intern.platforms.discord import payloads


class ChannelsUpdated(Struct, frozen=True):
    """New or changed channels and threads."""

    channels: tuple[payloads.RawChannel, ...]
    all_of: GuildId | None = None
    """The server, if these are all of its channels: others were deleted or archived unnoticed."""


class ChannelDeleted(Struct, frozen=True):
    """A channel or thread was deleted."""

    channel_id: ChannelId


ChannelEvent = ChannelsUpdated | ChannelDeleted


def build_channel(raw: payloads.RawChannel, kinds: Mapping[ChannelId, int]) -> Channel:
    """Return the channel; `kinds` holds Discord's types of known channels, which tell posts from other threads."""
    kind: ChannelKind = "channel"
    if raw.is_thread:
        kind = "post" if raw.parent_id and kinds.get(raw.parent_id) in payloads.FORUMS else "thread"
    name, parent = replace_surrogates(raw.name or ""), raw.parent_id if raw.is_thread else None
    return Channel(id=raw.id, guild_id=raw.guild_id, kind=kind, name=name, parent_id=parent, private=raw.is_private)


_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _LruDict(OrderedDict[_Key, _Value]):
    """The entries that were written or read last, up to a limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def find(self, key: _Key) -> _Value | None:
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def add(self, key: _Key, value: _Value) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)


class GatewayCache:
    """A cache of gateway data, which saves calls of REST: channels, roles, edits.

    Bounded: a thread is dropped when it is archived, or with the next session if that happened between two; else the
    least recently used one. The number of archived threads has no limit, and they are needed only while they are read.
    So those fetched over REST have a bound of their own.
    """

    def __init__(self, limit: int = 10_000, archived: int = 1_000) -> None:
        self._channels: _LruDict[ChannelId, payloads.RawChannel] = _LruDict(limit)
        self._of_server: defaultdict[GuildId | None, set[ChannelId]] = defaultdict(set)
        self._archived: _LruDict[ChannelId, payloads.RawChannel] = _LruDict(archived)
        # With the number of the server's session that sent them.
        self._roles: _LruDict[tuple[GuildId, UserId], tuple[tuple[RoleId, ...], int]] = _LruDict(limit)
        self._sessions: Counter[GuildId] = Counter()
        self._noted: _LruDict[tuple[GuildId, UserId], tuple[RoleId, ...]] = _LruDict(limit)
        self._edits: _LruDict[MessageId, object] = _LruDict(limit)

    def apply(self, event: ChannelEvent) -> None:
        """Apply a change of channels."""
        match event:
            case ChannelsUpdated(channels, all_of):
                for each in self._of_server.pop(all_of, ()) if all_of else ():
                    self._channels.pop(each, None)
                for channel in channels:
                    self._drop(channel.id)
                    self._of_server[channel.guild_id].discard(channel.id)
                    if not channel.is_archived:
                        self.add_channel(channel)
            case ChannelDeleted(channel_id):
                self._drop(channel_id)

    def find_renamed(self, event: ChannelEvent) -> Iterator[payloads.RawChannel]:
        """Yield the threads whose name changed."""
        for each in event.channels if isinstance(event, ChannelsUpdated) else ():
            known = self.find(each.id) if each.is_thread else None
            if known is not None and known.name != each.name:
                yield each

    def add_channel(self, raw: payloads.RawChannel) -> None:
        """Add a channel that was fetched, archived or not: it will be needed at once."""
        if raw.is_archived:
            self._archived.add(raw.id, raw)
        else:
            self._channels.add(raw.id, raw)
            self._of_server[raw.guild_id].add(raw.id)

    def _drop(self, channel_id: ChannelId) -> None:
        self._channels.pop(channel_id, None)
        self._archived.pop(channel_id, None)

    def find(self, channel_id: ChannelId) -> payloads.RawChannel | None:
        """Return the channel as it was received."""
        return self._channels.find(channel_id) or self._archived.find(channel_id)

    def channel(self, channel_id: ChannelId) -> Channel | None:
        """Return the channel, if it and the parent that determines its kind are known."""
        raw = self.find(channel_id)
        return self.resolve_channel(raw) if raw else None

    def resolve_channel(self, raw: payloads.RawChannel) -> Channel | None:
        """Return the channel; None for a thread whose parent, which determines its kind, is unknown."""
        if not raw.is_thread:
            return build_channel(raw, {})
        parent = self._channels.find(raw.parent_id) if raw.parent_id else None
        return build_channel(raw, {parent.id: parent.type}) if parent else None

    def holds_threads(self, channel_id: ChannelId) -> bool | None:
        """Return whether the channel can hold threads; None if that is unknown."""
        raw = self._channels.find(channel_id)
        return raw.holds_threads if raw else None

    def begin_session(self, guild_id: GuildId) -> None:
        """Mark the roles of the server's members as doubtful: they may have changed unnoticed."""
        self._sessions[guild_id] += 1

    def roles(self, guild_id: GuildId, user_id: UserId, *, undoubted: bool = False) -> tuple[RoleId, ...] | None:
        """Return a member's roles as last seen, if `undoubted` in this session; None if they are unknown."""
        roles, session = self._roles.find((guild_id, user_id)) or (None, 0)
        return None if undoubted and session != self._sessions[guild_id] else roles

    def note_roles(self, guild_id: GuildId, user_id: UserId, roles: Collection[RoleId]) -> None:
        """Store a member's roles."""
        self._roles.add((guild_id, user_id), (tuple(roles), self._sessions[guild_id]))
        self._noted.add((guild_id, user_id), tuple(roles))

    def take_new_roles(self) -> tuple[MemberRoles, ...]:
        """Return and clear the roles that were stored since the last call."""
        noted = tuple(MemberRoles(guild_id, user_id, roles) for (guild_id, user_id), roles in self._noted.items())
        self._noted.clear()
        return noted

    def restore_roles(self, known: Iterable[MemberRoles]) -> None:
        """Restore roles from an earlier run; they are doubtful, and `take_new_roles` does not return them."""
        for each in known:
            self._roles.add((each.guild_id, each.user_id), (each.roles, -1))

    def is_new_edit(self, message_id: MessageId, edited_at: object) -> bool:
        """Return False if this edit was reported before: then the message only got an embed or a thread."""
        if self._edits.find(message_id) == edited_at:
            return False
        self._edits.add(message_id, edited_at)
        return True
