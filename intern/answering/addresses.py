"""Addresses in answers and in their sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

# Any scheme, as people and chat programs link it; a character that a URL cannot contain ends it. Schemes are short:
# without a bound, each letter of a long word would be tried as the first of one.
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,30}://[^\s<>\"`]+", re.IGNORECASE)
# An address without its scheme: people still type it into a browser or send mail to it. Endings that files and
# libraries also have (`install.sh`, `ASP.NET`, `socket.io`) count only with a path or `www.`.
_BARE = re.compile(
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
_CLOSING = {")": "(", "]": "[", "}": "{"}
# Ends a sentence or emphasis rather than an address.
_TRAILING = ".,;:!?'’”…*_~|。、，；：！？」』）】》"


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
    """Return sites, pages and mailboxes named without a scheme; placeholders such as `example.com` are no sites."""
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
