"""PDFs as blocks, page by page, read by pypdf in a process of its own, which runs this module."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO

import msgspec
from msgspec import Struct

from intern.core.install_hints import format_install_hint
from intern.documents.blocks import Document
from intern.documents.plain import write_plain
from intern.documents.sandboxed import ask_sandboxed, serve_sandboxed
from intern.documents.writer import DocumentWriter, clean_characters

_LONGEST_TITLE = 120


class _PdfText(Struct):
    title: str = ""
    pages: list[str] = []
    trouble: str = ""


def parse_pdf(data: bytes, max_chars: int) -> Document:
    """Return the text of a PDF, up to `max_chars`. Raises ValueError if it cannot be read."""
    if find_spec("pypdf") is None:
        raise ValueError(f"it is a PDF; to have those read, {format_install_hint('pdf')}")
    said: _PdfText = ask_sandboxed(__name__, _PdfText, data, str(max_chars))
    if said.trouble:
        raise ValueError(f"it is a PDF that {said.trouble}")
    writer, line = DocumentWriter(), 1
    writer.title = said.title[:_LONGEST_TITLE]
    for page in said.pages:
        write_plain(writer, page, line)
        line += page.count("\n") + 1
    document = writer.build_document()
    if not document.blocks:
        raise ValueError("it is a PDF without text, perhaps of scanned pages")
    return document


def _read_pdf(max_chars: int, data: bytes) -> bytes:
    from pypdf.errors import DependencyError, PyPdfError  # noqa: PLC0415 an extra, and only this process needs it

    try:
        said = _extract_text(max_chars, data)
    except DependencyError:
        said = _PdfText(trouble="is encrypted in a way that is not read")
    except PyPdfError:
        said = _PdfText(trouble="is damaged")
    return msgspec.json.encode(said)


def _extract_text(max_chars: int, data: bytes) -> _PdfText:
    from pypdf import PdfReader  # noqa: PLC0415

    reader = PdfReader(BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return _PdfText(trouble="wants a password")
    pages: list[str] = []
    for page in reader.pages:
        pages.append(clean_characters(page.extract_text())[:max_chars])
        max_chars -= len(pages[-1])
        if max_chars <= 0:
            break
    title = reader.metadata.title if reader.metadata else None
    return _PdfText(title=clean_characters(title or "")[: 10 * _LONGEST_TITLE], pages=pages)


if __name__ == "__main__":
    serve_sandboxed(partial(_read_pdf, int(sys.argv[1])), load=lambda: import_module("pypdf"))
