"""Resident memory of `intern run`, connected and idle: the process against the Discord double, on real sockets.

The installation is a plain one: libraries load rich, trio and h2 if possible, and only development has them.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from asyncio.subprocess import DEVNULL
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.memory import resident
from tests.double.discord import DiscordDouble
from tests.worlds.program import program


def measure() -> Iterator[Figure]:
    """Measure after the first heartbeat, with an empty knowledge base and an unused endpoint."""
    yield Figure("connected and idle, resident memory", asyncio.run(_resident_megabytes()), "MB", 85)


async def _resident_megabytes() -> float:
    async with asyncio.timeout(60), DiscordDouble() as discord:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "data/knowledge-base/sources").mkdir(parents=True)
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith("INTERN")},
                "INTERN__DISCORD__TOKEN": discord.token,
                "INTERN__DISCORD__GUILD_IDS": f'["{discord.guild.id}"]',
                "INTERN__DISCORD__REST_URL": discord.rest_url,
                "INTERN__LLM__BASE_URL": "http://127.0.0.1:9",
                "INTERN__LLM__MODEL": "none",
            }
            process = await asyncio.create_subprocess_exec(*program("run"), cwd=folder, env=environment, stderr=DEVNULL)
            try:
                await discord.wait_ready()
                await discord.until(lambda: discord.gateway.heartbeats)
                # Let it come to rest: a second heartbeat is a whole interval later.
                await asyncio.sleep(3)
                megabytes = resident(process.pid)
            finally:
                process.terminate()
                await process.wait()
    return megabytes
