"""Each reason for silence is one code, and means the same in the log, at the terminal, on Discord and in the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from intern.answering.interaction_handler import format_trace
from intern.answering.wordings import Wording
from intern.core.flow import DeclineReason
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import LOOKUP_FAILURES, SILENCES, SilenceReason
from intern.stores.tables.answers import AnswerRecord
from tests.worlds.samples import START

PAGE = Path(__file__).parents[2] / "docs" / "how-it-decides.md"
REASONS = tuple(reason for reason in get_args(SilenceReason) if reason)


def account(reason: str) -> AnswerRecord:
    """Return the record of a question without an answer."""
    where = ChannelId("2")
    return AnswerRecord(
        question_id=MessageId("1"),
        channel_id=where,
        at=START,
        changed_at=START,
        outcome="silent",
        reason=reason,
        debug={},
    )


def test_every_reason_stands_once_in_the_docs_and_no_other_does() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| reason |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(REASONS)
    assert set(listed[-len(LOOKUP_FAILURES) :]) == LOOKUP_FAILURES, "the last are said to be those that could not look"


def test_every_reason_has_words_of_its_own_without_its_code() -> None:
    said = {SILENCES[reason].words for reason in REASONS}
    assert len(said) == len(REASONS)
    assert not any(reason in SILENCES[reason].words for reason in REASONS if "_" in reason)


def test_every_reason_has_a_text_for_the_asker_and_every_declined_question_a_counter() -> None:
    declined = [SILENCES[reason] for reason in get_args(DeclineReason)]
    assert {each.wording for each in (*map(SILENCES.__getitem__, REASONS), *declined)} <= {*Wording.__struct_fields__}
    assert {each.wording for each in SILENCES.values()} - {""} <= {*Wording.__struct_fields__}
    assert len({each.counter for each in declined} - {""}) == len(declined)
    assert {
        reason for reason in REASONS if SILENCES[reason].wording in {"cannot_look", "over_budget"}
    } == LOOKUP_FAILURES


def test_who_asks_why_on_discord_is_told_in_words() -> None:
    said = {format_trace(account(reason)) for reason in REASONS}
    assert len(said) == len(REASONS)
    assert not [reason for reason in REASONS if format_trace(account(reason)) == format_trace(account("nonsense"))]
