"""The failures of endpoints by meaning, from a status and a body in the words and shapes of any server. Pure.

An error is data: only the words of this module are looked for in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Literal, NamedTuple, cast

import msgspec

from intern.core.text.patterns import regex

_MOST = 4000  # characters of an endpoint's text that are searched
_DEEPEST = 6  # levels of an error that are read
_LONGEST_RETRY_AFTER = 60.0  # seconds; a later answer is useless, and background work is tried again
_SHORTEST_RETRY_AFTER = 0.5  # seconds; "at once" would hammer an endpoint that is busy
_SECONDS = regex(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_COUNTS = regex(rb'"(n_prompt_tokens|n_ctx)\\?":\s*([1-9]\d{0,7})\b')
"""llama.cpp's, also within a text of a proxy."""

FailureKind = Literal[
    "busy", "away", "too_long", "content", "unfit", "key", "quota", "model", "address", "form", "unknown"
]
"""`busy`: it works, but wants fewer requests. `away`: it does not work now. `content`: a filter stopped prompt or
reply. `unfit`: the server noticed that the model's reply does not fit its type. `quota`: the account has no credit
left. `form`: it does not take parts of the request. `unknown`: it refuses this request, for a reason not known."""


class EndpointFailure(NamedTuple):
    """The meaning of an endpoint's error."""

    kind: FailureKind
    parts: frozenset[str] = frozenset()
    """For `form`: the parts of a request that it names, as `intern.models.request_forms` calls them; and `encoding`."""
    tokens: int | None = None
    """For `too_long`: the prompt's tokens, where the endpoint names them."""
    room: int | None = None
    """The tokens that the model takes, likewise."""


_WORDS: Mapping[FailureKind, Any] = {
    "too_long": regex(
        r"(?i)exceed_context_size|context_length_exceeded|(?:maximum|available|model'?s) context"
        r"|context.?(?:length|window|size)|(?:prompt|input) is too long|too many (?:input )?tokens"
        r"|token count .{0,60}exceeds|exceeds? .{0,40}(?:token limit|number of (?:input )?tokens)"
        r"|exceeded model token limit|maximum (?:prompt|allowed input) length|range of input length|prompt too long"
        r"|request too large for|too large to process|input tokens exceed|\binputs\b.{0,40} must (?:be <=|have less)"
        r"|at least 1, got -"  # the room that a prompt leaves for the reply
    ),
    "quota": regex(
        r"(?i)insufficient.{0,12}(?:quota|balance|credit|funds)|exceeded your (?:current|monthly) quota|billing"
        r"|(?:credit|account) balance|out of credits|payment required"
    ),
    "content": regex(
        r"(?i)content.?(?:filter|polic|management)|responsibleai|moderation|data_inspection|prohibited.content"
        r"|(?:inappropriate|harmful|unsafe) content|safety (?:system|filter|settings)|flagged"
    ),
    "unfit": regex(r"(?i)json_validate_failed|failed to (?:generate|validate) json|failed_generation|tool_use_failed"),
    "key": regex(
        r"(?i)(?:invalid|incorrect|missing|expired|wrong).{0,20}(?:api|auth).{0,4}key|api.key.{0,12}not valid"
        r"|invalid_api_key|authentication|unauthorized|no_db_connection"  # LiteLLM knows its master key alone
    ),
    "busy": regex(r"(?i)rate.?limit|too many requests|overloaded|at capacity|quota exceeded|resource.exhausted"),
}
"""Words that decide before the status does, in this order."""
_OF_ONE = regex(r"(?i)context|request too large|\bprompt\b")
"""Words about a limit on one request; other limits count the requests of a minute."""
_LATER = regex(r"(?i)(?:try again|retry) (?:in|after) \d|RetryInfo|allocated quota|server busy|please wait")
"""Words about a limit for a minute or a day. Such an endpoint is busy, though it names the account's billing, too."""
_DELAY = regex(r"(?i)(?:try again|retry)\W{0,2}(?:in|after|delay)\W{1,6}(?:(\d{1,3})m)?(\d{1,6}(?:\.\d{1,9})?) ?(ms|s)")
"""The delay that an error names in its words (`in 7.66s`, `in 1m20s`, `after 8 seconds`), or Google's `retryDelay`."""

_MODEL = regex(
    r"(?i)model_?not_?found|models? .{0,80}(?:does not exist|not found|not available|no longer|unavailable)"
    r"|(?:unknown|invalid|no such|nonexistent) model|model .{0,40}(?:not |un)(?:supported|known|loaded)"
    r"|no endpoints found"
)

_REFUSES = regex(
    r"(?i)not (?:\w+ )?(?:support|allow|permit|recogni|accept|enabl|valid|known|implement)"
    r"|un(?:support|recogni|know|expect)"
    r"|invalid|forbidden|extra|must|required|missing|cannot|does ?n.t|deprecated|reject|no endpoints"
)
"""Words of a refusal. A broken server names parts, too; without one of these words it does not refuse them."""

_NAMES: Mapping[str, Any] = {
    "limit": regex(r"(?i)max_?(?:completion_?|output_?|new_?)?tokens"),
    "temperature": regex(r"(?i)\btemperature\b"),
    "counting": regex(r"(?i)stream_?options|include_?usage"),
    "stream": regex(r"(?i)\bstream(?:ing|ed)?\b"),
    "strict": regex(r"(?i)\bstrict\b"),
    "bounds": regex(r"(?:min|max)(?:Length|Items|imum|Properties)|exclusiveM|multipleOf|\bpattern\b"),
    "choices": regex(r"\benum\b"),
    "schema": regex(
        r"(?i)\bschema\W.{0,40}(?:error|invalid|complex|keyword)"
        r"|(?:invalid|parse|unsupported) (?:\w+ )?(?:schema|grammar)"
    ),
    "output": regex(
        r"(?i)response_?(?:format|schema|mime)|json.?(?:schema|object|mode)|tool_?choice|\btools?\b|\bfunctions?\b"
        r"|function_?call|structured.?output|guided|grammar|\bschema\b|requested parameters"
    ),
    "examples": regex(
        r"(?i)alternat|\btool_?calls?\b|tool_call_id|role\W{1,5}tool\b|tool role|messages\W{1,3}[1-9]\d?\b"
    ),
    "system": regex(r"(?i)\bsystem\b|\bdeveloper\b|messages\W{1,3}0\W{1,3}role"),
    "effort": regex(r"(?i)reasoning|\beffort\b|\bthinking\b(?! mode)"),
    "encoding": regex(r"(?i)encoding_?format"),
}
_OF_SCHEMA = frozenset({"strict", "bounds", "choices", "schema"})
_PLACES = frozenset({"param", "parameter", "loc", "field", "path", "argument"})
_ECHOES = frozenset({"input", "failed_generation", "prompt", "messages"})
"""Keys under which servers repeat the request, or the text of a model."""
_CLAUSE = regex(r"(?<=[.;\n])\s+|\n|\s(?=when\b)")
_HINT = regex(
    r"(?i)\W*(?:please|only|the|did you mean|use|try|set|supported|allowed|valid|permitted|accepted|available|known"
    r"|expected|instead|see|consider|when)\b"
)
# These refuse this one request; any other status would meet the next request, too.
_OF_ONE_REQUEST = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
_BY_STATUS: Mapping[int, FailureKind] = {
    HTTPStatus.UNAUTHORIZED: "key",
    HTTPStatus.PAYMENT_REQUIRED: "quota",
    HTTPStatus.FORBIDDEN: "key",
    HTTPStatus.NOT_FOUND: "model",
    HTTPStatus.REQUEST_TIMEOUT: "away",
    HTTPStatus.TOO_EARLY: "away",
    HTTPStatus.CONFLICT: "busy",
    HTTPStatus.TOO_MANY_REQUESTS: "busy",
    529: "busy",
    **dict.fromkeys(_OF_ONE_REQUEST, "unknown"),
}
_SURE: frozenset[FailureKind | None] = frozenset({"key", "quota", "away", "busy"})
"""Kinds that a status decides alone."""
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""The errors of decoding what an endpoint sent."""


def read_failure(status: int, body: bytes) -> EndpointFailure:
    """Return the failure that an answer without a reply means."""
    try:
        found = list(_find_texts(msgspec.json.decode(body), "", _DEEPEST))
    except UNREADABLE:
        found = [("", body[:_MOST].decode("utf-8", "replace"))]
    said = "\n".join(text for key, text in found if key not in _PLACES)[:_MOST]
    places = "\n".join(text for key, text in found if key in _PLACES)[:_MOST]
    if _LATER.search(said):
        return EndpointFailure("busy")
    for kind, words in _WORDS.items():
        if words.search(said) and _may_mean(kind, status, said):
            return _read_counts(body) if kind == "too_long" else EndpointFailure(kind)
    may_refuse = status >= HTTPStatus.BAD_REQUEST and _BY_STATUS.get(status) not in _SURE
    if may_refuse and (_REFUSES.search(said) or status in _OF_ONE_REQUEST) and (parts := _find_parts(said, places)):
        return EndpointFailure("form", parts)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR and _BY_STATUS.get(status) not in _SURE and _MODEL.search(said):
        return EndpointFailure("model")
    return EndpointFailure(_BY_STATUS.get(status, "away" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "address"))


def _may_mean(kind: FailureKind, status: int, said: str) -> bool:
    """Return whether words decide beside a status: a server that fails names its own accounts and keys, too."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return kind not in {"key", "quota"}
    return status != HTTPStatus.TOO_MANY_REQUESTS or kind != "too_long" or bool(_OF_ONE.search(said))


def read_retry_delay(body: bytes) -> str | None:
    """Return the seconds after which to ask again, as a `Retry-After` header has them, from the words of an error."""
    if (found := _DELAY.search(body[:_MOST].decode("utf-8", "replace"))) is None:
        return None
    minutes, amount, unit = found.groups()
    return str(60 * int(minutes or 0) + float(amount) / (1000 if unit.lower() == "ms" else 1))


def _read_counts(body: bytes) -> EndpointFailure:
    """Return the failure of a prompt that does not fit, with the tokens where they are named."""
    counts = {name: int(count) for name, count in _COUNTS.findall(body[:_MOST])}
    return EndpointFailure("too_long", tokens=counts.get(b"n_prompt_tokens"), room=counts.get(b"n_ctx"))


def is_transient(status: int) -> bool:
    """Return whether the same request may succeed later, by its status alone."""
    return _BY_STATUS.get(status) in {"away", "busy"} or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def parse_retry_after(header: str | None, now: datetime, longest: float = _LONGEST_RETRY_AFTER) -> float | None:
    """Return the seconds of a `Retry-After` header, a number or an HTTP date, up to a bound."""
    if header is None:
        return None
    text = header.strip()
    if _SECONDS.fullmatch(text):
        seconds = float(text)
    else:
        try:
            until = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        seconds = (until.replace(tzinfo=until.tzinfo or UTC) - now).total_seconds()
    return min(max(seconds, _SHORTEST_RETRY_AFTER), longest)


def _find_parts(said: str, places: str) -> frozenset[str]:
    """Return the parts that an error is about: those at the place that it names, else those in its words.

    Advice such as "use X instead" names other parts; it counts only where there is nothing else.
    """
    clauses = [clause for clause in _CLAUSE.split(said) if not _HINT.match(clause)]
    in_words = _search_parts("\n".join(clauses)) or _search_parts(said)
    at_place = _search_parts(places)
    inner = (in_words | at_place) & _OF_SCHEMA
    parts = at_place or in_words
    if "output" in parts and inner:
        parts = (parts - {"output"}) | inner
    return parts - {"schema"} if parts & (_OF_SCHEMA - {"schema"}) else parts


def _search_parts(text: str) -> frozenset[str]:
    found = {part for part, words in _NAMES.items() if words.search(text)}
    if "counting" in found:
        found.discard("stream")
    if "examples" in found:  # tools in the messages, not those that are offered
        found -= {"output", "system"}
    return frozenset(found)


def _find_texts(value: Any, key: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield all texts of an error, each with the key that it has; the items of a place as one text."""
    if key in _ECHOES:
        return
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list) and key in _PLACES:
        yield key, ".".join(str(item) for item in cast("Sequence[Any]", value) if isinstance(item, (str, int)))
    elif depth and isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            yield from _find_texts(inner, name, depth - 1)
    elif depth and isinstance(value, list):
        for inner in cast("Sequence[Any]", value)[:20]:
            yield from _find_texts(inner, key, depth - 1)
