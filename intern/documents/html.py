"""HTML as blocks: the main content of a page, with its headings, code, lists, tables, tabs and links preserved.

Hidden text, scripts, styles, navigation and comments are left out. A page that is long enough to keep a parser busy
(one tag with 100,000 attributes takes it four minutes) is read in a process of its own, which runs this module;
extreme pages are refused before. The parser is loaded with the first page.

The time that HTML parsers take grows with the square of the depth: `<ul><li>` over 256 kB keeps one busy for 45
seconds. So the depth is guessed first, by the tags alone, and never too low.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import structs

from intern.documents.block_builder import BlockBuilder
from intern.documents.blocks import Document, OmittedText
from intern.documents.sandboxed import ask_sandboxed, serve_sandboxed
from intern.documents.tag_reader import TagReader
from intern.documents.writer import DocumentWriter, clean_characters

_TAG = re.compile(r"<(/?)([a-z][a-z0-9]*)(?:[^<>]{0,10000}(/)>)?|<!--.*?(?:-->|\Z)", re.IGNORECASE | re.DOTALL)
# Elements that end by themselves where the next one begins, or that hold none.
_FLAT = frozenset(
    "area base body br col colgroup dd dt embed head hr html img input li link meta optgroup option p param rp rt"
    " source tbody td tfoot th thead tr track wbr".split()
)
# Elements whose end tag also ends all elements open in them; elements that may be open there; those reopened after.
_CLOSING = frozenset(
    "address article aside blockquote center details dialog dir div dl fieldset figcaption figure footer header hgroup"
    " main menu nav ol pre section summary ul".split()
)
_PASSING = frozenset("abbr cite h1 h2 h3 h4 h5 h6 kbd label mark samp span sub sup var".split())
_REOPENED = frozenset("a b big code em font i nobr s small strike strong tt u".split())
# Elements of a drawing: among these, and nowhere else, a tag that ends with a slash is no opening one.
_DRAWN = frozenset(
    "svg g path line polyline polygon circle ellipse rect text tspan use defs lineargradient radialgradient stop"
    " clippath".split()
)
_TRANSPARENT = _CLOSING | _PASSING | _REOPENED


def is_deeper(markup: str, limit: int) -> bool:
    """Return whether elements may be nested more than `limit` deep. Look no further than that."""
    opened: list[str] = []
    is_drawing = False
    for found in _TAG.finditer(markup):
        name = found[2].lower() if found[2] else ""
        is_drawing = name in _DRAWN and (is_drawing or name == "svg") and not (found[1] and name == "svg")
        if not name or name in _FLAT or (is_drawing and found[3]):
            continue
        if not found[1]:
            opened.append(name)
            if len(opened) > limit:
                return True
        elif (at := _find_opening(name, opened)) >= 0:
            opened[at:] = [each for each in opened[at + 1 :] if each in _REOPENED]
    return False


def _find_opening(name: str, opened: list[str]) -> int:
    """Return which open element an end tag closes, with its content; -1 where parsers ignore it."""
    for n in reversed(range(len(opened))):
        if opened[n] == name:
            return n
        if name not in _CLOSING or opened[n] not in _TRANSPARENT:
            break
    return -1


if TYPE_CHECKING:
    from resiliparse.parse.html import ElementNode, HTMLTree

# Characters that keep a parser busy for 70 ms at the very worst, in which no other Python thread runs.
_HARMLESS = 8000
# Browsers nest no deeper than 512; beyond a thousand, parsing takes seconds and minutes.
_DEEPEST = 512
# The longest pages of Rust's documentation have 90,000.
_MOST_TAGS = 150_000
# A page with less text than this, and with scripts, waits for a script to fill it.
_LEAST_READABLE = 200
_LONGEST_TITLE = 120  # characters; the list of sources below an answer shows it
_DECLARED_WITHIN = 1024  # bytes, in which a page must have named its encoding

_MAIN = "main, [role=main], article"
_LEADING_TAGS = ("nav", "footer", "button")
_LEADING_PARTS = frozenset("div ul ol p header aside table section span".split())
_SHOWN_ROLES = frozenset({"tab", "tablist", "tabpanel", "main"})
_LEADING_ROLES = ("navigation", "banner", "contentinfo", "search", "menu", "toolbar")
_LEADS = (
    "nav menu sidebar toc contents crumb footer header pager pagination related skip edit share social cookie search"
    " theme toolbar feedback prev next"
).split()
# Only elements that may be navigation: examining each node costs as much as finding all.
_NAVIGATION = ", ".join(
    [*_LEADING_TAGS, *(f"[role={role}]" for role in _LEADING_ROLES), *(f"[class*={word} i]" for word in _LEADS)]
)
_TAG_HTML = re.compile(r"</?[a-z]", re.IGNORECASE)
_META_CHARSET = re.compile(rb"<meta[^>]{0,500}?charset\s*=\s*[\"']?\s*([a-zA-Z0-9_:.-]{1,40})", re.IGNORECASE)


class HtmlPage(NamedTuple):
    """A page, read."""

    document: Document
    needs_scripts: bool
    """It has almost no text before its scripts have run."""


def decode_page(data: bytes, charset: str | None = None) -> str:
    """Decode bytes from the web: by byte order mark, `charset`, what HTML declares, else UTF-8 or Windows-1252."""
    from resiliparse.parse.encoding import bytes_to_str, map_encoding_to_html5  # noqa: PLC0415  # pyright: ignore[reportMissingModuleSource]

    found = _META_CHARSET.search(data[:_DECLARED_WITHIN])
    names = ("utf-8" if data.startswith(b"\xef\xbb\xbf") else None, charset, found[1].decode() if found else None)
    known = (map_encoding_to_html5(name, fallback_utf8=False) for name in names if name)
    encoding = next(filter(None, known), "utf-8")
    return bytes_to_str(data, encoding, errors="replace", fallback_encodings=("utf-8", "cp1252"))


def read_html(markup: str, base_url: str = "") -> HtmlPage:
    """Return title and main content, with links relative to `base_url`. Blocks.

    Raises ValueError for pages that would take too long to parse.
    """
    _refuse_extreme_pages(markup)
    if len(markup) <= _HARMLESS:
        return _read_markup(markup, base_url)
    # The depth of a page is only a guess, which an attacker can make too low.
    page: HtmlPage = ask_sandboxed(
        __name__, HtmlPage, msgspec.json.encode((clean_characters(markup), clean_characters(base_url)))
    )
    return page


def _read_encoded(data: bytes) -> bytes:
    return msgspec.json.encode(_read_markup(*msgspec.json.decode(data, type=tuple[str, str])))


def _read_markup(markup: str, base_url: str) -> HtmlPage:
    from resiliparse.parse.html import HTMLTree  # noqa: PLC0415

    tree = HTMLTree.parse(markup)
    body, title = tree.body, _page_title(tree)
    if body is None:
        return HtmlPage(Document(title=title, blocks=()), needs_scripts=False)
    whole = body.html
    left_out = tuple(_drop_navigation(body))
    document = _parse_markup(_find_main_content(body).html, title, base_url)
    document = structs.replace(document, left_out=(*document.left_out, *left_out))
    size = _count_characters(document)
    needs_scripts = size < _LEAST_READABLE and _find_first(tree, "script") is not None
    if size < _LEAST_READABLE:
        # The main content may be in another place than it should be, and a page without any has only this.
        entire = _parse_markup(whole, title, base_url)
        needs_scripts = needs_scripts and _count_characters(entire) < _LEAST_READABLE
        document = max(document, entire, key=_count_characters)
    if needs_scripts:
        told = "".join(
            f"<p>{html.escape(each)}</p>" for each in (_read_description(tree), *_noscript_texts(body)) if each
        )
        document = structs.replace(document, blocks=(*_parse_markup(told, "", "").blocks, *document.blocks))
    return HtmlPage(document, needs_scripts)


def _parse_markup(markup: str, title: str, base_url: str) -> Document:
    writer = DocumentWriter()
    writer.title = title
    elements = BlockBuilder(writer, base_url)
    TagReader(elements).read(markup, 1)
    elements.close()
    return writer.build_document()


def _drop_navigation(body: ElementNode) -> Iterator[OmittedText]:
    """Remove navigation: by its element or role; by its class, if half of its text are links."""
    for node in body.query_selector_all(_NAVIGATION):
        role = node.getattr("role") or ""
        if node.parent is None or role in _SHOWN_ROLES:
            continue
        # The text last of all: reading it costs as much as all nodes in it.
        leads = node.tag in _LEADING_TAGS or role in _LEADING_ROLES
        if leads or (node.tag in _LEADING_PARTS and _is_of_links(node)):
            yield OmittedText(" ".join((node.text or "").split()), "navigation")
            node.parent.remove_child(node)


def _is_of_links(node: ElementNode) -> bool:
    linked = sum(len(" ".join((each.text or "").split())) for each in node.query_selector_all("a"))
    return 2 * linked >= len(" ".join((node.text or "").split()))


def _count_characters(document: Document) -> int:
    return sum(len(block.text) for block in document.blocks)


def _find_main_content(body: ElementNode) -> ElementNode:
    """Return the one element that is marked as the main one; the whole body if several are."""
    marked = body.query_selector_all(_MAIN)
    outer = [node for node in marked if not any(other != node and other.contains(node) for other in marked[:8])]
    return outer[0] if len(outer) == 1 else body


def _refuse_extreme_pages(markup: str) -> None:
    """Raise ValueError for more elements, or deeper ones, than real pages have; guessed from their tags."""
    if is_deeper(markup, _DEEPEST):
        raise ValueError(f"its elements are nested more than {_DEEPEST} deep")
    if any(count > _MOST_TAGS for count, _ in enumerate(_TAG_HTML.finditer(markup), 1)):
        raise ValueError(f"it holds more than {_MOST_TAGS} tags")


def _find_first(tree: HTMLTree, selector: str) -> ElementNode | None:
    return tree.document.query_selector(selector) if tree.document else None


def _page_title(tree: HTMLTree) -> str:
    heading = _find_first(tree, "h1")
    name = (tree.title or "").strip() or (heading.text if heading else None) or ""
    return " ".join(name.split())[:_LONGEST_TITLE]


def _read_description(tree: HTMLTree) -> str:
    """Return the description of a page for search engines."""
    meta = _find_first(tree, "meta[name=description]")
    return " ".join((meta.getattr("content", "") or "").split()) if meta else ""


def _noscript_texts(body: ElementNode) -> list[str]:
    said = (" ".join((node.text or "").split()) for node in body.query_selector_all("noscript"))
    return list(dict.fromkeys(said))


if __name__ == "__main__":
    serve_sandboxed(_read_encoded, load=lambda: import_module("resiliparse.parse.html"))
