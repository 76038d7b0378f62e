"""Plain text as blocks, by its shape: headings, lists, definitions, and code by how its lines are indented and filled.

A text that is clearly Markdown or reStructuredText is read as that: Sphinx publishes its sources as `.rst.txt`, and
many a README has no ending.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from intern.core.text.patterns import regex
from intern.documents.blocks import Document
from intern.documents.writer import DocumentWriter, Lines

_Rows = Sequence[tuple[int, str]]

_REST_SIGNS = regex(
    r"(?m)^\.\. (?:[\w:+-]{1,40}::(?:\s|$)|_[^\n:]{1,100}:|\|[^|\n]{1,60}\| )|:[\w:+-]{2,30}:`[^`\n]{1,200}`"
    r"|`[^`<>\n]{1,100} <[^<>\n]{1,300}>`__?(?!\w)"
)
_MARKDOWN_SIGNS = regex(
    r"(?m)^ {0,3}(?:```|~~~)|^#{2,5} \S|(?<!\w)\[[^\[\]\n]{1,200}\]\((?:https?:|#|\.{0,2}/|\w)[^()\n]{0,300}\)"
    r"|^(?=[^\n]{0,300}\|)(?=[^\n]{0,300}---)[ :|-]{5,300}$|(?<![\w*])\*\*[^\s*][^*\n]{0,200}\*\*(?![\w*])"
)
_MARKDOWN_TITLE = regex(r"\A\s*# \S[^\n]*\n[ \t]*(?:\n|\Z)")
_LEAST_SIGNS = 2

_UNDERLINE = regex(r"([=\-~^*#+_])\1{2,}")
_NUMBERED = regex(
    r"(\d{1,3}(?:\.\d{1,3}){0,5})\.?\s+[A-Z\"'`].*[^.,;:\s]|(?:Appendix\s+)?[A-Z](?:\.\d{1,3}){0,4}\.\s+[A-Z].*[^.,;:\s]"
)
_BULLET = regex(r"([-*+•–o]|\(?(?:\d{1,3}|[a-z])[.)])\s+(\S.*)")
_GAP = regex(r"(?<=\S) {2,}(?=\S)")
_WIDE = regex(r"\S {3,}\S")
_OPTION = regex(r"(-{1,2}[\w?#][^\s]{0,40}(?:(?:, |[ =|])\S{1,40}){0,4}?)(?: {2,}(\S.*))?")
_PROMPT = regex(r"(?:[$%>#]|>>>|\w+@[\w.-]+[:~].{0,40}[$#])\s\S")
_LEADERS = regex(r"(?:\.{4,200}|(?: \.){4,200}) {0,9}\d{1,4}$")
_PAGE_END = regex(r".*\[Page \d{1,4}\]\s*")
_ASSIGNED = regex(r"[\w.-]{1,40}\s*(?:=|:=|::=)\s*\S")
_SENTENCE = regex(r"[a-z]\w*[ ,]+\w+[ ,]+\w+.*[.?!:;,]\Z|(?:[\w'’,-]+ ){5}")
_LONGEST_HEADING = 80
_MOST_WORDS = 10
_CENTRED = 12  # characters to the left of a title at least
_WIDTH = 40  # characters; lines of a chunk that is no wider were not wrapped


def parse_plain(text: str) -> Document:
    """Return a text as blocks. Raises ValueError as the parser of its format does."""
    if len(_REST_SIGNS.findall(text, 0, 200_000)) >= _LEAST_SIGNS:
        from intern.documents.restructured import parse_restructured  # noqa: PLC0415 loads docutils

        return parse_restructured(text)
    if _MARKDOWN_TITLE.match(text) or len(_MARKDOWN_SIGNS.findall(text, 0, 200_000)) >= _LEAST_SIGNS:
        from intern.documents.markdown import parse_markdown  # noqa: PLC0415 loads markdown-it

        return parse_markdown(text)
    writer = DocumentWriter()
    write_plain(writer, text, 1)
    return writer.document()


def parse_settings(text: str, language: str) -> Document:
    """Return a text such as settings as blocks of code, parted at its empty lines."""
    writer = DocumentWriter()
    for rows in _chunks([(n, row.rstrip()) for n, row in enumerate(text.split("\n"), 1)]):
        writer.add("code", "\n".join(row for _, row in rows), _span(rows), language=language)
    return writer.document()


def write_plain(writer: DocumentWriter, text: str, first_line: int) -> None:
    """Write a text that begins at a line of the source."""
    rows = [(n, row.expandtabs(8).rstrip()) for n, row in enumerate(text.split("\n"), first_line)]
    chunks = list(_chunks(_unpaged(writer, rows)))
    reader = _PlainReader(writer, _base(chunks))
    for held, following in zip(chunks, [*chunks[1:], []], strict=False):
        reader.read(held, following)


def _base(chunks: Sequence[_Rows]) -> int:
    """Return how far the text is indented: the least that some of its long lines are."""
    indents = Counter(
        _indent(row) for rows in chunks for _, row in rows if len(row) > _WIDTH and not _WIDE.search(row.strip())
    )
    return min((indent for indent, count in indents.items() if count >= indents.total() / 8), default=0)


def _chunks(rows: _Rows) -> Iterator[_Rows]:
    """Part lines at the empty ones."""
    for is_text, held in groupby(rows, key=lambda row: bool(row[1])):
        if is_text:
            yield list(held)


def _unpaged(writer: DocumentWriter, rows: _Rows) -> _Rows:
    """Leave out what stands at the ends and the tops of printed pages, and tables of contents."""
    kept: list[tuple[int, str]] = []
    is_top = False
    for n, row in rows:
        if _PAGE_END.fullmatch(row) or (is_top and _WIDE.search(row.strip())):
            writer.leave_out(row, "the end or the top of a printed page")
            is_top = not is_top
            while kept and not kept[-1][1]:
                kept.pop()
            if kept and kept[-1][1].endswith((".", ":", "?", "!")):
                kept.append((n, ""))
        elif row[-1:].isdecimal() and _LEADERS.search(row):
            writer.leave_out(row, "a table of contents")
        elif row or (kept and kept[-1][1] and not is_top and not _is_broken(kept, n)):
            kept.append((n, row))
            is_top = False
    return kept


def _is_broken(kept: _Rows, n: int) -> bool:
    """Return whether a page ended between the line kept last and this one."""
    return kept[-1][0] < n - 1


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip())


def _span(rows: _Rows) -> Lines:
    return rows[0][0], rows[-1][0]


class _PlainReader:
    def __init__(self, writer: DocumentWriter, base: int) -> None:
        self._writer = writer
        self._base = base
        """How far most lines are indented."""
        self._levels: dict[str, int] = {}
        """By the look of headings, in the order in which they came."""
        self._items: list[tuple[int, int]] = []
        """The items around: how far the bullet of each is indented, and its text."""

    def read(self, rows: _Rows, following: _Rows) -> None:
        """Read the lines between two empty ones."""
        while rows and (taken := self._headed(rows, following)):
            rows = rows[taken:]
        if not rows:
            return
        bullets = [n for n, (_, row) in enumerate(rows) if _BULLET.fullmatch(row.lstrip())]
        if bullets and (bullets[0] == 0 or not self._is_code(rows)) and not _PROMPT.match(rows[0][1].lstrip()):
            self._text(rows[: bullets[0]])
            for begin, end in zip(bullets, [*bullets[1:], len(rows)], strict=True):
                self._item(rows[begin:end])
        else:
            self._text(rows)

    def _headed(self, rows: _Rows, following: _Rows) -> int:  # noqa: PLR0911 one look after the other
        """Write a heading if the lines begin with one; return how many they are."""
        (n, row), text = rows[0], rows[0][1].strip()
        if len(rows) > 2 and _UNDERLINE.fullmatch(text) and rows[2][1].strip() == text:
            return self._head(rows[1][1], f"over {text[0]}", (n, n + 2), 3)
        below = rows[1][1].strip() if len(rows) > 1 else ""
        if below and _UNDERLINE.fullmatch(below) and abs(len(below) - len(text)) <= max(3, len(text) // 4):
            return self._head(text, below[0], (n, n + 1), 2)
        if (
            len(text) > _LONGEST_HEADING
            or _OPTION.fullmatch(text)
            or _indent(row) > self._base
            or text.endswith((".", ",", ";", ":"))
        ):
            return 0
        is_alone = len(rows) == 1 or (_indent(rows[1][1]) > _indent(row) and _indent(row) < self._base)
        if not is_alone or not any(char.isalpha() for char in text) or (not following and len(rows) == 1):
            return 0
        if (found := _NUMBERED.fullmatch(text)) and (_indent(row) < self._base or self._is_numbered(text, following)):
            parts = text.split()[0].strip(".").count(".") + 1 if found[1] or "." in text.split()[0] else 1
            return self._head(text, str(parts), (n, n), 1)
        is_bullet = _BULLET.fullmatch(text) is not None
        if text.isupper() and sum(char.isalpha() for char in text) > 1 and not is_bullet and not _WIDE.search(text):
            return self._head(text, "1" if _indent(row) == 0 else "2", (n, n), 1)
        if _indent(row) < self._base and not is_bullet and not _WIDE.search(text):
            return self._head(text, "1" if _indent(row) == 0 else "2", (n, n), 1)
        return 0

    def _is_numbered(self, text: str, following: _Rows) -> bool:
        """Return whether a line with a number heads what follows, rather than being an item of a list."""
        if len(text.split()) > _MOST_WORDS or not following:
            return False
        return "." in text.split(maxsplit=1)[0].rstrip(".") or not _BULLET.fullmatch(following[0][1].strip())

    def _head(self, text: str, look: str, lines: Lines, taken: int) -> int:
        level = self._levels.setdefault(look, len(self._levels) + 1)
        self._items, self._writer.depth = [], 0
        self._writer.head(min(level, 6), text.strip(), lines)
        return taken

    def _item(self, rows: _Rows) -> None:
        n, row = rows[0]
        indent, found = _indent(row), _BULLET.fullmatch(row.strip())
        assert found
        self._items = [*(each for each in self._items if each[0] < indent), (indent, row.index(found[2], indent))]
        self._writer.depth = len(self._items)
        marker = found[1] if found[1][-1] in ".)" else "-"
        # A line that does not reach under the text of the item belongs to what follows.
        own = next((at for at in range(1, len(rows)) if _indent(rows[at][1]) < indent), len(rows))
        text = " ".join([found[2], *(row.strip() for _, row in rows[1:own])])
        self._writer.add("item", text, (n, rows[own - 1][0]), marker=marker)
        self._text(rows[own:])

    def _text(self, rows: _Rows) -> None:
        """Write lines as a paragraph, as definitions, or as code."""
        if not rows:
            return
        least = min(_indent(row) for _, row in rows)
        self._items = [each for each in self._items if each[1] <= least]
        self._writer.depth = len(self._items)
        terms = [n for n, (_, row) in enumerate(rows) if _indent(row) == least]
        spans = list(zip(terms, [*terms[1:], len(rows)], strict=True))
        options = [_OPTION.fullmatch(rows[n][1].strip()) for n in terms]
        if all(options) and (len(rows) > 1 or any(found and found[2] for found in options)):
            for found, (begin, end) in zip(options, spans, strict=True):
                held = [(rows[begin][0], (found and found[2]) or ""), *rows[begin + 1 : end]]
                self._define(found[1] if found else "", held)
        elif self._is_code(rows):
            self._writer.add("code", "\n".join(row[least:] for _, row in rows), _span(rows))
        elif terms[0] == 0 and all(end - begin > 1 for begin, end in spans):
            for begin, end in spans:
                self._define(rows[begin][1].strip(), [(rows[begin][0], ""), *rows[begin + 1 : end]])
        else:
            if not self._writer.title and not self._levels and len(rows) == 1 and least > _CENTRED:
                self._writer.title = rows[0][1]
            self._writer.add("paragraph", _joined(rows), _span(rows))

    def _define(self, term: str, rows: _Rows) -> None:
        self._writer.add("definition", _joined([row for row in rows if row[1]]), _span(rows), term=term)

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


def _joined(rows: _Rows) -> str:
    """Join lines that were wrapped; where the next word would have had room, the line end was meant."""
    width = max(_WIDTH, *(len(row) for _, row in rows), 0)
    text = rows[0][1].strip() if rows else ""
    for (_, row), (_, below) in pairwise(rows):
        is_wrapped = below.lstrip()[0].islower() or len(row) + len(below.split()[0]) >= 0.6 * width
        text = (
            f"{text}{' ' if is_wrapped else chr(10)}{below.strip()}" if text[-1:] != "‐" else text[:-1] + below.strip()
        )
    return text
