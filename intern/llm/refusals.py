"""Why an endpoint refused a request: endpoints say it in words and codes of their own. Pure; what they say is data."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, cast

import msgspec

_MOST = 4000  # characters of a stranger's text that are looked at
_LARGEST_COUNT = 100_000_000  # tokens; no prompt has more
_TOO_LONG = re.compile(
    r"exceed_context_size|context_length_exceeded|(?:maximum|available|model'?s) context|context (?:length|window|size)"
    r"|prompt is too long|input is too long|too many (?:input )?tokens"
    r"|token count .{0,60}exceeds|exceeds? .{0,40}(?:token limit|number of (?:input )?tokens)",
    re.IGNORECASE,
)
_FORM = re.compile(
    r"\b(?:max|min)(?:Length|Items)\b|json.?schema|response_?format|\bschema\b|grammar|tool_choice|\btools?\b|\bfunctions?\b|structured.output",
    re.IGNORECASE,
)
_TEMPERATURE = re.compile(r"\btemperature\b", re.IGNORECASE)
_STREAM = re.compile(r"\bstream(?:ing|_options)?\b", re.IGNORECASE)

_Object = dict[str, Any]


class TooLong(NamedTuple):
    """The prompt does not fit. Counts are None where the endpoint names none."""

    tokens: int | None
    room: int | None


class FormRefused(NamedTuple):
    """The endpoint cannot hold a reply to its schema, or does not know the way in which it was asked to."""


class StreamRefused(NamedTuple):
    """The endpoint does not know a field that asks for streaming."""


class TemperatureRefused(NamedTuple):
    """The model takes no temperature, or not this one."""


def refusal_of(body: bytes) -> TooLong | FormRefused | StreamRefused | TemperatureRefused | None:
    """What a refusal of one request is about; None where it does not tell."""
    error = _error(body)
    said = " ".join(_texts(error))[:_MOST] if error else body[:_MOST].decode("utf-8", "replace")
    if _TOO_LONG.search(said):
        return TooLong(_count(error.get("n_prompt_tokens")), _count(error.get("n_ctx")))
    if _TEMPERATURE.search(said):
        return TemperatureRefused()
    if _STREAM.search(said):
        return StreamRefused()
    return FormRefused() if _FORM.search(said) else None


def _error(body: bytes) -> _Object:
    """The object that tells of the error; empty where there is none."""
    try:
        read: _Object | tuple[_Object, ...] = msgspec.json.decode(body, type=_Object | tuple[_Object, ...])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    if isinstance(read, tuple):
        read = read[0] if read else {}
    inner = read.get("error")
    return cast("_Object", inner) if isinstance(inner, dict) else read


def _texts(error: _Object) -> list[str]:
    """Its code and kind, and what it says for people."""
    values = [error.get(key) for key in ("type", "code", "status", "param", "message", "error", "detail")]
    return [value for value in values if isinstance(value, str)]


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value <= _LARGEST_COUNT else None
