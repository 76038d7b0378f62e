"""A question's way and a capture's way, cancelled before every step of every task that is taken meanwhile.

Before a step that is chosen, a member edits, deletes or goes on, or the whole process is cancelled and started again.
The process goes on, one reply leaves, to the newest text, and what the team said is filed once.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Literal

import pytest
from anyio import Event, create_task_group, move_on_after, sleep, sleep_forever

from intern.core.clock import Clock
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import Image
from intern.core.records import Decision
from intern.models.prompt import InT, OfflineModel, OutT, Prompt
from intern.runtime.bot import open_sandbox
from intern.service.models import Models, offline_rules
from intern.settings.loading import Settings, load_settings
from intern.stores.sqlite.usage import UsageLog
from tests.simulation.community import Community, World
from tests.simulation.laws import Books, books_of, violations
from tests.simulation.machine import SimulatedTime
from tests.simulation.people import Looking, Said, write_documents
from tests.simulation.seeds import chosen
from tests.simulation.shaky import LATENCY
from tests.simulation.stepping import Backend, Steps, run_stepping

Change = Literal["edit", "delete", "add", "restart"]
CHANGES: tuple[Change, ...] = ("edit", "delete", "add", "restart")
BACKENDS: tuple[Backend, ...] = ("asyncio", "trio")

PORT, SPOOL = "How do I change the port that the relay listens on?", "How do I purge the spool?"
UNKNOWN = "What does the lamp of the walnut saddle mean when it blinks twice?"
_QUIET = 40.0  # seconds after which all is done, whatever happened
_THOUGHT = 0.5


class _Steady:
    """Rules that always take the same time."""

    def __init__(self) -> None:
        self._rules = OfflineModel(offline_rules())

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        await sleep(_THOUGHT)
        return await self._rules.ask(prompt, given, images=images)


@asynccontextmanager
async def _models(settings: Settings, log: UsageLog, clock: Clock) -> AsyncGenerator[Models]:
    del settings, log, clock
    yield Models(answering=_Steady(), learning=_Steady())


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

    def decided(self, decision: Decision) -> None:
        super().decided(decision)
        self.decided_one.set()


class Way(Community):
    """A message, what follows from it, and what happens meanwhile. Afterwards the bot still answers."""

    world: _Discord
    other: str
    """What the message is edited to."""
    further: str
    """What its author adds."""

    def __init__(self, folder: Path, time: SimulatedTime, steps: Steps, ai_steps: str = "fused") -> None:
        super().__init__(1, folder, time, length=0, world=_Discord)
        self.steps, self.ai_steps = steps, ai_steps
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

    # What comes between.

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
        """What the further message replies to."""
        return None

    def restart(self) -> None:
        assert self._scope is not None
        self._scope.cancel()


class Question(Way):
    other = SPOOL
    further = "And on which port does the relay listen?"

    async def begin(self) -> Said:
        return self.say("bob", PORT, self.world.general)

    async def follows(self) -> None:
        await self.world.posted(within=_QUIET)

    def wrong(self, books: Books) -> Iterator[str]:
        # What is added after the last look at the channel is seen when that has travelled back.
        seen_at = self.changed_at + (LATENCY if self.more else 0)
        came_late = self.world.left.get(self.first.id, float("inf")) <= seen_at
        said = [post.text for post in self.world.posts() if str(post.channel_id) == self.first.id]
        if self.first.deleted is not None:
            if len(said) > came_late:
                yield f"{len(said)} replies to a question that was deleted, which was seen {came_late=}"
            return
        covers = Counter(each for question, settles in self.looking.replied.items() for each in {question, *settles})
        for asked in filter(None, (self.first, self.more)):
            if covers[asked.id] != 1:
                yield f"{asked.message.text!r} got {covers[asked.id]} replies"
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
        blocks = [block for name in books.knowledge.names() for block in books.knowledge.read(name)]
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


def play(kind: type[Way], backend: Backend, folder: Path, change: Change, at: int | None) -> int:
    """Return the number of steps on the way, without the change."""

    async def main(time: SimulatedTime) -> int:
        way = kind(life, time, steps)
        steps.act = getattr(way, change)
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


def indexed(folder: Path) -> Path:
    """A folder that the bot knows already."""

    async def main(time: SimulatedTime) -> None:
        way = Way(folder, time, Steps("asyncio"))
        async with open_sandbox(way.settings, way.world, events=way.looking, clock=time, models=_models):
            await sleep(_QUIET)

    write_documents(folder)
    run_stepping("asyncio", main, Steps("asyncio"))
    return folder


def each(kind: type[Way], backend: Backend, change: Change, folder: Path, *, most: int) -> None:
    """Play a way with a change before each of its steps, or before `most` of them."""
    known = indexed(folder / "known")
    points = play(kind, backend, known, change, None)
    assert points > 100, "hardly any step is seen"
    named = chosen("CANCEL_STEPS", range(points))
    print(f"{kind.__name__} on {backend}: {points} steps")
    for at in named if len(named) <= most else [named[n * len(named) // most] for n in range(most)]:
        play(kind, backend, known, change, at)


_EACH_TIME, _MORE = 3, 15
WAYS = pytest.mark.parametrize("kind", [Question, Capture])
ON = pytest.mark.parametrize("backend", BACKENDS)
WITH = pytest.mark.parametrize("change", CHANGES)


@WAYS
@ON
@WITH
def test_cancelled_before_some_steps_one_reply_leaves_and_one_capture_is_filed(
    kind: type[Way], backend: Backend, change: Change, tmp_path: Path
) -> None:
    each(kind, backend, change, tmp_path, most=_EACH_TIME)


@pytest.mark.rest
@pytest.mark.timeout(600)
@WAYS
@ON
@WITH
def test_cancelled_before_more_steps_too(kind: type[Way], backend: Backend, change: Change, tmp_path: Path) -> None:
    each(kind, backend, change, tmp_path, most=_MORE)


@pytest.mark.long
@pytest.mark.timeout(0)
@WAYS
@ON
@WITH
def test_cancelled_before_any_step_too(kind: type[Way], backend: Backend, change: Change, tmp_path: Path) -> None:
    each(kind, backend, change, tmp_path, most=10_000)
