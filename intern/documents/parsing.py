"""A document from the bytes of a file, which decide its format before its name does.

All content is hostile. It is never run or fetched, and expanded within bounds only. A text that can keep a parser busy
is read in a process of its own, which runs this module: short texts take no parser longer than a second.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Literal

import msgspec
from msgspec import structs

from intern.documents.asciidoc import LEAST_ADDED, MOST_ADDED, MOST_INCLUDED, parse_asciidoc
from intern.documents.blocks import Document
from intern.documents.html import decode_page, read_html
from intern.documents.notebooks import parse_notebook
from intern.documents.pdfs import parse_pdf
from intern.documents.plain import parse_plain, parse_settings
from intern.documents.sandboxed import ask_sandboxed, serve_sandboxed
from intern.documents.writer import clean_characters

Format = Literal["markdown", "restructured", "asciidoc", "plain", "settings", "html", "notebook", "pdf"]

_FORMATS: dict[str, Format] = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".md", ".markdown", ".mdx", ".mkd", ".mdown", ".qmd", ".rmd", ".myst"), "markdown"),
    **dict.fromkeys((".rst", ".rest"), "restructured"),
    **dict.fromkeys((".adoc", ".asciidoc", ".asc"), "asciidoc"),
    **dict.fromkeys((".toml", ".yaml", ".yml", ".ini", ".cfg", ".conf", ".properties", ".service", ".tf"), "settings"),
    ".ipynb": "notebook",
    ".pdf": "pdf",
}

# Files with another ending, or none, are read if their bytes are text.
_NO_DOCUMENTS = """
avif bmp gif ico jpeg jpg png psd svg tif tiff webp avi flac m4a mkv mov mp3 mp4 ogg wav webm eot otf ttf woff woff2
7z bz2 gz jar rar tar tgz whl xz zip zst doc docx epub odp ods odt ppt pptx xls xlsx a bin class dll dylib exe o pyc
pyd so wasm bat c cc cjs cpp cs css go h hpp java js jsx kt less lua map mjs php pl ps1 py pyi rb rs sass scss sh sql
swift ts tsx vue bib csv db json jsonl lock log parquet pickle po pot mo sqlite tsv xml env jks kdbx key p12 pem pfx
"""
_ENDINGS = frozenset(f".{ending}" for ending in _NO_DOCUMENTS.split())

# Bytes that text has no use for; a few do no harm, as in the output of a terminal.
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\v\f\r\b\x1b") + b"\x7f"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_LINE_ENDS = re.compile(r"\r\n?")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_ACCENTED = re.compile(r"[^\x00-\x7f]")
_MULTIBYTE = re.compile(r"[^\x00-\x7f\ufffd]")

_REST_SIGNS = re.compile(
    r"(?m)^\.\. (?:[\w:+-]{1,40}::(?:\s|$)|_[^\n:]{1,100}:|\|[^|\n]{1,60}\| )|:[\w:+-]{2,30}:`[^`\n]{1,200}`"
    r"|`[^`<>\n]{1,100} <[^<>\n]{1,300}>`__?(?!\w)"
)
_MARKDOWN_SIGNS = re.compile(
    r"(?m)^ {0,3}(?:```|~~~)|^#{2,5} \S|(?<!\w)\[[^\[\]\n]{1,200}\]\((?:https?:|#|\.{0,2}/|\w)[^()\n]{0,300}\)"
    r"|^(?=[^\n]{0,300}\|)(?=[^\n]{0,300}---)[ :|-]{5,300}$|(?<![\w*])\*\*[^\s*][^*\n]{0,200}\*\*(?![\w*])"
)
_MARKDOWN_TITLE = re.compile(r"\A\s*# \S[^\n]*\n[ \t]*(?:\n|\Z)")
_INCLUDE = re.compile(r"(?m)^\.\. include:: ([^\s<>]{1,300})[ \t]*(?:\n(?![ \t]+:)|\Z)")
_LEAST_SIGNS = 2
_LOOKED_AT = 200_000  # characters

# Characters that keep a parser of texts busy for 0.8 seconds at worst.
_HARMLESS = 8000
MOST_MARKUP = 20
"""The most times as long as its text that a file may be: the pictures in it do not count."""


class NotADocumentError(Exception):
    """The file is no document; the message gives the reason."""


def parse_document(
    data: bytes, name: str, *, max_chars: int, read: Callable[[str], str | None] | None = None
) -> Document:
    """Return the bytes of a file as a document. `read` returns other files of the folder by their paths. May block.

    Raises NotADocumentError if it is no document, or holds more than `max_chars` characters of text.
    """
    format_ = detect_format(name, data)
    try:
        if format_ == "pdf":
            document = parse_pdf(data, max_chars)
        else:
            text, oddities = decode_text(data, is_html=format_ == "html")
            if len(text) > MOST_MARKUP * max_chars:
                raise NotADocumentError(
                    f"its {len(text)} characters are more than {MOST_MARKUP} times the {max_chars} allowed"
                )
            document = _parse_format(text, name, format_, read)
            document = structs.replace(document, oddities=oddities)
    except ValueError as error:
        raise NotADocumentError(str(error)) from None
    size = sum(len(block.text) + len(block.term) for block in document.blocks)
    if size > max_chars and format_ != "pdf":
        raise NotADocumentError(
            f"its {size} characters of text are more than the {max_chars} allowed (kb.max_source_bytes)"
        )
    return document


def detect_format(name: str, data: bytes) -> Format:
    """Return the format of a file by its bytes and its ending. Raises NotADocumentError if it is not readable."""
    check_ending(name)
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    named = format_by_ending(name)
    if head.startswith(b"%pdf-"):
        return "pdf"
    if named == "pdf":
        raise NotADocumentError("it is no PDF, although its name ends with .pdf")
    if head.startswith((b"<!doctype html", b"<html")) or (head.startswith(b"<?xml") and b"<html" in head):
        return "html"
    if named in {"plain", "settings"} and head.startswith(b"-----begin ") and b"private key" in head:
        raise NotADocumentError("it is a private key")
    return named


def format_by_ending(name: str) -> Format:
    """Return the format of a file by its ending alone."""
    return _FORMATS.get(_ending(name), "plain")


def check_ending(name: str) -> None:
    """Raise NotADocumentError for endings of files that are never documents."""
    if (ending := _ending(name)) in _ENDINGS:
        raise NotADocumentError(f"{ending} files are no documents")


def _ending(name: str) -> str:
    """Return the ending as pathlib does, in a tenth of the time: this runs for each source of each answer."""
    file = name.rpartition("/")[2]
    dot = file.rfind(".")
    return file[dot:].lower() if 0 < dot < len(file) - 1 else ""


def decode_text(data: bytes, *, is_html: bool = False) -> tuple[str, tuple[str, ...]]:
    r"""Return a text with `\n` at its line ends and without characters that no text holds, and its oddities.

    Raises NotADocumentError if the bytes are not text.
    """
    oddities: list[str] = []
    if data.startswith(_UTF_16):
        text = data.decode("utf-16", "replace")
        oddities.append("it is UTF-16")
    elif len(data) - len(data.translate(None, _CONTROLS)) > len(data) // 20:
        raise NotADocumentError("it is binary, not text")
    elif is_html:
        text = decode_page(data)
    else:
        text = data.decode("utf-8-sig", "replace")
        broken = text.count("\ufffd") - data.count("\ufffd".encode())
        if broken and broken > sum(1 for _ in _MULTIBYTE.finditer(text)) // 4:
            text = _decode_windows_1252(data)
            oddities.append("it is Windows-1252, not UTF-8")
        elif broken:
            oddities.append("some of its bytes are no UTF-8")
    if "\0" in text:
        oddities.append("it holds NUL characters")
        text = text.replace("\0", "\ufffd")
    return clean_characters(_ESCAPES.sub("", _LINE_ENDS.sub("\n", text))), tuple(oddities)


def _decode_windows_1252(data: bytes) -> str:
    """Decode Windows-1252. Raises NotADocumentError for bytes of another encoding: few letters have accents."""
    text = data.decode("cp1252", "replace")
    if 4 * sum(1 for _ in _ACCENTED.finditer(text)) > sum(map(str.isalpha, text)) or "\ufffd" in text:
        raise NotADocumentError("it is not UTF-8 text; save it as that")
    return text


def _parse_format(text: str, name: str, format_: Format, read: Callable[[str], str | None] | None) -> Document:
    if format_ == "html":
        page = read_html(text)
        if not page.document.blocks:
            raise ValueError("it is a page without text")
        return page.document
    if format_ == "notebook":
        return parse_notebook(text)
    if format_ == "settings":
        return parse_settings(text, _ending(name)[1:])
    if format_ == "asciidoc":
        # Its time grows with its length, and it asks for other files.
        return parse_asciidoc(text, read, posixpath.normpath(name))
    if format_ == "plain":
        format_ = _guess_format(text)
    if format_ == "restructured" and read:
        text = _insert_includes(text, posixpath.normpath(name), read, [MOST_ADDED])
    if len(text) <= _HARMLESS:
        return _PARSERS[format_](text)
    result = ask_sandboxed(__name__, Document | str, msgspec.json.encode((format_, text)))
    if isinstance(result, Document):
        return result
    raise ValueError(result)


def _insert_includes(text: str, name: str, read: Callable[[str], str | None], room: list[int], depth: int = 1) -> str:
    """Replace the directives of a reST text that include whole files of the folder by these files.

    These are not indented: an indented one is mostly an example.
    """

    def insert_file(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), found[1]))
        is_inside = room[0] > 0 and depth <= MOST_INCLUDED and not path.startswith(("/", ".."))
        held = read(path) if is_inside else None
        room[0] -= max(len(held or ""), LEAST_ADDED)
        if held is None or room[0] < 0:
            return found[0]  # the parser reports that it is left out
        return _insert_includes(held, path, read, room, depth + 1) + "\n"

    return _INCLUDE.sub(insert_file, text)


def _guess_format(text: str) -> Format:
    """Return the markup that a text clearly uses: many a README has no ending, and Sphinx publishes `.rst.txt`."""
    if len(_REST_SIGNS.findall(text, 0, _LOOKED_AT)) >= _LEAST_SIGNS:
        return "restructured"
    is_markdown = _MARKDOWN_TITLE.match(text) or len(_MARKDOWN_SIGNS.findall(text, 0, _LOOKED_AT)) >= _LEAST_SIGNS
    return "markdown" if is_markdown else "plain"


def _parse_markdown(text: str) -> Document:
    from intern.documents.markdown import parse_markdown  # noqa: PLC0415 loads markdown-it

    return parse_markdown(text)


def _parse_restructured(text: str) -> Document:
    from intern.documents.restructured import parse_restructured  # noqa: PLC0415 loads docutils

    return parse_restructured(text)


_PARSERS: dict[str, Callable[[str], Document]] = {
    "markdown": _parse_markdown,
    "restructured": _parse_restructured,
    "plain": parse_plain,
}


def _parse_encoded(data: bytes) -> bytes:
    format_, text = msgspec.json.decode(data, type=tuple[str, str])
    try:
        return msgspec.json.encode(_PARSERS[format_](text))
    except ValueError as error:
        return msgspec.json.encode(str(error))


if __name__ == "__main__":
    serve_sandboxed(_parse_encoded, load=partial(import_module, "intern.documents.restructured"))
