"""The cost of indexing: the event loop's longest stall at 5,000 files, calls and time for 200, bytes read for 20,000.

The calls go to an endpoint of 50 ms. The loop is measured with a model without latency.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import anyio
import anyio.to_thread

from benchmarks.elsewhere import LATENCY, endpoint_elsewhere, settings_for
from benchmarks.figures import Figure
from benchmarks.made_up import document, subject
from intern.core.clock import SystemClock
from intern.core.messages import Image
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.service.models import open_models
from intern.sources.catalogue import Catalogue
from intern.sources.descriptions import SummarizeOut
from intern.sources.options import IndexingOptions
from intern.sources.refresh import RefreshReport, refresh_sources
from intern.sources.source_folder import SourceFolder
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.knowledge import KnowledgeStore
from tests.worlds.endpoint import EndpointDouble, Reply, endpoint_double

FILES = 200
MANY = 5000
READ = (2000, 20_000)

_DESCRIPTION = "Tells how it is set up, which values it takes, what to do when it fails, and whom to ask. " * 4


class _Shelf(NamedTuple):
    """A folder with documents, and their index."""

    folder: Path
    catalogue: Catalogue

    @property
    def sources(self) -> Path:
        return self.folder / "sources"

    async def forget(self) -> None:
        """Make all documents new."""
        await self.catalogue.change({}, drop=list(self.catalogue.sources()))

    def touch(self, mtime: int) -> None:
        """Make all documents look changed."""
        for path in self.sources.iterdir():
            os.utime(path, ns=(mtime, mtime))

    async def refresh(self, model: Model) -> RefreshReport:
        return await refresh_sources(model, SourceFolder(self.sources, 1_000_000), self.catalogue, IndexingOptions())


class _AtOnce:
    """A model without latency and without cost."""

    async def ask(
        self,
        prompt: Prompt[InT, OutT],
        given: InT,  # noqa: ARG002 it says the same of everything
        *,
        images: Sequence[Image] = (),  # noqa: ARG002
    ) -> OutT:
        reply = SummarizeOut(description=_DESCRIPTION)
        assert isinstance(reply, prompt.gives)
        return reply


def measure() -> Iterator[Figure]:
    """Measure the loop first, then the calls."""
    yield from asyncio.run(_stalls())
    with endpoint_double(reply) as endpoint:
        yield from asyncio.run(_costs(endpoint))
    with endpoint_elsewhere("benchmarks.indexing") as base_url:
        yield asyncio.run(_wall_time(base_url))
    for files in READ:
        yield _bytes_read(files)


async def _stalls() -> list[Figure]:
    # The stall by a thread of the plainest Python here and now: on a busy machine, more than the bar.
    plain = await _longest_stall(lambda: anyio.to_thread.run_sync(_count))
    figures = [Figure("longest stall of the event loop beside a thread that only counts", plain * 1000, "ms", math.inf)]
    async with _shelf(MANY) as shelf:
        for name in ("new", "unchanged", "touched"):
            longest = seconds = math.inf
            for n in range(3):  # other load of the machine only makes it slower
                if name == "new":
                    await shelf.forget()
                elif name == "touched":
                    shelf.touch(n)
                began = perf_counter()
                longest = min(longest, await _longest_stall(lambda: shelf.refresh(_AtOnce())))
                seconds = min(seconds, perf_counter() - began)
            figures += [
                Figure(f"{MANY} files, {name}: longest stall of the event loop", longest * 1000, "ms", 50),
                Figure(f"{MANY} files, {name}: time", seconds, "s", math.inf),
            ]
    return figures


def _count() -> None:
    until = perf_counter() + 2
    while perf_counter() < until:
        sum(range(1000))


async def _longest_stall(work: Callable[[], Awaitable[object]]) -> float:
    """Return the longest delay in seconds of a task that wants to run every millisecond, during `work`."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = perf_counter()
            await anyio.sleep(0.001)
            longest = max(longest, perf_counter() - before - 0.001)

    async with anyio.create_task_group() as tg:
        tg.start_soon(tick)
        await work()
        tg.cancel_scope.cancel()
    return longest


async def _costs(endpoint: EndpointDouble) -> list[Figure]:
    async with (
        _shelf(FILES) as shelf,
        open_models(settings_for(shelf.folder, endpoint.base_url), None, SystemClock()) as models,
    ):
        first = await _run(shelf, models.learning, endpoint)
        again = await _run(shelf, models.learning, endpoint)
        (shelf.sources / f"{subject(0)}-0.md").write_text("# Another\n\nText.\n", encoding="utf-8")
        one = await _run(shelf, models.learning, endpoint)
    name = f"{FILES} files indexed"
    return [
        Figure(f"{name}, calls", first, "", FILES),
        Figure(f"{name} again, calls", again, "", 0),
        Figure(f"{name} again, one of them changed: calls", one, "", 1),
    ]


async def _wall_time(base_url: str) -> Figure:
    """Run the endpoint in a process of its own, so that its work is not counted."""
    async with _shelf(FILES) as shelf:
        settings = settings_for(shelf.folder, base_url)
        at_a_time = settings.indexing.concurrency
        ideal = -(-FILES // at_a_time) * LATENCY
        seconds = math.inf
        async with open_models(settings, None, SystemClock()) as models:
            for _ in range(3):
                await shelf.forget()
                began = perf_counter()
                await shelf.refresh(models.learning)
                seconds = min(seconds, perf_counter() - began)
    name = f"{FILES} files indexed, wall time to the ideal at concurrency {at_a_time} ({ideal:g} s)"
    return Figure(name, seconds / ideal, "x", math.inf)


def _bytes_read(files: int) -> Figure:
    """Return all bytes that the process reads: its own code, the sources, both databases and their logs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _fill(folder / "knowledge-base/sources", files)
        environment = {**os.environ, "INTERN__DATA__DIR": name, "INTERN__EMBEDDINGS__PROVIDER": "none"}
        command = [sys.executable, "-c", _INDEX, "index"]
        said = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        share = int(said.split()[-1]) / (folder / "search.db").stat().st_size
    return Figure(f"{files} files indexed by words: bytes read for each of search.db", share, "x", 6)


_INDEX = """
import atexit, pathlib
from intern.frontends.cli import main
atexit.register(lambda: print(pathlib.Path("/proc/self/io").read_text().split()[1]))
main()
"""


async def _run(shelf: _Shelf, model: Model, endpoint: EndpointDouble) -> int:
    """Return the number of calls."""
    calls = len(endpoint.requests)
    refreshed = await shelf.refresh(model)
    assert not refreshed.pending, refreshed.pending[0]
    return len(endpoint.requests) - calls


def reply(_: object) -> Reply:
    """Return the endpoint's reply to a call."""
    return Reply(content={"description": _DESCRIPTION}, delay=LATENCY)


@asynccontextmanager
async def _shelf(size: int) -> AsyncGenerator[_Shelf]:
    """Make documents of some 3,000 characters, most in Markdown, some as pages and some as notebooks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _fill(folder / "sources", size)
        async with await SqliteDatabase.open(folder / "intern.db") as db:
            yield _Shelf(folder, Catalogue(KnowledgeStore(db), "kb"))


def _fill(folder: Path, size: int) -> None:
    folder.mkdir(parents=True)
    for n in range(size):
        ending, text = _as_file(n)
        (folder / f"{subject(n)}-{n}.{ending}").write_text(text, encoding="utf-8")


def _as_file(n: int) -> tuple[str, str]:
    text = document(n)
    match n % 10:
        case 3:
            paragraphs = "".join(f"<p>{each}</p>\n" for each in text.split("\n\n"))
            return "html", f"<!doctype html><title>{subject(n)}</title><body>{paragraphs}</body>"
        case 7:
            return "ipynb", json.dumps({"cells": [{"cell_type": "markdown", "source": text}], "nbformat": 4})
        case _:
            return "md", text
