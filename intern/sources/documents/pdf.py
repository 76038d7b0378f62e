"""The text of PDF files, by pypdf, in a process of its own (see `intern.sources.documents.sandboxed`).

Started as a module, this file is that process: a PDF on stdin, a `_Said` on stdout.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.util import find_spec
from io import BytesIO

import msgspec
from msgspec import Struct

from intern.sources.documents.extracting import NoTextError, cleaned, headed
from intern.sources.documents.sandboxed import SECONDS, BrokenError, TooLongError, be_apart, work_apart

_LONGEST_TITLE = 120


def pdf_text(data: bytes, max_chars: int) -> str:
    """The text, page by page up to `max_chars`, below the title that the file gives itself. Raises NoTextError."""
    if find_spec("pypdf") is None:
        raise NoTextError("it is a PDF; to have those read, install intern[pdf] (pip install 'intern[pdf]')")
    try:
        said = msgspec.json.decode(work_apart(__name__, data, str(max_chars)), type=_Said)
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


class _Said(Struct):
    title: str = ""
    text: str = ""
    trouble: str = ""


def _read(max_chars: int, data: bytes) -> bytes:
    from pypdf.errors import DependencyError, PyPdfError  # noqa: PLC0415 an extra, and only this process needs it

    try:
        said = _text(max_chars, data)
    except DependencyError:
        said = _Said(trouble="is encrypted in a way that is not read")
    except PyPdfError:
        said = _Said(trouble="is damaged")
    return msgspec.json.encode(said)


def _text(max_chars: int, data: bytes) -> _Said:
    from pypdf import PdfReader  # noqa: PLC0415

    reader = PdfReader(BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return _Said(trouble="wants a password")
    text = ""
    for page in reader.pages:
        text += page.extract_text() + "\n\n"
        if len(text) >= max_chars:
            break
    title = reader.metadata.title if reader.metadata else None
    return _Said(title=_whole(title or "")[: 10 * _LONGEST_TITLE], text=_whole(text[:max_chars].rstrip("\n")))


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


if __name__ == "__main__":
    be_apart(partial(_read, int(sys.argv[1])))
