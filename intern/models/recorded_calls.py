"""The calls of a model as they were made, to be read and replayed later.

The part of a prompt that calls share (instructions, examples, schema) is kept once, by its hash. The rest is the
material of one call, which may be anybody's words.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Any, cast

import anyio
import msgspec
from msgspec import Struct

from intern.core.errors import ModelError
from intern.core.messages import Image
from intern.core.text.encoding import encode_json, replace_surrogates
from intern.models.prompt import InT, Model, OutT, Prompt, reply_schema
from intern.models.templates import PromptExample, PromptTemplates, RenderedPrompt
from intern.models.usage import measure_usage

Keep = Callable[[str], str]
"""Keeps a text that recordings share, and returns its name in one of them."""


_sent: ContextVar[list[RenderedPrompt] | None] = ContextVar("intern_sent", default=None)


def note_sent(rendered: RenderedPrompt) -> None:
    """Pass the prompt to a `RecordingModel` around the call, so that it need not be rendered again."""
    if (sent := _sent.get()) is not None:
        sent.append(rendered)


class RecordedCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a model."""

    prompt: str
    """Its name."""
    shared: str
    """The name of the text of instructions, examples and schema."""
    user: str
    """The material, as the model got it."""
    reply: str = ""
    """As JSON; empty where the call failed."""
    error: str = ""
    model: str
    tokens: int = 0
    """0: by rules, or the reply to the same request before."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FinishedCall:
    """A call that was just made."""

    prompt: Prompt[Any, Any]
    given: Any
    reply: object
    """None where the call failed."""
    error: str
    model: str
    tokens: int
    seconds: float
    images: int
    sent: RenderedPrompt | None
    """None where no model was asked: by rules, or where the reply to the same request is known."""

    def make_recorded_call(self, templates: PromptTemplates, keep: Keep) -> RecordedCall:
        """Return the call, with its prompt in words. Raises ConfigError for a broken template."""
        # Rendered here, off the path of an answer.
        rendered = self.sent or templates.render(self.prompt, self.given)
        shared, user = split_shared_text(self.prompt, rendered)
        return RecordedCall(
            prompt=self.prompt.name,
            shared=keep(shared),
            user=user,
            reply="" if self.reply is None else encode_json(self.reply).decode(),
            error=self.error,
            model=self.model,
            tokens=self.tokens,
            seconds=self.seconds,
        )


class RecordingModel:
    """A model that hands on each call that it answered, or failed to answer."""

    def __init__(self, model: Model, name: str, made: Callable[[FinishedCall], object]) -> None:
        self._model, self._name, self._made = model, name, made

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Ask the model. Raises the `ModelError` family."""
        began, sent = anyio.current_time(), list[RenderedPrompt]()
        token = _sent.set(sent)
        with measure_usage() as meter:

            def make_finished_call(reply: object, error: str = "") -> FinishedCall:
                return FinishedCall(
                    prompt=prompt,
                    given=given,
                    reply=reply,
                    error=error,
                    model=self._name,
                    tokens=meter.tokens,
                    seconds=round(anyio.current_time() - began, 3),
                    images=len(images),
                    sent=sent[-1] if sent else None,
                )

            try:
                reply = await self._model.ask(prompt, given, images=images)
            except ModelError as error:
                self._made(make_finished_call(None, str(error)))
                raise
            finally:
                _sent.reset(token)
        self._made(make_finished_call(reply))
        return reply


def split_shared_text(prompt: Prompt[Any, Any], rendered: RenderedPrompt) -> tuple[str, str]:
    """Return the text that all calls of a prompt share, and the material of this one."""
    return _join_shared_text(rendered.system, rendered.examples, cast("Hashable", prompt.gives)), replace_surrogates(
        rendered.user
    )


@lru_cache(maxsize=64)
def _join_shared_text(system: str, examples: tuple[PromptExample, ...], gives: Hashable) -> str:
    schema = msgspec.json.encode(reply_schema(cast("type", gives), bounds=True)).decode()
    return replace_surrogates("\n\n".join((system, *chain.from_iterable(examples), schema)))


def make_digest(text: str) -> str:
    """Return a digest of a text, short enough for a recording and long enough for all that there are."""
    return urlsafe_b64encode(blake2b(text.encode(), digest_size=12).digest()).decode()
