"""Which entries of the index a model sees, and which of the ids that it returns count. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from msgspec import Struct

from intern.domain import IndexEntry, SourceId
from intern.search.ranking import fused
from intern.text.words import Rarity, words


class Chosen(Struct, frozen=True, kw_only=True):
    """The sources to load, and how many ids were dropped on the way."""

    source_ids: tuple[SourceId, ...]
    shown: int
    """Entries that the model could choose from."""
    unknown: int
    """Ids that were not in what was shown: invented, or pointing elsewhere. Never opened, never fetched."""


MOST_SHOWN = 200
"""Entries that are worth ranking by their texts; with descriptions of a line or two, fewer fit into a prompt."""


def fits(entries: Iterable[IndexEntry], max_chars: int) -> bool:
    """Whether the index can be shown whole."""
    return sum(_listed(tuple(entries)).sizes) <= max_chars


def shown_entries(
    entries: Iterable[IndexEntry], query: str, max_chars: int, best: Sequence[SourceId] = ()
) -> tuple[IndexEntry, ...]:
    """The index whole while it fits `max_chars`, else the entries that fit the query best; always in its own order.

    Which these are, `best` tells (found by their texts) and the entries' own words.
    An id that would break a line is left out, and a description is made one line: none can forge an entry.
    """
    index = _listed(tuple(entries))
    if sum(index.sizes) <= max_chars:
        return index.entries
    kept: list[int] = []
    room, least = max_chars, min(index.sizes)
    for n in index.ranked(query, best):
        if index.sizes[n] <= room:
            kept.append(n)
            room -= index.sizes[n]
        if room < least:
            break
    return tuple(index.entries[n] for n in sorted(kept))


def best_entries(entries: Iterable[IndexEntry], query: str, best: Sequence[SourceId] = ()) -> tuple[IndexEntry, ...]:
    """All entries, those that fit the query best first."""
    index = _listed(tuple(entries))
    return tuple(index.entries[n] for n in index.ranked(query, best))


def chosen(ids: Sequence[str], shown: Sequence[IndexEntry], max_sources: int) -> Chosen:
    """The first `max_sources` of the ids that were shown, each once, in the model's order."""
    known = {str(entry.source_id): entry.source_id for entry in shown}
    kept: dict[SourceId, None] = {}
    unknown = 0
    for asked_for in map(str.strip, ids):
        if asked_for in known:
            kept[known[asked_for]] = None
        else:
            unknown += 1
    return Chosen(source_ids=tuple(kept)[:max_sources], shown=len(shown), unknown=unknown)


# An index changes seldom and is read for each question.
@lru_cache(maxsize=8192)
def entry_words(entry: IndexEntry) -> tuple[str, ...]:
    """The words of an entry; file names and addresses say much about what stands in them."""
    return tuple(words(f"{entry.source_id.partition(':')[2]}\n{entry.description}"))


class _Index:
    """An index, and which of its entries hold a word: made once, asked for each question."""

    def __init__(self, entries: Iterable[IndexEntry]) -> None:
        self.entries = tuple(
            IndexEntry(entry.source_id, " ".join(entry.description.split()))
            for entry in entries
            if str(entry.source_id).isprintable()
        )
        self.sizes = [_size(entry) for entry in self.entries]
        self._places = {entry.source_id: n for n, entry in enumerate(self.entries)}
        self._holding: dict[str, list[int]] = {}
        held = [set(entry_words(entry)) for entry in self.entries]
        self._rarity = Rarity(held)
        for n, have in enumerate(held):
            for word in have:
                self._holding.setdefault(word, []).append(n)

    def ranked(self, query: str, best: Sequence[SourceId] = ()) -> list[int]:
        """All entries: the best, and those that hold the most of what is telling in the query; the others follow."""
        by_text = [self._places[source_id] for source_id in best if source_id in self._places]
        # Joined, since a description says what a source is for, and its text what it says: of 120 real questions, the
        # right one of 596 entries is among the first ten for 69%, by either alone for 62% to 65%.
        fitting = fused(by_text, self._by_words(query))
        taken = set(fitting)
        return [*fitting, *(n for n in range(len(self.entries)) if n not in taken)]

    def _by_words(self, query: str) -> list[int]:
        scores: dict[int, float] = {}
        # Sorted: floating point sums depend on the order, and sets have none that lasts from run to run.
        for word in sorted(set(words(query))):
            weight = self._rarity.weight(word)
            for n in self._holding.get(word, ()):
                scores[n] = scores.get(n, 0.0) + weight
        # Sorting keeps the order of equals, which is the index's.
        return sorted(sorted(scores), key=scores.__getitem__, reverse=True)


# An index changes seldom and is read for each question; the one before may still be in use.
@lru_cache(maxsize=2)
def _listed(entries: tuple[IndexEntry, ...]) -> _Index:
    return _Index(entries)


def _size(entry: IndexEntry) -> int:
    # Two line ends and the blank line between entries.
    return len(entry.source_id) + len(entry.description) + 3
