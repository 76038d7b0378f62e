r"""Links that can be clicked in a Discord message: a parser of its markup that shares no code with intern's own.

It follows the desktop client, which takes whatever begins first: emphasis may begin before a backtick and end behind
it, a quoted line ends where the line does, and what was meant as code then is none. Clients differ, so a text is read
a second time with code before everything else; what either reading finds counts. Stricter than any client: every
scheme is a link, and so is every `](target)`, whatever stands before it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

_FLAGS = re.VERBOSE | re.DOTALL | re.MULTILINE | re.IGNORECASE

_LINES = r"""
  ^\ *>>>\ (?P<rest>.*)
| (?P<quote>(?:^\ *>\ [^\n]*\n?)+)
| ^\ *(?:\#{1,3}|-\#)\s+(?P<heading>[^\n]*)
| ^\ *(?:[*-]|\d+\.)\ +(?P<item>[^\n]+(?:\n\ [^\n]*)*)
"""
_ESCAPE = r"(?P<escape>\\[^0-9A-Za-z\s])"
_CODE = r"""
  ```(?:[\w+\-.\#]*\n)?(?P<block>.+?)```
| (?P<ticks>`+)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)
"""
_LINKS = r"""
  <(?P<auto>[^:\s<>]+:/[^\s<>]+|mailto:[^\s<>]+|(?:tel|sms):[\d+][^\s<>]*|[^\s<>@`]+@[^\s<>@`]+\.[^\s<>@`]+|\+\d[^\s<>]+)>
| \[(?P<label>(?:[^\[\]]|\[[^\[\]]*\])*)\]\(\s*<?(?P<masked>(?:\([^\s()]*\)|[^\s()])+)(?=[^()]*\))
| \]\(\s*<?(?P<loose>(?:\([^\s()]*\)|[^\s()])+)(?=[^()]*\))
| (?P<bare>[a-z][a-z0-9+.-]{0,30}://[^\s<]+)
| (?<![\w.-])(?P<invite>discord(?:app)?\.(?:gg|new|gift|com/(?:invite|template|gifts?))/[\w-]+)
"""
_PAIRS = r"""
  \|\|(?P<hidden>.+?)\|\|
| ~~(?P<struck>.+?)~~
| (?P<emphasis>(?=[*_]))
"""
_AS_ON_THE_DESKTOP = re.compile(f"{_LINES}|{_ESCAPE}|{_LINKS}|{_PAIRS}|{_CODE}", _FLAGS)
_CODE_FIRST = re.compile(f"{_ESCAPE}|{_CODE}|{_LINKS}", _FLAGS)

# The longest wins: `**a*` is no italics where `**a*b**` is bold.
_EMPHASIS = (
    re.compile(r"\*\*((?:\\.|[^\\])+?)\*\*(?!\*)", re.DOTALL),
    re.compile(r"\*(?!\s)((?:\\.|\*\*|[^*\\])+?)(?<!\s) {0,2}\*(?!\*)", re.DOTALL),
    re.compile(r"__((?:\\.|[^\\])+?)__(?!_)", re.DOTALL),
    re.compile(r"_((?:\\.|__|[^_\\])+?)_(?![0-9A-Za-z_])", re.DOTALL),
)
_HAS_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:.", re.IGNORECASE | re.DOTALL)
_MID_LINE = "\0"  # stands before what does not begin a line
_ENDS_NO_ADDRESS = ".,:;!?\"')]}>*_~|"


def uncited(text: str, cited: Collection[str] = ()) -> list[str]:
    """Return the clickable links that were not cited; punctuation behind a link does not count."""
    known = {link.rstrip(_ENDS_NO_ADDRESS) for link in cited}
    return [link for link in clickable(text) if link.rstrip(_ENDS_NO_ADDRESS) not in known]


def clickable(text: str) -> list[str]:
    """Every address that some reading of the text makes clickable, once."""
    return list(dict.fromkeys([*_read(text, _AS_ON_THE_DESKTOP), *_read(text, _CODE_FIRST)]))


def _read(text: str, rules: re.Pattern[str]) -> Iterator[str]:
    at = 0
    while found := rules.search(text, at):
        at = found.end()
        kind = found.lastgroup or ""
        if kind == "emphasis":
            longest = max(filter(None, (each.match(text, at) for each in _EMPHASIS)), key=_length, default=None)
            if longest is None:
                at += 1
                continue
            at = longest.end()
            yield from _read(_within(text, longest.start(), longest[1]), rules)
        elif kind in {"auto", "bare", "invite"}:
            yield found[kind]
        elif kind in {"masked", "loose"}:
            if _HAS_SCHEME.match(found[kind]):
                yield found[kind]
            if kind == "masked":
                yield from _read(_within(text, found.start(), found["label"]), rules)
        elif kind == "quote":
            yield from _read(re.sub(r"^ *> ", "", found["quote"], flags=re.MULTILINE), rules)
        elif kind in {"rest", "heading", "item"}:
            yield from _read(found[kind], rules)
        elif kind in {"hidden", "struck"}:
            yield from _read(_within(text, found.start(), found[kind]), rules)


def _length(found: re.Match[str]) -> int:
    return found.end() - found.start()


def _within(text: str, start: int, inner: str) -> str:
    """Return the text between two marks; it begins a line if the first mark does."""
    return inner if not text[:start].rpartition("\n")[2].strip(" ") else _MID_LINE + inner
