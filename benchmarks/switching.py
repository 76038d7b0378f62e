"""The delay of the event loop while eight threads compute, at Python's own switch interval and at intern's."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from statistics import median
from threading import Event, Thread
from time import monotonic

from benchmarks.figures import Figure
from intern.runtime.bot import SWITCH_SECONDS

THREADS = 8
SECONDS = 5.0
_SLEEP = 0.01
_TEXT = json.dumps([{"id": n, "text": str(n) * 20} for n in range(200)])


def measure() -> Iterator[Figure]:
    """Let the threads work like those of databases and models: decode JSON, and compute in between."""
    usual = sys.getswitchinterval()
    try:
        for name, seconds in (("Python's own", usual), ("intern's", SWITCH_SECONDS)):
            sys.setswitchinterval(seconds)
            late = _late()
            yield Figure(
                f"event loop beside {THREADS} busy threads, {name} switch interval, median", median(late), "ms"
            )
            yield Figure(f"event loop beside {THREADS} busy threads, {name} switch interval, worst", max(late), "ms")
    finally:
        sys.setswitchinterval(usual)


def _late() -> list[float]:
    over = Event()

    def compute() -> None:
        while not over.is_set():
            json.loads(_TEXT)
            sum(n * n for n in range(2_000))

    async def sleep() -> list[float]:
        late, end = list[float](), monotonic() + SECONDS
        while (now := monotonic()) < end:
            await asyncio.sleep(_SLEEP)
            late.append(1000 * (monotonic() - now - _SLEEP))
        return late

    threads = [Thread(target=compute) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    try:
        return asyncio.run(sleep())
    finally:
        over.set()
        for thread in threads:
            thread.join()
