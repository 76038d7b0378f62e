"""Words and likeness find together, each result says why, and an embedder that fails is reported."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from intern.core.errors import KnowledgeError, ModelRefusedError, ModelUnavailableError
from intern.core.search_documents import SearchFilter
from intern.search.embedder import LEAST_LIKENESS, SimilarityThresholds
from intern.search.hybrid_search import HybridSearch
from intern.search.ranking import join_scores
from intern.stores.search_file.search_index import SqliteSearchStore
from tests.search.documents import Directions, document, opened, ranked, vector


@asynccontextmanager
async def shelf(folder: Path) -> AsyncGenerator[SqliteSearchStore]:
    """Three documents with vectors and one without."""
    texts = {"kb:keys": ("rotating the keys", 0), "kb:locks": ("changing the locks", 10), "kb:soup": ("hot soup", 90)}
    documents = {name: document(name, text) for name, (text, _) in texts.items()}
    async with opened(folder) as (store, _):
        await store.replace_documents([*documents.values(), document("kb:new", "keys that nobody embedded yet")])
        vectors = await Directions(dict(texts.values())).compute_vectors([text for text, _ in texts.values()])
        await store.store_vectors("m", list(zip(documents.values(), vectors, strict=True)))
        yield store


async def test_what_says_the_same_in_other_words_is_found_and_says_why(tmp_path: Path) -> None:
    async with shelf(tmp_path) as store:
        finder, least = HybridSearch(store, Directions({"rotate keys": 5})), SimilarityThresholds(beside_words=0.5)
        found = await finder.find("rotate keys", least=least)
        by_id = {str(each.document.source_id): each for each in found}
        keys, locks, new = (by_id[name] for name in ("kb:keys", "kb:locks", "kb:new"))
        assert found[0] == keys
        assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
        assert keys.matched == ("rotate", "keys")
        assert (keys.words_place, keys.bm25 > 0) == (1, True)
        assert keys.likeness == pytest.approx(0.996, abs=0.001)
        assert keys.likeness_place in {1, 2}
        assert (locks.matched, locks.bm25, locks.words_place) == ((), 0, None)
        assert locks.likeness == pytest.approx(0.996, abs=0.001)
        # It has no vector yet, so its similarity is unknown; its words are found all the same.
        assert (new.matched, new.words_place) == (("keys",), 2)
        assert (new.likeness, new.likeness_place) == (None, None)
        assert not keys.words_only
        hits = await finder.find_passages("rotate keys", 9, least=least)
        assert [hit.source_id for hit in hits] == [each.document.source_id for each in found]
        assert await ranked(finder, "rotate keys", 1) == ["kb:keys"]
        assert await finder.find("rotate keys", SearchFilter(kinds=("file",))) == ()


# Finding B1.
async def test_a_document_is_as_like_a_question_as_the_line_that_it_fits_best(tmp_path: Path) -> None:
    rest = "1\n2\n3\n4" + "!" * 100
    question = f"  locked out\n\nof a pot\n{rest}"
    async with shelf(tmp_path) as store:
        angles = {question: 40, "locked out": 10, "of a pot": 90, rest: 40}
        finder = HybridSearch(store, Directions(angles))
        found = {str(each.document.source_id): each.likeness for each in await finder.find(question)}
        assert found == pytest.approx({"kb:locks": 1, "kb:soup": 1, "kb:keys": 0.985}, abs=0.001)


async def test_a_short_question_is_compared_as_a_whole(tmp_path: Path) -> None:
    async with shelf(tmp_path) as store:
        embedder = Directions()
        await HybridSearch(store, embedder).find("hi\nlocked out")
        assert embedder.asked == ["hi\nlocked out"]


async def test_what_is_hardly_alike_is_found_by_its_words_only(tmp_path: Path) -> None:
    async with shelf(tmp_path) as store:
        embedder = Directions({"soup": 10, "quux": 45})
        least = SimilarityThresholds(beside_words=0.9, alone=0.9, of_unknown=0.9)
        found = await HybridSearch(store, embedder).find("soup", least=least)
        by_id = {str(each.document.source_id): each for each in found}
        assert set(by_id) == {"kb:soup", "kb:keys", "kb:locks"}
        soup = by_id["kb:soup"]
        assert soup.matched == ("soup",)
        assert soup.likeness == pytest.approx(0.17, abs=0.01)
        assert await HybridSearch(store, embedder).find("quux", least=least) == ()


async def test_by_likeness_alone_a_word_that_nobody_knows_finds_nothing_and_another_word_for_it_is_found(
    tmp_path: Path,
) -> None:
    class Local(Directions):
        model = next(iter(LEAST_LIKENESS))

    car = document("kb:car", "what to do when the car will not start")
    # What the local model says of them: a made-up word is as like some text as a word that means the same.
    embedder = Local({"automobile": 68, "qwertzuiop": 65, "xylophone": 73, "qwertzuiop car": 75})
    async with opened(tmp_path) as (store, _):
        await store.replace_documents([car])
        await store.store_vectors(embedder.model, [(car, vector(0))])
        finder = HybridSearch(store, embedder)
        assert await finder.find("qwertzuiop") == ()
        assert await finder.find("xylophone") == ()
        assert await finder.find_passages("qwertzuiop", 5) == []
        [hit] = await finder.find_passages("qwertzuiop", 5, least=SimilarityThresholds())
        assert hit.source_id == "kb:car"
        [found] = await finder.find("automobile")
        assert found.likeness == pytest.approx(0.37, abs=0.01)
        assert [each.document for each in await finder.find("qwertzuiop car")] == [car]


async def test_a_passage_says_whether_its_likeness_can_be_held_against_a_threshold(tmp_path: Path) -> None:
    class Local(Directions):
        model = next(iter(LEAST_LIKENESS))

    async with shelf(tmp_path) as store:
        for embedder, measured in ((None, True), (Local(), True), (Directions(), False)):
            hits = await HybridSearch(store, embedder).find_passages("rotate keys", 5)
            assert [hit.is_measured for hit in hits] == [measured] * len(hits) != []


async def test_likeness_says_more_of_documents_than_of_what_people_say_in_chats(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        for type_, first in (("document", "kb:alike"), ("page", "kb:alike"), ("topic", "kb:words")):
            words = document("kb:words", "rotating the keys", type=type_)
            alike = document("kb:alike", "changing the locks of the house", type=type_)
            await store.replace_documents([words, alike])
            await store.store_vectors("m", [(words, vector(60)), (alike, vector(20))])
            assert (await ranked(HybridSearch(store, Directions()), "rotate keys", 2))[0] == first


async def test_an_embedder_that_fails_leaves_the_words_and_says_so(tmp_path: Path) -> None:
    embedder = Directions()
    async with shelf(tmp_path) as store:
        finder = HybridSearch(store, embedder)
        for embedder.failure in (ModelUnavailableError("it is down"), ModelRefusedError("it will not")):
            found = await finder.find("rotate keys")
            assert [str(each.document.source_id) for each in found] == ["kb:keys", "kb:new"]
            assert [each.words_only for each in found] == [True, True]
            assert await ranked(finder, "rotate keys", 5) == ["kb:keys", "kb:new"]
            # No document holds the word; whether one is a paraphrase is unknown.
            with pytest.raises(KnowledgeError, match="it"):
                await finder.find("xylophone")


async def test_without_an_embedder_or_vectors_words_are_all_there_is_and_nothing_is_missing(tmp_path: Path) -> None:
    class Other(Directions):
        model = "another"

    async with shelf(tmp_path) as store:
        by_words = await HybridSearch(store).find("rotate keys")
        assert await HybridSearch(store, Other()).find("rotate keys") == by_words
        assert [(each.likeness, each.words_only) for each in by_words] == [(None, False)] * 2
        assert await HybridSearch(store, Other()).find("xylophone") == ()
        embedder = Directions()
        assert await HybridSearch(store, embedder).find("  ") == ()
        assert embedder.asked == []


async def test_an_embedder_is_never_asked_for_what_is_no_text(tmp_path: Path) -> None:
    embedder = Directions()
    async with shelf(tmp_path) as store:
        await HybridSearch(store, embedder).find("keys \ud800 of \udfff")
        [asked] = embedder.asked
        assert asked.encode().decode() == "keys ? of ?"


NAMES = st.sampled_from("abcdef")


def _rounded(least: float, most: float) -> st.SearchStrategy[float]:
    """Return numbers of six digits, so that a division does not round their differences away."""
    return st.floats(least, most).map(lambda each: round(each, 6))


@given(st.dictionaries(NAMES, _rounded(0.01, 50)), st.dictionaries(NAMES, _rounded(-1, 1)))
def test_joined_orders_keep_what_either_knows_and_agree_where_both_agree(
    words: dict[str, float], likeness: dict[str, float]
) -> None:
    scores = join_scores(words, likeness)
    assert scores.keys() == words.keys() | likeness.keys()
    assert list(scores.values()) == sorted(scores.values(), reverse=True)
    assert all(score <= 1 + 1e-9 for score in scores.values())
    order = list(scores)
    for one in words.keys() & likeness.keys():
        for other in words.keys() & likeness.keys():
            if words[one] > words[other] and likeness[one] > likeness[other] and scores[one] != scores[other]:
                assert order.index(one) < order.index(other)
    assert list(join_scores(words, {})) == sorted(words, key=lambda name: -words[name])
    assert list(join_scores({}, likeness)) == sorted(likeness, key=lambda name: -likeness[name])


async def test_by_id_alone_the_order_is_the_same_and_a_question_is_embedded_once(tmp_path: Path) -> None:
    async with shelf(tmp_path) as store:
        embedder = Directions({"rotate keys": 5})
        finder = HybridSearch(store, embedder)
        found = await finder.find("rotate keys", SearchFilter(kinds=("source",), part="text"), 9)
        assert await ranked(finder, "rotate keys", 9) == [each.document.source_id for each in found]
        proposed = await finder.find_without_terms("rotate keys", SearchFilter(kinds=("source",), part="text"), 9)
        assert [each.document for each in proposed] == [each.document for each in found]
        assert embedder.asked == ["rotate keys"]
