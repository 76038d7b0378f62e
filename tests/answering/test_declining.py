"""Declining: members who called the bot get a reason, but not every time; each decline is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pytest
from msgspec import structs

from intern.answering.replies import Decliner
from intern.answering.wordings import load_wordings
from intern.core.errors import KnowledgeError
from intern.core.flow import DeclineReason, QuestionDeclined
from intern.core.ids import ChannelId, MessageId
from intern.stores.tables.answers import AnswerStore, QuestionWords
from tests.worlds.clock import HandClock
from tests.worlds.samples import answer_request, author, message

pytestmark = pytest.mark.anyio

REASONS: tuple[DeclineReason, ...] = get_args(DeclineReason)


class Accounts(AnswerStore):
    """The recorded outcomes of questions."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.kept: list[tuple[tuple[MessageId, ...], str, str]] = []
        self.broken = False

    async def save(
        self,
        message_ids: Sequence[MessageId],
        channel_id: ChannelId,
        *,
        outcome: str,
        reason: str = "",
        debug: Mapping[str, Any] | None = None,
        words: QuestionWords | None = None,
        beside: bool = False,
    ) -> None:
        if self.broken:
            raise KnowledgeError("the disk is full, as the test asked")
        self.kept.append((tuple(message_ids), outcome, reason))


class Desk:
    def __init__(self) -> None:
        self.clock, self.accounts = HandClock(), Accounts()
        self.declining = Decliner(load_wordings(), records=self.accounts, clock=self.clock)

    def word(self, reason: DeclineReason, *, by: str = "alice", called: bool = True) -> str | None:
        reply = self.declining.decide_reply(declined(reason, by=by, called=called))
        return reply.text if reply else None


def declined(reason: DeclineReason, *, by: str = "alice", called: bool = True) -> QuestionDeclined:
    request = structs.replace(answer_request(message("How?", by=author(by))), called=called)
    return QuestionDeclined(request=request, reason=reason)


def test_each_reason_has_words_of_its_own_and_no_promise() -> None:
    desk = Desk()
    words = [desk.word(reason) or "" for reason in REASONS]
    assert all(words)
    assert len(set(words)) == len(REASONS)
    assert not any("been told" in each for each in words)


def test_the_words_are_in_the_language_of_the_question() -> None:
    desk = Desk()
    asked = structs.replace(answer_request(message("wo finde ich die Logs?")), called=True)
    told = [desk.declining.decide_reply(QuestionDeclined(request=asked, reason=reason)) for reason in REASONS]
    german = load_wordings()["de"]
    words = {german.limit, german.over_budget, german.late, german.busy, german.voice}
    assert {each.text for each in told if each} == words


@pytest.mark.parametrize("reason", REASONS)
def test_who_did_not_call_the_bot_is_told_nothing(reason: DeclineReason) -> None:
    desk = Desk()
    assert desk.word(reason, called=False) is None
    assert desk.word(reason)  # and no notice was counted


@pytest.mark.parametrize(
    ("reason", "seconds"), [("asked too much", 3600), ("day used up", 86_400), ("too old", 3600), ("shed", 60)]
)
def test_a_member_is_told_a_thing_once_in_a_while(reason: DeclineReason, seconds: int) -> None:
    desk = Desk()
    assert desk.word(reason)
    assert desk.word(reason, by="bob")
    desk.clock.turn(seconds=seconds - 1)
    assert desk.word(reason) is None
    desk.clock.turn(seconds=1)
    assert desk.word(reason)


def test_whom_it_told_is_forgotten_in_time_also_when_the_clock_is_put_back() -> None:
    desk = Desk()
    for n in range(1000):
        assert desk.word("shed", by=f"member{n}")
        desk.clock.turn(seconds=30)
    assert len(desk.declining._told["shed"]) <= 2
    desk.clock.turn(days=-365)
    assert desk.word("shed", by="member999")


def test_a_word_is_a_notice_on_the_question_that_settles_it() -> None:
    asked = declined("shed")
    reply = Desk().declining.decide_reply(asked)
    assert reply is not None
    assert (reply.notice, reply.buttons, reply.mention_role) == (True, (), None)
    assert (reply.question, reply.settles) == (asked.request.batch.last, (asked.request.batch.last.id,))


async def test_every_refusal_is_accounted_for_whether_or_not_somebody_is_told() -> None:
    desk = Desk()
    for reason in REASONS:
        await desk.declining.record_decline(declined(reason, called=False))
    assert [(outcome, reason) for _, outcome, reason in desk.accounts.kept] == [
        ("passed over", "asked too much"),
        ("passed over", "day used up"),
        ("shed", "shed"),
        ("passed over", "too old"),
        ("passed over", "voice"),
    ]


async def test_an_account_that_cannot_be_kept_changes_nothing() -> None:
    desk = Desk()
    desk.accounts.broken = True
    await desk.declining.record_decline(declined("shed"))
