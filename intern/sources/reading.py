"""The text of a discovered file with its secrets masked, or the reason why it is unreadable.

The structure of a file is its classes and functions, headings, top-level keys or sections.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import stat
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal

import msgspec
import tomli
from msgspec import Struct

from intern.core.text.masking import mask_secrets

MOST_CHARS = 600
_HEADING = re.compile(r"#{1,6}[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*$")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_YAML_KEY = re.compile(r"""(?P<quote>["']?)(?P<key>[\w.$/][\w.$/ -]{0,100})(?P=quote)[ \t]*:(?:[ \t]|$)""")
_SECTION = re.compile(r"\[([^\[\]\n]{1,100})\]\s*$")
_WARNINGS = threading.Lock()


def file_type_of(path: str, kind: str) -> str:
    """Return the type of a file by its ending: `markdown_doc`, `python_file`, `service_file` and so on."""
    ending = path.rpartition("/")[2].rpartition(".")[2].lower()
    return _TYPES.get(ending, {"documentation": "text_doc", "configuration": "config"}.get(kind, f"{ending}_file"))


def structure_of(path: str, text: str) -> str:
    """Describe the structure of a file in one or two sentences; empty if it has none."""
    ending = path.rpartition(".")[2].lower()
    tell = _TELLERS.get(ending)
    return "" if tell is None else " ".join(tell(text))


def _python(text: str) -> Iterator[str]:
    try:
        # Parsing warns of other people's escapes. The filters are the process's, so one at a time.
        with _WARNINGS, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    # What others may call comes first.
    functions.sort(key=lambda name: name.startswith("_"))
    yield from _sentence("Lists classes", classes)
    yield from _sentence("Main functions", functions)


def _markdown(text: str) -> Iterator[str]:
    headings: list[str] = []
    fence = ""
    for line in text.splitlines():
        if mark := _FENCE.match(line):
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        elif not fence and (heading := _HEADING.match(line)):
            headings.append(heading[1])
    yield from _sentence("Sections", headings)


def _yaml(text: str) -> Iterator[str]:
    # Keys at the beginning of a line: no parser, since a file from anywhere may expand without end.
    keys = [found["key"].strip() for line in text.splitlines() if (found := _YAML_KEY.match(line))]
    yield from _sentence("Top-level keys", keys)


def _json(text: str) -> Iterator[str]:
    try:
        data = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return
    yield from _sentence("Top-level keys", data)


def _toml(text: str) -> Iterator[str]:
    try:
        data = tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError):
        return
    yield from _sentence("Top-level keys", data)


def _sections(text: str) -> Iterator[str]:
    yield from _sentence("Sections", (found[1] for line in text.splitlines() if (found := _SECTION.match(line))))


def _sentence(what: str, names: Iterable[str]) -> Iterator[str]:
    kept = ""
    for name in dict.fromkeys(" ".join(name.split()) for name in names):
        more = f"{kept}, {name}" if kept else name
        if len(more) > MOST_CHARS:
            kept += ", …"
            break
        kept = more
    if kept:
        yield f"{what}: {kept}."


_TELLERS: dict[str, Callable[[str], Iterator[str]]] = {
    "py": _python,
    "md": _markdown,
    "yaml": _yaml,
    "yml": _yaml,
    "json": _json,
    "toml": _toml,
    "service": _sections,
    "ini": _sections,
    "cfg": _sections,
}
_TYPES = {
    "md": "markdown_doc",
    "txt": "text_doc",
    "yaml": "yaml_config",
    "yml": "yaml_config",
    "json": "json_config",
    "toml": "toml_config",
    "py": "python_file",
    "service": "service_file",
}


Trouble = Literal["unsupported_type", "permission_denied", "gone"]

MOST_LINES = 10_000
FIRST_LINES = 5_000
LAST_LINES = 1_000

# What no text for people comes near; reading on would only fill the memory.
_MOST_BYTES = 64_000_000


class FileText(Struct, frozen=True, kw_only=True):
    """A file that could be read."""

    text: str
    size: int
    mtime: float
    truncated: bool = False
    original_size: int | None = None
    """Lines that it has, where only the first and the last of them are in `text`."""


class Unread(Struct, frozen=True, kw_only=True):
    """A file that could not be read."""

    trouble: Trouble
    reason: str


def read_file(path: str, secrets: Collection[str] = ()) -> FileText | Unread:
    """Read a file, which has to be where it was found: a link in its place is not followed.

    `secrets` are masked wherever they stand, beside what looks like one. Blocks; raises nothing.
    """
    try:
        data, status = _read(path)
        text = _decoded(data)
    except _UnreadError as error:
        return error.unread
    except OSError as error:
        return _unread(error)
    # Before it is cut, or half a key could stay.
    cut, original = shortened_lines(without_secrets(text, secrets))
    return FileText(
        text=cut,
        size=status.st_size,
        mtime=status.st_mtime_ns / 1e9,
        truncated=original is not None,
        original_size=original,
    )


def without_secrets(text: str, secrets: Collection[str]) -> str:
    """Mask these secrets, and anything that looks like one."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "[masked secret]")
    return mask_secrets(text).text


def shortened_lines(text: str) -> tuple[str, int | None]:
    """Return the text, or of a very long one the first and last lines, and the number of its lines."""
    lines = text.split("\n")
    number = len(lines) - (not lines[-1])  # what ends with a line break has no line behind it
    if number <= MOST_LINES:
        return text, None
    left_out = number - FIRST_LINES - LAST_LINES
    return "\n".join([*lines[:FIRST_LINES], f"[… {left_out} lines …]", *lines[number - LAST_LINES : number]]), number


class _UnreadError(Exception):
    def __init__(self, trouble: Trouble, reason: str) -> None:
        super().__init__(reason)
        self.unread = Unread(trouble=trouble, reason=reason)


def _read(path: str) -> tuple[bytes, os.stat_result]:
    """Read the file at this very path, following no link. Raises _UnreadError and OSError."""
    # Not blocking: a pipe may have replaced the file.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise _UnreadError("unsupported_type", "it is no regular file")
    with os.fdopen(fd, "rb") as file:
        if os.path.realpath(path) != path or not os.path.samestat(status, os.lstat(path)):
            raise _UnreadError("gone", "a link leads there by now")
        data = file.read(_MOST_BYTES + 1)
    return data, status


def _decoded(data: bytes) -> str:
    if len(data) > _MOST_BYTES:
        raise _UnreadError("unsupported_type", f"it is larger than {_MOST_BYTES} bytes")
    if b"\0" in data:
        raise _UnreadError("unsupported_type", "it is binary, not text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _UnreadError("unsupported_type", "it is not UTF-8 text") from None


def _unread(error: OSError) -> Unread:
    reason = error.strerror or "it cannot be read"
    if isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno == errno.ELOOP:
        return Unread(trouble="gone", reason=reason)
    return Unread(trouble="permission_denied", reason=reason)
