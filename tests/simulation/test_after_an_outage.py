"""The whole bot after an outage in simulated time: missed questions are asked as they would have been live."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import Event, create_task_group, sleep

from intern.core.clock import Clock
from intern.core.flow import AnswerRequest, QuestionDeclined
from intern.core.messages import AnswerResult, Image
from intern.models.prompt import InT, OfflineModel, OutT, Prompt
from intern.models.usage import UsageCounter
from intern.runtime.bot import open_sandbox
from intern.service.models import Models, collect_offline_rules
from intern.settings.settings import Settings
from tests.simulation.machine import SimulatedTime, run_seed
from tests.worlds.bot import Watching, settings_in
from tests.worlds.chat import Sandbox

WINDOW = 60.0


class SlowModel:
    """Rules that take their time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._rules = OfflineModel(collect_offline_rules())

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        await sleep(self._seconds)
        return await self._rules.ask(prompt, given, images=images)

    @asynccontextmanager
    async def __call__(self, settings: Settings, usage: UsageCounter, clock: Clock) -> AsyncGenerator[Models]:
        del settings, usage, clock
        yield Models(answering=self, learning=self)


class Noting(Watching):
    """Remembers which questions were answered together, and which were declined."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[list[str]] = []
        self.turned_down: list[str] = []

    def report_answer(self, request: AnswerRequest, result: AnswerResult) -> None:
        super().report_answer(request, result)
        self.together.append([message.text for message in request.batch.messages])

    def report_decline(self, declined: QuestionDeclined) -> None:
        super().report_decline(declined)
        self.turned_down.append(declined.request.batch.last.text)


@asynccontextmanager
async def life(
    folder: Path, sandbox: Sandbox, time: SimulatedTime, model: SlowModel, *, an_hour: int = 0
) -> AsyncGenerator[Noting]:
    """Run the bot, from its first session until the end of the block."""
    events, stop = Noting(), Event()
    settings = settings_in(folder, message_batch_wait_seconds=WINDOW, max_questions_per_user_per_hour=an_hour)

    async def live() -> None:
        async with open_sandbox(settings, sandbox, events=events, clock=time, models=model):
            await stop.wait()

    async with create_task_group() as tg:
        tg.start_soon(live)
        await sandbox.wait_ready()
        await sleep(1)
        yield events
        stop.set()


# Finding I5.
def test_questions_of_one_asker_that_were_minutes_apart_are_answered_apart_after_an_outage(tmp_path: Path) -> None:
    asked = [f"@intern Where does part {n} of the relay listen?" for n in range(4)]

    async def main(time: SimulatedTime) -> list[list[str]]:
        sandbox = Sandbox(time)
        async with life(tmp_path, sandbox, time, SlowModel(5.0)) as events:
            async with sandbox.offline():
                for question in asked[:3]:
                    sandbox.say("alice", question)
                    await sleep(2 * WINDOW)
                sandbox.say("alice", "I mean the new one.")
                await sleep(WINDOW / 2)
                sandbox.say("alice", asked[3])
            await sleep(10 * WINDOW)
            return events.together

    assert run_seed(1, main) == [[asked[0]], [asked[1]], [asked[2]], ["I mean the new one.", asked[3]]]


# Finding I6.
def test_what_was_missed_waits_for_the_responder_and_live_questions_are_asked_beside_it(tmp_path: Path) -> None:
    missed = [f"@intern Where does part {n} of the relay listen?" for n in range(134)]
    live = [f"@intern Where does new part {n} of the relay listen?" for n in range(4)]

    async def main(time: SimulatedTime) -> Noting:
        sandbox = Sandbox(time)
        places = [sandbox.general, *(sandbox.add_channel(f"room {n}") for n in range(7))]
        async with life(tmp_path, sandbox, time, SlowModel(6.0)) as events:
            async with sandbox.offline():
                for n, question in enumerate(missed):
                    sandbox.say(f"member {n}", question, channel_id=places[n % len(places)])
                    await sleep(12)
            for n, question in enumerate(live):
                sandbox.say(f"somebody {n}", question)
            await sleep(20 * WINDOW)
            return events

    events = run_seed(1, main)
    assert events.turned_down == []
    assert sorted(events.together) == sorted([each] for each in (*missed, *live))


def test_an_edit_of_a_question_in_work_counts_as_no_further_question(tmp_path: Path) -> None:
    async def main(time: SimulatedTime) -> Noting:
        sandbox = Sandbox(time)
        async with life(tmp_path, sandbox, time, SlowModel(20.0), an_hour=1) as events:
            asked = sandbox.say("alice", "@intern Where does the relay listen?")
            await sleep(WINDOW + 5)
            sandbox.edit(sandbox.general, asked.id, "@intern Where does the new relay listen?")
            await sleep(20 * WINDOW)
            return events

    events = run_seed(1, main)
    assert (events.together, events.turned_down) == ([["@intern Where does the new relay listen?"]], [])
