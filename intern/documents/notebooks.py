"""Jupyter's notebooks as blocks: their prose, their code, and the beginning of each cell's output.

Pictures do not count, neither as text nor for the size. Lines are those of the cells, one below the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

import msgspec
from msgspec import Struct

from intern.documents.blocks import Document
from intern.documents.markdown import MarkdownReader
from intern.documents.writer import DocumentWriter

# Characters of an output: enough for a message, too few for a table of thousands of rows.
_MOST_OUTPUT = 1000
_LANGUAGE = re.compile(r"[A-Za-z][\w+#-]{0,30}")
_COLOURS = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")


class _NotebookOutput(Struct):
    text: str | list[str] = ""
    data: dict[str, object] = {}
    ename: str = ""
    evalue: str = ""


class _NotebookCell(Struct):
    cell_type: str = ""
    source: str | list[str] = ""
    outputs: list[_NotebookOutput] = []


class _NotebookLanguage(Struct, frozen=True):
    name: str = ""


class _NotebookMetadata(Struct, frozen=True):
    language_info: _NotebookLanguage = _NotebookLanguage()


class _Notebook(Struct):
    cells: list[_NotebookCell]
    metadata: _NotebookMetadata = _NotebookMetadata()


def parse_notebook(data: bytes | str) -> Document:
    """Return a notebook as blocks. Raises ValueError if it is none."""
    try:
        notebook = msgspec.json.decode(data, type=_Notebook)
    except (msgspec.DecodeError, RecursionError):
        raise ValueError("it is no notebook of format 4") from None
    language = notebook.metadata.language_info.name
    language = language if _LANGUAGE.fullmatch(language) else ""
    writer, line = DocumentWriter(), 1
    for cell in notebook.cells:
        source = _join_text(cell.source)
        last = line + source.count("\n")
        if cell.cell_type == "markdown":
            MarkdownReader(writer).read(source, line - 1)
        elif cell.cell_type == "code":
            writer.add_block("code", source, (line, last), language=language)
            for printed in _read_outputs(cell):
                writer.add_block("code", printed[:_MOST_OUTPUT], (line, last))
                writer.leave_out(printed[_MOST_OUTPUT:], "the rest of an output")
        else:
            writer.leave_out(source, "a raw cell")
        line = last + 2
    return writer.build_document()


def _read_outputs(cell: _NotebookCell) -> Iterator[str]:
    for output in cell.outputs:
        error = f"{output.ename}: {output.evalue}" if output.ename else ""
        yield _COLOURS.sub("", _join_text(output.text) or _join_text(output.data.get("text/plain", "")) or error)


def _join_text(lines: object) -> str:
    """Return a text, which notebooks hold as one string or as a list of lines."""
    text = lines if isinstance(lines, str) else ""
    if isinstance(lines, list):
        text = "".join(map(str, cast("list[object]", lines)))
    return text.replace("\r\n", "\n")
