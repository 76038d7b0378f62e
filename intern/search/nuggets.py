"""Search in two stages: what words and likeness find, then which of the nuggets among it can be trusted most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec.structs import replace

from intern.domain import SearchFilter
from intern.search.finding import Found
from intern.text.words import word_set

TRUST: Mapping[str, float] = {"FACT": 1.0, "COMMUNITY_OPINION": 0.85, "SPECULATION": 0.75}
"""What a score is worth, by status: of two that fit about as well the fact comes first, and a fact that hardly fits
never comes before an opinion that answers the question."""

_OLDEST = 0.8
"""What is left of the score of what was said long ago; things change, and still most of it holds."""

_HALF_OF_THAT = timedelta(days=365)

_KEYWORD = 0.03
"""For each keyword that the question holds."""

_MOST_KEYWORDS = 3

STAGE_ONE = 30
"""How many the search proposes."""


class Searches(Protocol):
    """The first stage."""

    async def find(self, text: str, wanted: SearchFilter, limit: int, /) -> Sequence[Found]:
        """The best sources for a text, best first. Raises KnowledgeError."""
        ...


async def best_found(
    search: Searches, text: str, wanted: SearchFilter, limit: int, *, now: datetime
) -> tuple[Found, ...]:
    """The sources that say most of a text; of nuggets, those that can be trusted most. Raises KnowledgeError."""
    return reranked(await search.find(text, wanted, max(STAGE_ONE, limit)), text, now=now)[:limit]


def reranked(found: Sequence[Found], text: str, *, now: datetime) -> tuple[Found, ...]:
    """The second stage: nuggets by what each says of the text, how far it can be trusted, and how old it is.

    What is no nugget keeps its score.
    """
    asked = word_set(text)
    worth = [
        replace(each, score=_worth(each, asked, now)) if each.document.kind == "nugget" else each for each in found
    ]
    return tuple(sorted(worth, key=lambda each: -each.score))


def _worth(found: Found, asked: frozenset[str], now: datetime) -> float:
    document = found.document
    halves = max(now - document.at, timedelta()) / _HALF_OF_THAT
    freshness = _OLDEST + (1 - _OLDEST) * math.pow(0.5, halves)
    shared = sum(1 for keyword in _keywords(found) if asked & word_set(keyword))
    trust = TRUST.get(document.status, min(TRUST.values()))
    return found.score * trust * freshness + _KEYWORD * min(shared, _MOST_KEYWORDS)


def _keywords(found: Found) -> Sequence[str]:
    said = found.document.meta.get("keywords")
    return [keyword.strip() for keyword in said.split(",")] if isinstance(said, str) else ()
