"""The cost of a question at 20, 200 and 2,000 sources, over an endpoint that takes 50 ms for each reply.

The endpoint is a process of its own where time and CPU are measured, so that only the bot's are.
"""

from __future__ import annotations

import asyncio
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from random import Random
from statistics import mean, median
from time import perf_counter, process_time
from typing import Any, Literal, NamedTuple

from benchmarks.elsewhere import LATENCY, endpoint_elsewhere, settings_for
from benchmarks.figures import Figure
from benchmarks.made_up import document, subject
from intern.answering.model_cache import CachingModel, make_key_function
from intern.core.clock import SystemClock
from intern.core.messages import Conversation, Message
from intern.search.embedding_local import is_english_installed
from intern.service.models import Models, load_templates, open_models
from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.reply_cache import ReplyStore
from tests.worlds.endpoint import Reply, Request, endpoint_double, prompt_of, text_of

QUESTIONS = 20
SLOW = 0.2
"""Seconds for each reply if depth is measured by the start of calls, even on a busy machine."""
SIZES = (20, 200, 2000)
LEAST_CACHED = 4_096
"""The bytes of 1,024 tokens at four to a token, as in English; endpoints cache equal prefixes from this length on."""
WITH_VECTORS = 200
"""The number of documents up to which vectors are made; for more, that would take most of the time."""


class Cost(NamedTuple):
    """The average cost of a question."""

    calls: float
    depth: float
    """The number of model calls that wait for one another."""
    characters: float
    prefixes: Sequence[Prefix]


class Prefix(NamedTuple):
    """The common prefix of all calls of one prompt, which an endpoint may cache."""

    prompt: str
    bytes: int
    share: float
    """Its share of the shortest of these calls, 0 to 1."""


Steps = Literal["separate", "fused"]

# The bars of each way: calls, their depth, characters, and milliseconds of CPU at 200 sources.
BARS: dict[Steps, tuple[float, float, float, float]] = {
    "separate": (math.inf, 3, 45_000, 25),
    "fused": (2, 2, 14_000, 25),
}


def measure() -> Iterator[Figure]:
    """Measure calls, depth and characters with the endpoint in this process; time and CPU with it in another."""
    sent: dict[tuple[Steps, int], float] = {}
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(index(Path(folder), size))
            for steps, (calls, depth, characters, cpu) in BARS.items():
                cost = _cost(Path(folder), size, steps)
                sent[steps, size] = cost.characters
                times = _times(Path(folder), size, steps=steps)
                name = f"a question at {size} sources, {steps}"
                yield Figure(f"{name}, calls", cost.calls, "", calls)
                yield Figure(f"{name}, depth (a comparable system: 4)", cost.depth, "", depth)
                yield Figure(f"{name}, characters{' (74,090)' if size == 200 else ''}", cost.characters, "", characters)
                yield Figure(f"{name}, asked again, calls", _again(Path(folder), size, steps), "", 0)
                for prefix in cost.prefixes:
                    begins = f"{name}, `{prefix.prompt}` before the first difference"
                    least = LEAST_CACHED if prefix.prompt == "decide" else -math.inf
                    yield Figure(begins, prefix.bytes, "bytes", least=least)
                    yield Figure(f"{begins}, of the shortest", prefix.share * 100, "%")
                yield Figure(f"{name}, CPU (28 to 37)", times.cpu * 1000, "ms", cpu if size == 200 else math.inf)
                yield Figure(f"{name}, CPU with {QUESTIONS} in flight", times.crowded * 1000, "ms")
                yield Figure(f"{name}, wall time to depth x latency", times.wall / (cost.depth * LATENCY), "x", 1.4)
    grown: dict[Steps, float] = {steps: sent[steps, 2000] / sent[steps, 200] for steps in BARS}
    yield Figure("characters of a question, 2,000 sources to 200, separate", grown["separate"], "x", 1.1)
    yield Figure("characters of a question, 2,000 sources to 200, fused", grown["fused"], "x", 1.1)
    if is_english_installed():
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(index(Path(folder), WITH_VECTORS, embeddings="local"))
            for steps in BARS:
                times = _times(Path(folder), WITH_VECTORS, embeddings="local", steps=steps)
                name = f"a question at {WITH_VECTORS} sources, {steps}, with vectors of this machine's model"
                yield Figure(f"{name}, CPU", times.cpu * 1000, "ms")
                yield Figure(f"{name}, CPU with {QUESTIONS} in flight", times.crowded * 1000, "ms")


def _cost(folder: Path, size: int, steps: Steps) -> Cost:
    begun: list[float] = []

    def answer(body: dict[str, Any]) -> Reply:
        begun.append(perf_counter())
        return replace(reply(body), delay=SLOW)

    depths: list[int] = []
    with endpoint_double(answer) as endpoint:

        async def work() -> None:
            async with open_intern(settings_for(folder, endpoint.base_url, steps=steps)) as intern:
                await intern.answer(_questions(size, QUESTIONS)[0])  # the first one waits for the index to be read
                endpoint.requests.clear()
                for conversation in _questions(size):
                    begun.clear()
                    result = await intern.answer(conversation)
                    assert result.should_reply, (result.debug or {}).get("error", result.reason)
                    depths.append(_levels(begun))

        asyncio.run(work())
        asked = endpoint.requests
        characters = sum(len(_said(each.body)) for each in asked)
    questions = len(depths)
    return Cost(len(asked) / questions, mean(depths), characters / questions, prefixes(asked))


def _again(folder: Path, size: int, steps: Steps) -> float:
    """Count the calls of a repeated question, with the bot's memory of replies."""
    with endpoint_double(reply) as endpoint:
        settings = settings_for(folder, endpoint.base_url, steps=steps)

        async def work() -> int:
            async with (
                await SqliteDatabase.open(settings.paths.database) as db,
                open_models(settings, None, SystemClock()) as models,
            ):
                key_of = make_key_function(settings.llm, load_templates(settings))
                known = CachingModel(models.answering, ReplyStore(db, clock=SystemClock()), key_of)
                async with open_intern(settings, models=Models(known, models.learning)) as intern:
                    for conversation in _questions(size):
                        assert (await intern.answer(conversation)).should_reply
                    first = len(endpoint.requests)
                    assert first
                    for conversation in _questions(size):
                        assert (await intern.answer(conversation)).should_reply
                    return len(endpoint.requests) - first

        return asyncio.run(work()) / QUESTIONS


def prefixes(requests: Sequence[Request]) -> list[Prefix]:
    """Return the common prefix of the calls of each prompt. A prompt with a single call is left out."""
    said: dict[str, list[bytes]] = {}
    for each in requests:
        said.setdefault(each.prompt, []).append(_said(each.body).encode())
    found: list[Prefix] = []
    for prompt, calls in sorted(said.items()):
        if len(calls) > 1:
            same = sum(1 for _ in takewhile(lambda signs: len(set(signs)) == 1, zip(*calls, strict=False)))
            found.append(Prefix(prompt, same, same / min(map(len, calls))))
    return found


def _said(body: dict[str, Any]) -> str:
    """Return all messages of a request, examples too."""
    return "\n".join(str(message["content"]) for message in body["messages"])


class Times(NamedTuple):
    """Median seconds of a question, of a bot that answered as many others before."""

    cpu: float
    wall: float
    crowded: float
    """CPU of each if all are asked at once."""


def _times(folder: Path, size: int, *, embeddings: str = "none", steps: Steps) -> Times:
    spent: list[tuple[float, float]] = []
    crowded = 0.0
    with endpoint_elsewhere("benchmarks.answering") as base_url:

        async def work() -> None:
            nonlocal crowded
            async with open_intern(settings_for(folder, base_url, embeddings=embeddings, steps=steps)) as intern:
                for conversation in (*_questions(size, QUESTIONS), *_questions(size)):
                    cpu, wall = process_time(), perf_counter()
                    assert (await intern.answer(conversation)).should_reply
                    spent.append((process_time() - cpu, perf_counter() - wall))
                cpu = process_time()
                async with asyncio.TaskGroup() as at_once:
                    for conversation in _questions(size, 2 * QUESTIONS):
                        at_once.create_task(intern.answer(conversation))
                crowded = (process_time() - cpu) / QUESTIONS

        asyncio.run(work())
    asked = spent[QUESTIONS:]
    return Times(median(cpu for cpu, _ in asked), median(wall for _, wall in asked), crowded)


def _levels(begun: Sequence[float]) -> int:
    """Return the depth of calls: a waiting call begins no sooner than the other's reply is sent."""
    levels, last = 0, -math.inf
    for moment in sorted(begun):
        if moment - last > 0.95 * SLOW:
            levels += 1
            last = moment
    return levels


async def index(folder: Path, size: int, *, embeddings: str = "none", url: str = "") -> None:
    sources = folder / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    for n in range(size):
        (sources / f"{subject(n)}-{n}.md").write_text(document(n), encoding="utf-8")
    overrides = {
        "data": {"dir": str(folder), "url": url},
        "llm": {"provider": "offline"},
        "embeddings": {"provider": embeddings},
    }
    settings = load_settings(environ={}, overrides=overrides)
    async with open_intern(settings) as intern:
        await intern.index()


def _questions(size: int, seed: int = 0) -> list[Conversation]:
    chosen = Random(size + seed).sample(range(size), QUESTIONS)
    texts = [f"How do I set up the {subject(n).replace('-', ' ')}?" for n in chosen]
    return [Conversation((Message(role="user", text=text),)) for text in texts]


# The endpoint.


def reply(body: dict[str, Any]) -> Reply:
    """Reply at no cost: the first five ids, a sentence of the first source, and yes to all else."""
    user = text_of(body, "user")
    ids = list(dict.fromkeys(re.findall(r"^kb:\S+$", user, re.MULTILINE)))
    told = next(iter(re.findall(r"^The [^.\n]* is set with [^.\n]*\.", user, re.MULTILINE)), "")
    said: dict[str, dict[str, Any]] = {
        "gate": {"reason": "", "kind": "question", "rewrite_query": None},
        "select": {"selected_source_ids": ids[:5]},
        "answer": {"quotes": [told[:300]], "answer": told, "citations": ids[:1]},
        "decide": {
            "quotes": [{"source": "S1", "line": told[:300]}],
            "kind": "answer",
            "answer": told,
            "citations": ["S1"],
        },
        "confirm": {
            "asked": "whether",
            "told": "that it does",
            "verdict": "answered",
            "claims": [{"claim": "it does", "quote": 1}],
        },
        "verify": {"is_good_enough": True, "issues": [], "suggested_fix": None},
    }
    return Reply(content=said[prompt_of(body)], delay=LATENCY)
