"""The explorer runs from time to time, sooner after files change, and never too often."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from anyio import Event, fail_after, wait_all_tasks_blocked

from intern.actors.upkeep import SHORTEST_WAIT, run_regularly
from intern.core.errors import KnowledgeError
from intern.sources.options import DiscoveryOptions
from intern.sources.scanning import FileWatcher
from tests.worlds.actors import Prepared, finishing, running
from tests.worlds.clock import leap

pytestmark = pytest.mark.leaps


class Bell:
    """Announces a change when a test wants it."""

    def __init__(self) -> None:
        self.rung = Event()

    async def wait(self) -> None:
        await self.rung.wait()
        self.rung = Event()


async def test_it_works_at_once_and_then_once_every_interval_whatever_fails() -> None:
    cycles = Prepared(None, None, KnowledgeError("the disk is gone"))
    with fail_after(5000):
        async with running(partial(run_regularly, "explorer", cycles, interval_seconds=600, woken=Bell().wait)):
            await wait_all_tasks_blocked()
            assert len(cycles.calls) == 1
            for n in (2, 3):
                await leap(590)
                await wait_all_tasks_blocked()
                assert len(cycles.calls) == n - 1
                await leap(11)
                await wait_all_tasks_blocked()
                assert len(cycles.calls) == n


async def test_a_change_shortens_the_wait_but_not_to_nothing() -> None:
    cycles, bell = Prepared(None), Bell()
    with fail_after(5000):
        async with running(
            partial(
                run_regularly,
                "explorer",
                cycles,
                interval_seconds=600,
                woken=bell.wait,
                shortest_wait=SHORTEST_WAIT,
            )
        ):
            await wait_all_tasks_blocked()
            bell.rung.set()
            await wait_all_tasks_blocked()
            assert len(cycles.calls) == 1
            await leap(SHORTEST_WAIT + 1)
            await wait_all_tasks_blocked()
            assert len(cycles.calls) == 2


async def test_a_watched_folder_tells_of_a_change_of_a_file_that_counts(tmp_path: Path) -> None:
    pytest.importorskip("watchfiles")
    changes = FileWatcher(DiscoveryOptions(scan_paths=(str(tmp_path),)), never=[tmp_path / "data"])
    (tmp_path / "data").mkdir()
    told = Event()

    async def wait() -> None:
        await changes.wait()
        told.set()

    with fail_after(20):
        async with finishing(wait):
            while not told.is_set():  # a change before the watch begins is not reported
                (tmp_path / "data" / "a.md").write_text("x")
                (tmp_path / "b.md").write_text("x")
                await leap(0)
        assert told.is_set()


async def test_only_files_that_would_be_found_are_told_of(tmp_path: Path) -> None:
    changes = FileWatcher(DiscoveryOptions(scan_paths=(str(tmp_path),)), never=[tmp_path / "data"])
    concerns = {
        name
        for name in ("a.md", "b.bin", ".git/c.md", "data/d.md", "sub/e.py", ".hidden.md")
        if changes._concerns(None, str(tmp_path / name))
    }
    assert concerns == {"a.md", "sub/e.py"}


async def test_without_scan_paths_nothing_is_watched() -> None:
    with fail_after(5):
        async with running(FileWatcher(DiscoveryOptions()).wait):
            await wait_all_tasks_blocked()
