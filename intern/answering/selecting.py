"""Choose index entries for a model to select from, and cut passages from the sources as they are now. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from heapq import nlargest
from itertools import accumulate, chain, islice
from pathlib import PurePosixPath
from typing import NamedTuple, TypeAlias

from msgspec import Struct, structs

from intern.answering.prompts import ALIASES, MOST_SHOWN, ShownPassage, ShownSource
from intern.core.ids import SourceId
from intern.core.messages import MARKER, block_ids, is_distilled, is_team_source
from intern.core.records import IndexEntry, PassageHit, SourceText
from intern.core.text.orders import has_prompt_injection
from intern.core.text.passages import PASSAGE, Passage, even_share, join_headings, select_best_passages, split_passages
from intern.core.text.patterns import regex
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
            page = _make_fingerprint(source)
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


def _make_fingerprint(source: SourceText) -> _PageFingerprint:
    ending = PurePosixPath(source.source_id).suffix.lower()
    return _PageFingerprint(ending, collapse_whitespace(source.text), frozenset(stem_set(source.text[:_COMPARED])))


class ChosenSources(Struct, frozen=True, kw_only=True):
    """The sources to load, and how many ids were dropped on the way."""

    source_ids: tuple[SourceId, ...]
    others: tuple[SourceId, ...] = ()
    """As many more, to be loaded if one of these is unreadable or repeats another."""
    shown: int
    """The number of entries that the model could choose from."""
    unknown: int
    """The number of ids that were not shown: invented, or pointing elsewhere. They are never opened or fetched."""
    facts: tuple[SourceText, ...] = ()
    """Known facts that fit; the model does not choose them."""


MOST_RANKED = 200
"""The most entries to rank by their texts; with descriptions of a line or two, fewer fit into a prompt."""


def choose_sources(ids: Sequence[str], shown: Sequence[IndexEntry], max_sources: int) -> ChosenSources:
    """Choose the first `max_sources` of the ids that were shown, each once, in the model's order."""
    known = {str(entry.source_id): entry.source_id for entry in shown}
    asked_for = [each.strip() for each in ids]
    known_ids = tuple(dict.fromkeys(known[each] for each in asked_for if each in known))
    return ChosenSources(
        source_ids=known_ids[:max_sources],
        others=known_ids[max_sources : 2 * max_sources],
        shown=len(shown),
        unknown=sum(each not in known for each in asked_for),
    )


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
        """Return all entries: the best, then those with the most informative words of the query, then the others.

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
listed = lru_cache(maxsize=2)(SourceIndex)

_TELLING = 0.01  # the weight of a word in all of fifty entries, or in all but a few of thousands


def entry_size(entry: IndexEntry) -> int:
    """Characters that an entry takes in a prompt."""
    # Two line ends and the blank line between entries.
    return len(entry.source_id) + len(entry.description) + 3


# Characters at the end of a topic, its newest, if its blocks are no longer those in the search index.
_MOST_SEARCHED = 30_000
_BLOCK = regex(rf"^{MARKER}[ \t]*$", re.MULTILINE)
_HEADER = regex(r"\A\s*(?:[a-z_]+:[^\n]*\n)+\n?")
# The time of archiving, and behind it the time of the answer: an import has years between them.
_ANSWERED = regex(r"^(?:answered_at|timestamp):[ \t]*(\d{4}-\d\d-\d\d)", re.MULTILINE)
_SPEAKER = regex(r"^(?:Team|User): ", re.MULTILINE)
# The indent of the further lines of a message; a line that looks like the first line of a turn keeps it.
_INDENT = regex(r"^  (?!\s*(?:team|user)\s*:)", re.MULTILINE | re.IGNORECASE)


def order_hits(hits: Iterable[PassageHit]) -> list[PassageHit]:
    """Return the hits best first; at equal score, the team's words before documents."""
    return sorted(hits, key=lambda hit: (-round(hit.score, 2), not is_team_source(hit.source_id)))


def select_passages(
    hits: Sequence[PassageHit], sources: Mapping[SourceId, SourceText], query: str, max_chars: int
) -> tuple[ShownPassage, ...]:
    """Cut the passages of the hits, as many as fit into `max_chars` characters, in an order of their own.

    The order depends only on the ids and the places in their sources. So questions about the same sources share the
    beginning of a prompt.
    """
    room, kept = max_chars, dict[_Place, ShownPassage]()
    for n, hit in enumerate(hits):
        source = sources.get(hit.source_id)
        found = None if source is None else _find_passage(source, hit, query)
        if found is None or found[0] in kept or len(kept) == MOST_SHOWN:
            continue
        place, passage, is_same = found
        if len(passage.text) > max_chars:
            passage = structs.replace(passage, text=select_best_passages(passage.text, query, max_chars))
        if len(passage.text) <= room:
            kept[place] = structs.replace(passage, hit=n if is_same else None)
            room -= len(passage.text)
    return _give_aliases(kept)


def select_whole_sources(
    hits: Sequence[PassageHit], sources: Mapping[SourceId, SourceText], query: str, max_chars: int
) -> tuple[ShownPassage, ...]:
    """Return all sources, passage by passage, if they are short enough to be shown; else nothing."""
    if sum(len(source.text) for source in sources.values()) > max_chars:
        return ()
    kept = {place: passage for source in sources.values() for place, passage in _iter_passages(source)}
    for n, hit in reversed([*enumerate(hits)]):
        found = _find_passage(sources[hit.source_id], hit, query) if hit.source_id in sources else None
        if found is not None and found[0] in kept:
            kept[found[0]] = structs.replace(kept[found[0]], hit=n if found[2] else None)
    return _give_aliases(kept) if len(kept) <= MOST_SHOWN else ()


_Place: TypeAlias = tuple[str, int]
"""The id to cite, and the start of a passage in its source."""


def _give_aliases(passages: Mapping[_Place, ShownPassage]) -> tuple[ShownPassage, ...]:
    """Order passages, team answers first, then by their places; give each its alias."""
    order = sorted(passages, key=lambda place: (not is_team_source(place[0]), place))
    called = zip(ALIASES, map(passages.__getitem__, order), strict=False)
    return tuple(structs.replace(each, alias=alias, label=f"{alias}: {each.label}") for alias, each in called)


def _iter_passages(source: SourceText) -> Iterator[tuple[_Place, ShownPassage]]:
    if is_team_source(source.source_id):
        yield from (_make_team_passage(source, qa_id, block, "") for qa_id, block in _split_blocks(source.text))
    elif is_distilled(source.source_id):
        yield _make_passage(source, source.text.strip())
    else:
        yield from (_make_document_passage(source, piece) for piece in _pieces(source.text))


def _find_passage(source: SourceText, hit: PassageHit, query: str) -> tuple[_Place, ShownPassage, bool] | None:
    """Return the current passage and True if it is the found one; else the one that fits the question best."""
    if is_distilled(source.source_id):
        return (*_make_passage(source, source.text.strip()), False) if source.text.strip() else None
    if is_team_source(source.source_id):
        found = _find_block(source.text, hit, query)
        return None if found is None else (*_make_team_passage(source, found[0], found[1], query), found[2])
    pieces = _pieces(source.text)
    same = [piece for piece in pieces if piece.text == hit.text]
    # Two sections may have the same text.
    best = next((piece for piece in same if join_headings(source.title, piece.heading) == hit.title), None)
    best = best or next(iter(same), None) or max(pieces, key=_make_overlap_key(query, hit.text), default=None)
    # For a discovered file, the search found a summary.
    return (
        None
        if best is None
        else (*_make_document_passage(source, best), bool(same) or source.source_id.startswith("file:"))
    )


# One question may find several passages of one source.
_pieces = lru_cache(maxsize=16)(partial(split_passages, max_chars=PASSAGE))


def _make_overlap_key(*texts: str) -> Callable[[Passage], tuple[int, ...]]:
    """Return a sort key: the number of words that a passage shares with the first text; for equals, with the second."""
    wanted = [stem_set(text) for text in texts]

    def count_overlap(piece: Passage) -> tuple[int, ...]:
        held = stem_set(f"{piece.heading}\n{piece.text}")
        return tuple(len(held & each) for each in wanted)

    return count_overlap


def _make_document_passage(source: SourceText, piece: Passage) -> tuple[_Place, ShownPassage]:
    place, shown = _make_passage(source, piece.text, piece.start)
    heading = "" if has_prompt_injection(piece.heading) else collapse_whitespace(piece.heading)
    # The innermost two: a marker has no room for more.
    label = ": ".join(filter(None, (shown.label, ", ".join(heading.split(" > ")[-2:]))))
    return place, structs.replace(shown, heading=heading, anchor=piece.anchor, label=label, start=piece.start)


def _find_block(text: str, hit: PassageHit, query: str) -> tuple[str, str, bool] | None:
    """Return id and text of the found block, and True; else of the block with most of its words, and False."""
    first, wanted = hit.text.partition("\n")[0], collapse_whitespace(hit.text)
    for qa_id, block in _split_blocks(text) if first else ():
        if f": {first}\n" in block and collapse_whitespace(_SPEAKER.sub("", _format_turns(block))) == wanted:
            return qa_id, block, True
    words, held = stem_set(hit.text or query), dict(_split_blocks(text[-_MOST_SEARCHED:]))
    best = max(held, key=lambda qa_id: len(stem_set(held[qa_id]) & words), default=None)
    return None if best is None else (best, held[best], False)


def _make_team_passage(source: SourceText, qa_id: str, block: str, query: str) -> tuple[_Place, ShownPassage]:
    said, days = _format_turns(block), _ANSWERED.findall(block)
    place, shown = _make_passage(structs.replace(source, source_id=SourceId(f"{source.source_id}#{qa_id}")), said)
    text = _shorten_turns(said, query)
    return place, structs.replace(shown, text=text, label=f"team {days[-1]}" if days else "team")


def _shorten_turns(said: str, query: str) -> str:
    """Cut the turns to the parts that fit a question best: a little of the question, most of the team's answer."""
    asked, answers, answered = said.partition("\nTeam: ")
    if len(said) <= PASSAGE or not answers:
        return select_best_passages(said, query, PASSAGE)
    asked = select_best_passages(asked, query, PASSAGE // 4)
    return asked + answers + select_best_passages(answered, query, PASSAGE - len(asked) - len(answers))


def _make_passage(source: SourceText, text: str, start: int = 0) -> tuple[_Place, ShownPassage]:
    kind, _, name = source.source_id.partition(":")
    shown = ShownPassage(
        alias="S1",
        source_id=source.source_id,
        label=name if kind in {"kb", "file"} else source.source_id,
        title=collapse_whitespace(source.title),
        text=text,
        url=source.url,
        said=source.said,
    )
    return (source.source_id, start), shown


def _split_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Return the id and the text of each QA block."""
    for part in _BLOCK.split(text)[1:]:
        yield from ((qa_id, part) for qa_id in islice(block_ids(f"{MARKER}{part}"), 1))


def _format_turns(block: str) -> str:
    """Return the turns of a block, each led by its speaker, without ids and times."""
    return _INDENT.sub("", _HEADER.sub("", block).strip())
