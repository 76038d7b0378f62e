"""The cost of a message from the socket to its batch, beside a bare hikari listener; and the effect of a flood of them.

The double of Discord runs in this process and the listener in a child of its own, so CPU and memory are the child's
alone. A child reports its progress, and the double is at most `AHEAD` of it: less than the stream of events holds, so
that all messages take the same way.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import re
import resource
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import hikari
import msgspec
from anyio import create_memory_object_stream, create_task_group
from anyio.streams.memory import MemoryObjectReceiveStream
from hikari.api import CacheComponents
from hikari.impl import CacheSettings

from benchmarks.figures import Figure
from benchmarks.memory import resident
from intern.actors.batcher import batcher
from intern.actors.listener import GatewayListener
from intern.actors.pipeline import BATCHES, EVENTS
from intern.chat.batching import OpenBatches
from intern.chat.checkpoints import Checkpoints
from intern.core.clock import SystemClock
from intern.core.flow import (
    ApprovalReaction,
    BackfillNeeded,
    Batch,
    BatcherEvent,
    GatewayEvent,
    Interaction,
    LateChange,
    MessageCreated,
)
from intern.core.ids import GuildId, MessageId
from intern.core.text.secret_values import Secret
from intern.platforms.discord.gateway import INTENTS, HikariDiscord
from intern.platforms.discord.options import DiscordOptions
from intern.service.status import read_status
from intern.settings.settings import DataSection, Settings
from intern.stores.tables.checkpoints import StoredCheckpoints
from tests.double.acts import Acts
from tests.double.discord import DiscordDouble
from tests.double.payloads import message_event
from tests.double.world import Json, Message
from tests.worlds.endpoint import EndpointDouble, never

MESSAGES = 20_000
SIZE = 690  # bytes of each, as the gateway sends it
AUTHORS = 40
RUNS = 5
AHEAD = 800
TEAM_REPLIES = 20
BEAT = 5.0  # seconds; Discord's own is 41
LOOK = 0.1  # seconds between two looks at the flooded process
INTERN = Path(sys.executable).parent / "intern"


class Cost(NamedTuple):
    """The cost of one run for the child: seconds, and megabytes at its end."""

    cpu: float
    wall: float
    resident: float

    @property
    def micros(self) -> float:
        """The CPU for each message."""
        return self.cpu / MESSAGES * 1e6


class Flood(NamedTuple):
    """The effect of a flood on the bot."""

    growth: float  # megabytes
    pause: float  # seconds, the longest between two heartbeats
    reconnects: int
    untaught: int  # team replies that are not in the archive
    shed: int  # questions, as `intern status` says


def measure() -> Iterator[Figure]:
    """Return medians of runs that take turns, so that both sides meet the same machine; then one flood."""
    runs = [(asyncio.run(_cost("bare")), asyncio.run(_cost("intern"))) for _ in range(RUNS)]
    for side, name in enumerate(("bare hikari listener", "socket to batch")):
        yield Figure(f"{name}, messages a second", median(MESSAGES / run[side].wall for run in runs), "/s", math.inf)
        yield Figure(f"{name}, CPU a message", median(run[side].micros for run in runs), "µs", math.inf)
        yield Figure(f"{name}, resident memory", median(run[side].resident for run in runs), "MB", math.inf)
    ratio, above = (median(each) for each in zip(*((o.cpu / b.cpu, o.micros - b.micros) for b, o in runs), strict=True))
    yield Figure("socket to batch, CPU in bare listeners", ratio, "x", math.inf)
    yield Figure("socket to batch, CPU a message above the bare", above, "µs", 40)
    flood = asyncio.run(flooded())
    yield Figure(f"flood of {MESSAGES}, growth of resident memory", flood.growth, "MB", 20)
    yield Figure(f"flood of {MESSAGES}, longest pause of a {BEAT:g} s heartbeat", flood.pause, "s", 1.5 * BEAT)
    yield Figure(f"flood of {MESSAGES}, connections lost", flood.reconnects, "", 0)
    yield Figure(f"flood of {MESSAGES}, team replies not archived", flood.untaught, "", 0)


# The double.


async def _cost(who: str) -> Cost:
    async with asyncio.timeout(120), DiscordDouble(check=False) as discord:
        command = [sys.executable, "-m", "benchmarks.socket_to_batch", who]
        door = [discord.rest_url, discord.token, discord.guild.id]
        child = await asyncio.create_subprocess_exec(*command, *door, stdout=PIPE)
        assert child.stdout is not None
        assert await child.stdout.readline(), f"the child {who} did not come up"
        [session] = discord.gateway.sessions.values()
        assert session.socket is not None
        texts = _texts(discord, told=len(session.events))
        done = sent = 0
        while done < MESSAGES:
            done = int(await child.stdout.readline())
            for text in texts[sent : done + AHEAD]:
                session.socket.send(text)
            sent = max(sent, min(done + AHEAD, MESSAGES))
        cost = msgspec.json.decode(await child.stdout.read(), type=Cost)
        assert await child.wait() == 0
        return cost


def _texts(discord: DiscordDouble, *, told: int) -> list[str]:
    """Make messages as the socket takes them, all of one size; `told` events came before them."""
    texts: list[str] = []
    for n, message in enumerate(_said(discord), start=told + 1):
        message.content += "." * (SIZE - len(_frame(discord, message, n)))
        texts.append(_frame(discord, message, n))
    return texts


def _frame(discord: DiscordDouble, message: Message, n: int) -> str:
    frame = {"op": 0, "t": "MESSAGE_CREATE", "s": n, "d": message_event(discord.world, message)}
    return json.dumps(frame, separators=(",", ":"))


def _said(discord: DiscordDouble) -> Iterator[Message]:
    """Make questions of many members by turns, in two channels, which are in Discord's history without an event."""
    acts = Acts(discord.world, lambda _name, _data: None)
    members = [discord.world.new_member(f"member{n}") for n in range(AUTHORS)]
    for n in range(MESSAGES):
        place = discord.help if n % 2 else discord.general
        yield acts.post(place.id, members[n % AUTHORS], f"How do I start the agent again? This is number {n}.")


async def flooded(*, hourly: int | None = None) -> Flood:
    """Flood a bot whose model is stalled. `hourly` is the limit of questions for a member, 0 being none."""
    async with (
        asyncio.timeout(300),
        DiscordDouble(check=False) as discord,
        EndpointDouble(lambda _: never()).serving() as model,
    ):
        discord.gateway.heartbeat_interval = BEAT
        async with _intern(discord, model.base_url, hourly=hourly) as bot:
            await discord.wait_ready()
            # Late imports are no growth.
            question = await discord.say(discord.alice, "Does it run on a Pi?")
            await discord.say(discord.tess, "Taught: 0.", reply_to=question)
            await _until(lambda: bot.taught() == 1 and bool(model.requests))
            await asyncio.sleep(BEAT)
            payloads = await _prepared(discord)
            beats, before = discord.gateway.heartbeats[-1:], bot.resident()
            heard = len(discord.gateway.heartbeats)
            for payload in payloads:
                discord.gateway.dispatch("MESSAGE_CREATE", payload)
            await discord.gateway.flushed()
            most = before

            def over() -> bool:
                nonlocal most
                most = max(most, bot.resident())
                return len(discord.gateway.heartbeats) > heard + 4 and bot.taught() == 1 + TEAM_REPLIES

            with suppress(TimeoutError):
                async with asyncio.timeout(180):
                    await _until(over)
            beats += discord.gateway.heartbeats[heard:]
            return Flood(
                growth=most - before,
                pause=max(later.at - earlier.at for earlier, later in pairwise(beats)),
                reconnects=len(discord.gateway.connections) - 1,
                untaught=1 + TEAM_REPLIES - bot.taught(),
                shed=bot.shed(),
            )


async def _prepared(discord: DiscordDouble) -> list[Json]:
    """Make the events of a flood in which the team answers some questions, too."""
    quiet, payloads = Acts(discord.world, lambda _name, _data: None), list[Json]()
    for n, message in enumerate(_said(discord), start=1):
        payloads.append(message_event(discord.world, message))
        if n % (MESSAGES // TEAM_REPLIES) == 0:
            colleague = discord.world.new_member(f"colleague{n}", roles=[discord.team_role.id])
            reply_to = {"message_id": message.id}
            answer = quiet.post(message.channel_id, colleague, f"Taught: {n}.", reply_to=reply_to)
            payloads.append(message_event(discord.world, answer))
        if n % 100 == 0:
            await asyncio.sleep(0)  # heartbeats are answered meanwhile
    return payloads


class Bot(NamedTuple):
    """`intern run` as a process, and the folder that it works in."""

    pid: int
    folder: Path

    def resident(self) -> float:
        """Return its memory in megabytes."""
        return resident(self.pid)

    def taught(self) -> int:
        """Return the number of the team's answers in the archive."""
        weeks = (self.folder / "data/team-knowledge/raw").glob("*.txt")
        return len({answer for week in weeks for answer in re.findall(rb"Taught: \d+\.", week.read_bytes())})

    def shed(self) -> int:
        """Return the number of dropped questions."""
        settings = Settings(data=DataSection(dir=self.folder / "data"))
        return read_status(settings, clock=SystemClock()).shed


@asynccontextmanager
async def _intern(discord: DiscordDouble, base_url: str, *, hourly: int | None) -> AsyncGenerator[Bot]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data/knowledge-base/sources").mkdir(parents=True)
        (Path(folder) / "data/knowledge-base/sources/pi.md").write_text("# Pi\n\nIt runs on a Pi.\n")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("INTERN")},
            "INTERN__DISCORD__TOKEN": discord.token,
            "INTERN__DISCORD__REST_URL": discord.rest_url,
            "INTERN__DISCORD__GUILD_IDS": json.dumps([discord.guild.id]),
            "INTERN__DISCORD__TEAM_ROLE_IDS": json.dumps([discord.team_role.id]),
            "INTERN__DISCORD__MESSAGE_BATCH_WAIT_SECONDS": "1",
            "INTERN__LLM__BASE_URL": base_url,
            "INTERN__LLM__MODEL": "stalled",
            # Each of the embedder's threads takes some 12 MB for a long question, which is unrelated to streams.
            "INTERN__EMBEDDINGS__PROVIDER": "none",
        }
        if hourly is not None:
            environment["INTERN__DISCORD__MAX_QUESTIONS_PER_USER_PER_HOUR"] = str(hourly)
        process = await asyncio.create_subprocess_exec(INTERN, "run", cwd=folder, env=environment, stderr=DEVNULL)
        try:
            yield Bot(process.pid, Path(folder))
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 another process sets no events
        await asyncio.sleep(LOOK)


# The child.


class Meter:
    """Counts messages, reports them meanwhile, and returns their cost."""

    def __init__(self) -> None:
        self.count = 0
        self._cpu = self._wall = 0.0

    async def run(self, waiting: Callable[[], int] = lambda: 0) -> None:
        """Print the progress now and then, until all are through; `waiting` returns the number of waiting messages."""
        gc.collect()
        self._cpu, self._wall = _cpu_seconds(), perf_counter()
        through = -1
        while through < MESSAGES:
            through = self.count - waiting()
            print(through, flush=True)
            await asyncio.sleep(0.005)

    def report(self) -> None:
        """Print the cost since the beginning."""
        cost = Cost(_cpu_seconds() - self._cpu, perf_counter() - self._wall, resident())
        print(msgspec.json.encode(cost).decode(), flush=True)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _bare(rest_url: str, token: str) -> None:
    """Measure the cheapest bot of hikari's own: raw payloads, no cache, no work on them."""
    bot = hikari.GatewayBot(
        token,
        banner=None,
        logs=None,
        rest_url=rest_url,
        intents=INTENTS,
        cache_settings=CacheSettings(components=CacheComponents.NONE),
        auto_chunk_members=False,
        suppress_optimization_warning=True,
    )
    meter = Meter()

    async def hear(event: hikari.ShardPayloadEvent) -> None:
        meter.count += event.name == "MESSAGE_CREATE"

    bot.subscribe(hikari.ShardPayloadEvent, hear)
    await bot.start(check_for_updates=False)
    await meter.run()
    meter.report()
    await bot.close()


class _Counted:
    """A gateway that counts its events."""

    def __init__(self, gateway: HikariDiscord, meter: Meter) -> None:
        self._gateway = gateway
        self._meter = meter

    async def listen(self, deliver: Callable[[GatewayEvent], None]) -> None:
        def count(event: GatewayEvent) -> None:
            self._meter.count += isinstance(event, MessageCreated)
            deliver(event)

        await self._gateway.listen(count)


async def _ours(rest_url: str, token: str, guild_id: str) -> None:
    """Measure gateway, listener and batcher as in `intern run`; a task takes the batches and settles them."""
    options = DiscordOptions(token=Secret(token), rest_url=rest_url, guild_ids=(GuildId(guild_id),))
    checkpoints = Checkpoints(StoredCheckpoints(), baseline=MessageId("0"))
    events, to_batch = create_memory_object_stream[BatcherEvent](EVENTS.size)
    batches, to_settle = create_memory_object_stream[Batch | LateChange](BATCHES.size)
    interactions, to_interact = create_memory_object_stream[Interaction](1)
    behind, to_read = create_memory_object_stream[BackfillNeeded](1)
    approved, to_review = create_memory_object_stream[ApprovalReaction](1)
    settled = 0

    async def settle(taken: MemoryObjectReceiveStream[Batch | LateChange]) -> None:
        nonlocal settled
        async for batch in taken:
            assert isinstance(batch, Batch)
            checkpoints.settle(batch.channel_id, [message.id for message in batch.messages])
            settled += len(batch.messages)

    meter = Meter()
    async with HikariDiscord(options) as discord, to_settle, to_interact, to_read, to_review:
        async with create_task_group() as desk:
            desk.start_soon(
                partial(
                    batcher,
                    to_batch,
                    batches,
                    open_batches=OpenBatches(options.message_batch_wait_seconds),
                    settle=checkpoints.settle,
                    clock=SystemClock(),
                    flush=True,
                )
            )
            desk.start_soon(settle, to_settle)
            async with create_task_group() as ears:
                ears.start_soon(
                    GatewayListener(
                        gateway=_Counted(discord, meter),
                        checkpoints=checkpoints,
                    ).run,
                    events,
                    interactions,
                    behind,
                    approved,
                )
                await discord.wait_ready()
                await meter.run(lambda: to_batch.statistics().current_buffer_used)
                ears.cancel_scope.cancel()
        assert settled == MESSAGES, f"{settled} of {MESSAGES} messages came through"
        meter.report()


if __name__ == "__main__":
    who, *door = sys.argv[1:]
    asyncio.run(_bare(*door[:2]) if who == "bare" else _ours(*door))
