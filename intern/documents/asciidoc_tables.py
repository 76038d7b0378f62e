"""Tables of AsciiDoc: their cells, and the rows that these make."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from intern.core.text.patterns import regex
from intern.documents.asciidoc_lines import Line

_MOST_COLUMNS = 60
_SPEC = r"(?:(?P<across>\d{1,2})?(?:\.(?P<down>\d{1,2}))?(?P<many>[*+]))?(?:[<^>]?\.[<^>]|[<^>])?(?P<style>[adehlmsv])?"
_COLUMN = regex(r"(?:(\d{1,2})\*)?[^*]*?([adehlmsv])?")


class Cell(NamedTuple):
    """A cell with its lines."""

    lines: list[Line]
    style: str = ""
    across: int = 1
    down: int = 1
    times: int = 1


Row = Sequence[Cell | None]


class Table(NamedTuple):
    """A table; None stands where a cell reaches from the left or from above."""

    rows: list[Row]
    has_header: bool


def read_table(lines: Sequence[Line], given: Mapping[str, str], mark: str) -> Table:
    """Read the lines of a table whose block has these attributes. Raises csv.Error."""
    styles: list[str] = []
    for part in given["cols"].replace(";", ",").split(",") if given.get("cols") else ():
        found = _COLUMN.fullmatch(part.strip())
        styles += [found[2] or ""] * min(int(found[1] or 1), _MOST_COLUMNS) if found else [""]
    shape = given.get("format", {",": "csv", ":": "dsv"}.get(mark, ""))
    separator = given.get("separator", "")[:1] or {"csv": ",", "dsv": ":", "tsv": "\t"}.get(shape, mark)
    first = next((line.number for line in lines if line.text.strip()), 0)
    rows: list[Row] = []
    if shape in {"csv", "dsv", "tsv"}:
        rows += _values_of(lines, separator)
    else:
        cells = _cells_of(lines, separator)
        begun = sum(cell.across for cell in cells if cell.lines and cell.lines[0].number == first)
        rows += _rows_of(cells, len(styles) or begun)
    of_columns = dict(enumerate(styles))
    rows = [
        [cell and cell._replace(style=cell.style or of_columns.get(n, "")) for n, cell in enumerate(row)]
        for row in rows
    ]
    return Table(rows, _has_header(rows, lines, given.get("options", "")))


def _has_header(rows: Sequence[Row], lines: Sequence[Line], options: str) -> bool:
    """Return whether it says so, or the first line holds the first row and an empty one stands below it."""
    if "header" in options:
        return "noheader" not in options
    if len(rows) < 2 or len(lines) < 2 or not lines[0].text.strip() or lines[1].text.strip():
        return False
    held = (line for cell in rows[0] if cell for line in cell.lines)
    return all(line.number == lines[0].number for line in held if line.text.strip())


def _cells_of(lines: Sequence[Line], separator: str) -> list[Cell]:
    """Split the lines of a table at its separators; what is written right before one tells how its cell is."""
    pattern = re.compile(rf"(?:(?:^|(?<=\s)){_SPEC})?(?<!\\){re.escape(separator)}")  # noqa: TID251 of this text
    cells: list[Cell] = []
    for line in lines:
        at = 0
        for found in pattern.finditer(line.text):
            _continue(cells, line, line.text[at : found.start()], separator)
            across, down = int(found["across"] or 1), int(found["down"] or 1)
            is_many = found["many"] == "*"
            cells.append(
                Cell([], found["style"] or "", 1 if is_many else across or 1, down or 1, across if is_many else 1)
            )
            at = found.end()
        _continue(cells, line, line.text[at:], separator)
    return [cell for cell in cells for _ in range(cell.times)]


def _continue(cells: list[Cell], line: Line, text: str, separator: str) -> None:
    if not text.strip() and (not cells or line.text.strip()):
        return  # nothing between two cells; an empty line parts the paragraphs of one
    if not cells:
        cells.append(Cell([]))
    cells[-1].lines.append(line._replace(text=text.replace(f"\\{separator}", separator)))


def _values_of(lines: Sequence[Line], delimiter: str) -> list[list[Cell]]:
    """Split lines of values, which may be quoted. Raises csv.Error."""
    rows: list[list[Cell]] = []
    reader = csv.reader([line.text + "\n" for line in lines], delimiter=delimiter, skipinitialspace=True)
    for values in reader:
        line = lines[reader.line_num - 1]
        rows += [[Cell([line._replace(text=value)]) for value in values]] if any(values) else []
    return rows


def _rows_of(cells: Sequence[Cell], width: int) -> Iterator[list[Cell | None]]:
    """Put cells into rows; None stands where one reaches from the left or from above."""
    width = max(min(width, _MOST_COLUMNS), 1)
    below = [0] * width
    row: list[Cell | None] = []
    for cell in cells:
        _reach_down(row, below)
        if len(row) >= width:
            yield row
            row = []
            if all(below):
                least = min(below)
                below[:] = [each - least for each in below]
            _reach_down(row, below)
        across = min(cell.across, width - len(row)) or 1
        below[len(row) : len(row) + across] = [cell.down - 1] * across
        row += [cell, *[None] * (across - 1)]
    if any(row):
        yield row


def _reach_down(row: list[Cell | None], below: list[int]) -> None:
    while len(row) < len(below) and below[len(row)]:
        below[len(row)] -= 1
        row.append(None)
