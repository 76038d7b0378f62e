"""Each reason for silence is one code, and means the same in the log, at the terminal, on Discord and in the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct

from intern.answering.slash_commands import explained
from intern.core.ids import MessageId
from intern.core.messages import COULD_NOT_LOOK, SilenceReason
from intern.frontends.cli.options import in_words

PAGE = Path(__file__).parents[2] / "docs" / "how-it-decides.md"
REASONS = tuple(reason for reason in get_args(SilenceReason) if reason)


class Account(Struct, frozen=True):
    """What is kept of a question that stayed without an answer."""

    reason: str
    question_id: MessageId = MessageId("1")
    outcome: str = "silent"
    debug: dict[str, Any] = {}


def test_every_reason_stands_once_in_the_docs_and_no_other_does() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| reason |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(REASONS)
    assert set(listed[-len(COULD_NOT_LOOK) :]) == COULD_NOT_LOOK, "the last are said to be those that could not look"


def test_every_reason_has_words_of_its_own_and_its_code_beside_them() -> None:
    said = {in_words(reason) for reason in REASONS}
    assert len(said) == len(REASONS)
    assert all(in_words(reason).endswith(f" ({reason})") for reason in REASONS)


def test_who_asks_why_on_discord_is_told_in_words() -> None:
    said = {explained(Account(reason)) for reason in REASONS}
    assert len(said) == len(REASONS)
    assert not [reason for reason in REASONS if explained(Account(reason)) == explained(Account("nonsense"))]
