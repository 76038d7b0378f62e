"""The operator's own documents: the files in the folder, and the readable text of one. Read only.

Links and paths never lead outside the folder, and skipped files are named with their reason. The bytes of a file decide
its kind, not its name alone. A scan opens no file; its content is checked when it is read.

All content is hostile: a text has no control characters, is no longer than the file (but for the marks that show its
structure, such as headings), and nothing in it was run, fetched or expanded. PDF files are read by pypdf in a process
of its own, which this module is when it is started: a PDF on stdin, a `_PdfText` on stdout.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple, cast

import msgspec
from msgspec import Struct

from intern.core.errors import SourceError
from intern.core.installing import how_to_add
from intern.core.text.masking import without_invisible
from intern.core.text.patterns import regex
from intern.sources.hidden import without_hidden
from intern.sources.html import decoded, encodable, fence_for, read_html
from intern.sources.sandboxed import SECONDS, BrokenError, TooLongError, run_sandboxed, serve_sandboxed

# Invisible: control characters but for tab and line break.
_UNWANTED = regex(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_HALVES = regex(r"[\ud800-\udfff]")
_GAPS = regex(r"\n{3,}")


def headed(title: str, text: str) -> str:
    """Put a title above a text that has no first heading of its own."""
    line = " ".join(cleaned(title).split())
    return f"# {line}\n\n{text}" if line and not text.startswith("# ") else text


def code_block(code: str, language: str = "") -> str:
    """Make a code block whose fence the code does not contain."""
    fence, body = fence_for(code), code.strip("\n")
    return f"{fence}{language}\n{body}\n{fence}"


def cleaned(text: str) -> str:
    """Remove control characters, half surrogates, blanks at the ends of lines, and runs of empty lines."""
    bare = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    whole = _HALVES.sub("\ufffd", _UNWANTED.sub("", bare))
    return _GAPS.sub("\n\n", "\n".join(line.rstrip() for line in whole.split("\n"))).strip("\n")


Kind = Literal["text", "html", "notebook", "pdf"]

_KINDS: dict[str, Kind] = {".html": "html", ".htm": "html", ".xhtml": "html", ".ipynb": "notebook", ".pdf": "pdf"}

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
_LANGUAGE = regex(r"[A-Za-z][\w+#-]{0,30}")

# Characters of an output: enough for a message, too few for a table of thousands of rows.
_MOST_OUTPUT = 1000


class UnfitError(Exception):
    """This is no source; the message gives the reason."""


def kind_of(name: str, data: bytes) -> Kind:
    """Return the kind of a file by its bytes. Raises UnfitError if it is not readable."""
    check_ending(name)
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    named = _KINDS.get(_ending(name), "text")
    if head.startswith(b"%pdf-"):
        return "pdf"
    if named == "pdf":
        raise UnfitError("it is no PDF, although its name ends with .pdf")
    if head.startswith((b"<!doctype html", b"<html")) or (head.startswith(b"<?xml") and b"<html" in head):
        return "html"
    if named == "text" and head.startswith(b"-----begin ") and b"private key" in head:
        raise UnfitError("it is a private key")
    return named


def check_ending(name: str) -> None:
    """Raise UnfitError for endings of files that are never documents."""
    if (ending := _ending(name)) in _ENDINGS:
        raise UnfitError(f"{ending} files are no documents")


def _ending(name: str) -> str:
    """Return the ending as pathlib does, in a tenth of the time: this runs for each source of each answer."""
    file = name.rpartition("/")[2]
    dot = file.rfind(".")
    return file[dot:].lower() if 0 < dot < len(file) - 1 else ""


def plain_text(data: bytes) -> str:
    """Decode a text, without its byte order mark. Raises UnfitError if the bytes are not text."""
    is_utf_16 = data.startswith(_UTF_16)
    if not is_utf_16 and (b"\0" in data or len(data) - len(data.translate(None, _CONTROLS)) > len(data) // 20):
        raise UnfitError("it is binary, not text")
    try:
        return data.decode("utf-16" if is_utf_16 else "utf-8-sig")
    except UnicodeDecodeError:
        raise UnfitError("it is not UTF-8 text") from None


def html_text(data: bytes) -> str:
    """Return the main content of a page as Markdown, below its title. Raises UnfitError."""
    try:
        page = read_html(plain_text(data) if data.startswith(_UTF_16) else decoded(data))
    except ValueError as error:
        raise UnfitError(str(error)) from None
    text = cleaned(page.text)
    if not text:
        raise UnfitError("it is a page without text")
    return headed(page.title, text)


def notebook_text(data: bytes) -> str:
    """Return a notebook's prose and code, with the beginning of each printed output. Raises UnfitError."""
    try:
        notebook = msgspec.json.decode(plain_text(data).encode("utf-8", "replace"), type=_Notebook)
    except (msgspec.DecodeError, RecursionError):
        raise UnfitError("it is no notebook of format 4") from None
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
    """Return the text of a PDF, page by page up to `max_chars`, below its own title. Raises UnfitError."""
    if find_spec("pypdf") is None:
        raise UnfitError(f"it is a PDF; to have those read, {how_to_add('pdf')}")
    try:
        said = msgspec.json.decode(run_sandboxed(__name__, data, str(max_chars)), type=_PdfText)
    except TooLongError:
        raise UnfitError(f"it is a PDF that could not be read within {SECONDS} seconds") from None
    except (BrokenError, msgspec.DecodeError):
        raise UnfitError("it is a PDF that is damaged, or needs too much memory") from None
    if said.trouble:
        raise UnfitError(f"it is a PDF that {said.trouble}")
    text = cleaned(said.text)
    if not text.strip():
        raise UnfitError("it is a PDF without text, perhaps of scanned pages")
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
    return _PdfText(title=encodable(title or "")[: 10 * _LONGEST_TITLE], text=encodable(text[:max_chars].rstrip("\n")))


# Extracted texts that are kept for the next question, each with its file's bytes. One question reads up to eight
# sources, so fewer would be gone before the same PDF is asked about again.
_KEPT = 32

_TEMPORARY = ("~", ".tmp", ".temp", ".swp", ".swo", ".swx")
# Names that browsers and copying programs give to what they are still fetching.
_UNFINISHED = (".part", ".partial", ".filepart", ".crdownload", ".download")
# Names that editors, patch, merges and packages give to other states of a file: an older one would win over its
# correction. "Copy of …" is left alone: people call documents so, and mean them.
_COPY = regex(r"\.(bak|backup|old|orig|rej|save|dpkg-(old|dist|new)|rpm(save|orig|new))[-.]?[0-9]*$")

# Characters that could forge a line of the index, or that UTF-8 cannot carry.
_UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}


class SourceFile(NamedTuple):
    """A document, as `stat` tells of it. `rel_path` has `/` between its parts, on every system."""

    rel_path: str
    size_bytes: int
    version: int
    """When it was last written, in nanoseconds; of a topic, the position of its newest change."""


class SkippedFile(NamedTuple):
    """A file or folder that was passed over."""

    rel_path: str
    reason: str


class Scan(NamedTuple):
    """The folder at one moment; each part sorted by path."""

    files: tuple[SourceFile, ...]
    skipped: tuple[SkippedFile, ...]
    unreadable: frozenset[str]
    """Those of `skipped` that could not be looked at: what was known of them, and of files below, still holds."""


class NotASourceError(SourceError):
    """The file is no document."""

    def __init__(self, rel_path: str, folder: Path, reason: str) -> None:
        super().__init__(f"{_printable(rel_path)} in {folder} is no source: {reason}")
        self.reason = reason


class SourceFolder:
    """The documents below `folder`, up to `max_bytes` each. One thread at a time may scan, and any may read."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._root = folder
        self._max_bytes = max_bytes
        # What reading told of files that are no sources after all, good for as long as size and mtime stay.
        self._unfit: dict[SourceFile, str] = {}
        # A PDF takes seconds, and a popular one is asked about often.
        self._extracted = lru_cache(_KEPT)(_extracted)

    def scan(self) -> Scan:
        """Look through the folder, into no file. Raises SourceError where the folder itself cannot be read.

        Some of the files may turn out to be no sources when they are read; from then on they are passed over.
        """
        root = self._resolved_root()
        files: list[SourceFile] = []
        skipped: dict[str, UnfitError | OSError] = {}
        unreadable: set[str] = set()
        unfit: dict[SourceFile, str] = {}
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(root / folder) as listing:
                    entries = list(listing)
            except OSError as error:
                if not folder:
                    raise self._no_root(error) from error
                skipped[folder] = error
                unreadable.add(folder)
                continue
            for entry in entries:
                rel_path = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    _check_name(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(rel_path)
                        continue
                    file = self._looked_at(root, rel_path)
                    if reason := self._unfit.get(file):
                        unfit[file], skipped[rel_path] = reason, UnfitError(reason)
                    else:
                        files.append(file)
                except (UnfitError, OSError) as error:
                    skipped[rel_path] = error
                    unreadable.update([] if isinstance(error, UnfitError | FileNotFoundError) else [rel_path])
        self._unfit = unfit
        told = sorted(SkippedFile(_printable(rel_path), _why(error)) for rel_path, error in skipped.items())
        return Scan(tuple(sorted(files)), tuple(told), frozenset(unreadable))

    def read(self, rel_path: str) -> str:
        """Read the text of a document: as written, without a byte order mark, or as extracted.

        Raises NotASourceError where it is no document or lies outside, and SourceError where it is gone or cannot be
        read.
        """
        try:
            return self._text(self._root, self._looked_at(self._root, rel_path))
        except UnfitError as reason:
            raise NotASourceError(rel_path, self._root, str(reason)) from None
        except OSError as error:
            self._resolved_root()  # that the folder itself is gone is the better word
            raise SourceError(
                f"{_printable(rel_path)} in {self._root} could not be read ({error.strerror}); "
                "check that it is there, and its permissions"
            ) from error

    def _resolved_root(self) -> Path:
        try:
            return Path(os.path.realpath(self._root, strict=True))
        except OSError as error:
            raise self._no_root(error) from error

    def _no_root(self, error: OSError) -> SourceError:
        return SourceError(
            f"the sources folder {self._root} cannot be read ({error.strerror}); "
            "make it and put your documents there, or let kb.sources_dir name another"
        )

    def _looked_at(self, root: Path, rel_path: str) -> SourceFile:
        """Return the file as it is now. Raises UnfitError or OSError."""
        for name in rel_path.split("/"):
            if name in {"", ".", ".."}:
                raise UnfitError("it is no path inside the folder")
            _check_name(name)
        check_ending(rel_path)
        target = self._target(root, rel_path)
        status = os.stat(target)  # noqa: PTH116
        if not stat.S_ISREG(status.st_mode):
            raise UnfitError("it is no regular file")
        self._check_size(status.st_size)
        if not os.access(target, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return SourceFile(rel_path, status.st_size, status.st_mtime_ns)

    def _target(self, root: Path, rel_path: str) -> str:
        # Paths are resolved where there is a link only: for each source of each answer that would take longer than to
        # read it.
        target = str(root)
        for name in rel_path.split("/"):
            target = f"{target}/{name}"
            if stat.S_ISLNK(os.lstat(target).st_mode):
                break
        else:
            return target
        resolved = Path(os.path.realpath(root / rel_path, strict=True))
        if not resolved.is_relative_to(self._resolved_root()):
            raise UnfitError("it is a link that points outside the folder")
        return str(resolved)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise UnfitError(f"its {size} bytes are more than the {self._max_bytes} allowed (kb.max_source_bytes)")

    def _text(self, root: Path, file: SourceFile) -> str:
        data = self._data(root, file.rel_path)
        try:
            kind = kind_of(file.rel_path, data)
            text = plain_text(data) if kind == "text" else self._extracted(kind, data, self._max_bytes)
            # What is extracted from a page is what it shows, be it a comment in an example.
            return without_invisible(text) if kind == "html" else without_hidden(text, file.rel_path)
        except UnfitError as reason:
            self._unfit[file] = str(reason)
            raise

    def _data(self, root: Path, rel_path: str) -> bytes:
        # Neither through a link that was put there since, nor waiting for what is no file any more.
        fd = os.open(self._target(root, rel_path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            data = file.read(self._max_bytes + 1)
        self._check_size(len(data))
        return data


def _extracted(kind: Kind, data: bytes, max_chars: int) -> str:
    if kind == "pdf":
        return pdf_text(data, max_chars)
    return html_text(data) if kind == "html" else notebook_text(data)


def _why(error: UnfitError | OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is gone, or a link to nothing"
    return f"it cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)


def noteworthy(skipped: Iterable[SkippedFile]) -> list[SkippedFile]:
    """Skipped sources, without hidden and temporary files."""
    return [each for each in skipped if _set_aside(each.rel_path.rpartition("/")[2]) is None]


def _set_aside(name: str) -> str | None:
    if name.startswith("."):
        return "it is hidden"
    if name.endswith(_TEMPORARY) or name.startswith("~$") or (name[0] == "#" and name[-1] == "#"):
        return "it is temporary"
    return None


def _check_name(name: str) -> None:
    """Raise UnfitError if the name alone shows that it is no source."""
    if reason := _set_aside(name):
        raise UnfitError(reason)
    if name.lower().endswith(_UNFINISHED):
        raise UnfitError("its name says that it is not whole")
    if _COPY.search(name.lower()):
        raise UnfitError("its name says that it is a copy that a program left behind")
    if not name.isprintable() and _printable(name) != name:  # the first is quick, and true of almost every name
        raise UnfitError("its name holds control characters or is not UTF-8")


def _printable(text: str) -> str:
    escapes = {char: char.encode("unicode_escape").decode() for char in text}
    return "".join(escapes[char] if unicodedata.category(char) in _UNPRINTABLE else char for char in text)


if __name__ == "__main__":
    serve_sandboxed(partial(_read_pdf, int(sys.argv[1])), load=lambda: import_module("pypdf"))
