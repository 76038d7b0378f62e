"""Search by words and by vectors, best first, with the reasons for each result.

"Found nothing" is a result, "could not look" an error. The second stage ranks nuggets by how far they can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from anyio import to_thread
from msgspec import structs

from intern.core.errors import KnowledgeError, ModelError
from intern.core.log import get_logger
from intern.core.search_documents import PassageHit, ScoredMatch, SearchDocument, SearchFilter, SearchKind
from intern.core.tasks import open_task_group
from intern.search.embedder import LEAST_LIKENESS, CachingEmbedder, Embedder, SimilarityThresholds
from intern.search.embedding_local import ENGLISH, knows_any
from intern.search.ranking import SearchCandidate, SearchHit, fuse_rankings, join_scores, scale_to_best
from intern.search.terms import SearchTerms, split_search_terms
from intern.stores.search_file.search_index import SqliteSearchStore

_log = get_logger(__name__)

# Sources that words and vectors each propose. With 50, sources that only one of both proposed got too low a score: 12%
# less nDCG@10 among 50,000 documents.
_PROPOSED = 200

# A question's first lines are compared one by one, and the rest of it as a whole: a document is as similar as to the
# line that it fits best. One vector of a title and its post fits neither. Of 298 questions with titles (of Computer
# Science Stack Exchange, that link to one of its documents, without the 68 of the tests), recall@5 was .34 with one
# vector, .43 with two, .45 with four and .46 with eight.
_LINES = 4
# Characters up to which a question is compared as a whole. All of the 298 are longer. Nearly half of the batches of
# several lines in real chats are not, and one of their lines is soon near enough to some document to cost a model call.
_SHORT = 100

_REMEMBERED = 16 * _LINES  # of questions that are answered at the same time, and some


class HybridSearch:
    """Search by words and, with an embedder, by vectors.

    Sources that are less similar than `least` are not found by vectors. By default, `least` is the known threshold of
    the model; for other models it is `SimilarityThresholds()`, so any cosine from 0 on counts. The vectors of the last
    questions are cached: each question is searched for among several kinds of documents.
    """

    def __init__(self, store: SqliteSearchStore, embedder: Embedder | None = None) -> None:
        self._store = store
        self._embedder = None if embedder is None else CachingEmbedder(embedder, _REMEMBERED)

    async def find(
        self,
        text: str,
        wanted: SearchFilter | None = None,
        limit: int = 10,
        *,
        least: SimilarityThresholds | None = None,
    ) -> tuple[SearchHit, ...]:
        """Return the best sources for a text, best first; empty if none shares a word with it or is similar.

        If vectors could not be searched, each result says so. Raises KnowledgeError, also if words found nothing then:
        an empty result would look as if there were nothing.
        """
        found = await self._find_hits(text, wanted or SearchFilter(), limit, least)
        terms = split_search_terms(text)
        held = await self._store.match_terms(terms.words, [each.document_id for each in found])
        inside = (*terms.grams, *terms.short)
        matched = (held.get(each.document_id, ()) or _find_contained(each.document, inside) for each in found)
        return tuple(structs.replace(each, matched=held_here) for each, held_here in zip(found, matched, strict=True))

    async def find_without_terms(
        self, text: str, wanted: SearchFilter | None = None, limit: int = 10
    ) -> tuple[SearchHit, ...]:
        """Return the results of `find`, without `matched`: that takes as long again."""
        return tuple(await self._find_hits(text, wanted or SearchFilter(), limit, None))

    async def find_passages(
        self,
        text: str,
        limit: int,
        kinds: Sequence[SearchKind] = ("source",),
        *,
        least: SimilarityThresholds | None = None,
    ) -> list[PassageHit]:
        """Return the best passages, best first; of texts, not of descriptions. Several may be of one source.

        Raises KnowledgeError as `find` does.
        """
        wanted = SearchFilter(kinds=tuple(kinds), part="text", per="document")
        found = await self._find_hits(text, wanted, limit, least)
        measured = self._embedder is None or self._embedder.model == ENGLISH.name
        return [
            PassageHit(
                source_id=each.document.source_id,
                title=each.document.title,
                text=each.document.text,
                score=round(each.score, 6),
                by_words=round(each.by_words, 6),
                likeness=None if each.likeness is None else round(each.likeness, 6),
                is_measured=measured,
            )
            for each in found
        ]

    async def _find_hits(
        self, text: str, wanted: SearchFilter, limit: int, least: SimilarityThresholds | None
    ) -> list[SearchHit]:
        candidates = await self._find_candidates(text, wanted, limit, least)
        documents = await self._store.read_documents([each.document_id for each in candidates], wanted)
        there = (each for each in candidates if each.document_id in documents)
        return [SearchHit(document=documents[each.document_id], **structs.asdict(each)) for each in there]

    async def _find_candidates(
        self, text: str, wanted: SearchFilter, limit: int, least: SimilarityThresholds | None
    ) -> list[SearchCandidate]:
        embedder, terms = self._embedder, split_search_terms(text)
        if embedder is None or not text.strip():
            return _make_word_candidates(await self._rank_by_words(terms, wanted, limit))
        proposed = max(limit, _PROPOSED)
        like = partial(self._store.search_vector, model=embedder.model, wanted=wanted)
        words: dict[str, _WordMatch] = {}
        hits: list[ScoredMatch] = []
        asked: list[bytes] = []  # held here: the cache may have lost the vectors by the second comparison
        failures: list[KnowledgeError | ModelError] = []

        async def compare() -> None:
            try:
                asked.extend(await embedder.compute_vectors(split_question(text), asked=True))
                hits.extend(_keep_most_similar([await like(vector, limit=proposed) for vector in asked]))
            except (KnowledgeError, ModelError) as error:
                failures.append(error)

        # Side by side, on two cores.
        async with open_task_group() as tg:
            tg.start_soon(compare)
            try:
                words = await self._rank_by_words(terms, wanted, proposed)
            except KnowledgeError as error:
                failures.insert(0, error)
        for failure in failures:
            if isinstance(failure, KnowledgeError):
                raise failure
            if not words:
                # An empty result would look as if there were nothing.
                reason = "nothing holds a word of it, and what says the same in other words could not be searched"
                raise KnowledgeError(f"{reason}: {failure}") from failure
            _log.warning("search_by_words_only", reason=str(failure))
            return [structs.replace(each, words_only=True) for each in _make_word_candidates(words)][:limit]
        if others := words.keys() - {hit.key for hit in hits}:
            hits += _keep_most_similar([await like(vector, limit=0, also=sorted(others)) for vector in asked])
        known = least or LEAST_LIKENESS.get(embedder.model, SimilarityThresholds())
        enough = await _choose_threshold(known, terms, words_found=bool(words))
        alike = [hit for hit in hits if hit.score >= enough or hit.key in words]
        return _join_candidates(words, alike, proposed)[:limit] if alike else _make_word_candidates(words)[:limit]

    async def _rank_by_words(self, terms: SearchTerms, wanted: SearchFilter, limit: int) -> dict[str, _WordMatch]:
        """Return the best results that contain a word by their keys, in order."""
        if terms == SearchTerms():
            return {}
        words = (*terms.words, *terms.stems)
        rankings = await self._store.search_words(words, terms.grams, terms.short, wanted, limit)
        documents = await self._store.count_documents()
        hits = {hit.key: hit for ranking in reversed(rankings) for hit in ranking}
        shares, best = dict[str, float](), dict[str, float]()
        for ranking in rankings:
            scores = {hit.key: hit.score for hit in ranking}
            shares |= {key: max(share, shares.get(key, 0.0)) for key, share in scale_to_best(scores).items()}
            best |= {key: max(score, best.get(key, 0.0)) for key, score in scores.items()}
        order = fuse_rankings(*([hit.key for hit in ranking] for ranking in rankings))
        found = order[:limit]
        return {
            key: _WordMatch(hits[key], shares[key], word_strength(best[key], documents, len(words))) for key in found
        }


def split_question(text: str) -> list[str]:
    """Return the parts of a question that are compared: of a long one its first lines, and the rest of it."""
    said = text.encode("utf-8", "replace").decode().strip()
    return [part for part in said.split("\n", _LINES - 1 if len(said) > _SHORT else 0) if part.strip()]


def _keep_most_similar(rankings: Sequence[Sequence[ScoredMatch]]) -> list[ScoredMatch]:
    """Join the rankings of a question's lines, best first: a result is as similar as to the line nearest to it."""
    hits = sorted(chain.from_iterable(rankings), key=lambda hit: hit.score)
    return sorted({hit.key: hit for hit in hits}.values(), key=lambda hit: -hit.score)


async def _choose_threshold(least: SimilarityThresholds, terms: SearchTerms, *, words_found: bool) -> float:
    """Return the least similarity with which a source is found by vectors alone."""
    if words_found:
        return least.beside_words
    if least.alone == least.of_unknown or await to_thread.run_sync(knows_any, " ".join((*terms.words, *terms.short))):
        return least.alone
    return least.of_unknown


class _WordMatch(NamedTuple):
    """A result that contains a word."""

    hit: ScoredMatch
    share: float
    """bm25 as a share of the best one's, from 0 to 1, so that words and trigrams can be compared."""
    strength: float


_HALF = 1.25  # fitted with `answering.closest_passage.SURE`
_UNSEEN = 16  # documents that hold nothing (search.sql)
_USUAL_TERMS = 12  # not fitted: questions have about ten


def word_strength(bm25: float, documents: int, terms: int) -> float:
    """Return how well words fit, from 0 to 1, comparable between questions and between numbers of documents.

    The bm25 that counts for half grows with the logarithm of that number, as the weight of a rare word does. It also
    grows with the terms of a long text, since many of these are found by chance. Results are not ordered by it: with
    the share of the best bm25, long Computer Science questions find more, nDCG@10 .690 instead of .663.
    """
    half = _HALF * math.log(documents + _UNSEEN) * max(1.0, terms / _USUAL_TERMS)
    return bm25 / (bm25 + half)


def _make_word_candidates(words: Mapping[str, _WordMatch]) -> list[SearchCandidate]:
    return [
        SearchCandidate(
            document_id=each.hit.document_id,
            source_id=each.hit.source_id,
            score=each.share,
            by_words=each.strength,
            bm25=each.hit.score,
            words_place=place,
        )
        for place, each in enumerate(words.values(), 1)
    ]


def _join_candidates(
    words: Mapping[str, _WordMatch], alike: Sequence[ScoredMatch], proposed: int
) -> list[SearchCandidate]:
    """Join both rankings; results beyond the `proposed` have a similarity but no rank."""
    found = dict(zip(words, _make_word_candidates(words), strict=True))
    scores = join_scores(
        {key: each.score for key, each in found.items()},
        {hit.key: hit.score for hit in alike},
        {hit.key for hit in (*(each.hit for each in words.values()), *alike) if hit.written},
    )
    for place, hit in enumerate(alike, 1):
        plain = SearchCandidate(document_id=hit.document_id, source_id=hit.source_id, score=hit.score)
        told = place if place <= proposed else None
        found[hit.key] = structs.replace(found.get(hit.key, plain), likeness=hit.score, likeness_place=told)
    return [structs.replace(found[key], score=score) for key, score in scores.items()]


def _find_contained(document: SearchDocument, parts: Sequence[str]) -> tuple[str, ...]:
    text = f"{document.title} {document.path} {document.text}".lower()
    return tuple(part for part in parts if part in text)
