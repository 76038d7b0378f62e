"""The reconciliation finds what it is there for: losses, doubles, pings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from intern.domain import CapturedPair, ConversationId, Filed, MessageId, QAId, Skipped, TopicBlock, TopicName, Turn
from tests.soak.books import Books, Part, Posted, Said, faults, lessons, questions

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
FILED = Filed(qa_id=PAIR.qa_id, topic=TopicName("t"), at=NOW)
BOOKS = Books(
    parts=(Part(question_id="1", place="1", text="Thus.", message_id="3", state="finished"),),
    covered=frozenset({"1"}),
    pairs=(PAIR,),
    decisions=(FILED,),
    blocks={PAIR.qa_id: (BLOCK,)},
    counts={},
)
POSTED = Posted(id="3", place="1", text="Thus.", pings=())


def _found(books: Books = BOOKS, *posted: Posted, said: tuple[Said, ...] = (QUESTION, ANSWER)) -> str:
    return "\n".join(faults(said, posted or (POSTED,), {}, books, window=WINDOW))


def test_nothing_is_amiss_where_the_question_has_its_answer_and_the_lesson_its_place() -> None:
    assert _found() == ""


@pytest.mark.parametrize(
    ("books", "says"),
    [
        (BOOKS._replace(covered=frozenset()), "nobody knows what became of it"),
        (BOOKS._replace(pairs=(), decisions=(), blocks={}), "is not captured"),
        (BOOKS._replace(decisions=()), "nothing was decided"),
        (BOOKS._replace(decisions=(FILED, FILED)), "filed or skipped 2 times"),
        (BOOKS._replace(decisions=(Skipped(qa_id=PAIR.qa_id, at=NOW),)), "without a reason"),
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
        (BOOKS._replace(parts=(BOOKS.parts[0]._replace(state="open"),)), "was left open"),
        (BOOKS._replace(parts=()), "is part of no reply, or was posted twice"),
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
    assert questions([QUESTION, aside], WINDOW) == []
    assert questions([QUESTION, aside._replace(at=late)], WINDOW) == [QUESTION]
    assert questions([QUESTION._replace(mentions_bot=True), aside], WINDOW) == [QUESTION._replace(mentions_bot=True)]


def test_the_team_teaches_where_it_replies_to_a_member_or_to_the_bot_or_speaks_in_a_members_thread() -> None:
    chat = ANSWER._replace(replies_to=None, replies_to_role=None)
    to_team = ANSWER._replace(replies_to_role="team")
    in_thread = chat._replace(asked_by="user")
    correction = ANSWER._replace(replies_to_role="intern")
    assert lessons([QUESTION, chat, to_team, ANSWER, in_thread, correction]) == [ANSWER, in_thread, correction]
