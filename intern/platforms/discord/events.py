"""Discord's payloads as messages, events and channels; `GatewayCache` keeps gateway data. Pure but for that.

Only the ids and the author are required. Any other field may be missing or null, and one of a wrong type is left out
by itself. A payload that cannot be read raises `msgspec.ValidationError`, which names the field and never its value.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from intern.core.flow import APPROVES, ApprovalReaction, MessageCreated, MessageEdited, MessageEvent, MessagesDeleted
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, UserId, parse_position
from intern.core.messages import Attachment, Author, AuthorType, Channel, ChannelKind, ChatMessage, MemberRoles
from intern.core.text.masking import replace_surrogates
from intern.core.text.words import add_title
from intern.platforms.discord import payloads
from intern.platforms.discord.message_text import identify_author, read_text


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


# Message flags.
_HAS_THREAD = 1 << 5  # the thread's id is the message's
_IS_VOICE = 1 << 13


class Team(Struct, frozen=True):
    """The team of a server: intern's own id, and the members and roles whose answers are the team's."""

    bot_id: UserId
    member_ids: frozenset[UserId] = frozenset()
    role_ids: frozenset[RoleId] = frozenset()
    bot_roles: frozenset[RoleId] = frozenset()
    """The roles that are intern's own: Discord makes one with the invitation, and offers it beside the name."""


_OfServer = TypeVar("_OfServer", payloads.RawMessage, payloads.RawDeletion)


def read_event(
    name: str, payload: Mapping[str, Any], team: Team, cache: GatewayCache | None = None
) -> MessageEvent | ApprovalReaction | ChannelEvent | None:
    """Read a gateway dispatch; None for the kinds that we do not use, and for Discord's notices.

    `cache` stores authors' roles, replaces a missing `member`, and tells edits from mere updates.
    Raises msgspec.ValidationError for a payload that cannot be read.
    """
    cache = cache or GatewayCache()
    match name:
        case "MESSAGE_CREATE":
            message = _read_message(payload, team, cache)
            return MessageCreated(message=message) if message else None
        case "MESSAGE_UPDATE":
            return _read_edit(payload, team, cache)
        case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
            return _read_deletion(payload)
        case "MESSAGE_REACTION_ADD":
            return _read_approval(payloads.parse_leniently(payload, payloads.RawReaction), team, cache)
        case _:
            return _read_channel_event(name, payload)


def build_message(
    raw: payloads.RawMessage, team: Team, roles: Collection[RoleId] | None = None, cache: GatewayCache | None = None
) -> ChatMessage | None:
    """Return the message; None for a notice of Discord's. `roles` are the author's, if the payload has no `member`.

    `cache` says which mentioned accounts are team members, if the payload does not.
    """
    if not raw.is_written:
        return None
    told = raw.member.role_ids if raw.member else None
    held = roles if told is None else told
    contents = (raw, *(shot.message for shot in payloads.parse_items(raw.message_snapshots, payloads.RawSnapshot)))
    files = chain.from_iterable(content.attachments or () for content in contents)
    author = build_author(raw.author, raw.member, held or (), team, is_bot=raw.is_bots)
    author_id = identify_author(author.id, raw.id)
    reference = raw.reply
    replied = raw.referenced_message.author if reference and raw.referenced_message else None
    to = identify_author(replied.id, reference.message_id) if reference and replied else None
    return ChatMessage(
        id=raw.id,
        guild_id=raw.guild_id,
        channel_id=raw.channel_id,
        author=msgspec.structs.replace(author, id=author_id),
        text=add_title(
            read_text(*contents, is_bots=author.type == "bot"), _find_title(raw, team, cache) if cache else ""
        ),
        at=_utc(raw.timestamp) or parse_position(raw.id).time,
        edited_at=_utc(raw.edited_timestamp),
        reply_to=reference.message_id if reference else None,
        reply_to_channel=reference.channel_id if reference and reference.message_id else None,
        reply_to_author=to,
        replies_to_other=to not in {None, author_id, team.bot_id},
        attachments=tuple(build_attachment(file) for file in payloads.parse_items(list(files), payloads.RawAttachment)),
        is_voice=any((content.flags or 0) & _IS_VOICE for content in contents),
        mentions_bot=_mentions_bot(raw, raw.content or "", team),
        mentioned_staff=frozenset(_find_mentioned_staff(raw, team, cache)),
        thread_id=_thread_id(raw),
    )


def build_author(
    user: payloads.RawUser, member: payloads.RawMember | None, held: Collection[RoleId], team: Team, *, is_bot: bool
) -> Author:
    """Return the author, who has the roles `held`; a bot or webhook is no team member."""
    is_self = user.id == team.bot_id
    kind: AuthorType = "team_member" if _is_team_member(user.id, held, team) else "community_user"
    return Author(
        id=user.id,
        name=replace_surrogates((member and member.nick) or (*user.handles, user.id)[0]),
        type="bot" if is_bot or is_self else kind,
        is_self=is_self,
        handles=user.handles,
    )


def _read_message(payload: Mapping[str, Any], team: Team, cache: GatewayCache) -> ChatMessage | None:
    raw = _check_guild_id(payloads.parse_leniently(payload, payloads.RawMessage), payload)
    if raw.guild_id is None:
        return build_message(raw, team)
    roles = raw.member.role_ids if raw.member else None
    if roles is not None and not raw.is_bots:
        cache.note_roles(raw.guild_id, raw.author.id, roles)
    return build_message(raw, team, cache.roles(raw.guild_id, raw.author.id), cache)


def _check_guild_id(raw: _OfServer, payload: Mapping[str, Any]) -> _OfServer:
    """Return the struct. Raises msgspec.ValidationError if it names its server, but not by an id."""
    if raw.guild_id is None and payload.get("guild_id") is not None:
        raise msgspec.ValidationError("Expected an id - at `$.guild_id`")
    return raw


def _read_edit(payload: Mapping[str, Any], team: Team, cache: GatewayCache) -> MessageEdited | None:
    # Discord sends MESSAGE_UPDATE also for an embed that was unfurled, a pin, a thread that was begun.
    # A time that cannot be read is the time of an edit all the same.
    told_at = payload.get("edited_timestamp")
    message = None if told_at is None else _read_message(payload, team, cache)
    if message is None or not cache.is_new_edit(message.id, message.edited_at or repr(told_at)[:100]):
        return None
    return MessageEdited(message=message)


def _read_deletion(payload: Mapping[str, Any]) -> MessagesDeleted | None:
    raw = _check_guild_id(payloads.parse_leniently(payload, payloads.RawDeletion), payload)
    named = raw.ids or ([] if raw.id is None else [raw.id])
    ids = tuple(sent.id for sent in payloads.parse_items([{"id": each} for each in named], payloads.RawMessageStub))
    if named and not ids:
        raise msgspec.ValidationError("Expected an id - at `$.id`")
    return MessagesDeleted(guild_id=raw.guild_id, channel_id=raw.channel_id, message_ids=ids) if ids else None


def _read_approval(raw: payloads.RawReaction, team: Team, cache: GatewayCache) -> ApprovalReaction | None:
    # A variation selector asks for the coloured picture, which this emoji has anyway.
    if raw.emoji.id is not None or (raw.emoji.name or "").rstrip("\ufe0f") != APPROVES or raw.guild_id is None:
        return None
    member = payloads.RawMember() if raw.member is None else payloads.parse_leniently(raw.member, payloads.RawMember)
    roles = cache.roles(raw.guild_id, raw.user_id) if member.role_ids is None else member.role_ids
    is_bot = raw.user_id == team.bot_id or (member.user is not None and member.user.is_bots)
    if is_bot or not _is_team_member(raw.user_id, roles or (), team):
        return None
    return ApprovalReaction(guild_id=raw.guild_id, channel_id=raw.channel_id, message_id=raw.message_id, by=raw.user_id)


def _read_channel_event(name: str, payload: Mapping[str, Any]) -> ChannelEvent | None:
    match name:
        case "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "THREAD_CREATE" | "THREAD_UPDATE":
            return ChannelsUpdated((payloads.parse_leniently(payload, payloads.RawChannel),))
        case "CHANNEL_DELETE" | "THREAD_DELETE":
            return ChannelDeleted(payloads.parse_leniently(payload, payloads.RawChannelStub).id)
        case "GUILD_CREATE" | "THREAD_LIST_SYNC":
            return _read_channels(payloads.parse_leniently(payload, payloads.RawGuild))
        case _:
            return None


def _read_channels(raw: payloads.RawGuild) -> ChannelsUpdated:
    guild_id = raw.guild_id or raw.id or None
    told = (
        *payloads.parse_items(raw.channels, payloads.RawChannel),
        *payloads.parse_items(raw.threads, payloads.RawChannel),
    )
    channels = tuple(msgspec.structs.replace(channel, guild_id=guild_id) for channel in told)
    # Only GUILD_CREATE lists channels, and then all of them, with all threads that are not archived.
    return ChannelsUpdated(channels, all_of=None if raw.channels is None else guild_id)


def _is_team_member(user_id: UserId, roles: Collection[RoleId], team: Team) -> bool:
    return user_id in team.member_ids or not team.role_ids.isdisjoint(roles)


def _mentions_bot(raw: payloads.RawMessage, text: str, team: Team) -> bool:
    # The lists hold a reply's automatic ping too, the text also names in code: both must name us.
    bot_id = team.bot_id
    if bot_id and (f"<@{bot_id}>" in text or f"<@!{bot_id}>" in text):
        return raw.mentions is None or any(
            user.id == bot_id for user in payloads.parse_items(raw.mentions, payloads.RawUser)
        )
    return any(
        role in payloads.read_role_ids(raw.mention_roles or ()) and f"<@&{role}>" in text for role in team.bot_roles
    )


def _find_mentioned_staff(raw: payloads.RawMessage, team: Team, cache: GatewayCache | None) -> Iterator[UserId]:
    for user in payloads.parse_items(raw.mentions, payloads.RawMention):
        roles = user.member.role_ids if user.member else None
        if roles is None and cache and raw.guild_id:
            roles = cache.roles(raw.guild_id, user.id)
        if user.bot or user.id == team.bot_id or _is_team_member(user.id, roles or (), team):
            yield user.id


_BEGINS_WITHIN = timedelta(seconds=10)


def opens_thread(message_id: MessageId, thread_id: ChannelId) -> bool:
    """Return whether a message is so near to the beginning of a thread that it was written with it."""
    return parse_position(message_id) <= parse_position(thread_id).after(_BEGINS_WITHIN)


def _find_title(raw: payloads.RawMessage, team: Team, cache: GatewayCache) -> str:
    """Return the title of the post or thread that a person's message opens; empty without one.

    A thread without a message of its own is opened by its owner's first words. A thread of intern's has the question as
    its name.
    """
    thread = cache.find(ChannelId(raw.id)) or raw.thread
    if thread is None and opens_thread(raw.id, raw.channel_id):
        here = cache.find(raw.channel_id)
        opened = here and here.owner_id == raw.author.id and cache.resolve_channel(here)
        thread = here if opened and opened.kind == "thread" else None
    is_ours = thread is None or raw.is_bots or thread.owner_id == team.bot_id
    return "" if thread is None or is_ours else replace_surrogates(thread.name or "")


def _thread_id(raw: payloads.RawMessage) -> ChannelId | None:
    if raw.thread:
        return raw.thread.id
    return ChannelId(raw.id) if (raw.flags or 0) & _HAS_THREAD else None


def build_attachment(raw: payloads.RawAttachment) -> Attachment:
    """Return a file beside a message."""
    return Attachment(
        id=raw.id,
        filename=replace_surrogates(raw.filename or ""),
        url=replace_surrogates(raw.url or ""),
        size=raw.size or 0,
        content_type=raw.content_type,
        width=raw.width,
        height=raw.height,
    )


def _utc(moment: datetime | None) -> datetime | None:
    """Convert a time of Discord's, which has an offset, to UTC. At the ends of the calendar UTC may not exist."""
    try:
        return moment and (moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))
    except OverflowError:
        return None
