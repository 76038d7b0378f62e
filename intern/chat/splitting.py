"""Cut a long text into messages that Discord takes. Nothing is lost but white space where a cut falls."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import groupby

from msgspec import Struct

_SMALLEST_LIMIT = 64  # room for a fence with the longest language that we reopen, and some code in it
_LONGEST_LANGUAGE = 20
_MOST_TICKS = 8  # of a span of code that we close and reopen
# A fence as Discord's clients read it: it opens wherever three ticks stand, and ends at the next three, whatever stands
# around them. An empty one counts too, though clients do not agree on it.
_FENCE = re.compile(r"```(?:[\w+#.-]*\n+|(?:(?P<language>[\w+#.-]+)\n)?\n*(?P<code>[^\n][\s\S]*?)\n*)```", re.ASCII)
_SPAN = re.compile(r"(?P<ticks>`+)(?P<said>[\s\S]*?[^`])(?P=ticks)(?!`)")
# In their order of reading: an escaped tick opens nothing, and neither do ticks in a span of code.
_TOKENS = re.compile(rf"\\[^0-9A-Za-z\s]|(?P<fence>{_FENCE.pattern})|(?P<span>{_SPAN.pattern})|(?P<lone>`+)", re.ASCII)
# Somebody meant to close it: a model that was cut short. Clients show the ticks; we close it.
_OPENING = re.compile(r"^[ \t]*```(?P<language>[\w+#.-]*)[ \t]*\n(?P<code>[\s\S]*)\Z", re.ASCII | re.MULTILINE)
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
    gap, at = "", 0
    for start, end in _kept_whole(text):
        gap = yield from _paragraphs(text[at:start], gap)
        yield _Block(gap, text[start:end])
        gap, at = "", end
    yield from _paragraphs(text[at:], gap)


def _kept_whole(text: str) -> Iterator[tuple[int, int]]:
    """Where each fence begins and ends, and each span of code with ticks that would open one elsewhere."""
    for token in _TOKENS.finditer(text):
        if token["lone"] and (opening := _OPENING.match(text, text.rfind("\n", 0, token.start()) + 1)):
            yield opening.span()
            return
        if token["fence"] or "```" in (token["span"] or ""):
            yield token.span()


def _paragraphs(text: str, gap: str) -> Generator[_Block, None, str]:
    """The paragraphs of what stands between fences, and the white space that is left behind the last."""
    lines = text.split("\n")
    left = len(lines)
    for is_blank, group in groupby(lines, key=lambda line: not line.strip()):
        held = list(group)
        left -= len(held)
        block, ending = "\n".join(held), "\n" if left else ""
        if is_blank:
            gap += block + ending
        else:
            yield _Block(gap, block)
            gap = ending
    return gap


def _cut_block(block: str, limit: int) -> list[str]:
    if fence := _FENCE.fullmatch(block) or _OPENING.match(block):
        return _cut_fence(fence["language"] or "", fence["code"] or "", limit)
    if "```" in block and (span := _SPAN.fullmatch(block)) and len(span["ticks"]) <= _MOST_TICKS:
        ticks = span["ticks"]
        pieces = _cut_line(span["said"], limit - 2 * len(f"{ticks} "))
        return [f"{ticks} {piece} {ticks}" for piece in pieces]
    return _packed((_Block("\n", line) for line in block.split("\n")), limit, _cut_line)


def _cut_line(line: str, limit: int) -> list[str]:
    return _packed((_Block(word[1], word[2]) for word in _WORD.finditer(line)), limit, _sliced)


def _cut_fence(language: str, code: str, limit: int) -> list[str]:
    """The code's lines in fences of their own. White space counts in code, so over-long lines are cut anywhere."""
    if len(language) > _LONGEST_LANGUAGE:  # it could not be reopened within the limit
        language, code = "", f"{language}\n{code}"
    room = limit - len(f"```{language}\n\n```")
    pieces = _packed((_Block("\n", line) for line in code.split("\n")), room, _sliced)
    # Clients take the ticks that close an empty fence for its content.
    return [f"```{language}\n{piece}\n```" for piece in pieces if piece.strip("\n")]


def _sliced(text: str, limit: int) -> list[str]:
    return [text[start : start + limit] for start in range(0, len(text), limit)]
