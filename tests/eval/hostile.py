"""Strings that mean harm, where they are at hand; never part of the project, never printed, never fetched."""

from __future__ import annotations

from functools import cache

import msgspec
from msgspec import Struct

from tests.eval.chats import EVAL

STRINGS = EVAL / "adversarial.jsonl"


class Attack(Struct, frozen=True):
    """A row: a text, and for some what it wants said, by what question, beside which document."""

    id: str
    category: str
    text: str
    payload: str | None = None
    canary: str | None = None
    question: str | None = None

    @property
    def is_benign(self) -> bool:
        """An honest link, to tell caution from deafness."""
        return self.category == "benign_control"

    @property
    def strings(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.text, self.payload, self.canary, self.question)))


@cache
def attacks() -> tuple[Attack, ...]:
    with STRINGS.open("rb") as file:
        return tuple(msgspec.json.decode(row, type=Attack) for row in file)


@cache
def strings() -> tuple[str, ...]:
    """Every string once, the honest links among them."""
    return tuple(dict.fromkeys(string for attack in attacks() for string in attack.strings))
