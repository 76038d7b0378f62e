"""A captured conversation is filed at once, and may go on: the whole bot, on a simulated clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio import CancelScope, Event, create_task_group, sleep

from intern.actors.activity import ActivityReporter
from intern.core.captures import Turn
from intern.core.clock import Clock
from intern.core.messages import ChatMessage, Image
from intern.facts.segments import remove_person_ids
from intern.models.prompt import InT, OfflineModel, OutT, Prompt
from intern.models.usage import UsageCounter
from intern.runtime.bot import open_sandbox
from intern.service.models import Models, collect_offline_rules
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase
from intern.stores.tables.knowledge import KnowledgeStore
from tests.simulation.machine import SimulatedTime, run_seed
from tests.worlds.bot import settings_in
from tests.worlds.chat import Sandbox

WAIT = 60.0  # the batch wait
STEPS = "stop the relay, copy the folder and set spool.path."


def as_archived(message: ChatMessage) -> str:
    """Return the text without the mention that opens it."""
    return remove_person_ids([Turn("Team", message.text)], ())[0].text


class Counting:
    """Rules that count their questions."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._rules = OfflineModel(collect_offline_rules())

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        self.calls[prompt.name] += 1
        return await self._rules.ask(prompt, given, images=images)

    @asynccontextmanager
    async def __call__(self, settings: Settings, usage: UsageCounter, clock: Clock) -> AsyncGenerator[Models]:
        del settings, usage, clock
        yield Models(answering=self, learning=self)


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
                bot = open_sandbox(
                    self.settings, self.sandbox, events=ActivityReporter(), clock=self._time, models=self.model
                )
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
        """Return the turns of each version."""
        return [[turn.text for turn in pair.turns] for pair in Archive(self.settings.paths.raw).pairs_after(None)]

    def filed(self) -> list[list[str]]:
        topics = KnowledgeStore(ReadOnlySqliteDatabase(self.settings.paths.database))
        return [
            [turn.text for turn in block.turns] for name in topics.topic_names() for block in topics.read_topic(name)
        ]


# Finding B8.
@pytest.mark.rest
def test_an_answer_is_filed_when_it_comes_and_thanks_cost_no_call(tmp_path: Path) -> None:
    async def main(time: SimulatedTime) -> None:
        town = Town(tmp_path, time)
        async with town.life():
            question = town.say("alice", "How do I move the spool to another disk?")
            await sleep(2 * WAIT)
            town.say("mira", f"@alice {STEPS}")
            await sleep(1.5 * WAIT)
            assert town.filed() == [[question.text, STEPS]]
            calls = town.model.calls.copy()
            assert (calls["classify"], calls["extract"]) == (1, 1)
            for thanks in ("that worked, thank you", "🎉"):
                town.say("alice", thanks)
                await sleep(2 * WAIT)
            assert town.archived()[-1] == [question.text, STEPS, "that worked, thank you", "🎉"]
            assert town.filed() == [[question.text, STEPS]]
            assert town.model.calls == calls

    run_seed(1, main)


# Finding B8.
@pytest.mark.rest
def test_what_says_more_edits_what_was_filed(tmp_path: Path) -> None:
    async def main(time: SimulatedTime) -> None:
        town = Town(tmp_path, time)
        async with town.life():
            said = [town.say("alice", "How do I move the spool to another disk?")]
            await sleep(2 * WAIT)
            said.append(town.say("mira", "@alice stop the relay, copy the folder and set spool.path."))
            await sleep(1.5 * WAIT)
            said.append(town.say("alice", "thanks!"))
            await sleep(1.5 * WAIT)
            said.append(town.say("mira", "@alice on version 5 the setting is called spool.folder instead"))
            await sleep(1.5 * WAIT)
            assert town.filed() == [[as_archived(each) for each in said]]
            assert town.model.calls["classify"] == 1
            assert town.model.calls["extract"] == 2

    run_seed(1, main)


@pytest.mark.rest
def test_what_was_said_around_a_crash_is_filed_once(tmp_path: Path) -> None:
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
        async with town.life():
            await sleep(2 * WAIT)
            assert len(town.archived()) == 2
            assert town.filed() == [[question.text, STEPS]]
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
            await sleep(2 * WAIT)
            [filed] = town.filed()
            assert filed[:2] == [question.text, STEPS]
            assert town.model.calls["classify"] == 1

    run_seed(5, main)


# Finding B8.
@pytest.mark.rest
def test_the_page_counts_what_a_member_waits_from_the_question_on(tmp_path: Path) -> None:
    async def main(time: SimulatedTime) -> None:
        town = Town(tmp_path, time)
        async with town.life():
            await sleep(WAIT)
            town.say("alice", "@intern which port does the relay listen on?")
            await sleep(2 * WAIT)
            assert any("7480" in post.text for post in town.sandbox.posts())
        [waited] = ReadOnlySqliteDatabase(town.settings.paths.database).read_blocking(
            lambda db: [
                float(str(seconds)) for (seconds,) in db.rows("select seconds from answers where texts is not null")
            ]
        )
        assert WAIT <= waited < WAIT + 10

    run_seed(1, main)
