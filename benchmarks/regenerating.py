"""The cost of a regeneration: calls and wall time, one conversation at a time and eight, over an endpoint of 50 ms.

An archive of 200 captures of 125 conversations is rebuilt as `intern regenerate` does, descriptions included. The
files, the index and the decisions (except for their times) must be the same both times, and so must the calls.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from msgspec.structs import replace

from benchmarks.capturing import LATENCY, by_rules, invented
from benchmarks.figures import Figure
from intern.core.captures import Capture, Turn
from intern.core.ids import MessageId
from intern.learning.filing import DecisionCounts
from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase
from intern.stores.tables.knowledge import KnowledgeStore
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import EndpointDouble, endpoint_double
from tests.worlds.samples import START

CONVERSATIONS = 125
GREW = 75  # of them were captured a second time, with one answer more
CONCURRENCY = 8


class Run(NamedTuple):
    """One regeneration."""

    seconds: float
    calls: Counter[str]
    """The calls by prompt."""
    tally: DecisionCounts
    result: object


def measure() -> Iterator[Figure]:
    """Measure each in its own folder. The third keeps the endpoint's default limits, which reserve half for answers."""
    name = f"{CONVERSATIONS + GREW} captures regenerated"
    with endpoint_double(by_rules) as endpoint:
        one, eight = (_best(endpoint, concurrency, in_flight=16) for concurrency in (1, CONCURRENCY))
        default = _run(endpoint, CONCURRENCY, in_flight=8)
    assert one.tally.replaced == GREW
    yield Figure(f"{name}, calls (a comparable system: 361)", one.calls.total(), "", math.inf)
    yield Figure(f"{name}, calls x latency", one.calls.total() * LATENCY, "s", math.inf)
    yield Figure(f"{name}, wall time one by one (18)", one.seconds, "s", math.inf)
    yield Figure(f"{name}, wall time at concurrency {CONCURRENCY}", eight.seconds, "s", math.inf)
    yield Figure(f"{name}, the same with 4 calls in flight", default.seconds, "s", math.inf)
    yield Figure(f"{name}, concurrency {CONCURRENCY} to one by one", eight.seconds / one.seconds, "x", 1 / 3)
    others = eight.calls - one.calls, one.calls - eight.calls
    yield Figure(f"{name}, calls that only one of both made", sum(each.total() for each in others), "", 0)
    yield Figure(f"{name}, results that differ", sum(each.result != one.result for each in (eight, default)), "", 0)


def _best(endpoint: EndpointDouble, concurrency: int, *, in_flight: int) -> Run:
    # Other load of the machine only makes it slower.
    return min((_run(endpoint, concurrency, in_flight=in_flight) for _ in range(2)), key=lambda run: run.seconds)


def _run(endpoint: EndpointDouble, concurrency: int, *, in_flight: int) -> Run:
    endpoint.requests.clear()
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(Path(folder), endpoint, concurrency, in_flight)
        _archive(settings)
        seconds, tally = asyncio.run(_regenerated(settings))
        calls = Counter(f"{each.prompt} {each.user}" for each in endpoint.requests)
        return Run(seconds, calls, tally, _result(settings))


async def _regenerated(settings: Settings) -> tuple[float, DecisionCounts]:
    async with open_intern(settings) as intern:
        began = perf_counter()
        done = await intern.regenerate()
        return perf_counter() - began, done.tally


def _settings(folder: Path, endpoint: EndpointDouble, concurrency: int, in_flight: int) -> Settings:
    return load_settings(
        environ={},
        overrides={
            "data": {"dir": str(folder)},
            "llm": {"base_url": endpoint.base_url, "model": "rules", "max_in_flight": in_flight},
            "kb": {"regenerate_concurrency": concurrency},
            "extraction": {"auto": False},
            "embeddings": {"provider": "none"},
        },
    )


def _archive(settings: Settings) -> None:
    clock = HandClock(START)
    archive = Archive(settings.paths.raw, clock=clock)
    for n, taught in enumerate(invented(CONVERSATIONS)):
        clock.turn(minutes=1)
        capture = Capture(
            conversation_id=taught.conversation,
            turns=tuple(turn for _, turn in taught.messages),
            message_ids=tuple(message_id for message_id, _ in taught.messages),
            answered_at=clock.now(),
        )
        archive.append(capture)
        if n < GREW:
            clock.turn(minutes=1)
            answer = Turn("Team", "And look at the log once more, it tells you when it is over.")
            archive.append(
                replace(
                    capture,
                    turns=(*capture.turns, answer),
                    message_ids=(*capture.message_ids, MessageId(f"{capture.message_ids[-1]}0")),
                    answered_at=clock.now(),
                )
            )


def _result(settings: Settings) -> object:
    paths = settings.paths
    files = {path.name: path.read_bytes() for path in sorted(paths.topics.iterdir())}
    decisions = [
        replace(each, at=START) for each in KnowledgeStore(ReadOnlySqliteDatabase(paths.database)).read_decisions()
    ]
    return files, paths.team_index.read_bytes(), decisions
