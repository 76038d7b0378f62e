"""HTML and components within a text, piece by piece: an element may begin in one piece and end in another."""

from __future__ import annotations

from html.parser import HTMLParser

from intern.documents.block_builder import VOID, BlockBuilder
from intern.documents.writer import Lines


class TagReader(HTMLParser):
    """Passes the elements that it reads to `BlockBuilder`."""

    def __init__(self, elements: BlockBuilder) -> None:
        super().__init__(convert_charrefs=True)
        self._elements = elements
        self._first = 1
        self._all: Lines | None = None

    def read(self, markup: str, first_line: int, last_line: int = 0) -> None:
        """Read a piece that begins at a line of the source; with its last line, all elements get both."""
        # The time for comments that never end would grow with the square of their number.
        unclosed = markup.find("<!--", markup.rfind("-->") + 1)
        if unclosed >= 0:
            self._elements.writer.leave_out(markup[unclosed:], "a comment")
            markup = markup[:unclosed]
        self.reset()
        self._first = first_line
        self._all = (first_line, last_line) if last_line else None
        self.feed(markup)
        self.close()

    def _lines(self) -> Lines:
        line = self._first + self.getpos()[0] - 1
        return self._all or (line, line)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element."""
        self._elements.start(tag, {name: value or "" for name, value in attrs}, self._lines())

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin and end an element."""
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._elements.end(tag, self._lines())

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        self._elements.end(tag, self._lines())

    def handle_data(self, data: str) -> None:
        """Take text, with its lines."""
        first = self._first + self.getpos()[0] - 1
        last = first + data.rstrip().count("\n")
        first += data[: len(data) - len(data.lstrip())].count("\n")
        self._elements.add_text(data, self._all or (first, max(first, last)))

    def handle_comment(self, data: str) -> None:
        """Leave a comment out."""
        self._elements.writer.leave_out(" ".join(data.split()), "a comment")

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Read `<![` as browsers do, as a comment: the library fails if it is no section."""
        return self.parse_bogus_comment(i, bool(report))
