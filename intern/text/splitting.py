"""Cut a long text into messages that Discord takes. Nothing is lost but white space where a cut falls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from msgspec import Struct

_SMALLEST_LIMIT = 64  # room for the longest fence that we recognise, twice, and some code between
# A fence with a long info string is not taken for one: it could not be reopened within the limit.
_OPENING = re.compile(r"[ \t]{0,12}(`{3,8})([\w+#.-]{0,20})[ \t]*")
_WORD = re.compile(r"(\s*)(\S+)")


class _Block(Struct, frozen=True):
    """What should stay together, and the white space that parts it from what stands before."""

    gap: str
    text: str


def split_message(text: str, limit: int = 2000) -> list[str]:
    """Parts of at most `limit` characters (code points, as Discord counts), none blank; none at all for a blank text.

    Cuts fall between paragraphs, else between lines, else between words, else anywhere. A code fence stays whole; one
    that is too long by itself is closed and reopened with its language. A text that fits comes back as it is.
    Raises ValueError for a limit under 64.
    """
    if limit < _SMALLEST_LIMIT:
        raise ValueError(f"limit must be at least {_SMALLEST_LIMIT}, got {limit}")
    if not text.strip():
        return []
    if len(text) <= limit:
        return [text]
    return _packed(_blocks(text), limit, _cut_block)


def _packed(blocks: Iterable[_Block], limit: int, cut: Callable[[str, int], list[str]]) -> list[str]:
    """Fill parts with whole blocks as far as they fit; a block too long by itself is cut by `cut`."""
    parts: list[str] = []
    for block in blocks:
        if parts and len(parts[-1]) + len(block.gap) + len(block.text) <= limit:
            parts[-1] += block.gap + block.text
        elif len(block.text) <= limit:
            parts.append(block.text)
        else:
            parts.extend(cut(block.text, limit))
    return parts


def _blocks(text: str) -> Iterator[_Block]:
    """Paragraphs and code fences, in order."""
    gap = ""
    for kind, lines in groupby(_marked(text), key=lambda marked: marked[0]):
        block = "\n".join(line for _, line in lines)
        if kind == "blank":
            gap += block + "\n"
        else:
            yield _Block(gap, block)
            gap = "\n"


def _marked(text: str) -> Iterator[tuple[str, str]]:
    """Each line with a mark that tells blank lines, paragraphs' lines and each fence's lines apart."""
    closing: re.Pattern[str] | None = None
    fences = 0
    for line in text.split("\n"):
        if closing is not None:
            yield f"fence {fences}", line
            if closing.fullmatch(line):
                closing = None
        elif opening := _OPENING.fullmatch(line):
            fences += 1
            closing = re.compile(rf"[ \t]*`{{{len(opening[1])},}}[ \t]*")
            yield f"fence {fences}", line
        else:
            yield ("text" if line.strip() else "blank"), line


def _cut_block(block: str, limit: int) -> list[str]:
    lines = block.split("\n")
    if opening := _OPENING.fullmatch(lines[0]):
        return _cut_fence(opening[1], opening[2], lines[1:], limit)
    return _packed((_Block("\n", line) for line in lines), limit, _cut_line)


def _cut_line(line: str, limit: int) -> list[str]:
    return _packed((_Block(word[1], word[2]) for word in _WORD.finditer(line)), limit, _sliced)


def _cut_fence(ticks: str, language: str, code: list[str], limit: int) -> list[str]:
    """The code's lines in fences of their own. White space counts in code, so over-long lines are cut anywhere."""
    if code and set(code[-1].strip()) == {"`"} and len(code[-1].strip()) >= len(ticks):
        code = code[:-1]
    room = limit - len(f"{ticks}{language}\n\n{ticks}")
    pieces = _packed((_Block("\n", line) for line in code), room, _sliced)
    return [f"{ticks}{language}\n{piece}\n{ticks}" for piece in pieces]


def _sliced(text: str, limit: int) -> list[str]:
    return [text[start : start + limit] for start in range(0, len(text), limit)]
