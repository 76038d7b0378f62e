"""Nuggets for a question, in two stages: what words and likeness find, then what of it can be trusted most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from intern.domain import NuggetStatus, SearchFilter
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


class Wanted(Struct, frozen=True, kw_only=True):
    """Which nuggets count."""

    statuses: tuple[NuggetStatus, ...] = ()
    """All, unless some are named."""
    oldest: timedelta | None = None
    guild_id: str | None = None


async def best_nuggets(
    search: Searches, text: str, *, now: datetime, wanted: Wanted | None = None, limit: int = 5
) -> tuple[Found, ...]:
    """The nuggets that say most of a text and can be trusted most. Raises KnowledgeError."""
    wanted = wanted or Wanted()
    after = None if wanted.oldest is None else now - wanted.oldest
    # One status is the store's to look for; of several, the best are looked through.
    status = wanted.statuses[0] if len(wanted.statuses) == 1 else None
    asked = SearchFilter(kinds=("nugget",), status=status, guild_id=wanted.guild_id, after=after)
    return reranked(await search.find(text, asked, max(STAGE_ONE, limit)), text, now=now, wanted=wanted)[:limit]


def reranked(found: Sequence[Found], text: str, *, now: datetime, wanted: Wanted | None = None) -> tuple[Found, ...]:
    """The second stage: in the order of what each says of the text, how far it can be trusted, and how old it is."""
    wanted = wanted or Wanted()
    asked = word_set(text)
    kept = [each for each in found if not wanted.statuses or each.document.status in wanted.statuses]
    if wanted.oldest is not None:
        kept = [each for each in kept if now - each.document.at <= wanted.oldest]
    worth = [replace(each, score=_worth(each, asked, now)) for each in kept]
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
