"""Payloads into structs, field by field: an odd value costs its field, and never the fields beside it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from intern.core.errors import ChatError, ChatNotFoundError, ChatUnavailableError
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, UserId
from intern.core.messages import Button
from intern.core.text.encoding import replace_surrogates
from intern.platforms.discord.permissions import Bits, Overwrite

# Channel types (its reference, "Channel Types").
_TALKS: Final = frozenset({0, 2, 5, 13})  # text, voice, announcements, stage: they hold messages
FORUMS: Final = frozenset({15, 16})  # forums and media channels: they hold threads only
THREAD_PARENTS: Final = frozenset({0, 5}) | FORUMS
_PRIVATE_THREAD = 12
_THREADS: Final = frozenset({10, 11, _PRIVATE_THREAD})
# Types of messages that people and bots write; all others are Discord's notices (its reference, "Message Types").
_DEFAULT, _REPLY, _SLASH_COMMAND, _CONTEXT_COMMAND = 0, 19, 20, 23
_WRITTEN: Final = frozenset({_DEFAULT, _REPLY, _SLASH_COMMAND, _CONTEXT_COMMAND})
THREAD_STARTER: Final = 21
_FORWARD = 1  # a message reference of this type is no reply

_SNOWFLAKE = Meta(pattern=r"\A[0-9]{1,20}\Z")
Snowflake = Annotated[str, _SNOWFLAKE]
GuildField = Annotated[GuildId, _SNOWFLAKE]
ChannelField = Annotated[ChannelId, _SNOWFLAKE]
MessageField = Annotated[MessageId, _SNOWFLAKE]
UserField = Annotated[UserId, _SNOWFLAKE]


def decode_json(payload: str | bytes) -> Any:
    """Return what JSON says, faster than hikari's own decoder. Raises ValueError."""
    try:
        return msgspec.json.decode(payload)
    except msgspec.DecodeError:  # half of a surrogate pair, which costs a whole page else
        return json.loads(payload)


class _RawThreadMetadata(Struct, frozen=True):
    archived: bool = False
    archive_timestamp: Annotated[datetime, Meta(tz=True)] | None = None


class RawChannel(Struct, frozen=True):
    """A channel or thread."""

    id: ChannelField
    type: int
    guild_id: GuildField | None = None
    parent_id: ChannelField | None = None
    name: str | None = None
    owner_id: UserField | None = None
    last_message_id: MessageField | None = None
    """At the time of this payload. In a forum, it names the newest post."""
    thread_metadata: _RawThreadMetadata | None = None

    @property
    def is_archived(self) -> bool:
        """Whether it is a thread that stays archived until its next message."""
        return self.thread_metadata is not None and self.thread_metadata.archived

    @property
    def archived_at(self) -> datetime | None:
        """When a thread was archived last, if the payload says so."""
        return None if self.thread_metadata is None else self.thread_metadata.archive_timestamp

    @property
    def is_thread(self) -> bool:
        """Whether it is a thread or forum post; its parent's type tells which."""
        return self.type in _THREADS

    @property
    def is_private(self) -> bool:
        """Whether it is a thread for invited members."""
        return self.type == _PRIVATE_THREAD

    @property
    def holds_messages(self) -> bool:
        """Whether messages can be read there, or in its threads."""
        return self.type in _TALKS | _THREADS | FORUMS

    @property
    def holds_threads(self) -> bool:
        """Whether it can hold threads or posts."""
        return self.type in THREAD_PARENTS

    @property
    def newest(self) -> MessageId | None:
        """Its newest message at the time of this payload."""
        return None if self.type in FORUMS else self.last_message_id


_Kind = TypeVar("_Kind", bound=Struct)
_Any = TypeVar("_Any")


def parse_items(items: object, kind: type[_Kind]) -> Iterator[_Kind]:
    """Return the items of a payload that can be read: a malformed one must not cost the others."""
    for item in cast("Sequence[Any]", items) if isinstance(items, list | tuple) else ():
        try:
            yield parse_leniently(item, kind)
        except msgspec.ValidationError:
            continue


def parse_leniently(payload: object, kind: type[_Kind]) -> _Kind:
    """Read the payload as `kind`, without the optional fields that cannot be read.

    A number or truth value that is written as another type is read. Raises msgspec.ValidationError where a required
    field is missing or wrong.
    """
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError:
        if not isinstance(payload, Mapping):
            raise
    told = cast("Mapping[str, Any]", payload)
    kept: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in told:
            continue
        try:
            kept[field.encode_name] = _parse_value(told[field.encode_name], field.type)
        except msgspec.ValidationError:
            if field.required:
                raise
    return msgspec.convert(kept, kind)


def _parse_value(value: object, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        nested = next((one for one in (kind, *get_args(kind)) if _is_struct(one)), None)
        if nested is None:
            raise
        return parse_leniently(value, nested)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def check_ids(**snowflakes: str) -> dict[str, str]:
    """Check ids for a route. They become parts of its path, so the call is not made unless they are digits."""
    for name, snowflake in snowflakes.items():
        if not (snowflake.isascii() and snowflake.isdigit()):
            raise ChatNotFoundError(f"{snowflake[:40]!r} is no {name} id of Discord's")
    return snowflakes


def parse_reply(what: str, reply: object, kind: type[_Any], otherwise: type[ChatError] = ChatUnavailableError) -> _Any:
    """Read a reply's JSON as the type that Discord documents; raises `otherwise` if it is something else."""
    try:
        if get_origin(kind) is None and issubclass(kind, msgspec.Struct):
            return parse_leniently(reply, kind)
        return msgspec.convert(reply, kind)
    except msgspec.ValidationError as error:
        raise otherwise(f"could not {what}: the reply is not what Discord documents: {error}") from error


class RawUser(Struct, frozen=True):
    """An account."""

    id: UserField
    username: str | None = None
    global_name: str | None = None
    bot: bool | None = None
    system: bool | None = None

    @property
    def is_bots(self) -> bool:
        """Whether it is a bot's account, or Discord's own."""
        return bool(self.bot or self.system)

    @property
    def handles(self) -> tuple[str, ...]:
        """The names of the account, the same on every server."""
        return tuple(replace_surrogates(name) for name in (self.global_name, self.username) if name)


class RawMember(Struct, frozen=True):
    """An account within one server; beside a message or a mention, its `user` is left out."""

    roles: list[Any] | None = None
    nick: str | None = None
    user: RawUser | None = None
    permissions: str | None = None
    """The member's permissions in the channel of an interaction."""

    @property
    def role_ids(self) -> tuple[RoleId, ...] | None:
        """The roles that the member holds; None if the payload does not say."""
        return None if self.roles is None else read_role_ids(self.roles)


class RawMention(Struct, frozen=True):
    """An account that a message mentions; REST leaves out `member`."""

    id: UserField
    bot: bool | None = None
    member: RawMember | None = None


class RawReference(Struct, frozen=True):
    """The message that a message replies to or forwards."""

    message_id: MessageField | None = None
    channel_id: ChannelField | None = None
    type: int | None = None


class RawAttachment(Struct, frozen=True):
    """A file beside a message."""

    id: Snowflake
    filename: str | None = None
    url: str | None = None
    size: int | None = None
    content_type: str | None = None
    width: int | None = None
    height: int | None = None


class RawApplication(Struct, frozen=True):
    """The bot's application."""

    id: Snowflake
    flags: int = 0


class RawChannelStub(Struct, frozen=True):
    """A channel or thread, by its id."""

    id: ChannelField
    name: str | None = None
    owner_id: UserField | None = None


class RawMessageStub(Struct, frozen=True):
    """A message, by its id."""

    id: MessageField
    type: int | None = None


class _RawReferencedMessage(Struct, frozen=True):
    """The author of the message that a message replies to."""

    author: RawUser | None = None


class RawContent(Struct, frozen=True, kw_only=True):
    """The parts of a message, or of one that it forwards. Items are read one by one: a malformed one costs itself."""

    content: str | None = None
    embeds: list[Any] | None = None
    attachments: list[Any] | None = None
    sticker_items: list[Any] | None = None
    poll: Any = None
    flags: int | None = None


class RawMessage(RawContent, frozen=True, kw_only=True):
    """A message as the gateway or REST gives it; REST leaves out `guild_id` and `member`."""

    id: MessageField
    channel_id: ChannelField
    author: RawUser
    guild_id: GuildField | None = None
    member: RawMember | None = None
    webhook_id: Any = None
    type: int | None = None
    timestamp: datetime | None = None
    edited_timestamp: datetime | None = None
    message_reference: RawReference | None = None
    referenced_message: _RawReferencedMessage | None = None
    mentions: list[Any] | None = None
    mention_roles: list[Any] | None = None
    message_snapshots: list[Any] | None = None
    """The forwarded message, if this is a forward."""
    thread: RawChannelStub | None = None

    @property
    def is_written(self) -> bool:
        """Whether people or bots wrote it; it is no notice of Discord's."""
        return (self.type or _DEFAULT) in _WRITTEN

    @property
    def is_bots(self) -> bool:
        """Whether a bot, a webhook or Discord itself wrote it."""
        return self.author.is_bots or bool(self.webhook_id)

    @property
    def reply(self) -> RawReference | None:
        """The message that it replies to; a forward is no reply."""
        reference = self.message_reference if self.type == _REPLY else None
        return None if reference and reference.type == _FORWARD else reference


class _RawRoleStub(Struct, frozen=True):
    id: RoleId


class RawRole(Struct, frozen=True):
    """A role, as far as permissions go."""

    id: RoleId
    permissions: Bits

    @property
    def bits(self) -> int:
        """The permissions as a number."""
        return int(self.permissions)


class RawPermissions(Struct, frozen=True, rename={"overwrites": "permission_overwrites"}):
    """The permissions of a channel. Threads have no overwrites; a channel always has a list of them."""

    id: ChannelId
    overwrites: list[Overwrite]
    type: int | None


class RawSnapshot(Struct, frozen=True):
    """A forwarded message."""

    message: RawContent


class RawSticker(Struct, frozen=True):
    """A sticker beside a message."""

    name: str


class RawEmbedField(Struct, frozen=True):
    """A field of an embed."""

    name: str | None = None
    value: str | None = None


class RawEmbed(Struct, frozen=True):
    """A box of text below a message. An export leaves out `type`."""

    type: str | None = None
    url: str | None = None
    title: str | None = None
    description: str | None = None
    fields: list[Any] | None = None


class _RawPollText(Struct, frozen=True):
    text: str | None = None


class RawPollOption(Struct, frozen=True):
    """An option of a poll."""

    poll_media: _RawPollText


class RawPoll(Struct, frozen=True):
    """A poll beside a message."""

    question: _RawPollText
    answers: list[Any] | None = None


class RawThreadPage(Struct, frozen=True):
    """A page of threads, the last archived one first."""

    threads: list[Any]
    has_more: bool | None = None


class RawStartLimit(Struct, frozen=True):
    """Discord's limit on the sessions that may be begun on the gateway within a day."""

    total: int
    remaining: int
    reset_after: float
    """Milliseconds."""
    max_concurrency: int = 1
    """The number of shards that may IDENTIFY within 5 seconds."""


class RawGateway(Struct, frozen=True):
    """The gateway's address, with Discord's advice and limits for it."""

    url: str
    shards: int = 1
    """The number of shards that Discord recommends."""
    session_start_limit: RawStartLimit | None = None


class _RawEmoji(Struct, frozen=True):
    id: Any = None
    """The id of a server's own emoji, which may have any name."""
    name: str | None = None


class RawReaction(Struct, frozen=True):
    """An emoji that a member put on a message."""

    channel_id: ChannelField
    message_id: MessageField
    user_id: UserField
    emoji: _RawEmoji
    guild_id: GuildField | None = None
    member: Any = None
    """Read only if the emoji means something to us: most do not."""


class RawDeletion(Struct, frozen=True):
    """One deleted message, or several of a channel."""

    channel_id: ChannelField
    id: Any = None
    ids: list[Any] | None = None
    guild_id: GuildField | None = None


class RawGuild(Struct, frozen=True):
    """A server, or its threads: GUILD_CREATE calls its id `id`, THREAD_LIST_SYNC `guild_id`."""

    id: GuildField = GuildId("")
    guild_id: GuildField | None = None
    unavailable: bool | None = None
    """An outage; the payload then says nothing about the server."""
    name: str | None = None
    system_channel_id: ChannelField | None = None
    preferred_locale: str | None = None
    roles: list[Any] | None = None
    members: list[Any] | None = None
    channels: list[Any] | None = None
    threads: list[Any] | None = None


def read_role_ids(roles: Sequence[Any]) -> tuple[RoleId, ...]:
    """Return ids of roles, which some servers send as whole roles."""
    ids = tuple(role for role in roles if isinstance(role, str))
    return (*map(RoleId, ids), *(role.id for role in parse_items(roles, _RawRoleStub)))


_SUPPRESS_EMBEDS = 1 << 2  # message flag: no link previews
_ROW, _BUTTON, _GREY = 1, 2, 2  # component types and a button's style
_BUTTONS_A_ROW = 5


def _build_button(button: Button) -> dict[str, Any]:
    shown: dict[str, Any] = {"type": _BUTTON, "style": _GREY, "custom_id": button.custom_id}
    if button.label:
        shown["label"] = button.label
    if button.emoji:
        shown["emoji"] = {"name": button.emoji}
    return shown


def build_message_body(text: str, buttons: Sequence[Button], mention_role: RoleId | None) -> dict[str, Any]:
    """Build the body of create and edit. Without `allowed_mentions`, Discord pings everyone whom the text mentions."""
    allowed: dict[str, Any] = {"parse": []}
    if mention_role:
        allowed["roles"] = [mention_role]
    shown = [_build_button(button) for button in buttons]
    starts = range(0, len(shown), _BUTTONS_A_ROW)
    rows = [{"type": _ROW, "components": shown[at : at + _BUTTONS_A_ROW]} for at in starts]
    return {"content": text, "flags": _SUPPRESS_EMBEDS, "allowed_mentions": allowed, "components": rows}
