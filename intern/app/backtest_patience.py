"""A model that is away while history is replayed: it is waited for; where that is in vain, nobody is asked any more.

To go on without it would make a long report of nothing, and answers that lack what could not be learned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from intern.app.models import Models
from intern.domain import Image
from intern.errors import ModelAccessError, ModelBudgetError, ModelUnavailableError
from intern.llm.prompt import InT, Model, OutT, Prompt

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
            # Neither a key nor a day's budget mends itself while somebody waits.
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
