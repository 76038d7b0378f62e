"""AsciiDoc as blocks, line by line, with what it includes from its folder.

No parser for Python is fit: one took 60 seconds for 50 kB. This one looks at each line a few times, so its time grows
with the length of the text. It knows the syntax that most texts use; all other syntax stays as it is written.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import dedent
from typing import NamedTuple

from intern.documents.admonitions import default_admonition_title
from intern.documents.asciidoc_text import inline_html, inline_text, parse_attributes
from intern.documents.block_builder import BlockBuilder
from intern.documents.blocks import Document
from intern.documents.tag_reader import TagReader
from intern.documents.writer import DocumentWriter, Lines

ReadInclude = Callable[[str], str | None]
"""Returns the text of a file of the folder by its path there; None if there is none."""

_DEEPEST = 60
_UNMET = "it stands below a condition that does not hold"
MOST_INCLUDED = 16
"""Files in each other."""
MOST_ADDED = 1_000_000
"""Characters that attributes and included files add to a text."""
LEAST_ADDED = 500
"""Characters that each include counts for, be it empty."""

_DIRECTIVE = re.compile(r"(include|ifdef|ifndef|ifeval|endif)::([^\[]{0,500})\[(.*)\]\s*")
_REFERENCE = re.compile(r"(\\?)\{(\w[\w-]*)\}")
_CONTINUED = re.compile(r"(?m)^:!?\w[\w-]*:(?:.*\\\n)+.*$")
# The lines above a block: a comment or a rule, an entry of an attribute, its anchor, its attributes, its title.
_ABOVE = re.compile(
    r"(?P<unshown>//(?!/).*|'{3,}|<{3,}|- ?- ?-|\* ?\* ?\*)|:(?P<name>!?\w[\w-]*!?):(?:\s+(?P<value>.*))?"
    r"|\[\[(?P<id>[^\[\],]*)(?:,[^\[\]]*)?\]\]\s*|\[(?P<held>(?:[\w:,.#\"'%{*].*)?)\]\s*|\.(?P<title>(?![.\s]).+)"
)
_HEADING = re.compile(r"(={1,6}|#{1,6})\s+(\S.*?)(?:\s+\1)?\s*")
_UNDERLINES = "=-~^+"
_HEADING_ANCHOR = re.compile(r"\[\[([\w:.-]+)(?:,[^\[\]]*)?\]\]")
_NAMED_TITLE = re.compile(r"(?m)^\[(?:\[|#)([\w:.-]+)[^\]\n]*\]\]?[ \t]*\n(?:\[[^\n]*\]\n)?(?:\.|={1,6} )(\S.*)$")
_DELIMITER = re.compile(
    r"(-{4,}|\.{4,}|={4,}|\*{4,}|_{4,}|\+{4,}|/{4,}|--|\|={3,}|`{3,}(?=[\w+#.-]*\s*\Z))([\w+#.-]*)\s*"
)
_BLOCK_MACRO = re.compile(r"([a-z]\w*)::(\S*\[.*\])")
_REMARK = re.compile(r"(NOTE|TIP|IMPORTANT|WARNING|CAUTION):\s+")
_REMARKS = frozenset({"NOTE", "TIP", "IMPORTANT", "WARNING", "CAUTION"})
_CALLOUTS = re.compile(r"(?m)[ \t]{0,9}(?:(?://|#|--|;;)[ \t]?)?(?:(?:<!--|<)(?:\d{1,3}|\.)(?:-->|>)[ \t]{0,9}){1,9}$")
_ITEM = re.compile(
    r"(?!//)\s*(?:(?P<marker>\*{1,10}|-|\.{1,10}|•|\d{1,5}\.|[a-zA-Z]\.|[ivxIVX]{1,8}\)|<(?:\d{1,3}|\.)>)\s+(?=\S)"
    r"|(?P<term>\S.*?)(?P<colons>(?<!:):{2,4}|;;)(?:\s+|\Z))(?P<rest>.*)"
)
_DIGITS = re.compile(r"\d+")
_LETTERS = re.compile(r"[a-zA-Z]+")
_COLUMN = re.compile(r"(?:(\d{1,2})\*)?([^,;]*)[,;]")
_CELL = re.compile(r"(?:(?:^|(?<=\s))(?:([1-9])?(?:\.([1-9]))?[*+])?(?:[<^>]?\.?[<^>])?[adehlmsv]?)?(?<!\\)\|")
_RAW = frozenset({"source", "listing", "literal", "stem", "latexmath", "asciimath"})
# As references, which are resolved after AsciiDoc was read: some of these signs mean something to it.
_SIGN_NAMES = "startsb endsb vbar asterisk tilde caret backtick backslash"
_BUILT_IN = {
    **{name: f"&{name};" for name in "nbsp lt gt amp quot apos deg lsquo rsquo ldquo rdquo plus".split()},
    **{name: f"&#{ord(sign)};" for name, sign in zip(_SIGN_NAMES.split(), "[]|*~^`\\", strict=True)},
    **dict.fromkeys(("backend-html5", "asciidoctor", "empty", "blank", "zwsp", "wj"), ""),
    "cpp": "C&#43;&#43;",
    "litdd": "--",
    "sp": " ",
}


def parse_asciidoc(text: str, read: ReadInclude | None = None, path: str = "") -> Document:
    """Return a text as blocks. `read` returns files of its folder; `path` is its place there.

    Raises ValueError if it is nested too deeply, or if repetition makes it too long.
    """
    writer = DocumentWriter()
    elements = BlockBuilder(writer)
    _AsciidocParser(elements, text, read, path).parse()
    elements.close()
    return writer.build_document()


class _AsciidocLine(NamedTuple):
    number: int
    """A line of an included file has the number of the line that includes it."""
    text: str
    shift: int = 0
    """Levels by which a heading there is moved."""


class _AsciidocParser:
    def __init__(self, elements: BlockBuilder, text: str, read: ReadInclude | None, path: str) -> None:
        self._elements = elements
        self._leave_out = elements.writer.leave_out
        self._tags = TagReader(elements)
        self._read = read
        self._titles = {found[1]: found[2] for found in _NAMED_TITLE.finditer(text)}
        self._lines = self._iterate_lines(text, path, _AsciidocLine(0, ""))
        self._next: _AsciidocLine | None = None
        self._attributes = {**_BUILT_IN}
        self._room = MOST_ADDED
        self._given: dict[str, str] = {}
        """The attributes and the title of the next block."""
        self._ends: list[str] = []
        self._lists: list[tuple[str, str]] = []
        """The key and the element of each list that is open."""
        self._gap = 0
        """Empty lines right above."""
        self._is_attached = False
        """Whether the next block belongs to the item above."""

    def parse(self) -> None:
        """Read blocks, up to the end of one around them."""
        while (line := self._peek()) and line.text.rstrip() not in self._ends:
            self._read_block(self._pop())
        self._end_lists()

    def _iterate_lines(self, text: str, path: str, above: _AsciidocLine, depth: int = 0) -> Iterator[_AsciidocLine]:
        """Yield the lines of a file that `above` includes, without those that a condition leaves out.

        Attributes have the values of the moment when a line is requested.
        """
        holds = [True]
        whole = _CONTINUED.sub(lambda found: found[0].replace("\\\n", "") + "\n" * found[0].count("\n"), text)
        for n, row in enumerate(whole.split("\n"), 1):
            line = _AsciidocLine(above.number or n, row, above.shift)
            name, target, held = found.groups() if (found := _DIRECTIVE.fullmatch(row)) else ("", "", "")
            if name == "endif":
                holds = holds if len(holds) == 1 else holds[:-1]
            elif name.startswith("if"):
                are_set = [each.strip().lower() in self._attributes for each in target.replace("+", ",").split(",")]
                is_set = all(are_set) if "+" in target else any(are_set)
                does_hold = holds[-1] and (name == "ifeval" or is_set == (name == "ifdef"))
                if not held or name == "ifeval":
                    holds.append(does_hold)
                elif does_hold:
                    yield line._replace(text=held)
                else:
                    self._leave_out(held, _UNMET)
            elif name and holds[-1]:
                yield from self._include(line, posixpath.join(posixpath.dirname(path), target), held, depth + 1)
            elif holds[-1]:
                is_escaped = row[:1] == "\\" and _DIRECTIVE.fullmatch(row[1:])
                yield line._replace(text=row[1:]) if is_escaped else line
            else:
                self._leave_out(row, _UNMET)

    def _include(self, line: _AsciidocLine, path: str, held: str, depth: int) -> Iterator[_AsciidocLine]:
        path = posixpath.normpath(self._expand(path))
        is_inside = self._read and depth <= MOST_INCLUDED and not path.startswith(("/", ".."))
        text = self._read(path) if self._read and is_inside else None
        size = max(len(text or ""), LEAST_ADDED)
        if text is None or size > self._room:
            self._leave_out(line.text, f"not in the folder, too large, or an include more than {MOST_INCLUDED} deep")
            return
        self._room -= size
        shift = line.shift + _level_offset(parse_attributes(self._expand(held)))
        yield from self._iterate_lines(text, path, line._replace(shift=shift), depth)

    def _peek(self) -> _AsciidocLine | None:
        self._next = self._next or next(self._lines, None)
        return self._next

    def _pop(self) -> _AsciidocLine:
        """Return and consume the next line, which must exist."""
        line, self._next = self._next, None
        assert line is not None
        self._elements.lines = (line.number, line.number)
        return line

    def _expand(self, text: str) -> str:
        """Return a text with the values of attributes in the places of their names."""
        return _REFERENCE.sub(self._look_up_attribute, text) if "{" in text else text

    def _look_up_attribute(self, found: re.Match[str]) -> str:
        value = found[0][1:] if found[1] else self._attributes.get(found[2].lower(), found[0])
        self._room -= len(value)
        if self._room < 0:
            raise ValueError(f"its attributes and includes add more than {MOST_ADDED} characters")
        return value

    def _write_prose(self, tag: str, text: str, lines: Lines, attrs: Mapping[str, str] | None = None) -> None:
        """Write an element that holds text alone."""
        self._elements.start(tag, attrs or {}, lines)
        self._tags.read(inline_html(self._expand(text), self._titles), *lines)
        self._elements.end(tag, lines)

    def _write_title(self, tag: str, given: Mapping[str, str], below: Lines) -> None:
        self._write_prose(tag, given.get("title", ""), (int(given.get("@line", below[0])), below[0]))

    def _strip_markup(self, text: str) -> str:
        return inline_text(self._expand(text), self._titles)

    def _take_block_metadata(self, line: _AsciidocLine, found: re.Match[str]) -> None:
        """Take the metadata lines above a block."""
        if name := found["name"]:
            self._attributes.pop(name.strip("!").lower(), None)
            if "!" not in name:
                self._attributes[name.lower()] = self._expand(found["value"] or "")
        elif found["unshown"] is None:
            given = parse_attributes(self._expand(found["held"] or ""))
            named = {name: found[name] for name in ("id", "title") if found[name]}
            self._given = {"@line": str(line.number)} | self._given | given | named
        if not found["title"]:
            self._leave_out(line.text, "a comment" if found["unshown"] is not None else "an attribute")

    def _read_block(self, line: _AsciidocLine) -> None:
        text, gap, self._gap = line.text, self._gap, 0
        above = _ABOVE.fullmatch(text)
        if not text.strip():
            self._gap = gap + 1
        elif text.rstrip() == "+" and self._lists:
            # Each empty line leads to the item around the one above.
            self._end_lists(max(len(self._lists) - gap, 1))
            self._is_attached = True
        elif above:
            if gap and not self._is_attached:
                self._end_lists()
            self._take_block_metadata(line, above)
        else:
            given, self._given = self._given, {}
            is_attached, self._is_attached = self._is_attached or (gap > 0 and text[0].isspace()), False
            if self._try_heading(line, given):
                return
            if item := _ITEM.fullmatch(text):
                self._write_item(item, line, given)
            else:
                self._end_lists(len(self._lists) if is_attached else 0)
                self._write_body(line, given)

    def _try_heading(self, line: _AsciidocLine, given: Mapping[str, str]) -> bool:
        """Write a heading, of one line or of two, if there is one."""
        level, title, below = 0, line.text, self._peek()
        if found := _HEADING.fullmatch(title):
            level, title = len(found[1]), found[2]
        elif below and not self._ends and (level := _title_level(title, below.text.rstrip())):
            self._pop()
        if level:
            self._end_lists()
            level = min(max(level + line.shift + _level_offset(self._attributes), 1), 6)
            anchor = _HEADING_ANCHOR.search(title)
            attrs = {"id": anchor[1] if anchor else given.get("id", "")}
            self._write_prose(
                f"h{level}", _HEADING_ANCHOR.sub("", title), (line.number, self._elements.lines[1]), attrs
            )
        return level > 0

    def _take_text_lines(self) -> Iterator[_AsciidocLine]:
        """Take the lines of a text, up to an empty one or to the beginning of another element."""
        while (line := self._peek()) and (text := line.text).strip():
            above = _ABOVE.fullmatch(text)
            is_comment = above is not None and above["unshown"] is not None
            ends_item = self._lists and (text.rstrip() == "+" or _ITEM.fullmatch(text))
            if ends_item or _DELIMITER.fullmatch(text) or (above and not is_comment and not above["title"]):
                return
            self._pop()
            if is_comment:
                self._leave_out(text, "a comment")
            else:
                yield line

    def _take_raw_lines(self, end: str) -> Iterator[_AsciidocLine]:
        """Take the lines of a block that holds no others, and its end."""
        while (line := self._peek()) and line.text.rstrip() != end:
            yield self._pop()
        if line:
            self._pop()

    def _write_body(self, line: _AsciidocLine, given: Mapping[str, str]) -> None:
        """Write a block: one between two equal lines, or a text of lines."""
        delimiter, style = _DELIMITER.fullmatch(line.text), given.get("style", "")
        mark = delimiter[1] if delimiter else ""
        holds_blocks = mark[:1] in {"=", "*", "_"} or (mark == "--" and style not in _RAW)
        lines = (
            [line, *self._take_text_lines()] if not mark else [] if holds_blocks else list(self._take_raw_lines(mark))
        )
        text, span = "\n".join(each.text for each in lines), (line.number, self._elements.lines[1])
        if mark[:1] == "|":
            self._write_table(lines, given, span)
        elif mark[:1] in {"/", "+"} and style not in _RAW:
            self._leave_out(text, "a comment" if mark[0] == "/" else "passed through")
        elif lines and (mark or style in _RAW or text[0].isspace()):
            language = given.get("2", "") if style in {"", "source"} else ""
            span = int(given.get("@line", span[0])), span[1]
            self._write_code(text, given, (delimiter and delimiter[2]) or language, span)
        elif not mark or holds_blocks:
            self._write_part(mark, text, given, span)

    def _write_code(self, text: str, given: Mapping[str, str], language: str, span: Lines) -> None:
        title = self._strip_markup(given.get("title", ""))
        text = dedent(text.expandtabs(8)) if text[:1].isspace() else text
        if "attributes" in given.get("subs", ""):
            text = self._expand(text)
        # One program in several languages has the name of each above it.
        label = title if given.get("role") in {"primary", "secondary"} else ""
        self._elements.writer.enter(label=label)
        self._elements.add_code(_CALLOUTS.sub("", text), language, span, title="" if label else title)
        self._elements.writer.leave()

    def _write_part(self, mark: str, text: str, given: Mapping[str, str], span: Lines) -> None:
        """Write a part that holds blocks, or a paragraph, by its style, below its title."""
        style, title, elements = given.get("style", ""), given.get("title", ""), self._elements
        if found := _BLOCK_MACRO.fullmatch(text):
            self._write_title("p", given, span)
            text, title = f"{found[1]}:{found[2]}", ""
        if found := _REMARK.match(text):
            style, text = found[1], text[found.end() :]
        tag, attrs = "details" if title else "section", dict[str, str]()
        if style in _REMARKS:
            tag, attrs = style.lower(), {"title": self._strip_markup(title) or default_admonition_title(style)}
        elements.start(tag, attrs, (int(given.get("@line", span[0])), span[1]))
        if tag == "details":
            self._write_title("summary", given, span)
        if mark:
            self._read_nested(mark, is_tabs="tabs" in style)
        else:
            self._write_prose("p", text.replace("\n", " +\n") if style == "verse" else text, span)
        if style in {"quote", "verse"}:
            names = ", ".join(given[name] for name in ("2", "3") if name in given)
            self._write_prose("p", names, (int(given["@line"]), elements.lines[1]))
        elements.end(tag)

    def _read_nested(self, end: str, *, is_tabs: bool) -> None:
        """Read the content of a block, and its end."""
        if len(self._ends) >= _DEEPEST:
            raise ValueError("it is nested too deeply to be read")
        lists, self._lists = self._lists, []
        self._ends.append(end)
        self._given = {"@tabs": "yes"} if is_tabs else {}
        self.parse()
        self._given, self._lists = {}, lists
        self._ends.pop()
        if (line := self._peek()) and line.text.rstrip() == end:
            self._pop()

    def _end_lists(self, depth: int = 0) -> None:
        """End lists, until so many are open."""
        while len(self._lists) > depth:
            self._elements.end(self._lists.pop()[1])

    def _write_item(self, found: re.Match[str], line: _AsciidocLine, given: Mapping[str, str]) -> None:
        elements, span, term = self._elements, self._elements.lines, found["term"]
        marker = found["marker"] or found["colons"]
        # The same for all items of a list.
        key = _LETTERS.sub("a", _DIGITS.sub("1", marker))
        keys = [key for key, _ in self._lists]
        if key in keys:
            self._end_lists(keys.index(key) + 1)
        else:
            self._write_title("caption", given, span)
            tag = "section" if "@tabs" in given else "dl" if term else "ul" if key[0] in "*-•" else "ol"
            elements.start(tag, {"start": given.get("start", "")}, span)
            self._lists.append((key, tag))
        is_tab = self._lists[-1][1] == "section"
        if is_tab:
            elements.end("tab")
            elements.start("tab", {"label": self._strip_markup(term)}, span)
        elif term:
            self._write_prose("dt", term, span)
        else:
            elements.start("li", {}, span, marker="" if marker[0] in "*-•.<" else marker)
        lines = [line._replace(text=found["rest"])] if found["rest"] else []
        below = self._peek()
        while term and not lines and below and not below.text.strip():
            self._pop()
            below = self._peek()
        if term and not is_tab:
            if not lines and below and (other := _ITEM.fullmatch(below.text)) and other["colons"] == key:
                return  # one more term of the same definition
            elements.start("dd", {}, span)
        if lines := [*lines, *self._take_text_lines()]:
            self._write_prose("p", "\n".join(each.text.strip() for each in lines), (lines[0].number, lines[-1].number))

    def _write_table(self, lines: Sequence[_AsciidocLine], given: Mapping[str, str], span: Lines) -> None:
        elements, text = self._elements, "\n".join(line.text for line in lines)
        before, *parts = _CELL.split(text)
        first = text.lstrip().partition("\n")[0]
        columns = _COLUMN.findall(given["cols"] + ",") if "cols" in given else _CELL.findall(first)
        width = sum(int(count or 1) for count, _ in columns) or 1
        cells: list[tuple[str, Lines]] = []
        reached: set[int] = set()  # from above
        at = before.count("\n")
        for across, down, held in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            while len(cells) in reached:
                cells.append(("", span))
            reached |= {len(cells) + n * width for n in range(1, int(down or 1))}
            last = at + held.rstrip().count("\n")
            cells.append((held.replace("\\|", "|"), (lines[at].number, lines[last].number)))
            cells += [("", span)] * (int(across or 1) - 1)
            at += held.count("\n")
        elements.start("table", {}, span)
        self._write_title("caption", given, span)
        has_header = "header" in given.get("options", "") or (len(lines) > 1 and not lines[1].text.strip())
        for n in range(0, len(cells), width):
            elements.start("tr", {}, cells[n][1])
            for held, place in cells[n : n + width]:
                self._write_prose("th" if has_header and n == 0 else "td", held, place)
            elements.end("tr", elements.lines)
        elements.end("table")


def _level_offset(given: Mapping[str, str]) -> int:
    offset = given.get("leveloffset", "")
    return int(offset) if offset.lstrip("+-").isdecimal() else 0


def _title_level(text: str, below: str) -> int:
    """Return the level of a title with the line below it; 0 if it is none."""
    is_title = any(map(str.isalnum, text)) and not text[0].isspace() and abs(len(text.rstrip()) - len(below)) <= 1
    return _UNDERLINES.find(below[0]) + 1 if is_title and len(below) > 2 and below == below[0] * len(below) else 0
