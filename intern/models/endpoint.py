"""A model behind any OpenAI-compatible endpoint, asked in a form of request that its server takes."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx
import msgspec
import structlog

from intern.core.errors import ModelRefusedError, ModelReplyError, ModelSchemaError
from intern.core.log import get_logger
from intern.core.messages import Image
from intern.models.http import Endpoint, EndpointCall, FormRefusedError, SharedEndpoint
from intern.models.limits import EndpointLimits
from intern.models.options import LlmOptions
from intern.models.prompt import InT, Model, OutT, Prompt, Schema, narrow_schema, reply_schema
from intern.models.recorded_calls import note_sent
from intern.models.replies import UnfitReplyError, UnreadableStreamError, decode_reply, read_completion
from intern.models.request_forms import SMALLEST, VALUES, FormSearch, RequestForm
from intern.models.templates import PromptExample, PromptTemplates, RenderedPrompt
from intern.models.usage import UsageCounter, estimate_tokens

_log = get_logger(__name__)

_IMAGE_TOKENS = 1000  # the rough cost of a picture at most endpoints
_IMAGE_TYPE = re.compile(r"image/[a-z0-9.+-]{1,40}")


class ChatRequest(NamedTuple):
    """A request, ready to be sent, and an estimate of its tokens."""

    body: bytes
    prompt_tokens: int
    """Estimated."""


def build_chat_request(
    prompt: Prompt[InT, Any],
    given: InT,
    rendered: RenderedPrompt,
    images: Sequence[Image],
    options: LlmOptions,
    *,
    form: RequestForm = RequestForm(),  # noqa: B008 it is immutable
    offers_choices: bool = False,
    fault: str = "",
) -> ChatRequest:
    """Return one prompt as a request in this form, with fields of the standard API only.

    With `offers_choices` the schema lists the ids that were shown. `fault` is that of a reply to the same prompt.
    """
    values = form.values
    schema = _build_schema(prompt, given, values, offers_choices=offers_choices)
    output = values["output"]
    system, examples = rendered.system, rendered.examples
    if values["examples"] == "text":
        system += "".join(f"\n\nExample:\n{each.user}\n\nReply:\n{each.assistant}" for each in examples)
        examples = ()
    if output in {"json_object", ""} or fault:  # some servers ignore the field that holds a reply to its type
        wanted = msgspec.json.encode(schema).decode()
        system += f"\n\nReply with one JSON object, and nothing else, that fits this JSON schema:\n{wanted}"
    user = rendered.user + (f"\n\nAn earlier reply to this was not usable ({fault}). Reply once more." if fault else "")
    turns = list(_build_example_messages(prompt.name, examples, calls=output == "function_calling"))
    if (role := values["system"]) == "user":
        first = turns[0]["content"] if turns else user
        whole = _replace_surrogates(f"{system}\n\n{first}")
        user, turns = (user, [{**turns[0], "content": whole}, *turns[1:]]) if turns else (whole, turns)
    else:
        turns.insert(0, {"role": role, "content": _replace_surrogates(system)})
    pictures = [image for image in images if options.images and _IMAGE_TYPE.fullmatch(image.media_type)]
    limit, streams = values["limit"], values["stream"]
    body = {
        "model": options.model,
        "messages": [*turns, {"role": "user", "content": _user_content(_replace_surrogates(user), pictures)}],
        **({limit: options.reply_tokens} if limit else {}),
        **({"temperature": options.temperature} if values["temperature"] else {}),
        **({"stream": True} if streams else {}),
        **({"stream_options": {"include_usage": True}} if streams and values["counting"] else {}),
        **({"reasoning_effort": options.reasoning_effort} if options.reasoning_effort and values["effort"] else {}),
        **_output_fields(prompt.name, schema, values),
    }
    words = estimate_tokens(rendered._replace(system=system, user=user).whole + str(schema))
    return ChatRequest(msgspec.json.encode(body), words + _IMAGE_TOKENS * len(pictures))


def _build_example_messages(name: str, examples: Sequence[PromptExample], *, calls: bool) -> Iterator[dict[str, Any]]:
    """Yield examples as messages, each reply in the form that the model is to use."""
    for n, example in enumerate(examples):
        yield {"role": "user", "content": _replace_surrogates(example.user)}
        reply = _replace_surrogates(example.assistant)
        if not calls:
            yield {"role": "assistant", "content": reply}
            continue
        call = {"id": f"example{n}", "type": "function", "function": {"name": name, "arguments": reply}}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": call["id"], "content": "taken"}


def _build_schema(prompt: Prompt[InT, Any], given: InT, values: Mapping[str, Any], *, offers_choices: bool) -> Schema:
    schema = reply_schema(prompt.gives, bounds=values["bounds"])
    # In words alone an enum would only repeat the prompt.
    in_words = values["output"] in {"json_object", ""}
    if prompt.offers is None or in_words or not (offers_choices and values["choices"]):
        return schema
    offered = prompt.offers(given)
    return narrow_schema(schema, {name: [*map(_replace_surrogates, choices)] for name, choices in offered.items()})


def _user_content(text: str, images: Iterable[Image]) -> str | list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"data:{image.media_type};base64,{b64encode(image.data).decode()}"}}
        for image in images
    ]
    return [{"type": "text", "text": text}, *parts] if parts else text


def _output_fields(name: str, schema: Schema, values: Mapping[str, Any]) -> dict[str, Any]:
    match values["output"]:
        case "json_schema":
            wanted = {"name": name, **({"strict": True} if values["strict"] else {}), "schema": schema}
            return {"response_format": {"type": "json_schema", "json_schema": wanted}}
        case "function_calling":
            function = {"name": name, "description": "Give the reply.", "parameters": schema}
            # There is one function, so "required" names it; llama.cpp ignores a choice by name.
            return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case _:
            return {}


def _replace_surrogates(text: str) -> str:
    """Return `text` with a question mark for each lone surrogate, which no JSON can carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


_WORTH_A_CALL: tuple[Mapping[str, int], ...] = (
    {"system": 0, "examples": 0},
    {"examples": 0},
    {"output": 0, "strict": 0, "bounds": 0, "choices": 0},
    {"output": 0},
    {"output": 1, "bounds": 0, "choices": 0},
    {"output": 2},
    {"limit": 0},
    {"limit": 1},
    {"stream": 0, "counting": 0},
    {"temperature": 0},
)
"""The places of values to try again after the smallest form; the first ones improve answers most."""


class EndpointModel(Endpoint):
    """A model behind an endpoint.

    `form` is the form that an earlier process found, if any. `remember` gets each new form in which a call was
    answered, and must not raise.
    """

    def __init__(
        self,
        options: LlmOptions,
        *,
        templates: PromptTemplates,
        usage: UsageCounter,
        client: httpx.AsyncClient | None = None,
        section: str = "llm",
        form: RequestForm | None = None,
        remember: Callable[[RequestForm], Awaitable[object]] | None = None,
        line: SharedEndpoint | None = None,
        party: str = "",
    ) -> None:
        path = "/chat/completions"
        super().__init__(options, path=path, usage=usage, client=client, section=section, line=line, party=party)
        self._templates = templates
        chosen = options.structured_output
        self._output = None if chosen == "auto" else VALUES["output"].index(chosen)
        self._fullest = RequestForm(output=self._output or 0)
        unsent = {} if options.reasoning_effort else {"effort": 0}
        self._smallest = SMALLEST._replace(**unsent, **({} if self._output is None else {"output": self._output}))
        self.form = form or self._fullest
        """The form of requests that the endpoint takes, as far as it is known."""
        self._answered = form
        """The form that was last answered."""
        self._trial: RequestForm | None = None
        """A fuller form than the answered one that is worth one try."""
        self._remember = remember
        self._offers_choices = False
        self._background = _BackgroundModel(self, self._limits.background())

    def background(self) -> Model:
        """Return the same endpoint for work that must not starve answers; all callers share its limits."""
        return self._background

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Return a reply that fits `prompt.gives`. Raises the `ModelError` family, or `ConfigError` for a template."""
        return await self.ask_within(self._limits, prompt, given, images)

    async def ask_within(
        self, limits: EndpointLimits, prompt: Prompt[InT, OutT], given: InT, images: Sequence[Image]
    ) -> OutT:
        """Ask under limits of the caller's choice."""
        rendered = self._templates.render(prompt, given)
        note_sent(rendered)
        fault = ""
        trial, self._trial = self._trial, None
        proven = self._answered if trial is None and self.form == self._answered else None
        # A known form that is refused belongs to an older server: the search begins again.
        fallback = self.form if trial else self._fullest if proven not in {None, self._fullest} else None
        search = FormSearch(trial or self.form, self._smallest, proven=proven, fallback=fallback)
        while True:
            form = search.form
            self._check_output(form)
            request = build_chat_request(
                *(prompt, given, rendered, images, self._options),
                form=form,
                offers_choices=self._offers_choices,
                fault=fault,
            )
            try:
                reply = await self._complete(limits, prompt, request)
            except (FormRefusedError, UnreadableStreamError) as error:
                parts: Collection[str] = {"stream"}
                is_over = not form.values["stream"]
                if isinstance(error, FormRefusedError):
                    parts, is_over = error.parts, False
                else:  # it was paid for, so a reply is asked for only once more, whole
                    search.fallback = None
                if is_over or not search.refuse(parts):
                    self.form = self._answered or self.form
                    if isinstance(error, FormRefusedError) and parts:
                        raise ModelSchemaError(str(error)) from error
                    raise
                _log.warning("model_form_changed", section=self._section, reason=str(error))
                if parts and search.is_narrowing:  # for calls that begin meanwhile
                    self.form = search.form
            except UnfitReplyError as error:
                if fault:
                    raise
                fault = error.fault
                _log.warning("model_reply_unfit", section=self._section, reason=str(error))
            else:
                await self._keep_form(search, form)
                return reply

    async def restore_fuller_form(self, prompt: Prompt[InT, Any], given: InT) -> None:
        """Try to say parts of the smallest form more fully again, one call each, eleven at most."""
        rendered, trial = self._templates.render(prompt, given), self._trial
        for places in (*((trial._asdict(),) if trial else ()), *_WORTH_A_CALL):
            fuller = self.form._replace(**places)
            is_won = all(getattr(self.form, part) <= place for part, place in places.items())
            if is_won or (self._output is not None and fuller.output != self._output):
                continue
            try:
                request = build_chat_request(prompt, given, rendered, (), self._options, form=fuller)
                await self._complete(self._limits, prompt, request)
            except (ModelRefusedError, ModelReplyError):
                continue
            self.form = self._answered = fuller
            if fuller == trial:  # it lacks nothing but the parts that were refused
                break
        if self._remember:
            await self._remember(self.form)

    def _check_output(self, form: RequestForm) -> None:
        """Raise ModelSchemaError where only another `structured_output` works than the one that is set."""
        if self._output is not None and form.output != self._output:
            found = f'"{form.values["output"]}" may work' if form.values["output"] else "no other works"
            raise ModelSchemaError(
                f'{self.where} refuses {self._section}.structured_output = "{self._options.structured_output}", and'
                f' {found}: set it to "auto", which finds out'
            )

    async def _keep_form(self, search: FormSearch, form: RequestForm) -> None:
        """Keep a form that was answered. After the smallest, the fullest that was not refused is tried next."""
        if form == self._answered == self.form:
            return
        self.form, self._answered, self._trial = form, form, search.untried
        if self._remember:
            await self._remember(form)

    async def _complete(self, limits: EndpointLimits, prompt: Prompt[InT, OutT], request: ChatRequest) -> OutT:
        what = f"{prompt.name}: {self.where}"
        call = EndpointCall(prompt.name, what, request.body, request.prompt_tokens, prompt.bounded_by)
        reserved = limits.reserve(request.prompt_tokens, reply_tokens=self._options.reply_tokens, what=prompt.name)
        with structlog.contextvars.bound_contextvars(prompt=prompt.name):
            async with reserved as still_fits:
                answer = await self.send(limits, call, still_fits)
                try:
                    completion = read_completion(answer, what=what)
                except ModelReplyError:
                    self.count_lost(call)
                    raise
                spent = completion.count_tokens(request.prompt_tokens)
                cached = completion.cached_tokens
                await self._usage.add(prompt.name, *spent, self._options.price.compute_cost(*spent, cached), cached)
        self._offers_choices = self._offers_choices or completion.is_of_llama_cpp
        return decode_reply(completion, prompt, self._options, what=what)


@dataclass(frozen=True)
class _BackgroundModel:
    """An endpoint seen through narrower limits."""

    endpoint: EndpointModel
    limits: EndpointLimits

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        return await self.endpoint.ask_within(self.limits, prompt, given, images)
