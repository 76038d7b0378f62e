"""Real chat questions that the bot is not sure of: who addressed it gets documents to look at, and no claim."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from intern.core.messages import Conversation, Message
from intern.service.calibration import describe_setup
from intern.service.intern import Intern
from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from intern.stores.tables.judgements import Calibration
from tests.eval.chats import EVAL, rows
from tests.eval.retrieval import Row

pytestmark = [
    pytest.mark.on_asyncio,  # the parts are tested on both
    pytest.mark.anyio,
    pytest.mark.rest,
    pytest.mark.skipif(not EVAL.is_dir(), reason="needs the real chats, which are not part of the project"),
]


@pytest.fixture
async def intern(tmp_path: Path) -> AsyncGenerator[Intern]:
    """A bot with the factoids of a channel as documents, by whose judged answers no score keeps to the bound."""
    sources = tmp_path / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    for n, each in enumerate(rows("retrieval_factoids_corpus.jsonl", Row)):
        (sources / f"{n}.md").write_text(f"# {each.title}\n\n{each.text}\n", encoding="utf-8")
    overrides = {
        "data": {"dir": str(tmp_path)},
        "llm": {"provider": "offline"},
        "embeddings": {"provider": "none"},
        "ai": {"unsure": "links"},
    }
    settings = load_settings(environ={}, overrides=overrides)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    async with open_intern(settings) as opened:
        await opened.index()
        kept = Calibration(
            setup=describe_setup(settings), max_wrong=0.05, score=None, links=0.0, judged=60, answered=0, wrong=0, at=at
        )
        await (await opened.acquire_writer()).stores.judgements.save_calibration(kept)
        yield opened


async def test_who_addressed_the_bot_gets_up_to_three_documents_and_no_claim(intern: Intern) -> None:
    known = {each.source_id for each in await intern.entries()}
    unsure = list[Conversation]()
    for row in rows("retrieval_factoids_queries.jsonl", Row):
        question = Conversation((Message(role="user", text=row.query),))
        result = await intern.answer(question, addressed=True)
        assert (result.should_reply, result.reply_text) == (False, None)
        assert bool(result.citations) == (result.reason == "unsure")
        assert len(result.citations) <= 3
        assert {each.source_id for each in result.citations} <= known
        assert not any(each.quote for each in result.citations)
        unsure += [question] * (result.reason == "unsure")
    assert len(unsure) > 10, "rules would answer that many"
    assert not any([(await intern.answer(each, addressed=False)).citations for each in unsure])
