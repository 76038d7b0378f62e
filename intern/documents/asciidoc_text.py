"""The text of AsciiDoc's lines as HTML: marks, links, macros, and escapes.

As in Asciidoctor, one substitution follows the other; finished parts are put aside until the end. All patterns are
bounded, so the time for a text grows with its length.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping

_LITERAL = re.compile(
    r"""(?xs)(?<![`\\])\\(\*\*|__|\#\#|``|--|[*_`\#^~+<\["'(]|(?:https?|ftp|irc)://|[a-z]{2,15}:(?=[^\s\[]{0,300}\[))
    |pass:[a-z,]{0,9}\[(.{0,2000}?)\]|\+\+\+(.{1,2000}?)\+\+\+
    |\$\$(.{1,500}?)\$\$|\+\+(.{1,500}?)\+\+|(?<![\w;:}])\+(?=\S)([^\n]{1,500}?)(?<=\S)\+(?!\w)"""
)
_MACRO = re.compile(
    r"""(?xs)(?<![\w/:])(?P<url>(?:https?|ftp|irc)://[^\s\[\]<>"|`\0]{0,1999}[^\s\[\]<>"|`\0.,;:!?')])
      (?:\[(?P<label>(?:[^\[\]\\]|\\.){0,500})\])?
    |(?<![\w:])(?P<name>[a-z][a-z0-9]{1,15}):(?P<target>[^\s\[\]:][^\s\[\]]{0,499}|)
      \[(?P<held>(?:[^\[\]\\]|\\.|\[[^\[\]]{0,200}\]){0,1000})\]
    |<<(?P<reference>\#?\w[^<>,\n]{0,200})(?:,(?P<named>[^<>]{1,500}))?>>
    |(?P<unseen>(?<!\[)\[\[[A-Za-z_:][\w.:-]{0,100}(?:,[^\[\]]{0,200})?\]\]|\(\(\(.{1,200}?\)\)\))"""
)
_SHOWN = {
    **dict.fromkeys(("kbd", "stem", "latexmath", "asciimath"), "``{held}``"),
    **dict.fromkeys(("btn", "indexterm2"), "{held}"),
    "footnote": " ({held})",
    "image": "{alt}",
    "linkgit": "{target}({held})",
    "menu": "{path}",
}
_NO_REFERENCE = re.compile(r"&(?!(?:#\d{1,6}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,30});)")
_SPAN = re.compile(
    r"""(?xs)(?P<quote>["'])`(?=\S)(?P<quoted>.{1,500}?)(?<=\S)`(?P=quote)|``(?=\S)(?P<typeset>[^`\n]{1,200}?)''
    |``(.{1,500}?)``|(?<![\w"'`;:}])`(?=\S)(.{1,500}?)(?<=\S)`(?![\w"'`])"""
)
_MARK = (
    r"(?s)(?:{role}{sign}{sign}(.{{1,500}}?){sign}{sign}"
    r"|(?<![\w\"'}}]){role}{sign}(?=\S)(?!{sign})(.{{1,500}}?)(?<=\S){sign}(?!\w))"
)
_ROLE = r"(?:\[[^\[\]\n]{0,80}\])?"
_MARKS = (
    (re.compile(_MARK.format(role=_ROLE, sign=r"\*")), r"<strong>\1\2</strong>"),
    *((re.compile(_MARK.format(role=_ROLE, sign=sign)), r"\1\2") for sign in "_#"),
    (re.compile(r"~([^\s~]{1,60})~|\(\(([^()\n]{1,200})\)\)"), r"\1\2"),
    (re.compile(r"\[\[(\[[\w.:-]{1,60})(?:,[^\[\]]{0,200})?\]\]\]"), r"\1]"),
    (re.compile(r" \+(?:\n|\Z)"), "<br>"),
)
_KEPT = re.compile(r"\0(\d+)\0")
_WRITTEN = re.compile(r"<[^<>]*>")
_ATTRIBUTE = re.compile(r"""\s*(?:([\w-]+)\s*=\s*)?(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^,]*))\s*(?:,|\Z)""")
_SHORT = re.compile(r"([#.%])([^#.%]+)")
_SHORT_NAMES = {"#": "id", ".": "role", "%": "options"}


def inline_html(text: str, titles: Mapping[str, str]) -> str:
    """Return a text as HTML; references without a text show the `titles` of sections, which are given by id."""
    kept: list[str] = []

    def keep(markup: str) -> str:
        kept.append(restore(markup))
        return f"\0{len(kept) - 1}\0"

    def restore(markup: str) -> str:
        return _KEPT.sub(lambda found: kept[int(found[1])], markup)

    def write_literal(found: re.Match[str]) -> str:
        held = found[found.lastindex or 0]
        return keep(held if found.lastindex in {2, 3} else _escape(held))

    def write_span(found: re.Match[str]) -> str:
        held = _write_marks(found[found.lastindex or 0])
        if found["quoted"] or found["typeset"]:
            return keep(f"‘{held}’" if found["quote"] == "'" else f"“{held}”")
        return keep(f"<code>{held}</code>")

    text = _LITERAL.sub(write_literal, text.replace("\0", ""))
    for _ in range(2):  # one may contain another
        text = _MACRO.sub(lambda found: _write_macro(found, titles, keep), text)
    return restore(_write_marks(_SPAN.sub(write_span, _escape(text))))


def inline_text(text: str, titles: Mapping[str, str]) -> str:
    """Return a text without its marks."""
    return html.unescape(_WRITTEN.sub("", inline_html(text, titles)))


def parse_attributes(text: str) -> dict[str, str]:
    """Return the attributes of a block or macro, by name, or by place from "1"; signs such as `#` set some."""
    attributes: dict[str, str] = {}
    place = 0
    for found in _ATTRIBUTE.finditer(text):
        place += not found[1]
        name = "options" if found[1] == "opts" else found[1] or str(place)
        attributes.setdefault(name, next(filter(None, found.groups()[1:]), "").strip())
    first = attributes.get("1", "")
    for sign, value in _SHORT.findall(first):
        attributes[_SHORT_NAMES[sign]] = f"{attributes.get(_SHORT_NAMES[sign], '')} {value}".strip()
    attributes["style"] = _SHORT.sub("", first).strip()
    return {name: value for name, value in attributes.items() if value}


def _escape(text: str) -> str:
    """Return a text as HTML writes it; its references to characters stay."""
    return _NO_REFERENCE.sub("&amp;", text).replace("<", "&lt;").replace(">", "&gt;")


def _write_marks(text: str) -> str:
    for pattern, written in _MARKS:
        text = pattern.sub(written, text)
    return text


def _write_macro(found: re.Match[str], titles: Mapping[str, str], keep: Callable[[str], str]) -> str:
    if found["unseen"] or found["name"] in {"icon", "anchor", "indexterm", "toc", "video"}:
        return keep(f"<!--{_escape(found[0])}-->")
    name, target = found["name"] or "link", found["url"] or found["target"] or ""
    held = (found["label"] or found["held"] or found["named"] or "").replace("\\]", "]")
    given = parse_attributes(held)
    label = (given.get("1", held) if "=" in held else held).strip().removesuffix("^")
    if found["reference"] or name == "xref":
        target = found["reference"] or target
        path, _, anchor = target.rpartition("#")
        return label or titles.get(anchor or target, "") or path or (target if "." in target else f"[{target}]")
    if name in {"link", "mailto"}:
        address = keep(f'<a href="{"mailto:" * (name == "mailto")}{_escape(target)}">')
        return f"{address}{label or keep(_escape(target))}{keep('</a>')}"
    if name not in _SHOWN:
        return found[0]
    path = " › ".join(part.strip() for part in (target, *held.split(">")) if part.strip())
    alt = given.get("alt") or given.get("1", "")
    return _SHOWN[name].format(target=target, held=held, alt=alt, path=path)
