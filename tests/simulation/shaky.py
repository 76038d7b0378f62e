"""The bot's surroundings in the simulation: a model and an interactions edge that take their time, and fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from random import Random

from anyio import sleep

from intern.core.clock import Clock
from intern.core.errors import (
    ChatRefusedError,
    ChatUnavailableError,
    ChatUnknownOutcomeError,
    ModelError,
    ModelRefusedError,
    ModelReplyError,
    ModelUnavailableError,
)
from intern.core.flow import InteractionTicket
from intern.core.ids import parse_position
from intern.core.messages import Button, Image
from intern.models.prompt import InT, OfflineModel, OutT, Prompt
from intern.models.usage import UsageCounter
from intern.service.models import Models, collect_offline_rules
from intern.settings.settings import Settings
from tests.worlds.chat import SandboxCommands

LATENCY = 0.4  # seconds, at most, on each way of a call
_FIRST_ANSWER = 3.0  # seconds that Discord waits for the first sign
_PACE = (0.0, 0.1, 0.4, 1.5, 5.0)  # seconds that a reply takes


class ShakyModel:
    """Rules that are slow, and that fail once in a while in one of these ways."""

    def __init__(self, rng: Random, failures: Sequence[type[ModelError]]) -> None:
        self._rng = rng
        self._failures = failures
        self._rules = OfflineModel(collect_offline_rules())

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        await sleep(self._rng.choice(_PACE))
        if self._rng.random() < 0.05:
            raise self._rng.choice(self._failures)("as the dice say")
        return await self._rules.ask(prompt, given, images=images)


class ShakyModels:
    """Opens them for one life of the bot after the other."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    @asynccontextmanager
    async def __call__(self, settings: Settings, usage: UsageCounter, clock: Clock) -> AsyncGenerator[Models]:
        del settings, usage, clock
        yield Models(
            answering=ShakyModel(self._rng, (ModelUnavailableError, ModelReplyError, ModelRefusedError)),
            # A reply that makes no sense parks its pair for ten minutes; that is tested elsewhere.
            learning=ShakyModel(self._rng, (ModelUnavailableError,)),
        )


class ShakyResponses(SandboxCommands):
    """Discord's side of interactions, at a distance; it forgets those that get no sign in time."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        super().__init__()
        self._clock = clock
        self._rng = rng

    async def defer(self, ticket: InteractionTicket, *, update: bool = False) -> None:
        await sleep(self._rng.uniform(0, LATENCY))
        age = (self._clock.now() - parse_position(ticket.id).time).total_seconds()
        if ticket.id not in self.told and age > _FIRST_ANSWER:
            raise ChatRefusedError("Discord refused: unknown interaction")
        await super().defer(ticket, update=update)
        if self._rng.random() < 0.05:
            raise ChatUnknownOutcomeError("as the dice say")

    async def reply(self, ticket: InteractionTicket, text: str, *, buttons: Sequence[Button] = ()) -> None:
        await self._travel()
        await super().reply(ticket, text, buttons=buttons)

    async def follow_up(self, ticket: InteractionTicket, text: str, *, buttons: Sequence[Button] = ()) -> None:
        await self._travel()
        await super().follow_up(ticket, text, buttons=buttons)

    async def _travel(self) -> None:
        await sleep(self._rng.uniform(0, LATENCY))
        if self._rng.random() < 0.05:
            raise ChatUnavailableError("as the dice say")
