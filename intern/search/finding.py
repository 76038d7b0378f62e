"""Finding by words and by what they mean, best first, and why each was found.

"Found nothing" is a result, "could not look" an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Generic, Literal, Protocol, TypeVar

from anyio import create_task_group
from msgspec import Struct
from msgspec.structs import replace

from intern.domain import (
    HeldTerms,
    LikeHit,
    Match,
    MatchingIds,
    SearchDocument,
    SearchFilter,
    SearchHit,
    SearchKind,
    SourceId,
)
from intern.errors import KnowledgeError, ModelError
from intern.observe.log import get_logger
from intern.search.query import ENOUGH_DOCUMENTS, TOO_COMMON, Terms, all_of, any_of, by_term, quoted, telling, terms_of
from intern.search.ranking import LEAST_LIKENESS, fused, joined, of_best

_log = get_logger(__name__)

S = TypeVar("S")
T = TypeVar("T")
V = TypeVar("V")

# Sources that words and likeness each propose: what stands below the fiftieth place of both is not the best of all.
_PROPOSED = 50

_WORTH_LOOKING_TWICE = 10
"""Documents for each source that is wanted. Of fewer, hardly enough hold every word, and all are weighed at once."""

_REMEMBERED = 16  # questions that are answered at the same time, and some


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

    async def ids(
        self, words: Sequence[Match], trigrams: Match | None, wanted: SearchFilter, limit: int
    ) -> MatchingIds:
        """What `matching` finds in either table, by id alone; nothing where nothing is asked.

        Each of `words` is looked for only where those before it find fewer than `limit`; what the last finds counts.
        """
        ...

    async def scores(
        self, words: Match | None, trigrams: Match | None, wanted: SearchFilter, limit: int
    ) -> tuple[Mapping[SourceId, float], Mapping[SourceId, float]]:
        """What `matching` finds in the table of words and in that of trigrams, and how well; no text is read."""
        ...

    async def containing(self, part: str, wanted: SearchFilter, limit: int) -> tuple[SearchHit, ...]:
        """Sources that hold a run of characters too short for trigrams, in scripts without spaces."""
        ...

    async def which(self, terms: Mapping[str, Match], rids: Collection[int]) -> Mapping[int, tuple[str, ...]]:
        """Which of the terms each document holds."""
        ...

    async def like(
        self, vector: bytes, model: str, wanted: SearchFilter, limit: int, also: Collection[SourceId] = ()
    ) -> tuple[LikeHit, ...]:
        """The sources whose best document is most like a vector of this model, best first; then those of `also`.

        With a `limit` of 0 nothing but `also` is compared.
        """
        ...

    async def likenesses(
        self, vector: bytes, model: str, wanted: SearchFilter, limit: int, also: Collection[SourceId] = ()
    ) -> Mapping[SourceId, float]:
        """What `like` finds, and how like it is; no text is read."""
        ...


class Embedder(Protocol):
    """Turns texts into vectors, which say how alike texts are. Vectors of different models cannot be compared."""

    @property
    def model(self) -> str:
        """Changes whenever vectors made before can no longer be compared with those made from now on."""
        ...

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has."""
        ...

    async def embed(self, texts: Sequence[str], /) -> Sequence[bytes]:
        """For each text its vector: 32-bit floats, little-endian, of length 1. Raises the ModelError family."""
        ...


class LastVectors:
    """An embedder that remembers what it was asked last: a question is looked for among several kinds of things."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._last: dict[str, bytes] = {}

    @property
    def model(self) -> str:
        """The embedder's."""
        return self._embedder.model

    @property
    def dimensions(self) -> int:
        """The embedder's."""
        return self._embedder.dimensions

    async def embed(self, texts: Sequence[str], /) -> Sequence[bytes]:
        """As the embedder does it; of a text alone, the vector is remembered for a while."""
        if len(texts) != 1:
            return await self._embedder.embed(texts)
        [text] = texts
        vector = self._last.pop(text, None)
        if vector is None:
            [vector] = await self._embedder.embed(texts)
        self._last[text] = vector
        while len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]
        return [vector]


class Found(Struct, frozen=True, kw_only=True):
    """A source, and why it is here."""

    document: SearchDocument
    """The best of the source's documents."""
    score: float
    """From words and likeness together; 1 at most, not comparable between questions."""
    matched: tuple[str, ...] = ()
    """Terms of the question that it holds."""
    bm25: float = 0.0
    """How well its words fit; not comparable between questions."""
    likeness: float | None = None
    """How like the question it is, from -1 to 1; None where nobody looked, or it has no vector (yet)."""
    words_place: int | None = None
    """Its place among what words found, from 1."""
    likeness_place: int | None = None
    """Its place among what likeness found, from 1."""
    words_only: bool = False
    """Likeness should have been looked at, and could not: what says the same in other words may be missing."""


class _ByWords(Struct, frozen=True, kw_only=True):
    """What words found."""

    hits: Mapping[SourceId, SearchHit]
    """In their order."""
    scores: Mapping[SourceId, float]
    """From 0 to 1: bm25 as a share of the best one's, by which the tables of words and of trigrams can be compared."""


class _Candidate(Struct, frozen=True):
    rid: int
    found: Found


class Finder:
    """Finds sources by words and, with an embedder, by likeness.

    What is less like the text than `least_likeness` is not found by likeness. It belongs to the embedder's model, and
    is known for some; of others, whatever is not opposed counts.
    """

    def __init__(
        self, store: SearchStore, embedder: Embedder | None = None, *, least_likeness: float | None = None
    ) -> None:
        self._store = store
        self._embedder = embedder
        known = 0.0 if embedder is None else LEAST_LIKENESS.get(embedder.model, 0.0)
        self._least_likeness = known if least_likeness is None else least_likeness

    async def find(self, text: str, wanted: SearchFilter | None = None, limit: int = 10) -> tuple[Found, ...]:
        """The best sources for a text, best first; empty where nothing holds a word of it and nothing is like it.

        Where likeness could not be looked at, each result says so. Raises KnowledgeError, also where nothing is left
        then: that would look as if there were nothing.
        """
        candidates = await self._candidates(text, wanted or SearchFilter(), limit)
        terms = terms_of(text)
        held = await self._store.which(by_term(terms.words), [each.rid for each in candidates])
        inside = (*terms.grams, *terms.short)
        return tuple(
            replace(found, matched=held.get(rid, ()) or _inside(found.document, inside))
            for rid, found in ((each.rid, each.found) for each in candidates)
        )

    async def rank(self, text: str, limit: int, kinds: Sequence[SearchKind] = ("source",)) -> list[SourceId]:
        """The ids of the sources that say most of a text, best first; by what they say, not by their descriptions.

        Raises KnowledgeError as `find` does.
        """
        wanted = SearchFilter(kinds=tuple(kinds), part="text")
        if self._embedder is None:
            return (await self._ids(terms_of(text), wanted, limit))[:limit]
        return await self._ids_by_both(self._embedder, text, wanted, limit)

    async def propose(self, text: str, wanted: SearchFilter | None = None, limit: int = 10) -> tuple[Found, ...]:
        """What `find` finds, without the words that each holds: these take as long again to tell."""
        return tuple(each.found for each in await self._candidates(text, wanted or SearchFilter(), limit))

    async def _ids_by_both(self, embedder: Embedder, text: str, wanted: SearchFilter, limit: int) -> list[SourceId]:
        """What `_candidates` finds, by id alone: an answer waits."""
        proposed = max(limit, _PROPOSED)
        by_words = partial(self._scores, terms_of(text), wanted, proposed)
        if not text.strip():
            return list(await by_words())[:limit]

        async def compared(vector: bytes, limit: int, also: Collection[SourceId] = ()) -> Mapping[SourceId, float]:
            return await self._store.likenesses(vector, embedder.model, wanted, limit, also)

        words, seen = await _side_by_side(by_words, partial(_seen, embedder, text, partial(compared, limit=proposed)))
        if isinstance(seen, ModelError):
            _do_without(seen, words_found=bool(words))
            return list(words)[:limit]
        others = words.keys() - seen.found.keys()
        found = {**seen.found, **(await compared(seen.vector, 0, sorted(others)) if others else {})}
        alike = {each: value for each, value in found.items() if value >= self._least_likeness or each in words}
        return list(joined(words, alike) if alike else words)[:limit]

    async def _scores(self, terms: Terms, wanted: SearchFilter, limit: int) -> dict[SourceId, float]:
        rankings: list[Mapping[SourceId, float]] = []
        if terms.words or terms.grams:
            match = await self._any_word(terms)
            rankings += await self._store.scores(match, any_of(terms.grams), wanted, limit)
        for part in terms.short:
            hits = await self._store.containing(part, wanted, limit)
            rankings.append({hit.document.source_id: hit.bm25 for hit in hits})
        scores = _best_shares(rankings)
        return {source_id: scores[source_id] for source_id in fused(*map(list, rankings))[:limit]}

    async def _any_word(self, terms: Terms) -> Match | None:
        """Whatever holds one of the words, but for those that too many documents hold."""
        return any_of(telling(terms.words, *await self._held(terms))) if terms.words else None

    async def _held(self, terms: Terms) -> tuple[Sequence[int], int]:
        """How many documents hold each of the words, and how many there are."""
        held = await self._store.held([quoted(term) for term in terms.words], TOO_COMMON, ENOUGH_DOCUMENTS)
        return held.counts, held.documents

    async def _ids(self, terms: Terms, wanted: SearchFilter, limit: int) -> list[SourceId]:
        """By words alone, and no more read than that takes: an answer waits."""
        words: list[Match | None] = []
        if terms.words:
            counts, documents = await self._held(terms)
            # Where enough sources hold each of the words, the many more that hold one of them need not be weighed.
            words = [all_of(terms.words)] if documents >= limit * _WORTH_LOOKING_TWICE else []
            words.append(any_of(telling(terms.words, counts, documents)))
        found = tuple(dict.fromkeys(filter(None, words)))
        both = await self._store.ids(found, any_of(terms.grams), wanted, limit)
        rankings: list[Sequence[SourceId]] = [both.words, both.trigrams]
        for part in terms.short:
            hits = await self._store.containing(part, wanted, limit)
            rankings.append([hit.document.source_id for hit in hits])
        return fused(*rankings)

    async def _candidates(self, text: str, wanted: SearchFilter, limit: int) -> list[_Candidate]:
        embedder = self._embedder
        if embedder is None or not text.strip():
            return _of_words(await self._by_words(text, wanted, limit), words_only=False)
        proposed = max(limit, _PROPOSED)

        async def compared(vector: bytes, limit: int, also: Collection[SourceId] = ()) -> tuple[LikeHit, ...]:
            return await self._store.like(vector, embedder.model, wanted, limit, also)

        words, seen = await _side_by_side(
            partial(self._by_words, text, wanted, proposed),
            partial(_seen, embedder, text, partial(compared, limit=proposed)),
        )
        if isinstance(seen, ModelError):
            _do_without(seen, words_found=bool(words.hits))
            return _of_words(words, words_only=True)[:limit]
        others = words.hits.keys() - {hit.document.source_id for hit in seen.found}
        hits = (*seen.found, *(await compared(seen.vector, 0, sorted(others)) if others else ()))
        alike = [hit for hit in hits if hit.likeness >= self._least_likeness or hit.document.source_id in words.hits]
        return _of_both(words, alike, proposed)[:limit] if alike else _of_words(words, words_only=False)[:limit]

    async def _by_words(self, text: str, wanted: SearchFilter, limit: int) -> _ByWords:
        terms = terms_of(text)
        rankings: list[tuple[SearchHit, ...]] = []
        if match := await self._any_word(terms):
            rankings.append(await self._store.matching(match, "words", wanted, limit))
        if match := any_of(terms.grams):
            rankings.append(await self._store.matching(match, "trigrams", wanted, limit))
        rankings += [await self._store.containing(part, wanted, limit) for part in terms.short]
        hits: dict[SourceId, SearchHit] = {}
        for ranking in rankings:
            hits = {**{hit.document.source_id: hit for hit in ranking}, **hits}
        scores = _best_shares([{hit.document.source_id: hit.bm25 for hit in ranking} for ranking in rankings])
        order = fused(*([hit.document.source_id for hit in ranking] for ranking in rankings))
        return _ByWords(hits={source_id: hits[source_id] for source_id in order[:limit]}, scores=scores)


class _Seen(Struct, Generic[T], frozen=True):
    """What is most like a text, and the text's vector."""

    vector: bytes
    found: T


async def _seen(embedder: Embedder, text: str, look: Callable[[bytes], Awaitable[T]]) -> _Seen[T] | ModelError:
    """The error where there is no vector to be had: words may do without. Raises KnowledgeError."""
    try:
        [vector] = await embedder.embed([text.encode("utf-8", "replace").decode()])
    except ModelError as error:
        return error
    return _Seen(vector, await look(vector))


def _do_without(error: ModelError, *, words_found: bool) -> None:
    """Raises KnowledgeError where words found nothing, for that would look as if there were nothing."""
    if not words_found:
        raise KnowledgeError(
            f"nothing holds a word of it, and what says the same in other words could not be searched: {error}"
        ) from error
    _log.warning("search_by_words_only", reason=str(error))


async def _side_by_side(one: Callable[[], Awaitable[S]], other: Callable[[], Awaitable[T]]) -> tuple[S, T]:
    """Both at once: they are work for two cores. Raises KnowledgeError as itself, not in a group."""
    ones, others, errors = list[S](), list[T](), list[KnowledgeError]()

    async def hold(call: Callable[[], Awaitable[V]], values: list[V]) -> None:
        try:
            values.append(await call())
        except KnowledgeError as error:
            errors.append(error)

    async with create_task_group() as tg:
        tg.start_soon(hold, other, others)
        await hold(one, ones)
    if errors:
        raise errors[0]
    return ones[0], others[0]


def _best_shares(rankings: Sequence[Mapping[SourceId, float]]) -> dict[SourceId, float]:
    """For each source the best of its shares of what is best in a ranking."""
    scores: dict[SourceId, float] = {}
    for ranking in rankings:
        for source_id, score in of_best(ranking).items():
            scores[source_id] = max(scores.get(source_id, 0.0), score)
    return scores


def _of_words(words: _ByWords, *, words_only: bool) -> list[_Candidate]:
    return [
        _Candidate(
            hit.rid,
            Found(
                document=hit.document,
                score=words.scores[source_id],
                bm25=hit.bm25,
                words_place=place,
                words_only=words_only,
            ),
        )
        for place, (source_id, hit) in enumerate(words.hits.items(), 1)
    ]


def _of_both(words: _ByWords, alike: Sequence[LikeHit], proposed: int) -> list[_Candidate]:
    """Joined; of those beyond the `proposed`, likeness is known, their places are not."""
    by_words = {each.found.document.source_id: each for each in _of_words(words, words_only=False)}
    by_likeness = {hit.document.source_id: (place, hit) for place, hit in enumerate(alike, 1)}
    scores = joined(
        {source_id: words.scores[source_id] for source_id in by_words},
        {source_id: hit.likeness for source_id, (_, hit) in by_likeness.items()},
    )
    candidates: list[_Candidate] = []
    for source_id, score in scores.items():
        place, hit = by_likeness.get(source_id, (None, None))
        candidate = by_words.get(source_id)
        if candidate is None:
            assert hit is not None
            candidate = _Candidate(hit.rid, Found(document=hit.document, score=score))
        found = replace(
            candidate.found,
            score=score,
            likeness=None if hit is None else hit.likeness,
            likeness_place=place if place is not None and place <= proposed else None,
        )
        candidates.append(_Candidate(candidate.rid, found))
    return candidates


def _inside(document: SearchDocument, parts: Sequence[str]) -> tuple[str, ...]:
    text = f"{document.title} {document.path} {document.text}".lower()
    return tuple(part for part in parts if part in text)
