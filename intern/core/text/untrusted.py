"""Half surrogates: characters that a JSON escape can name and no UTF-8 can hold.

Fences around untrusted text: markers that the text cannot contain, so a prompt can say what is material.
"""

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
    """Replace half surrogates, which UTF-8 cannot hold, by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _HALF.sub("\ufffd", text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return text


def whole_json(text: bytes) -> bytes:
    """Replace escapes of half surrogates in a JSON text by U+FFFD; the length stays."""
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape["half"] else escape[0], text)


def encoded(value: object) -> bytes:
    """Encode a value as JSON; half surrogates in its texts become U+FFFD."""
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


_NOT_IN_A_LABEL = re.compile(r"[^\w.:/-]+")
_LONGEST_LABEL = 80  # characters; a marker is no place for a second text


def fenced(text: str, label: str) -> str:
    """`text`, untouched, between two marker lines that name `label`.

    The markers are the plain ones wherever the text allows it, so a prompt's prefix stays the same from call to call;
    a text that holds them, in any case, gets numbered ones that it does not hold.
    """
    name = _NOT_IN_A_LABEL.sub(" ", label)[:_LONGEST_LABEL].strip() or "text"
    number = _first_free_number(text, name)
    suffix = f" #{number}" if number > 1 else ""
    return f"=== {name}{suffix} ===\n{text}\n=== end of {name}{suffix} ==="


def _first_free_number(text: str, name: str) -> int:
    if "==" not in text:  # as in almost all
        return 1
    # Wider than the markers themselves: "==End of x==" would fool a reader as well.
    words = rf"(?:end of\s{{1,3}})?{re.escape(name.casefold())}"
    lookalike = rf"==\s{{0,3}}{words}\s{{0,3}}(?:#\s{{0,3}}([0-9]{{1,9}})\s{{0,3}})?=="
    taken = {int(number or 1) for number in re.findall(lookalike, text.casefold())}
    number = 1
    while number in taken:
        number += 1
    return number
