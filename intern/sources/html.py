"""HTML as text: the main content of a page as Markdown, so that headings, code, lists and links are what they were.

What is hidden, scripts, styles, navigation and comments stay out. A page that is long enough to keep a parser busy
(one tag with 100,000 attributes takes it four minutes) is read in a process of its own, which this module is when it is
started; extreme pages are refused before. The parser is loaded with the first page.

The time that HTML parsers take grows with the square of the depth: `<ul><li>` over 256 kB keeps one busy for 45
seconds. So the depth is guessed first, by the tags alone, and never too low.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urljoin

import msgspec

from intern.core.text.patterns import regex
from intern.sources.sandboxed import SECONDS, BrokenError, TooLongError, run_sandboxed, serve_sandboxed

_TAG = regex(r"<(/?)([a-z][a-z0-9]*)|<!--.*?(?:-->|\Z)", re.IGNORECASE | re.DOTALL)
# Elements that end by themselves where the next one begins, or that hold none.
_FLAT = frozenset(
    {"area", "base", "body", "br", "col", "colgroup", "dd", "dt", "embed", "head", "hr", "html", "img", "input", "li"}
    | {"link", "meta", "optgroup", "option", "p", "param", "rp", "rt", "source", "tbody", "td", "tfoot", "th", "thead"}
    | {"tr", "track", "wbr"}
)
# Elements whose end tag also ends all elements open in them; elements that may be open there; those reopened after.
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
    """Return whether elements may be nested more than `limit` deep. Look no further than that."""
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
    """Return whether an end tag closes an element further up, with its content; elsewhere, parsers ignore it."""
    if name not in _CLOSING:
        return False
    for other in reversed(opened):
        if other == name:
            return True
        if other not in _TRANSPARENT:
            return False
    return False


if TYPE_CHECKING:
    from resiliparse.parse.html import ElementNode, HTMLTree, Node

# Characters that keep a parser busy for 70 ms at the very worst, in which no other Python thread runs.
_HARMLESS = 8000
# Browsers nest no deeper than 512; beyond a thousand, parsing takes seconds and minutes.
_DEEPEST = 512
# The longest pages of Rust's documentation have 90,000.
_MOST_TAGS = 150_000
# A page with less to read than this, and with scripts, is one that a script was to fill.
_LEAST_READABLE = 200
_LONGEST_TITLE = 120  # characters; it stands in a list of sources below an answer
_DECLARED_WITHIN = 1024  # bytes, in which a page must have named its encoding

_MAIN = "main, [role=main], article"
_HIDDEN = "[hidden], [aria-hidden], [style], dialog"
_NEVER_SHOWN = frozenset({"script", "style", "template"})
# In CSS, letters may be written as numbers.
_ESCAPE = regex(r"\\([0-9a-fA-F]{1,6})\s?")
_UNSEEN_STYLE = regex(
    r"""(?ix)(?<![\w-])(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|color\s*:\s*transparent
    |(?:opacity|font-size)\s*:\s*0(?:\.0*)?(?![.\d])|clip\s*:\s*rect|(?:text-indent|left|right|top)\s*:\s*-\d{3,}
    |transform\s*:\s*scale\w?\(\s*0\s*[,)])""",
)
_TAG_HTML = regex(r"</?[a-z]", re.IGNORECASE)
_META_CHARSET = regex(rb"<meta[^>]{0,500}?charset\s*=\s*[\"']?\s*([a-zA-Z0-9_:.-]{1,40})", re.IGNORECASE)
# What resiliparse's minimal HTML holds.
_MARKUP = regex(r"<(/?)(h[1-6]|pre|p|ul|ol|li|br|a)\b([^>\"]*(?:\"[^\"]*\"[^>\"]*)*)>")
# Before and after what they hold; the rest of the layout is in the minimal HTML already.
_MARKS = {"li": ("- ", ""), "ul": ("\n", "\n"), "ol": ("\n", "\n")}
_HREF = regex(r"href=\"([^\"]*)\"")
_PERMALINKS = frozenset("¶#§🔗⚓︎")
_BLANK_LINES = regex(r"\n[ \t\n]*\n")


class PageText(NamedTuple):
    """A page, read."""

    title: str
    """Empty where it has none."""
    text: str
    needs_scripts: bool
    """There is almost nothing to read before its scripts have run."""


def decoded(data: bytes, charset: str | None = None) -> str:
    """Decode bytes from the web: by byte order mark, `charset`, what HTML declares, else UTF-8 or Windows-1252."""
    from resiliparse.parse.encoding import bytes_to_str, map_encoding_to_html5  # noqa: PLC0415  # pyright: ignore[reportMissingModuleSource]

    found = _META_CHARSET.search(data[:_DECLARED_WITHIN])
    names = ("utf-8" if data.startswith(b"\xef\xbb\xbf") else None, charset, found[1].decode() if found else None)
    known = (map_encoding_to_html5(name, fallback_utf8=False) for name in names if name)
    encoding = next(filter(None, known), "utf-8")
    return bytes_to_str(data, encoding, errors="replace", fallback_encodings=("utf-8", "cp1252"))


def read_html(markup: str, base_url: str = "") -> PageText:
    """Return title and main content, with links relative to `base_url`. Blocks.

    Raises ValueError for pages that would take too long to parse.
    """
    _refuse_monsters(markup)
    if len(markup) <= _HARMLESS:
        return _read(markup, base_url)
    try:
        # The depth of a page is only a guess, which an attacker can make too low.
        said = run_sandboxed(__name__, msgspec.json.encode((encodable(markup), encodable(base_url))))
        return msgspec.json.decode(said, type=PageText)
    except TooLongError:
        raise ValueError(f"it could not be read within {SECONDS} seconds") from None
    except (BrokenError, msgspec.DecodeError):
        raise ValueError("it cannot be parsed, or needs too much memory") from None


def _read_encoded(data: bytes) -> bytes:
    return msgspec.json.encode(_read(*msgspec.json.decode(data, type=tuple[str, str])))


def _read(markup: str, base_url: str) -> PageText:
    from resiliparse.parse.html import HTMLTree  # noqa: PLC0415

    tree = HTMLTree.parse(markup)
    body = tree.body
    if body is None:
        return PageText(_title(tree), "", needs_scripts=False)
    _drop_hidden(body)
    text = _markdown(_extracted(_content(body)), base_url)
    needs_scripts = len(text) < _LEAST_READABLE and _first(tree, "script") is not None
    if len(text) < _LEAST_READABLE:
        # The main content may be elsewhere than it should be, and for a page without any, this is all there is.
        whole = _markdown(_extracted(body, main=False), base_url)
        needs_scripts = needs_scripts and len(whole) < _LEAST_READABLE
        text = max(text, whole, key=len)
    if needs_scripts:
        text = "\n\n".join(dict.fromkeys(filter(None, (_described(tree), text, _without_scripts(body)))))
    return PageText(_title(tree), text, needs_scripts)


def _drop_hidden(body: ElementNode) -> None:
    """Remove elements that stay hidden from readers."""
    for node in body.query_selector_all(_HIDDEN):
        if node.parent is not None and is_unseen(
            node.tag or "", {name: node.getattr(name) or "" for name in node.attrs}
        ):
            node.parent.remove_child(node)


def is_unseen(tag: str, attrs: Mapping[str, str]) -> bool:
    """Return whether an element with these attributes stays hidden from readers; tabs are shown one by one."""
    if attrs.get("role", "").strip().lower() == "tabpanel":
        return False
    if attrs.get("hidden", "until-found") != "until-found" or attrs.get("aria-hidden", "").strip().lower() == "true":
        return True
    style = _ESCAPE.sub(_character, attrs.get("style", ""))
    return tag in _NEVER_SHOWN or (tag == "dialog" and "open" not in attrs) or bool(_UNSEEN_STYLE.search(style))


def _character(escape: re.Match[str]) -> str:
    code = int(escape[1], 16)
    return chr(code) if 0 < code < 0x110000 else ""


def _content(body: ElementNode) -> ElementNode:
    """Return the one element that is marked as the main one; the whole body if several are."""
    marked = body.query_selector_all(_MAIN)
    outer = [node for node in marked if not any(other != node and other.contains(node) for other in marked[:8])]
    return outer[0] if len(outer) == 1 else body


def _extracted(node: Node, *, main: bool = True) -> str:
    """Return the node as minimal HTML."""
    from resiliparse.extract.html2text import extract_plain_text  # noqa: PLC0415  # pyright: ignore[reportMissingModuleSource]

    # Inside of what says that it is the main content, nothing is guessed away.
    guess = main and node.tag == "body"
    return extract_plain_text(node.html, preserve_formatting="minimal_html", main_content=guess, links=True)


def _markdown(minimal: str, base_url: str) -> str:
    """Return resiliparse's minimal HTML as Markdown."""
    written: list[str] = []
    links: list[tuple[int, str]] = []
    fence = ""
    at = 0
    for found in _MARKUP.finditer(minimal):
        written.append(html.unescape(minimal[at : found.start()]))
        at = found.end()
        closes, tag = bool(found[1]), str(found[2])
        if tag == "pre" and not closes:
            fence = fence_for(minimal[at : minimal.find("</pre>", at)])
            written.append(f"\n\n{fence}\n")
        elif tag == "pre":
            written.append(f"\n{fence}\n\n")
        elif tag == "a" and not closes:
            address = _HREF.search(found[3])
            links.append((len(written), html.unescape(address[1] if address else "")))
        elif tag == "a" and links:
            _link(written, *links.pop(), base_url)
        elif tag in _MARKS:
            written.append(_MARKS[tag][closes])
        elif tag[0] == "h":
            written.append("\n\n" if closes else f"\n\n{'#' * int(tag[1])} ")
    written.append(html.unescape(minimal[at:]))
    return _BLANK_LINES.sub("\n\n", "".join(written)).strip()


def fence_for(code: str) -> str:
    """Return a line that the code does not contain."""
    longest = max(map(len, re.findall("`{3,}", code)), default=2)
    return "`" * (longest + 1)


def _link(written: list[str], start: int, href: str, base_url: str) -> None:
    """Write `[label](address)`, or the label alone if the address leads nowhere that can be shown."""
    label = "".join(written[start:])
    if href.startswith("#"):
        if _PERMALINKS.issuperset(label.strip()):
            del written[start:]
        return
    address = _absolute(href, base_url)
    if address and label.strip():
        written.insert(start, "[")
        written.append(f"]({address})")


def _absolute(href: str, base_url: str) -> str:
    try:
        address = urljoin(base_url, href.strip())
    except ValueError:
        return ""
    fit = address.startswith(("http://", "https://")) and not re.search(r"[\s<>\"()\\]", address)
    return address if fit else ""


def _refuse_monsters(markup: str) -> None:
    """Raise ValueError for more elements, or deeper ones, than real pages have; guessed by their tags."""
    if is_deeper(markup, _DEEPEST):
        raise ValueError(f"its elements are nested more than {_DEEPEST} deep")
    if any(count > _MOST_TAGS for count, _ in enumerate(_TAG_HTML.finditer(markup), 1)):
        raise ValueError(f"it holds more than {_MOST_TAGS} tags")


def _first(tree: HTMLTree, selector: str) -> ElementNode | None:
    return tree.document.query_selector(selector) if tree.document else None


def _title(tree: HTMLTree) -> str:
    heading = _first(tree, "h1")
    name = (tree.title or "").strip() or (heading.text if heading else None) or ""
    return " ".join(name.split())[:_LONGEST_TITLE]


def _described(tree: HTMLTree) -> str:
    """Return the description of a page for search engines."""
    meta = _first(tree, "meta[name=description]")
    return " ".join((meta.getattr("content", "") or "").split()) if meta else ""


def _without_scripts(body: ElementNode) -> str:
    said = (" ".join((node.text or "").split()) for node in body.query_selector_all("noscript"))
    return "\n\n".join(dict.fromkeys(filter(None, said)))


def encodable(text: str) -> str:
    """Return the text with `?` for half surrogates."""
    return text.encode("utf-8", "replace").decode()


if __name__ == "__main__":
    serve_sandboxed(_read_encoded, load=lambda: import_module("resiliparse.parse.html"))
