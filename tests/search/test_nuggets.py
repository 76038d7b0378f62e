"""Of nuggets that fit about as well, the fact, the newer one and the one with the keyword come first."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from anyio import fail_after
from hypothesis import given, strategies as st

from intern.domain import SearchDocument
from intern.search.finding import Finder, Found
from intern.search.nuggets import STAGE_ONE, Wanted, best_nuggets, reranked
from tests.search.documents import NOON, Directions, document, opened

pytestmark = pytest.mark.anyio


def found(name: str, score: float = 0.8, *, status: str = "FACT", days: float = 0, keywords: str = "") -> Found:
    at = NOON - timedelta(days=days)
    made = document(f"nugget:{name}", name, kind="nugget", status=status, at=at, meta={"keywords": keywords})
    return Found(document=made, score=score)


def order(*nuggets: Found, text: str = "the spool", wanted: Wanted | None = None) -> list[str]:
    return [each.document.text for each in reranked(nuggets, text, now=NOON, wanted=wanted)]


def test_the_fact_comes_first_of_what_fits_as_well() -> None:
    guess, opinion, fact = (
        found("guess", status="SPECULATION"),
        found("opinion", status="COMMUNITY_OPINION"),
        found("fact", 0.75),
    )
    assert order(guess, opinion, fact) == ["fact", "opinion", "guess"]
    assert order(guess, fact, wanted=Wanted(statuses=("SPECULATION", "COMMUNITY_OPINION"))) == ["guess"]


def test_a_fact_that_hardly_fits_does_not_come_before_what_answers() -> None:
    assert order(found("fact", 0.3), found("guess", status="SPECULATION")) == ["guess", "fact"]


def test_the_newer_comes_first_and_what_is_too_old_goes() -> None:
    old, older = found("old", days=300), found("older", days=3000)
    assert order(older, old, found("now", 0.79)) == ["now", "old", "older"]
    assert order(older, old, wanted=Wanted(oldest=timedelta(days=365))) == ["old"]
    # A clock that is wrong makes nothing newer than now.
    assert reranked([found("now", days=-9)], "", now=NOON)[0].score == pytest.approx(0.8)


def test_a_keyword_of_the_question_counts_in_whichever_form() -> None:
    plain, fitting = found("plain", 0.81), found("fitting", keywords="spooling, relay")
    assert order(plain, fitting) == ["fitting", "plain"]
    assert order(plain, fitting, text="valves") == ["plain", "fitting"]
    many = found("many", keywords=", ".join(["spool"] * 40))
    assert reranked([many], "spool", now=NOON)[0].score < 0.9


@given(
    st.lists(
        st.builds(
            found,
            st.sampled_from("abc"),
            st.floats(0, 1),
            status=st.sampled_from(["FACT", "COMMUNITY_OPINION", "SPECULATION", "made up"]),
            days=st.floats(-10, 10_000),
            keywords=st.text(max_size=9),
        ),
        max_size=6,
    ),
    st.text(max_size=20),
)
def test_the_second_stage_loses_and_adds_nothing(nuggets: list[Found], text: str) -> None:
    after = reranked(nuggets, text, now=NOON)
    assert sorted(each.document.text for each in after) == sorted(each.document.text for each in nuggets)
    assert [each.score for each in after] == sorted((each.score for each in after), reverse=True)


async def test_both_stages_find_nuggets_only_and_only_those_that_count(tmp_path: Path) -> None:
    def nugget(name: str, status: str, *, days: int = 0, guild: str = "7") -> SearchDocument:
        at = NOON - timedelta(days=days)
        text = f"about the spool {name}"
        return document(f"nugget:{name}", text, kind="nugget", status=status, guild_id=guild, at=at)

    guesses = [nugget(f"guess{n}", "SPECULATION") for n in range(STAGE_ONE - 2)]
    others = [nugget("fact", "FACT", days=9), nugget("abroad", "FACT", guild="8")]
    with fail_after(10):
        async with opened(tmp_path) as (store, _):
            documents = [*guesses, *others]
            await store.put([*documents, document("kb:spool", "all about the spool")])
            await store.put_vectors("m", list(zip(documents, await Directions().embed([""] * STAGE_ONE), strict=True)))
            finder = Finder(store, Directions())

            async def best(wanted: Wanted, limit: int = 2) -> list[str]:
                nuggets = await best_nuggets(finder, "the spool?", now=NOON, wanted=wanted, limit=limit)
                return [str(each.document.source_id) for each in nuggets]

            assert await best(Wanted()) == ["nugget:abroad", "nugget:fact"]
            assert (await best(Wanted(guild_id="7")))[0] == "nugget:fact"
            assert await best(Wanted(statuses=("FACT",), guild_id="7")) == ["nugget:fact"]
            assert await best(Wanted(statuses=("FACT",), oldest=timedelta(days=1))) == ["nugget:abroad"]
            assert len(await best(Wanted(statuses=("SPECULATION",)), limit=99)) == STAGE_ONE - 2
