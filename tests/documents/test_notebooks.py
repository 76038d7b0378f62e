"""Notebooks as blocks: prose, code and what was printed; no picture counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from intern.documents.notebooks import parse_notebook
from intern.documents.parsing import NotADocumentError, parse_document


def notebook(*cells: dict[str, Any], language: object = "python") -> bytes:
    return json.dumps({"nbformat": 4, "metadata": {"language_info": {"name": language}}, "cells": cells}).encode()


def test_cells_are_prose_below_headings_code_and_what_it_printed() -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo=", "text/html": "<script>"}}
    printed = {"output_type": "stream", "text": ["7480\n", "x" * 5000]}
    told = {"output_type": "execute_result", "data": {"text/plain": "'ok'"}}
    failed = {"output_type": "error", "ename": "ValueError", "evalue": "no port", "traceback": ["\x1b[31mno"]}
    document = parse_notebook(
        notebook(
            {"cell_type": "markdown", "source": ["# Ports\n", "\n", "All of them."]},
            {"cell_type": "code", "source": "print(port)\n```", "outputs": [picture, printed, told, failed]},
            {"cell_type": "raw", "source": "raw"},
            {"cell_type": "code", "source": " "},
            {"cell_type": "markdown", "source": "- Last"},
        )
    )
    assert document.title == "Ports"
    assert [(block.kind, block.text[:16], block.language) for block in document.blocks] == [
        ("heading", "Ports", ""),
        ("paragraph", "All of them.", ""),
        ("code", "print(port)\n```", "python"),
        ("code", "7480\nxxxxxxxxxxx", ""),
        ("code", "'ok'", ""),
        ("code", "ValueError: no p", ""),
        ("item", "Last", ""),
    ]
    assert {above.text for block in document.blocks[1:] for above in block.path} == {"Ports"}
    assert len(document.blocks[3].text) == 1000
    assert {each.reason for each in document.left_out} == {"the rest of an output", "a raw cell"}


def test_the_size_counts_text_and_no_pictures() -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "iVBO" * 1000}}
    data = notebook({"cell_type": "code", "source": "plot()", "outputs": [picture]})
    assert len(parse_document(data, "a.ipynb", max_chars=300).blocks) == 1
    with pytest.raises(NotADocumentError, match="400 characters of text are more than the 300 allowed"):
        parse_document(notebook({"cell_type": "code", "source": "x" * 400}), "a.ipynb", max_chars=300)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"{}", b'{"cells": 1}', b'{"cells": [1]}', b'{"worksheets": []}', b"\0"),
        *(b"[" * 900_000, b'{"x": ' + b"[" * 900_000, notebook(language=5)),
    ],
)
def test_what_is_no_notebook_says_so(data: bytes) -> None:
    with pytest.raises(NotADocumentError):
        parse_document(data, "a.ipynb", max_chars=1_000_000)


def test_the_language_of_a_notebook_is_a_word() -> None:
    [block] = parse_notebook(notebook({"cell_type": "code", "source": "x"}, language="a\n```\n# Forged")).blocks
    assert block.language == ""
