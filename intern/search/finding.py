"""Search by words and by vectors, best first, with the reasons for each result.

"Found nothing" is a result, "could not look" an error. The second stage ranks nuggets by how far they can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, product
from typing import NamedTuple, Protocol, TypeVar

from anyio import to_thread
from msgspec import Struct, structs

from intern.core.errors import KnowledgeError, ModelError
from intern.core.ids import SourceId
from intern.core.log import get_logger
from intern.core.records import PassageHit, ScoredMatch, SearchDocument, SearchFilter, SearchKind
from intern.core.tasks import open_task_group
from intern.core.text.language import detect_language
from intern.core.text.words import STOP_WORDS, find_unspaced_runs, split_words, stem_foreign_words, stem_set
from intern.search.embedding_local import ENGLISH, MULTILINGUAL, knows_any
from intern.stores.sqlite.search_index import SqliteSearchStore

_log = get_logger(__name__)


MOST_TERMS = 64
"""Questions have about ten terms; longer texts are pasted, and each term costs time."""

_GRAM = 3
"""Characters that the trigram table needs."""

# Time, number and purpose say something about a document, and bm25 weighs a common word little anyway. Without them
# plain FTS5 with a short list of stop words finds more on chat turns (.491 against .479) and on titles of questions.
_SEARCHED = """
after before until first once again now still help use used uses using try trying someone anyone somebody anybody
any many all other same few only one
"""
_LEFT_OUT = STOP_WORDS - set(_SEARCHED.split())


class SearchTerms(Struct, frozen=True):
    """The terms of a text."""

    words: tuple[str, ...] = ()
    grams: tuple[str, ...] = ()
    """Trigrams: pieces of scripts without spaces, and words that may be among them."""
    short: tuple[str, ...] = ()
    """Runs of such scripts that are too short for trigrams."""
    stems: tuple[str, ...] = ()
    """Stems of words in German, French, Spanish or Portuguese, where they differ from the words."""


def split_search_terms(text: str) -> SearchTerms:
    """Return the terms of a text, each once and in order, without stop words unless there are only such."""
    said = list(dict.fromkeys(word.lower() for word in split_words(text)))
    telling = [word for word in said if word not in _LEFT_OUT] or said
    spaced = [word for word in telling if not find_unspaced_runs(word)]
    runs = list(dict.fromkeys(run for word in telling for run in find_unspaced_runs(word)))
    grams = [word for word in spaced if len(word) >= _GRAM]
    grams += [run[n : n + _GRAM] for run in runs for n in range(len(run) - _GRAM + 1)]
    stems = dict.fromkeys(stem_foreign_words(" ".join(spaced[:MOST_TERMS]), detect_language(text)))
    return SearchTerms(
        words=tuple(spaced[:MOST_TERMS]),
        grams=tuple(dict.fromkeys(grams))[:MOST_TERMS],
        short=tuple(run for run in runs if len(run) < _GRAM)[:MOST_TERMS],
        stems=tuple(stem for stem in stems if stem not in spaced),
    )


K = TypeVar("K", bound=Hashable)

# Cormack et al. (2009): large enough that the first places of one order do not outweigh a good place in both.
_RANK_OFFSET = 60

LIKENESS_WEIGHT = 0.6
"""The weight of vectors, against words, for texts from chats (topics, nuggets, facts): a turn is short, and its words
tell it apart. Chosen with MiniLM on chat turns: nDCG@10 is .495 to .498 at .5 to .6, .482 at .75, .442
at .85 (by words alone .489). Reciprocal ranks fell to .71 of plain FTS5."""

DOCUMENT_LIKENESS_WEIGHT = 0.78
"""The same for documents, pages and files: on five sets, .75 to .8 beats .6 by 2% (factoids) to 9% (titles)."""


class SimilarityThresholds(Struct, frozen=True, kw_only=True):
    """The cosines below which a text is not found by likeness. They belong to a model."""

    beside_words: float = 0.0
    """If a document contains a word of the question."""
    alone: float = 0.0
    """If none does."""
    of_unknown: float = 0.0
    """If none does, and the model knows none of the words either: its vector says little then."""


LEAST_LIKENESS: Mapping[str, SimilarityThresholds] = {
    ENGLISH.name: SimilarityThresholds(beside_words=0.2, alone=0.3, of_unknown=0.45),
    MULTILINGUAL.name: SimilarityThresholds(beside_words=0.05, alone=0.1, of_unknown=0.1),
}
"""Without it, a search for a subject that no document has finds ten sources. A made-up word comes to .2 with one of 20
documents in 27% of cases, to .3 in 4%; with one of 3,000 to .45 in 5%. Synonyms of single words ("photo", "physician",
"automobile") came to .32 to .57. Of 120 to 302 real questions a set, all but two hold a word of some
document, so that only `beside_words` concerns them.

The multilingual model scores a question and its document in different languages like unrelated texts (.13 to .26 and
.1 to .25 in the sample). With .2 for those without a common word it lost a quarter of the
Japanese questions over English documents; made-up words find something with it."""


def fuse_rankings(*rankings: Sequence[K]) -> list[K]:
    """Join rankings by reciprocal rank; equals keep the order of the first ranking."""
    scores: dict[K, float] = {}
    for ranking in rankings:
        for n, item in enumerate(dict.fromkeys(ranking), _RANK_OFFSET + 1):
            scores[item] = scores.get(item, 0.0) + 1 / n
    return sorted(scores, key=scores.__getitem__, reverse=True)  # equals keep their order


def scale_to_best(scores: Mapping[K, float]) -> dict[K, float]:
    """Return each score as a share of the best one; 1 for all if the best is not above 0."""
    best = max(scores.values(), default=0.0)
    return {item: score / best if best > 0 else 1.0 for item, score in scores.items()}


def join_scores(words: Mapping[K, float], likeness: Mapping[K, float], documents: Collection[K] = ()) -> dict[K, float]:
    """Join the scores of words and vectors, best first.

    `words` are scores such as bm25, where more is better; an item without one contains no word. `likeness` are cosines;
    an item without one (its vector is not made yet) gets the lowest of the others. `documents` are the
    items for which vectors weigh more.
    """
    by_words = scale_to_best(words)
    lowest = min(likeness.values(), default=0.0)
    scores: dict[K, float] = {}
    for item in dict.fromkeys((*words, *likeness)):
        weight = DOCUMENT_LIKENESS_WEIGHT if item in documents else LIKENESS_WEIGHT
        scores[item] = (1 - weight) * by_words.get(item, 0.0) + weight * likeness.get(item, lowest)
    return dict(sorted(scores.items(), key=lambda each: -each[1]))


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


class Embedder(Protocol):
    """A model that turns texts into vectors, to compare texts. Vectors of different models cannot be compared."""

    @property
    def model(self) -> str:
        """The name of the vectors. It changes when new vectors cannot be compared with earlier ones."""
        ...

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        """Return the vector of each text: 32-bit floats, little-endian, of length 1. Raises the ModelError family.

        All are questions, where they are `asked`, or documents: some models have other vectors for these.
        """
        ...


class CachingEmbedder:
    """An embedder that knows the vectors of the last `most` texts. Of equal texts, it embeds one."""

    def __init__(self, embedder: Embedder, most: int) -> None:
        self.model = embedder.model
        self._embedder = embedder
        self._most = most
        self._vectors: dict[tuple[str, bool], bytes] = {}

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        """Return the vector of each text. Raises the ModelError family."""
        keys = [(text, asked) for text in texts]
        found = {key: self._vectors[key] for key in keys if key in self._vectors}
        if new := [key for key in dict.fromkeys(keys) if key not in found]:
            found |= zip(new, await self._embedder.compute_vectors([text for text, _ in new], asked=asked), strict=True)
        others = ((key, vector) for key, vector in self._vectors.items() if key not in found)
        self._vectors = dict([*others, *found.items()][-self._most :])
        return [found[key] for key in keys]

    def forget(self, *texts: str) -> None:
        """Forget these texts; without any, all."""
        for key in product(texts, (False, True)) if texts else tuple(self._vectors):
            self._vectors.pop(key, None)


class _SearchCandidate(Struct, frozen=True, kw_only=True):
    """A source or a document that was found, and why."""

    document_id: str
    """The document; of a source, its best one."""
    source_id: SourceId
    score: float
    """The joint score of words and vectors; at most 1, not comparable between questions."""
    by_words: float = 0.0
    """The fit of its words, from 0 to 1: the `word_strength` of its bm25."""
    bm25: float = 0.0
    """The score of its words; not comparable between questions."""
    likeness: float | None = None
    """Similarity to the question, from -1 to 1; None if it was not compared, or has no vector (yet)."""
    words_place: int | None = None
    """Its rank by words, from 1."""
    likeness_place: int | None = None
    """Its rank by vectors, from 1."""
    words_only: bool = False
    """The vector search failed, so paraphrases may be missing."""


class SearchHit(_SearchCandidate, frozen=True, kw_only=True):
    """A source with the best of its documents."""

    document: SearchDocument
    matched: tuple[str, ...] = ()
    """Terms of the question that it contains."""


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
    ) -> list[_SearchCandidate]:
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


_HALF = 1.25  # fitted with `answering.nearest.SURE`
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


def _make_word_candidates(words: Mapping[str, _WordMatch]) -> list[_SearchCandidate]:
    return [
        _SearchCandidate(
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
) -> list[_SearchCandidate]:
    """Join both rankings; results beyond the `proposed` have a similarity but no rank."""
    by_words = dict(zip(words, _make_word_candidates(words), strict=True))
    by_likeness = {hit.key: (place, hit) for place, hit in enumerate(alike, 1)}
    scores = join_scores(
        {key: each.score for key, each in by_words.items()},
        {hit.key: hit.score for hit in alike},
        {hit.key for hit in (*(each.hit for each in words.values()), *alike) if hit.written},
    )
    candidates: list[_SearchCandidate] = []
    for key, score in scores.items():
        place, hit = by_likeness.get(key, (None, None))
        candidate = by_words.get(key)
        if candidate is None:
            assert hit is not None
            candidate = _SearchCandidate(document_id=hit.document_id, source_id=hit.source_id, score=score)
        told = place if place is not None and place <= proposed else None
        likeness = None if hit is None else hit.score
        candidates.append(structs.replace(candidate, score=score, likeness=likeness, likeness_place=told))
    return candidates


def _find_contained(document: SearchDocument, parts: Sequence[str]) -> tuple[str, ...]:
    text = f"{document.title} {document.path} {document.text}".lower()
    return tuple(part for part in parts if part in text)


TRUST: Mapping[str, float] = {"FACT": 1.0, "COMMUNITY_OPINION": 0.85, "SPECULATION": 0.75}
"""Factors of a score, by status: of two that fit about as well the fact comes first, but a fact that hardly fits never
comes before an opinion that answers the question."""

_OLDEST = 0.8
"""The least factor for age: things change, but most old knowledge still holds."""

_HALF_OF_THAT = timedelta(days=365)

_KEYWORD = 0.03
"""Added for each keyword of the nugget that the question contains."""

_MOST_KEYWORDS = 3

STAGE_ONE = 30
"""Sources that the first stage proposes."""


Find = Callable[[str, SearchFilter, int], Awaitable[Sequence[SearchHit]]]
"""The first stage: finds the best sources for a text, best first. Raises KnowledgeError."""


async def find_and_rerank(
    find: Find, text: str, wanted: SearchFilter, limit: int, *, now: datetime
) -> tuple[SearchHit, ...]:
    """Search in both stages: of nuggets, those that can be trusted most come first. Raises KnowledgeError."""
    return rerank_hits(await find(text, wanted, max(STAGE_ONE, limit)), text, now=now)[:limit]


def rerank_hits(found: Sequence[SearchHit], text: str, *, now: datetime) -> tuple[SearchHit, ...]:
    """Rank nuggets by how well each fits the text, how far it can be trusted, and its age.

    All other documents keep their score.
    """
    asked = stem_set(text)
    scores = (_score_nugget(each, asked, now) if each.document.kind == "nugget" else each.score for each in found)
    worth = (structs.replace(each, score=score) for each, score in zip(found, scores, strict=True))
    return tuple(sorted(worth, key=lambda each: -each.score))


def _score_nugget(found: SearchHit, asked: frozenset[str], now: datetime) -> float:
    document = found.document
    halves = max(now - document.at, timedelta()) / _HALF_OF_THAT
    freshness = _OLDEST + (1 - _OLDEST) * math.pow(0.5, halves)
    shared = sum(1 for keyword in _nugget_keywords(found) if asked & stem_set(keyword))
    trust = TRUST.get(document.status, min(TRUST.values()))
    return found.score * trust * freshness + _KEYWORD * min(shared, _MOST_KEYWORDS)


def _nugget_keywords(found: SearchHit) -> Sequence[str]:
    said = found.document.meta.get("keywords")
    return said if isinstance(said, tuple) else ()
