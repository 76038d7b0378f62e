"""Ids, each a type of its own, so that a channel is never passed where a message is meant.

Discord's ids are snowflakes kept as decimal strings, as they travel; compare them with `by_age`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NewType

GuildId = NewType("GuildId", str)
ChannelId = NewType("ChannelId", str)
MessageId = NewType("MessageId", str)
UserId = NewType("UserId", str)
RoleId = NewType("RoleId", str)

ConversationId = NewType("ConversationId", str)
"""`thread_<thread id>` or `reply_<root message id>` of what was captured, `answered_<thread id>` of a thread that
intern answered in; stable however long the conversation grows."""

QAId = NewType("QAId", str)
"""`qa_YYYYMMDD_HHMMSS[.ffffff]`, derived from the time of archiving (UTC)."""

SourceId = NewType("SourceId", str)
"""`kb:<relative path>`, `kb:<url>`, `team:<topic>.txt`, `nugget:<id>` or `fact:<id>`; a team answer is cited as
`team:<topic>.txt#<qa id>`."""

NuggetId = NewType("NuggetId", str)
"""A UUID. A nugget is cited as `nugget:<id>`."""

FactId = NewType("FactId", str)
"""A UUID. A fact is cited as `fact:<id>`."""

TopicName = NewType("TopicName", str)
"""A slug: `[a-z0-9-]`, 1 to 64 characters. Made by `core.text.words.topic_name`, never taken raw from a model."""

# Discord's epoch, the first second of 2015 (Discord's reference, "Snowflakes").
_DISCORD_EPOCH = datetime(2015, 1, 1, tzinfo=UTC)

_ANSWERED = "answered_"
_REPLY = "reply_"


def by_age(snowflake: str) -> tuple[int, str]:
    """Sort key that puts older snowflakes first; foreign ids (not decimal) sort by their text, after all others."""
    return (int(snowflake), "") if snowflake.isascii() and snowflake.isdigit() else (1 << 64, snowflake)


def snowflake_time(snowflake: str) -> datetime:
    """When Discord made the id (UTC, to the millisecond). Raises ValueError for what is no snowflake."""
    return _DISCORD_EPOCH + timedelta(milliseconds=int(snowflake) >> 22)


def snowflake_at(moment: datetime, sequence: int = 0) -> str:
    """Return the snowflake of a moment; `sequence` (0 to 4095) distinguishes equal milliseconds."""
    return str((((moment - _DISCORD_EPOCH) // timedelta(milliseconds=1)) << 22) | sequence)


def thread_conversation(thread: ChannelId) -> ConversationId:
    """Return the conversation of a captured thread."""
    return ConversationId(f"thread_{thread}")


def answered_conversation(thread: ChannelId) -> ConversationId:
    """Return the conversation of a thread in which intern answered and no team member was captured."""
    return ConversationId(f"{_ANSWERED}{thread}")


def answered_thread(conversation: ConversationId) -> ChannelId | None:
    """Return the thread of such a conversation; None for any other."""
    return ChannelId(conversation.removeprefix(_ANSWERED)) if conversation.startswith(_ANSWERED) else None


def reply_conversation(root: MessageId) -> ConversationId:
    """Return the conversation that grew from a message by replies."""
    return ConversationId(f"{_REPLY}{root}")


def in_channel(conversation: ConversationId) -> bool:
    """Return whether a conversation grew from a message by replies, without a thread of its own."""
    return conversation.startswith(_REPLY)
