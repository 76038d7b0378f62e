"""Finding sources by words, best first, and why each was found.

"Found nothing" is a result, "could not look" an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from intern.domain import HeldTerms, Match, SearchDocument, SearchFilter, SearchHit, SearchKind, SourceId
from intern.search.query import ENOUGH_DOCUMENTS, TOO_COMMON, any_of, by_term, quoted, telling, terms_of
from intern.search.ranking import fused


class SearchStore(Protocol):
    """Where documents lie and are matched. All methods raise KnowledgeError."""

    async def held(self, terms: Sequence[Match], at_most: float, least: int) -> HeldTerms:
        """How many documents hold each term; counting stops at that share, and is not done below `least` documents."""
        ...

    async def matching(
        self, match: Match, table: Literal["words", "trigrams"], wanted: SearchFilter, limit: int
    ) -> tuple[SearchHit, ...]:
        """The sources whose best document matches best, best first."""
        ...

    async def containing(self, part: str, wanted: SearchFilter, limit: int) -> tuple[SearchHit, ...]:
        """Sources that hold a run of characters too short for trigrams, in scripts without spaces."""
        ...

    async def which(self, terms: Mapping[str, Match], rids: Collection[int]) -> Mapping[int, tuple[str, ...]]:
        """Which of the terms each document holds."""
        ...


class Found(Struct, frozen=True, kw_only=True):
    """A source, and why it is here."""

    document: SearchDocument
    """The best of the source's documents."""
    matched: tuple[str, ...]
    """Terms of the question that it holds."""
    bm25: float
    """How well its words fit; not comparable between questions."""


class Finder:
    """Finds sources by words."""

    def __init__(self, store: SearchStore) -> None:
        self._store = store

    async def find(self, text: str, wanted: SearchFilter | None = None, limit: int = 10) -> tuple[Found, ...]:
        """The best sources for a text, best first; empty where nothing holds a word of it. Raises KnowledgeError."""
        terms = terms_of(text)
        hits = await self._hits(text, wanted or SearchFilter(), limit)
        held = await self._store.which(by_term(terms.words), [hit.rid for hit in hits])
        return tuple(
            Found(
                document=hit.document,
                matched=held.get(hit.rid, ()) or _inside(hit.document, (*terms.grams, *terms.short)),
                bm25=hit.bm25,
            )
            for hit in hits
        )

    async def rank(self, text: str, limit: int, kinds: Sequence[SearchKind] = ("source",)) -> list[SourceId]:
        """The ids of the sources that say most of a text, best first; by what they say, not by their descriptions.

        Raises KnowledgeError.
        """
        hits = await self._hits(text, SearchFilter(kinds=tuple(kinds), part="text"), limit)
        return [hit.document.source_id for hit in hits]

    async def _hits(self, text: str, wanted: SearchFilter, limit: int) -> list[SearchHit]:
        terms = terms_of(text)
        rankings: list[tuple[SearchHit, ...]] = []
        if terms.words:
            held = await self._store.held([quoted(term) for term in terms.words], TOO_COMMON, ENOUGH_DOCUMENTS)
            if match := any_of(telling(terms.words, held.counts, held.documents)):
                rankings.append(await self._store.matching(match, "words", wanted, limit))
        if match := any_of(terms.grams):
            rankings.append(await self._store.matching(match, "trigrams", wanted, limit))
        rankings += [await self._store.containing(part, wanted, limit) for part in terms.short]
        by_source: dict[SourceId, SearchHit] = {}
        for hit in (hit for ranking in rankings for hit in ranking):
            by_source.setdefault(hit.document.source_id, hit)
        order = fused(*([hit.document.source_id for hit in ranking] for ranking in rankings))
        return [by_source[source_id] for source_id in order[:limit]]


def _inside(document: SearchDocument, parts: Sequence[str]) -> tuple[str, ...]:
    text = f"{document.title} {document.path} {document.text}".lower()
    return tuple(part for part in parts if part in text)
