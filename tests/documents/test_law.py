"""Each visible word of a document is in one block, of the expected kind and place; no hidden word is in any."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import structs

from intern.documents.blocks import Document
from intern.documents.html import _read_markup
from intern.documents.markdown import parse_markdown
from intern.documents.restructured import parse_restructured
from tests.documents.html_table import HTML
from tests.documents.law import Author, Construct, Written, documents, faults
from tests.documents.markdown_table import MARKDOWN
from tests.documents.restructured_table import RESTRUCTURED

# Pages with less to read are read with their navigation.
_FILLER = "<p>" + "filler " * 40 + "</p>"


def _read_page(text: str) -> Document:
    document = _read_markup(f"<body>{text}{_FILLER}", "").document
    return structs.replace(document, blocks=document.blocks[:-1])


Parse = Callable[[str], Document]
FORMATS: dict[str, tuple[Parse, Sequence[Construct]]] = {
    "Markdown": (parse_markdown, MARKDOWN),
    "reStructuredText": (parse_restructured, RESTRUCTURED),
    "HTML": (_read_page, HTML),
}
CONSTRUCTS = [
    pytest.param(name, construct, id=f"{name} {construct.written[:40]!r}")
    for name, (_, table) in FORMATS.items()
    for construct in table
]


def _check(name: str, parts: Sequence[Written]) -> None:
    parse, _ = FORMATS[name]
    author = Author()
    source = author.write(parts)
    found = list(faults(source, author, parse("\n".join(source) + "\n")))
    assert not found, "\n".join([*source, "", *found])


@pytest.mark.parametrize(("name", "construct"), CONSTRUCTS)
def test_each_construct_is_read_alone_and_among_paragraphs(name: str, construct: Construct) -> None:
    paragraph = Written(FORMATS[name][1][0], [])
    part = Written(construct, [paragraph, paragraph] if construct.is_open else [])

    _check(name, [part])
    _check(name, [paragraph, part, paragraph])


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_each_word_stands_in_its_block(name: str, data: st.DataObject) -> None:
    _check(name, data.draw(documents(FORMATS[name][1])))
