"""How deep a page's elements are nested, guessed by its tags alone, and never guessed too low.

The time that HTML parsers take grows with the square of it: `<ul><li>` over 256 kB keeps one busy for 45 seconds.
"""

from __future__ import annotations

import re

_TAG = re.compile(r"<(/?)([a-z][a-z0-9]*)|<!--.*?(?:-->|\Z)", re.IGNORECASE | re.DOTALL)
# Elements that end by themselves where the next one begins, or that hold none.
_FLAT = frozenset(
    {"area", "base", "body", "br", "col", "colgroup", "dd", "dt", "embed", "head", "hr", "html", "img", "input", "li"}
    | {"link", "meta", "optgroup", "option", "p", "param", "rp", "rt", "source", "tbody", "td", "tfoot", "th", "thead"}
    | {"tr", "track", "wbr"}
)
# Whose end tag ends whatever is still open in them; what else may be open there; and what is then opened again after.
_CLOSING = frozenset(
    {"address", "article", "aside", "blockquote", "center", "details", "dialog", "dir", "div", "dl", "fieldset"}
    | {"figcaption", "figure", "footer", "header", "hgroup", "main", "menu", "nav", "ol", "pre", "section", "summary"}
    | {"ul"}
)
_PASSING = frozenset(
    {"abbr", "cite", "h1", "h2", "h3", "h4", "h5", "h6", "kbd", "label", "mark", "samp", "span", "sub", "sup", "var"}
)
_REOPENED = frozenset({"a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u"})
_TRANSPARENT = _CLOSING | _PASSING | _REOPENED


def is_deeper(markup: str, limit: int) -> bool:
    """Whether elements may be nested more than `limit` deep. Looks no further than that."""
    opened: list[str] = []
    for found in _TAG.finditer(markup):
        name = found[2].lower() if found[2] else ""
        if not name or name in _FLAT:
            continue
        if not found[1]:
            opened.append(name)
            if len(opened) > limit:
                return True
        elif opened and (opened[-1] == name or _closes(name, opened)):
            reopened: list[str] = []
            while (other := opened.pop()) != name:
                reopened += [other] if other in _REOPENED else []
            opened += reversed(reopened)
    return False


def _closes(name: str, opened: list[str]) -> bool:
    """Whether an end tag closes an element further up, with all that is in it; elsewhere parsers ignore it."""
    if name not in _CLOSING:
        return False
    for other in reversed(opened):
        if other == name:
            return True
        if other not in _TRANSPARENT:
            return False
    return False
