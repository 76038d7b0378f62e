"""A model that gives the prepared answers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from datetime import date
from inspect import isawaitable
from typing import Any

from intern.core.errors import ModelRefusedError
from intern.core.messages import Image
from intern.models.prompt import InT, OutT, Prompt
from intern.models.usage import UsageCounter, UsageMeter


def calls_of(usage: UsageCounter, prompt: str, day: date | None = None) -> UsageMeter:
    """Return the counts of a usage without a store for a prompt."""
    return usage._owed.get((day or usage.today(), prompt), UsageMeter())


class ScriptedModel:
    """Answers each prompt with the prepared answers; a prompt without an answer fails the test.

    An answer is a reply, an exception to raise, or a function of the input that gives either (it may be async).
    """

    def __init__(self) -> None:
        self._queued: dict[str, deque[Any]] = defaultdict(deque)
        self._always: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.images: list[tuple[Image, ...]] = []

    def next(self, prompt: Prompt[Any, OutT], *replies: OutT | Exception | Callable[[Any], Any]) -> None:
        """Answer the next calls with these, one each."""
        self._queued[prompt.name].extend(replies)

    def always(self, prompt: Prompt[Any, OutT], reply: OutT | Exception | Callable[[Any], Any]) -> None:
        """Answer every further call with this."""
        self._always[prompt.name] = reply

    def calls(self, prompt: Prompt[InT, Any]) -> list[InT]:
        """Return the inputs of this prompt, oldest first."""
        return [given for name, given in self.asked if name == prompt.name]

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        self.asked.append((prompt.name, given))
        self.images.append(tuple(images))
        queue = self._queued[prompt.name]
        reply: Any
        if queue:
            reply = queue.popleft()
        elif prompt.name in self._always:
            reply = self._always[prompt.name]
        else:
            raise AssertionError(f"nobody planned a model call for {prompt.name!r}")
        if callable(reply) and not isinstance(reply, Exception):
            reply = reply(given)
        if isawaitable(reply):
            reply = await reply
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, prompt.gives)
        return reply


def refused() -> ModelRefusedError:
    return ModelRefusedError("the endpoint refused, as the test asked it to")
