"""Whether a quote stands in a text: white space, typography and markup do not count. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_LEAST_WORDS = 3
_BEGINNING = 20  # characters by which a line is found again
_LEAST_CHARS = 12  # of a quote with fewer words, unless it is a whole line: `listen = 7480` tells, "the" does not
# What begins a line without being said: quotations, headings, items, the speaker of a turn.
_LEAD = re.compile(r"^(?:[ \t>|#*+-]|\d{1,3}[.)](?=\s)|(?:Team|User): )+")
_BREAK = re.compile(r"^(?:[ \t]*(?:[>|#*+-]|\d{1,3}[.)])\s|```|~~~|(?:Team|User): |[=~-]{3,}\s*$)")
_MARKUP = re.compile(r"[*`_~\\|]+|\[(?=[^\]\n]{1,200}\]\()|\]\([^)\s]{0,500}\)")
_TYPOGRAPHY = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"', "–": "-", "—": "-"})
_ELLIPSIS = re.compile(r"^(?:\.{3}|…)\s*|\s*(?:\.{3}|…)$")
_AROUND = " \t.,;:!?\"'()"


def line_of(text: str, quote: str) -> str | None:
    """The line of the text that holds the quote, as it stands there; a paragraph that is wrapped is one line."""
    wanted = plain(_ELLIPSIS.sub("", quote.strip()))
    is_long = len(wanted.split()) >= _LEAST_WORDS or len(wanted) >= _LEAST_CHARS
    lines = ((line.strip(), plain(line)) for line in unwrapped(text)) if wanted else ()
    return next((line for line, said in lines if wanted == said or (is_long and wanted in said)), None)


def around(text: str, line: str, max_chars: int) -> str:
    """The text, or as much of it as fits, with the line in its midst."""
    if len(text) <= max_chars:
        return text
    at = max(text.find(line[:_BEGINNING]), 0)
    start = min(max(at - max_chars // 4, 0), len(text) - max_chars)
    cut = text[start : start + max_chars]
    # Whole lines, where there are some.
    first = cut.find("\n") + 1 if start else 0
    return cut[first if first <= at - start else 0 :].strip()


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
    """A line without markup, typography, case, and what stands around it."""
    line = unicodedata.normalize("NFKC", line).translate(_TYPOGRAPHY)
    return " ".join(_MARKUP.sub("", _LEAD.sub("", line)).split()).casefold().strip(_AROUND)
