"""A question's way and a capture's way, cancelled before every step of every task that is taken meanwhile.

Before a step that is chosen, a member edits, deletes or goes on, or the whole process is cancelled and started again.
The process goes on, one reply leaves, to the newest text, and what the team said is filed once.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal

import pytest
from anyio import Event, create_task_group, move_on_after, sleep, sleep_forever

from intern.actors.responder import Responder
from intern.core.clock import Clock
from intern.core.decisions import Decision
from intern.core.flow import MessageRevisions
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import Image
from intern.models.prompt import InT, OfflineModel, OutT, Prompt
from intern.models.usage import UsageCounter
from intern.runtime import resources
from intern.runtime.bot import open_sandbox
from intern.service.models import Models, SharedResources, collect_offline_rules
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from tests.simulation.community import Community, World
from tests.simulation.laws import Books, books_of, violations
from tests.simulation.machine import SimulatedTime
from tests.simulation.people import Looking, Said, write_documents
from tests.simulation.shaky import LATENCY
from tests.simulation.stepping import Backend, Steps, run_stepping

Change = Literal["edit", "delete", "add", "restart", "edit_at_once", "delete_at_once"]
CHANGES: tuple[Change, ...] = ("edit", "delete", "add", "restart")
BACKENDS: tuple[Backend, ...] = ("asyncio", "trio")

PORT, SPOOL = "How do I change the port that the relay listens on?", "How do I purge the spool?"
UNKNOWN = "What does the lamp of the walnut saddle mean when it blinks twice?"
_QUIET = 15.0  # seconds after which all work is done in each trial
_THOUGHT = 0.5


class _Steady:
    """Rules that always take the same time."""

    def __init__(self) -> None:
        self._rules = OfflineModel(collect_offline_rules())

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        await sleep(_THOUGHT)
        return await self._rules.ask(prompt, given, images=images)


@asynccontextmanager
async def _models(settings: Settings, usage: UsageCounter, clock: Clock) -> AsyncGenerator[Models]:
    del settings, usage, clock
    yield Models(answering=_Steady(), learning=_Steady())


class _Compiled(SharedResources):
    """Templates that are compiled once for all trials: half of what a start costs."""

    _once: ClassVar[SharedResources] = SharedResources()

    def __init__(self, megabytes: int) -> None:
        super().__init__(megabytes)
        self._templates, self._wordings = self._once._templates, self._once._wordings


class _Discord(World):
    """Knows when a reply began to leave."""

    def __init__(self, clock: SimulatedTime, rng: Random) -> None:
        super().__init__(clock, rng)
        self.left: dict[MessageId, float] = {}
        self._time = clock

    async def start_thread(self, channel_id: ChannelId, message_id: MessageId, name: str) -> ChannelId:
        self.left.setdefault(message_id, self._time.seconds())
        return await super().start_thread(channel_id, message_id, name)


class _Watching(Looking):
    def __init__(self) -> None:
        super().__init__()
        self.decided_one = Event()

    def report_decision(self, decision: Decision) -> None:
        super().report_decision(decision)
        self.decided_one.set()


class Way(Community):
    """A message, what follows from it, and what happens meanwhile. Afterwards the bot still answers."""

    world: _Discord
    ai_steps = "fused"
    changes = CHANGES
    other: str
    """The text after the edit of the message."""
    further: str
    """The text that its author adds."""

    def __init__(self, folder: Path, time: SimulatedTime, steps: Steps) -> None:
        super().__init__(1, folder, time, length=0, world=_Discord)
        self.steps = steps
        self.responders: list[Responder] = []
        self.looking = self.watching = _Watching()
        self.models = _models
        self.first: Said
        self.more: Said | None = None
        self.changed_at = float("inf")
        self.points = 0

    @property
    def settings(self) -> Settings:
        return load_settings(
            environ={},
            overrides={
                "data": {"dir": str(self._folder)},
                "llm": {"provider": "offline"},
                "embeddings": {"provider": "local"},
                "discord": {"message_batch_wait_seconds": 2, "max_questions_per_user_per_hour": 0},
                "kb": {"settle_seconds": 0, "scan_interval_seconds": 100_000},
                "ai": {"steps": self.ai_steps},
            },
        )

    async def live(self) -> None:
        async with create_task_group() as self._tasks:
            await self._start()
            await sleep(_QUIET)
            self.first = await self.begin()
            self.steps.counting = True
            with move_on_after(_QUIET):
                await self.follows()
                await sleep(1)
                self.points = self.steps.count
                await sleep_forever()
            self.steps.counting = False
            if self._over.is_set():
                await self._start()
                await sleep(_QUIET)
            next_one = self.say("carol", SPOOL, self.help)
            await self.world.posted(lambda post: str(post.channel_id) == next_one.id, within=_QUIET)
            await self._end()
            # It owes nothing more.
            await self._start()
            await sleep(_QUIET)
            await self._end()

    async def begin(self) -> Said:
        raise NotImplementedError

    async def follows(self) -> None:
        """Wait until all is done that follows, where nothing comes between."""
        raise NotImplementedError

    def wrong(self, books: Books) -> Iterator[str]:
        raise NotImplementedError

    # Events in between.

    def edit(self) -> None:
        self.changed_at = self.seconds()
        self.rewrite(self.first, self.other)

    def delete(self) -> None:
        self.changed_at = self.seconds()
        self.remove(self.first)

    def add(self) -> None:
        self.changed_at = self.seconds()
        self.more = self.say(self.first.author, self.further, self.first.place, self.goes_on)

    @property
    def goes_on(self) -> Said | None:
        """Return the message that the further one replies to."""
        return None

    def restart(self) -> None:
        assert self._scope is not None
        self._scope.cancel()


class Question(Way):
    changes: tuple[Change, ...] = (*CHANGES, "edit_at_once", "delete_at_once")
    other = SPOOL
    further = "And on which port does the relay listen?"

    async def begin(self) -> Said:
        return self.say("bob", PORT, self.world.general)

    async def follows(self) -> None:
        await self.world.posted(within=_QUIET)

    # A change takes some steps to the responder, so that it never comes there right after a timer: here it does.

    def edit_at_once(self) -> None:
        self.edit()
        self.responders[-1]._apply_revision(MessageRevisions(versions={self.first.id: self.first.message}))

    def delete_at_once(self) -> None:
        self.delete()
        self.responders[-1]._apply_revision(MessageRevisions(versions={self.first.id: None}))

    def wrong(self, books: Books) -> Iterator[str]:
        # What is added after the last look at the channel is seen when that has travelled back.
        seen_at = self.changed_at + (LATENCY if self.more else 0)
        came_late = self.world.left.get(self.first.id, float("inf")) <= seen_at
        said = [post.text for post in self.world.posts() if str(post.channel_id) == self.first.id]
        if self.first.deleted is not None:
            if len(said) > came_late:
                yield f"{len(said)} replies to a question that was deleted, which was seen {came_late=}"
            return
        threads = Counter(str(post.channel_id) for post in self.world.posts())
        for asked in filter(None, (self.first, self.more)):
            if (replies := threads[books.covered.get(asked.id, "")]) != 1:
                yield f"{asked.message.text!r} got {replies} replies"
        if self.more is not None:
            if came_late:
                yield from () if said else ["the reply that had left is not there"]
            elif said:
                yield f"answered without what was added in time: {said}"
        else:
            wanted = "spool purge" if len(self.first.texts) > 1 and not came_late else "listen"
            if len(said) != 1 or wanted not in said[0]:
                yield f"one reply with {wanted!r} is due, not {said}"


class Capture(Way):
    other = "Its battery is worn, replace it."
    further = "Charge it overnight."

    @property
    def goes_on(self) -> Said:
        return self.first

    async def begin(self) -> Said:
        asked = self.say("bob", UNKNOWN, self.world.general)
        await sleep(_QUIET)
        return self.say("mira", "Its battery is empty, charge it.", self.world.general, asked)

    async def follows(self) -> None:
        await self.watching.decided_one.wait()

    def wrong(self, books: Books) -> Iterator[str]:
        blocks = [block for name in books.knowledge.topic_names() for block in books.knowledge.read_topic(name)]
        texts = [turn.text for block in blocks for turn in block.turns]
        due = [] if self.first.deleted is not None else [self.first.texts[-1]]
        due += [self.more.message.text] if self.more and not self.first.deleted else []
        for text in due:
            if texts.count(text) != 1:
                yield f"{text!r} is filed {texts.count(text)} times"
        for old in self.first.texts[:-1] if due else self.first.texts:
            if old in texts:
                yield f"{old!r} is filed"
        if self.world.left.keys() & {MessageId(self.first.message.reply_to or "")}:
            yield "the question without an answer was answered"


class StepwiseQuestion(Question):
    """Answered by four calls."""

    ai_steps = "separate"


def play(kind: type[Way], backend: Backend, folder: Path, change: Change, at: int | None) -> int:
    """Return the number of steps on the way, where nothing comes between."""

    run = Responder.run

    async def main(time: SimulatedTime) -> int:
        way = kind(life, time, steps)
        steps.act = getattr(way, change)

        async def noted(self: Responder, *streams: Any) -> None:
            way.responders.append(self)
            await run(self, *streams)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Responder, "run", noted)
            patch.setattr(resources, "SharedResources", _Compiled)
            await way.live()
        broken = [*way.wrong(books := await books_of(way)), *violations(way, books)]
        assert not broken, "\n".join([f"{change} before step {at} of {backend}:", *broken, *way.transcript])
        return way.points

    steps = Steps(backend, at)
    life = folder.with_name(f"life-{change}-{at}")
    shutil.copytree(folder, life)
    try:
        points = run_stepping(backend, main, steps)
    finally:
        shutil.rmtree(life)
    assert steps.error is None, steps.error
    assert steps.acted is (at is not None)
    return points


def play_all(kind: type[Way], backend: Backend, known: Path, folder: Path, *, most: int | None = None) -> None:
    """Let each change come before each step, or before `most` of them, other ones for each change."""
    shutil.copytree(known, folder / "known")
    points = play(kind, backend, folder / "known", "edit", None)
    assert points > 100, "hardly any step is seen"
    print(f"{kind.__name__} on {backend}: {points} steps")
    count = most or points
    for n, change in product(range(count), kind.changes):
        shift = kind.changes.index(change) / len(kind.changes) if most else 0
        play(kind, backend, folder / "known", change, int((n + shift) * points / count))


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the bot has indexed."""
    folder = tmp_path_factory.mktemp("known") / "data"

    async def main(time: SimulatedTime) -> None:
        way = Question(folder, time, Steps("asyncio"))
        async with open_sandbox(way.settings, way.world, events=way.looking, clock=time, models=_models):
            await sleep(_QUIET)

    write_documents(folder)
    run_stepping("asyncio", main, Steps("asyncio"))
    return folder


ON = pytest.mark.parametrize("backend", BACKENDS)


@ON
@pytest.mark.parametrize("kind", [Question, Capture])
def test_cancelled_before_some_steps_one_reply_leaves_and_one_capture_is_filed(
    kind: type[Way], backend: Backend, known: Path, tmp_path: Path
) -> None:
    play_all(kind, backend, known, tmp_path, most=2)


@pytest.mark.rest
@pytest.mark.timeout(600)
@ON
@pytest.mark.parametrize("kind", [Question, StepwiseQuestion, Capture])
def test_cancelled_before_more_steps_too(kind: type[Way], backend: Backend, known: Path, tmp_path: Path) -> None:
    play_all(kind, backend, known, tmp_path, most=20)


@pytest.mark.long
@pytest.mark.timeout(0)
@ON
@pytest.mark.parametrize("kind", [Question, StepwiseQuestion, Capture])
def test_cancelled_before_any_step_too(kind: type[Way], backend: Backend, known: Path, tmp_path: Path) -> None:
    play_all(kind, backend, known, tmp_path)
