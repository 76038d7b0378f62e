"""Judged answers: each by its strongest judge, with the score of its trace, and never a silence."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from intern.core.ids import ChannelId, MessageId, UserId
from intern.stores.sqlite.database import Database
from intern.stores.sqlite.judgements import JudgementStore
from intern.stores.sqlite.traces import FeedbackStore, TraceStore
from tests.fakes import HandClock

pytestmark = pytest.mark.anyio

ANSWER, SILENCE = MessageId("10"), MessageId("20")
SCORED = {"confidence": {"score": 0.7, "setup": "here", "likeness": 0.5}}


@pytest.fixture
async def db(tmp_path: Path) -> AsyncGenerator[Database]:
    async with await Database.open(tmp_path / "intern.db") as opened:
        traces = TraceStore(opened, clock=HandClock())
        await traces.keep([ANSWER], ChannelId("1"), outcome="answer", debug=SCORED)
        await traces.keep([SILENCE], ChannelId("1"), outcome="silent", reason="unsure", debug=SCORED)
        yield opened


async def test_votes_judge_an_answer_and_no_silence(db: Database) -> None:
    votes, store = FeedbackStore(db, clock=HandClock()), JudgementStore(db, clock=HandClock())
    for question in (ANSWER, SILENCE):
        await votes.vote(question, UserId("1"), up=True)
    [judged] = await store.judged("here")
    assert (judged.question_id, judged.judge, judged.score, judged.wrong) == (ANSWER, "vote", 0.7, False)
    await votes.vote(ANSWER, UserId("2"), up=False)
    assert [each.wrong for each in await store.judged("here")] == [True]
    assert await store.judged("elsewhere") == ()
