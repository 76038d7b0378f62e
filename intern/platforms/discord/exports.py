"""Exports of DiscordChatExporter (JSON, one file a channel or thread) as messages, and as a history to read in.

All of a file's text is data: no link in it is followed, and a malformed message costs itself and no other. The
exports' content stays in memory, so a million messages take about half a gigabyte.
"""

from __future__ import annotations

import json
import mmap
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from mimetypes import guess_type
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from intern.core.errors import ChatRefusedError, ConfigError
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, UserId, parse_position
from intern.core.messages import Attachment, Author, AuthorType, Channel, ChatMessage
from intern.core.progress import report_progress
from intern.core.text.encoding import replace_json_surrogates
from intern.core.text.words import add_title
from intern.platforms.discord.message_text import identify_author, read_text
from intern.platforms.discord.messages import opens_thread
from intern.platforms.discord.payloads import RawContent, Snowflake, parse_items, parse_leniently
from intern.platforms.sandbox import MemoryHistory

# The exporter writes the names of its own enumerations, and the bare number where it has no name. Of messages,
# these are the types that people and bots write: plain, reply, slash command, menu command.
_WRITTEN: Final = frozenset({"Default", "Reply", "20", "23"})
_PRIVATE_THREAD: Final = "GuildPrivateThread"
_THREADS: Final = frozenset({"GuildPublicThread", "GuildNewsThread", _PRIVATE_THREAD})
_DIRECT: Final = frozenset({"DirectTextChat", "DirectGroupTextChat"})
_LONGEST_ID: Final = 20
_MOST_MENTIONS: Final = 100  # Discord allows as many in a message
_EXPORT = re.compile(
    r"(?i)\.(?:json|html?|csv|zip)$"
)  # or other formats: people choose one by mistake, and should learn so
# Hidden, or a file of a message: the exporter puts those into folders called after the export.
_ASIDE = re.compile(r"(?i)(?:^|/)\.|\.(?:json|html?|csv|txt)_files/")
_OTHER_FORMATS: Final = (
    (b"<", "HTML: export with --format Json"),  # the exporter's default
    (b"AuthorID,", "CSV: export with --format Json"),
    (b"=====", "plain text: export with --format Json"),
    (b"PK\x03\x04", "a ZIP archive: unpack it, and name the folder"),
)
_Ids = defaultdict[str, set[UserId]]


class ExportedTeam(Struct, frozen=True, kw_only=True):
    """The team members: their answers teach."""

    member_ids: frozenset[UserId] = frozenset()
    role_ids: frozenset[RoleId] = frozenset()
    """Roles as they were when the export was made; the exporter knows none of who has left."""
    bot_id: UserId | None = None
    """intern's own account, if it is known: corrections of its answers teach."""


class ExportedRole(Struct, frozen=True):
    """A role of people in the files."""

    id: RoleId
    name: str
    members: int
    messages: int


class _RawExportRole(Struct, frozen=True):
    id: Snowflake
    name: str | None = None


class _RawExportAuthor(Struct, frozen=True, rename="camel"):
    id: Snowflake
    name: str | None = None
    nickname: str | None = None
    is_bot: bool | None = None
    # Read one by one, as attachments are: a malformed one must not cost the message.
    roles: list[Any] | None = None


class _RawExportFile(Struct, frozen=True, rename="camel"):
    id: str | None = None
    url: str | None = None
    file_name: str | None = None
    file_size_bytes: float | None = None


class _RawExportContent(RawContent, frozen=True, kw_only=True):
    sticker_items: list[Any] | None = field(default=None, name="stickers")


class _RawExportReference(Struct, frozen=True, rename="camel"):
    message_id: Snowflake | None = None
    type: str | None = None


class _RawExportMessage(_RawExportContent, frozen=True, kw_only=True, rename="camel"):
    author: _RawExportAuthor
    timestamp: datetime
    type: str | None = None
    timestamp_edited: datetime | None = None
    mentions: list[Any] | None = None
    reference: _RawExportReference | None = None
    forwarded_message: Any = None


class _RawExportHead(Struct, frozen=True):
    """The fields of a message that are read first, to decide whether it is one."""

    id: str
    type: str | None = None


class _RawExportSender(Struct, frozen=True):
    """The author of a message, to count it for the author's roles."""

    author: _RawExportAuthor


class _RawExportGuild(Struct, frozen=True):
    id: Snowflake


class _RawExportChannel(Struct, frozen=True, rename="camel"):
    id: Snowflake
    type: str | None = None
    category_id: str | None = None
    name: str | None = None


class _RawExport(Struct, frozen=True):
    guild: _RawExportGuild
    channel: _RawExportChannel
    messages: list[Raw]


class ExportedChannel(Struct, frozen=True, kw_only=True):
    """A channel or thread with all that its files hold."""

    channel: Channel
    messages: tuple[ChatMessage, ...]
    """Oldest first."""
    direct: bool = False
    """Private messages."""


class Exports(Struct, frozen=True, kw_only=True):
    """The content of all files together."""

    channels: tuple[ExportedChannel, ...]
    """Parents before their threads, else in the order of the files."""
    system: int = 0
    """Discord's own notices, which are no messages."""
    unreadable: int = 0
    """Messages that could not be understood, and were left out."""
    refused: tuple[str, ...] = ()
    """Files that were left out, each with the reason."""

    @property
    def messages(self) -> int:
        """The number of messages of people and bots."""
        return sum(len(place.messages) for place in self.channels)


def read_exports(paths: Sequence[Path], team: ExportedTeam) -> Exports:
    """Read the files, and the exports in and below the folders. Blocks.

    Parts of one channel are joined, and a message that is in several counts once. A team member of one file is one
    in all of them. A file that cannot be read, that is no such export, or whose ids are not Discord's, is left out
    whole. Raises ConfigError where none is left.
    """
    reading = _ExportReader(team)
    refused = _read_files(paths, reading.add)
    return replace(reading.build_exports(), refused=refused)


def list_exported_roles(paths: Sequence[Path]) -> tuple[list[ExportedRole], tuple[str, ...]]:
    """List the roles of people in the files, those with the most messages a member first, and the refusals. Blocks.

    Raises ConfigError where none of the files can be read as such an export.
    """
    names: dict[str, str] = {}
    members: dict[str, set[str]] = {}
    messages: Counter[str] = Counter()

    def count(path: Path) -> None:
        for raw in _load_export(path).messages:
            try:
                author = parse_leniently(_decode_message(raw), _RawExportSender).author
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # the import counts it
            for role in () if author.is_bot else parse_items(author.roles, _RawExportRole):
                names[role.id] = role.name or ""
                members.setdefault(role.id, set()).add(author.id)
                messages[role.id] += 1

    refused = _read_files(paths, count)
    found = [ExportedRole(RoleId(role), name, len(members[role]), messages[role]) for role, name in names.items()]
    return sorted(found, key=lambda role: role.messages / role.members, reverse=True), refused


def _read_files(paths: Sequence[Path], read: Callable[[Path], None]) -> tuple[str, ...]:
    """Read all files; return why some were refused. Raises ConfigError where all were."""
    files = list_exports(paths)
    refused: list[str] = []
    for n, path in enumerate(files):
        report_progress("Reading {total} files", n, len(files))
        try:
            read(path)
        except ConfigError as error:
            refused.append(f"{path} {error}")
    if refused and len(refused) == len(files):
        raise ConfigError("\n".join(refused))
    return tuple(refused)


def list_exports(paths: Sequence[Path]) -> list[Path]:
    """List the files, and the exports in and below the folders, those in other formats, too.

    A folder without any is listed itself, so that reading it fails and names it.
    """
    files: list[Path] = []
    for path in paths:
        below = [file for file in sorted(path.rglob("*")) if _EXPORT.search(file.name) and file.is_file()]
        files += [file for file in below if not _ASIDE.search(file.relative_to(path).as_posix())] or [path]
    return list(dict.fromkeys(files))


class ExportedHistory(MemoryHistory):
    """The exports as a history without any other message."""

    def __init__(self, exports: Exports) -> None:
        super().__init__()
        self._channels = {place.channel.id: place.channel for place in exports.channels}
        self._messages = {place.channel.id: list(place.messages) for place in exports.channels}

    def _find_channel(self, channel_id: ChannelId) -> Channel:
        if channel_id not in self._channels:
            raise ChatRefusedError(f"channel {channel_id} is in none of the exports")
        return self._channels[channel_id]

    def _list_messages(self, channel_id: ChannelId) -> list[ChatMessage]:
        return self._messages.get(channel_id, [])


class _ExportReader:
    """The files that were read so far."""

    def __init__(self, team: ExportedTeam) -> None:
        self._team = team
        self._heads: dict[ChannelId, tuple[_RawExportChannel, GuildId, Path]] = {}
        self._messages: dict[ChannelId, dict[MessageId, ChatMessage]] = {}
        self._authors: dict[Author, Author] = {}
        self._own_ends: dict[MessageId, int] = {}
        """The length of a message's own words, if others follow: the exporter lists no mentions of those."""
        self._team_seen: set[UserId] = set()
        self._left_out: Counter[str] = Counter()

    def add(self, path: Path) -> None:
        """Add one more file whole, or not at all. Raises ConfigError."""
        export = _load_export(path)
        place, guild_id = ChannelId(export.channel.id), GuildId(export.guild.id)
        head = self._heads.get(place, (export.channel, guild_id, path))
        if head[1] != guild_id:
            raise ConfigError(f"places channel {place} on server {guild_id}, but {head[2]} on server {head[1]}")
        left_out = Counter[str]()
        read = [self._read_message(raw, place, guild_id, left_out) for raw in export.messages]
        if export.messages and left_out["unreadable"] == len(export.messages):
            raise ConfigError(
                f"cannot be read: none of its {len(export.messages)} messages has what DiscordChatExporter writes "
                "(id, author, timestamp); export the channel with --format Json"
            )
        self._heads[place] = head
        self._messages.setdefault(place, {}).update((message.id, message) for message in read if message)
        self._left_out += left_out

    def build_exports(self) -> Exports:
        """Return all content, in order."""
        ids = _map_names_to_ids(self._authors)
        places = [self._build_channel(channel_id, ids) for channel_id in self._heads]
        return Exports(
            channels=tuple(sorted(places, key=lambda place: place.channel.is_thread)),
            system=self._left_out["system"],
            unreadable=self._left_out["unreadable"],
        )

    def _build_channel(self, channel_id: ChannelId, ids: _Ids) -> ExportedChannel:
        raw, guild_id, _ = self._heads[channel_id]
        messages = sorted(self._messages[channel_id].values(), key=lambda message: parse_position(message.id))
        return ExportedChannel(
            channel=_build_channel(raw, guild_id, opens_itself=MessageId(channel_id) in self._messages[channel_id]),
            messages=tuple(self._with_title(self._with_mentions(self._with_team(each), ids)) for each in messages),
            direct=raw.type in _DIRECT,
        )

    def _with_title(self, message: ChatMessage) -> ChatMessage:
        """Return the message with the title of the post or thread that it opens."""
        here, opened = message.channel_id, self._heads.get(ChannelId(message.id))
        if opens_thread(message.id, here) and not any(MessageId(here) in said for said in self._messages.values()):
            opened = self._heads[here]
        if opened is None or opened[0].type not in _THREADS or message.author.type == "bot":
            return message
        return replace(message, text=add_title(message.text, opened[0].name or ""))

    def _with_mentions(self, message: ChatMessage, ids: _Ids) -> ChatMessage:
        """Return the message with the mentions in forwarded words and embeds, of accounts that are in the files."""
        end, text = self._own_ends.get(message.id), message.text
        return message if end is None else replace(message, text=text[:end] + _restore_mentions(text[end:], ids))

    def _with_team(self, message: ChatMessage) -> ChatMessage:
        author = message.author
        if message.mentions:
            message = replace(message, mentioned_staff=message.mentioned_staff | message.mentions & self._team_seen)
        if author.type != "community_user" or author.id not in self._team_seen:
            return message
        return replace(message, author=self._deduplicate_author(replace(author, type="team_member")))

    def _read_message(
        self, raw: Raw, place: ChannelId, guild_id: GuildId, left_out: Counter[str]
    ) -> ChatMessage | None:
        try:
            payload = _decode_message(raw)
            head = parse_leniently(payload, _RawExportHead)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            left_out["unreadable"] += 1
            return None
        if not _is_snowflake(head.id):
            raise ConfigError(
                f"has a message {head.id[:40]!r}: ids of Discord's are numbers of up to {_LONGEST_ID} digits; "
                "only exports that DiscordChatExporter wrote as JSON can be imported"
            )
        if head.type is not None and head.type not in _WRITTEN:
            left_out["system"] += 1
            return None
        try:
            return self._build_message(parse_leniently(payload, _RawExportMessage), MessageId(head.id), place, guild_id)
        except (msgspec.ValidationError, OverflowError):
            left_out["unreadable"] += 1
            return None

    def _build_message(
        self, told: _RawExportMessage, message_id: MessageId, place: ChannelId, guild_id: GuildId
    ) -> ChatMessage:
        reply_to, author = _reply_target(told), self._build_author(told.author, message_id)
        mentioned = islice(parse_items(told.mentions, _RawExportAuthor), _MOST_MENTIONS)
        accounts = [self._build_author(account) for account in mentioned]
        own = _restore_mentions(told.content or "", _map_names_to_ids(accounts))
        contents = (replace(told, content=own), *parse_items([told.forwarded_message], _RawExportContent))
        text = read_text(*contents, is_bots=author.type == "bot")
        self._own_ends.pop(message_id, None)
        if len(text) > len(own):
            self._own_ends[message_id] = len(own)
        files = list(chain.from_iterable(content.attachments or () for content in contents))
        return ChatMessage(
            id=message_id,
            guild_id=guild_id,
            channel_id=place,
            author=author,
            text=text,
            at=_utc(told.timestamp),
            edited_at=_utc(told.timestamp_edited) if told.timestamp_edited else None,
            reply_to=reply_to,
            reply_to_channel=place if reply_to else None,  # Discord allows no replies across channels
            attachments=tuple(_build_attachment(file) for file in parse_items(files, _RawExportFile)),
            mentioned_staff=frozenset(account.id for account in accounts if account.type != "community_user"),
        )

    def _build_author(self, raw: _RawExportAuthor, message_id: MessageId | None = None) -> Author:
        user_id, roles = UserId(raw.id), {RoleId(role.id) for role in parse_items(raw.roles, _RawExportRole)}
        is_self = user_id == self._team.bot_id
        kind: AuthorType = "bot" if raw.is_bot or is_self else "community_user"
        if kind != "bot" and (user_id in self._team.member_ids or not roles.isdisjoint(self._team.role_ids)):
            kind = "team_member"
            self._team_seen.add(user_id)
        name = raw.nickname or raw.name or raw.id
        handles = tuple(filter(None, (raw.nickname, raw.name)))
        user_id = identify_author(user_id, message_id)
        return self._deduplicate_author(Author(id=user_id, name=name, type=kind, is_self=is_self, handles=handles))

    def _deduplicate_author(self, author: Author) -> Author:
        # One object for all messages of an author: most of them say the same of themselves.
        return self._authors.setdefault(author, author)


def _load_export(path: Path) -> _RawExport:
    """Read a file. Raises ConfigError, whose words follow the name of the file."""
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise ConfigError("is empty: export the channel again")
            # Mapped, not read: the raw messages point into it until each is decoded.
            text = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        why = f"cannot be read ({error.strerror}); name files that exist and that you may read"
        raise ConfigError("holds no *.json: export with --format Json" if path.is_dir() else why) from error
    text = _as_utf8(text)
    for beginning, what in _OTHER_FORMATS:
        if bytes(text[:100]).lstrip().startswith(beginning):
            raise ConfigError(f"is {what}")
    try:
        return _parse_export(text)
    except (msgspec.ValidationError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        why = f"is no JSON export of DiscordChatExporter ({why}); export the channel with --format Json"
        raise ConfigError(why) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # msgspec says at which byte a file is malformed.
        where = str(error) if "byte" in str(error) else f"{error}: it ends after byte {len(text)}"
        raise ConfigError(f"is damaged or cut off ({where}); export the channel again") from error


def _as_utf8(text: memoryview) -> memoryview:
    """Return the text without a byte order mark, in UTF-8: shells of Windows redirect in UTF-16."""
    encoding = json.detect_encoding(bytes(text[:4]))
    if encoding == "utf-8-sig":
        return text[3:]
    return text if encoding == "utf-8" else memoryview(bytes(text).decode(encoding, "replace").encode())


def _parse_export(text: memoryview) -> _RawExport:
    try:
        return msgspec.json.decode(text, type=_RawExport)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Half a surrogate may be the only fault; the second try differs in nothing else from the first.
        return msgspec.json.decode(replace_json_surrogates(bytes(text)), type=_RawExport)


def _decode_message(raw: Raw) -> object:
    """Decode a message; bytes that are no UTF-8 become U+FFFD."""
    try:
        return msgspec.json.decode(raw)
    except UnicodeDecodeError:
        return msgspec.json.decode(bytes(raw).decode("utf-8", "replace"))


def _build_channel(raw: _RawExportChannel, guild_id: GuildId, *, opens_itself: bool) -> Channel:
    thread = raw.type in _THREADS
    # The exporter does not name a thread's parent. Only a forum post holds a message that has the thread's own id.
    return Channel(
        id=ChannelId(raw.id),
        guild_id=guild_id,
        kind=("post" if opens_itself else "thread") if thread else "channel",
        name=raw.name or "",
        # It calls the channel that a thread hangs in its category.
        parent_id=ChannelId(raw.category_id) if thread and raw.category_id else None,
        private=raw.type == _PRIVATE_THREAD or raw.type in _DIRECT,
    )


def _reply_target(told: _RawExportMessage) -> MessageId | None:
    # A forwarded message is no reply, though it has the same kind of reference; old exporters write the type alone.
    reference = told.reference if told.type in {None, "Reply"} and told.forwarded_message is None else None
    if reference is None or reference.type == "Forward" or not reference.message_id:
        return None
    return MessageId(reference.message_id)


def _map_names_to_ids(accounts: Iterable[Author]) -> _Ids:
    ids: _Ids = defaultdict(set)
    for account in accounts:
        for name in account.handles:
            ids[f"@{name}"].add(account.id)
    return ids


def _restore_mentions(text: str, ids: _Ids) -> str:
    """Write `@Name`, which the exporter makes of mentions, as `<@id>` again, where one account alone is named so."""
    # A name may begin with another.
    names = sorted((name for name in ids if name in text), key=len, reverse=True) if "@" in text else ()
    if not names:
        return text
    # Next to letters of other scripts too: not all of them set words apart.
    named = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, names))})(?![A-Za-z0-9])")
    return named.sub(lambda name: f"<@{next(iter(ids[name[0]]))}>" if len(ids[name[0]]) == 1 else name[0], text)


def _build_attachment(file: _RawExportFile) -> Attachment:
    name = file.file_name or ""
    size, kind = int(file.file_size_bytes or 0), guess_type(name)[0]
    return Attachment(id=file.id or name, filename=name, url=file.url or "", size=size, content_type=kind)


def _is_snowflake(snowflake: str) -> bool:
    return snowflake.isascii() and snowflake.isdigit() and len(snowflake) <= _LONGEST_ID


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
