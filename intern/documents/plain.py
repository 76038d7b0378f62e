"""Plain text as blocks, by the indent and the length of its lines: headings, lists, definitions, and code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from intern.documents.blocks import Document
from intern.documents.writer import DocumentWriter, Lines

_Rows = Sequence[tuple[int, str]]

_UNDERLINE = re.compile(r"([=\-~^*#+_])\1{2,}")
_NUMBERED = re.compile(
    r"(\d{1,3}(?:\.\d{1,3}){0,5}(?=\.?\s)|(?:Appendix\s+)?[A-Z](?:\.\d{1,3}){0,4}(?=\.\s))\.?\s+[A-Z\"'`].*"
)
_BULLET = re.compile(r"([-*+•–o]|\(?(?:\d{1,3}|[a-z])[.)])\s+(\S.*)")
_GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
_WIDE = re.compile(r"\S {3,}\S")
_OPTION = re.compile(r"(-{1,2}[\w?#][^\s]{0,40}(?:(?:, |[ =|])\S{1,40}){0,4}?)(?: {2,}(\S.*))?")
_PROMPT = re.compile(r"(?:[$%>#]|>>>|\w+@[\w.-]+[:~].{0,40}[$#])\s\S")
_LEADERS = re.compile(r"(?:\.{4,200}|(?: \.){4,200}) {0,9}\d{1,4}$")
_ASSIGNED = re.compile(r"[\w.-]{1,40}\s*(?:=|:=|::=)\s*\S")
_SENTENCE = re.compile(r"[a-z]\w*[ ,]+\w+[ ,]+\w+.*[.?!:;,]\Z|(?:[\w'’,-]+ ){5}")
_LONGEST_HEADING = 80
_MOST_WORDS = 10
_CENTRED = 12  # characters to the left of a title at least
_WIDTH = 40  # characters; lines of a chunk that is no wider were not wrapped


def parse_plain(text: str) -> Document:
    """Return a text as blocks."""
    writer = DocumentWriter()
    write_plain(writer, text, 1)
    return writer.build_document()


def parse_settings(text: str, language: str) -> Document:
    """Return a text such as settings as blocks of code, parted at its empty lines."""
    writer = DocumentWriter()
    for rows in _split_chunks([(n, row.rstrip()) for n, row in enumerate(text.split("\n"), 1)]):
        writer.add_block("code", "\n".join(row for _, row in rows), _span(rows), language=language)
    return writer.build_document()


def write_plain(writer: DocumentWriter, text: str, first_line: int) -> None:
    """Write a text that begins at a line of the source."""
    rows = [(n, row.expandtabs(8).rstrip()) for n, row in enumerate(text.split("\n"), first_line)]
    for _, row in rows:
        writer.leave_out(row if _is_leader(row) else "", "a table of contents")
    chunks = list(_split_chunks([each for each in rows if not _is_leader(each[1])]))
    long = [row for held in chunks for _, row in held if len(row) > _WIDTH and not _WIDE.search(row.strip())]
    indents = Counter(map(_indent, long))
    # The text's indent is at most that of its long lines.
    base = min((indent for indent, count in indents.items() if count >= len(long) / 8), default=0)
    reader = _PlainTextReader(writer, base)
    for held, following in zip(chunks, [*chunks[1:], []], strict=False):
        reader.read(held, following)


def _is_leader(row: str) -> bool:
    return row[-1:].isdecimal() and _LEADERS.search(row) is not None


def _split_chunks(rows: _Rows) -> Iterator[_Rows]:
    """Part lines at the empty ones."""
    return (list(held) for is_text, held in groupby(rows, key=lambda row: bool(row[1])) if is_text)


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip())


def _span(rows: _Rows) -> Lines:
    return rows[0][0], rows[-1][0]


class _PlainTextReader:
    def __init__(self, writer: DocumentWriter, base: int) -> None:
        self._writer = writer
        self._base = base
        """The indent of most lines."""
        self._levels: dict[str, int] = {}
        """By the look of headings, in the order in which they came."""
        self._items: list[tuple[int, int]] = []
        """The items around: the indent of each one's bullet, and of its text."""

    def read(self, rows: _Rows, following: _Rows) -> None:
        """Read the lines between two empty ones."""
        while rows and (taken := self._read_heading(rows, following)):
            rows = rows[taken:]
        bullets = [n for n, (_, row) in enumerate(rows) if _BULLET.fullmatch(row.lstrip())]
        if bullets and not (bullets[0] and self._is_code(rows)) and not _PROMPT.match(rows[0][1].lstrip()):
            self._write_text(rows[: bullets[0]])
            for begin, end in pairwise([*bullets, len(rows)]):
                self._write_item(rows[begin:end])
        else:
            self._write_text(rows)

    def _read_heading(self, rows: _Rows, following: _Rows) -> int:
        """Write a heading if the lines begin with one; return how many they are."""
        row, text, look, taken = rows[0][1], rows[0][1].strip(), "", 1
        below = rows[1][1].strip() if len(rows) > 1 else ""
        if len(rows) > 2 and _UNDERLINE.fullmatch(text) and rows[2][1].strip() == text:
            text, look, taken = below, f"over {text[0]}", 3
        elif _UNDERLINE.fullmatch(below) and abs(len(below) - len(text)) <= max(3, len(text) // 4):
            look, taken = below[0], 2
        elif self._is_alone(rows) and (below or following):
            look = self._heading_style(text, following, _indent(row))
        if look:
            level = self._levels.setdefault(look, len(self._levels) + 1)
            self._items, self._writer.depth = [], 0
            self._writer.add_heading(min(level, 6), text, _span(rows[:taken]))
        return taken if look else 0

    def _is_alone(self, rows: _Rows) -> bool:
        """Return whether the first line can be a heading without an underline."""
        row, text = rows[0][1], rows[0][1].strip()
        if len(text) > _LONGEST_HEADING or text.endswith((".", ",", ";", ":")) or _indent(row) > self._base:
            return False
        stands_out = len(rows) == 1 or _indent(row) < min(self._base, _indent(rows[1][1]))
        return stands_out and any(map(str.isalpha, text)) and not _OPTION.fullmatch(text)

    def _heading_style(self, text: str, following: _Rows, indent: int) -> str:
        """Return the style of a heading without an underline; empty if the line is none."""
        bullet, is_left = _BULLET.fullmatch(text), indent < self._base
        if found := _NUMBERED.fullmatch(text):
            heads = "." in found[1] or not (following and _BULLET.fullmatch(following[0][1].strip()))
            return str(found[1].count(".") + 1) if is_left or (heads and len(text.split()) <= _MOST_WORDS) else ""
        is_title = is_left or (text.isupper() and len(text) > 1)
        return "" if bullet or _WIDE.search(text) or not is_title else "2" if indent else "1"

    def _write_item(self, rows: _Rows) -> None:
        n, row = rows[0]
        indent, found = _indent(row), _BULLET.fullmatch(row.strip())
        assert found
        self._items = [*(each for each in self._items if each[0] < indent), (indent, row.index(found[2], indent))]
        self._writer.depth = len(self._items)
        # A line that is indented less than the item's text belongs to the next text.
        own = next((at for at in range(1, len(rows)) if _indent(rows[at][1]) < indent), len(rows))
        text = " ".join([found[2], *(row.strip() for _, row in rows[1:own])])
        marker = found[1] if found[1][-1] in ".)" else "-"
        self._writer.add_block("item", text, (n, rows[own - 1][0]), marker=marker)
        self._write_text(rows[own:])

    def _write_text(self, rows: _Rows) -> None:
        """Write lines as a paragraph, as definitions, or as code."""
        if not rows:
            return
        least = min(_indent(row) for _, row in rows)
        self._items = [each for each in self._items if each[1] <= least]
        self._writer.depth = len(self._items)
        terms = [n for n, (_, row) in enumerate(rows) if _indent(row) == least]
        parts = [rows[begin:end] for begin, end in pairwise([*terms, len(rows)])]
        options = [found for part in parts if (found := _OPTION.fullmatch(part[0][1].strip()))]
        is_of_options = len(options) == len(parts) and (len(rows) > 1 or options[0][2])
        if is_of_options or (terms[0] == 0 and all(len(part) > 1 for part in parts) and not self._is_code(rows)):
            for n, (first, *others) in enumerate(parts):
                term, text = options[n].groups() if is_of_options else (first[1].strip(), "")
                held = [(first[0], text or ""), *others]
                self._writer.add_block(
                    "definition", _join_wrapped_lines([row for row in held if row[1]]), _span(held), term=term
                )
        elif self._is_code(rows):
            self._writer.add_block("code", "\n".join(row[least:] for _, row in rows), _span(rows))
        else:
            if not self._writer.title and not self._levels and len(rows) == 1 and least > _CENTRED:
                self._writer.title = rows[0][1]
            self._writer.add_block("paragraph", _join_wrapped_lines(rows), _span(rows))

    def _is_code(self, rows: _Rows) -> bool:
        texts = [row.strip() for _, row in rows]
        if _PROMPT.match(texts[0]):
            return True
        is_prose = 2 * sum(bool(_SENTENCE.search(_GAP.sub(" ", text))) for text in texts) >= len(texts)
        columns = Counter(found.end() for _, row in rows for found in _GAP.finditer(row))
        if len(rows) > 1 and max(columns.values(), default=0) > len(rows) / 2:
            return not is_prose or any(_WIDE.search(text) for text in texts)
        if len(rows) > 1 and all(_ASSIGNED.match(text) for text in texts):
            return True
        within = self._items[-1][1] if self._items else self._base
        least = min(_indent(row) for _, row in rows)
        return least >= within + 2 and not is_prose and (len(rows) > 1 or least <= _CENTRED)


def _join_wrapped_lines(rows: _Rows) -> str:
    """Join lines that were wrapped; where the next word would have had room, the line end was meant."""
    width = max(_WIDTH, *(len(row) for _, row in rows), 0)
    text = rows[0][1].strip() if rows else ""
    for (_, row), (_, below) in pairwise(rows):
        is_wrapped = below.lstrip()[0].islower() or len(row) + len(below.split()[0]) >= 0.6 * width
        gap = "" if text.endswith("‐") else " " if is_wrapped else "\n"
        text = text.removesuffix("‐") + gap + below.strip()
    return text
