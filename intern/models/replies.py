"""Replies of endpoints, whole or streamed. Pure.

Local models put their JSON in a code fence, behind their thoughts, or between sentences. Some servers put it where the
thoughts belong. Everything in a reply is data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from intern.core.errors import ModelRefusedError, ModelReplyCutError, ModelReplyError
from intern.core.text.masking import mask_secrets
from intern.models.endpoint_failures import UNREADABLE
from intern.models.options import LlmOptions
from intern.models.prompt import OutT, Prompt
from intern.models.usage import estimate_tokens

_THOUGHT = r"think|thinking|thought|reasoning"
_OPENED = re.compile(rf"<(?:{_THOUGHT})>|\[THINK\]|◁think▷", re.IGNORECASE)
_CLOSED = re.compile(rf"</(?:{_THOUGHT})>|\[/THINK\]|◁/think▷", re.IGNORECASE)
_MOST_TRIED = 200  # braces at which an object may begin; a hostile reply has millions, and each is read to its end
_decoder = json.JSONDecoder()


class NoEndError(Exception):
    """The reply is a thought that never ends."""


def find_json_objects(text: str) -> Iterator[str]:
    """Yield the JSON objects that a reply may mean, the likeliest first. Raises NoEndError.

    First the text itself; then the objects after the last thought, the last one first, since earlier ones are drafts
    or examples; then the objects that contain the end of a thought in a string.
    """
    yield text
    closed = list(_CLOSED.finditer(text))
    start = closed[-1].end() if closed else 0
    unclosed = _OPENED.search(text, start)
    said = text[start : unclosed.start() if unclosed else None]
    found = list(_find_outermost_objects(said))
    yield from (said[begin:end] for begin, end in reversed(found))
    if unclosed and not found:
        raise NoEndError
    if closed:
        first = closed[0].end() if _OPENED.match(text.lstrip()) else 0
        rest = text[first:]
        yield from (
            rest[begin:end] for begin, end in reversed(list(_find_outermost_objects(rest))) if first + end >= start
        )


def _find_outermost_objects(text: str) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each outermost object."""
    at = text.find("{")
    for _ in range(_MOST_TRIED):
        if at < 0:
            return
        try:
            _, end = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            yield at, end
        at = text.find("{", end)


_EXCERPT = 200  # characters of an endpoint's text that an error may quote
_MOST_TOKENS = 10_000_000  # of one call; a larger count is a mistake, and would eat up any budget
_PLACE = re.compile(r" - (?:at|from) `((?:key in )?\$[\w.\[\]]{0,200})`\Z")
# The words of msgspec before it quotes a reply; the types and bounds are ours.
_FAULTS = re.compile(
    r"Invalid enum value|Invalid value|Object contains unknown field|Object missing required field `\w{1,60}`"
    r"|Expected `[^`]{1,60}`(?: of length [<>]= \d+| [<>]=? [\d.-]+)?(?:, got `[^`]{1,60}`)?"
    r"|JSON is malformed: [a-z ]{1,60}(?:\(byte \d+\))?|Input data was truncated|Invalid [A-Za-z0-9-]{1,20}"
)


class _ContentPart(Struct):
    text: str | None = None


class _FunctionCall(Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The arguments as JSON; some servers send the object itself."""
        if isinstance(self.arguments, dict):
            return msgspec.json.encode(self.arguments).decode()
        return self.arguments or ""


class _ToolCall(Struct):
    index: int | None = None
    function: _FunctionCall | None = None


class ReplyMessage(Struct):
    """A reply, or a piece of one where it is streamed. Some servers send null where others leave a field out."""

    content: str | list[_ContentPart | str] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The thoughts, by either name."""

    @property
    def text(self) -> str:
        """The content; of a list of parts, those that are text."""
        if isinstance(self.content, list):
            return "".join(part if isinstance(part, str) else part.text or "" for part in self.content)
        return self.content or ""

    @property
    def thoughts(self) -> str:
        """The thoughts of the model, if the server separates them."""
        return self.reasoning_content or self.reasoning or ""

    @property
    def calls(self) -> list[tuple[int, _FunctionCall]]:
        """The functions that are called, each with its place."""
        return [(call.index or 0, call.function) for call in self.tool_calls or () if call.function]


class _ReplyChoice(Struct, omit_defaults=True):
    message: ReplyMessage = msgspec.field(default_factory=ReplyMessage)
    finish_reason: str | None = None
    index: int | None = None
    delta: ReplyMessage | None = None
    """A piece of the message, in the events of a stream."""
    error: msgspec.Raw = msgspec.Raw(b"null")


class _PromptTokenDetails(Struct):
    cached_tokens: int | None = None


class _TokenUsage(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int | None = None
    """Some servers count the thoughts of a model only here."""
    prompt_tokens_details: _PromptTokenDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's word for the same."""


class _LlamaTimings(Struct):
    """Figures of llama.cpp's server beside the usage; older ones report their cache only here."""

    cache_n: int | None = None


class _CompletionBody(Struct, omit_defaults=True):
    """A reply, or an event of a stream."""

    choices: list[_ReplyChoice] | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    timings: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")


class Completion(NamedTuple):
    """A reply as it came, not judged yet."""

    choice: _ReplyChoice
    prompt_tokens: int | None
    completion_tokens: int | None
    """None if the endpoint does not count."""
    cached_tokens: int = 0
    """The tokens of the prompt that the endpoint had in its cache."""
    is_of_llama_cpp: bool = False
    """llama.cpp's server wrote it, which holds a reply to any schema at no cost."""

    def count_tokens(self, estimated_prompt_tokens: int) -> tuple[int, int]:
        """Return prompt and reply tokens, estimated where the endpoint did not count."""
        if self.prompt_tokens is not None and self.completion_tokens is not None:
            return self.prompt_tokens, self.completion_tokens
        message = self.choice.message
        written = message.text + message.thoughts + "".join(function.text for _, function in message.calls)
        return estimated_prompt_tokens, estimate_tokens(written)


def read_completion(body: bytes, *, what: str) -> Completion:
    """Return the first choice of a reply. Raises `ModelReplyError` if there is none; `what` names the call."""
    try:
        read = msgspec.json.decode(body, type=_CompletionBody)
    except UNREADABLE as error:
        raise ModelReplyError(f"{what}: the reply is not a chat completion: {_describe_fault(error)}") from error
    if not read.choices:
        quoted = make_excerpt(body.decode("utf-8", "replace"))
        raise ModelReplyError(f"{what}: the reply holds no choices: {quoted}")
    is_of_llama_cpp = bytes(read.timings).startswith(b"{")
    try:
        tokens = msgspec.json.decode(read.usage, type=_TokenUsage)
    except UNREADABLE:
        return Completion(
            read.choices[0], None, None, is_of_llama_cpp=is_of_llama_cpp
        )  # an endpoint that cannot count may still answer well
    written = max(tokens.completion_tokens, (tokens.total_tokens or 0) - tokens.prompt_tokens)
    prompt_tokens, completion_tokens = (min(max(0, count), _MOST_TOKENS) for count in (tokens.prompt_tokens, written))
    cached = min(max(0, _read_cached(tokens, read.timings)), prompt_tokens)
    return Completion(read.choices[0], prompt_tokens, completion_tokens, cached, is_of_llama_cpp)


def _read_cached(tokens: _TokenUsage, timings: msgspec.Raw) -> int:
    """Return the tokens of the prompt that were in the endpoint's cache, by any of the names in use."""
    told = tokens.prompt_tokens_details and tokens.prompt_tokens_details.cached_tokens
    if cached := told or tokens.prompt_cache_hit_tokens:
        return cached
    try:
        return msgspec.json.decode(timings, type=_LlamaTimings).cache_n or 0
    except UNREADABLE:
        return 0


class UnfitReplyError(ModelReplyError):
    """A whole reply that does not fit its type; the model may mend it once it knows the fault."""

    def __init__(self, what: str, fault: str, hint: str = "") -> None:
        super().__init__(f"{what}: the reply {fault}{hint}")
        self.fault = fault
        """The fault of the reply, without a word of it."""


def decode_reply(completion: Completion, prompt: Prompt[Any, OutT], options: LlmOptions, *, what: str) -> OutT:
    """Decode the reply as its type. Raises `ModelReplyCutError`, `ModelRefusedError` or `ModelReplyError`.

    The word for the end of a reply differs from server to server. So a whole reply that fits is taken, except where
    the word says that it is cut off or filtered.
    """
    choice, message = completion.choice, completion.choice.message
    match choice.finish_reason:
        case "length":
            thoughts = " or llm.reasoning_tokens; most of it were thoughts" if message.thoughts else ""
            limit = f"llm.max_tokens = {options.max_tokens}{thoughts}"
            raise ModelReplyCutError(f"{what}: the reply was cut off ({limit})")
        case "content_filter":
            raise ModelRefusedError(f"{what}: the endpoint's content filter stopped the reply")
        case _:
            pass
    if message.refusal:
        raise ModelRefusedError(f"{what}: the model refused, in {len(message.refusal)} characters of its own")
    calls = [function.text for _, function in message.calls if function.name in {prompt.name, None, ""}]
    text = (calls or [message.text])[0] or message.text or message.thoughts
    if not text.strip():
        if message.calls:
            raise UnfitReplyError(what, f"did not call the function {prompt.name}")
        raise UnfitReplyError(what, "is empty", "; look at the server's log and at the chat template of the model")
    fault: Exception | None = None
    try:
        for each in find_json_objects(text):
            try:
                return msgspec.json.decode(each, type=prompt.gives)
            except UNREADABLE as error:
                fault = fault if isinstance(fault, msgspec.ValidationError) else error
    except NoEndError:
        hint = "raise llm.max_tokens, or turn the model's thinking off"
        raise ModelReplyError(f"{what}: the reply is a thought that never ends; {hint}") from None
    hint = (
        ""
        if message.text or calls
        else "; it stands among the model's thoughts: turn its server's reasoning parser off"
    )
    # Not `from fault`: it quotes the reply, and a traceback would show it.
    raise UnfitReplyError(what, f"does not fit {prompt.gives.__name__}: {_describe_fault(fault)}", hint) from None


def _describe_fault(error: Exception | None) -> str:
    """Return the fault of a reply and its place, but no word of the reply, which may be about people."""
    if not isinstance(error, msgspec.MsgspecError):
        return type(error).__name__
    said = str(error)
    place = _PLACE.search(said)
    kind = _FAULTS.match(said)
    return (kind[0] if kind else type(error).__name__) + (f" - at `{place[1]}`" if place else "")


def make_excerpt(text: str) -> str:
    """Return the beginning of an endpoint's text, on one line and without secrets, for an error."""
    start = "".join(char if char.isprintable() else " " for char in text[: 4 * _EXCERPT])
    line = " ".join(mask_secrets(start).text.split())
    return line if len(line) <= _EXCERPT else line[: _EXCERPT - 1] + "…"


_EVENTS = re.compile(rb"[\s\xef\xbb\xbf]*(?:data|event|id|retry)?:")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_DONE = b"[DONE]"
_NAMES_ERROR = b'error"'
_STATUS = re.compile(rb'"(?:code|status)"\s*:\s*"?([45]\d\d)\b')
"""The status that an error names."""
_LAST = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")


class JoinedReply(NamedTuple):
    """A reply as it would have come without streaming."""

    status: int
    """200, or the status of an event with an error."""
    body: bytes
    is_whole: bool
    """False where the stream ended before the reply did."""


class UnreadableStreamError(ModelReplyError):
    """A stream holds an event that is not part of the API."""


def is_stream(body: bytes | bytearray) -> bool:
    """Return whether a body is a stream of events; servers mislabel both kinds."""
    return _EVENTS.match(body) is not None


def has_ended(body: bytes | bytearray, new: int) -> bool:
    """Return whether the last event is in a stream that has grown by `new` bytes; some servers keep silent after it."""
    return _LAST.search(body, max(0, len(body) - new - 16)) is not None and is_stream(body)


def join_events(body: bytes, *, what: str) -> JoinedReply:
    """Join the events of a stream. Raises `UnreadableStreamError` for one that is none; `what` names the call."""
    content: list[str] = []
    refusal: list[str] = []
    thoughts: list[str] = []
    calls: dict[int, tuple[list[str], list[str]]] = {}
    finish_reason: str | None = None
    usage = timings = msgspec.Raw(b"null")
    is_done, may_fail = False, _NAMES_ERROR in body
    for data in _split_events(body):
        if data == _DONE:
            is_done = True
            break
        event = _read_event(data, what)
        if may_fail and (status := _find_failure(event)):
            return JoinedReply(status, data, is_whole=True)
        if bytes(event.usage) != b"null":
            usage = event.usage
        if bytes(event.timings) != b"null":
            timings = event.timings
        for choice in event.choices or ():
            if choice.index:
                continue
            finish_reason = choice.finish_reason or finish_reason
            delta = choice.delta or ReplyMessage()
            content.append(delta.text)
            thoughts.append(delta.thoughts)
            refusal.append(delta.refusal or "")
            for place, function in delta.calls:
                name, arguments = calls.setdefault(place, ([], []))
                if function.name and function.name not in name:  # some servers repeat it with each piece
                    name.append(function.name)
                arguments.append(function.text)
    functions = [_FunctionCall("".join(name), "".join(arguments)) for _, (name, arguments) in sorted(calls.items())]
    called = [_ToolCall(function=each) for each in functions]
    message = ReplyMessage("".join(content), "".join(refusal) or None, called, "".join(thoughts) or None)
    whole = _CompletionBody([_ReplyChoice(message, finish_reason)], usage, timings)
    # A gateway whose model died may still send the last event.
    is_whole = finish_reason is not None or (is_done and any((*content, *refusal, *thoughts, *calls)))
    return JoinedReply(HTTPStatus.OK, msgspec.json.encode(whole), is_whole=is_whole)


def _split_events(body: bytes) -> Iterator[bytes]:
    """Yield the data of each event. Comments only keep the connection open."""
    data: list[bytes] = []
    for line in (*_LINE_END.split(body), b""):
        if line.startswith(b"data:"):
            data.append(line[5:].strip())
        elif not line and data:
            yield b"\n".join(data)
            data = []


def _read_event(data: bytes, what: str) -> _CompletionBody:
    try:
        return msgspec.json.decode(data, type=_CompletionBody)
    except UNREADABLE:
        # Not `from error`: it quotes the reply, which may tell of people.
        why = f"{what}: the streamed reply holds an event that is no JSON object of the API"
        raise UnreadableStreamError(why) from None


def find_hidden_failure(body: bytes) -> int:
    """Return the status of an error within a reply; 0 if it has none."""
    if _NAMES_ERROR not in body:
        return 0
    try:
        return _find_failure(msgspec.json.decode(body, type=_CompletionBody))
    except UNREADABLE:
        return 0


def _find_failure(event: _CompletionBody) -> int:
    """Return the status of the error that an event, or its first choice, holds; 0 where there is none."""
    first = next(iter(event.choices or ()), None)
    for error in (event.error, *((first.error,) if first else ())):
        if bytes(error) != b"null":
            status = _STATUS.search(error)
            return int(status[1]) if status else HTTPStatus.INTERNAL_SERVER_ERROR
    return HTTPStatus.BAD_GATEWAY if first and first.finish_reason == "error" else 0
