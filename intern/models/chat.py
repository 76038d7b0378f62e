"""The chat completions format: making a request, reading a reply. Pure; everything in a reply is data.

Local models put their JSON in a code fence, behind their thoughts, or between sentences.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from intern.core.errors import ModelRefusedError, ModelReplyCutError, ModelReplyError
from intern.core.messages import Image
from intern.core.text.masking import mask_secrets
from intern.models.options import LlmOptions, StructuredOutput
from intern.models.prompt import InT, OutT, Prompt, Schema, narrowed, reply_schema
from intern.models.templates import Example, Rendered
from intern.models.usage import estimated_tokens

_THOUGHT = r"think|thinking|thought|reasoning"
_OPENED = re.compile(rf"<(?:{_THOUGHT})>|\[THINK\]|◁think▷", re.IGNORECASE)
_CLOSED = re.compile(rf"</(?:{_THOUGHT})>|\[/THINK\]|◁/think▷", re.IGNORECASE)
_MOST_TRIED = 200  # braces at which an object may begin; a hostile reply has millions, and each is read to its end

_decoder = json.JSONDecoder()


class NoEndError(Exception):
    """The reply is a thought that never ends."""


def objects(text: str) -> Iterator[str]:
    """Yield the JSON objects that a reply may mean, the likeliest first. Raises NoEndError.

    That is the text itself; then those that stand behind the last thought, the last one first, for what comes before
    is a draft or an example; then those that hold the end of a thought in a string.
    """
    yield text
    closed = list(_CLOSED.finditer(text))
    start = closed[-1].end() if closed else 0
    unclosed = _OPENED.search(text, start)
    said = text[start : unclosed.start() if unclosed else None]
    found = list(_objects(said))
    yield from (said[begin:end] for begin, end in reversed(found))
    if unclosed and not found:
        raise NoEndError
    if closed:
        first = closed[0].end() if _OPENED.match(text.lstrip()) else 0
        rest = text[first:]
        yield from (rest[begin:end] for begin, end in reversed(list(_objects(rest))) if first + end >= start)


def _objects(text: str) -> Iterator[tuple[int, int]]:
    """Begin and end of each outermost object."""
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
_IMAGE_TOKENS = 1000  # what a picture costs at most endpoints, roughly
_IMAGE_TYPE = re.compile(r"image/[a-z0-9.+-]{1,40}")
_MOST_TOKENS = 10_000_000  # of one call; a larger count is a mistake, and would eat up any budget
_PLACE = re.compile(r" - (?:at|from) `((?:key in )?\$[\w.\[\]]{0,200})`\Z")
# What msgspec says before it quotes a reply; the types and bounds are ours.
_FAULTS = re.compile(
    r"Invalid enum value|Invalid value|Object contains unknown field|Object missing required field `\w{1,60}`"
    r"|Expected `[^`]{1,60}`(?: of length [<>]= \d+| [<>]=? [\d.-]+)?(?:, got `[^`]{1,60}`)?"
    r"|JSON is malformed: [a-z ]{1,60}(?:\(byte \d+\))?|Input data was truncated|Invalid [A-Za-z0-9-]{1,20}"
)
_BROKEN = (msgspec.MsgspecError, UnicodeError, RecursionError)


STREAMING: tuple[Mapping[str, Any], ...] = (
    {"stream": True, "stream_options": {"include_usage": True}},
    {"stream": True},
    {},
)
"""How a stream is asked for; the next form is for an endpoint that refuses the one before."""


class Form(NamedTuple):
    """The parts of a request that an endpoint accepts, as far as known from its refusals."""

    streaming: int = 0
    """Of `STREAMING`."""
    temperature: bool = True
    bounds: bool = True
    """Lengths and ranges in schemas."""

    def less(self, other: Form) -> Form:
        """Return the form without anything that either form lacks."""
        return Form(
            max(self.streaming, other.streaming), self.temperature and other.temperature, self.bounds and other.bounds
        )


class Request(NamedTuple):
    """A request, ready to be sent, and about what it may cost."""

    body: bytes
    prompt_tokens: int
    """Estimated."""


class _Part(Struct):
    text: str | None = None


class _Function(Struct):
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
    function: _Function | None = None


class Message(Struct):
    """A reply, or a piece of one where it is streamed. Some servers send null where others leave a field out."""

    content: str | list[_Part | str] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None

    @property
    def text(self) -> str:
        """The content; of a list of parts, those that are text."""
        if isinstance(self.content, list):
            return "".join(part if isinstance(part, str) else part.text or "" for part in self.content)
        return self.content or ""

    @property
    def calls(self) -> list[tuple[int, _Function]]:
        """The functions that are called, each with its place."""
        return [(call.index or 0, call.function) for call in self.tool_calls or () if call.function]


class _Choice(Struct):
    message: Message
    finish_reason: str | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Tokens(Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's word for the same."""


class _Timings(Struct):
    """Figures of llama.cpp's server beside the usage; older ones report their cache only here."""

    cache_n: int | None = None


class _Body(Struct):
    choices: list[_Choice] = []
    usage: msgspec.Raw = msgspec.Raw(b"null")
    timings: msgspec.Raw = msgspec.Raw(b"null")


class Completion(NamedTuple):
    """A reply as it came, not judged yet."""

    choice: _Choice
    prompt_tokens: int | None
    completion_tokens: int | None
    """None if the endpoint does not count."""
    cached_tokens: int = 0
    """The tokens of the prompt that the endpoint had in its cache."""

    def tokens(self, estimated_prompt_tokens: int) -> tuple[int, int]:
        """Prompt and reply tokens, estimated where the endpoint did not count."""
        if self.prompt_tokens is not None and self.completion_tokens is not None:
            return self.prompt_tokens, self.completion_tokens
        message = self.choice.message
        written = message.text + "".join(function.text for _, function in message.calls)
        return estimated_prompt_tokens, estimated_tokens(written)


def chat_request(
    prompt: Prompt[InT, Any],
    given: InT,
    rendered: Rendered,
    images: Sequence[Image],
    options: LlmOptions,
    *,
    form: Form = Form(),  # noqa: B008 it is immutable
) -> Request:
    """One prompt as a request, with fields of the standard API only."""
    schema = _schema(prompt, given, options, form)
    system = rendered.system
    if options.structured_output == "json_object":
        wanted = msgspec.json.encode(schema).decode()
        system += f"\n\nReply with one JSON object, and nothing else, that fits this JSON schema:\n{wanted}"
    pictures = [image for image in images if options.images and _IMAGE_TYPE.fullmatch(image.media_type)]
    body = {
        "model": options.model,
        "messages": [
            {"role": "system", "content": _encodable(system)},
            *_turns(prompt.name, rendered.examples, options.structured_output),
            {"role": "user", "content": _user_content(_encodable(rendered.user), pictures)},
        ],
        "max_tokens": options.max_tokens,
        **({"temperature": options.temperature} if form.temperature else {}),
        **STREAMING[form.streaming],
        **_output_fields(prompt.name, schema, options.structured_output),
    }
    words = estimated_tokens(rendered._replace(system=system).whole + str(schema))
    return Request(msgspec.json.encode(body), words + _IMAGE_TOKENS * len(pictures))


def _turns(name: str, examples: Sequence[Example], output: StructuredOutput) -> Iterator[dict[str, Any]]:
    """Examples as messages, each reply in the form that the model is to use."""
    for n, example in enumerate(examples):
        yield {"role": "user", "content": _encodable(example.user)}
        reply = _encodable(example.assistant)
        if output != "function_calling":
            yield {"role": "assistant", "content": reply}
            continue
        call = {"id": f"example{n}", "type": "function", "function": {"name": name, "arguments": reply}}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": call["id"], "content": "taken"}


def _schema(prompt: Prompt[InT, Any], given: InT, options: LlmOptions, form: Form) -> Schema:
    schema = reply_schema(prompt.gives, bounds=options.schema_bounds and form.bounds)
    # In words alone an enum would only repeat what the prompt shows.
    if prompt.offers is None or not options.schema_choices or options.structured_output == "json_object":
        return schema
    offered = prompt.offers(given)
    return narrowed(schema, {name: [_encodable(value) for value in values] for name, values in offered.items()})


def _user_content(text: str, images: Iterable[Image]) -> str | list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"data:{image.media_type};base64,{b64encode(image.data).decode()}"}}
        for image in images
    ]
    return [{"type": "text", "text": text}, *parts] if parts else text


def _output_fields(name: str, schema: dict[str, Any], output: StructuredOutput) -> dict[str, Any]:
    if output == "json_schema":
        wanted = {"name": name, "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": wanted}}
    if output == "function_calling":
        function = {"name": name, "description": "Give the reply.", "parameters": schema}
        # There is one function, so "required" names it; llama.cpp passes over a choice by name.
        return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    return {"response_format": {"type": "json_object"}}


def _encodable(text: str) -> str:
    """`text` with a question mark for each lone surrogate, which no JSON can carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def read_completion(body: bytes, *, what: str) -> Completion:
    """Return the first choice of a reply. Raises `ModelReplyError` if there is none; `what` names the call."""
    try:
        read = msgspec.json.decode(body, type=_Body)
    except _BROKEN as error:
        raise ModelReplyError(f"{what}: the reply is not a chat completion: {_fault(error)}") from error
    if not read.choices:
        quoted = excerpt(body.decode("utf-8", "replace"))
        raise ModelReplyError(f"{what}: the reply holds no choices: {quoted}")
    try:
        tokens = msgspec.json.decode(read.usage, type=_Tokens)
    except _BROKEN:
        return Completion(read.choices[0], None, None)  # an endpoint that cannot count may still answer well
    prompt_tokens, completion_tokens = (
        min(max(0, count), _MOST_TOKENS) for count in (tokens.prompt_tokens, tokens.completion_tokens)
    )
    cached = _cached(tokens, read.timings)
    return Completion(read.choices[0], prompt_tokens, completion_tokens, min(max(0, cached), prompt_tokens))


def _cached(tokens: _Tokens, timings: msgspec.Raw) -> int:
    """Return the tokens of the prompt that were in the endpoint's cache, by any of the names in use."""
    told = tokens.prompt_tokens_details and tokens.prompt_tokens_details.cached_tokens
    if cached := told or tokens.prompt_cache_hit_tokens:
        return cached
    try:
        return msgspec.json.decode(timings, type=_Timings).cache_n or 0
    except _BROKEN:
        return 0


def reply_of(completion: Completion, prompt: Prompt[Any, OutT], options: LlmOptions, *, what: str) -> OutT:
    """Decode the reply as its type. Raises `ModelReplyCutError`, `ModelRefusedError` or `ModelReplyError`."""
    text = _complete_text(completion.choice, prompt.name, options, what=what)
    fault: Exception | None = None
    try:
        for each in objects(text):
            try:
                return msgspec.json.decode(each, type=prompt.gives)
            except _BROKEN as error:
                fault = fault if isinstance(fault, msgspec.ValidationError) else error
    except NoEndError:
        hint = "raise llm.max_tokens, or turn the model's thinking off"
        raise ModelReplyError(f"{what}: the reply is a thought that never ends; {hint}") from None
    # Not `from fault`: it quotes the reply, and a traceback would show it.
    raise ModelReplyError(f"{what}: the reply does not fit {prompt.gives.__name__}: {_fault(fault)}") from None


def _complete_text(choice: _Choice, name: str, options: LlmOptions, *, what: str) -> str:
    calling = options.structured_output == "function_calling"
    match choice.finish_reason:
        case "length":
            raise ModelReplyCutError(f"{what}: the reply was cut off (llm.max_tokens = {options.max_tokens})")
        case "content_filter":
            raise ModelRefusedError(f"{what}: the endpoint's content filter stopped the reply")
        case "stop" | None:
            pass
        case "tool_calls" if calling:
            pass
        case other:
            raise ModelReplyError(f"{what}: the reply ended for an unknown reason: {excerpt(other)}")
    if choice.message.refusal:
        raise ModelRefusedError(f"{what}: the model refused, in {len(choice.message.refusal)} characters of its own")
    calls = [function for _, function in choice.message.calls if function.name == name]
    if calling and calls:
        return calls[0].text
    text = choice.message.text
    # Where a model has no form for calls, its server may give the arguments as plain text.
    if calling and "{" not in text:
        raise ModelReplyError(f"{what}: the model did not call the function {name}")
    return text


def _fault(error: Exception | None) -> str:
    """Return the fault of a reply and its place, but no word of the reply, which may be about people."""
    if not isinstance(error, msgspec.MsgspecError):
        return type(error).__name__
    said = str(error)
    place = _PLACE.search(said)
    kind = _FAULTS.match(said)
    return (kind[0] if kind else type(error).__name__) + (f" - at `{place[1]}`" if place else "")


def excerpt(text: str) -> str:
    """Return the beginning of an endpoint's text, on one line and without secrets, for an error."""
    start = "".join(char if char.isprintable() else " " for char in text[: 4 * _EXCERPT])
    line = " ".join(mask_secrets(start).text.split())
    return line if len(line) <= _EXCERPT else line[: _EXCERPT - 1] + "…"
