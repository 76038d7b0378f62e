"""Streamed replies, joined to one completion; and the reasons for which endpoints refuse a request. Pure.

Endpoints word their reasons each in their own way. Everything in a reply is data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import Struct

from intern.core.errors import ModelReplyError
from intern.models.chat import Message

_EVENTS = re.compile(rb"[\s\xef\xbb\xbf]*(?:data|event|id|retry)?:")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BROKEN = (msgspec.MsgspecError, UnicodeError, RecursionError)
_DONE = b"[DONE]"
_LAST = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")


class Joined(NamedTuple):
    """A reply as it would have come without streaming."""

    status: int
    """200, or the status that an event with an error stands for."""
    body: bytes
    is_whole: bool
    """False where the stream ended before the reply did."""


class UnreadableStreamError(ModelReplyError):
    """A stream holds an event that is not part of the API."""


class _Choice(Struct):
    index: int | None = None
    delta: Message | None = None
    finish_reason: str | None = None


class _Fault(Struct):
    code: int | str | None = None
    status: int | str | None = None


class _Event(Struct):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    timings: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


def is_stream(body: bytes | bytearray) -> bool:
    """Return whether a body is a stream of events; servers mislabel both kinds."""
    return _EVENTS.match(body) is not None


def has_ended(body: bytes | bytearray, new: int) -> bool:
    """Whether the last event stands in a stream that has grown by `new` bytes; some servers keep silent after it."""
    return _LAST.search(body, max(0, len(body) - new - 16)) is not None and is_stream(body)


def joined(body: bytes, *, what: str) -> Joined:
    """Join the events of a stream. Raises `UnreadableStreamError` for one that is none; `what` names the call."""
    content: list[str] = []
    refusal: list[str] = []
    calls: dict[int, tuple[list[str], list[str]]] = {}
    finish_reason: str | None = None
    usage = timings = msgspec.Raw(b"null")
    is_done = False
    for data in _events(body):
        if data == _DONE:
            is_done = True
            break
        event = _read(data, what)
        if bytes(event.error) != b"null":
            return Joined(_status(event.error), data, is_whole=True)
        if bytes(event.usage) != b"null":
            usage = event.usage
        if bytes(event.timings) != b"null":
            timings = event.timings
        for choice in event.choices or ():
            if choice.index:
                continue
            finish_reason = choice.finish_reason or finish_reason
            delta = choice.delta or Message()
            content.append(delta.text)
            refusal.append(delta.refusal or "")
            for place, function in delta.calls:
                name, arguments = calls.setdefault(place, ([], []))
                if function.name and function.name not in name:  # some servers repeat it with each piece
                    name.append(function.name)
                arguments.append(function.text)
    message = {
        "content": "".join(content),
        "refusal": "".join(refusal) or None,
        "tool_calls": [
            {"function": {"name": "".join(name), "arguments": "".join(arguments)}}
            for _, (name, arguments) in sorted(calls.items())
        ],
    }
    whole = {"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage, "timings": timings}
    # A gateway whose model died may still send the last event.
    is_whole = finish_reason is not None or (is_done and any((*content, *refusal, *calls)))
    return Joined(HTTPStatus.OK, msgspec.json.encode(whole), is_whole=is_whole)


def _events(body: bytes) -> Iterator[bytes]:
    """Yield the data of each event. Comments only keep the connection open."""
    data: list[bytes] = []
    for line in (*_LINE_END.split(body), b""):
        if line.startswith(b"data:"):
            data.append(line[5:].strip())
        elif not line and data:
            yield b"\n".join(data)
            data = []


def _read(data: bytes, what: str) -> _Event:
    try:
        return msgspec.json.decode(data, type=_Event)
    except _BROKEN:
        # Not `from error`: it quotes the reply, which may tell of people.
        raise UnreadableStreamError(
            f"{what}: the streamed reply holds an event that is no JSON object of the API"
        ) from None


def _status(error: msgspec.Raw) -> int:
    """Return the status of an error; 500 if it names none."""
    try:
        fault = msgspec.json.decode(error, type=_Fault)
    except _BROKEN:
        return HTTPStatus.INTERNAL_SERVER_ERROR
    for named in (fault.code, fault.status):
        if isinstance(named, int) and HTTPStatus.BAD_REQUEST <= named <= 599:
            return named
    return HTTPStatus.INTERNAL_SERVER_ERROR


_MOST = 4000  # characters of an endpoint's text that are searched
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


Refusal = TooLong | Literal["form", "stream", "temperature"]
"""`form`: the endpoint cannot hold a reply to its schema, or does not know the way in which it was asked to. `stream`:
it does not know a field that asks for streaming. `temperature`: the model takes none, or not this one."""


def refusal_of(body: bytes) -> Refusal | None:
    """Return the reason for a refusal; None if it is unknown."""
    error = _error(body)
    said = " ".join(_texts(error))[:_MOST] if error else body[:_MOST].decode("utf-8", "replace")
    if _TOO_LONG.search(said):
        return TooLong(_count(error.get("n_prompt_tokens")), _count(error.get("n_ctx")))
    if _TEMPERATURE.search(said):
        return "temperature"
    if _STREAM.search(said):
        return "stream"
    return "form" if _FORM.search(said) else None


def _error(body: bytes) -> _Object:
    """Return the object that describes the error; empty if there is none."""
    try:
        read: _Object | tuple[_Object, ...] = msgspec.json.decode(body, type=_Object | tuple[_Object, ...])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}
    if isinstance(read, tuple):
        read = read[0] if read else {}
    inner = read.get("error")
    return cast("_Object", inner) if isinstance(inner, dict) else read


def _texts(error: _Object) -> list[str]:
    """Return the code, the kind and the message of an error."""
    values = [error.get(key) for key in ("type", "code", "status", "param", "message", "error", "detail")]
    return [value for value in values if isinstance(value, str)]


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value <= _LARGEST_COUNT else None
