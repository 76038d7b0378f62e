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

from intern.answering.prompts import ALIASES, MOST_SHOWN, Shown, ShownSource
from intern.core.ids import SourceId
from intern.core.messages import MARKER, block_ids, is_distilled, is_team
from intern.core.records import Hit, IndexEntry, SourceText
from intern.core.text.orders import gives_orders
from intern.core.text.passages import PASSAGE, Passage, best_passages, even_share, heading_below, passages
from intern.core.text.patterns import regex
from intern.core.text.words import Remembering, one_line, weight_of, word_set, words

# Of a page in two formats (`git-add.txt`, `git-add.html`) three in four share 85% of their words or more; of two
# different pages of one manual none shares 40%. In one format, two versions of a page share as many.
_SAME_PAGE = 0.6
_COMPARED = 8000  # characters


def distinct(sources: Iterable[SourceText]) -> tuple[SourceText, ...]:
    """Those documents that say something else than all before them: no copy, and no page in a second format.

    What was said in conversations is always kept.
    """
    kept: list[SourceText] = []
    seen: list[_Page] = []
    for source in sources:
        if not (is_team(source.source_id) or is_distilled(source.source_id)) and source.text.strip():
            page = _page(source)
            if any(map(page.repeats, seen)):
                continue
            seen.append(page)
        kept.append(source)
    return tuple(kept)


def shown_sources(sources: Sequence[SourceText], query: str, max_chars: int) -> tuple[ShownSource, ...]:
    """Return the sources with any text, team knowledge first, in at most `max_chars` characters in total.

    Each gets an equal share; what a short one leaves, the longer ones share.
    """
    telling = [source for source in sources if source.text.strip()]
    share = even_share([len(source.text) for source in telling], max_chars)
    shown = [
        ShownSource(
            source_id=source.source_id,
            title=one_line(source.title),
            text=best_passages(source.text, query, share),
            url=source.url,
            said=source.said,
        )
        for source in telling
    ]
    # A stable sort: within a kind, the model's order stays.
    return tuple(sorted((source for source in shown if source.text.strip()), key=lambda s: not is_team(s.source_id)))


class _Page(NamedTuple):
    """What tells whether two documents are one page."""

    format: str
    text: str
    words: frozenset[str]

    def repeats(self, other: _Page) -> bool:
        if self.format == other.format:
            return self.text == other.text
        return len(self.words & other.words) >= _SAME_PAGE * len(self.words | other.words)


def _page(source: SourceText) -> _Page:
    ending = PurePosixPath(source.source_id).suffix.lower()
    return _Page(ending, one_line(source.text), frozenset(word_set(source.text[:_COMPARED])))


class Chosen(Struct, frozen=True, kw_only=True):
    """The sources to load, and how many ids were dropped on the way."""

    source_ids: tuple[SourceId, ...]
    others: tuple[SourceId, ...] = ()
    """As many more, to be loaded where one of these cannot be read, or says what another does."""
    shown: int
    """Entries that the model could choose from."""
    unknown: int
    """Ids that were not in what was shown: invented, or pointing elsewhere. Never opened, never fetched."""
    facts: tuple[SourceText, ...] = ()
    """Known facts that fit; the model does not choose them."""


MOST_RANKED = 200
"""Entries that are worth ranking by their texts; with descriptions of a line or two, fewer fit into a prompt."""


def chosen(ids: Sequence[str], shown: Sequence[IndexEntry], max_sources: int) -> Chosen:
    """Choose the first `max_sources` of the ids that were shown, each once, in the model's order."""
    known = {str(entry.source_id): entry.source_id for entry in shown}
    asked_for = [each.strip() for each in ids]
    known_ids = tuple(dict.fromkeys(known[each] for each in asked_for if each in known))
    return Chosen(
        source_ids=known_ids[:max_sources],
        others=known_ids[max_sources : 2 * max_sources],
        shown=len(shown),
        unknown=sum(each not in known for each in asked_for),
    )


def entry_words(entry: IndexEntry) -> tuple[str, ...]:
    """Return the words of an entry; file names and addresses say much about a source."""
    # But for a nugget's, which is a number.
    name = "" if entry.source_id.startswith("nugget:") else entry.source_id.partition(":")[2]
    return tuple(words(f"{name}\n{entry.description}"))


# An index changes often, and few of its entries with it.
_all_words = Remembering(entry_words)


def listable(nuggets: Iterable[IndexEntry], max_chars: int) -> tuple[IndexEntry, ...]:
    """As many nuggets, the best first, as fit into a quarter of the room: the index keeps the rest."""
    entries = [IndexEntry(nugget.source_id, one_line(nugget.description)) for nugget in nuggets]
    return tuple(entries[: bisect_right([*accumulate(map(size, entries))], max_chars // 4)])


class Index:
    """An index, and which of its entries hold a word: made once, asked for each question.

    An id that would break a line is left out, and a description is made one line: none can forge an entry.
    """

    def __init__(self, entries: Iterable[IndexEntry]) -> None:
        fit = (entry for entry in entries if str(entry.source_id).isprintable())
        self.entries = tuple(IndexEntry(entry.source_id, one_line(entry.description)) for entry in fit)
        self.sizes = [size(entry) for entry in self.entries]
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

    def worth_ranking(self, max_chars: int) -> int:
        """How many entries to rank by their texts: twice as many as could be shown, since some are too long to fit."""
        shown = bisect_right([*accumulate(self._smallest_first[:MOST_RANKED])], max_chars)
        return min(2 * shown, MOST_RANKED, len(self.entries))

    def shown(self, query: str, max_chars: int, best: Sequence[SourceId] = ()) -> tuple[IndexEntry, ...]:
        """Return the whole index if it fits `max_chars`, else the entries that fit the query best, in their order.

        These are the `best` (found by their texts) in their order, then those whose own words fit.
        """
        if self.fits(max_chars):
            return self.entries
        kept: list[int] = []
        room, least = max_chars, self._smallest_first[0]
        for n in self.ranked(query, best):
            if self.sizes[n] <= room:
                kept.append(n)
                room -= self.sizes[n]
            if room < least:
                break
        return tuple(self.entries[n] for n in sorted(kept))

    def ranked(self, query: str, best: Sequence[SourceId] = ()) -> Iterator[int]:
        """All entries: the best, then those that hold the most of what is telling in the query; the others follow.

        Not joined with the best: of 120 real questions, the descriptions' words showed the right entry lower for more
        than they showed it higher, on all sets.
        """
        by_text = (self._places[source_id] for source_id in best if source_id in self._places)
        return iter(dict.fromkeys(chain(by_text, self._by_words(query), range(len(self.entries)))))

    def _by_words(self, query: str) -> list[int]:
        # Sorted: floating point sums depend on the order, and sets have none that lasts from run to run.
        scores = defaultdict[int, float](float)
        for word in sorted(word_set(query)):
            holding = self._holding.get(word, ())
            weight = weight_of(len(holding), len(self.entries))
            for n in holding if weight >= _TELLING else ():
                scores[n] += weight
        # The index's order decides between equals.
        return nlargest(2 * MOST_RANKED, sorted(scores), key=scores.__getitem__)


# An index changes seldom and is read for each question; the one before may still be in use. For thousands of entries it
# takes hundreds of ms.
listed = lru_cache(maxsize=2)(Index)

_TELLING = 0.01  # the weight of a word that all of fifty entries hold, or all but a few of thousands


def size(entry: IndexEntry) -> int:
    """Characters that an entry takes in a prompt."""
    # Two line ends and the blank line between entries.
    return len(entry.source_id) + len(entry.description) + 3


# Characters at the end of a topic, the newest, where its blocks are not those that were indexed.
_MOST_SEARCHED = 30_000
_BLOCK = regex(rf"^{MARKER}[ \t]*$", re.MULTILINE)
_HEADER = regex(r"\A\s*(?:[a-z_]+:[^\n]*\n)+\n?")
# When it was archived, and behind that when it was answered: an import has years between them.
_ANSWERED = regex(r"^(?:answered_at|timestamp):[ \t]*(\d{4}-\d\d-\d\d)", re.MULTILINE)
_SPEAKER = regex(r"^(?:Team|User): ", re.MULTILINE)
# Of the further lines of a message; one that looks like the first line of a turn keeps it.
_INDENT = regex(r"^  (?!\s*(?:team|user)\s*:)", re.MULTILINE | re.IGNORECASE)


def order_hits(hits: Iterable[Hit]) -> list[Hit]:
    """Return the hits best first; at equal score, the team's words before documents."""
    return sorted(hits, key=lambda hit: (-round(hit.score, 2), not is_team(hit.source_id)))


def shown_passages(
    hits: Sequence[Hit], sources: Mapping[SourceId, SourceText], query: str, max_chars: int
) -> tuple[Shown, ...]:
    """Cut the passages of the hits, as many as fit into `max_chars` characters, in an order of their own.

    The order depends on the ids and the places in their sources alone, so that questions about the same sources share
    the beginning of a prompt.
    """
    room, kept = max_chars, dict[_Place, Shown]()
    for n, hit in enumerate(hits):
        source = sources.get(hit.source_id)
        found = None if source is None else _passage(source, hit, query)
        if found is None or found[0] in kept or len(kept) == MOST_SHOWN:
            continue
        place, passage, is_same = found
        if len(passage.text) > max_chars:
            passage = structs.replace(passage, text=best_passages(passage.text, query, max_chars))
        if len(passage.text) <= room:
            kept[place] = structs.replace(passage, hit=n if is_same else None)
            room -= len(passage.text)
    return _give_aliases(kept)


def whole_sources(
    hits: Sequence[Hit], sources: Mapping[SourceId, SourceText], query: str, max_chars: int
) -> tuple[Shown, ...]:
    """All that is known, passage by passage, where it is little enough to be shown; else nothing."""
    if sum(len(source.text) for source in sources.values()) > max_chars:
        return ()
    kept = {place: passage for source in sources.values() for place, passage in _all(source)}
    for n, hit in reversed([*enumerate(hits)]):
        found = _passage(sources[hit.source_id], hit, query) if hit.source_id in sources else None
        if found is not None and found[0] in kept:
            kept[found[0]] = structs.replace(kept[found[0]], hit=n if found[2] else None)
    return _give_aliases(kept) if len(kept) <= MOST_SHOWN else ()


_Place: TypeAlias = tuple[str, int]
"""The id to cite, and where a passage begins in its source."""


def _give_aliases(passages: Mapping[_Place, Shown]) -> tuple[Shown, ...]:
    """Order passages, the team's words first, then by their places; give each its alias."""
    order = sorted(passages, key=lambda place: (not is_team(place[0]), place))
    called = zip(ALIASES, map(passages.__getitem__, order), strict=False)
    return tuple(structs.replace(each, alias=alias, label=f"{alias}: {each.label}") for alias, each in called)


def _all(source: SourceText) -> Iterator[tuple[_Place, Shown]]:
    if is_team(source.source_id):
        yield from (_of_team(source, qa_id, block, "") for qa_id, block in _blocks(source.text))
    elif is_distilled(source.source_id):
        yield _shown(source, source.text.strip())
    else:
        yield from (_of_document(source, piece) for piece in _pieces(source.text))


def _passage(source: SourceText, hit: Hit, query: str) -> tuple[_Place, Shown, bool] | None:
    """Return the current passage, and whether it is what was found; else what fits the question best."""
    if is_distilled(source.source_id):
        return (*_shown(source, source.text.strip()), False) if source.text.strip() else None
    if is_team(source.source_id):
        found = _block_of(source.text, hit, query)
        return None if found is None else (*_of_team(source, found[0], found[1], query), found[2])
    pieces = _pieces(source.text)
    same = [piece for piece in pieces if piece.text == hit.text]
    # Two sections may say the same.
    best = next((piece for piece in same if heading_below(source.title, piece.heading) == hit.title), None)
    best = best or next(iter(same), None) or max(pieces, key=_overlap_with(query, hit.text), default=None)
    # Of a discovered file, a summary was found.
    return None if best is None else (*_of_document(source, best), bool(same) or source.source_id.startswith("file:"))


# One question finds several passages of one source.
_pieces = lru_cache(maxsize=16)(partial(passages, max_chars=PASSAGE))


def _overlap_with(*texts: str) -> Callable[[Passage], tuple[int, ...]]:
    """Return a key: how many words a passage shares with the first text; of equals, with the second."""
    wanted = [word_set(text) for text in texts]

    def overlap(piece: Passage) -> tuple[int, ...]:
        held = word_set(f"{piece.heading}\n{piece.text}")
        return tuple(len(held & each) for each in wanted)

    return overlap


def _of_document(source: SourceText, piece: Passage) -> tuple[_Place, Shown]:
    place, shown = _shown(source, piece.text, piece.start)
    heading = "" if gives_orders(piece.heading) else one_line(piece.heading)
    # The innermost two: a marker has no room for more.
    label = ": ".join(filter(None, (shown.label, ", ".join(heading.split(" > ")[-2:]))))
    return place, structs.replace(shown, heading=heading, anchor=piece.anchor, label=label, start=piece.start)


def _block_of(text: str, hit: Hit, query: str) -> tuple[str, str, bool] | None:
    """Return id and text of the block that was found, and True; else of the one that holds most of its words."""
    first, wanted = hit.text.partition("\n")[0], one_line(hit.text)
    for qa_id, block in _blocks(text) if first else ():
        if f": {first}\n" in block and one_line(_SPEAKER.sub("", _said_by_whom(block))) == wanted:
            return qa_id, block, True
    words, held = word_set(hit.text or query), dict(_blocks(text[-_MOST_SEARCHED:]))
    best = max(held, key=lambda qa_id: len(word_set(held[qa_id]) & words), default=None)
    return None if best is None else (best, held[best], False)


def _of_team(source: SourceText, qa_id: str, block: str, query: str) -> tuple[_Place, Shown]:
    said, days = _said_by_whom(block), _ANSWERED.findall(block)
    place, shown = _shown(structs.replace(source, source_id=SourceId(f"{source.source_id}#{qa_id}")), said)
    text = _turns_cut(said, query)
    return place, structs.replace(shown, text=text, label=f"team {days[-1]}" if days else "team")


def _turns_cut(said: str, query: str) -> str:
    """Cut the turns to what fits a question best: a little of what was asked, most of what the team answered."""
    asked, answers, answered = said.partition("\nTeam: ")
    if len(said) <= PASSAGE or not answers:
        return best_passages(said, query, PASSAGE)
    asked = best_passages(asked, query, PASSAGE // 4)
    return asked + answers + best_passages(answered, query, PASSAGE - len(asked) - len(answers))


def _shown(source: SourceText, text: str, start: int = 0) -> tuple[_Place, Shown]:
    kind, _, name = source.source_id.partition(":")
    shown = Shown(
        alias="S1",
        source_id=source.source_id,
        label=name if kind in {"kb", "file"} else source.source_id,
        title=one_line(source.title),
        text=text,
        url=source.url,
        said=source.said,
    )
    return (source.source_id, start), shown


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Each QA block's id and what follows it."""
    for part in _BLOCK.split(text)[1:]:
        yield from ((qa_id, part) for qa_id in islice(block_ids(f"{MARKER}{part}"), 1))


def _said_by_whom(block: str) -> str:
    """Return the turns of a block, each led by its speaker, without ids and times."""
    return _INDENT.sub("", _HEADER.sub("", block).strip())
