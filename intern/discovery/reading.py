"""The text of a discovered file, with its secrets masked; or why there is none."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from typing import Literal

from msgspec import Struct

from intern.text.masking import mask_secrets

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
    """The text with these masked, and whatever looks like a secret."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "[masked secret]")
    return mask_secrets(text).text


def shortened_lines(text: str) -> tuple[str, int | None]:
    """The text, or the first and last lines of a very long one and how many it has."""
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
    """The bytes of the file that stands there, and of no other. Raises _UnreadError and OSError."""
    # Not to wait where somebody put a pipe in its place.
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
