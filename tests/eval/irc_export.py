"""Real IRC logs as people's exports of Discord channels: from channel, author, time, text and replies, and no more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from intern.core.ids import MessageId, UserId, position_at
from tests.eval.chats import ChatLine, chat_lines, rows

GUILD = "5"
# Some logs are older than Discord. Its ids begin with 2015, so all of them are moved on by the same time.
_LATER = timedelta(days=20 * 365)


class Role(msgspec.Struct, frozen=True):
    """The role of a person in a channel."""

    channel: str
    author: str
    role: str


class Exported(NamedTuple):
    """The logs as files, and how to find one's way back."""

    files: tuple[Path, ...]
    team_ids: tuple[UserId, ...]
    ids: Mapping[str, MessageId]
    """A message's id on Discord, by that of its line."""


def export(folder: Path) -> Exported:
    """A file a channel in `folder`, as DiscordChatExporter writes them."""
    lines = sorted(chat_lines().values(), key=lambda line: line.at)
    ids = dict(_ids(lines))
    channels: dict[str, list[ChatLine]] = defaultdict(list)
    for line in lines:
        channels[line.channel].append(line)
    files: list[Path] = []
    for number, (name, said) in enumerate(channels.items(), start=100):
        path = folder / f"{number}.json"
        path.write_bytes(msgspec.json.encode(_channel(str(number), name, said, ids)))
        files.append(path)
    team = tuple(_user(each.channel, each.author) for each in rows("chat_irc_roles.jsonl", Role) if each.role == "team")
    return Exported(tuple(files), team, ids)


def _ids(lines: Sequence[ChatLine]) -> Iterator[tuple[str, MessageId]]:
    taken: Counter[datetime] = Counter()
    for line in lines:  # in order, for most of the logs tell the minute only
        yield line.message_id, position_at(line.at + _LATER, taken[line.at]).id
        taken[line.at] += 1


def _channel(channel_id: str, name: str, said: Sequence[ChatLine], ids: Mapping[str, MessageId]) -> dict[str, Any]:
    messages = [_message(line, channel_id, ids) for line in said if line.author]
    return {
        "guild": {"id": GUILD, "name": "irc", "iconUrl": ""},
        "channel": {"id": channel_id, "type": "GuildTextChat", "categoryId": None, "name": name, "topic": None},
        "dateRange": {"after": None, "before": None},
        "messages": messages,
        "messageCount": len(messages),
    }


def _message(line: ChatLine, channel_id: str, ids: Mapping[str, MessageId]) -> dict[str, Any]:
    user = _user(line.channel, line.author or "")
    message: dict[str, Any] = {
        "id": ids[line.message_id],
        "type": "Reply" if line.reply_to else "Default",
        "timestamp": (line.at + _LATER).isoformat(),
        "timestampEdited": None,
        "isPinned": False,
        "content": line.text,
        "author": {"id": user, "name": line.author, "nickname": line.author, "isBot": False, "roles": []},
        "attachments": [],
        "embeds": [],
        "reactions": [],
        "mentions": [],
    }
    if line.reply_to:  # Discord has room for one
        message["reference"] = {"messageId": ids[line.reply_to[0]], "channelId": channel_id, "guildId": GUILD}
    return message


def _user(channel: str, author: str) -> UserId:
    """Return a person as a member of one channel: the team differs by channel, so each person is another in each."""
    return UserId(str(int(sha256(f"{channel} {author}".encode()).hexdigest()[:14], 16)))
