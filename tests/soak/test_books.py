"""The reconciliation finds what it is there for: losses, doubles, pings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from intern.core.captures import CapturedPair, TopicBlock, Turn
from intern.core.decisions import PairFiled, PairSkipped
from intern.core.ids import ChannelId, ConversationId, MessageId, QAId, TopicName
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.outbox import Outbox
from tests.soak.books import (
    Account,
    Books,
    Part,
    Posted,
    Said,
    Shed,
    accounts_in,
    books_in,
    faults,
    lessons,
    questions,
)
from tests.worlds import samples
from tests.worlds.bot import settings_in
from tests.worlds.clock import HandClock

NOW = datetime(2026, 1, 5, tzinfo=UTC)
WINDOW = timedelta(seconds=2)
QUESTION = Said(id="1", place="p", author="ada", role="user", text="How?", at=NOW)
ANSWER = Said(id="2", place="p", author="mira", role="team", text="So.", at=NOW, replies_to="1", replies_to_role="user")
PAIR = CapturedPair(
    qa_id=QAId("qa_20260105_000000.000001"),
    timestamp=NOW,
    conversation_id=ConversationId("reply_1"),
    turns=(Turn("User", "How?"), Turn("Team", "So.")),
    message_ids=(MessageId("1"), MessageId("2")),
    answered_at=NOW,
)
BLOCK = TopicBlock(qa_id=PAIR.qa_id, timestamp=NOW, turns=PAIR.turns, conversation_id=PAIR.conversation_id)
FILED = PairFiled(qa_id=PAIR.qa_id, topic=TopicName("t"), at=NOW)
BOOKS = Books(
    parts=(Part(question_id="1", place="1", text="Thus.", message_id="3", state="finished"),),
    covered={"1": 1},
    answered={},
    pairs=(PAIR,),
    decisions=(FILED,),
    blocks={PAIR.qa_id: (BLOCK,)},
    counts={},
)
AGAIN = msgspec.structs.replace(
    PAIR,
    qa_id=QAId("qa_20260105_000000.000002"),
    conversation_id=ConversationId("thread_1"),
    turns=PAIR.turns[1:],
    message_ids=PAIR.message_ids[1:],
)
POSTED = Posted(id="3", place="1", text="Thus.", pings=())


def _found(
    books: Books = BOOKS,
    *posted: Posted,
    said: tuple[Said, ...] = (QUESTION, ANSWER),
    accounts: Mapping[str, Account] | None = None,
    shed: Shed | None = None,
) -> str:
    return "\n".join(faults(said, posted or (POSTED,), accounts or {}, books, window=WINDOW, shed=shed))


def test_nothing_is_amiss_where_the_question_has_its_answer_and_the_lesson_its_place() -> None:
    assert _found() == ""


@pytest.mark.parametrize(
    ("books", "says"),
    [
        (BOOKS._replace(covered={}), "nobody knows what became of it"),
        (BOOKS._replace(covered={"1": 2}), "1 is held by 2 replies"),
        (BOOKS._replace(pairs=(), decisions=(), blocks={}), "is not captured"),
        (BOOKS._replace(decisions=()), "nothing was decided"),
        (BOOKS._replace(decisions=(FILED, FILED)), "filed or skipped 2 times"),
        (BOOKS._replace(decisions=(PairSkipped(qa_id=PAIR.qa_id, at=NOW),)), "without a reason"),
        (BOOKS._replace(blocks={}), "does not stand once"),
        (BOOKS._replace(blocks={PAIR.qa_id: (BLOCK, BLOCK)}), "stands in the topics 2 times"),
        (
            BOOKS._replace(blocks={PAIR.qa_id: (BLOCK,), QAId("another"): (BLOCK,)}),
            "2 blocks survive of reply_1",
        ),
        (BOOKS._replace(pairs=(PAIR, PAIR)), "are archived 2 times"),
        (
            BOOKS._replace(pairs=(msgspec.structs.replace(PAIR, turns=(Turn("User", "How?"), Turn("Team", "S"))),)),
            "is not archived once",
        ),
        (
            BOOKS._replace(pairs=(msgspec.structs.replace(PAIR, turns=(Turn("User", "How?"), Turn("User", "So."))),)),
            "is not archived once",
        ),
        (BOOKS._replace(pairs=(PAIR, AGAIN)), "the team's ['2'] are archived as ['reply_1', 'thread_1']"),
        (BOOKS._replace(parts=(BOOKS.parts[0]._replace(state="open"),)), "was left open"),
        (BOOKS._replace(parts=()), "is part of no reply, or was posted twice"),
        (BOOKS._replace(parts=(*BOOKS.parts, BOOKS.parts[0]._replace(text=None))), "is finished, and has no parts"),
        (
            BOOKS._replace(parts=(*BOOKS.parts, Part("9", "1", "Thus, too.", message_id=None, state="finished"))),
            "'Thus, too.' is finished in 1, and not on Discord",
        ),
    ],
)
def test_what_is_lost_or_doubled_is_found(books: Books, says: str) -> None:
    assert says in _found(books)


def test_a_second_post_of_the_same_part_is_found() -> None:
    assert "posted twice" in _found(BOOKS, POSTED, POSTED._replace(id="4"))


def test_a_post_that_discord_never_confirmed_is_known_by_its_place_and_text() -> None:
    unconfirmed = BOOKS._replace(parts=(BOOKS.parts[0]._replace(message_id=None),))
    assert _found(unconfirmed) == ""
    assert "posted twice" in _found(unconfirmed, POSTED, POSTED._replace(id="4"))


def test_a_post_that_the_ledger_holds_and_discord_does_not_is_found() -> None:
    assert "Discord does not" in _found(BOOKS, POSTED._replace(id="4"))


def test_a_ping_is_found() -> None:
    assert "pings ('1',)" in _found(BOOKS, POSTED._replace(pings=("1",)))


def test_who_may_be_in_one_batch_with_a_reply_to_somebody_else_does_not_surely_ask() -> None:
    soon, late = NOW + timedelta(seconds=3), NOW + timedelta(seconds=30)
    aside = QUESTION._replace(id="5", at=soon, replies_to="9", replies_to_role="user")
    assert questions([QUESTION, aside], WINDOW, {}) == []
    assert questions([QUESTION, aside._replace(at=late)], WINDOW, {}) == [QUESTION]
    assert questions([QUESTION._replace(mentions_bot=True), aside], WINDOW, {}) == [
        QUESTION._replace(mentions_bot=True)
    ]


def test_who_goes_on_in_a_thread_surely_asks_once_the_bot_has_answered_there_or_where_it_is_called() -> None:
    soon, late = NOW + timedelta(seconds=3), NOW + timedelta(seconds=30)
    more = QUESTION._replace(id="5", place="1", at=soon, asked_by="user", replies_to="4", replies_to_role="user")
    called = more._replace(id="6", mentions_bot=True)
    assert questions([more, called], WINDOW, {}) == [called]
    assert questions([more, more._replace(at=late)], WINDOW, {"1": soon}) == [more._replace(at=late)]
    assert questions([more._replace(role="team", at=late)], WINDOW, {"1": soon}) == []
    books = BOOKS._replace(answered={"1": NOW})
    assert "5 asks 'How?' in 1, and nobody knows" in _found(books, said=(QUESTION, ANSWER, more))


def test_the_team_teaches_where_it_replies_to_a_member_or_to_the_bot_or_speaks_in_a_members_thread() -> None:
    chat = ANSWER._replace(replies_to=None, replies_to_role=None)
    to_team = ANSWER._replace(replies_to_role="team")
    in_thread = chat._replace(asked_by="user")
    correction = ANSWER._replace(replies_to_role="intern")
    assert lessons([QUESTION, chat, to_team, ANSWER, in_thread, correction]) == [ANSWER, in_thread, correction]


@pytest.mark.parametrize("outcome", ["answer", "notice", "answer posted", "answer failed", "notice already posted"])
def test_an_answer_that_was_made_and_is_in_no_ledger_is_lost(outcome: str) -> None:
    found = _found(BOOKS._replace(covered={}), accounts={"1": Account("1", outcome, "found")})
    assert "nobody knows what became of it" in found


@pytest.mark.parametrize("outcome", ["silent", "shed", "passed over", "answer recalled", "notice dropped"])
def test_a_question_that_came_to_an_end_without_an_answer_is_accounted_for(outcome: str) -> None:
    found = _found(BOOKS._replace(covered={}), accounts={"1": Account("1", outcome, "for a reason")})
    assert "nobody knows" not in found


def test_a_reply_that_was_dropped_or_is_under_way_needs_not_be_on_discord() -> None:
    parts = (*BOOKS.parts, Part("9", "1", "Thus, too.", message_id=None, state="dropped"))
    assert _found(BOOKS._replace(parts=parts)) == ""


@pytest.mark.parametrize("outcome", ["silent", "passed over", "shed"])
def test_a_question_that_is_left_without_a_reason_is_found_once(outcome: str) -> None:
    account = Account("1", outcome, "")
    found = _found(accounts={"0": account, "1": account})
    assert [line for line in found.splitlines() if "without a reason" in line] == [f"1 is {outcome} without a reason"]
    assert "without" not in _found(accounts={"1": account._replace(reason="no question")})


SHED = {
    "1": Account("1", "shed", "shed"),
    "8": Account("9", "notice posted", "shed"),
    "9": Account("9", "shed", "shed"),
}
COUNTED = BOOKS._replace(counts={"questions_shed": 2})


def test_nothing_is_amiss_where_what_was_shed_is_named_and_counted_and_accounted_for() -> None:
    assert _found(COUNTED, accounts=SHED, shed=Shed(["1", "9"])) == ""
    assert _found(shed=Shed([])) == ""


@pytest.mark.parametrize(
    ("counted", "shed", "says"),
    [
        (1, Shed(["1", "9"]), "1 questions are counted as shed, and 2 were"),
        (3, Shed(["1", "9"]), "3 questions are counted as shed, and 2 were"),
        (0, Shed(["1", "9"], late=1, kills=1), "counted as shed, and at least 1 and at most 2 were"),
        (3, Shed(["1", "9", "7"]), "7 was shed, and nobody knows that any more"),
        (1, Shed(["1"]), "no log names them: ['9']"),
        (0, None, "2 questions were shed, and none was counted"),
    ],
)
def test_what_was_shed_and_not_counted_or_not_accounted_for_is_found(
    counted: int, shed: Shed | None, says: str
) -> None:
    assert says in _found(COUNTED._replace(counts={"questions_shed": counted}), accounts=SHED, shed=shed)


@pytest.mark.parametrize("counted", [1, 2])
def test_a_kill_may_take_along_what_was_counted_right_before_it(counted: int) -> None:
    books = COUNTED._replace(counts={"questions_shed": counted})
    assert _found(books, accounts=SHED, shed=Shed(["1", "9"], late=1, kills=1)) == ""


@pytest.mark.anyio
async def test_a_message_that_was_answered_alone_and_then_once_more_with_others_is_found(tmp_path: Path) -> None:
    one, two, here = MessageId("1"), MessageId("2"), ChannelId("10")
    settings, clock = settings_in(tmp_path), HandClock()
    async with await SqliteDatabase.open(settings.paths.database) as db:
        ledger = Outbox(db, clock=clock)
        await ledger.begin(samples.reply(one, here, "in_place"), ["Thus."])
        await ledger.mark_finished(one)
        assert dict(books_in(settings).covered) == {"1": 1}
        # The ledger leaves the first with its own reply, but what was asked and answered held both.
        await ledger.begin(samples.reply(two, here, "in_place", covers=[one, two]), ["Thus, once more."])
        await AnswerStore(db, clock=clock).save([one, two], here, outcome="answer posted")
        assert dict(books_in(settings).covered) == {"1": 1, "2": 1}
        await ledger.mark_finished(two)
        assert dict(books_in(settings).covered) == {"1": 2, "2": 1}
        assert "1 is held by 2 replies" in "\n".join(faults([], [], {}, books_in(settings), window=WINDOW))
        await ledger.mark_dropped(one, "too_old")
        assert dict(books_in(settings).covered) == {"1": 1, "2": 1}


@pytest.mark.anyio
async def test_a_message_whose_reply_was_dropped_may_be_answered_with_a_later_one(tmp_path: Path) -> None:
    one, two, three, here = MessageId("1"), MessageId("2"), MessageId("3"), ChannelId("10")
    settings, clock = settings_in(tmp_path), HandClock()
    async with await SqliteDatabase.open(settings.paths.database) as db:
        ledger = Outbox(db, clock=clock)
        await ledger.begin(samples.reply(two, here, "in_place", covers=[one, two]), ["Thus."])
        await ledger.mark_dropped(two, "team_answered")
        await ledger.begin(samples.reply(three, here, "in_place", covers=[three]), ["Thus, once more."])
        await AnswerStore(db, clock=clock).save([one, three], here, outcome="answer posted")
        await ledger.mark_finished(three)
        assert dict(books_in(settings).covered) == {"1": 1, "2": 1, "3": 1}


@pytest.mark.anyio
async def test_a_thread_is_answered_from_when_an_answer_that_is_no_notice_stood_there(tmp_path: Path) -> None:
    settings, clock = settings_in(tmp_path), HandClock()
    async with await SqliteDatabase.open(settings.paths.database) as db:
        ledger = Outbox(db, clock=clock)
        for n, notice in (("1", False), ("2", True), ("3", False)):
            await ledger.begin(samples.reply(MessageId(n), ChannelId("10"), "new_thread", notice=notice), ["Thus."])
            await ledger.save_thread(MessageId(n), ChannelId(n))
        clock.turn(seconds=60)
        answered = clock.now()
        for n in ("1", "2"):
            await ledger.mark_finished(MessageId(n))
    assert books_in(settings).answered == {"1": answered}


@pytest.mark.anyio
async def test_each_message_of_a_question_has_its_account(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with await SqliteDatabase.open(settings.paths.database) as db:
        await AnswerStore(db, clock=HandClock()).save(
            [MessageId("1"), MessageId("2")], ChannelId("10"), outcome="silent", reason="no_question"
        )
        account = Account("2", "silent", "no_question")
        assert accounts_in(settings) == {"1": account, "2": account}
        assert str(account) == "silent: no_question"
