"""Texts that UTF-8 and JSON can hold: half surrogates, which a JSON escape can name, are replaced."""

from __future__ import annotations

import json
import re
from typing import Final

import msgspec

_HALF: Final = re.compile("[\ud800-\udfff]")
# One escape of a JSON text: a whole pair first, so that its halves are not met alone.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def replace_surrogates(text: str) -> str:
    """Replace half surrogates, which UTF-8 cannot hold, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _HALF.sub("\ufffd", text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return text


def replace_json_surrogates(text: bytes) -> bytes:
    """Replace escapes of half surrogates in a JSON text by U+FFFD; the length stays."""
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape["half"] else escape[0], text)


def encode_json(value: object) -> bytes:
    """Encode a value as JSON; half surrogates in its texts become U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        escaped = json.dumps(msgspec.to_builtins(value)).encode()
        return msgspec.json.encode(msgspec.json.decode(replace_json_surrogates(escaped)))
