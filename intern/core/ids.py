"""Ids, each a type of its own, so that a channel is never passed where a message is meant.

Ids are text, as a platform writes them. The id of a message also gives its `Position`, the only order that there is.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NewType

from msgspec import Struct

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
"""A slug: `[a-z0-9-]`, 1 to 64 characters. Made by `core.text.words.make_topic_name`, never raw from a model."""

# Positions count from here, so that they equal the ids of the platform with the most data.
_BEGINNING = datetime(2015, 1, 1, tzinfo=UTC)
_TICKS = 1 << 22  # of a position, in a millisecond
_MILLISECOND = timedelta(milliseconds=1)
_FOREIGN = 1 << 64

_ANSWERED = "answered_"
_REPLY = "reply_"


class Position(Struct, frozen=True, order=True):
    """A place in the order of all messages of a community, across its channels."""

    ticks: int
    """Milliseconds in the upper bits; the lowest 22 tell messages of one millisecond apart."""
    foreign: str = ""
    """An id that gives no position; it comes after all others."""

    def __str__(self) -> str:
        return self.foreign or str(self.ticks)

    @property
    def id(self) -> MessageId:
        """The id of a message there. History can be asked about it, whether or not there is such a message."""
        return MessageId(str(self))

    @property
    def is_known(self) -> bool:
        """Whether the id gives its position."""
        return self.ticks != _FOREIGN

    @property
    def time(self) -> datetime:
        """When a message there was written (UTC, to the millisecond). Raises ValueError for a foreign id."""
        if not self.is_known:
            raise ValueError(f"{self.foreign[:40]!r} tells no time")
        return _BEGINNING + _MILLISECOND * (self.ticks // _TICKS)

    @property
    def previous(self) -> Position:
        """The place right before this one."""
        return Position(self.ticks - 1)

    @property
    def next(self) -> Position:
        """The place right after this one."""
        return Position(self.ticks + 1)

    def before(self, duration: timedelta) -> Position:
        """Return the place so much earlier."""
        return Position(self.ticks - duration // _MILLISECOND * _TICKS)

    def after(self, duration: timedelta) -> Position:
        """Return the place so much later."""
        return Position(self.ticks + duration // _MILLISECOND * _TICKS)


FIRST = Position(0)
"""The place before all messages."""
LAST = Position((1 << 63) - 1)
"""The place after all messages."""


@lru_cache(4096)  # sorting messages asks for the same ones again and again
def parse_position(message_id: str) -> Position:
    """Return the position of a message. Only this and the platform read an id. Channels have ids of the same kind."""
    is_position = message_id.isascii() and message_id.isdigit()
    return Position(int(message_id)) if is_position else Position(_FOREIGN, message_id)


def position_at(moment: datetime, sequence: int = 0) -> Position:
    """Return the place of a message written at `moment`; `sequence` (0 to 4095) tells equal milliseconds apart."""
    return Position((moment - _BEGINNING) // _MILLISECOND * _TICKS | sequence)


def thread_conversation(thread: ChannelId) -> ConversationId:
    """Return the conversation of a captured thread."""
    return ConversationId(f"thread_{thread}")


def bot_answer_conversation(thread: ChannelId) -> ConversationId:
    """Return the conversation of a thread in which intern answered and no team member was captured."""
    return ConversationId(f"{_ANSWERED}{thread}")


def bot_answer_thread(conversation: ConversationId) -> ChannelId | None:
    """Return the thread of such a conversation; None for any other."""
    return ChannelId(conversation.removeprefix(_ANSWERED)) if conversation.startswith(_ANSWERED) else None


def reply_conversation(root: MessageId) -> ConversationId:
    """Return the conversation that grew from a message by replies."""
    return ConversationId(f"{_REPLY}{root}")
