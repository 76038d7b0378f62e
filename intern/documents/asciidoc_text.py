"""What stands inside a line of AsciiDoc: marks, links, macros, and what escapes them.

All that is looked for is bounded, so the time for a text grows with its length.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from intern.core.text.patterns import regex

_DEEPEST = 6

_MARKUP = regex(
    r"""(?xs)
    \\(?P<escaped>(?:\*\*|__|\#\#|``|--)|[*_`\#^~+<\["'(]|(?:https?|ftp|irc)://|[a-z]{2,15}:(?=[^\s\[]{0,300}\[))
    |(?P<break>[ ]\+(?:\n|\Z))
    |(?:\+\+\+(?P<passed>.{1,2000}?)\+\+\+|\$\$(?P<dollars>.{1,500}?)\$\$|\+\+(?P<literals>.{1,500}?)\+\+
      |(?<![\w;:}])\+(?=\S)(?P<literal>[^\n]{1,500}?)(?<=\S)\+(?!\w))
    |(?P<quote>["'])`(?=\S)(?P<quoted>.{1,500}?)(?<=\S)`(?P=quote)
    |``(?=\S)(?P<typeset>[^`\n]{1,200}?)''
    |``(?P<codes>.{1,500}?)``
    |(?<![\w"'`;:}])`(?=\S)(?P<code>.{1,500}?)(?<=\S)`(?![\w"'`])
    |(?<![\w"'}])(?:\[[^\[\]\n]{0,80}\])?(?P<one>[*_\#])(?=\S)(?!(?P=one))(?P<marked>.{1,500}?)(?<=\S)(?P=one)(?!\w)
    |(?:\[[^\[\]\n]{0,80}\])?(?P<two>\*\*|__|\#\#)(?P<marks>.{1,500}?)(?P=two)
    |~(?P<lowered>[^\s~]{1,60})~
    |<<(?P<reference>\#?[\w][^<>,\n]{0,200})(?:,(?P<named>[^<>]{1,500}))?>>
    |\[\[\[(?P<entry>[\w.:-]{1,60})(?:,[^\[\]]{0,200})?\]\]\]
    |(?P<anchor>\[\[[A-Za-z_:][\w.:-]{0,100}(?:,[^\[\]]{0,200})?\]\])
    |(?P<indexed>\(\(\(.{1,200}?\)\)\)|indexterm:\[[^\[\]]{0,200}\])
    |\(\((?P<term>[^()\n]{1,200})\)\)
    |(?<![\w/:])(?P<url>(?:https?|ftp|irc)://[^\s\[\]<>"|]{0,1999}[^\s\[\]<>"|.,;:!?')])(?:\[(?P<label>(?:[^\[\]\\]|\\.){0,500})\])?
    |(?<![\w:])(?P<macro>[a-z][a-z0-9]{1,15}):(?P<target>\+\+[^\s\[\]]{1,500}?\+\+|[^\s\[\]:][^\s\[\]]{0,499}|)
     \[(?P<held>(?:[^\[\]\\]|\\.|\[[^\[\]]{0,200}\]){0,1000})\]
    """
)
_REFERENCE = regex(r"&(?:#\d{1,6}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,30});")
_PASSED = regex(r"</?[A-Za-z][^<>]*>")
_ATTRIBUTE = regex(r"""\s*(?:([\w-]+)\s*=\s*)?(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^,]*))\s*(?:,|\Z)""")
_SHORT = regex(r"([#.%])([^#.%]+)")
_PAGES = regex(r"linkgit|man|manpage")


class Piece(NamedTuple):
    """Text, or the begin or the end of an element as HTML names it, or what no reader sees."""

    kind: Literal["text", "start", "end", "left_out"]
    value: str
    href: str = ""


def split_inline(text: str, titles: Mapping[str, str], depth: int = 0) -> Iterator[Piece]:
    """Split a text into its pieces; `titles` of sections by their ids stand for references without a text."""
    at = 0
    for found in _MARKUP.finditer(text) if depth < _DEEPEST else ():
        if found.start() > at:
            yield _plain(text[at : found.start()])
        at = found.end()
        yield from _pieces(found, titles, depth + 1)
    if at < len(text):
        yield _plain(text[at:])


def inline_text(text: str, titles: Mapping[str, str]) -> str:
    """Return the text alone, without marks."""
    return "".join(piece.value for piece in split_inline(text, titles) if piece.kind == "text")


def attributes_of(text: str) -> dict[str, str]:
    """Return the attributes of a block or macro: by name, or by place from "1"; those that are set by signs alone."""
    attributes: dict[str, str] = {}
    place = 0
    for found in _ATTRIBUTE.finditer(text):
        value = next((each for each in found.groups()[1:] if each is not None), "").strip()
        place += not found[1]
        attributes.setdefault(found[1] or str(place), value)
        if found.end() == len(text):
            break
    first = attributes.get("1", "")
    signs: dict[str, list[str]] = {"#": [], ".": [], "%": []}
    for sign in _SHORT.finditer(first):
        signs[sign[1]].append(sign[2].strip())
    attributes["style"] = _SHORT.sub("", first).strip() if signs["#"] or signs["."] or signs["%"] else first
    attributes["options"] = ",".join([*signs["%"], attributes.get("options", attributes.get("opts", ""))])
    attributes.setdefault("id", "".join(signs["#"][:1]))
    attributes.setdefault("role", " ".join(signs["."]))
    return attributes


def _plain(text: str) -> Piece:
    return Piece("text", _REFERENCE.sub(lambda found: html.unescape(found[0]), text))


def _pieces(  # noqa: C901 one case after the other
    found: re.Match[str], titles: Mapping[str, str], depth: int
) -> Iterator[Piece]:
    groups = found.groupdict()
    kind = next((name for name in _HELD if groups[name] is not None), "")
    held = groups[kind] or "" if kind else ""
    if kind == "macro":
        yield from _macro(held, groups["target"].strip("+"), groups["held"].replace("\\]", "]"), titles, depth)
    elif kind in {"escaped", "literals", "literal", "dollars"}:
        yield Piece("text", held)
    elif kind == "passed":
        yield Piece("text", _PASSED.sub("", held))
    elif kind == "break":
        yield Piece("start", "br")
    elif kind in {"typeset", "quoted"}:
        signs = "‘’" if groups["quote"] == "'" else "“”"
        yield Piece("text", signs[0])
        yield from split_inline(held, titles, depth)
        yield Piece("text", signs[1])
    elif kind in {"code", "codes"}:
        yield Piece("start", "code")
        is_literal = len(held) > 2 and held[0] == held[-1] == "+"
        yield from [Piece("text", held.strip("+"))] if is_literal else split_inline(held, titles, depth)
        yield Piece("end", "code")
    elif kind in {"marked", "marks"}:
        tag = "strong" if "*" in (groups["one"] or groups["two"]) else "em"
        yield Piece("start", tag)
        yield from split_inline(held, titles, depth)
        yield Piece("end", tag)
    elif kind == "reference":
        yield from _referring(held.lstrip("#"), groups["named"] or "", titles, depth)
    elif kind == "entry":
        yield Piece("text", f"[{held}]")
    elif kind in {"anchor", "indexed"}:
        yield Piece("left_out", held)
    elif kind == "url":
        yield from _write_link(held, groups["label"] or "", titles, depth)
    else:
        yield from split_inline(held, titles, depth)


# The first of these that is found tells what it is.
_HELD = (
    "escaped break passed dollars literals literal quoted typeset codes code marked marks lowered reference entry"
    " anchor indexed term url macro"
).split()


def _macro(  # noqa: C901 one case after the other
    name: str, target: str, held: str, titles: Mapping[str, str], depth: int
) -> Iterator[Piece]:
    if name in {"link", "mailto"}:
        yield from _write_link(target if name == "link" else f"mailto:{target}", held, titles, depth)
    elif name == "xref":
        yield from _referring(target.lstrip("#"), held, titles, depth)
    elif name in {"kbd", "stem", "latexmath", "asciimath"}:
        yield from (Piece("start", "code"), Piece("text", held), Piece("end", "code"))
    elif name == "menu":
        yield Piece("text", " › ".join(part.strip() for part in (target, *held.split(">")) if part.strip()))
    elif name == "pass":
        yield from (
            split_inline(held, titles, depth)
            if target in {"q", "n", "a,q", "m"}
            else [Piece("text", _PASSED.sub("", held))]
        )
    elif name in {"footnote", "footnoteref"}:
        note = held.partition(",")[2] if name == "footnoteref" else held
        yield Piece("text", " (" if note else "")
        yield from split_inline(note, titles, depth)
        yield Piece("text", ")" if note else "")
    elif name == "btn" or (name == "indexterm2" and not target):
        yield from split_inline(held, titles, depth)
    elif name == "image":
        yield Piece("text", attributes_of(held).get("alt", "") or attributes_of(held).get("1", ""))
    elif name in {"icon", "anchor", "counter2"}:
        yield Piece("left_out", f"{name}:{target}[{held}]")
    elif _PAGES.fullmatch(name) and held:
        yield Piece("text", f"{target}({held})")
    else:
        yield Piece("text", f"{name}:{target}[")
        yield from split_inline(held, titles, depth)
        yield Piece("text", "]")


def _write_link(address: str, label: str, titles: Mapping[str, str], depth: int) -> Iterator[Piece]:
    label = _label(label) or address.removeprefix("mailto:")
    yield Piece("start", "a", address)
    yield from [Piece("text", label)] if label == address else split_inline(label, titles, depth)
    yield Piece("end", "a")


def _label(text: str) -> str:
    """Return the label of a link without its attributes and without the sign for a new window."""
    return (attributes_of(text)["1"] if "=" in text and "1" in attributes_of(text) else text).strip().removesuffix("^")


def _referring(target: str, label: str, titles: Mapping[str, str], depth: int) -> Iterator[Piece]:
    path, _, anchor = target.rpartition("#")
    path = path or (target if "." in target else "")
    label = _label(label) or titles.get(anchor or target, "") or path or f"[{target}]"
    yield from split_inline(label.strip(), titles, depth)
