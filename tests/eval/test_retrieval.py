"""The right document is found by words and likeness together, at least as well as the bars say, on every set."""

from __future__ import annotations

from pathlib import Path

import pytest

from intern.core.ids import SourceId
from intern.search.embedding_local import LocalEmbedder, is_english_installed
from tests.eval import retrieval, searching
from tests.eval.chats import EVAL


class TestOnRealQuestions:
    pytestmark = [  # noqa: RUF012
        pytest.mark.anyio,
        pytest.mark.long,
        pytest.mark.timeout(1200),
        pytest.mark.parametrize("anyio_backend", ["trio"]),
        pytest.mark.skipif(not EVAL.is_dir(), reason="needs the real questions, which are not part of the project"),
        pytest.mark.skipif(not is_english_installed(), reason="needs the extra: embeddings"),
    ]

    async def test_words_both_and_the_selection_of_entries_reach_the_bar_of_every_set(self, tmp_path: Path) -> None:
        for found in await retrieval.measure(tmp_path, LocalEmbedder()):
            assert found.words.ndcg >= found.plain.ndcg * retrieval.LEAST_BY_WORDS, found.case.name
            assert found.both.ndcg >= found.bar, found.case.name
            assert found.selected.ndcg >= found.searched.ndcg - retrieval.MOST_LOST, found.case.name

    async def test_the_right_source_is_among_the_fifty_shown_for_nine_of_ten(self, tmp_path: Path) -> None:
        assert (await searching.measure(tmp_path, LocalEmbedder())).shown >= searching.SHOWN_BY_BOTH_BAR


def test_scores_are_what_they_are_called() -> None:
    ids = [SourceId(name) for name in "abcd"]
    found = retrieval.scored([ids, ids, []], [[ids[0]], [ids[1], SourceId("z")], [ids[0]]])
    assert found.recall_1 == pytest.approx(1 / 3)
    assert found.recall_5 == found.recall_10 == pytest.approx((1 + 0.5) / 3)
    assert found.mrr == pytest.approx((1 + 0.5) / 3)
    assert found.ndcg == pytest.approx((1 + 0.6309 / 1.6309) / 3, abs=1e-4)
