"""Below the calibrated score there is silence, or links to sources; without a calibration, answers are unchanged."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from intern.answering.answerer import Answerer
from intern.answering.offline_rules import RULES
from intern.answering.prompts import AnsweringOptions
from intern.core.ids import SourceId, UserId
from intern.core.messages import AnswerResult, Conversation, Message, RequestContext
from intern.models.prompt import OfflineModel
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.judgements import Calibration, JudgementStore
from tests.answering.shelf import Shelf

pytestmark = pytest.mark.anyio

SOURCES = {"kb:relay.md": "# Relay port\n\nThe relay listens on port 7480.", "kb:keys.md": "# Keys\n\nRotate keys."}


async def asked(
    folder: Path, calibration: Calibration | None, *, addressed: bool = True, **options: Any
) -> AnswerResult:
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        store = JudgementStore(db)
        if calibration is not None:
            await store.save_calibration(calibration)
        wanted = AnsweringOptions(**options)
        shelf = Shelf(SOURCES)
        shelf.order = [SourceId(each) for each in SOURCES]
        answerer = Answerer(OfflineModel(RULES), shelf, wanted, judgements=store, setup="here")
        question = Message(role="user", text="Which port does the relay listen on?", author_id=UserId("1"))
        return await answerer.answer(Conversation((question,)), RequestContext(), addressed=addressed)


def calibrated(score: float | None, *, links: float | None = 0.0, setup: str = "here") -> Calibration:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Calibration(setup=setup, max_wrong=0.05, score=score, links=links, judged=50, answered=45, wrong=0, at=at)


@pytest.mark.parametrize("calibration", [None, calibrated(0.0), calibrated(1.0, setup="elsewhere")])
async def test_an_answer_is_given_if_it_reaches_the_score_or_none_counts(
    tmp_path: Path, calibration: Calibration | None
) -> None:
    result = await asked(tmp_path, calibration)
    assert result.should_reply
    assert result.debug is not None
    assert 0 < result.debug["confidence"]["score"] < 1


async def test_no_score_counts_where_max_wrong_is_0(tmp_path: Path) -> None:
    assert (await asked(tmp_path, calibrated(1.0), max_wrong=0)).should_reply


async def test_where_no_score_keeps_to_the_bound_no_answer_is_given_until_the_bound_is_raised(tmp_path: Path) -> None:
    result = await asked(tmp_path, calibrated(None), unsure="links")
    assert (result.should_reply, result.reason) == (False, "unsure")
    assert result.citations[0].source_id == "kb:relay.md"
    assert (await asked(tmp_path, calibrated(None), max_wrong=0.1)).should_reply


async def test_an_unsure_answer_is_silence(tmp_path: Path) -> None:
    result = await asked(tmp_path, calibrated(1.0))
    assert (result.should_reply, result.reason, result.citations) == (False, "unsure", ())


async def test_an_addressed_question_gets_sources_without_the_answer(tmp_path: Path) -> None:
    result = await asked(tmp_path, calibrated(1.0), unsure="links")
    assert (result.should_reply, result.reason, result.reply_text) == (False, "unsure", None)
    assert result.citations[0].source_id == "kb:relay.md"
    assert all(each.quote is None for each in result.citations)
    assert not (await asked(tmp_path, calibrated(1.0, links=1.0), unsure="links")).citations
    assert not (await asked(tmp_path, calibrated(1.0), unsure="links", addressed=False)).citations
