"""What of a text can be quoted by itself: up to three sentences, items or rows, or a code block with its lead. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Literal

from msgspec import Struct

from intern.answering.quoting import unwrapped
from intern.text.markup import without_markup
from intern.text.passages import passages

_Kind = Literal["prose", "list", "table"]

_MOST_CHARS = 500  # short enough to be read at a glance
_MOST_CODE = 1000
_MOST_UNITS = 3
_SECTION = 100_000  # characters: a section is not to be cut

_FENCE = re.compile(r"[ \t]*(?:```|~~~)")
_ITEM = re.compile(r"[ \t]*(?:[*+-]|\d{1,3}[.)])[ \t]+")
_BULLET = re.compile(r"[ \t]*[*+-][ \t]+")
_ROW = re.compile(r"[ \t]*\|.*\|[ \t]*")
_RULE = re.compile(r"[\s|:=*_~+^#\"'.-]+")
# The next sentence begins with no small letter and no digit: neither "e.g. a" nor "No. 5" ends one.
_STOP = re.compile(r"(?<=[.!?…])[\"'”’)_]*\s+(?=[\"'“‘(*_`\[]*[^\W\d_a-z])|(?<=[。！？])(?!$)")
_TITLED = re.compile(r"\*\*[^*\n]{1,100}\*\*|__[^_\n]{1,100}__")
# What begins like this is only understood after what stands before it.
_LEANING = re.compile(
    r"(?:it|its|this|that|these|they|then|so|but|and|or|otherwise|instead|also|both|however|therefore)\b", re.IGNORECASE
)


class Excerpt(Struct, frozen=True):
    """A piece of a text, as a chat can show it."""

    text: str
    heading: str
    """What stands above it in its text, outermost first."""
    core: str
    """By what it is found: it, or of a paragraph with a title of its own, that and the first sentence."""


@lru_cache(maxsize=256)  # the same few passages are shown again and again
def excerpts(text: str) -> tuple[Excerpt, ...]:
    """All pieces that make sense by themselves; they overlap."""
    return tuple(
        Excerpt(piece, section.heading, core)
        for section in passages(without_markup(text), _SECTION)
        for piece, core in _pieces(_below_heading(section.text, section.heading))
    )


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Each with its core."""
    lead = ""
    for is_code, part in _parts(text):
        if is_code:
            whole = f"{lead}\n{part}".lstrip("\n")
            if len(whole) <= _MOST_CODE:
                yield whole, whole
            lead = ""
            continue
        for kind, units in _runs(part):
            title = _TITLED.match(units[0]) if kind == "prose" else None
            if title and len(whole := " ".join(units)) <= _MOST_CHARS:
                yield whole, units[0]  # what goes wrong, why, and what to do belong together
            else:
                windows = _windows(kind, units, lead if lead.endswith(":") else "")
                yield from ((window, window) for window in windows)
            lead = units[-1] if kind == "prose" else ""


def _windows(kind: _Kind, units: Sequence[str], lead: str) -> Iterator[str]:
    for start in range(len(units)):
        if kind == "prose" and start and _LEANING.match(units[start]):
            continue
        for end in range(start + 1, min(start + _MOST_UNITS, len(units)) + 1):
            window = _shown(kind, units[start:end], "" if start else lead)
            # What ends in a colon leads to what follows it.
            if len(window) <= _MOST_CHARS and not window.endswith(":"):
                yield window


def _shown(kind: _Kind, units: Sequence[str], lead: str) -> str:
    if kind == "prose":
        return " ".join(units)
    if len(units) == 1 and not lead:
        return _BULLET.sub("", units[0], count=1)
    return "\n".join([lead, *units]).lstrip("\n")


def _runs(text: str) -> Iterator[tuple[_Kind, list[str]]]:
    """The sentences of each paragraph, the items of each list, the rows of each table."""
    for paragraph in re.split(r"\n[ \t]*\n", text):
        for kind, lines in groupby(unwrapped(paragraph), _kind):
            if kind == "table":
                units = [_cells(row) for row in [*lines][1:] if not _RULE.fullmatch(row)]  # the first one names columns
            elif kind == "list":
                units = [*lines]
            else:
                units = [part.strip() for line in lines for part in _sentences(line) if part.strip()]
            if units:
                yield kind, units


def _kind(line: str) -> _Kind:
    if _ROW.fullmatch(line):
        return "table"
    return "list" if _ITEM.match(line) else "prose"


def _cells(row: str) -> str:
    return " | ".join(cell.strip() for cell in row.strip().strip("|").split("|"))


def _sentences(line: str) -> Iterator[str]:
    start = 0
    for stop in _STOP.finditer(line):
        yield line[start : stop.end()]
        start = stop.end()
    yield line[start:]


def _below_heading(text: str, heading: str) -> str:
    title = heading.rpartition(" > ")[2]
    first, _, rest = text.partition("\n")
    if not title or title not in first:
        return text
    underline, _, below = rest.partition("\n")
    return below if underline.strip() and _RULE.fullmatch(underline) else rest


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Code blocks with their fences, and what stands between them."""
    held: list[str] = []
    in_code = False
    for line in text.split("\n"):
        if not _FENCE.match(line):
            held.append(line)
        elif in_code:
            yield True, "\n".join([*held, line])
            held, in_code = [], False
        else:
            yield False, "\n".join(held)
            held, in_code = [line], True
    if not in_code:  # one that is cut off is no use
        yield False, "\n".join(held)
