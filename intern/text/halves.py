"""Half surrogates: characters that a JSON escape can name and no UTF-8 can hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

_HALF: Final = re.compile("[\ud800-\udfff]")
# One escape of a JSON text: a whole pair first, so that its halves are not met alone.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def whole(text: str) -> str:
    """The text as UTF-8 can carry it: unchanged, but for half surrogates, which become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _HALF.sub("\ufffd", text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return text


def whole_json(text: bytes) -> bytes:
    """A JSON text without escapes of half surrogates, of the same length: each names U+FFFD instead."""
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape["half"] else escape[0], text)


def encoded(value: object) -> bytes:
    """The value as JSON; half surrogates in its texts become U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_mended(msgspec.to_builtins(value)))


def _mended(value: Any) -> Any:
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, list | tuple):
        return [_mended(each) for each in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        return {_mended(name): _mended(each) for name, each in cast("Mapping[Any, Any]", value).items()}
    return value
