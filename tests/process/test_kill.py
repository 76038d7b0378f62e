"""SIGKILL at any moment: what was acknowledged is in the archive, once, and integrated once after the next start."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

import anyio
import pytest

from tests.engines import Schemas

MOMENTS = 20
MORE = int(os.environ.get("INTERN_KILL_MOMENTS", "40"))
SEED = os.environ.get("INTERN_KILL_SEED", "1")
AT_ONCE = min(os.cpu_count() or 1, 4)
SECONDS_A_MOMENT = 5.0  # on a busy machine; usually it is a tenth of that

pytestmark = pytest.mark.anyio


@pytest.mark.timeout(60 + MOMENTS * SECONDS_A_MOMENT)
async def test_killed_at_random_moments_it_loses_nothing_doubles_nothing_and_leaves_nothing_half_written(
    server: Schemas | None,
) -> None:
    """Run it again with the same INTERN_KILL_SEED to meet the same lives; the moments of death vary a little."""
    await _killed(MOMENTS, SEED, server)


@pytest.mark.rest
@pytest.mark.timeout(60 + MORE * SECONDS_A_MOMENT)
async def test_killed_at_more_moments_it_keeps_the_same_promises(server: Schemas | None) -> None:
    if server and "INTERN_KILL_MOMENTS" not in os.environ:
        pytest.skip("on PostgreSQL the twenty moments are enough, unless INTERN_KILL_MOMENTS asks for more")
    assert max(await _killed(MORE, f"{SEED}-more", server)) > 3  # no append waited for a model


async def _killed(times: int, seed: str, server: Schemas | None) -> Sequence[int]:
    """Say how many acts were acknowledged, at most, while a model never answered."""
    print(f"INTERN_KILL_SEED={SEED}")
    done = await _deaths([times // AT_ONCE + (n < times % AT_ONCE) for n in range(AT_ONCE)], seed, server)
    for each in done:
        said = each.stdout.decode() + each.stderr.decode()
        assert each.returncode == 0, f"INTERN_KILL_SEED={SEED}\n{said}"

    moments, acknowledged, most_under_stalled = zip(*(map(int, each.stdout.split()[:3]) for each in done), strict=True)
    assert sum(moments) == times
    # It was no test of idle processes.
    assert sum(acknowledged) > times // 5  # thrice as many as moments on a quiet machine
    return most_under_stalled


async def _deaths(shares: Sequence[int], seed: str, server: Schemas | None) -> list[CompletedProcess[bytes]]:
    done: list[CompletedProcess[bytes]] = []

    async def die(n: int, share: int) -> None:
        where = [server.address] if server else []
        command = [sys.executable, "-m", "tests.process.dying", str(share), f"{seed}-{n}", *where]
        done.append(await anyio.run_process(command, check=False, cwd=Path(__file__).parents[2]))

    async with anyio.create_task_group() as tg:
        for n, share in enumerate(shares):
            tg.start_soon(die, n, share)
    return done
