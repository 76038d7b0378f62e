"""A text as its blocks, and these as passages: runs of blocks below one heading.

It reads the output of `write_blocks`, and topics, each QA block of them as one block. No passage contains headings:
they name its subject, and cannot be quoted. But for the fences of code that had to be cut, a passage is a slice of its
text, so a quote of a passage is a quote of its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Literal

from msgspec import Struct

from intern.core.text.words import WordRarity, stem_set, stem_words

GAP = "\n\n[…]\n\n"
"""A mark where passages were left out."""

PART_ENDS = "---"
"""A line by itself: the text below it belongs to no question and no summary above it."""

SpanKind = Literal["heading", "paragraph", "item", "row", "code", "qa"]

PASSAGE = 1500
"""Characters of a passage that is searched and shown. Of 120 real questions, the right one of 596 sources is among the
best 50 for 86% with passages of 1,000 or 1,500 characters, and for 84% with sources taken whole; longer ones also hide
what stands at the end of a long document."""

# A page of a book has about 2,000 characters; half of one is an answer, and several fit any budget.
_FINE = 1000
_REMEMBERED = 20_000  # characters
_MISSES = 32  # passages that do not fit any more, after which no other is tried
_QA = "--- QA ---"
_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_ANCHOR = re.compile(r"(?<=[ \t])\{#([\w:.%~-]+)\}$")
_NO_SLUG = re.compile(r"[^\w\- ]")
_FENCE = re.compile(r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(`{3,}|~{3,})")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S")
_QA_ID = re.compile(r"id:[ \t]*(\S+)")
_QA_MARK = re.compile(r"qa_\S+")
_INNERMOST = 6


class BlockSpan(Struct, frozen=True):
    """A block of a text: `text[start:end]`."""

    kind: SpanKind
    start: int
    end: int
    path: tuple[str, ...] = ()
    """The headings above it, outermost first, and a heading itself; of a QA block, its id."""
    anchor: str = ""
    """The anchor of the innermost of these headings: as the text gives it, else as most builders make it."""


class Passage(Struct, frozen=True):
    """A part of a text: `whole[start:end]`, and where that is cut out of code, fences around it."""

    start: int
    end: int
    text: str
    heading: str
    """The headings above it, outermost first, joined by " > "; the id of a QA block."""
    anchor: str = ""
    """Leads to the innermost heading in an address, behind `#`."""


def find_blocks(text: str) -> Iterator[BlockSpan]:
    """Yield the blocks of a text in order; between them are only white space and lines `PART_ENDS`."""
    above: list[tuple[int, str, str]] = []  # level, title and anchor of each heading
    fence = ""
    held: BlockSpan | None = None
    for start, end in _find_lines(text):
        line = text[start:end]
        if held and (fence or (held.kind == "qa" and line != _QA)):
            held = _extend_span(held, end if line else held.end)
            fence = "" if line.strip() == fence else fence
            continue
        kind = _classify_line(line)
        if held and line and kind == "paragraph" and held.kind != "code":
            held = _extend_span(held, end)
            continue
        if held:
            yield held
            held = None
        if line == PART_ENDS:
            above = [each for each in above if each[0] < _INNERMOST]
        elif kind == "heading":
            level, title, anchor = _parse_heading(line)
            above = [each for each in above if each[0] < level]
            above.append((level, title, anchor))
            yield BlockSpan("heading", start, end, tuple(each[1] for each in above), anchor)
        elif line:
            path = (_parse_qa_id(text[end : end + 200]),) if kind == "qa" else tuple(each[1] for each in above)
            held = BlockSpan(kind, start, end, path, above[-1][2] if above else "")
            fence = _FENCE.split(line, 1)[1] if kind == "code" else ""
    if held:
        yield held


def _extend_span(span: BlockSpan, end: int) -> BlockSpan:
    return BlockSpan(span.kind, span.start, end, span.path, span.anchor)


def _find_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each line, without white space at its end."""
    start = 0
    for line in text.splitlines(keepends=True):
        yield start, start + len(line.rstrip())
        start += len(line)


def _classify_line(line: str) -> SpanKind:
    if line == _QA:
        return "qa"
    if _HEADING.match(line):
        return "heading"
    if _FENCE.match(line):
        return "code"
    return "item" if _ITEM.match(line) else "row" if " | " in line else "paragraph"


def _parse_heading(line: str) -> tuple[int, str, str]:
    """Return level, title and anchor."""
    marks, _, title = line.partition(" ")
    named = _ANCHOR.search(title)
    title = _ANCHOR.sub("", title).strip()
    return len(marks), title, named[1] if named else make_anchor(title)


def make_anchor(heading: str) -> str:
    """Return the anchor that most builders make of a heading."""
    return _NO_SLUG.sub("", heading.lower()).strip().replace(" ", "-")


def _parse_qa_id(text: str) -> str:
    found = _QA_ID.match(text.lstrip())
    return found[1] if found else ""


def split_passages(text: str, max_chars: int) -> list[Passage]:
    """Divide a text in order in passages of at most `max_chars` characters, fences that are put around code apart.

    A section's blocks share a passage while they fit; sections and QA blocks never do. A block stays whole while it
    fits, and what leads to the next one stays with it; a longer one is cut at lines, then at words.
    """
    if max_chars < 1:
        raise ValueError(f"a passage needs room for at least 1 character, not {max_chars}")
    found: list[Passage] = []
    for (path, anchor, _), section in groupby(_number_sections(find_blocks(text)), lambda each: (*each[0],)):
        heading = " > ".join(path)
        for run in _group_blocks(text, (span for _, span in section), max_chars):
            start, end = run[0].start, run[-1].end
            if end - start <= max_chars:
                found.append(Passage(start, end, text[start:end], heading, anchor))
            else:
                found += (Passage(*cut, heading, anchor) for cut in _split_block(text, run[0], max_chars))
    return found


def _number_sections(spans: Iterable[BlockSpan]) -> Iterator[tuple[tuple[tuple[str, ...], str, int], BlockSpan]]:
    """Yield each block that is no heading with its section: two of one name are two."""
    number = 0
    path: tuple[str, ...] = ()
    for span in spans:
        number += span.kind in {"heading", "qa"} or span.path != path
        path = span.path
        if span.kind != "heading":
            yield (span.path, span.anchor, number), span


def _group_blocks(text: str, spans: Iterable[BlockSpan], max_chars: int) -> Iterator[list[BlockSpan]]:
    """Yield blocks that fit into one passage together; one that does not by itself."""
    held: list[BlockSpan] = []
    for span in spans:
        if held and span.end - held[0].start > max_chars:
            leads = len(held) > 1 and text[held[-1].start : held[-1].end].endswith(":")
            lead = held[-1:] if leads and span.end - held[-1].start <= max_chars else []
            yield held[: len(held) - len(lead)]
            held = lead
        held.append(span)
    if held:
        yield held


def _split_block(text: str, span: BlockSpan, max_chars: int) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and text of the pieces of a block; those of code with its fences."""
    opening, closing = "", ""
    start, end = span.start, span.end
    if span.kind == "code":
        first = text[start:end].partition("\n")[0]
        opening, closing = f"{first}\n", f"\n{_FENCE.split(first, 1)[1]}"
        start = start + len(opening)
        is_closed = text[start:end].rpartition("\n")[2].strip() == closing.strip()
        end = text.rfind("\n", start, end) if is_closed else end
    while start < end:
        border = end if end - start <= max_chars else start + _find_break(text[start : start + max_chars + 1])
        piece = text[start:border].rstrip()
        if piece.strip():
            yield start, start + len(piece), f"{opening}{piece}{closing}"
        start = border + (border < end and text[border].isspace())


def _find_break(window: str) -> int:
    """Return where to cut: at the last line, else the last word, else one character before the end."""
    for mark in ("\n", " "):
        if (at := window.rfind(mark, 1)) > 0:
            return at
    return len(window) - 1


def read_following_blocks(text: str, start: int, most: int) -> str:
    """Return the blocks from a place on, as many whole ones as fit into `most` characters.

    It goes on below further headings of the same part, in bold: a problem and its solution often have a heading each.
    Below the title it does so only after a mere list, which announces the next headings. Empty if not even the first
    block fits, or if the place is within one.
    """
    kept, end, is_list = "", start, True
    part_of = above = tuple[str, ...]()
    for span in find_blocks(text):
        if span.end <= start or span.kind == "heading":
            continue
        if span.start < start:
            return ""
        between = text[end : span.start] if kept else ""
        if kept and span.path != above:
            part_of = part_of or (above if is_list else ())
            if not part_of or span.path[: len(part_of)] != part_of:
                break
            between = f"\n\n**{span.path[-1]}**\n\n"
        piece = f"{between}{text[span.start : span.end]}"
        if len(kept) + len(piece) > most:
            break
        part_of, is_list = part_of if kept else span.path[:-1], is_list and span.kind == "item"
        kept, end, above = kept + piece, span.end, span.path
    return kept


def select_best_passages(text: str, query: str, max_chars: int) -> str:
    """Return the passages that fit a query best, in the text's order, at most `max_chars` characters, gaps marked.

    A text that fits comes back whole; a query that shares no word with it gets the beginning. The first passage of a
    section, and behind a gap, has its heading above it, and a cut QA block its id, so that it can still be cited.
    """
    if len(text) <= max_chars:
        return text
    if max_chars < 1:
        return ""
    # Room for the heading, where there is room for anything.
    size = min(_FINE, max_chars - 64 if max_chars > 256 else max_chars)
    # The same few sources are requested again and again. Longer ones would take too much memory.
    divided = (_divided if len(text) <= _REMEMBERED else _PassageIndex)(text, size)
    kept: list[int] = []
    room, misses = max_chars, 0
    for n in divided.rank_passages(query):
        # Cheap and too high; the text between passages counts as well.
        fits = len(divided.pieces[n].text) <= room
        if fits and len(divided.join_passages(sorted([*kept, n]))) <= max_chars:
            kept.append(n)
            room -= len(divided.pieces[n].text)
        elif (misses := misses + 1) == _MISSES:
            break
    return divided.join_passages(sorted(kept))


class _PassageIndex:
    """A text's passages and their words: built once, and queried for each question."""

    def __init__(self, text: str, size: int) -> None:
        self.pieces = tuple(split_passages(text, size))
        self._held = [stem_set(f"{piece.heading}\n{piece.text}") for piece in self.pieces]
        self._rarity = WordRarity(self._held)

    def rank_passages(self, query: str) -> list[int]:
        """Return the places of the passages that share a word with a query, best first; all if none does."""
        wanted = stem_words(query)
        own = self._rarity.compute_coverages(wanted, self._held)
        # The text beside a fitting passage often completes it: the command below the sentence that announces it.
        scores = [score + 0.3 * self._neighbour_score(own, n) for n, score in enumerate(own)]
        if not any(scores):
            return list(range(len(self.pieces)))
        return sorted((n for n, score in enumerate(scores) if score), key=lambda n: (-scores[n], n))

    def _neighbour_score(self, own: Sequence[float], n: int) -> float:
        near = (other for other in (n - 1, n + 1) if 0 <= other < len(own))
        return max((own[other] for other in near if self.pieces[other].heading == self.pieces[n].heading), default=0.0)

    def join_passages(self, kept: Sequence[int]) -> str:
        """Return these passages as one text."""
        joined, before = "", -1
        for n in kept:
            piece, is_first = self.pieces[n], n == 0 or self.pieces[n - 1].heading != self.pieces[n].heading
            joined += "" if before < 0 else "\n\n" if before == n - 1 else GAP
            if piece.heading and not piece.text.startswith(_QA) and (is_first or before != n - 1):
                joined += self._format_heading(piece)
            joined, before = joined + piece.text, n
        return joined

    def _format_heading(self, piece: Passage) -> str:
        title = piece.heading.rpartition(" > ")[2]
        return f"{_QA}\nid: {title}\n" if _QA_MARK.fullmatch(title) else f"## {title}\n\n"


_divided = lru_cache(maxsize=64)(_PassageIndex)  # 13 MB at the worst


def remove_headings(text: str) -> str:
    """Return a text without its headings: they are nothing to quote, and vouch for nothing."""
    parts, end = list[str](), 0
    for span in find_blocks(text):
        if span.kind == "heading":
            parts, end = [*parts, text[end : span.start]], span.end
    return "".join([*parts, text[end:]])


def join_headings(title: str, heading: str) -> str:
    """Return the headings of a passage below the title of its document, which is often the first of them."""
    return " > ".join(dict.fromkeys(filter(None, (title, *heading.split(" > ")))))


def even_share(sizes: Sequence[int], room: int) -> int:
    """Return the length at which to cut, so that all fit into `room`, and long ones use what short ones leave."""
    left = room
    for n, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - n)
        if size > share:
            return share
        left -= size
    return room
