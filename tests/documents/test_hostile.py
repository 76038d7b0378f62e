"""Texts made to keep a parser busy, or to end it, cost no more than others of their size."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time

import pytest

from intern.documents.blocks import Document
from intern.documents.markdown import parse_markdown
from intern.documents.restructured import parse_restructured

SIZE = 50_000
# Linear ones take at most a second; the square of their size took from 13 seconds to minutes.
SECONDS = 10


def _fill(sign: str) -> str:
    return (sign * (SIZE // len(sign) + 1))[:SIZE]


MARKDOWN = (
    *("[", "![", "[^", "^[", "*a ", "**a ", "`a ", "<b>", "<div>", "<div>\n\n", "</div>", "<p>", "<ul><li>", "<pre>"),
    *("<!--", "a <!--", "{/*", "{/*\n", "{{<", "{{< tab\n", "{% ", "{% tab %}\n", "<Ab>\n", "<Ab x={", ":::tip\n"),
    *('=== "a"\n', "!!! a\n", "```{note}\n", "[^a]: ", "a\n: b\n", "|", "> [!TIP]\n", "<p hidden>\n\n", "- a\n"),
)
RESTRUCTURED = ("*a ", "`a ", "``a ", "|a ", "[a ", "a_ ", ":a", "_", ".. a\n", ".. note::\n", "a::\n\n", "- a\n")
NESTED = (
    ">" * 300 + " a",
    "- " * 300 + "a",
    "\n".join("  " * n + "- a" for n in range(300)),
    "\n".join("    " * n + "!!! note" for n in range(300)),
    "\n".join("`" * (303 - n) + "{note}" for n in range(300)),
    "\n".join(":" * (303 - n) + "note" for n in range(300)),
    "\n".join("<Aa>" for _ in range(300)) + "\na\n" + "\n".join("</Aa>" for _ in range(300)),
    "<div>" * 600 + "a",
)
NESTED_RESTRUCTURED = (
    "- " * 300 + "a",
    "\n\n".join("  " * n + "- a" for n in range(300)),
    "\n\n".join("   " * n + ".. note::" for n in range(300)),
    "\n".join("  " * n + "a" for n in range(300)),
)


@pytest.mark.parametrize(
    ("parse", "sign"),
    [*((parse_markdown, sign) for sign in MARKDOWN), *((parse_restructured, sign) for sign in RESTRUCTURED)],
)
def test_text_that_repeats_a_sign_is_read_in_time(parse: Callable[[str], Document], sign: str) -> None:
    began = process_time()
    _read_or_refuse(parse, _fill(sign))
    assert process_time() - began < SECONDS


@pytest.mark.parametrize("text", NESTED)
def test_markdown_that_is_nested_too_deeply_is_refused_in_one_line(text: str) -> None:
    assert "nested" in _read_or_refuse(parse_markdown, text)


@pytest.mark.parametrize("text", NESTED_RESTRUCTURED)
def test_restructured_text_that_is_nested_deeply_ends_with_no_other_error(text: str) -> None:
    said = _read_or_refuse(parse_restructured, text)
    assert not said or "nested" in said


def _read_or_refuse(parse: Callable[[str], Document], text: str) -> str:
    """Return the reason for which a text is refused; empty if it is read."""
    try:
        parse(text)
    except ValueError as error:
        said = str(error)
    else:
        said = ""
    assert "\n" not in said
    return said
