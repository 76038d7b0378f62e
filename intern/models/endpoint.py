"""A model behind any OpenAI-compatible endpoint.

The model learns from refusals which parts of a request an endpoint accepts, and repeats the request without the others.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
import msgspec
import structlog

from intern.core.errors import ModelError, ModelRefusedError, ModelReplyError, ModelSchemaError
from intern.core.log import get_logger
from intern.core.messages import Image
from intern.core.text.patterns import regex
from intern.models.http import Call, Endpoint, FieldRefusedError, Line
from intern.models.limits import Limits
from intern.models.options import LlmOptions, StructuredOutput
from intern.models.prompt import InT, Model, OutT, Prompt, Schema, narrowed, reply_schema
from intern.models.recording import note_sent
from intern.models.replies import UnreadableStreamError, read_completion, reply_of
from intern.models.templates import Example, Rendered, Templates
from intern.models.usage import Usage, estimated_tokens

_log = get_logger(__name__)

_IMAGE_TOKENS = 1000  # what a picture costs at most endpoints, roughly
_IMAGE_TYPE = regex(r"image/[a-z0-9.+-]{1,40}")


_COUNTED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
STREAMING: tuple[Mapping[str, Any], ...] = (_COUNTED, {"stream": True}, {})
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
        streaming, temperature = max(self.streaming, other.streaming), self.temperature and other.temperature
        return Form(streaming, temperature, self.bounds and other.bounds)


class Request(NamedTuple):
    """A request, ready to be sent, and about what it may cost."""

    body: bytes
    prompt_tokens: int
    """Estimated."""


def chat_request(
    prompt: Prompt[InT, Any],
    given: InT,
    rendered: Rendered,
    images: Sequence[Image],
    options: LlmOptions,
    *,
    form: Form = Form(),  # noqa: B008 it is immutable
) -> Request:
    """Return one prompt as a request, with fields of the standard API only."""
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
    """Yield examples as messages, each reply in the form that the model is to use."""
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
    """Return `text` with a question mark for each lone surrogate, which no JSON can carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class EndpointModel(Endpoint):
    """A model behind an endpoint.

    `form` is the form that an earlier process learned, if any. `remember` gets each new form in which a call was
    answered, and must not raise.
    """

    def __init__(
        self,
        options: LlmOptions,
        *,
        templates: Templates,
        usage: Usage,
        client: httpx.AsyncClient | None = None,
        section: str = "llm",
        form: Form | None = None,
        remember: Callable[[Form], Awaitable[object]] | None = None,
        line: Line | None = None,
        party: str = "",
    ) -> None:
        path = "/chat/completions"
        super().__init__(options, path=path, usage=usage, client=client, section=section, line=line, party=party)
        self._templates = templates
        self.form = form or Form()
        """The parts of requests that this endpoint accepts, learned from its refusals."""
        self._remembered, self._remember = form, remember
        self._background = _Background(self, self._limits.background())

    def background(self) -> Model:
        """Return the same endpoint for work that must not starve answers; all callers share its limits."""
        return self._background

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Return a reply that fits `prompt.gives`. Raises the `ModelError` family, or `ConfigError` for a template."""
        return await self.ask_within(self._limits, prompt, given, images)

    async def ask_within(self, limits: Limits, prompt: Prompt[InT, OutT], given: InT, images: Sequence[Image]) -> OutT:
        """Ask under limits of the caller's choice."""
        rendered = self._templates.render(prompt, given)
        note_sent(rendered)
        while True:
            form = self.form
            request = chat_request(prompt, given, rendered, images, self._options, form=form)
            try:
                reply = await self._completed(limits, prompt, request)
            except (ModelRefusedError, UnreadableStreamError) as error:
                simpler = self._simpler(form, error)
                if simpler == form:
                    raise
                # Calls that were under way together must not step twice.
                self.form = self.form.less(simpler)
                _log.warning("model_form_changed", section=self._section, reason=str(error))
            else:
                # A refusal may have had another reason, so a form counts once it was answered.
                if self._remember and form == self.form != self._remembered:
                    self._remembered = form
                    await self._remember(form)
                return reply

    def _simpler(self, form: Form, error: ModelError) -> Form:
        """Return the form to try next; the same one if no other would help."""
        last = len(STREAMING) - 1
        match error:
            case FieldRefusedError(field="stream"):
                return form._replace(streaming=min(form.streaming + 1, last))
            case UnreadableStreamError():  # it was paid for, so it is asked for only once more, whole
                return form._replace(streaming=last)
            case FieldRefusedError(field="temperature"):
                return form._replace(temperature=False)
            case ModelSchemaError() if self._options.schema_bounds:
                return form._replace(bounds=False)
            case _:
                return form

    async def _completed(self, limits: Limits, prompt: Prompt[InT, OutT], request: Request) -> OutT:
        what = f"{prompt.name}: {self.where}"
        call = Call(prompt.name, what, request.body, request.prompt_tokens, prompt.bounded_by)
        budgeted = limits.budgeted(request.prompt_tokens, reply_tokens=self._options.max_tokens, what=prompt.name)
        with structlog.contextvars.bound_contextvars(prompt=prompt.name):
            async with budgeted as still_fits:
                answer = await self.answered(limits, call, still_fits)
                try:
                    completion = read_completion(answer, what=what)
                except ModelReplyError:
                    self.count_lost(call)
                    raise
                spent = completion.tokens(request.prompt_tokens)
                cached = completion.cached_tokens
                await self._usage.add(prompt.name, *spent, self._options.price.of(*spent, cached), cached)
        return reply_of(completion, prompt, self._options, what=what)


@dataclass(frozen=True)
class _Background:
    """An endpoint seen through narrower limits."""

    endpoint: EndpointModel
    limits: Limits

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        return await self.endpoint.ask_within(self.limits, prompt, given, images)
