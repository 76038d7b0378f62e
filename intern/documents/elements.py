"""Blocks from the elements that a parser finds, named as HTML names them: `start`, `text` and `end`, in their order.

Each format's parser comes to these: Markdown and reStructuredText are written with the same elements in mind. Elements
that were left open end with the one around them; what only stray end tags close is ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urljoin

from msgspec import Struct

from intern.core.text.patterns import regex
from intern.documents.blocks import BlockKind
from intern.documents.unseen import is_unseen
from intern.documents.writer import DocumentWriter, Lines, flowing

REMARKS = frozenset(
    "note tip hint warning important caution danger attention error info success question failure bug example quote"
    " abstract summary seealso todo admonition callout alert aside versionadded versionchanged deprecated".split()
)
"""Names of admonitions, with all builders."""
TITLES = {
    "seealso": "See also",
    "versionadded": "Added in version",
    "versionchanged": "Changed in version",
    "deprecated": "Deprecated since version",
    **dict.fromkeys(("admonition", "callout", "alert", "aside"), "Note"),
}

DEEPEST = 600
"""Elements that may be open at once; browsers nest 512."""

VOID = frozenset(
    "area base br col embed hr img input link meta param source track wbr basefont bgsound frame keygen".split()
)
_LEFT_OUT = frozenset("script style template noscript svg iframe object canvas dialog nav head select textarea math".split())
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark nobr output q rp rt ruby s samp small"
    " span strike strong sub sup time tt u var".split()
)
_BLOCKS = frozenset(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure footer"
    " form h1 h2 h3 h4 h5 h6 header hgroup html iframe legend li main menu nav ol p pre search section summary table"
    " tbody td tfoot th thead tr ul".split()
)
_CODE = frozenset({"code", "kbd", "samp", "tt"})
_HEADINGS = {f"h{n}": n for n in range(1, 7)}
_NAMED = frozenset({"summary", "caption", "figcaption"})
_GENERAL = frozenset({"admonition", "callout", "alert", "aside"})
_UNFIT = regex(r"[\s<>\"()\\]")
_CELLS = frozenset({"td", "th"})
_LISTS = frozenset({"ul", "ol", "menu"})
# Where one of these begins, one of the same kind that is still open ends, up to the element that holds both.
_SIBLINGS = {
    "li": ({"li"}, _LISTS),
    **dict.fromkeys(("dt", "dd"), ({"dt", "dd"}, {"dl"})),
    "tr": ({"tr"}, {"table"}),
    **dict.fromkeys(("td", "th"), ({"td", "th"}, {"tr"})),
}
_TABS = frozenset({"tabitem", "tab", "tab-item"})
_PANELS = frozenset("tabpanel tab-content tab-pane tabbed-block sd-tab-content sphinx-tabs-panel".split())
_LANGUAGE = regex(r"(?:^|\s)(?:language|lang|highlight|brush|source)[-:_]([\w+#.-]{1,30})")
_ALERT = regex(r"\A\[!(\w{1,20})\][+-]?\s*")
_PERMALINKS = frozenset("¶#§🔗⚓︎\uf0c1")


class _Element(Struct):
    tag: str
    lines: Lines
    is_fixed: bool = False
    """Only its own parser ends it, no tag in the text."""
    leaves: int = 0
    """Parts of the writer that end with it."""
    at: int = 0
    """Of inline elements, where in the text it began."""
    attrs: Mapping[str, str] = {}
    marker: str = ""
    number: int = 1
    """Of a list, of its next item."""
    kind: BlockKind = "paragraph"
    """Of its paragraphs; of items and definitions, of the first one."""
    term: str = ""
    terms: list[str] = []
    columns: tuple[str, ...] = ()
    cells: list[str] = []
    is_header: bool = True
    language: str = ""


class Elements:
    """Turns elements into blocks. Lines are those of the source; where they are not given, the last ones hold."""

    def __init__(self, writer: DocumentWriter, base_url: str = "") -> None:
        self.writer = writer
        self.lines: Lines = (1, 1)
        self._base_url = base_url
        self._open: list[_Element] = []
        self._text: list[str] = []
        self._from: Lines | None = None
        self._bold = ""
        self._hidden: list[str] = []
        self._unseen: list[str] = []
        self.tabs: list[str] = []
        """Names of tabs that are still to come."""
        self._tab_of: dict[str, str] = {}

    def start(
        self, tag: str, attrs: Mapping[str, str] = {}, lines: Lines | None = None, *, is_fixed: bool = False, **given: str
    ) -> None:
        """Begin an element. `given` are fields of its own: `marker`, `language`, `term`, `kind`.

        Raises ValueError where too many are open.
        """
        self.lines = lines or self.lines
        if self._hidden:
            if tag == self._hidden[0] and tag not in VOID:
                self._hidden.append(tag)
            return
        if tag in _LEFT_OUT or (attrs and is_unseen(tag, attrs)):
            self._hidden = [] if tag in VOID else [tag]
            return
        if self._in_code():
            return
        if tag in VOID:
            self._void(tag, attrs)
            return
        if len(self._open) >= DEEPEST:
            raise ValueError("it is nested too deeply to be read")
        element = _Element(tag, self.lines, is_fixed=is_fixed, attrs=attrs, at=len(self._text))
        for name, value in given.items():
            setattr(element, name, value)
        if self._is_inline(element):
            self._open.append(element)
            return
        self.flush()
        siblings, around = _SIBLINGS.get(tag, ((), ()))
        self._close_siblings(siblings, around)
        self._begin(element)
        self._open.append(element)

    def text(self, text: str, lines: Lines | None = None) -> None:
        """Take text; blanks and line ends count only in `pre`. Use `start("br")` for a line end that shows."""
        if self._hidden:
            self._unseen.append(text)
            return
        if lines is not None:
            self.lines = lines
        if self._from is None and text.strip():
            self._from = self.lines
        self._text.append(text if self._in_code() else text.replace("\n", " "))

    def end(self, tag: str, lines: Lines | None = None, *, is_fixed: bool = False) -> None:
        """End an element, and those inside that are still open; nothing where none such is open."""
        self.lines = lines or self.lines
        if self._hidden:
            if tag == self._hidden[-1]:
                self._hidden.pop()
                if not self._hidden:
                    self.writer.leave_out(" ".join("".join(self._unseen).split()), "hidden")
                    self._unseen = []
            return
        for n in range(len(self._open) - 1, -1, -1):
            if self._open[n].tag == tag and self._open[n].is_fixed == is_fixed:
                while len(self._open) > n:
                    self._end(self._open[-1])
                return
            if self._open[n].is_fixed and not is_fixed:
                return

    def _in_code(self) -> bool:
        return self._nearest({"pre"}) is not None

    def close(self) -> None:
        """End all that is open."""
        self._hidden = []
        while self._open:
            self._end(self._open[-1])
        self.flush()
        for left in self.tabs:
            self.writer.leave_out(left, "a tab's name without its tab")

    def flush(self) -> None:
        """Write the text so far as a block of the kind that the open elements make it."""
        text, bold, lines = "".join(self._text), self._bold, (self._from or self.lines)[0]
        span = (lines, max(self.lines[1], lines))
        self._text, self._bold, self._from = [], "", None
        if not text.strip():
            return
        holder = next((each for each in reversed(self._open) if each.tag not in _INLINE and each.tag != "p"), None)
        if (cell := self._nearest(_CELLS)) is not None:
            cell.cells.append(flowing(text).replace("\n", " "))
        elif holder is None:
            self.writer.add("paragraph", text, span, bold=bold)
        elif holder.tag in {*_NAMED, "dt", *_HEADINGS} or self._names_a_tab(holder):
            holder.cells.append(flowing(text))
        else:
            self._write(holder, text, bold, span)

    def _write(self, holder: _Element, text: str, bold: str, lines: Lines) -> None:
        if holder.tag == "blockquote" and (alert := _ALERT.match(text.lstrip())):
            holder.kind, holder.term = "admonition", remark_title(alert[1])
            text = text.lstrip()[alert.end() :]
        if holder.kind == "paragraph":
            # The paragraphs of an admonition; those of its items and cells are what these are.
            inner = reversed(self._open[: self._open.index(holder) + 1])
            holder = next((each for each in inner if each.kind == "admonition" or each.tag in {"li", "dd"}), holder)
        if holder.kind == "admonition":
            self.writer.add("admonition", text, lines, term=holder.term)
            holder.term = ""
        elif holder.kind == "item":
            self.writer.add("item", text, lines, bold=bold, marker=holder.marker)
            holder.kind = "paragraph"
        elif holder.kind == "definition":
            kind: BlockKind = "question" if holder.term.endswith(("?", "？")) else "definition"
            self.writer.add(kind, text, (holder.lines[0], lines[1]), term=holder.term)
            holder.kind = "paragraph"
        else:
            self.writer.add("paragraph", text, lines, bold=bold)

    def code(self, text: str, language: str, lines: Lines, *, title: str = "") -> None:
        """Write a block of code."""
        if self._hidden:
            self._unseen.append(text)
            return
        self.flush()
        if (cell := self._nearest(_CELLS)) is not None:
            cell.cells.append(" ".join(code_span(line) for line in text.split("\n") if line.strip()))
            return
        self._introduce()
        self.writer.add("code", text, lines, language=language, term=title)

    def _introduce(self) -> None:
        """Write the item or the term of a definition that begins with something else than a paragraph."""
        holder = self._nearest({"dd"})
        if holder is not None and holder.kind == "definition":
            self.writer.add("definition", "", holder.lines, term=holder.term)
            holder.kind = "paragraph"

    def _begin(self, element: _Element) -> None:
        tag, attrs, writer = element.tag, element.attrs, self.writer
        if tag in _LISTS:
            writer.depth += 1
            element.number = int(start) if (start := attrs.get("start", "")).isdecimal() else 1
        elif tag == "li":
            around = self._nearest(_LISTS)
            if not element.marker:
                element.marker = f"{around.number}." if around is not None and around.tag == "ol" else "-"
            if around is not None:
                around.number += 1
            element.kind = "item"
        elif tag == "dd" and (around := self._nearest({"dl"})) is not None:
            around.term = ", ".join(around.terms) or around.term
            element.kind, element.term, around.terms = "definition", around.term, []
        elif tag in _TABS:
            names = (attrs.get(name, "").strip("{}\"'") for name in ("label", "title", "name", "value"))
            self._enter(element, label=next(filter(None, names), "") or (self.tabs.pop(0) if self.tabs else ""))
        elif _is_panel(attrs):
            label = self._tab_of.get(attrs.get("aria-labelledby", "")) or (self.tabs[0] if self.tabs else "")
            self.tabs = [name for name in self.tabs if name != label]
            self._enter(element, label=label)
        elif tag not in _BLOCKS and (title := attrs.get("title")):
            self.writer.add("paragraph", title, element.lines)
        elif tag not in {"p", "pre"} and (remark := _remark(tag, attrs)):
            element.kind, element.term = "admonition", element.term or remark

    def _enter(self, element: _Element, *, label: str = "", title: str = "") -> None:
        self.writer.enter(label=label, title=title, lines=element.lines)
        element.leaves += 1

    def _end(self, element: _Element) -> None:
        tag = element.tag
        if self._is_inline(element):
            self._open.remove(element)
            self._end_inline(element)
            return
        if tag == "pre":
            self._end_code(element)
            return
        self.flush()
        self._open.remove(element)
        text = "\n".join(element.cells)
        if tag in _HEADINGS:
            self.writer.head(_HEADINGS[tag], text, element.lines, element.attrs.get("id", ""))
        elif tag == "summary" and (details := self._nearest({"details"})) is not None:
            self._enter(details, title=text)
        elif tag in _NAMED:
            self.writer.add("paragraph", text, element.lines)
        elif self._names_a_tab(element):
            self.tabs.append(text)
            self._tab_of |= {element.attrs["id"]: text} if element.attrs.get("id") else {}
        elif tag in _LISTS:
            self.writer.depth -= 1
        elif tag == "dt" and (listing := self._nearest({"dl"})) is not None:
            listing.terms = [*listing.terms, text]
        elif tag == "dd" and element.kind == "definition":
            self.writer.add("definition", "", element.lines, term=element.term)
        elif tag == "dl" and element.terms:
            self.writer.add("definition", "", element.lines, term=", ".join(element.terms))
        elif tag in _CELLS and (row := self._nearest({"tr"})) is not None:
            row.cells = [*row.cells, " ".join(element.cells)]
            row.is_header = row.is_header and (tag == "th" or self._nearest({"thead"}) is not None)
        elif tag == "tr":
            self._end_row(element)
        for _ in range(element.leaves):
            self.writer.leave()

    def _end_row(self, row: _Element) -> None:
        table = self._nearest({"table"})
        if table is None or not any(row.cells):
            return
        if row.is_header and not table.columns:
            table.columns = tuple(row.cells)
        columns = table.columns if tuple(row.cells) != table.columns else ()
        self.writer.add("row", " | ".join(row.cells), (row.lines[0], self.lines[1]), columns=columns)

    def _end_code(self, element: _Element) -> None:
        text, lines = "".join(self._text), (element.lines[0], self.lines[1])
        self._text, self._bold, self._from = [], "", None
        self._open.remove(element)
        classes = [each.attrs.get("class", "") for each in (element, *reversed(self._open[-3:]))]
        found = next(filter(None, (_LANGUAGE.search(each) for each in (*classes, element.language))), None)
        self.code(text, element.language or (found[1] if found else ""), lines, title=element.term)

    def _end_inline(self, element: _Element) -> None:
        held = "".join(self._text[element.at :])
        if self._in_code():
            return
        changed = held
        if element.tag in _CODE and held.strip() and not any(each.tag in _CODE for each in self._open):
            changed = code_span(held)
        elif element.tag == "a":
            changed = self._linked(held, element.attrs.get("href", ""))
        elif element.tag in {"b", "strong"} and not any(self._text[n].strip() for n in range(element.at)):
            self._bold = held
        if changed != held:
            self._text[element.at :] = [changed]

    def _linked(self, label: str, href: str) -> str:
        """Return `[label](address)`, or the label alone if the address leads nowhere that can be shown."""
        if href.startswith("#") and _PERMALINKS.issuperset(label.strip()):
            return ""
        try:
            address = urljoin(self._base_url, href.strip()) if href else ""
        except ValueError:
            return label
        if not address.startswith(("http://", "https://")) or _UNFIT.search(address) or not label.strip():
            return label
        return label if label.strip() == address else f"[{flowing(label)}]({address})"

    def _void(self, tag: str, attrs: Mapping[str, str]) -> None:
        if tag == "br":
            self._text.append("\n")
        elif tag == "hr":
            self.flush()
        elif tag == "img":
            self.text(attrs.get("alt", ""))

    def _close_siblings(self, siblings: Collection[str], around: Collection[str]) -> None:
        for n in range(len(self._open) - 1, -1, -1):
            if self._open[n].tag in around or self._open[n].is_fixed:
                return
            if self._open[n].tag in siblings:
                while len(self._open) > n:
                    self._end(self._open[-1])
                return

    def _nearest(self, tags: Collection[str]) -> _Element | None:
        return next((each for each in reversed(self._open) if each.tag in tags), None)

    def _is_inline(self, element: _Element) -> bool:
        return element.tag in _INLINE and not self._names_a_tab(element)

    def _names_a_tab(self, element: _Element) -> bool:
        if element.attrs.get("role") == "tab":
            return True
        return element.tag == "label" and bool({"for", "class"} & element.attrs.keys())


def code_span(text: str) -> str:
    """Return a text as inline code; with two backticks where it holds one."""
    text = " ".join(text.split())
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def remark_title(name: str) -> str:
    """Return how an admonition is headed that has no title of its own."""
    return TITLES.get(name.lower(), name.capitalize())


def _remark(tag: str, attrs: Mapping[str, str]) -> str:
    """Return the title of the admonition that an element is by its name or its classes; empty if it is none."""
    if tag in REMARKS - {"aside", "quote"}:
        return attrs.get("title") or remark_title(attrs.get("type") or tag)
    classes = [part for each in attrs.get("class", "").lower().split() for part in (each, each.rpartition("-")[2])]
    if not {"admonition", "alert", "callout", "admonitionblock", "theme-admonition"} & {*classes}:
        return ""
    return next((remark_title(each) for each in classes if each in REMARKS - _GENERAL), "Note")


def _is_panel(attrs: Mapping[str, str]) -> bool:
    return attrs.get("role") == "tabpanel" or not _PANELS.isdisjoint(attrs.get("class", "").split())
