"""Quotes, found again in the texts that they come from. Pure.

Texts are compared in normal form: white space, typography and markup do not count.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b

from intern.core.text.passages import GAP
from intern.core.text.words import WordRarity, find_unspaced_runs, split_sentences, stem_set

# Bullets, numbers and quote marks at the beginning of a line.
_LINE_START = re.compile(r"^[ \t]*(?:(?:[-+*]|\d{1,3}[.)])[ \t]+|>[ \t]?)+", re.MULTILINE)
_MARKUP = {ord(each): None for each in "*_`~#|>[]\\\"'“”„‘’‚«»"} | dict.fromkeys(map(ord, "‐‑‒–—−"), "-")
_SPACE = re.compile(r"[\s\u200b-\u200d\u2060\ufeff]+")


def normalise_text(text: str) -> str:
    """Return the characters of a text without white space, typography and markup, for comparison.

    A part of a text, cut anywhere between words, normalises to a part of the whole. A wrapped paragraph normalises as
    if it were on one line.
    """
    plain = unicodedata.normalize("NFKC", _LINE_START.sub("", text))
    return _SPACE.sub("", plain.translate(_MARKUP)).casefold()


def digest_text(read_as: str) -> str:
    """Return a short digest of a result of `normalise_text`."""
    return blake2b(read_as.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


MAX_QUOTE = 200
# A line, or a sentence in it. The team's turns are indented after their first line.


def find_nearest_sentence(said: str, text: str) -> str | None:
    """Return the sentence of a text that shares most with `said`, cut to MAX_QUOTE; None if they share no words."""
    sentences = split_sentences(text)
    held = [stem_set(each) for each in sentences]
    shared = WordRarity(held).compute_coverages(stem_set(said), held)
    best = max(range(len(sentences)), key=shared.__getitem__, default=None)
    if best is None or not shared[best]:
        return None
    quote = sentences[best]
    return quote if len(quote) <= MAX_QUOTE else quote[: MAX_QUOTE + 1].rpartition(" ")[0] or quote[:MAX_QUOTE]


_LEAST_WORDS = 3
_LONG_LINE = 200  # characters
_LEAST_CHARS = 11  # of a quote with fewer words, unless it is a whole line: `listen = 7480` will do, "the" will not
# Marks at the beginning of a line: quotations, headings, items, the speaker of a turn, dots for omitted text.
_LEAD = re.compile(r"^(?:[ \t>|#*+.…-]|\d{1,3}[.)](?=\s)|(?:Team|User): )+")
_BREAK = re.compile(r"^(?:[ \t]*(?:[>|#*+-]|\d{1,3}[.)])\s|```|~~~|(?:Team|User): |[=~-]{3,}\s*$)")
_LINKED = re.compile(r"\]\([^)\s]{0,500}\)")
_AROUND = ".,;:!?()"


def find_quoted_line(text: str, quote: str) -> str | None:
    """Return the line of the text that holds the quote, as it is there; of a long line, the quoted part.

    A paragraph that is wrapped is one line.
    """
    line = _find_line(text, quote)
    return line if line is None or len(line) <= _LONG_LINE else _find_shortest_part(line, normalise_line(quote))


def has_quote(text: str, quote: str) -> bool:
    """Whether some line of the text holds the quote."""
    return _find_line(text, quote) is not None


def _find_line(text: str, quote: str) -> str | None:
    wanted = normalise_line(quote)
    # A character of a script without spaces says as much as two or three letters.
    signs = len(wanted) + sum(map(len, find_unspaced_runs(wanted)))
    is_long = len(quote.split()) >= _LEAST_WORDS or signs >= _LEAST_CHARS
    lines = _normalise_lines(text) if wanted else ()
    return next((line for line, said in lines if wanted == said or (is_long and wanted in said)), None)


@lru_cache(maxsize=64)  # without a model, each piece of a passage is searched for in it
def _normalise_lines(text: str) -> tuple[tuple[str, str], ...]:
    """Return each line with its normal form."""
    return tuple((line.strip(), normalise_line(line)) for line in unwrap_lines(text))


def _find_shortest_part(line: str, wanted: str) -> str:
    """Return the shortest part of a line that holds `wanted`."""
    end = bisect_left(range(len(line)), True, key=lambda end: wanted in normalise_line(line[:end]))
    start = bisect_left(range(end), True, key=lambda start: wanted not in normalise_line(line[start:end]))
    return line[max(start - 1, 0) : end].strip()


def excerpt_around(text: str, lines: Iterable[str], max_chars: int) -> str:
    """Return the text; if it is too long, at most `max_chars` of it around each line, with gaps marked."""
    if len(text) <= max_chars:
        return text
    spans: list[tuple[int, int]] = []
    for span in sorted(_find_span(text, line, max_chars) for line in lines):
        if spans and span[0] <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], span[1]))
        else:
            spans.append(span)
    return GAP.join(text[start:end].strip() for start, end in spans)


def _find_span(text: str, line: str, max_chars: int) -> tuple[int, int]:
    """Return the span of a line with its surroundings, from the beginning of a line where there is one."""
    found = re.search(r"\s+".join(map(re.escape, line.split())), text)
    at = found.start() if found else 0
    start = min(max(at - max_chars // 4, 0), len(text) - max_chars)
    return max(start, text.find("\n", start, at) + 1 if start else 0), start + max_chars


def unwrap_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text, those of a wrapped paragraph as one; code stays line by line."""
    held: list[str] = []
    in_code = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith(("```", "~~~"))
        if in_code or fence or not line.strip() or _BREAK.match(line):
            yield from _join_lines(held)
            held = []
        if fence:
            in_code = not in_code
        elif in_code:
            yield line
        elif line.strip():
            held.append(line.strip())
    yield from _join_lines(held)


def _join_lines(lines: list[str]) -> Iterator[str]:
    if lines:
        yield " ".join(lines)


def normalise_line(line: str) -> str:
    """Return the normal form of a line, without its leading marks, link addresses, and surrounding punctuation."""
    return normalise_text(_LINKED.sub("", _LEAD.sub("", line))).strip(_AROUND)
