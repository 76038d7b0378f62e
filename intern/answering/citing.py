"""What an answer stands on: its citations and its links, held against the sources that were shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from intern.answering.citable import block_lines, citable, is_team
from intern.answering.prompts import Draft, ShownSource
from intern.domain import SilenceReason, SourceId
from intern.text.words import Rarity, word_set

_NOTHING = frozenset({"", "null", "none", "nil", "n/a", "undefined"})

_AROUND_NOTHING = " \t\r\n\"'`*_~.,:;!?-–—…()[]{}<>|"

# Any scheme, as people and chat programs link it; what may not stand in a URL ends it. Schemes are short: without a
# bound, each letter of a long word would be tried as the first of one.
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^\s<>\"`]+", re.IGNORECASE)
# What people type into a browser or write a letter to all the same: an address without its scheme. Endings that files
# and libraries have, too (`install.sh`, `ASP.NET`, `socket.io`), count with a path or `www.` only.
_BARE = re.compile(
    r"(?<![\w@.-])(?P<bare>(?P<mailbox>[\w.+-]{1,64}@)?(?P<www>www\.)?(?:[a-z0-9-]{1,63}\.){1,8}(?P<end>[a-z]{2,24})"
    r"(?::\d{1,5})?(?P<path>/[^\s<>\"`]*)?)(?![\w@-]|\.\w)",
    re.IGNORECASE,
)
_SITES = frozenset({"com", "org", "gg", "dev", "info", "xyz"})
_SITES_WITH_A_PATH = _SITES | frozenset(
    "net io co ai me app biz link site online store tech cloud wiki ly ru cn de uk fr eu ch at nl es pl se".split()  # noqa: SIM905
)
_PLACEHOLDERS = ("example.com", "example.org", "example.net", ".example", ".test", ".invalid")
MAX_QUOTE = 200
# A line, or a sentence in it. The team's turns are indented after their first line.
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+")

_CLOSING = {")": "(", "]": "[", "}": "{"}
# Ends a sentence or emphasis rather than an address.
_TRAILING = ".,;:!?'’”…*_~|。、，；：！？」』）】》"


class Checked(Struct, frozen=True, kw_only=True):
    """A draft, held against what was shown. With a `reason` it must not be posted."""

    reason: SilenceReason
    text: str
    source_ids: tuple[SourceId, ...]
    dropped_citations: int
    strange_urls: tuple[str, ...] = ()


def checked(
    draft: Draft,
    sources: Sequence[ShownSource],
    own_urls: Mapping[str, str | None],
    *,
    max_answer_chars: int,
    require_citations: bool,
) -> Checked:
    """Everything about a draft that code can tell. `own_urls` holds the page of each source that is one."""
    text = answer_text(draft.answer)
    holding = cited(draft.citations, sources)
    own = [own_urls.get(source_of(source_id)) for source_id in holding.source_ids]
    of = {source_of(source_id) for source_id in holding.source_ids}
    strange = strange_urls(text, [each.vouched for each in sources if each.source_id in of], filter(None, own))
    reason: SilenceReason = ""
    if not text:
        reason = "no_answer"
    elif len(text) > max_answer_chars:
        reason = "too_long"
    elif require_citations and not holding.source_ids:
        reason = "no_citations"
    elif strange:
        reason = "ungrounded"
    return Checked(
        reason=reason,
        text=text,
        source_ids=holding.source_ids,
        dropped_citations=holding.dropped,
        strange_urls=tuple(strange),
    )


class Cited(Struct, frozen=True, kw_only=True):
    """The citations that hold."""

    source_ids: tuple[SourceId, ...]
    dropped: int
    """Citations of what was not shown."""


def answer_text(answer: str | None) -> str:
    """The answer without white space around it; empty for the ways in which models say that they have none."""
    text = (answer or "").strip()
    return "" if text.strip(_AROUND_NOTHING).casefold() in _NOTHING else text


def cited(citations: Iterable[str], sources: Sequence[ShownSource]) -> Cited:
    """Each citation once, if its source was shown; `team:<topic>.txt#<qa id>` if that block was.

    A whole topic is not cited beside one of its answers.
    """
    known: set[str] = set()
    for source in sources:
        known.update(citable(source.source_id, source.text))
    kept: dict[str, None] = {}
    dropped = 0
    for citation in map(str.strip, citations):
        if citation in known:
            kept[citation] = None
        else:
            dropped += 1
    precise = {source_of(citation) for citation in kept if citation != source_of(citation)}
    return Cited(source_ids=tuple(SourceId(citation) for citation in kept if citation not in precise), dropped=dropped)


def quote_of(answer: str, citation: str, source: ShownSource) -> str | None:
    """The sentence of a cited source that shares most with the answer, by the rarity of its words; at most MAX_QUOTE.

    It is cut from what was shown, word for word; of a topic, from what the team said in the cited block. None where
    they share nothing.
    """
    text = source.said or source.text
    if is_team(citation):
        text = "\n".join(block_lines(source.text, citation.partition("#")[2]))
    return nearest_sentence(answer, text)


def nearest_sentence(said: str, text: str) -> str | None:
    """The sentence of a text that shares most with what is said, at most MAX_QUOTE; None where they share nothing."""
    sentences = [each for part in _SENTENCE.split(text) if (each := part.strip())]
    held = [word_set(each) for each in sentences]
    wanted, rarity = sorted(word_set(said)), Rarity(held)
    shared = [sum(rarity.weight(word) for word in wanted if word in words) for words in held]
    best = max(range(len(sentences)), key=shared.__getitem__, default=None)
    if best is None or not shared[best]:
        return None
    quote = sentences[best]
    return quote if len(quote) <= MAX_QUOTE else quote[: MAX_QUOTE + 1].rpartition(" ")[0] or quote[:MAX_QUOTE]


def source_of(citation: str) -> SourceId:
    """The source that a citation is of: a team answer's topic, anything else itself."""
    return SourceId(citation.partition("#")[0] if is_team(citation) else citation)


def urls(text: str) -> Iterator[str]:
    """The addresses in a text, without the Markdown and the punctuation around them."""
    at = 0
    while match := _URL.search(text, at):
        url = _balanced(match.group())
        at = match.start() + len(url)
        yield url.rstrip(_TRAILING)


def strange_urls(answer: str, texts: Sequence[str], own: Iterable[str]) -> list[str]:
    """The addresses of an answer that stand, byte for byte, in none of the cited texts, and are none of the `own`.

    One without its scheme stands there if it does so with or without, or as the site of another.
    """
    named, bare = set(urls(answer)), bare_addresses(answer)
    if not named and not bare:
        return []  # as most: to look for them in the sources takes a while
    allowed = set(own)
    for cited_text in texts:
        allowed.update(urls(cited_text))
    strange = named - allowed
    if bare:
        known = {part for url in allowed for part in _without_scheme(url)}
        for cited_text in texts:
            known.update(map(_plain, bare_addresses(cited_text)))
        strange.update(each for each in bare if _plain(each) not in known)
    return sorted(strange)


def bare_addresses(text: str) -> list[str]:
    """Sites, pages and mailboxes named without a scheme; placeholders such as `example.com` are none."""
    found: list[str] = []
    for match in _BARE.finditer(_URL.sub(" ", text)):
        address = _balanced(match["bare"]).rstrip(_TRAILING)
        end = match["end"].casefold()
        host = address.partition("/")[0].rpartition("@")[2].partition(":")[0].casefold()
        is_one = match["mailbox"] or match["www"] or end in (_SITES_WITH_A_PATH if match["path"] else _SITES)
        if is_one and not f".{host}".endswith(tuple(f".{each.lstrip('.')}" for each in _PLACEHOLDERS)):
            found.append(address)
    return found


def _without_scheme(url: str) -> tuple[str, str]:
    """What people write of an address: all but its scheme, or its site."""
    rest = _plain(url.partition("://")[2])
    return rest, rest.partition("/")[0]


def _plain(address: str) -> str:
    return address.casefold().rstrip("/").removeprefix("www.")


def _balanced(url: str) -> str:
    """Up to the first bracket that closes what the address did not open: `[label](address)`, `(see address)`."""
    opened: list[str] = []
    for n, char in enumerate(url):
        if char in _CLOSING.values():
            opened.append(char)
        elif char in _CLOSING and (not opened or opened.pop() != _CLOSING[char]):
            return url[:n]
    return url
