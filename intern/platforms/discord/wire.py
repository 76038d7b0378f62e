"""Discord's JSON into the domain, field by field as far as we need it. Pure, but for what `Memory` is told.

Only the ids and the author are insisted on. Any other field may be missing or null, and one of a wrong type is left out
by itself. A payload that cannot be read raises `msgspec.ValidationError`, which names the field and never its value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from intern.core.flow import APPROVES, Approval, MessageCreated, MessageEdited, MessageEvent, MessagesDeleted
from intern.core.ids import ChannelId, RoleId, UserId, position_of
from intern.core.messages import Attachment, Author, AuthorType, ChatMessage
from intern.core.text.masking import whole
from intern.platforms.discord.channels import (
    SNOWFLAKE,
    ChannelEvent,
    ChannelField,
    ChannelGone,
    ChannelsSeen,
    GuildField,
    Memory,
    MessageField,
    RawChannel,
    UserField,
)
from intern.platforms.discord.reading import fitted, readable

# Message types that people and bots write; all others are Discord's own words (its reference, "Message Types").
_DEFAULT, _REPLY, _SLASH_COMMAND, _CONTEXT_COMMAND = 0, 19, 20, 23
_WRITTEN: Final = frozenset({_DEFAULT, _REPLY, _SLASH_COMMAND, _CONTEXT_COMMAND})
_FORWARD = 1  # a message reference of this type is no reply
_HAS_THREAD = 1 << 5  # message flag; the thread's id is the message's


class Team(Struct, frozen=True):
    """Who is who: intern's own id, and whose answers are the team's."""

    bot_id: UserId
    member_ids: frozenset[UserId] = frozenset()
    role_ids: frozenset[RoleId] = frozenset()
    bot_roles: frozenset[RoleId] = frozenset()
    """The roles that are intern's own: Discord makes one with the invitation, and offers it beside the name."""


class RawUser(Struct, frozen=True):
    """An account."""

    id: UserField
    username: str | None = None
    global_name: str | None = None
    bot: bool | None = None
    system: bool | None = None

    @property
    def handles(self) -> tuple[str, ...]:
        """What the account is called, on every server."""
        return tuple(whole(name) for name in (self.global_name, self.username) if name)


class RawMember(Struct, frozen=True):
    """An account within one server."""

    roles: list[Any] | None = None
    nick: str | None = None

    @property
    def role_ids(self) -> tuple[RoleId, ...] | None:
        """The roles that the member holds; None where the payload does not say."""
        return None if self.roles is None else _role_ids(self.roles)


class _Mentioned(Struct, frozen=True):
    """An account that a message mentions; REST leaves out `member`."""

    id: UserField
    bot: bool | None = None
    member: RawMember | None = None


class RawReference(Struct, frozen=True):
    """What a message answers or forwards."""

    message_id: MessageField | None = None
    channel_id: ChannelField | None = None
    type: int | None = None


class RawAttachment(Struct, frozen=True):
    """A file beside a message."""

    id: Annotated[str, SNOWFLAKE]
    filename: str | None = None
    url: str | None = None
    size: int | None = None
    content_type: str | None = None
    width: int | None = None
    height: int | None = None


class RawThread(Struct, frozen=True):
    """The thread that hangs on a message."""

    id: ChannelField


class RawSent(Struct, frozen=True):
    """Discord's confirmation of a message of ours."""

    id: MessageField


class _Referenced(Struct, frozen=True):
    """What a message replies to, of which only the author is read."""

    author: RawUser | None = None


class RawMessage(Struct, frozen=True):
    """A message as the gateway or REST gives it; REST leaves out `guild_id` and `member`."""

    id: MessageField
    channel_id: ChannelField
    author: RawUser
    guild_id: GuildField | None = None
    member: RawMember | None = None
    webhook_id: Any = None
    type: int | None = None
    flags: int | None = None
    content: str | None = None
    timestamp: datetime | None = None
    edited_timestamp: datetime | None = None
    message_reference: RawReference | None = None
    referenced_message: _Referenced | None = None
    # Read one by one: a strange one must not cost the message.
    mentions: list[Any] | None = None
    mention_roles: list[Any] | None = None
    attachments: list[Any] | None = None
    sticker_items: list[Any] | None = None
    poll: Any = None
    message_snapshots: list[Any] | None = None
    """Of a forward: what was forwarded."""
    thread: RawThread | None = None

    @property
    def is_written(self) -> bool:
        """People or bots wrote it; it is no notice of Discord's."""
        return (self.type or _DEFAULT) in _WRITTEN

    @property
    def is_bots(self) -> bool:
        """A bot, a webhook or Discord itself wrote it."""
        return bool(self.author.bot or self.author.system or self.webhook_id)


class _Forwarded(Struct, frozen=True):
    content: str | None = None
    attachments: list[Any] | None = None


class _Role(Struct, frozen=True):
    id: RoleId


class _Snapshot(Struct, frozen=True):
    message: _Forwarded


class _Sticker(Struct, frozen=True):
    name: str


class _Words(Struct, frozen=True):
    text: str | None = None


class _Poll(Struct, frozen=True):
    question: _Words


class RawThreadState(Struct, frozen=True):
    """How a thread is kept."""

    archive_timestamp: Annotated[datetime, Meta(tz=True)]


class RawArchived(Struct, frozen=True):
    """An archived thread, as far as paging needs it."""

    thread_metadata: RawThreadState


class RawThreads(Struct, frozen=True):
    """A page of threads, the one that was archived last coming first."""

    threads: list[Any]
    has_more: bool | None = None


class RawStartLimit(Struct, frozen=True):
    """How many sessions may be begun on the gateway within a day."""

    total: int
    remaining: int
    reset_after: float
    """Milliseconds."""


class RawGateway(Struct, frozen=True):
    """Where the gateway is."""

    url: str
    session_start_limit: RawStartLimit | None = None


class _Emoji(Struct, frozen=True):
    id: Any = None
    """Of a server's own emoji, which may be called anything."""
    name: str | None = None


class _ReactingMember(RawMember, frozen=True):
    user: RawUser | None = None


class _Reaction(Struct, frozen=True):
    channel_id: ChannelField
    message_id: MessageField
    user_id: UserField
    emoji: _Emoji
    guild_id: GuildField | None = None
    member: Any = None
    """Read only where the emoji says something to us: most reactions do not."""


class _Deleted(Struct, frozen=True):
    channel_id: ChannelField
    id: Any = None
    ids: list[Any] | None = None
    guild_id: GuildField | None = None


class _Guilds(Struct, frozen=True):
    """GUILD_CREATE calls its id `id`, THREAD_LIST_SYNC `guild_id`."""

    id: GuildField | None = None
    guild_id: GuildField | None = None
    channels: list[Any] | None = None
    threads: list[Any] | None = None


_OfServer = TypeVar("_OfServer", RawMessage, _Deleted)


def event_of(
    name: str, payload: Mapping[str, Any], team: Team, memory: Memory | None = None
) -> MessageEvent | Approval | ChannelEvent | None:
    """What a gateway dispatch tells; None for what is no concern of ours, system messages included.

    `memory` learns authors' roles, stands in for a `member` that is missing, and tells edits from mere updates.
    Raises msgspec.ValidationError for a payload that cannot be read.
    """
    memory = memory or Memory()
    match name:
        case "MESSAGE_CREATE":
            message = _told(payload, team, memory)
            return MessageCreated(message=message) if message else None
        case "MESSAGE_UPDATE":
            return _edited(payload, team, memory)
        case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
            return _deleted(payload)
        case "MESSAGE_REACTION_ADD":
            return _approval(fitted(payload, _Reaction), team, memory)
        case _:
            return _channel_event(name, payload)


def message_of(
    raw: RawMessage, team: Team, roles: Collection[RoleId] | None = None, memory: Memory | None = None
) -> ChatMessage | None:
    """The message, or None for one of Discord's own; `roles` are the author's where the payload has no `member`.

    `memory` tells who of the mentioned is of the team, where the payload does not.
    """
    if not raw.is_written:
        return None
    told = raw.member.role_ids if raw.member else None
    held = roles if told is None else told
    text = raw.content or ""
    said = whole("\n".join(filter(None, (text, *_beside(raw)))))
    reference = raw.message_reference if raw.type == _REPLY else None
    if reference and reference.type == _FORWARD:
        reference = None
    return ChatMessage(
        id=raw.id,
        guild_id=raw.guild_id,
        channel_id=raw.channel_id,
        author=Author(
            id=raw.author.id,
            name=_name_of(raw),
            type=_author_type(raw, team, held or ()),
            is_self=raw.author.id == team.bot_id and bool(team.bot_id),
            handles=raw.author.handles,
        ),
        text=said,
        at=_utc(raw.timestamp) or position_of(raw.id).time,
        edited_at=_utc(raw.edited_timestamp),
        reply_to=reference.message_id if reference else None,
        reply_to_channel=reference.channel_id if reference and reference.message_id else None,
        reply_to_author=_replied_author(raw) if reference else None,
        attachments=tuple(_attachment(file) for file in readable(_files(raw), RawAttachment)),
        mentions_bot=_mentions(raw, text, team),
        mentioned_staff=frozenset(_mentioned_staff(raw, team, memory)),
        thread_id=_thread_of(raw),
    )


def _replied_author(raw: RawMessage) -> UserId | None:
    replied = raw.referenced_message
    return replied.author.id if replied and replied.author else None


def _told(payload: Mapping[str, Any], team: Team, memory: Memory) -> ChatMessage | None:
    raw = _of_server(fitted(payload, RawMessage), payload)
    if raw.guild_id is None:
        return message_of(raw, team)
    roles = raw.member.role_ids if raw.member else None
    if roles is not None and not raw.is_bots:
        memory.note_roles(raw.guild_id, raw.author.id, roles)
    return message_of(raw, team, memory.roles(raw.guild_id, raw.author.id), memory)


def _of_server(raw: _OfServer, payload: Mapping[str, Any]) -> _OfServer:
    """The struct. Raises msgspec.ValidationError where its server is named, but not by an id: it is not private."""
    if raw.guild_id is None and payload.get("guild_id") is not None:
        raise msgspec.ValidationError("Expected an id - at `$.guild_id`")
    return raw


def _edited(payload: Mapping[str, Any], team: Team, memory: Memory) -> MessageEdited | None:
    # Discord sends MESSAGE_UPDATE also for an embed that was unfurled, a pin, a thread that was begun.
    # A time that cannot be read is the time of an edit all the same.
    told_at = payload.get("edited_timestamp")
    message = None if told_at is None else _told(payload, team, memory)
    if message is None or not memory.is_new_edit(message.id, message.edited_at or repr(told_at)[:100]):
        return None
    return MessageEdited(message=message)


def _deleted(payload: Mapping[str, Any]) -> MessagesDeleted | None:
    raw = _of_server(fitted(payload, _Deleted), payload)
    named = raw.ids or ([] if raw.id is None else [raw.id])
    ids = tuple(sent.id for sent in readable([{"id": each} for each in named], RawSent))
    if named and not ids:
        raise msgspec.ValidationError("Expected an id - at `$.id`")
    return MessagesDeleted(guild_id=raw.guild_id, channel_id=raw.channel_id, message_ids=ids) if ids else None


def _approval(raw: _Reaction, team: Team, memory: Memory) -> Approval | None:
    # A variation selector asks for the coloured picture, which this emoji has anyway.
    if raw.emoji.id is not None or (raw.emoji.name or "").rstrip("\ufe0f") != APPROVES or raw.guild_id is None:
        return None
    member = _ReactingMember() if raw.member is None else fitted(raw.member, _ReactingMember)
    roles = memory.roles(raw.guild_id, raw.user_id) if member.role_ids is None else member.role_ids
    is_bot = raw.user_id == team.bot_id or (member.user is not None and bool(member.user.bot or member.user.system))
    if is_bot or not _is_of_team(raw.user_id, roles or (), team):
        return None
    return Approval(guild_id=raw.guild_id, channel_id=raw.channel_id, message_id=raw.message_id, by=raw.user_id)


def _channel_event(name: str, payload: Mapping[str, Any]) -> ChannelEvent | None:
    match name:
        case "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "THREAD_CREATE" | "THREAD_UPDATE":
            return ChannelsSeen((fitted(payload, RawChannel),))
        case "CHANNEL_DELETE" | "THREAD_DELETE":
            return ChannelGone(msgspec.convert(payload, RawThread).id)
        case "GUILD_CREATE" | "THREAD_LIST_SYNC":
            return _channels(fitted(payload, _Guilds))
        case _:
            return None


def _channels(raw: _Guilds) -> ChannelsSeen:
    guild_id = raw.guild_id or raw.id
    told = (*readable(raw.channels, RawChannel), *readable(raw.threads, RawChannel))
    channels = tuple(msgspec.structs.replace(channel, guild_id=guild_id) for channel in told)
    # Only GUILD_CREATE names channels, and then all of them, with all threads that are not archived.
    return ChannelsSeen(channels, all_of=None if raw.channels is None else guild_id)


def _author_type(raw: RawMessage, team: Team, roles: Collection[RoleId]) -> AuthorType:
    if raw.is_bots or raw.author.id == team.bot_id:
        return "bot"
    return "team_member" if _is_of_team(raw.author.id, roles, team) else "community_user"


def _is_of_team(user_id: UserId, roles: Collection[RoleId], team: Team) -> bool:
    return user_id in team.member_ids or not team.role_ids.isdisjoint(roles)


def _name_of(raw: RawMessage) -> str:
    return whole((raw.member and raw.member.nick) or (*raw.author.handles, raw.author.id)[0])


def _role_ids(roles: Sequence[Any]) -> tuple[RoleId, ...]:
    """Ids of roles, which some servers send as whole roles."""
    ids = tuple(role for role in roles if isinstance(role, str))
    return (*map(RoleId, ids), *(role.id for role in readable(roles, _Role)))


def _mentions(raw: RawMessage, text: str, team: Team) -> bool:
    # The lists hold a reply's automatic ping too, the text also what stands in code: both must name us.
    bot_id = team.bot_id
    if bot_id and (f"<@{bot_id}>" in text or f"<@!{bot_id}>" in text):
        return raw.mentions is None or any(user.id == bot_id for user in readable(raw.mentions, RawUser))
    return any(role in _role_ids(raw.mention_roles or ()) and f"<@&{role}>" in text for role in team.bot_roles)


def _mentioned_staff(raw: RawMessage, team: Team, memory: Memory | None) -> Iterator[UserId]:
    for user in readable(raw.mentions, _Mentioned):
        roles = user.member.role_ids if user.member else None
        if roles is None and memory and raw.guild_id:
            roles = memory.roles(raw.guild_id, user.id)
        if user.bot or user.id == team.bot_id or _is_of_team(user.id, roles or (), team):
            yield user.id


def _beside(raw: RawMessage) -> Iterator[str]:
    """What people say without typing it: a forward, stickers, a poll."""
    for shot in readable(raw.message_snapshots, _Snapshot):
        yield shot.message.content or ""
    for sticker in readable(raw.sticker_items, _Sticker):
        yield f"[sticker: {' '.join(sticker.name.split())}]"
    for poll in readable([raw.poll] if raw.poll else [], _Poll):
        yield f"[poll: {' '.join((poll.question.text or '').split())}]"


def _files(raw: RawMessage) -> list[Any]:
    forwarded = (shot.message.attachments or [] for shot in readable(raw.message_snapshots, _Snapshot))
    return [*(raw.attachments or ()), *chain.from_iterable(forwarded)]


def _thread_of(raw: RawMessage) -> ChannelId | None:
    if raw.thread:
        return raw.thread.id
    return ChannelId(raw.id) if (raw.flags or 0) & _HAS_THREAD else None


def _attachment(raw: RawAttachment) -> Attachment:
    return Attachment(
        id=raw.id,
        filename=whole(raw.filename or ""),
        url=whole(raw.url or ""),
        size=raw.size or 0,
        content_type=raw.content_type,
        width=raw.width,
        height=raw.height,
    )


def _utc(moment: datetime | None) -> datetime | None:
    """Discord's times carry their offset. At the ends of the calendar UTC may not exist."""
    try:
        return moment and (moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC))
    except OverflowError:
        return None
