"""Tables of AsciiDoc: their cells, and the rows that these make."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
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


class Columns(NamedTuple):
    """The columns of a table: the style of each."""

    styles: list[str]

    @classmethod
    def of(cls, text: str) -> Columns:
        """Read what `cols` says: `1,2a` or `3*`."""
        styles: list[str] = []
        for part in text.replace(";", ",").split(",") if text else ():
            found = _COLUMN.fullmatch(part.strip())
            styles += [found[2] or ""] * int(found[1] or 1) if found else [""]
        return cls(styles[:_MOST_COLUMNS])


def cells_of(lines: Sequence[Line], separator: str) -> list[Cell]:
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


def values_of(lines: Sequence[Line], delimiter: str) -> list[list[Cell]]:
    """Split lines of values, which may be quoted. Raises csv.Error."""
    rows: list[list[Cell]] = []
    reader = csv.reader([line.text + "\n" for line in lines], delimiter=delimiter, skipinitialspace=True)
    for values in reader:
        line = lines[reader.line_num - 1]
        rows += [[Cell([line._replace(text=value)]) for value in values]] if any(values) else []
    return rows


def rows_of(cells: Sequence[Cell], width: int) -> Iterator[list[Cell | None]]:
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
