"""Real chats, where they are at hand; never part of the project."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

S = TypeVar("S")

EVAL = Path(__file__).parents[3] / "shared" / "eval"


class ChatLine(Struct, frozen=True):
    """A message of an IRC channel."""

    message_id: str
    channel: str
    author: str | None
    timestamp: str
    text: str
    reply_to: tuple[str, ...] = ()
    conversation_id: str | None = None
    """Which conversation it belongs to, as people annotated it."""
    kind: str = ""
    is_bot: bool = False
    annotated: bool = False
    """Its replies and its conversation are known; of other lines they are not."""

    @property
    def at(self) -> datetime:
        return datetime.fromisoformat(self.timestamp).replace(tzinfo=UTC)

    @property
    def number(self) -> int:
        """Its line in the log."""
        return int(self.message_id.rpartition(":")[2])


class Exchange(Struct, frozen=True):
    """A question that the team answered, by message ids."""

    channel: str
    conversation_id: str
    asker: str
    team: tuple[str, ...]
    question_ids: tuple[str, ...]
    answer_ids: tuple[str, ...]
    followup_ids: tuple[str, ...]
    starts_in_context: bool = False
    """Its opening may lie before what was annotated."""

    @property
    def ids(self) -> tuple[str, ...]:
        """All that it names, in the order of the log."""
        named = {*self.question_ids, *self.answer_ids, *self.followup_ids}
        return tuple(sorted(named, key=lambda message_id: int(message_id.rpartition(":")[2])))


@cache
def chat_lines() -> dict[str, ChatLine]:
    """Every line by id."""
    return {line.message_id: line for line in rows("chat_irc.jsonl", ChatLine)}


def exchanges() -> list[Exchange]:
    """Every exchange, oldest first."""
    lines = chat_lines()
    return sorted(rows("chat_irc_exchanges.jsonl", Exchange), key=lambda each: lines[each.ids[0]].at)


def rows(name: str, kind: type[S]) -> Iterator[S]:
    """The rows of a file."""
    with (EVAL / name).open("rb") as file:
        for row in file:
            yield msgspec.json.decode(row, type=kind)
