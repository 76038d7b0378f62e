"""Blocks from the elements that a parser finds, named as in HTML: calls of `start`, `add_text` and `end` in order.

Each format's parser produces these: the authors of Markdown and reStructuredText had the same elements in mind.
Elements that were left open end with the one around them; stray end tags are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from urllib.parse import urljoin

from msgspec import Struct

from intern.documents.admonitions import REMARK_TAGS, REMARK_TITLE, default_admonition_title, find_admonition_title
from intern.documents.blocks import BlockKind
from intern.documents.hidden_text import is_unseen
from intern.documents.writer import DocumentWriter, Lines, code_span, collapse_blanks

DEEPEST = 512  # browsers nest no deeper
VOID = frozenset(
    "area base br col embed hr img input link meta param source track wbr basefont bgsound frame keygen".split()
)
_LEFT_OUT = frozenset("script style template noscript svg iframe object canvas nav head select textarea math".split())
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big button cite code data del dfn em font i ins kbd label mark nobr output q rp rt ruby s"
    " samp small span strike strong sub sup time tt u var".split()
)
_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure"
    " footer form h1 h2 h3 h4 h5 h6 header hgroup html iframe legend li main menu nav ol p pre search section summary"
    " table tbody td tfoot th thead tr ul".split()
)
_CODE = frozenset({"code", "kbd", "samp", "tt"})
_BOLD = frozenset({"b", "strong"})
_HEADINGS = {f"h{n}": n for n in range(1, 7)}
_NAMED = frozenset({"summary", "caption", "figcaption"})
_LINE_NUMBERS = frozenset("linenos lineno linenodiv line-number gutter rouge-gutter hljs-ln-numbers blob-num".split())
_UNFIT = re.compile(r"[\s<>\"()\\]")
_CELLS = frozenset({"td", "th"})
_LISTS = frozenset({"ul", "ol", "menu"})
# A heading in one of these heads no text outside.
_SCOPES = frozenset({"li", "dd", "blockquote", "td", "th"})
# The beginning of one of these ends an open one of the same kind, up to the element that holds both.
_SIBLINGS: dict[str, tuple[Collection[str], Collection[str]]] = {
    "li": ({"li"}, _LISTS),
    **dict.fromkeys(("dt", "dd"), ({"dt", "dd"}, {"dl"})),
    "tr": ({"tr"}, {"table"}),
    **dict.fromkeys(("td", "th"), ({"td", "th"}, {"tr"})),
}
_TABS = frozenset({"tabitem", "tab", "tab-item"})
_FOLDS = frozenset({"details", "accordion", "expandable", "dropdown"})
_KNOWN = _BLOCKS | _TABS | _FOLDS | REMARK_TAGS | _LEFT_OUT | {"section"}
_GATHERING = frozenset({*_NAMED, *_HEADINGS, "dt"})
_PANELS = frozenset("tabpanel tab-content tab-pane tabbed-block sd-tab-content sphinx-tabs-panel".split())
_LANGUAGE = re.compile(r"(?:^|\s)(?:language|lang|highlight|brush|source)[-:_]([\w+#.-]{1,30})")
_NO_LANGUAGE = frozenset({"default", "none", "notranslate"})
_ALERT = re.compile(r"\A\s*\[!(\w{1,20})\][+-]?\s*")
_PERMALINKS = frozenset("¶#§🔗⚓︎\uf0c1")
_NONE: Mapping[str, str] = MappingProxyType({})


class _Element(Struct, eq=False):
    tag: str
    lines: Lines
    is_fixed: bool = False
    """Only its own parser ends it; tags in the text do not."""
    attrs: Mapping[str, str] = _NONE
    marker: str = ""
    is_inline: bool = False
    begins: bool = False
    """Whether the text before an inline element is blank."""
    at: int = 0
    """The position in the text where an inline element began."""
    leaves: int = 0
    """Parts of the writer that end with it."""
    number: int = 1
    """The number of a list's next item."""
    kind: BlockKind = "paragraph"
    """The kind of its next paragraph."""
    term: str = ""
    terms: list[str] = []
    columns: tuple[str, ...] = ()
    cells: list[str] = []
    is_header: bool = True
    is_layout: bool = False
    """Whether a row holds code and the numbers of its lines."""
    gathers: bool = False
    """Its text is a name: of the text below, of the element around it, or of a tab."""
    language: str = ""
    tabs: list[str] = []
    """Names of tabs around a tab that are still to come."""


class BlockBuilder:
    """Turns elements into blocks. Lines are those of the source; without lines, the last given ones count."""

    def __init__(self, writer: DocumentWriter, base_url: str = "") -> None:
        self.writer = writer
        self.lines: Lines = (1, 1)
        self.tabs: list[str] = []
        """Names of tabs that are still to come."""
        self._base_url = base_url
        self._open: list[_Element] = []
        self._text: list[str] = []
        self._first = 0
        """The line where the text begins; 0 as long as it is blank."""
        self._last = 0
        self._bold = ""
        self._code: _Element | None = None
        self._hidden: _Element | None = None
        self._unseen: list[str] = []

    def start(
        self,
        tag: str,
        attrs: Mapping[str, str] = _NONE,
        lines: Lines | None = None,
        *,
        is_fixed: bool = False,
        marker: str = "",
    ) -> None:
        """Begin an element; `marker` is that of an item as written.

        Raises ValueError where elements are nested too deeply.
        """
        self.lines = lines or self.lines
        if tag in VOID:
            self._take_void(tag, attrs)
            return
        if len(self._open) >= DEEPEST:
            raise ValueError(f"its elements are nested more than {DEEPEST} deep")
        element = _Element(tag, self.lines, is_fixed, attrs, marker)
        element.is_inline = self._is_inline(tag) and not (attrs and _names_a_tab(tag, attrs))
        if not element.is_inline and self._code is None:
            self._close_before(tag)
        if self._hidden is None:
            self._open_visible(element)
        self._open.append(element)

    def _open_visible(self, element: _Element) -> None:
        if element.attrs and not _LINE_NUMBERS.isdisjoint(element.attrs.get("class", "").split()):
            if (row := self._nearest({"tr"})) is not None:
                row.is_layout = True
            self._hidden = element
        elif element.tag in _LEFT_OUT or (
            (element.attrs or element.tag == "dialog") and is_unseen(element.tag, element.attrs)
        ):
            if not element.is_inline and self._code is None:
                self.flush()
            self._hidden = element
        elif element.is_inline:
            element.at, element.begins = len(self._text), not self._first
            if self._code is not None and element.tag == "code":
                self._code.language = _find_language(element.attrs) or self._code.language
        elif self._code is None:
            self.flush()
            self._begin_block(element)
        elif self._text and not self._text[-1].endswith("\n"):
            self._text.append("\n")  # each line of the code is an element

    def add_text(self, text: str, lines: Lines | None = None) -> None:
        """Take text; blanks and line ends count only in `pre`. Use `start("br")` for a line end that shows."""
        if self._hidden is not None:
            self._unseen.append(text)
            return
        self.lines = lines or self.lines
        if text.strip():
            self._first, self._last = self._first or self.lines[0], self.lines[1]
        self._text.append(text if self._code is not None else text.replace("\n", " "))

    def end(self, tag: str, lines: Lines | None = None, *, is_fixed: bool = False) -> None:
        """End an element, and those inside that are still open; do nothing if none such is open."""
        self.lines = lines or self.lines
        self._end_nearest({tag}, is_fixed=is_fixed)

    def close(self) -> None:
        """End all open elements."""
        self._end_from(0)
        self.flush()
        self._drop_tabs()

    def flush(self) -> None:
        """Write the text so far as a block; the open elements determine its kind."""
        if self._hidden is not None or not self._first:
            self._text = self._text if self._hidden is not None else []
            return
        text, bold, first = "".join(self._text), self._bold, self._first
        lines = first, max(self._last, first)
        self._text, self._bold, self._first = [], "", 0
        holder = next(
            (each for each in reversed(self._open) if each.gathers or not (each.is_inline or each.tag == "p")), None
        )
        if (cell := self._nearest_cell()) is not None:
            _gather(cell, collapse_blanks(text).replace("\n", " "), lines)
        elif holder is not None and holder.gathers:
            _gather(holder, collapse_blanks(text), lines)
        else:
            self._write_text(holder, text, bold, lines)

    def add_code(self, text: str, language: str, lines: Lines, *, title: str = "") -> None:
        """Write a block of code."""
        if self._hidden is not None:
            self._unseen.append(text)
            return
        self.flush()
        if (cell := self._nearest_cell()) is not None:
            _gather(cell, " ".join(code_span(line) for line in text.split("\n") if line.strip()), lines)
            return
        self._write_pending_titles()
        item = self._nearest({"li", "dd"})
        marker = ""
        if item is not None and item.kind == "item" and text.strip():
            item.kind, marker = "paragraph", item.marker
        self.writer.add_block("code", text, lines, language=language, term=title, marker=marker)

    def _write_text(self, holder: _Element | None, text: str, bold: str, lines: Lines) -> None:
        if holder is not None and holder.tag == "blockquote" and (alert := _ALERT.match(text)):
            holder.kind, holder.term = "admonition", default_admonition_title(alert[1])
            text = text[alert.end() :]
            if not text.strip():
                return
        if holder is not None and holder.kind == "paragraph":
            # The paragraphs of an admonition; its items and definitions keep their own kinds.
            around = (each for each in reversed(self._open) if each.kind == "admonition" or each.tag in {"li", "dd"})
            holder = next(around, None)
        if holder is None:
            self.writer.add_block("paragraph", text, lines, bold=bold)
            return
        self._write_pending_titles(until=holder)
        kind, term, holder.term = holder.kind, holder.term, ""
        if kind != "admonition":
            holder.kind = "paragraph"
        if term:  # it is above the text
            lines = min(holder.lines[0], lines[0]), lines[1]
        if kind == "definition" and term.endswith(("?", "？")):
            kind = "question"
        self.writer.add_block(kind, text, lines, bold=bold, term=term, marker=holder.marker if kind == "item" else "")

    def _write_pending_titles(self, until: _Element | None = None, also: _Element | None = None) -> None:
        """Write titles of admonitions and terms of definitions that do not begin with a paragraph."""
        for each in self._open if also is None else [*self._open, also]:
            if each is until:
                return
            if each.term and each.kind in {"admonition", "definition"}:
                self.writer.add_block(each.kind, "", (each.lines[0], each.lines[0]), term=each.term)
                each.term, each.kind = "", "admonition" if each.kind == "admonition" else "paragraph"

    def _begin_block(self, element: _Element) -> None:
        tag, attrs = element.tag, element.attrs
        if tag in _SCOPES:
            self._enter(element)
        if attrs and attrs.get("role") in {"tab", "tablist", "tabpanel"}:
            self._begin_by_attributes(element)
        elif tag in _LISTS:
            self._write_pending_titles()
            self._enter(element)
            self.writer.depth += 1
            element.number = int(start) if (start := attrs.get("start", "")).isdecimal() else 1
        elif tag == "li":
            self._begin_item(element)
        elif tag == "dd":
            self._begin_definition(element)
        elif tag in _GATHERING:
            element.gathers = True
        elif tag == "pre":
            self._code = element
            around = " ".join(each.attrs.get("class", "") for each in reversed(self._open[-2:]))
            element.language = _find_language(attrs) or _find_language({"class": around})
        elif attrs or tag in _TABS or tag in REMARK_TAGS:
            self._begin_by_attributes(element)

    def _begin_item(self, element: _Element) -> None:
        element.kind = "item"
        if (around := self._nearest(_LISTS)) is not None:
            element.marker = element.marker or (f"{around.number}." if around.tag == "ol" else "-")
            around.number += 1

    def _begin_definition(self, element: _Element) -> None:
        if (around := self._nearest({"dl"})) is None:
            return
        if around.terms:
            element.lines, around.term = around.lines, ", ".join(around.terms)
        element.kind, element.term, around.terms = "definition", around.term, []

    def _begin_by_attributes(self, element: _Element) -> None:
        tag, attrs = element.tag, element.attrs
        classes = attrs.get("class", "")
        if tag in _TABS:
            names = (attrs.get(name, "").strip("{}\"'") for name in ("label", "title", "name", "value"))
            self._enter_tab(element, next(filter(None, names), ""))
        elif tag in _FOLDS and "title" in attrs:
            self._enter(element, title=attrs["title"])
        elif attrs.get("role") == "tablist":
            self._drop_tabs()
        elif _names_a_tab(tag, attrs):
            element.gathers = True
        elif attrs.get("role") == "tabpanel" or not _PANELS.isdisjoint(classes.split()):
            self._enter_tab(element, "")
        elif REMARK_TITLE.search(classes):
            element.gathers = any(each.kind == "admonition" for each in self._open)
        elif tag != "p" and (remark := find_admonition_title(tag, classes, attrs)):
            self._enter(element)
            element.kind, element.term = "admonition", remark
        elif tag not in _BLOCKS and (title := attrs.get("title")):
            self.add_text(title, element.lines)
            self.flush()

    def _enter(self, element: _Element, *, label: str = "", title: str = "", lines: Lines | None = None) -> None:
        if title:
            self._write_pending_titles()
        self.writer.enter(label=label, title=title, lines=lines or element.lines)
        element.leaves += 1

    def _enter_tab(self, element: _Element, label: str) -> None:
        label = label or (self.tabs[0] if self.tabs else "")
        self._write_pending_titles()
        self._enter(element, label=label)
        element.tabs, self.tabs = [name for name in self.tabs if name != label], []

    def _end_nearest(self, tags: Collection[str], within: Collection[str] = (), *, is_fixed: bool = False) -> None:
        """End the innermost element of these, if it is within one of the others."""
        for n in reversed(range(len(self._open))):
            element = self._open[n]
            if element.tag in tags and element.is_fixed == is_fixed:
                self._end_from(n)
                return
            if element.tag in within or (element.is_fixed and not is_fixed):
                return

    def _end_from(self, n: int) -> None:
        while len(self._open) > n:
            self._end_last(self._open[-1])

    def _end_last(self, element: _Element) -> None:
        """End the last element that is open."""
        if self._hidden is None and not element.is_inline and self._code is None:
            self.flush()
        self._open.pop()
        if element is self._hidden:
            self._hidden = None
            self.writer.leave_out(" ".join("".join(self._unseen).split()), "hidden")
            self._unseen = []
        elif self._hidden is not None:
            return
        elif element is self._code:
            text, lines = "".join(self._text), (element.lines[0], self.lines[1])
            self._text, self._bold, self._first, self._code = [], "", 0, None
            self.add_code(text, element.language, lines)
        elif self._code is not None:
            return
        elif element.is_inline:
            self._end_inline(element)
        else:
            self._end_block(element)

    def _end_block(self, element: _Element) -> None:
        tag = element.tag
        if element.gathers:
            self._end_gathering(element, "\n".join(element.cells))
        elif tag == "dl" and element.terms:
            self.writer.add_block("definition", "", element.lines, term=", ".join(element.terms))
        elif tag in _CELLS and (row := self._nearest({"tr"})) is not None:
            row.lines = _join_spans(row.lines, element.lines) if row.cells else element.lines
            row.cells.append(" ".join(element.cells))
            row.is_header = row.is_header and (tag == "th" or self._nearest({"thead"}) is not None)
        elif tag == "tr":
            self._end_row(element)
        elif element.term and (element.kind == "definition" or element.attrs.get("title")):
            self._write_pending_titles(also=element)
        if element.tabs:
            self._drop_tabs()
            self.tabs = element.tabs
        for _ in range(element.leaves):
            self.writer.leave()

    def _end_gathering(self, element: _Element, text: str) -> None:
        tag = element.tag
        if tag in _HEADINGS:
            self._write_pending_titles()
            self.writer.add_heading(_HEADINGS[tag], text, element.lines, element.attrs.get("id", ""))
        elif tag == "summary" and (details := self._nearest({"details"})) is not None:
            self._enter(details, title=text, lines=element.lines)
        elif tag in _NAMED:
            self.add_text(text, element.lines)
            self.flush()
        elif tag == "dt":
            if (listing := self._nearest({"dl"})) is not None:
                listing.lines = listing.lines if listing.terms else element.lines
                listing.terms.append(text)
        elif _names_a_tab(tag, element.attrs):
            self.tabs.append(text)
        elif text:
            remark = next(each for each in reversed(self._open) if each.kind == "admonition")
            remark.term = text

    def _end_row(self, row: _Element) -> None:
        table = self._nearest({"table"})
        if table is None or not any(row.cells):
            return
        self._write_pending_titles()
        if row.is_header and not table.columns:
            table.columns = tuple(row.cells)
        columns = table.columns if tuple(row.cells) != table.columns else ()
        self.writer.add_block("row", " | ".join(row.cells), row.lines, columns=columns)

    def _end_inline(self, element: _Element) -> None:
        tag = element.tag
        if tag not in _CODE and tag not in _BOLD and tag != "a":
            return
        held = "".join(self._text[element.at :])
        changed = held
        if tag in _CODE and held.strip() and not any(each.tag in _CODE for each in self._open):
            changed = code_span(held)
        elif tag == "a":
            changed = self._format_link(held, element.attrs.get("href", ""))
        elif tag in _BOLD and element.begins:
            self._bold = held
        if changed != held:
            self._text[element.at :] = [changed]

    def _format_link(self, label: str, href: str) -> str:
        """Return `[label](address)`, or the label alone if the address cannot be shown."""
        if href.startswith("#") and _PERMALINKS.issuperset(label.strip()):
            return ""
        try:
            address = urljoin(self._base_url, href.strip()) if href else ""
        except ValueError:
            return label
        if not address.startswith(("http://", "https://")) or _UNFIT.search(address) or not label.strip():
            return label
        return label if label.strip() == address else f"[{collapse_blanks(label)}]({address})"

    def _take_void(self, tag: str, attrs: Mapping[str, str]) -> None:
        if self._hidden is not None:
            return
        if tag == "br":
            self._text.append("\n")
        elif tag == "hr":
            self.flush()
        elif tag == "img" and not (attrs and is_unseen(tag, attrs)):
            self.add_text(attrs.get("alt", ""))

    def _close_before(self, tag: str) -> None:
        """End the elements that a block's beginning ends: inline elements, a paragraph, and one of its kind."""
        while self._open and not (last := self._open[-1]).is_fixed and (last.is_inline or last.tag == "p"):
            self._end_last(last)
        self._end_nearest(*_SIBLINGS.get(tag, ((), ())))

    def _drop_tabs(self) -> None:
        for name in self.tabs:
            self.writer.leave_out(name, "a tab's name without its tab")
        self.tabs = []

    def _is_inline(self, tag: str) -> bool:
        """Return whether an element is a part of a line; an unknown one is, within a paragraph."""
        if tag in _INLINE or tag in _KNOWN:
            return tag in _INLINE
        return bool(self._first or (self._open and (self._open[-1].is_inline or self._open[-1].tag == "p")))

    def _nearest_cell(self) -> _Element | None:
        cell = self._nearest(_CELLS)
        row = self._nearest({"tr"}) if cell is not None else None
        return None if row is not None and row.is_layout else cell

    def _nearest(self, tags: Collection[str]) -> _Element | None:
        return next((each for each in reversed(self._open) if each.tag in tags), None)


def _names_a_tab(tag: str, attrs: Mapping[str, str]) -> bool:
    return attrs.get("role") == "tab" or (tag == "label" and "tab" in attrs.get("for", "") + attrs.get("class", ""))


def _gather(holder: _Element, text: str, lines: Lines) -> None:
    holder.lines = _join_spans(holder.lines, lines) if holder.cells else lines
    holder.cells.append(text)


def _join_spans(lines: Lines, others: Lines) -> Lines:
    return min(lines[0], others[0]), max(lines[1], others[1])


def _find_language(attrs: Mapping[str, str]) -> str:
    if named := attrs.get("data-lang") or attrs.get("data-language") or attrs.get("lang"):
        return named
    found = _LANGUAGE.search(attrs.get("class", ""))
    return found[1] if found and found[1] not in _NO_LANGUAGE else ""
