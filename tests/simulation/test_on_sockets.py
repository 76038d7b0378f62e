"""The bot as it is run, on real sockets, among people, outages, lost replies and kills that a seed chose.

A seed that fails names itself; `SOCKET_SEEDS=3,7 pytest tests/simulation/test_on_sockets.py` plays it again, at the
length that `SOCKET_LENGTH` says. How many more `pytest -m long` plays, and of greater length, `SOCKET_MORE` says, or
`SOAK_MINUTES` for how long.
"""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from traceback import format_exception

import pytest
from anyio import create_task_group

from tests.double.discord import DiscordDouble
from tests.simulation.laws import books_of, violations
from tests.simulation.seeds import chosen, further
from tests.simulation.town import Town

pytestmark = [
    pytest.mark.anyio,
    # hikari 2.7 forgets its HTTP session where it is stopped in the middle of a call; a process ends then anyway.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <function ClientSession.__del__"),
]

SEEDS = 3
MORE = 10
LENGTH = int(os.environ.get("SOCKET_LENGTH", "45"))  # things that happen
_AT_ONCE = 5  # most of a run is waiting


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def trouble_with(seed: int, folder: Path, *, length: int) -> str:
    """Return the faults, with the whole history; empty if there are none."""
    async with DiscordDouble() as discord:
        run = Town(seed, folder, discord, length=length)
        broken: list[str] = []
        try:
            await run.live()
            books = await books_of(run)
            broken = list(violations(run, books))
            ends = [*map(str, run.stage.posts()), *map(str, books.parts), *map(str, books.archive.pairs_after(None))]
        except Exception as error:  # noqa: BLE001 the other seeds shall end, too
            broken, ends = [*broken, *format_exception(error)], []
        broken += discord.violations
    shutil.rmtree(folder, ignore_errors=True)
    return "\n".join([f"seed {seed} breaks:", *broken, "", *run.transcript, *ends]) if broken else ""


async def check(seeds: Iterable[int], folder: Path, *, length: int = LENGTH) -> None:
    """Play all seeds side by side; fail with the whole history if there is a fault."""
    left, trouble = iter(seeds), list[str]()

    async def play() -> None:
        while not trouble and (seed := next(left, None)) is not None:
            if found := await trouble_with(seed, folder / str(seed), length=length):
                trouble.append(found)

    async with create_task_group() as tg:
        for _ in range(_AT_ONCE):
            tg.start_soon(play)
    gc.collect()
    assert not trouble, "\n\n".join(trouble)


@pytest.mark.rest
@pytest.mark.timeout(300)
async def test_on_real_sockets_the_laws_hold_too(tmp_path: Path) -> None:
    await check(chosen("SOCKET_SEEDS", range(SEEDS)), tmp_path)


@pytest.mark.rest
@pytest.mark.timeout(300)
async def test_in_more_lives_on_real_sockets_they_hold_too(tmp_path: Path) -> None:
    await check(range(SEEDS, MORE), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(0)
async def test_longer_lives_on_real_sockets_keep_them_too(tmp_path: Path) -> None:
    await check(further(MORE, "SOCKET_MORE", 20), tmp_path, length=90)
