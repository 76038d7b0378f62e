"""Captures of the team's answers, and pairs as they are archived and filed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from intern.core import ids


@cache
def build_types() -> int:
    """Let msgspec build all types of ours that are loaded, and return how many. Call it before threads use any.

    Two threads that use a type for the first time at once end the process with a segmentation fault (msgspec 0.22).
    """
    types, found = 0, [Struct]
    while found:
        kind = found.pop()
        found += kind.__subclasses__()
        if kind.__module__.startswith("intern."):
            with suppress(NameError, TypeError):  # one with a name that is not loaded is no type that is decoded
                msgspec.json.Decoder(kind)
                types += 1
    return types


Speaker = Literal["User", "Team"]


class Turn(Struct, frozen=True):
    """One message of a captured conversation, its text exactly as written."""

    speaker: Speaker
    text: str


class Capture(Struct, frozen=True, kw_only=True):
    """A question and its team answer, not yet archived. `turns` and `message_ids` run side by side, oldest first."""

    conversation_id: ids.ConversationId
    turns: tuple[Turn, ...]
    message_ids: tuple[ids.MessageId, ...]
    answered_at: datetime
    """Time of the last message (UTC): tells newer knowledge from older, whenever it was archived."""
    guild_id: ids.GuildId | None = None
    channel_id: ids.ChannelId | None = None
    replaces: ids.QAId | None = None
    """The pair that this capture is a fuller or edited version of."""
    author_ids: tuple[ids.UserId, ...] = ()
    """The author of each message, parallel to `message_ids`; "" for an unknown one, empty if none is known."""
    author_names: tuple[tuple[str, ...], ...] = ()
    """The name of each of `author_ids`, or empty. Only on the way to the archive, which holds no names."""

    @property
    def question(self) -> str:
        """The user's turns before the first team turn; all user turns if the team spoke first."""
        return extract_question(self.turns)


def extract_question(turns: Iterable[Turn]) -> str:
    """Return the user's turns before the first team turn; all user turns if the team spoke first."""
    users: list[str] = []
    for turn in turns:
        if turn.speaker == "Team" and users:
            break
        if turn.speaker == "User":
            users.append(turn.text)
    return "\n".join(users)


def copy_capture(capture: Capture, **changes: Any) -> Capture:
    """Return a capture with changes; for an archived pair, the capture in it."""
    return Capture(**{each: getattr(capture, each) for each in Capture.__struct_fields__} | changes)


class CapturedPair(Capture, frozen=True, kw_only=True):
    """A question and its team answer, safe in the archive."""

    qa_id: ids.QAId
    timestamp: datetime
    """Time of archiving (UTC); strictly increases through the archive. `qa_id` is derived from it."""
    extra_headers: tuple[tuple[str, str], ...] = ()
    """Header lines of the archive that this version does not know; kept as they are."""


class TopicBlock(Struct, frozen=True, kw_only=True):
    """A pair in a topic file."""

    qa_id: ids.QAId
    timestamp: datetime
    turns: tuple[Turn, ...]
    conversation_id: ids.ConversationId | None = None
    """None in files that other programs wrote."""
    answered_at: datetime | None = None
    extra_headers: tuple[tuple[str, str], ...] = ()
