"""Among nuggets that fit about as well, the fact, the newer one and the one with the keyword come first."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from intern.core.search_documents import SearchDocument, SearchFilter
from intern.search.hybrid_search import HybridSearch
from intern.search.ranking import STAGE_ONE, SearchHit, find_and_rerank, rerank_hits
from tests.search.documents import NOON, Directions, document, opened


def found(
    name: str, score: float = 0.8, *, status: str = "FACT", days: float = 0, keywords: tuple[str, ...] = ()
) -> SearchHit:
    at = NOON - timedelta(days=days)
    made = document(f"nugget:{name}", name, kind="nugget", status=status, at=at, meta={"keywords": keywords})
    return SearchHit(document_id="x", source_id=made.source_id, document=made, score=score)


def order(*nuggets: SearchHit, text: str = "the spool") -> list[str]:
    return [each.document.text for each in rerank_hits(nuggets, text, now=NOON)]


def test_the_fact_comes_first_of_what_fits_as_well() -> None:
    guess, opinion, fact = (
        found("guess", status="SPECULATION"),
        found("opinion", status="COMMUNITY_OPINION"),
        found("fact", 0.75),
    )
    assert order(guess, opinion, fact) == ["fact", "opinion", "guess"]


def test_a_fact_that_hardly_fits_does_not_come_before_what_answers() -> None:
    assert order(found("fact", 0.3), found("guess", status="SPECULATION")) == ["guess", "fact"]


def test_the_newer_comes_first() -> None:
    old, older = found("old", days=300), found("older", days=3000)
    assert order(older, old, found("now", 0.79)) == ["now", "old", "older"]
    # A clock that is wrong makes nothing newer than now.
    assert rerank_hits([found("now", days=-9)], "", now=NOON)[0].score == pytest.approx(0.8)


def test_what_is_no_nugget_keeps_its_score() -> None:
    page = document("kb:a", "written")
    said, written = (
        found("said", 0.8, days=900),
        SearchHit(document_id="y", source_id=page.source_id, document=page, score=0.7),
    )
    assert order(said, written) == ["written", "said"]
    assert rerank_hits([written], "the spool", now=NOON) == (written,)


def test_a_keyword_of_the_question_counts_in_whichever_form() -> None:
    plain, fitting = found("plain", 0.81), found("fitting", keywords=("spooling", "relay"))
    assert order(plain, fitting) == ["fitting", "plain"]
    assert order(plain, fitting, text="valves") == ["plain", "fitting"]
    many = found("many", keywords=("spool",) * 40)
    assert rerank_hits([many], "spool", now=NOON)[0].score < 0.9


@given(
    st.lists(
        st.builds(
            found,
            st.sampled_from("abc"),
            st.floats(0, 1),
            status=st.sampled_from(["FACT", "COMMUNITY_OPINION", "SPECULATION", "made up"]),
            days=st.floats(-10, 10_000),
            keywords=st.tuples(st.text(max_size=9)),
        ),
        max_size=6,
    ),
    st.text(max_size=20),
)
def test_the_second_stage_loses_and_adds_nothing(nuggets: list[SearchHit], text: str) -> None:
    after = rerank_hits(nuggets, text, now=NOON)
    assert sorted(each.document.text for each in after) == sorted(each.document.text for each in nuggets)
    assert [each.score for each in after] == sorted((each.score for each in after), reverse=True)


async def test_the_first_stage_proposes_more_than_are_wanted_so_that_the_fact_is_among_them(tmp_path: Path) -> None:
    def nugget(name: str, status: str, guild: str = "7") -> SearchDocument:
        return document(f"nugget:{name}", f"about the spool {name}", kind="nugget", status=status, guild_id=guild)

    documents = [
        *(nugget(f"guess{n}", "SPECULATION") for n in range(STAGE_ONE - 2)),
        nugget("fact", "FACT"),
        nugget("abroad", "FACT", guild="8"),
    ]
    async with opened(tmp_path) as (store, _):
        await store.replace_documents([*documents, document("kb:spool", "all about the spool")])
        await store.store_vectors(
            "m", list(zip(documents, await Directions().compute_vectors([""] * STAGE_ONE), strict=True))
        )

        async def best(limit: int = 2, *, guild: str | None = None, status: str | None = None) -> list[str]:
            only = SearchFilter(kinds=("nugget",), guild_id=guild, status=status)
            nuggets = await find_and_rerank(HybridSearch(store, Directions()).find, "the spool?", only, limit, now=NOON)
            return [str(each.document.source_id) for each in nuggets]

        assert await best() == ["nugget:abroad", "nugget:fact"]
        assert (await best(guild="7"))[0] == "nugget:fact"
        assert len(await best(99, status="SPECULATION")) == STAGE_ONE - 2
