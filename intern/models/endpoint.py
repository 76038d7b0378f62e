"""A model behind any OpenAI-compatible endpoint.

The model learns from refusals which parts of a request an endpoint accepts, and repeats the request without the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import httpx
import structlog

from intern.core.errors import ModelError, ModelRefusedError, ModelReplyError, ModelSchemaError
from intern.core.log import get_logger
from intern.core.messages import Image
from intern.models.chat import STREAMING, Form, Request, chat_request, read_completion, reply_of
from intern.models.http import Call, Endpoint, FieldRefusedError
from intern.models.limits import Limits
from intern.models.options import LlmOptions
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.models.replies import UnreadableStreamError
from intern.models.templates import Templates
from intern.models.usage import Usage

_log = get_logger(__name__)


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
    ) -> None:
        super().__init__(options, path="/chat/completions", usage=usage, client=client, section=section)
        self._templates = templates
        self.form = form or Form()
        """The parts of requests that this endpoint accepts, learned from its refusals."""
        self._remembered = form
        self._remember = remember
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


class _Background:
    """An endpoint seen through narrower limits."""

    def __init__(self, endpoint: EndpointModel, limits: Limits) -> None:
        self._endpoint = endpoint
        self._limits = limits

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        return await self._endpoint.ask_within(self._limits, prompt, given, images)
