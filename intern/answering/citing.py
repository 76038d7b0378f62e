"""Compare an answer's citations, links and quotes with the sources that were shown. Pure.

Texts are compared in normal form: white space, typography and markup do not count.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain

from intern.answering.prompts import ShownSource
from intern.core.ids import SourceId
from intern.core.messages import block_lines, find_citation_ids, is_team_source
from intern.core.text.passages import GAP
from intern.core.text.patterns import regex
from intern.core.text.words import WordRarity, find_unspaced_runs, stem_set

# Bullets, numbers and quote marks at the beginning of a line.
_LINE_START = regex(r"^[ \t]*(?:(?:[-+*]|\d{1,3}[.)])[ \t]+|>[ \t]?)+", re.MULTILINE)
_MARKUP = {ord(each): None for each in "*_`~#|>[]\\\"'“”„‘’‚«»"} | dict.fromkeys(map(ord, "‐‑‒–—−"), "-")
_SPACE = regex(r"[\s\u200b-\u200d\u2060\ufeff]+")


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


_NOTHING = frozenset({"", "null", "none", "nil", "n/a", "undefined"})

_AROUND_NOTHING = " \t\r\n\"'`*_~.,:;!?-–—…()[]{}<>|"

# Any scheme, as people and chat programs link it; a character that a URL cannot contain ends it. Schemes are short:
# without a bound, each letter of a long word would be tried as the first of one.
_URL = regex(r"[a-z][a-z0-9+.-]{0,30}://[^\s<>\"`]+", re.IGNORECASE)
# An address without its scheme: people still type it into a browser or send mail to it. Endings that files and
# libraries also have (`install.sh`, `ASP.NET`, `socket.io`) count only with a path or `www.`.
_BARE = regex(
    r"(?<![\w@.-])(?P<bare>(?P<mailbox>[\w.+-]{1,64}@)?(?P<www>www\.)?(?:[a-z0-9-]{1,63}\.){1,8}(?P<end>[a-z]{2,24})"
    r"(?::\d{1,5})?(?P<path>/[^\s<>\"`]*)?)(?![\w@-]|\.\w)",
    re.IGNORECASE,
)
_SITES = frozenset({"com", "org", "gg", "dev", "info", "xyz"})
_SITES_WITH_A_PATH = _SITES | frozenset(
    "net io co ai me app biz link site online store tech cloud wiki ly ru cn de uk fr eu ch at nl es pl se".split()
)
# No mail reaches the first three. A mailbox at another reserved end counts as an address.
_PLACEHOLDERS = (".example.com", ".example.org", ".example.net", ".example", ".test", ".invalid")
MAX_QUOTE = 200
# A line, or a sentence in it. The team's turns are indented after their first line.
_SENTENCE = regex(r"(?<=[.!?。！？])\s+|\n+")

_CLOSING = {")": "(", "]": "[", "}": "{"}
# Ends a sentence or emphasis rather than an address.
_TRAILING = ".,;:!?'’”…*_~|。、，；：！？」』）】》"


def clean_answer(answer: str | None) -> str:
    """Strip the answer; return an empty text for the ways in which models say that they have none."""
    text = (answer or "").strip()
    return "" if text.strip(_AROUND_NOTHING).casefold() in _NOTHING else text


def check_citations(citations: Iterable[str], sources: Sequence[ShownSource]) -> tuple[tuple[SourceId, ...], int]:
    """Return each citation of a shown source or block (`team:<topic>.txt#<qa id>`) once, and the number of others.

    A whole topic is not cited beside one of its answers.
    """
    known = {each for source in sources for each in find_citation_ids(source.source_id, source.text)}
    asked_for = [each.strip() for each in citations]
    kept = dict.fromkeys(each for each in asked_for if each in known)
    dropped = sum(each not in known for each in asked_for)
    precise = {get_source_id(citation) for citation in kept if citation != get_source_id(citation)}
    return tuple(SourceId(citation) for citation in kept if citation not in precise), dropped


def find_quote(answer: str, citation: str, source: ShownSource) -> str | None:
    """Return the sentence of a cited source that shares most words with the answer, weighted by rarity.

    It is quoted word for word from the shown text and cut to MAX_QUOTE; from a topic, it quotes the team's words in the
    cited block. None if they share no words.
    """
    text = source.said or source.text
    if is_team_source(citation):
        text = "\n".join(block_lines(source.text, citation.partition("#")[2]))
    return find_nearest_sentence(answer, text)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, each line by itself."""
    return [each for part in _SENTENCE.split(text) if (each := part.strip())]


def find_nearest_sentence(said: str, text: str) -> str | None:
    """Return the sentence of a text that shares most with `said`, cut to MAX_QUOTE; None if they share no words."""
    sentences = split_sentences(text)
    held = [stem_set(each) for each in sentences]
    wanted, rarity = sorted(stem_set(said)), WordRarity(held)
    shared = [sum(rarity.weight(word) for word in wanted if word in words) for words in held]
    best = max(range(len(sentences)), key=shared.__getitem__, default=None)
    if best is None or not shared[best]:
        return None
    quote = sentences[best]
    return quote if len(quote) <= MAX_QUOTE else quote[: MAX_QUOTE + 1].rpartition(" ")[0] or quote[:MAX_QUOTE]


def get_source_id(citation: str) -> SourceId:
    """Return the source of a citation: the topic of a team answer, else the citation itself."""
    return SourceId(citation.partition("#")[0] if is_team_source(citation) else citation)


def find_urls(text: str) -> Iterator[str]:
    """Yield the addresses in a text, without the Markdown and the punctuation around them."""
    at = 0
    while match := _URL.search(text, at):
        url = _trim_brackets(match.group())
        at = match.start() + len(url)
        yield url.rstrip(_TRAILING)


def find_strange_urls(answer: str, texts: Sequence[str], own: Iterable[str]) -> list[str]:
    """Return the addresses of an answer that are, byte for byte, in none of the cited texts and not among the `own`.

    An address without its scheme matches one with or without a scheme, or the site of another.
    """
    allowed = {*own, *chain.from_iterable(map(find_urls, texts))}
    rests = [_normalise_address(url.partition("://")[2]) for url in allowed]
    known = {*rests, *(rest.partition("/")[0] for rest in rests)}
    known.update(_normalise_address(each) for text in texts for each in find_bare_addresses(text))
    return sorted(
        {*find_urls(answer)} - allowed
        | {each for each in find_bare_addresses(answer) if _normalise_address(each) not in known}
    )


def find_bare_addresses(text: str) -> list[str]:
    """Yield sites, pages and mailboxes named without a scheme; placeholders such as `example.com` are no sites."""
    found: list[str] = []
    for match in _BARE.finditer(_URL.sub(" ", text)):
        address = _trim_brackets(match["bare"]).rstrip(_TRAILING)
        end = match["end"].casefold()
        host = address.partition("/")[0].rpartition("@")[2].partition(":")[0].casefold()
        is_one = match["mailbox"] or match["www"] or end in (_SITES_WITH_A_PATH if match["path"] else _SITES)
        if is_one and not f".{host}".endswith(_PLACEHOLDERS[: 3 if match["mailbox"] else None]):
            found.append(address)
    return found


def _normalise_address(address: str) -> str:
    return address.casefold().rstrip("/").removeprefix("www.")


def _trim_brackets(url: str) -> str:
    """Cut at the first closing bracket that the address did not open: `[label](address)`, `(see address)`."""
    opened: list[str] = []
    for n, char in enumerate(url):
        if char in _CLOSING.values():
            opened.append(char)
        elif char in _CLOSING and (not opened or opened.pop() != _CLOSING[char]):
            return url[:n]
    return url


_LEAST_WORDS = 3
_LONG_LINE = 200  # characters
_LEAST_CHARS = 11  # of a quote with fewer words, unless it is a whole line: `listen = 7480` will do, "the" will not
# Marks at the beginning of a line: quotations, headings, items, the speaker of a turn, dots for omitted text.
_LEAD = regex(r"^(?:[ \t>|#*+.…-]|\d{1,3}[.)](?=\s)|(?:Team|User): )+")
_BREAK = regex(r"^(?:[ \t]*(?:[>|#*+-]|\d{1,3}[.)])\s|```|~~~|(?:Team|User): |[=~-]{3,}\s*$)")
_LINKED = regex(r"\]\([^)\s]{0,500}\)")
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
