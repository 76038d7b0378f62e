"""Prompts and models. A prompt is a template, a typed input and a typed output; a model answers it or raises an error.

The offline model answers by rules over the same inputs: deterministic, instant, and without a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Generic, Protocol, TypeVar

import anyio

from intern.core.errors import ModelRefusedError
from intern.core.messages import Image

Choices = Mapping[str, Sequence[str]]
"""The values that a text may take, by the name of its field; for a list of texts, those of its items."""

InT = TypeVar("InT")
OutT = TypeVar("OutT")


@dataclass(frozen=True, slots=True)
class Prompt(Generic[InT, OutT]):
    """One model call. `name` is also the template's: `prompts/<name>.md.j2`."""

    name: str
    takes: type[InT]
    """A msgspec Struct; its fields are the template's variables."""
    gives: type[OutT]
    """A msgspec Struct; the reply's JSON schema is made from it."""
    offers: Callable[[InT], Choices] | None = None
    """The values that fields of the reply may take for this input, such as ids that were shown. The schema may list
    them, but a reply may still hold others."""
    bounded_by: tuple[str, ...] = ()
    """The settings that bound its material, for the error about a prompt that is too long."""


class Model(Protocol):
    """Anything that answers prompts: an endpoint, offline rules, a script in tests."""

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Return a reply that fits `prompt.gives`. Raises only the `ModelError` family."""
        ...


Rules = Mapping[str, Callable[[Any], Any]]
"""A rule for each prompt, by the prompt's name: takes the prompt's input, gives its output, or waits for it."""


class OfflineModel:
    """A model that answers each prompt by its rule. It ignores pictures, and refuses a prompt without a rule."""

    def __init__(self, rules: Rules) -> None:
        self._rules = dict(rules)
        self._turns = anyio.Lock()

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """Answer by the rule. Raises `ModelRefusedError` if there is none."""
        del images
        rule = self._rules.get(prompt.name)
        if rule is None:
            raise ModelRefusedError(
                f"{prompt.name} cannot be done without a language model; set llm.base_url and llm.model"
            )
        async with self._turns:  # one in each turn of the loop: a burst of rules must not block the other tasks
            reply = rule(given)
        if isawaitable(reply):
            reply = await reply
        if not isinstance(reply, prompt.gives):
            raise TypeError(f"the rule of {prompt.name} gave a {type(reply).__name__}, not a {prompt.gives.__name__}")
        return reply
