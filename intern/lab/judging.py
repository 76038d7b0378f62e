"""Whether two answers say the same, as far as words and likeness can tell. Pure, and the same in every run.

Likeness is not truth: "yes, do that" and "no, never do that" are alike. What it sorts is worth reading.

A model that is away while history is replayed: the replay waits for it; where that fails, it asks no more questions.

To go on without it would make a long report of nothing, and answers that lack what could not be learned.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from math import fsum
from typing import Final

import anyio
from msgspec import Struct

from intern.core.errors import ModelAccessError, ModelBudgetError, ModelUnavailableError
from intern.core.messages import Image
from intern.core.text.words import word_set
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.service.models import Models


class Bars(Struct, frozen=True, kw_only=True):
    """How alike two answers are at least that count as agreeing; either is enough.

    Measured on 228 answers of support channels' teams, each beside eight that were given to other questions: of 1,817
    such pairs, 12 share that many words, and 2 have vectors that much alike. Of 77 updates of the same entry, 74 share
    that many words, and all have vectors that much alike.
    """

    words: float = 0.4
    vectors: float = 0.5


class Likeness(Struct, frozen=True, kw_only=True):
    """How alike two answers are."""

    words: float | None
    """The share of the shorter one's words that the other has; None where it has none that say anything."""
    vectors: float | None = None
    """The cosine of their vectors; None where nothing makes vectors."""

    @property
    def best(self) -> float:
        """For putting examples in order."""
        return max(self.words or 0.0, self.vectors or 0.0)

    def agrees(self, bars: Bars) -> bool | None:
        """Whether that counts as agreeing; None where it cannot be told."""
        if self.words is None and self.vectors is None:
            return None
        return (self.words or 0.0) >= bars.words or (self.vectors or 0.0) >= bars.vectors


def shared_words(one: str, other: str) -> float | None:
    """From 0 to 1; None where one of the texts says nothing but small talk."""
    first, second = word_set(one), word_set(other)
    fewer = min(len(first), len(second))
    return round(len(first & second) / fewer, 4) if fewer else None


def cosine(one: bytes, other: bytes) -> float:
    """Of two unit vectors of float32."""
    return round(fsum(a * b for a, b in zip(_numbers(one), _numbers(other), strict=True)), 4)


def _numbers(vector: bytes) -> Sequence[float]:
    return struct.unpack(f"<{len(vector) // 4}f", vector)


PAUSES: Final = (5.0, 10.0, 20.0, 40.0, 60.0)
"""Seconds between two attempts; an endpoint that is started anew is back by then."""


class Patience:
    """Waits for a model that is away, a pause after each attempt; without pauses, it neither waits nor gives up."""

    def __init__(self, pauses: Sequence[float], say: Callable[[str], None]) -> None:
        self._pauses = pauses
        self._say = say
        self._last: ModelUnavailableError | None = None
        self.gave_up = ""
        """Why it did; empty where it did not."""

    def over(self, models: Models) -> Models:
        """The models, listened to: what an answer says of its failure does not tell whether waiting helps."""
        return models._replace(answering=_Heard(models.answering, self), learning=_Heard(models.learning, self))

    def hears(self, error: ModelUnavailableError) -> None:
        """That is why a model could not be asked."""
        self._last = error

    async def until(self, succeeds: Callable[[], Awaitable[bool]]) -> bool:
        """Whether one of the attempts did; what they raise is raised."""
        for pause in (*self._pauses, None):
            if await succeeds():
                return True
            # Waiting mends neither a key nor a day's budget.
            if pause is None or isinstance(self._last, ModelAccessError | ModelBudgetError):
                break
            self._say(f"waiting {pause:g} s for the model: {self._last}")
            await anyio.sleep(pause)
        if self._pauses:
            self.gave_up = str(self._last)
        return False


class _Heard:
    def __init__(self, model: Model, patience: Patience) -> None:
        self._model = model
        self._patience = patience

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        try:
            return await self._model.ask(prompt, given, images=images)
        except ModelUnavailableError as error:
            self._patience.hears(error)
            raise
