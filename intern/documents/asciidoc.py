"""AsciiDoc as blocks, line by line, with what it includes from its folder.

No parser for Python is fit: one took 60 seconds for 50 kB. This one looks at each line a few times, so its time grows
with the length of the text.
"""

from __future__ import annotations

import csv
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from textwrap import dedent

from intern.core.text.patterns import regex
from intern.documents.admonitions import remark_title
from intern.documents.asciidoc_lines import Attributes, Line, LineReader, ListItem, Read, item_of
from intern.documents.asciidoc_tables import Row, Table, read_table
from intern.documents.asciidoc_text import attributes_of, inline_text, split_inline
from intern.documents.blocks import Document
from intern.documents.elements import Elements
from intern.documents.writer import DocumentWriter, Lines

_DEEPEST = 60

_ENTRY = regex(r":(!?)(\w[\w-]*)(!?):(?:\s+(.*))?")
_ATTRIBUTES = regex(r"\[(?:\[([^\[\],]*)(?:,[^\[\]]*)?\]|((?:[\w:,.#\"'%{*][^\n]*)?))\]\s*")
_TITLE = regex(r"\.((?![.\s]).+)")
_HEADING = regex(r"(={1,6}|#{1,6})\s+(\S.*?)(?:\s+\1)?\s*")
_UNDERLINE = regex(r"([=\-~^+])\1{2,}\s*")
_UNDERLINES = "=-~^+"
_HEADING_ANCHOR = regex(r"\[\[([\w:.-]+)(?:,[^\[\]]*)?\]\]")
_DELIMITER = regex(
    r"(-{4,}|\.{4,}|={4,}|\*{4,}|_{4,}|\+{4,}|/{4,}|--|[|,:!]={3,}|`{3,}(?=[\w+#.-]*\s*\Z))([\w+#.-]*)\s*"
)
_MACRO = regex(r"(image|video|audio|toc|[a-z][a-z0-9_-]{1,30})::(\S*?)\[(.*)\]\s*")
_RULE = regex(r"(?:'{3,}|<{3,}|- ?- ?-|\* ?\* ?\*)\s*")
_REMARK = regex(r"(NOTE|TIP|IMPORTANT|WARNING|CAUTION):\s+")
_CALLOUTS = regex(r"(?m)[ \t]{0,9}(?:(?://|#|--|;;)[ \t]?)?(?:(?:<!--|<)(?:\d{1,3}|\.)(?:-->|>)[ \t]{0,9}){1,9}$")
_REMARKS = frozenset({"NOTE", "TIP", "IMPORTANT", "WARNING", "CAUTION"})
_RAW = frozenset({"source", "listing", "literal"})
_QUOTES = frozenset({"quote", "verse"})
_FORMULAS = frozenset({"stem", "latexmath", "asciimath"})
_NAMED_TITLE = regex(r"(?m)^\[(?:\[|#)([\w:.-]+)[^\]\n]*\]\]?[ \t]*\n(?:\[[^\n]*\]\n)?(?:\.|={1,6} )(\S.*)$")


def parse_asciidoc(text: str, read: Read | None = None, path: str = "") -> Document:
    """Return a text as blocks. `read` gives the files of its folder, where it stands at `path`.

    Raises ValueError where it is nested too deeply, or grows too much by what it repeats.
    """
    writer, attributes = DocumentWriter(), Attributes()
    lines = [Line(n, line) for n, line in enumerate(text.split("\n"), 1)]
    titles = {found[1]: found[2] for found in _NAMED_TITLE.finditer(text)}
    parser = _Parser(LineReader(lines, attributes, writer, read, path), Elements(writer), attributes, titles)
    try:
        parser.parse()
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None
    return writer.document()


class _Parser:
    def __init__(self, reader: LineReader, elements: Elements, attributes: Attributes, titles: dict[str, str]) -> None:
        self._reader = reader
        self._elements = elements
        self._attributes = attributes
        self._titles = titles
        self._given: dict[str, str] = {}
        """The attributes and the title of the next block."""
        self._ends: list[str] = []
        self._gap = 0
        """Empty lines right above, in a list."""
        self._lists = 0
        self._terms_from = 0
        """The line of the first of several terms."""
        self._depth = 0
        self._has_begun = False

    def parse(self) -> None:
        """Read all lines."""
        while self._reader.peek() is not None:
            if not self._blocks():
                self._reader.pop()  # ends a block that is not open
        self._elements.close()

    def _blocks(self) -> bool:
        """Read blocks up to the end of one around them; return whether there was any line."""
        has_any = False
        while (line := self._reader.peek()) is not None and line.text.rstrip() not in self._ends:
            has_any = True
            self._block(line)
        return has_any

    def _within(self, end: str) -> None:
        """Read what a block holds, and its end."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("it is nested too deeply to be read")
        self._ends.append(end)
        lists, self._lists = self._lists, 0
        self._blocks()
        self._given = {}
        self._lists = lists
        self._ends.pop()
        self._depth -= 1
        if (line := self._reader.peek()) is not None and line.text.rstrip() == end:
            self._elements.lines = (line.number, line.number)
            self._reader.pop()

    def _block(self, line: Line) -> bool:
        """Read one block; return whether it was one, and no comment or attribute."""
        text, reader = line.text, self._reader
        self._elements.lines = (line.number, line.number)
        if not text.strip():
            reader.pop()
        elif text.startswith("//") and not text.startswith("///"):
            self._leave_out(reader.pop().text[2:], "a comment")
        elif entry := _ENTRY.fullmatch(text):
            self._set(entry[2].lower(), entry[4] or "", is_off=bool(entry[1] or entry[3]))
        elif found := _ATTRIBUTES.fullmatch(text):
            reader.pop()
            held = self._attributes.expand(found[2] or "")
            given = {"id": found[1]} if found[1] else attributes_of(held)
            self._given |= {name: value for name, value in given.items() if value}
            self._given.setdefault("begin", str(line.number))
            self._leave_out(text.strip()[1:-1], "the attributes of a block")
        elif (found := _TITLE.fullmatch(text)) and not _DELIMITER.fullmatch(text):
            reader.pop()
            self._given["title"] = self._attributes.expand(found[1])
            self._given.setdefault("begin", str(line.number))
        else:
            given, self._given = self._given, {}
            self._body(line, given)
            return True
        return False

    def _body(self, line: Line, given: dict[str, str]) -> None:
        text, reader = line.text, self._reader
        if self._heading(line, given):
            pass
        elif delimiter := _DELIMITER.fullmatch(text):
            self._read_delimited(delimiter[1], delimiter[2], given)
        elif _RULE.fullmatch(text):
            reader.pop()
            self._elements.flush()
        elif item := item_of(text):
            self._list(item, (), given)
        elif found := _MACRO.fullmatch(text):
            reader.pop()
            attributes = attributes_of(self._attributes.expand(found[3]))
            alt = attributes.get("alt") or attributes.get("1", "") if found[1] == "image" else ""
            for each in filter(None, (alt, given.get("title", ""))):
                self._prose("p", each, (line.number, line.number))
            self._leave_out(text, "a macro")
        elif text[0].isspace():
            self._code(self._text_lines(), given, language="")
        else:
            self._paragraph(given)

    def _leave_out(self, text: str, reason: str) -> None:
        self._elements.writer.leave_out(text, reason)

    def _set(self, name: str, value: str, *, is_off: bool) -> None:
        """Take an attribute, which may go on in the next lines."""
        self._reader.pop()
        while value.endswith(" \\") and (line := self._reader.peek()) is not None:
            value = f"{value[:-2].removesuffix(' +')} {self._reader.pop().text.strip()}"
            self._elements.lines = (line.number, line.number)
        if is_off:
            self._attributes.pop(name, None)
        else:
            self._attributes[name] = self._attributes.expand(value)
        self._leave_out(f"{name}: {value}", "an attribute")

    def _heading(self, line: Line, given: dict[str, str]) -> bool:
        reader, below = self._reader, self._reader.peek(1)
        if found := _HEADING.fullmatch(line.text):
            level, title = len(found[1]), found[2]
        elif below is not None and not self._ends and _is_underlined(line.text, below.text):
            level, title = _UNDERLINES.index(below.text[0]) + 1, line.text
            reader.pop()
        else:
            return False
        reader.pop()
        offset = self._attributes.get("leveloffset", "")
        level += line.shift + (int(offset) if offset.lstrip("+-").isdecimal() else 0)
        if anchor := _HEADING_ANCHOR.search(title):
            given["id"], title = anchor[1], _HEADING_ANCHOR.sub("", title)
        attrs = {"id": given["id"]} if given.get("id") else {}
        title = self._attributes.expand(title)
        if not self._has_begun and level == 1:
            self._attributes["doctitle"] = title
        self._prose(f"h{min(max(level, 1), 6)}", title, (line.number, line.number), attrs)
        if not self._has_begun and level == 1:
            self._header()
        self._has_begun = True
        return True

    def _header(self) -> None:
        """Read what stands right below the title of a document: authors, a revision, attributes."""
        while (line := self._reader.peek()) is not None and (text := line.text).strip():
            if _DELIMITER.fullmatch(text) or _ATTRIBUTES.fullmatch(text):
                return
            if text.startswith("//") or _ENTRY.fullmatch(text):
                self._block(line)
            else:
                self._reader.pop()
                self._prose("p", self._attributes.expand(text), (line.number, line.number))

    def _prose(self, tag: str, text: str, lines: Lines, attrs: dict[str, str] | None = None, **given: str) -> None:
        """Write an element that holds text alone."""
        self._elements.start(tag, attrs or {}, lines, is_fixed=True, **given)
        self._inline(text, lines)
        self._elements.end(tag, lines, is_fixed=True)

    def _inline(self, text: str, lines: Lines) -> None:
        for piece in split_inline(text, self._titles):
            if piece.kind == "text":
                self._elements.text(piece.value, lines)
            elif piece.kind == "left_out":
                self._leave_out(piece.value, "a mark for an index or a reference")
            elif piece.kind == "start":
                self._elements.start(piece.value, {"href": piece.href} if piece.href else {}, lines, is_fixed=True)
            else:
                self._elements.end(piece.value, lines, is_fixed=True)

    def _paragraph(self, given: dict[str, str]) -> None:
        lines, style = self._text_lines(), given.get("style", "")
        if not lines:  # an end of a block that is not open
            lines = [self._reader.pop()]
        span = (lines[0].number, lines[-1].number)
        if style in _RAW or style in _FORMULAS:
            self._code(lines, given, language=given.get("2", "") if style == "source" else "")
            return
        text = "\n".join(line.text.strip() for line in lines)
        if found := _REMARK.match(text):
            style, text = found[1], text[found.end() :]
        if style == "verse" or "hardbreaks" in given.get("options", "") + str("hardbreaks-option" in self._attributes):
            text = text.replace("\n", " +\n")
        text = self._attributes.expand(text)
        with self._part(style, given, span):
            self._prose("p", text, span)

    def _text_lines(self) -> list[Line]:
        """Take the lines of a text, up to an empty one or to the begin of something else."""
        lines: list[Line] = []
        while (line := self._reader.peek()) is not None and (text := line.text).strip():
            if text.startswith("//") and not text.startswith("///"):
                self._leave_out(text[2:], "a comment")
            elif (
                _DELIMITER.fullmatch(text)
                or _ATTRIBUTES.fullmatch(text)
                or (not lines and _TITLE.fullmatch(text))
                or (self._lists and (text == "+" or item_of(text)))
            ):
                break
            else:
                lines.append(line)
            self._reader.pop()
        return lines

    def _raw(self, end: str) -> list[Line]:
        """Take the lines up to the end of a block that holds no others."""
        lines: list[Line] = []
        while (line := self._reader.peek()) is not None and line.text.rstrip() != end:
            lines.append(self._reader.pop())
        if line is not None:
            self._elements.lines = (line.number, line.number)
            self._reader.pop()
        return lines

    def _take_title(self, given: dict[str, str]) -> str:
        return inline_text(given.get("title", ""), self._titles)

    def _code(self, lines: Sequence[Line], given: dict[str, str], *, language: str) -> None:
        if not any(line.text.strip() for line in lines):
            self._leave_out(given.get("title", ""), "the title of an empty block")
            return
        text = "\n".join(line.text for line in lines)
        text = dedent(text.expandtabs(8)) if text[:1].isspace() else text
        substituted = given.get("subs", "")
        if "attributes" in substituted or "normal" in substituted:
            text = self._attributes.expand(text)
        if "quotes" in substituted or "normal" in substituted or "macros" in substituted:
            text = inline_text(text, self._titles)
        text = _CALLOUTS.sub("", text)
        # Of one program in several languages, each has its name above it.
        label = self._take_title(given) if given.get("role") in {"primary", "secondary"} else ""
        if label:
            self._elements.writer.enter(label=label)
        span = (int(given.get("begin", lines[0].number)), max(lines[-1].number, self._elements.lines[1]))
        self._elements.code(text, language, span, title="" if label else self._take_title(given))
        if label:
            self._elements.writer.leave()

    @contextmanager
    def _part(self, style: str, given: dict[str, str], lines: Lines) -> Generator[None]:
        """Begin and end what a style makes of a block, below its title."""
        elements, title = self._elements, given.get("title", "")
        if style in _REMARKS:
            term = self._take_title(given) or remark_title(style)
            elements.start(style.lower(), {"title": term}, lines, is_fixed=True)
            yield
            elements.end(style.lower(), is_fixed=True)
            return
        if title:
            elements.start("details", {}, lines, is_fixed=True)
            self._prose("summary", title, lines)
        tag = "blockquote" if style in _QUOTES else "section"
        elements.start(tag, {}, lines, is_fixed=True)
        yield
        elements.end(tag, is_fixed=True)
        names = [given[name] for name in ("2", "3", "attribution", "citetitle") if given.get(name)]
        if style in _QUOTES and names:
            self._prose("p", ", ".join(names), (int(given.get("begin", lines[0])), elements.lines[1]))
        if title:
            elements.end("details", is_fixed=True)

    def _read_delimited(self, mark: str, language: str, given: dict[str, str]) -> None:
        opened, style = self._reader.pop(), given.get("style", "")
        given = {"begin": str(opened.number)} | given
        first, span, elements = mark[0], (opened.number, opened.number), self._elements
        if first == "/" or style == "comment":
            self._leave_out("\n".join(line.text for line in self._raw(mark)), "a comment")
        elif first == "+" and style not in _FORMULAS:
            self._leave_out("\n".join(line.text for line in self._raw(mark)), "passed through")
        elif mark[1:].startswith("===") and first != "=":
            self._table(mark, given, span)
        elif (first in "-.`+" and mark != "--") or style in _RAW:
            if first == "-" and style not in {"", *_RAW, *_FORMULAS}:
                language = style
            elif style == "source":
                language = given.get("2", "") or self._attributes.get("source-language", "")
            self._code(self._raw(mark), given, language=given.get("language", language))
        else:
            with self._part(style or ("quote" if first == "_" else ""), given, span):
                if style == "verse":
                    text = " +\n".join(line.text for line in self._raw(mark))
                    self._prose("p", self._attributes.expand(text), (opened.number, elements.lines[1]))
                else:
                    self._given = {"tabs": "yes"} if "tabs" in style else {}
                    self._within(mark)

    def _list(self, item: ListItem | None, around: tuple[str, ...], given: dict[str, str]) -> None:
        elements, line = self._elements, self._reader.peek()
        if item is None or line is None:
            return
        if given.get("title"):
            self._prose("caption", given["title"], (line.number, line.number))
        key, is_tabs = item.key, "tabs" in given
        tag = "dl" if item.term is not None else "ul" if key[0] in "*-•" else "ol"
        self._lists += 1
        if not is_tabs:
            elements.start(tag, {"start": given.get("start", "")}, (line.number, line.number), is_fixed=True)
        while item is not None and item.key == key:
            self._item(item, (*around, key), is_tab=is_tabs)
            line = self._reader.peek()
            item = item_of(line.text) if line is not None else None
        if not is_tabs:
            elements.end(tag, is_fixed=True)
        self._lists -= 1

    def _item(self, item: ListItem, around: tuple[str, ...], *, is_tab: bool) -> None:
        elements, line, self._gap = self._elements, self._reader.pop(), 0
        span, tag, attrs, rest = (line.number, line.number), "li", dict[str, str](), item.rest
        marker = item.marker
        if item.term is not None:
            term, tag, marker = self._attributes.expand(item.term), "tab" if is_tab else "dd", ""
            if is_tab:
                attrs = {"label": inline_text(term, self._titles)}
            else:
                self._prose("dt", term, span)
            if not rest:
                self._skip_empty()
                following = self._reader.peek()
                other = item_of(following.text) if following is not None else None
                if other is not None and other.key == item.key and not is_tab:
                    self._terms_from = self._terms_from or line.number
                    return  # one more term of what follows
        span, self._terms_from = (self._terms_from or line.number, line.number), 0
        elements.start(tag, attrs, span, is_fixed=True, marker=marker)
        self._item_text(rest, line)
        self._read_attached(around)
        elements.end(tag, is_fixed=True)

    def _item_text(self, rest: str, line: Line) -> None:
        lines = [line._replace(text=rest)] if rest else []
        lines += self._text_lines()
        if lines:
            text = self._attributes.expand("\n".join(each.text.strip() for each in lines))
            self._prose("p", text, (lines[0].number, lines[-1].number))

    def _read_attached(self, around: tuple[str, ...]) -> None:
        """Read what belongs to an item: blocks below a `+`, inner lists, and what is indented."""
        while True:
            self._skip_empty()
            line = self._reader.peek()
            if line is None or line.text.rstrip() in self._ends:
                return
            if line.text.rstrip() == "+":
                if self._gap and len(around) > 1:
                    self._gap -= 1  # belongs to the item around this one
                    return
                self._reader.pop()
                self._gap = 0
                self._attach(around)
            elif item := item_of(line.text):
                if item.key in around:
                    return
                self._list(item, around, {})
            elif line.text[0].isspace():
                self._gap = 0
                self._block(line)
            elif self._leads_to_inner(around):
                self._block(line)
                item_line = self._reader.peek()
                item = item_of(item_line.text) if item_line is not None else None
                given, self._given = self._given, {}
                self._list(item, around, given)
            else:
                return

    def _attach(self, around: tuple[str, ...]) -> None:
        while (line := self._reader.peek()) is not None and line.text.rstrip() not in self._ends:
            item = item_of(line.text)
            if line.text.rstrip() == "+" or (item and item.key in around) or self._block(line):
                return

    def _leads_to_inner(self, around: tuple[str, ...]) -> bool:
        """Return whether a title or attributes stand above an inner list."""
        line, below = self._reader.peek(), self._reader.peek(1)
        if (
            self._gap
            or line is None
            or below is None
            or not (_ATTRIBUTES.fullmatch(line.text) or _TITLE.fullmatch(line.text))
        ):
            return False
        item = item_of(below.text)
        return item is not None and item.key not in around

    def _skip_empty(self) -> None:
        """Take empty lines, and count them for the next `+`."""
        if (line := self._reader.peek()) is not None and not line.text.strip():
            self._gap = 0
        while (line := self._reader.peek()) is not None and not line.text.strip():
            self._gap += 1
            self._reader.pop()

    def _table(self, mark: str, given: dict[str, str], span: Lines) -> None:
        lines, elements = self._raw(mark), self._elements
        elements.start("table", {}, span, is_fixed=True)
        if given.get("title"):
            self._prose("caption", given["title"], span)
        try:
            table = read_table(lines, given, mark[0])
        except csv.Error:
            self._code(lines, {}, language="")
            table = Table([], has_header=False)
        self._attributes.spend(sum(len(line.text) for row in table.rows for cell in row if cell for line in cell.lines))
        for n, row in enumerate(table.rows):
            self._row(row, "th" if n == 0 and table.has_header else "td")
        elements.end("table", is_fixed=True)

    def _row(self, row: Row, tag: str) -> None:
        elements = self._elements
        numbers = [line.number for cell in row if cell for line in cell.lines if line.text.strip()]
        if not numbers:
            return
        elements.start("tr", {}, (numbers[0], numbers[0]), is_fixed=True)
        for cell in row:
            filled = [line.number for line in cell.lines if line.text.strip()] if cell else []
            elements.start(tag, {}, (filled[0], filled[-1]) if filled else None, is_fixed=True)
            if cell and cell.style == "a" and tag == "td":
                self._inner(cell.lines)
            elif cell:
                text = "\n".join(line.text.strip() for line in cell.lines).strip()
                for part in (f"`{text}`" if cell.style == "m" else text).split("\n\n"):
                    self._prose("p", self._attributes.expand(part), elements.lines)
            elements.end(tag, is_fixed=True)
        elements.end("tr", (numbers[-1], numbers[-1]), is_fixed=True)

    def _inner(self, lines: Sequence[Line]) -> None:
        reader, ends, lists = self._reader, self._ends, self._lists
        self._reader, self._ends, self._lists = LineReader(lines, self._attributes, self._elements.writer), [], 0
        while self._reader.peek() is not None:
            self._blocks()
        self._reader, self._ends, self._lists = reader, ends, lists


def _is_underlined(text: str, below: str) -> bool:
    is_title = any(char.isalnum() for char in text) and not text[0].isspace()
    return is_title and abs(len(text.rstrip()) - len(below.rstrip())) <= 1 and bool(_UNDERLINE.fullmatch(below))
