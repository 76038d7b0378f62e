"""The JSON in what a model wrote: local models put it in a code fence, behind their thoughts, or between sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_THOUGHT = r"think|thinking|thought|reasoning"
_OPENED = re.compile(rf"<(?:{_THOUGHT})>|\[THINK\]|◁think▷", re.IGNORECASE)
_CLOSED = re.compile(rf"</(?:{_THOUGHT})>|\[/THINK\]|◁/think▷", re.IGNORECASE)
_MOST_TRIED = 200  # braces at which an object may begin; a hostile reply has millions, and each is read to its end

_decoder = json.JSONDecoder()


class NoEndError(Exception):
    """The reply is a thought that never ends."""


def objects(text: str) -> Iterator[str]:
    """The JSON objects that a reply may mean, the likeliest first. Raises NoEndError.

    That is the text itself; then those that stand behind the last thought, the last one first, for what comes before
    is a draft or an example; then those that hold the end of a thought in a string.
    """
    yield text
    closed = list(_CLOSED.finditer(text))
    start = closed[-1].end() if closed else 0
    unclosed = _OPENED.search(text, start)
    said = text[start : unclosed.start() if unclosed else None]
    found = list(_objects(said))
    yield from (said[begin:end] for begin, end in reversed(found))
    if unclosed and not found:
        raise NoEndError
    if closed:
        first = closed[0].end() if _OPENED.match(text.lstrip()) else 0
        rest = text[first:]
        yield from (rest[begin:end] for begin, end in reversed(list(_objects(rest))) if first + end >= start)


def _objects(text: str) -> Iterator[tuple[int, int]]:
    """Begin and end of each outermost object."""
    at = text.find("{")
    for _ in range(_MOST_TRIED):
        if at < 0:
            return
        try:
            _, end = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            yield at, end
        at = text.find("{", end)
