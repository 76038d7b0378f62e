"""Documents as text: by what their bytes are, and nothing in them can do harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from intern.sources.files import (
    UnfitError,
    cleaned,
    code_block,
    headed,
    html_text,
    kind_of,
    notebook_text,
    plain_text,
)


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a.md", b"# Text", "text"),
        ("README", b"Text", "text"),
        ("a.yaml", b"port: 1", "text"),
        ("a.html", b"<p>Text", "html"),
        ("a.txt", b"\n <!DOCTYPE html><p>Text", "html"),
        ("a.md", b"\xef\xbb\xbf<html><p>Text", "html"),
        ("page", b'<?xml version="1.0"?><html xmlns="x">', "html"),
        ("a.md", b"<h1 align=center>Text</h1>", "text"),
        ("a.ipynb", b"{}", "notebook"),
        ("a.pdf", b"%PDF-1.7", "pdf"),
        ("a.txt", b"%PDF-1.7", "pdf"),
    ],
)
def test_a_document_is_what_its_bytes_say(name: str, data: bytes, kind: str) -> None:
    assert kind_of(name, data) == kind


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.png", b"text", r"\.png files are no documents"),
        ("a.PY", b"text", r"\.py files are no documents"),
        ("a.pdf", b"text", "no PDF"),
        ("id_rsa", b"-----BEGIN OPENSSH PRIVATE KEY-----\n", "private key"),
    ],
)
def test_what_is_no_document_says_so(name: str, data: bytes, reason: str) -> None:
    with pytest.raises(UnfitError, match=reason):
        kind_of(name, data)


def test_text_comes_as_it_was_written() -> None:
    assert plain_text("# Ü\r\n\n".encode("utf-8-sig")) == plain_text("# Ü\r\n\n".encode("utf-16")) == "# Ü\r\n\n"
    for binary in (b"a\0b", b"\xff\xfe\x00", b"\xe9t\xe9", bytes(range(1, 32)) * 9):
        with pytest.raises(UnfitError):
            plain_text(binary)


def test_a_page_is_its_content_below_its_title_and_nothing_that_runs() -> None:
    page = b"""<!doctype html><title>The relay</title><script>steal()</script><style>p{}</style><body>
    <nav>Home</nav><main><p>It listens on <b>7480</b>.<script>steal()</script></p>
    <pre>relay start\n  --port 7480</pre><p>%s</p></main>""" % (b"The agents connect to it. " * 10)
    text = html_text(page)
    assert text.startswith("# The relay\n\nIt listens on 7480.")
    assert "```\nrelay start\n  --port 7480\n```" in text
    assert [word for word in ("steal", "Home", "p{}") if word in text] == []


def test_a_page_expands_no_entities_of_its_own() -> None:
    bomb = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 20))
    page = (
        f'<!DOCTYPE html [<!ENTITY e0 "boom"><!ENTITY x SYSTEM "file:///etc/passwd">{bomb}]><p>&e19; &x; &amp; text</p>'
    )
    text = html_text(page.encode())
    assert len(text) <= len(page)
    assert "root:" not in text
    assert "& text" in text


@pytest.mark.parametrize("tangle", ["<div>", "<ul><li>", "<div><table></div></table>", "<svg></div></svg><div>"])
def test_a_page_as_deep_as_a_well_is_refused_and_not_waited_for(tangle: str) -> None:
    with pytest.raises(UnfitError, match="deep"):
        html_text((tangle * 30_000).encode())


def test_an_empty_page_is_no_document() -> None:
    with pytest.raises(UnfitError, match="without text"):
        html_text(b"<html><body><script>write()</script></body></html>")


def notebook(*cells: dict[str, Any], language: object = "python") -> bytes:
    return json.dumps({"nbformat": 4, "metadata": {"language_info": {"name": language}}, "cells": cells}).encode()


def test_a_notebook_is_its_prose_its_code_and_what_was_printed() -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo=", "text/html": "<script>"}}
    printed = {"output_type": "stream", "text": ["7480\n", "x" * 5000]}
    told = {"output_type": "execute_result", "data": {"text/plain": "'ok'"}}
    text = notebook_text(
        notebook(
            {"cell_type": "markdown", "source": ["# Ports\n", "\n", "All of them."]},
            {"cell_type": "code", "source": "print(port)\n```", "outputs": [picture, printed, told]},
            {"cell_type": "raw", "source": "raw"},
            {"cell_type": "code", "source": " "},
        )
    )
    assert text.startswith("# Ports\n\nAll of them.\n\n````python\nprint(port)\n```\n````\n\n```\n7480\nxxx")
    assert text.endswith("```\n'ok'\n```")
    assert len(text) < 1500
    assert "iVBOR" not in text
    assert "script" not in text


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"{}", b'{"cells": 1}', b'{"cells": [1]}', b'{"worksheets": []}', b"\0"),
        *(b"[" * 900_000, b'{"x": ' + b"[" * 900_000, notebook(language=5)),
    ],
)
def test_what_is_no_notebook_says_so(data: bytes) -> None:
    with pytest.raises(UnfitError):
        notebook_text(data)


def test_the_language_of_a_notebook_forges_no_fence() -> None:
    text = notebook_text(notebook({"cell_type": "code", "source": "x"}, language="a\n```\n# Forged"))
    assert text == "```\nx\n```"


@given(st.text())
def test_nothing_in_code_ends_its_block(code: str) -> None:
    lines = code_block(cleaned(code)).split("\n")
    assert [n for n, line in enumerate(lines) if line == lines[-1]] in ([0, len(lines) - 1], [len(lines) - 1])


@given(st.text(st.characters(codec=None)))
def test_cleaned_text_holds_no_control_character_and_can_be_written(text: str) -> None:
    kept = cleaned(text)
    assert cleaned(kept) == kept
    assert kept.encode().decode() == kept
    assert all(each in "\n\t" or ord(each) >= 32 for each in kept)


def test_a_title_stands_above_unless_the_text_has_its_own() -> None:
    assert headed(" A\n title ", "Text") == "# A title\n\nText"
    assert headed("Title", "# Heading\n\nText") == "# Heading\n\nText"
    assert headed("", "Text") == "Text"
