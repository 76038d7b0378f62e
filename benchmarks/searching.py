"""Search among 10,000 and 100,000 documents of 40 words, each with a vector of 256 numbers: time, memory, disk.

Words have natural frequencies (Zipf), and questions are whole sentences of them. Vectors are given: no model that makes
them is loaded. Writing and asking each have a process of their own, so that no memory is counted twice.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import anyio
import numpy as np
from anyio import to_thread

from benchmarks.figures import Figure
from benchmarks.memory import resident
from intern.core.ids import SourceId
from intern.core.search_documents import SearchDocument, SearchFilter, SearchKind
from intern.core.text.words import STOP_WORDS
from intern.search.hybrid_search import HybridSearch
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.search_file.search_index import SqliteSearchStore

SIZES = (10_000, 100_000)
WORDS = 40
DIMENSIONS = 256
ASKED = 200
SENTENCE = 14
BATCH = 500
MODEL = "given"
_BEGIN = datetime(2026, 2, 2, tzinfo=UTC)
_KINDS: tuple[SearchKind, ...] = ("source", "file", "nugget", "fact")
_VOCABULARY = 40_000


class _Language:
    """Words with natural frequencies, the commonest of them stop words."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        letters = random.Random(1)
        made = {"".join(letters.choices("abcdefghilmnoprstuvw", k=letters.randint(4, 9))) for _ in range(_VOCABULARY)}
        self._words = [*sorted(STOP_WORDS), *sorted(made)]
        self._shares = list(accumulate(1 / (n + 3) for n in range(len(self._words))))

    def sentence(self, words: int) -> str:
        """Make a sentence of so many words."""
        return " ".join(self._words[self._drawn()] for _ in range(words))

    def _drawn(self) -> int:
        return bisect_left(self._shares, self._chance.random() * self._shares[-1])


class _Given:
    """Vectors that exist already."""

    model = MODEL
    dimensions = DIMENSIONS

    def __init__(self) -> None:
        self._vectors = _vectors(7, ASKED)
        self._n = 0

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:  # noqa: ARG002
        self._n += 1
        return [self._vectors[self._n % ASKED] for _ in texts]


class _Times(NamedTuple):
    wall: Sequence[float]
    cpu: Sequence[float]


def measure() -> Iterator[Figure]:
    """Run two processes for each size."""
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            written = _child("write", folder, size)
            asked = _child("ask", folder, size)
        most = size == max(SIZES)
        among = f"search among {size:,} documents"
        yield Figure(f"{among}, 1,000 put with their vectors", written["seconds"], "s", float("inf"))
        for way in ("words", "vectors", "both"):
            bar = 60 if most and way == "both" else float("inf")
            yield Figure(f"{among} by {way}, p50", asked[f"{way} p50"], "ms", float("inf"))
            yield Figure(f"{among} by {way}, p95", asked[f"{way} p95"], "ms", bar)
            yield Figure(f"{among} by {way}, p95 (CPU)", asked[f"{way} p95 cpu"], "ms", bar)
        yield Figure(f"{among} by both, the first time", asked["first"], "ms", float("inf"))
        yield Figure(f"{among}, resident memory", asked["megabytes"], "MB", 250 if most else float("inf"))
        yield Figure(f"{among}, file", written["megabytes"], "MB", float("inf"))


def _child(act: str, folder: str, size: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.searching", act, folder, str(size)]
    said: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return said


def _vectors(seed: int, number: int) -> list[bytes]:
    numbers = np.random.default_rng(seed).standard_normal((number, DIMENSIONS), np.float32)
    numbers /= np.linalg.norm(numbers, axis=1, keepdims=True)
    return [each.tobytes() for each in numbers]


async def _write(folder: Path, size: int) -> dict[str, float]:
    language = _Language(2)
    seconds = 0.0
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        store = SqliteSearchStore(db, folder / "search.db")
        for start in range(0, size, BATCH):
            documents = [
                SearchDocument(
                    id=f"{n}#0",
                    source_id=SourceId(f"kb:{n}"),
                    kind=_KINDS[n % len(_KINDS)],
                    text=language.sentence(WORDS),
                    at=_BEGIN + timedelta(minutes=n),
                )
                for n in range(start, start + BATCH)
            ]
            vectors = _vectors(start, BATCH)
            began = perf_counter()
            await store.replace_documents(documents)
            await store.store_vectors(MODEL, list(zip(documents, vectors, strict=True)))
            seconds += perf_counter() - began
        await db.scrub()
    return {"seconds": seconds / size * 1000, "megabytes": (folder / "intern.db").stat().st_size / 1e6}


async def _ask(folder: Path) -> dict[str, float]:
    language = _Language(3)
    sentences = [language.sentence(SENTENCE) for _ in range(ASKED)]
    everything = SearchFilter()
    embedder = _Given()
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        store = SqliteSearchStore(db, folder / "search.db")
        words, both = HybridSearch(store), HybridSearch(store, embedder)

        async def by_vectors(text: str) -> None:
            [vector] = await embedder.compute_vectors([text])
            assert len(await store.search_vector(vector, MODEL, everything, 10)) == 10

        async def by_words(text: str) -> None:
            await words.find(text, everything)

        async def by_both(text: str) -> None:
            assert len(await both.find(text, SearchFilter(kinds=("nugget", "source")))) == 10

        first = await _timed(by_both, sentences[:1])
        told = {"first": first.wall[0]}
        for name, way in (("words", by_words), ("vectors", by_vectors), ("both", by_both)):
            times = await _timed(way, sentences)
            told[f"{name} p50"] = times.wall[ASKED // 2]
            told[f"{name} p95"] = times.wall[ASKED * 95 // 100]
            told[f"{name} p95 cpu"] = times.cpu[ASKED * 95 // 100]
        return {**told, "megabytes": await to_thread.run_sync(resident)}


async def _timed(way: Callable[[str], Awaitable[None]], texts: Sequence[str]) -> _Times:
    wall: list[float] = []
    cpu: list[float] = []
    for text in texts:
        began, spent = perf_counter(), process_time()
        await way(text)
        wall.append((perf_counter() - began) * 1000)
        cpu.append((process_time() - spent) * 1000)
    return _Times(sorted(wall), sorted(cpu))


if __name__ == "__main__":
    act, where, how_many = sys.argv[1:]
    if act == "write":
        print(json.dumps(anyio.run(_write, Path(where), int(how_many))))
    else:
        print(json.dumps(anyio.run(_ask, Path(where))))
