"""The capacity of a cell: 10,000 servers and 50 million messages a day, simulated from measured costs.

A cell is three processes of two cores, and one PostgreSQL. Each kind of message is sent to a bot separately, a second
apart, as in a server with little traffic. The model's own time is not included, nor are descriptions of documents.

Made up are the sizes of servers (lognormal, so that the largest has hundreds of times the median), the hours of the day
in three regions, bursts of an hour, and the share of each kind of message; see `SHARES`.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import anyio
import numpy as np

from benchmarks import answering, capturing, communities
from benchmarks.answering import index
from benchmarks.elsewhere import endpoint_elsewhere
from benchmarks.engines import _on, _on_loopback
from benchmarks.figures import Figure
from benchmarks.made_up import subject
from intern.actors.activity import ActivityReporter
from intern.actors.pipeline import run_pipeline
from intern.core.clock import SystemClock, Wakeup
from intern.core.ids import RoleId, UserId
from intern.platforms.discord.events import read_event
from intern.platforms.discord.gateway_cache import GatewayCache
from intern.platforms.discord.messages import Team
from intern.runtime.bot import _LocalFiles, _NoCommands
from intern.runtime.parts import open_community_parts
from intern.runtime.resources import PlatformPorts, open_process_resources
from intern.search.embedding_local import LocalEmbedder, is_english_installed
from intern.settings.loading import load_settings
from intern.stores.database import DEFAULT_COMMUNITY
from tests.engines import Schemas
from tests.worlds.chat import Sandbox
from tests.worlds.endpoint import Reply, prompt_of

SERVERS, MESSAGES = 10_000, 50_000_000
PROCESSES, CORES = 3, 2
MEMORY = 8_000.0  # MB of a process
DATABASE_CORES = 4
REQUESTS = 50.0  # a second, of an application
OPEN, ROOM = 4_000, 1_500  # hosting.open_communities, search.megabytes
FULL = 0.8  # at this load of the busiest minute, a cell is full

SHARES = {"heard": 0.3, "reply": 0.03, "chatter": 0.1, "answer": 0.01, "capture": 0.005}
"""Shares of all messages. Unheard ones are in channels that the bot may not read. Chatter is looked up without a model;
a reply is one member's to another; all other messages are remarks that ask nothing.
"""
REFERENCE = 5_225  # documents of the reference community
_DOCUMENTS = (200.0, 1.5, 20_000)  # of a server: median, sigma, most
_SIGMA = 1.8  # of the servers' sizes
_REGIONS = ((0.5, 20), (0.35, 15), (0.15, 8))  # share, and the hour (UTC) with most traffic
_BURSTS, _BURST = 0.01, 10.0  # servers with an hour of so many times their traffic
_STEP = 2  # minutes
_SECONDS = 60 * _STEP
_IDLE = 10  # minutes until a community is closed
_AWAY = 15  # seconds until a dead process's shards are taken
_EACH, _APART = 6, 1.1  # messages of a kind, and seconds between them
_BASE = 180.0  # MB of a process with the embedding model


_TAUGHT = capturing.invented(2 * _EACH)


class Cost(NamedTuple):
    """The cost of one message of a kind."""

    cpu: float
    """Seconds of the bot's CPU."""
    writes: float
    """Transactions of the database."""
    database: float
    """Seconds of the server's CPU."""
    requests: float
    """Requests to Discord."""


class Costs(NamedTuple):
    """All costs."""

    payload: float
    """Seconds to read a message from the gateway."""
    embedding: float
    """Seconds for the vector of a question, beside the interpreter."""
    idle: float
    """Seconds of an open community, each second."""
    kinds: Mapping[str, Cost]
    opening: tuple[float, float]
    """Seconds to open an empty community, and the reference one."""
    vectors: float
    """Seconds to read the vectors of the reference community."""
    memory: tuple[float, float, float]
    """MB of a community: known, open and empty, the reference one open."""


def measure() -> Iterator[Figure]:
    """Measure costs, then simulate a day."""
    costs = _costs()
    for kind, cost in costs.kinds.items():
        yield Figure(f"{kind}, CPU", 1000 * cost.cpu, "ms")
        yield Figure(f"{kind}, CPU of PostgreSQL", 1000 * cost.database, "ms")
        yield Figure(f"{kind}, transactions that write", cost.writes, "")
        yield Figure(f"{kind}, requests to Discord", cost.requests, "")
    yield Figure("a message read from the gateway, CPU", 1e6 * costs.payload, "µs")
    yield Figure("a question's vector, CPU", 1000 * costs.embedding, "ms")
    yield Figure("an open community at rest, CPU a second", 1000 * costs.idle, "ms")
    day = Day(costs, SERVERS)
    used = day.run()
    yield Figure("50 million messages a day, at the busiest minute", float(day.busiest), "/s")
    yield Figure("50 million messages a day, open communities of a process at most", float(day.open_most), "")
    yield Figure("50 million messages a day, communities opened at most", float(day.opened_most), "/s")
    yield Figure("50 million messages a day, model calls at most", float(day.calls_most), "/s")
    yield Figure("50 million messages a day, transactions that write at most", float(day.writes_most), "/s")
    for name, share in sorted(used.items(), key=lambda each: -each[1]):
        yield Figure(f"50 million messages a day, used of {name}", 100 * share, "%")
    opened, cpu, requests = day.taken_over()
    yield Figure("a process dies at the busiest minute, communities to open", opened, "")
    yield Figure("a process dies at the busiest minute, CPU of the two others", cpu, "s")
    yield Figure("a process dies at the busiest minute, requests to catch up at 40 a second", requests / 40, "s")
    servers = float(SERVERS)
    for _ in range(3):
        servers *= FULL / max(used.values())
        used = Day(costs, int(servers)).run()
    yield Figure("a cell holds, servers", servers, "")
    yield Figure("a cell holds, million messages a day", servers * MESSAGES / SERVERS / 1e6, "")
    for name, share in sorted(used.items(), key=lambda each: -each[1])[:2]:
        yield Figure(f"a full cell, used of {name}", 100 * share, "%")


class Day:
    """A day of all servers, in steps of two minutes; a figure of a minute is the mean of two."""

    def __init__(self, costs: Costs, servers: int) -> None:
        chance: Any = np.random.default_rng(1)
        self._chance = chance
        self._costs, self._servers = costs, servers
        sizes = chance.lognormal(0, _SIGMA, SERVERS)[np.arange(servers) % SERVERS]
        self._rates = sizes / sizes.mean() * MESSAGES / SERVERS / 24 / 60  # a minute
        shares, hours = zip(*_REGIONS, strict=True)
        self._hours = chance.choice(hours, servers, p=shares)
        bursts = chance.random(servers) < _BURSTS
        self._bursts = np.where(bursts, chance.integers(0, 23, servers), 99)
        median, sigma, most = _DOCUMENTS
        documents = np.minimum(chance.lognormal(np.log(median), sigma, servers), most)
        self._weight = documents / REFERENCE
        self._process = chance.integers(0, PROCESSES, servers)
        self._heard_at = np.full(servers, -1e9)
        self._asked_at = np.full(servers, -1e9)
        self._open = np.zeros(servers, bool)
        self._held = np.zeros(servers, bool)
        self.busiest = self.open_most = self.opened_most = self.calls_most = self.writes_most = 0.0

    def run(self) -> dict[str, float]:
        """Return the use of each resource at its busiest minute, as a share of its capacity."""
        used: dict[str, float] = {}
        for minute in range(-60, 24 * 60, _STEP):  # the first hour opens the communities of the start
            now = self._minute(minute)
            if minute >= 0:
                used = {name: max(share, used.get(name, 0.0)) for name, share in now.items()}
        return used

    def _minute(self, minute: int) -> dict[str, float]:
        hour = minute / 60 % 24
        by_hour = 0.2 + 0.8 * np.maximum(0, np.cos((hour - self._hours) * np.pi / 12)) ** 2
        by_hour *= 1 / 0.4  # so that the mean of a day is 1
        rates = self._rates * by_hour * np.where(self._bursts == int(hour), _BURST, 1)
        said = rates * _STEP  # single ones do not matter: they are only read
        kinds = {kind: self._chance.poisson(rates * share * _STEP) for kind, share in SHARES.items()}
        heard, asked = kinds["heard"], kinds["chatter"] + kinds["answer"]
        opening = (heard > 0) & ~self._open
        reading = (asked > 0) & ~self._held
        self._heard_at[heard > 0], self._asked_at[asked > 0] = minute, minute
        self._close(minute)
        return self._used(said, kinds, opening, reading)

    def _close(self, minute: int) -> None:
        self._open = self._heard_at > minute - _IDLE
        self._held = self._open & (self._asked_at > -1e8)
        for process in range(PROCESSES):
            mine = np.flatnonzero(self._open & (self._process == process))
            newest = mine[np.argsort(-self._heard_at[mine], kind="stable")]
            self._open[newest[OPEN:]] = False
            with_vectors = np.flatnonzero(self._held & self._open & (self._process == process))
            newest = with_vectors[np.argsort(-self._asked_at[with_vectors], kind="stable")]
            sizes = np.cumsum(self._weight[newest]) * REFERENCE * 384 * 4 / 1e6
            self._held[newest[sizes > ROOM]] = False
        self._held &= self._open

    def _used(self, said: Any, kinds: Mapping[str, Any], opening: Any, reading: Any) -> dict[str, float]:
        costs, weight = self._costs, self._weight
        empty, full = costs.opening
        asked = kinds["chatter"] + kinds["answer"]
        others = kinds["heard"] - asked - kinds["capture"] - kinds["reply"]
        by_kind = {**kinds, "remark": np.maximum(others, 0)}
        # The storing of each second costs once, with any number of messages in it.
        seconds = 60 * _STEP * (1 - np.exp(-kinds["heard"] / 60 / _STEP))
        together = np.divide(seconds, kinds["heard"], out=np.ones(len(said)), where=kinds["heard"] > 0)
        cpu = said * costs.payload + self._open * 60 * _STEP * costs.idle
        cpu += opening * (empty + (full - empty) * np.minimum(weight, 2)) + reading * costs.vectors * weight
        database, writes, requests = (np.zeros(len(said)) for _ in range(3))
        for kind, cost in costs.kinds.items():
            cpu += by_kind[kind] * cost.cpu
            rest = together if kind in {"remark", "reply", "chatter"} else 1.0
            database += by_kind[kind] * cost.database * rest
            writes += by_kind[kind] * cost.writes * rest
            requests += by_kind[kind] * cost.requests
        known, least, most = costs.memory
        memory = known + self._open * (least + (most - least) * np.minimum(weight, 2))
        vectors = self._held * weight * REFERENCE * 384 * 4 / 1e6
        of = partial(np.bincount, self._process, minlength=PROCESSES)
        embedding = asked * costs.embedding
        self.busiest = max(self.busiest, said.sum() / _SECONDS)
        self.open_most = max(self.open_most, of(weights=self._open).max())
        self.opened_most = max(self.opened_most, opening.sum() / _SECONDS)
        self.calls_most = max(self.calls_most, 2 * (kinds["answer"] + kinds["capture"]).sum() / _SECONDS)
        self.writes_most = max(self.writes_most, writes.sum() / _SECONDS)
        used = {
            "a process's interpreter": of(weights=cpu).max() / _SECONDS,
            "a process's two cores": of(weights=cpu + embedding).max() / _SECONDS / CORES,
            "a process's 8 GB": (_BASE + of(weights=memory + vectors).max()) / MEMORY,
            "Discord's 50 requests a second": requests.sum() / _SECONDS / REQUESTS,
            "PostgreSQL's four cores": database.sum() / _SECONDS / DATABASE_CORES,
        }
        return {name: float(share) for name, share in used.items()}

    def taken_over(self) -> tuple[float, float, float]:
        """Return the number of communities that the others open for a dead process, their CPU, and requests."""
        lost = self._process == 0
        rates = self._rates * 2.5 * SHARES["heard"]
        missed = lost & (self._chance.poisson(rates * _AWAY / 60) > 0)
        empty, full = self._costs.opening
        cpu = (missed * (empty + (full - empty) * np.minimum(self._weight, 2))).sum()
        return float(missed.sum()), float(cpu), 2 * float(missed.sum())


def _costs() -> Costs:
    alone, opened = communities.alone, communities.opened
    with tempfile.TemporaryDirectory() as folder:
        _, known = alone(communities.known, Path(folder) / "known")
        alone(communities.reference, Path(folder) / "reference")
        full, most, reading, _, idle = alone(opened, Path(folder), "reference")
        empty, least, *_ = alone(opened, Path(folder), "empty")
    with ExitStack() as stack:
        server = stack.enter_context(_on_loopback())
        base_url = stack.enter_context(endpoint_elsewhere("benchmarks.hosting"))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        kinds = _on(server, lambda url: asyncio.run(_kinds(Path(folder), url, base_url, server)))
    return Costs(
        payload=_payload(),
        embedding=asyncio.run(_embedding()) if is_english_installed() else 0.0,
        idle=idle / 1000,
        kinds=kinds,
        opening=(empty / 1000, full / 1000),
        vectors=reading / 1000,
        memory=(known, least, most),
    )


async def _kinds(folder: Path, url: str, base_url: str, server: Schemas) -> dict[str, Cost]:
    """Return the cost of each kind of message."""
    data = {"dir": str(folder), "url": url}
    await index(folder, 200, url=url)
    settings = load_settings(
        environ={},
        overrides={
            "data": data,
            "llm": {"base_url": base_url, "model": "mock"},
            "embeddings": {"provider": "none"},
            "discord": {"message_batch_wait_seconds": 0.01},
            "kb": {"settle_seconds": 0.1},
            "log": {"level": "error"},
        },
    )
    town, writes = Sandbox(SystemClock(), {"mira"}), 0
    found: dict[str, Cost] = {}
    async with open_process_resources(settings, SystemClock()) as host, anyio.create_task_group() as tg:
        engine: Any = type(host.db)
        write = engine.write

        async def counted(self: Any, work: Any) -> Any:
            nonlocal writes
            writes += 1
            return await write(self, work)

        engine.write = counted
        platform = PlatformPorts(town, _NoCommands(), _LocalFiles())
        opened = open_community_parts(
            host, DEFAULT_COMMUNITY, settings, platform, events=ActivityReporter(), jobs_came=Wakeup()
        )
        async with opened as parts:
            tg.start_soon(partial(run_pipeline, parts, stop=anyio.Event()))
            await town.wait_ready()

            async def spent(say: Callable[[int], object]) -> Cost:
                before = process_time(), writes, _cpu(server), _requests(town)
                for n in range(_EACH):
                    say(n)
                    await anyio.sleep(_APART)
                await anyio.sleep(1)
                after = process_time(), writes, _cpu(server), _requests(town)
                return Cost(*((late - early) / _EACH for early, late in zip(before, after, strict=True)))

            talk = _Talk(town)
            for n in range(_EACH, _EACH + 3):  # everything is loaded then
                talk.ask(n)
                talk.teach(n)
                talk.chat(n)
            await anyio.sleep(10)  # until the last description is made
            rest = await spent(lambda _: None)
            for kind, say in (
                ("remark", talk.remark),
                ("reply", talk.reply),
                ("chatter", talk.chat),
                ("answer", talk.ask),
            ):
                found[kind] = _without(rest, await spent(say))
            found["capture"] = _without(found["reply"], _without(rest, await spent(talk.teach)))
            tg.cancel_scope.cancel()
        engine.write = write
    return found


def _without(rest: Cost, cost: Cost) -> Cost:
    return Cost(*(max(0.0, each - idle) for each, idle in zip(cost, rest, strict=True)))


def _requests(town: Sandbox) -> int:
    """Count requests to Discord, which the adapter makes for all calls except that for a known channel."""
    return sum(times for call, times in town.calls.items() if call != "channel")


class _Talk:
    """People on a server."""

    def __init__(self, town: Sandbox) -> None:
        self._town = town
        self._first = town.say("bob", "Good morning")

    def remark(self, n: int) -> None:
        """Say something as the team."""
        self._town.say("mira", f"The release of today has {n} parts")

    def ask(self, n: int) -> None:
        """Ask the bot."""
        self._town.say(f"asker {n}", f"@intern How do I set up the {subject(n).replace('-', ' ')}?")

    def chat(self, n: int) -> None:
        """Say something that no source is near."""
        self._town.say(f"member {n}", f"That was a long weekend with the kids, {n} hours of football and no sleep")

    def reply(self, n: int) -> None:
        """Say something to another member."""
        self._town.say(f"another {n}", "I had the same thing yesterday, see you there", reply_to=self._first.id)

    def teach(self, n: int) -> None:
        """Ask another member; the team answers."""
        question, answer = (turn.text for _, turn in _TAUGHT[n].messages)
        asked = self._town.say(f"learner {n}", question, reply_to=self._first.id)
        self._town.say("mira", answer, reply_to=asked.id)


def _cpu(server: Schemas) -> float:
    """Return the CPU seconds of a PostgreSQL server, with connections that ended."""
    [(folder,)] = server.run("show data_directory")
    [pid, *_] = (Path(folder) / "postmaster.pid").read_text().split("\n")
    ticks = 0
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = each.read_text().rpartition(")")
        except OSError:
            continue
        values = fields.split()
        if name.split()[0] == pid:
            ticks += sum(map(int, values[11:15]))
        elif values[1] == pid:
            ticks += sum(map(int, values[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _payload() -> float:
    """Return the seconds to read the payload of a message."""
    team = Team(bot_id=UserId("1"), role_ids=frozenset((RoleId("4"),)))
    author = {"id": "7", "username": "bob", "discriminator": "0", "avatar": None}
    sent = {"id": "9", "channel_id": "2", "guild_id": "1", "author": author, "content": "word " * 60, "type": 0}
    sent |= {"timestamp": "2026-01-01T00:00:00+00:00", "member": {"roles": ["5"]}, "mentions": [], "attachments": []}
    data, cache = json.dumps(sent), GatewayCache()
    began = process_time()
    for _ in range(5_000):
        read_event("MESSAGE_CREATE", json.loads(data), team, cache)
    return (process_time() - began) / 5_000


async def _embedding() -> float:
    embedder = LocalEmbedder()
    await embedder.compute_vectors(["How do I begin?"], asked=True)
    began = process_time()
    for n in range(20):
        await embedder.compute_vectors([f"How do I set up the {subject(n)} on my new machine?"], asked=True)
    return (process_time() - began) / 20


# The endpoint.


def reply(body: dict[str, Any]) -> Reply:
    """Reply as the benchmarks of answers and captures do."""
    return (answering.reply if prompt_of(body) in {"decide", "confirm"} else capturing.by_rules)(body)
