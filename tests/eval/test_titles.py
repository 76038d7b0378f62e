"""The effect of a post's title on the search: real questions with titles, built and sought by our own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from intern.answering.prepared_question import prepare_question
from intern.chat.context import BatchContext
from intern.chat.conversations import build_conversation
from intern.chat.options import ConversationOptions
from intern.core.flow import Batch, MessageCreated
from intern.core.ids import ChannelId, SourceId, UserId
from intern.core.search_documents import SearchFilter
from intern.platforms.discord.events import read_event
from intern.platforms.discord.gateway_cache import ChannelsUpdated, GatewayCache
from intern.platforms.discord.messages import Team
from intern.search.embedding_local import LocalEmbedder, is_english_installed
from intern.search.hybrid_search import HybridSearch
from intern.stores.engines.sqlite.database import SqliteDatabase
from tests.eval import retrieval
from tests.eval.chats import EVAL

GAIN = 1.05
"""What recall@5 must reach with titles, as a share of that of bodies alone."""
FORUM, GUILD, POST = "3000", "1", "40000000000000000"


def question_of(title: str, body: str) -> str:
    """Return what is searched for when a member opens a post."""
    cache = GatewayCache()
    for told in (
        {"id": FORUM, "type": 15, "guild_id": GUILD, "name": "help"},
        {"id": POST, "type": 11, "guild_id": GUILD, "parent_id": FORUM, "owner_id": "7", "name": title},
    ):
        seen = read_event("THREAD_CREATE", told, Team(bot_id=UserId("8")), cache)
        assert isinstance(seen, ChannelsUpdated)
        cache.apply(seen)
    payload: dict[str, Any] = {"id": POST, "channel_id": POST, "guild_id": GUILD, "author": {"id": "7"}}
    event = read_event("MESSAGE_CREATE", payload | {"content": body}, Team(bot_id=UserId("8")), cache)
    assert isinstance(event, MessageCreated)
    batch = Batch(channel_id=ChannelId(POST), author=event.message.author, messages=(event.message,))
    return prepare_question(build_conversation(batch, BatchContext(), ConversationOptions()), addressed=True).question


class TestOnRealQuestions:
    pytestmark = [  # noqa: RUF012
        pytest.mark.anyio,
        pytest.mark.long,
        pytest.mark.timeout(1200),
        pytest.mark.parametrize("anyio_backend", ["trio"]),
        pytest.mark.skipif(not EVAL.is_dir(), reason="needs the real questions, which are not part of the project"),
        pytest.mark.skipif(not is_english_installed(), reason="needs the extra: embeddings"),
    ]

    # Finding B1.
    async def test_the_right_question_is_found_by_more_with_their_titles_than_without(self, tmp_path: Path) -> None:
        case = next(each for each in retrieval.CASES if each.name == "csse duplicates, title+body")
        rows = [row for row, _ in retrieval.questions(case) if row.relevant]
        relevant = [list(map(SourceId, row.relevant)) for row in rows]
        embedder = LocalEmbedder()
        async with await SqliteDatabase.open(tmp_path / "titles.db") as db:
            shelf = retrieval.Shelf(db, tmp_path, embedder)
            await shelf.hold(case)

            async def recall(finder: HybridSearch, titles: list[str]) -> float:
                found: list[list[SourceId]] = []
                for row, title in zip(rows, titles, strict=True):
                    best = await finder.find_without_terms(
                        question_of(title, row.body), SearchFilter(), retrieval.DEPTH
                    )
                    found.append([each.document.source_id for each in best if each.document.source_id != row.doc_id])
                return retrieval.scored(found, relevant).recall_5

            bare, titles = ["" for _ in rows], [row.query for row in rows]
            for by, finder in (
                ("words", HybridSearch(shelf.store)),
                ("words and vectors", HybridSearch(shelf.store, embedder)),
            ):
                without, with_titles = await recall(finder, bare), await recall(finder, titles)
                print(
                    f"recall@5 of {len(rows)} questions by {by}: {without:.3f} without titles, {with_titles:.3f} with"
                )
                assert with_titles >= without * GAIN, by
