"""A process that was busy does not keep for ever what it needed for a moment."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys

import pytest
import trio
from anyio import create_task_group
from trio.testing import MockClock

from intern.core.memory import giving_back, set_aside

_BUSY = """
import resource
from pathlib import Path
from intern.core.memory import give_back

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

before = megabytes()
pieces = [bytes(2_000) for _ in range(50_000)]
stays = pieces[-1]  # above all that is freed
del pieces
kept = megabytes() - before
give_back()
print(round(kept), round(megabytes() - before))
"""


@pytest.mark.rest
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give back by themselves")
def test_what_lies_free_below_something_in_use_goes_back_to_the_system() -> None:
    told = subprocess.run([sys.executable, "-c", _BUSY], capture_output=True, text=True, check=True, timeout=60)
    kept, after = map(int, told.stdout.split())
    assert kept > 80, "else there was nothing to give back"
    assert after < 10


@pytest.mark.rest
def test_the_collector_passes_over_what_was_there_for_as_long_as_that_is_set_aside() -> None:
    was_there = {"a": [1]}
    with set_aside():
        came_later = {"b": [2]}
        looked_at = gc.get_objects()
        assert not any(each is was_there for each in looked_at)
        assert any(each is came_later for each in looked_at)
        del looked_at
    assert any(each is was_there for each in gc.get_objects())


def test_it_is_given_back_again_and_again() -> None:
    clock = MockClock(autojump_threshold=0.01)
    given: list[float] = []

    async def main() -> None:
        async with create_task_group() as tg:
            tg.start_soon(giving_back, 60.0, lambda: given.append(clock.current_time()))
            await trio.sleep(200)
            tg.cancel_scope.cancel()

    began = clock.current_time()
    trio.run(main, clock=clock)
    assert [round(at - began) for at in given] == [60, 120, 180]
