"""A long text as passages: pieces that make sense by themselves, cut at headings, paragraphs and QA blocks.

A passage is always a slice of its text, so a quote of a passage is a quote of its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from msgspec import Struct

from intern.core.text.patterns import regex
from intern.core.text.words import Rarity, word_set, words

GAP = "\n\n[…]\n\n"
"""Stands where passages were left out."""

# A page of a book has about 2,000 characters; half of one is an answer, and several fit any budget.
_FINE = 1000
_REMEMBERED = 20_000  # characters
_QA = "--- QA ---"
_HEADING = regex(r"(#{1,6})[ \t]+(\S.*)")
_UNDERLINE = regex(r"([=\-~^\"'*+#])\1{2,}[ \t]*$")
_FENCE = regex(r"[ \t]*(`{3,}|~{3,})")
_QA_ID = regex(r"id:[ \t]*(\S+)")


class Passage(Struct, frozen=True):
    """A slice of a text: `text == whole[start : start + len(text)]`."""

    start: int
    text: str
    heading: str
    """The headings above it, outermost first, joined by " > "; the id of a QA block."""


def passages(text: str, max_chars: int) -> list[Passage]:
    """Divide a text in order, but for white space at the borders, in passages of at most `max_chars` characters.

    A section's paragraphs share a passage while they fit; sections and QA blocks never do. A fenced code block and
    a QA block stay whole while they fit; what does not is cut at lines, then at words.
    """
    if max_chars < 1:
        raise ValueError(f"a passage needs room for at least 1 character, not {max_chars}")
    found: list[Passage] = []
    for section in _sections(text):
        for start, end in _packed(text, section.units, max_chars):
            found.append(Passage(start, text[start:end], section.heading))
    return found


def best_passages(text: str, query: str, max_chars: int) -> str:
    """Return the passages that fit a query best, in the text's order, at most `max_chars` characters, gaps marked.

    A text that fits comes back whole; a query that shares no word with it gets the beginning. Where a QA block is
    cut, its id is repeated, so that it can still be cited.
    """
    if len(text) <= max_chars:
        return text
    if max_chars < 1:
        return ""
    # Room for the id of a cut QA block, where there is room for anything.
    size = min(_FINE, max_chars - 64 if max_chars > 256 else max_chars)
    # The same few sources are asked for again and again. Longer ones would take too much memory.
    divided = (_divided if len(text) <= _REMEMBERED else _Divided)(text, size)
    pieces, cut = divided.pieces, divided.cut
    kept: list[int] = []
    room = max_chars
    for n in divided.ranked(query):
        # Cheap and too kind; what stands between passages counts as well.
        fits = len(pieces[n].text) <= room
        if fits and len(_joined(text, pieces, sorted([*kept, n]), cut)) <= max_chars:
            kept.append(n)
            room -= len(pieces[n].text)
    return _joined(text, pieces, sorted(kept), cut)


class _Section(Struct):
    heading: str
    units: list[tuple[int, int]]
    """Start and end of each paragraph, code block or QA block."""


class _Divided:
    """A text in passages, and their words: made once, asked for each question."""

    def __init__(self, text: str, size: int) -> None:
        self.pieces = tuple(passages(text, size))
        self.cut = frozenset(_cut_blocks(self.pieces))
        self._held = [word_set(f"{piece.heading}\n{piece.text}") for piece in self.pieces]
        self._rarity = Rarity(self._held)

    def ranked(self, query: str) -> list[int]:
        """Return the places of the passages that share a word with a query, best first; all if none does."""
        wanted = words(query)
        own = self._rarity.shares(wanted, self._held)
        # What stands beside a fitting passage often completes it: the command below the sentence that announces it.
        scores = [score + 0.3 * _beside(self.pieces, own, n) for n, score in enumerate(own)]
        if not any(scores):
            return list(range(len(self.pieces)))
        return sorted((n for n, score in enumerate(scores) if score), key=lambda n: (-scores[n], n))


_divided = lru_cache(maxsize=64)(_Divided)  # 13 MB at the worst


def _beside(pieces: Sequence[Passage], own: list[float], n: int) -> float:
    near = (other for other in (n - 1, n + 1) if 0 <= other < len(own))
    return max((own[other] for other in near if pieces[other].heading == pieces[n].heading), default=0.0)


def _joined(text: str, pieces: Sequence[Passage], kept: list[int], cut: frozenset[int]) -> str:
    joined = ""
    for at, n in enumerate(kept):
        piece = pieces[n]
        follows = at > 0 and kept[at - 1] == n - 1
        if follows:
            before = pieces[n - 1]
            joined += text[before.start + len(before.text) : piece.start]
        elif at > 0:
            joined += GAP
        if not follows and n in cut:
            joined += f"{_QA}\nid: {piece.heading}\n"
        joined += piece.text
    return joined


def _cut_blocks(pieces: Sequence[Passage]) -> set[int]:
    """Find the passages that continue a QA block, and so lack its id."""
    found: set[int] = set()
    inside = False
    for n, piece in enumerate(pieces):
        begins = piece.text.startswith(_QA)
        inside = begins or (inside and piece.heading == pieces[n - 1].heading)
        if inside and not begins and piece.heading:
            found.add(n)
    return found


def _sections(text: str) -> Iterator[_Section]:
    trail: list[tuple[int, str]] = []
    section = _Section("", [])
    lines = list(_lines(text))
    opened: int | None = None
    fence = ""
    in_block = False
    for n, (start, end) in enumerate(lines):
        line = text[start:end]
        following = text[slice(*lines[n + 1])] if n + 1 < len(lines) else ""
        heading = None if fence or in_block else _heading(line, following)
        if not fence and line.rstrip() == _QA:
            heading, in_block = None, True
            yield _closed(section, opened, start)
            section, opened = _Section(_block_id(text, lines, n), []), start
        elif heading:
            yield _closed(section, opened, start)
            trail = [above for above in trail if above[0] < heading[0]] + [heading]
            section, opened = _Section(" > ".join(title for _, title in trail), []), start
        elif not line.strip() and not fence and not in_block:
            if opened is not None:
                section.units.append((opened, start))
            opened = None
        elif opened is None:
            opened = start
        fence = "" if in_block else _fence_after(fence, line)
    yield _closed(section, opened, len(text))


def _closed(section: _Section, opened: int | None, end: int) -> _Section:
    if opened is not None:
        section.units.append((opened, end))
    return section


def _lines(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end + 1
        yield start, end
        start = end


def _heading(line: str, following: str) -> tuple[int, str] | None:
    """Level and title of a Markdown (`# x`) or underlined (Markdown, reStructuredText) heading."""
    if match := _HEADING.match(line.rstrip()):
        return len(match[1]), match[2].rstrip("# \t") or match[2]
    title = line.strip()
    underline = _UNDERLINE.match(following.rstrip())
    if title and underline and len(title) <= 200 and any(char.isalnum() for char in title):
        return (1 if underline[1] == "=" else 2), title
    return None


def _fence_after(fence: str, line: str) -> str:
    match = _FENCE.match(line)
    if not match:
        return fence
    if not fence:
        return match[1]
    return "" if match[1].startswith(fence) and line.strip() == match[1] else fence


def _block_id(text: str, lines: list[tuple[int, int]], n: int) -> str:
    if n + 1 < len(lines) and (match := _QA_ID.match(text[slice(*lines[n + 1])])):
        return match[1]
    return ""


def _packed(text: str, units: list[tuple[int, int]], max_chars: int) -> Iterator[tuple[int, int]]:
    """Units joined while they fit, cut where they alone do not."""
    held: tuple[int, int] | None = None
    for unit in units:
        for start, end in _cut(text, unit, max_chars):
            if held and end - held[0] <= max_chars:
                held = (held[0], end)
                continue
            if held:
                yield held
            held = (start, end)
    if held:
        yield held


def _cut(text: str, unit: tuple[int, int], max_chars: int) -> Iterator[tuple[int, int]]:
    start, end = _trimmed(text, *unit)
    while end - start > max_chars:
        # One more than fits: a border right behind the last character that fits is fine.
        border = start + _border(text[start : start + max_chars + 1])
        piece = _trimmed(text, start, border)
        if piece[0] < piece[1]:
            yield piece
        start, _ = _trimmed(text, border + text[border].isspace(), end)
    if start < end:
        yield start, end


def _border(window: str) -> int:
    """Where to cut: at the last line, else the last word, else one character before the end."""
    for mark in ("\n", " "):
        if (at := window.rfind(mark, 1)) > 0:
            return at
    return len(window) - 1


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Without white space at the end and blank lines at the start; the first line keeps its indent."""
    piece = text[start:end]
    kept = len(piece.rstrip())
    blank = len(piece) - len(piece.lstrip())
    line = piece.rfind("\n", 0, min(blank, kept)) + 1
    return start + line, start + max(kept, line)


def even_share(sizes: Sequence[int], room: int) -> int:
    """Return the length at which to cut, so that all fit into `room`, and long ones use what short ones leave."""
    left = room
    for n, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - n)
        if size > share:
            return share
        left -= size
    return room
