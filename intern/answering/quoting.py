"""Whether a quote stands in a text: white space, typography and markup do not count. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache

from intern.text.passages import GAP
from intern.text.sameness import reading
from intern.text.words import unspaced_runs

_LEAST_WORDS = 3
_LONG_LINE = 200  # characters
_LEAST_CHARS = 11  # of a quote with fewer words, unless it is a whole line: `listen = 7480` tells, "the" does not
# What begins a line without being said: quotations, headings, items, the speaker of a turn, dots for what came before.
_LEAD = re.compile(r"^(?:[ \t>|#*+.…-]|\d{1,3}[.)](?=\s)|(?:Team|User): )+")
_BREAK = re.compile(r"^(?:[ \t]*(?:[>|#*+-]|\d{1,3}[.)])\s|```|~~~|(?:Team|User): |[=~-]{3,}\s*$)")
_LINKED = re.compile(r"\]\([^)\s]{0,500}\)")
_AROUND = ".,;:!?()"


def line_of(text: str, quote: str) -> str | None:
    """The line of the text that holds the quote, as it stands there; of a long line, what was quoted of it.

    A paragraph that is wrapped is one line.
    """
    line = _holding(text, quote)
    return line if line is None or len(line) <= _LONG_LINE else _part(line, plain(quote))


def holds(text: str, quote: str) -> bool:
    """Whether some line of the text holds the quote."""
    return _holding(text, quote) is not None


def _holding(text: str, quote: str) -> str | None:
    wanted = plain(quote)
    # A sign of a script without spaces says as much as two or three letters.
    signs = len(wanted) + sum(map(len, unspaced_runs(wanted)))
    is_long = len(quote.split()) >= _LEAST_WORDS or signs >= _LEAST_CHARS
    lines = _read(text) if wanted else ()
    return next((line for line, said in lines if wanted == said or (is_long and wanted in said)), None)


@lru_cache(maxsize=64)  # without a model, each piece of a passage is looked for in it
def _read(text: str) -> tuple[tuple[str, str], ...]:
    """Each line, and how it reads."""
    return tuple((line.strip(), plain(line)) for line in unwrapped(text))


def _part(line: str, wanted: str) -> str:
    """The shortest part of a line that says what is wanted."""
    end = bisect_left(range(len(line)), True, key=lambda end: wanted in plain(line[:end]))
    start = bisect_left(range(end), True, key=lambda start: wanted not in plain(line[start:end]))
    return line[max(start - 1, 0) : end].strip()


def around(text: str, lines: Iterable[str], max_chars: int) -> str:
    """The text, or where it is too long, at most `max_chars` of it with each line, gaps marked."""
    if len(text) <= max_chars:
        return text
    spans: list[tuple[int, int]] = []
    for span in sorted(_span(text, line, max_chars) for line in lines):
        if spans and span[0] <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], span[1]))
        else:
            spans.append(span)
    return GAP.join(text[start:end].strip() for start, end in spans)


def _span(text: str, line: str, max_chars: int) -> tuple[int, int]:
    """Where a line stands with what is around it, from the beginning of a line where there is one."""
    found = re.search(r"\s+".join(map(re.escape, line.split())), text)
    at = found.start() if found else 0
    start = min(max(at - max_chars // 4, 0), len(text) - max_chars)
    return max(start, text.find("\n", start, at) + 1 if start else 0), start + max_chars


def unwrapped(text: str) -> Iterator[str]:
    """The lines of a text, those of a wrapped paragraph as one; code stays line by line."""
    held: list[str] = []
    in_code = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith(("```", "~~~"))
        if in_code or fence or not line.strip() or _BREAK.match(line):
            yield from _joined(held)
            held = []
        if fence:
            in_code = not in_code
        elif in_code:
            yield line
        elif line.strip():
            held.append(line.strip())
    yield from _joined(held)


def _joined(lines: list[str]) -> Iterator[str]:
    if lines:
        yield " ".join(lines)


def plain(line: str) -> str:
    """How a line reads, without what begins it, the addresses of its links, and the punctuation around it."""
    return reading(_LINKED.sub("", _LEAD.sub("", line))).strip(_AROUND)
