"""A model without a model: rules over the same typed inputs. Deterministic, instant, and it needs no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any

import anyio

from intern.domain import Image
from intern.errors import ModelRefusedError
from intern.llm.prompt import InT, OutT, Prompt

Rules = Mapping[str, Callable[[Any], Any]]
"""A rule for each prompt, by the prompt's name: takes the prompt's input, gives its output, or waits for it."""


class OfflineModel:
    """Answers each prompt by its rule. It cannot look at pictures; a prompt without a rule is refused."""

    def __init__(self, rules: Rules) -> None:
        self._rules = dict(rules)
        self._turns = anyio.Lock()

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        """What the rule gives. Raises `ModelRefusedError` where there is none."""
        del images
        rule = self._rules.get(prompt.name)
        if rule is None:
            raise ModelRefusedError(
                f"{prompt.name} cannot be done without a language model; set llm.base_url and llm.model"
            )
        async with self._turns:  # one in each turn of the loop: a burst of rules must not hold up everybody else
            reply = rule(given)
        if isawaitable(reply):
            reply = await reply
        if not isinstance(reply, prompt.gives):
            raise TypeError(f"the rule of {prompt.name} gave a {type(reply).__name__}, not a {prompt.gives.__name__}")
        return reply
