"""The readable text of a document, by what its bytes are and not only by what its name says.

All of it is hostile: what comes out is text without control characters, no longer than what went in (but for the marks
that show its structure, such as headings and code blocks), and nothing in it was run, fetched or expanded.

PDF files are read by pypdf in a process of its own (see `intern.sources.html`), which this module is
when it is started: a PDF on stdin, a `_PdfText` on stdout.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from io import BytesIO
from typing import Literal, cast

import msgspec
from msgspec import Struct

from intern.sources.html import SECONDS, BrokenError, TooLongError, decoded, read_html, run_sandboxed, serve_sandboxed

# Invisible: control characters but for tab and line break.
_UNWANTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HALVES = re.compile(r"[\ud800-\udfff]")
_GAPS = re.compile(r"\n{3,}")
_BACKTICKS = re.compile(r"`{3,}")


def headed(title: str, text: str) -> str:
    """Put a title above a text that has no first heading of its own."""
    line = " ".join(cleaned(title).split())
    return f"# {line}\n\n{text}" if line and not text.startswith("# ") else text


def code_block(code: str, language: str = "") -> str:
    """Make a code block whose fence the code does not contain."""
    fence = "`" * (max(map(len, _BACKTICKS.findall(code)), default=2) + 1)
    body = code.strip("\n")
    return f"{fence}{language}\n{body}\n{fence}"


def cleaned(text: str) -> str:
    """Remove control characters, half surrogates, blanks at the ends of lines, and runs of empty lines."""
    bare = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    whole = _HALVES.sub("\ufffd", _UNWANTED.sub("", bare))
    return _GAPS.sub("\n\n", "\n".join(line.rstrip() for line in whole.split("\n"))).strip("\n")


Kind = Literal["text", "html", "notebook", "pdf"]

_KINDS: dict[str, Kind] = {".html": "html", ".htm": "html", ".xhtml": "html", ".ipynb": "notebook", ".pdf": "pdf"}

# Files with another ending, or none, are read if their bytes are text.
_NO_DOCUMENTS = frozenset(
    f".{ending}"
    for endings in (
        "avif bmp gif ico jpeg jpg png psd svg tif tiff webp",
        "avi flac m4a mkv mov mp3 mp4 ogg wav webm",
        "eot otf ttf woff woff2",
        "7z bz2 gz jar rar tar tgz whl xz zip zst",
        "doc docx epub odp ods odt ppt pptx xls xlsx",
        "a bin class dll dylib exe o pyc pyd so wasm",
        "bat c cc cjs cpp cs css go h hpp java js jsx kt less lua map mjs php pl ps1 py pyi rb rs sass scss sh sql",
        "swift ts tsx vue",
        "bib csv db json jsonl lock log parquet pickle po pot mo sqlite tsv xml",
        "env jks kdbx key p12 pem pfx",
    )
    for ending in endings.split()
)

# Bytes that text has no use for; a few do no harm, as in the output of a terminal.
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\b\x1b") + b"\x7f"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_LANGUAGE = re.compile(r"[A-Za-z][\w+#-]{0,30}")

# Characters of an output: enough for a message, too few for a table of thousands of rows.
_MOST_OUTPUT = 1000


class NoTextError(Exception):
    """A file without readable text; the message gives the reason."""


def kind_of(name: str, data: bytes) -> Kind:
    """Return the kind of a file by its bytes. Raises NoTextError if it is not readable."""
    check_ending(name)
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    named = _KINDS.get(_ending(name), "text")
    if head.startswith(b"%pdf-"):
        return "pdf"
    if named == "pdf":
        raise NoTextError("it is no PDF, although its name ends with .pdf")
    if head.startswith((b"<!doctype html", b"<html")) or (head.startswith(b"<?xml") and b"<html" in head):
        return "html"
    if named == "text" and head.startswith(b"-----begin ") and b"private key" in head:
        raise NoTextError("it is a private key")
    return named


def check_ending(name: str) -> None:
    """Raise NoTextError for endings of files that are never documents."""
    if (ending := _ending(name)) in _NO_DOCUMENTS:
        raise NoTextError(f"{ending} files are no documents")


def _ending(name: str) -> str:
    """Return the ending as pathlib does, in a tenth of the time: this runs for each source of each answer."""
    file = name.rpartition("/")[2]
    dot = file.rfind(".")
    return file[dot:].lower() if 0 < dot < len(file) - 1 else ""


def plain_text(data: bytes) -> str:
    """Decode a text, without its byte order mark. Raises NoTextError if the bytes are not text."""
    if data.startswith(_UTF_16):
        return _decoded(data, "utf-16")
    if b"\0" in data or len(data) - len(data.translate(None, _CONTROLS)) > len(data) // 20:
        raise NoTextError("it is binary, not text")
    return _decoded(data, "utf-8-sig")


def html_text(data: bytes) -> str:
    """Return the main content of a page as Markdown, below its title. Raises NoTextError."""
    try:
        page = read_html(plain_text(data) if data.startswith(_UTF_16) else decoded(data))
    except ValueError as error:
        raise NoTextError(str(error)) from None
    text = cleaned(page.text)
    if not text:
        raise NoTextError("it is a page without text")
    return headed(page.title, text)


def notebook_text(data: bytes) -> str:
    """Return a notebook's prose and code, with the beginning of each printed output. Raises NoTextError."""
    try:
        notebook = msgspec.json.decode(plain_text(data).encode("utf-8", "replace"), type=_Notebook)
    except (msgspec.DecodeError, RecursionError):
        raise NoTextError("it is no notebook of format 4") from None
    language = notebook.metadata.language_info.name
    known = language if _LANGUAGE.fullmatch(language) else ""
    return cleaned("\n\n".join(piece for cell in notebook.cells for piece in _pieces(cell, known)))


class _Output(Struct):
    text: str | list[str] = ""
    data: dict[str, object] = {}


class _Cell(Struct):
    cell_type: str = ""
    source: str | list[str] = ""
    outputs: list[_Output] = []


class _Language(Struct, frozen=True):
    name: str = ""


class _Metadata(Struct, frozen=True):
    language_info: _Language = _Language()


class _Notebook(Struct):
    cells: list[_Cell]
    metadata: _Metadata = _Metadata()


def _decoded(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError:
        raise NoTextError("it is not UTF-8 text") from None


def _pieces(cell: _Cell, language: str) -> Iterator[str]:
    source = _whole(cell.source)
    if cell.cell_type == "markdown":
        yield source
    elif cell.cell_type == "code" and source.strip():
        yield code_block(source, language)
        for output in cell.outputs:
            printed = _whole(output.text) or _whole(output.data.get("text/plain", ""))
            if printed.strip():
                yield code_block(printed[:_MOST_OUTPUT])


def _whole(lines: object) -> str:
    """Notebooks hold a text as one string, or as a list of lines."""
    if isinstance(lines, str):
        return lines
    return "".join(map(str, cast("list[object]", lines))) if isinstance(lines, list) else ""


_LONGEST_TITLE = 120


def pdf_text(data: bytes, max_chars: int) -> str:
    """Return the text of a PDF, page by page up to `max_chars`, below its own title. Raises NoTextError."""
    if find_spec("pypdf") is None:
        raise NoTextError("it is a PDF; to have those read, install intern[pdf] (pip install 'intern[pdf]')")
    try:
        said = msgspec.json.decode(run_sandboxed(__name__, data, str(max_chars)), type=_PdfText)
    except TooLongError:
        raise NoTextError(f"it is a PDF that could not be read within {SECONDS} seconds") from None
    except (BrokenError, msgspec.DecodeError):
        raise NoTextError("it is a PDF that is damaged, or needs too much memory") from None
    if said.trouble:
        raise NoTextError(f"it is a PDF that {said.trouble}")
    text = cleaned(said.text)
    if not text.strip():
        raise NoTextError("it is a PDF without text, perhaps of scanned pages")
    return headed(said.title[:_LONGEST_TITLE], text)


class _PdfText(Struct):
    title: str = ""
    text: str = ""
    trouble: str = ""


def _read_pdf(max_chars: int, data: bytes) -> bytes:
    from pypdf.errors import DependencyError, PyPdfError  # noqa: PLC0415 an extra, and only this process needs it

    try:
        said = _text_of_pdf(max_chars, data)
    except DependencyError:
        said = _PdfText(trouble="is encrypted in a way that is not read")
    except PyPdfError:
        said = _PdfText(trouble="is damaged")
    return msgspec.json.encode(said)


def _text_of_pdf(max_chars: int, data: bytes) -> _PdfText:
    from pypdf import PdfReader  # noqa: PLC0415

    reader = PdfReader(BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return _PdfText(trouble="wants a password")
    text = ""
    for page in reader.pages:
        text += page.extract_text() + "\n\n"
        if len(text) >= max_chars:
            break
    title = reader.metadata.title if reader.metadata else None
    return _PdfText(
        title=_encodable(title or "")[: 10 * _LONGEST_TITLE], text=_encodable(text[:max_chars].rstrip("\n"))
    )


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


if __name__ == "__main__":
    serve_sandboxed(partial(_read_pdf, int(sys.argv[1])))
