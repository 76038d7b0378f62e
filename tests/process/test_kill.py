"""SIGKILL at any moment: what was acknowledged is in the archive, once, and integrated once after the next start."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

import anyio
import pytest

MOMENTS = int(os.environ.get("INTERN_KILL_MOMENTS", "200"))
SEED = os.environ.get("INTERN_KILL_SEED") or secrets.token_hex(4)
AT_ONCE = min(os.cpu_count() or 1, 4)
SECONDS_A_MOMENT = 5.0  # on a busy machine; usually it is a tenth of that

pytestmark = [pytest.mark.anyio, pytest.mark.process, pytest.mark.timeout(60 + MOMENTS * SECONDS_A_MOMENT)]


async def test_killed_at_random_moments_it_loses_nothing_doubles_nothing_and_leaves_nothing_half_written() -> None:
    """Run it again with the same INTERN_KILL_SEED to meet the same lives; the moments of death vary a little."""
    done = await _deaths([MOMENTS // AT_ONCE + (n < MOMENTS % AT_ONCE) for n in range(AT_ONCE)])
    for each in done:
        said = each.stdout.decode() + each.stderr.decode()
        assert each.returncode == 0, f"INTERN_KILL_SEED={SEED}\n{said}"

    moments, acknowledged, most_under_stalled = zip(*(map(int, each.stdout.split()[:3]) for each in done), strict=True)
    assert sum(moments) == MOMENTS
    # It was no test of idle processes; and no append waited for a model.
    assert sum(acknowledged) > MOMENTS // 5  # thrice as many as moments on a quiet machine
    assert max(most_under_stalled) > 3


async def _deaths(shares: Sequence[int]) -> list[CompletedProcess[bytes]]:
    done: list[CompletedProcess[bytes]] = []

    async def die(n: int, share: int) -> None:
        command = [sys.executable, "-m", "tests.process.dying", str(share), f"{SEED}-{n}"]
        done.append(await anyio.run_process(command, check=False, cwd=Path(__file__).parents[2]))

    async with anyio.create_task_group() as tg:
        for n, share in enumerate(shares):
            tg.start_soon(die, n, share)
    return done
