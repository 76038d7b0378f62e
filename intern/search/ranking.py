"""Scores of hits, and the order that they make."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec import Struct, structs

from intern.core.ids import SourceId
from intern.core.search_documents import SearchDocument, SearchFilter
from intern.core.text.words import stem_set

K = TypeVar("K", bound=Hashable)

# Cormack et al. (2009): large enough that the first places of one order do not outweigh a good place in both.
_RANK_OFFSET = 60

LIKENESS_WEIGHT = 0.6
"""The weight of vectors, against words, for texts from chats (topics, nuggets, facts): a turn is short, and its words
tell it apart. Chosen with MiniLM on chat turns: nDCG@10 is .495 to .498 at .5 to .6, .482 at .75, .442
at .85 (by words alone .489). Reciprocal ranks fell to .71 of plain FTS5."""

DOCUMENT_LIKENESS_WEIGHT = 0.78
"""The same for documents, pages and files: on five sets, .75 to .8 beats .6 by 2% (factoids) to 9% (titles)."""


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


class SearchCandidate(Struct, frozen=True, kw_only=True):
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


class SearchHit(SearchCandidate, frozen=True, kw_only=True):
    """A source with the best of its documents."""

    document: SearchDocument
    matched: tuple[str, ...] = ()
    """Terms of the question that it contains."""


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
