"""Choose index entries for a model to select from, and drop repeated sources. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import nlargest
from itertools import accumulate, chain
from pathlib import PurePosixPath
from typing import NamedTuple

from intern.answering.prompts import ShownSource
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry, SourceText
from intern.core.messages import is_distilled, is_team_source
from intern.core.text.passages import even_share, select_best_passages
from intern.core.text.words import LastBatchCache, collapse_whitespace, stem_set, stem_words, word_weight

# Three in four pages in two formats (`git-add.txt`, `git-add.html`) share 85% of their words or more. No two different
# pages of one manual share 40%. Two versions of a page in one format share as many as two formats.
_SAME_PAGE = 0.6
_COMPARED = 8000  # characters


def drop_duplicates(sources: Iterable[SourceText]) -> tuple[SourceText, ...]:
    """Drop documents that repeat an earlier one: copies, and pages in a second format.

    Sources from conversations are always kept.
    """
    kept: list[SourceText] = []
    seen: list[_PageFingerprint] = []
    for source in sources:
        if not (is_team_source(source.source_id) or is_distilled(source.source_id)) and source.text.strip():
            page = _PageFingerprint(
                PurePosixPath(source.source_id).suffix.lower(),
                collapse_whitespace(source.text),
                frozenset(stem_set(source.text[:_COMPARED])),
            )
            if any(map(page.is_same_page, seen)):
                continue
            seen.append(page)
        kept.append(source)
    return tuple(kept)


def excerpt_sources(sources: Sequence[SourceText], query: str, max_chars: int) -> tuple[ShownSource, ...]:
    """Return the sources with any text, team knowledge first, in at most `max_chars` characters in total.

    Each gets an equal share; the longer ones share the room that short ones leave.
    """
    telling = [source for source in sources if source.text.strip()]
    share = even_share([len(source.text) for source in telling], max_chars)
    shown = [
        ShownSource(
            source_id=source.source_id,
            title=collapse_whitespace(source.title),
            text=select_best_passages(source.text, query, share),
            url=source.url,
            said=source.said,
        )
        for source in telling
    ]
    # A stable sort: within a kind, the model's order stays.
    return tuple(
        sorted((source for source in shown if source.text.strip()), key=lambda s: not is_team_source(s.source_id))
    )


class _PageFingerprint(NamedTuple):
    """The features that tell whether two documents are one page."""

    format: str
    text: str
    words: frozenset[str]

    def is_same_page(self, other: _PageFingerprint) -> bool:
        if self.format == other.format:
            return self.text == other.text
        return len(self.words & other.words) >= _SAME_PAGE * len(self.words | other.words)


MOST_RANKED = 200
"""The most entries to rank by their texts; with descriptions of a line or two, fewer fit into a prompt."""


def choose_sources(
    ids: Iterable[str], shown: Iterable[IndexEntry], max_sources: int
) -> tuple[tuple[SourceId, ...], tuple[SourceId, ...], int]:
    """Return the first `max_sources` of the ids that were shown, each once, in the model's order.

    Return also as many more, and the number of ids that were not shown: invented, or pointing elsewhere. These are
    never opened or fetched.
    """
    known = {str(entry.source_id): entry.source_id for entry in shown}
    asked_for = [each.strip() for each in ids]
    chosen = tuple(dict.fromkeys(known[each] for each in asked_for if each in known))
    unknown = sum(each not in known for each in asked_for)
    return chosen[:max_sources], chosen[max_sources : 2 * max_sources], unknown


def entry_words(entry: IndexEntry) -> tuple[str, ...]:
    """Return the words of an entry, with its id: file names and addresses say much about a source."""
    # A nugget's id is only a number.
    name = "" if entry.source_id.startswith("nugget:") else entry.source_id.partition(":")[2]
    return tuple(stem_words(f"{name}\n{entry.description}"))


# An index changes often, and few of its entries with it.
_all_words = LastBatchCache(entry_words)


def limit_nuggets(nuggets: Iterable[IndexEntry], max_chars: int) -> tuple[IndexEntry, ...]:
    """Return the best nuggets that fit into a quarter of the room: the index keeps the rest."""
    entries = [IndexEntry(nugget.source_id, collapse_whitespace(nugget.description)) for nugget in nuggets]
    return tuple(entries[: bisect_right([*accumulate(map(entry_size, entries))], max_chars // 4)])


class SourceIndex:
    """An index with a map of words to entries: made once, used for each question.

    An id with a line break is left out, and a description is made one line, so neither can forge an entry.
    """

    def __init__(self, entries: Iterable[IndexEntry]) -> None:
        fit = (entry for entry in entries if str(entry.source_id).isprintable())
        self.entries = tuple(IndexEntry(entry.source_id, collapse_whitespace(entry.description)) for entry in fit)
        self.sizes = [entry_size(entry) for entry in self.entries]
        self._smallest_first = sorted(self.sizes)
        self._size = sum(self.sizes)
        self._places = {entry.source_id: n for n, entry in enumerate(self.entries)}
        self._holding = defaultdict[str, list[int]](list)
        for n, held in enumerate(_all_words(self.entries)):
            for word in set(held):
                self._holding[word].append(n)

    def fits(self, max_chars: int) -> bool:
        """Whether it can be shown whole."""
        return self._size <= max_chars

    def count_candidates(self, max_chars: int) -> int:
        """Return the number of entries to rank by their texts: twice as many as could be shown; some are too long."""
        shown = bisect_right([*accumulate(self._smallest_first[:MOST_RANKED])], max_chars)
        return min(2 * shown, MOST_RANKED, len(self.entries))

    def select_entries(self, query: str, max_chars: int, best: Sequence[SourceId] = ()) -> tuple[IndexEntry, ...]:
        """Return the whole index if it fits `max_chars`, else the entries that fit the query best, in their order.

        First come the `best` (found by their texts) in their order, then those whose own words fit.
        """
        if self.fits(max_chars):
            return self.entries
        kept: list[int] = []
        room, least = max_chars, self._smallest_first[0]
        for n in self.rank_entries(query, best):
            if self.sizes[n] <= room:
                kept.append(n)
                room -= self.sizes[n]
            if room < least:
                break
        return tuple(self.entries[n] for n in sorted(kept))

    def rank_entries(self, query: str, best: Sequence[SourceId] = ()) -> Iterator[int]:
        """Yield the places of all entries: the best, those with the most informative words of the query, the others.

        The two rankings are not fused: of 120 real questions, the descriptions' words ranked the right entry lower more
        often than higher, on all sets.
        """
        by_text = (self._places[source_id] for source_id in best if source_id in self._places)
        return iter(dict.fromkeys(chain(by_text, self._rank_by_words(query), range(len(self.entries)))))

    def _rank_by_words(self, query: str) -> list[int]:
        # Sorted: floating point sums depend on the order, and sets have no stable one.
        scores = defaultdict[int, float](float)
        for word in sorted(stem_set(query)):
            holding = self._holding.get(word, ())
            weight = word_weight(len(holding), len(self.entries))
            for n in holding if weight >= _TELLING else ():
                scores[n] += weight
        # Equals stay in the index's order.
        return nlargest(2 * MOST_RANKED, sorted(scores), key=scores.__getitem__)


# An index changes seldom and is read for each question; the previous one may still be in use. Building it for thousands
# of entries takes hundreds of ms.
build_source_index = lru_cache(maxsize=2)(SourceIndex)

_TELLING = 0.01  # the weight of a word in all of fifty entries, or in all but a few of thousands


def entry_size(entry: IndexEntry) -> int:
    """Characters that an entry takes in a prompt."""
    # Two line ends and the blank line between entries.
    return len(entry.source_id) + len(entry.description) + 3
