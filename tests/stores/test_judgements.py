"""Judged answers: each by its strongest judge, with the score of its trace, and never a silence."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from intern.core.ids import ChannelId, MessageId, UserId
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.feedback import FeedbackStore
from intern.stores.tables.judgements import Judgement, JudgementStore, read_judgements
from intern.stores.tables.outbox import Outbox
from tests.worlds.clock import HandClock
from tests.worlds.samples import reply

pytestmark = pytest.mark.anyio

ANSWER, SILENCE = MessageId("10"), MessageId("20")
SCORED = {"confidence": {"score": 0.7, "setup": "here", "likeness": 0.5}}


@pytest.fixture
async def db(tmp_path: Path) -> AsyncGenerator[SqliteDatabase]:
    async with await SqliteDatabase.open(tmp_path / "intern.db") as opened:
        traces = AnswerStore(opened, clock=HandClock())
        await traces.save([ANSWER], ChannelId("1"), outcome="answer", debug=SCORED)
        await traces.save([SILENCE], ChannelId("1"), outcome="silent", reason="unsure", debug=SCORED)
        yield opened


async def judged(db: SqliteDatabase, setup: str = "here") -> tuple[Judgement, ...]:
    return await db.read(lambda tx: read_judgements(tx, setup))


async def test_votes_judge_an_answer_and_no_silence(db: SqliteDatabase) -> None:
    votes = FeedbackStore(db, clock=HandClock())
    for question in (ANSWER, SILENCE):
        await votes.vote(question, UserId("1"), up=True)
    [found] = await judged(db)
    assert (found.question_id, found.judge, found.score, found.wrong) == (ANSWER, "vote", 0.7, False)
    await votes.vote(ANSWER, UserId("2"), up=False)
    assert [each.wrong for each in await judged(db)] == [True]
    assert await judged(db, "elsewhere") == ()


async def posted(db: SqliteDatabase, question: MessageId, part: str, *, notice: bool = False) -> None:
    """Let a reply to a question have been posted as the message `part`."""
    posts = Outbox(db, clock=HandClock())
    await posts.begin(reply(question, ChannelId("1"), "in_place", covers=[question], notice=notice), ["so"])
    await posts.save_sent_part(question, 0, MessageId(part))
    await posts.mark_finished(question)


async def test_an_answer_is_judged_wrong_by_its_deletion_and_no_notice_is(db: SqliteDatabase) -> None:
    await posted(db, ANSWER, "11")
    unposted = MessageId("30")  # there was an answer, but no thread to give it in
    await AnswerStore(db, clock=HandClock()).save([unposted], ChannelId("1"), outcome="answer", debug=SCORED)
    await posted(db, unposted, "31", notice=True)
    store = AnswerStore(db, clock=HandClock())
    store.drop([MessageId("31"), ANSWER])
    await store.store()
    assert await judged(db) == ()
    store.drop([MessageId("11")])
    await store.store()
    [found] = await judged(db)
    assert (found.question_id, found.judge, found.score, found.wrong) == (ANSWER, "deletion", 0.7, True)


async def test_an_answer_is_judged_wrong_by_the_teams_words_after_it_whatever_members_voted(db: SqliteDatabase) -> None:
    await posted(db, ANSWER, "15")
    await FeedbackStore(db, clock=HandClock()).vote(ANSWER, UserId("1"), up=True)
    store = JudgementStore(db, clock=HandClock())
    for said in ([], [MessageId("14")]):  # nothing, or before the answer
        await store.judge_corrected([ANSWER], said)
        assert [each.judge for each in await judged(db)] == ["vote"]
    await store.judge_corrected([ANSWER, MessageId("16")], [MessageId("14"), MessageId("16")])
    assert [(each.judge, each.wrong) for each in await judged(db)] == [("team", True)]
