"""A process that was busy does not keep for ever what it needed for a moment."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys

import pytest
import trio
from trio.testing import MockClock

from intern.core.memory import freeze_garbage_collector, release_memory_regularly
from tests.worlds.actors import running

_MEGABYTES = """
import resource
from pathlib import Path
from threading import Event, Thread
from intern.core.memory import release_free_memory, limit_malloc_arenas

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
"""
_BUSY = """
before = megabytes()
pieces = [bytes(2_000) for _ in range(50_000)]
stays = pieces[-1]  # above all that is freed
del pieces
kept = megabytes() - before
release_free_memory()
print(round(kept), round(megabytes() - before))
"""
_THREADS = """
for _ in range(2):  # glibc keeps up to twice the largest block that was freed
    bytes(16_000_000)
before = megabytes()
end, threads = Event(), []
for _ in range(8):
    done = Event()
    threads.append(Thread(target=lambda: (len([bytes(2_000) for _ in range(5_000)]), done.set(), end.wait())))
    threads[-1].start()
    done.wait()
release_free_memory()
print(round(megabytes() - before))
end.set()
"""


@pytest.mark.rest
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give back by themselves")
def test_what_lies_free_below_something_in_use_goes_back_to_the_system() -> None:
    kept, after = _told(_BUSY)
    assert kept > 80, "else there was nothing to give back"
    assert after < 10


@pytest.mark.rest
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give back by themselves")
def test_threads_keep_no_free_memory_of_their_own() -> None:
    assert _told(_THREADS)[0] > 60, "else there was nothing to share"
    assert _told(f"limit_malloc_arenas(){_THREADS}")[0] < 35


def _told(code: str) -> list[int]:
    command = [sys.executable, "-c", f"{_MEGABYTES}{code}"]
    environ = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    told = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    return [*map(int, told.stdout.split())]


@pytest.mark.rest
def test_the_collector_passes_over_what_was_there_for_as_long_as_that_is_set_aside() -> None:
    was_there = {"a": [1]}
    with freeze_garbage_collector():
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
        async with running(release_memory_regularly, 60.0, lambda: given.append(clock.current_time())):
            await trio.sleep(200)

    began = clock.current_time()
    trio.run(main, clock=clock)
    assert [round(at - began) for at in given] == [60, 120, 180]
