"""What a question costs at 20, 200 and 2,000 sources, over an endpoint that takes 50 ms for each reply.

The endpoint is a process of its own where CPU is measured, so that only the bot's is counted.
"""

from __future__ import annotations

import asyncio
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import mean, median
from time import perf_counter, process_time
from typing import Any, NamedTuple

from benchmarks.figures import Figure
from intern.app import open_intern
from intern.domain import Conversation, Message
from intern.settings import Settings, load_settings
from tests.endpoint_double import Reply, endpoint_double, prompt_of, text_of

LATENCY = 0.05  # seconds
QUESTIONS = 20
SIZES = (20, 200, 2000)

_WORDS = [
    "agent",
    "backup",
    "bucket",
    "cache",
    "certificate",
    "cluster",
    "column",
    "container",
    "dashboard",
    "database",
    "dependency",
    "device",
    "digest",
    "disk",
    "driver",
    "election",
    "endpoint",
    "gateway",
    "handshake",
    "header",
    "heap",
    "image",
    "index",
    "ingress",
    "installer",
    "journal",
    "kernel",
    "label",
    "leader",
    "ledger",
    "lock",
    "manifest",
    "mapping",
    "member",
    "metric",
    "migration",
    "module",
    "mount",
    "network",
    "node",
    "notification",
    "operator",
    "package",
    "panel",
    "parser",
    "partition",
    "password",
    "pipeline",
    "plugin",
    "policy",
    "pool",
    "portal",
    "provider",
    "proxy",
    "query",
    "queue",
    "quorum",
    "queue",
    "record",
    "refresh",
    "region",
    "registry",
    "relay",
    "replica",
    "retention",
    "role",
    "rollback",
    "rotation",
    "route",
    "rule",
    "sandbox",
    "schedule",
    "scope",
    "segment",
    "sensor",
    "service",
    "session",
    "shard",
    "signature",
    "snapshot",
    "socket",
    "spool",
    "storage",
    "stream",
    "subnet",
    "tenant",
    "threshold",
    "token",
    "topic",
    "trace",
    "tunnel",
    "upgrade",
    "upload",
    "vault",
    "version",
    "volume",
    "webhook",
    "worker",
    "workflow",
    "zone",
]


class Cost(NamedTuple):
    """What one question cost, on average."""

    calls: float
    depth: float
    """Model calls that wait for one another."""
    characters: float
    seconds: float


def measure() -> Iterator[Figure]:
    """Calls, depth, characters and time with the endpoint in this process; CPU with it in another."""
    characters: dict[int, float] = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_index(Path(folder), size))
            cost = _cost(Path(folder), size)
            cpu = _cpu(Path(folder), size)
        characters[size] = cost.characters
        name = f"a question at {size} sources"
        yield Figure(f"{name}, calls", cost.calls, "", math.inf)
        yield Figure(f"{name}, depth (a comparable system: 4)", cost.depth, "", 3)
        yield Figure(f"{name}, characters{' (74,090)' if size == 200 else ''}", cost.characters, "", 30_000)
        yield Figure(f"{name}, CPU (28 to 37)", cpu * 1000, "ms", 10)
        yield Figure(f"{name}, wall time to depth x latency", cost.seconds / (cost.depth * LATENCY), "x", 1.15)
    yield Figure("characters of a question, 2,000 sources to 200", characters[2000] / characters[200], "x", 1.1)


def _cost(folder: Path, size: int) -> Cost:
    begun: list[float] = []

    def answer(body: dict[str, Any]) -> Reply:
        begun.append(perf_counter())
        return _reply(body)

    depths: list[int] = []
    seconds: list[float] = []
    with endpoint_double(answer) as endpoint:

        async def work() -> None:
            async with open_intern(_settings(folder, endpoint.base_url)) as intern:
                for conversation in (_questions(size)[0], *_questions(size)):  # the first one opens the connections
                    begun.clear()
                    started = perf_counter()
                    result = await intern.answer(conversation)
                    seconds.append(perf_counter() - started)
                    assert result.should_reply, result.reason
                    depths.append(_levels(begun))

        asyncio.run(work())
        asked = endpoint.requests
        characters = sum(len(each.system) + len(each.user) for each in asked)
    return Cost(len(asked) / len(depths), mean(depths), characters / len(depths), median(seconds[1:]))


def _cpu(folder: Path, size: int) -> float:
    """Seconds of CPU for a question; the median."""
    spent: list[float] = []
    with _endpoint_elsewhere() as base_url:

        async def work() -> None:
            async with open_intern(_settings(folder, base_url)) as intern:
                for conversation in (_questions(size)[0], *_questions(size)):
                    before = process_time()
                    assert (await intern.answer(conversation)).should_reply
                    spent.append(process_time() - before)

        asyncio.run(work())
    return median(spent[1:])


def _levels(begun: Sequence[float]) -> int:
    """How many calls waited for another: those that begin within half a latency stand side by side."""
    levels, last = 0, -math.inf
    for moment in sorted(begun):
        if moment - last > LATENCY / 2:
            levels += 1
            last = moment
    return levels


async def _index(folder: Path, size: int) -> None:
    sources = folder / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    for n in range(size):
        (sources / f"{_subject(n)}-{n}.md").write_text(_document(n), encoding="utf-8")
    settings = load_settings(environ={}, overrides={"data": {"dir": str(folder)}, "llm": {"provider": "offline"}})
    async with open_intern(settings) as intern:
        await intern.index()


def _subject(n: int) -> str:
    return f"{_WORDS[n % len(_WORDS)]}-{_WORDS[(n // len(_WORDS) + 3 * n) % len(_WORDS)]}"


def _document(n: int) -> str:
    """Some 3,000 characters."""
    random = Random(n)
    text = f"# The {_subject(n).replace('-', ' ')}\n\n"
    while len(text) < 3000:
        a, b, c = random.sample(_WORDS, 3)
        text += f"The {a} of the {b} is set with `relay {c} {a}` and needs a {c}. "
        text += "\n\n" if random.random() < 0.25 else ""
    return text


def _questions(size: int) -> list[Conversation]:
    chosen = Random(size).sample(range(size), QUESTIONS)
    texts = [f"How do I set up the {_subject(n).replace('-', ' ')}?" for n in chosen]
    return [Conversation((Message(role="user", text=text),)) for text in texts]


def _settings(folder: Path, base_url: str) -> Settings:
    llm = {"base_url": base_url, "model": "mock"}
    return load_settings(environ={}, overrides={"data": {"dir": str(folder)}, "llm": llm, "log": {"level": "error"}})


# The endpoint's side.


def _reply(body: dict[str, Any]) -> Reply:
    """What costs the endpoint nothing: the first five ids, a sentence of the first source, and yes to all else."""
    user = text_of(body, "user")
    ids = list(dict.fromkeys(re.findall(r"^kb:\S+$", user, re.MULTILINE)))
    said: dict[str, dict[str, Any]] = {
        "gate": {"is_question": True, "is_answerable": True, "rewrite_query": None, "reason": ""},
        "select": {"selected_source_ids": ids[:5]},
        "answer": {"answer": next(iter(re.findall(r"^The .*", user, re.MULTILINE)), ""), "citations": ids[:1]},
        "verify": {"is_good_enough": True, "issues": [], "suggested_fix": None},
    }
    return Reply(content=said[prompt_of(body)], delay=LATENCY)


@contextmanager
def _endpoint_elsewhere() -> Generator[str]:
    """The address of the endpoint in a process of its own."""
    code = "from benchmarks.answering import serve; serve()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        try:
            yield other.stdout.readline().strip()
        finally:
            other.stdin.close()


def serve() -> None:
    """Be that process, until the standard input ends."""
    with endpoint_double(_reply) as endpoint:
        print(endpoint.base_url, flush=True)
        sys.stdin.read()
