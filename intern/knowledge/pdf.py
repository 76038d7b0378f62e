"""The text of PDF files, by pypdf, in a process of its own: a file can keep a parser busy for hours, or eat all memory.

Started as a module, this file is that process: a PDF on stdin, a `_Said` on stdout. It has no network to ask, no
environment to leak, and bounds on memory and time.
"""

from __future__ import annotations

import logging
import resource
import subprocess
import sys
from importlib.util import find_spec
from io import BytesIO

import msgspec
from msgspec import Struct

from intern.text.extracting import NoTextError
from intern.text.marking import cleaned, headed

_SECONDS = 20
_MEMORY = 1 << 30  # bytes
_LONGEST_TITLE = 120


def pdf_text(data: bytes, max_chars: int) -> str:
    """The text, page by page, below the title that the file gives itself. Raises NoTextError.

    What is beyond `max_chars` is left out, but for the page that they end in.
    """
    if find_spec("pypdf") is None:
        raise NoTextError("it is a PDF; to have those read, install intern[pdf] (pip install 'intern[pdf]')")
    command = [sys.executable, "-I", "-m", "intern.knowledge.pdf", str(max_chars)]
    try:
        # Our own code; what is hostile goes in by stdin.
        done = subprocess.run(  # noqa: S603
            command, input=data, capture_output=True, check=False, timeout=_SECONDS, env={}
        )
    except subprocess.TimeoutExpired:
        raise NoTextError(f"it is a PDF that could not be read within {_SECONDS} seconds") from None
    try:
        said = msgspec.json.decode(done.stdout, type=_Said)
    except msgspec.DecodeError:
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


def _read(data: bytes, max_chars: int) -> _Said:
    from pypdf import PdfReader  # noqa: PLC0415 an extra, and only this process needs it
    from pypdf.errors import PyPdfError  # noqa: PLC0415

    try:
        reader = PdfReader(BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            return _Said(trouble="wants a password")
        pages: list[str] = []
        room = max_chars
        for page in reader.pages:
            pages.append(page.extract_text())
            room -= len(pages[-1])
            if room <= 0:
                break
        title = reader.metadata.title if reader.metadata else None
        return _Said(title=_whole(title or ""), text=_whole("\n\n".join(pages)))
    except PyPdfError:
        return _Said(trouble="is damaged")


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
    logging.disable()
    said = _read(sys.stdin.buffer.read(), int(sys.argv[1]))
    sys.stdout.buffer.write(msgspec.json.encode(said))


if __name__ == "__main__":
    _main()
