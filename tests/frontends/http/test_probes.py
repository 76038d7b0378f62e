"""Probes while the disk hangs: liveness answers at once, and readiness soon names the problem."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event as Signal
from typing import Any, cast

import httpx
import pytest
import trio
import trio.testing
from anyio import create_task_group, sleep_forever
from anyio.to_thread import current_default_thread_limiter

from intern.core.errors import KnowledgeError
from intern.service.health import Health, HealthCheck, HealthMonitor
from intern.stores.database import Database
from intern.stores.folder_lock import FolderLock
from tests.frontends.http.site import site
from tests.worlds.clock import HandClock

WITHIN = 0.05
LATE = "it could not be looked at within 0.05 seconds"
WELL = HealthCheck(name="model", ok=True)


class Disk:
    """A database and a lock file that hang for as long as a test wants it."""

    def __init__(self) -> None:
        self.hangs = False
        self.problem = ""
        self.looks = 0
        self.let_go = Signal()

    async def write(self, _: object) -> None:
        if self.hangs:
            await sleep_forever()
        if self.problem:
            raise KnowledgeError(self.problem)

    @property
    def is_valid(self) -> bool:
        self.looks += 1
        if self.hangs:
            self.let_go.wait(60)
        return True

    def checks(self, within: float = WITHIN) -> HealthMonitor:
        parts: Any = self
        return HealthMonitor(
            cast("Database", parts),
            cast("FolderLock", parts),
            clock=HandClock(),
            is_open=lambda: True,
            elsewhere=lambda: (WELL,),
            within=within,
        )


@pytest.fixture
def disk() -> Generator[Disk]:
    made = Disk()
    yield made
    made.let_go.set()


def states(health: Health) -> dict[str, bool]:
    return {check.name: check.ok for check in health.checks}


ALL_WELL = {"discord": True, "database": True, "folder": True, "model": True}


async def test_what_hangs_is_told_within_the_bound_and_holds_one_thread_however_often_it_is_looked_at(
    disk: Disk,
) -> None:
    checks = disk.checks()
    disk.hangs = True
    told = [await checks.health() for _ in range(3)]
    assert [states(health) for health in told] == [{**ALL_WELL, "database": False, "folder": False}] * 3
    assert [health.notes for health in told] == [{"database": LATE, "folder": LATE}] * 3
    assert disk.looks == 1
    assert checks.latest_health().checks == told[-1].checks
    disk.hangs = False
    disk.let_go.set()
    while not states(await checks.health())["folder"]:
        pass
    assert states(checks.latest_health())["database"] is False, "it is tried again after some seconds"


async def test_several_who_look_at_once_are_all_told_within_the_bound(disk: Disk) -> None:
    checks = disk.checks()
    disk.hangs = True
    async with create_task_group() as tg:
        for _ in range(5):
            tg.start_soon(checks.health)
    assert states(checks.latest_health()) == {**ALL_WELL, "database": False, "folder": False}


async def test_what_goes_wrong_at_once_is_told_as_it_is(disk: Disk) -> None:
    checks, disk.problem = disk.checks(within=20), "the disk is full"
    health = await checks.health()
    assert health.checks[1] == HealthCheck(name="database", ok=False, detail="the disk is full")
    assert states(health)["folder"]


def test_of_what_nobody_looked_at_nothing_is_told_and_then_how_long_ago_that_was(disk: Disk) -> None:
    clock = trio.testing.MockClock()

    async def story() -> None:
        checks = disk.checks()
        before = checks.latest_health()
        assert (before.ready, before.looked_seconds_ago) == (None, None)
        assert states(before) == {"discord": True, "model": True}
        assert (await checks.health()).ready is True
        disk.problem = "the disk is full"
        clock.jump(90)
        after = checks.latest_health()
        assert (after.ready, after.looked_seconds_ago) == (True, 90), "nobody looked again"
        again = await checks.health()
        assert (again.ready, again.looked_seconds_ago) == (False, 0)

    trio.run(story, clock=clock)


async def test_it_waits_for_no_thread_that_others_hold(disk: Disk) -> None:
    checks, limiter = disk.checks(within=20), current_default_thread_limiter()
    with all_taken(limiter):
        assert states(await checks.health()) == ALL_WELL


@contextmanager
def all_taken(limiter: Any) -> Generator[None]:
    """All of the threads that work is usually done on."""
    borrowers = [object() for _ in range(int(limiter.available_tokens))]
    for each in borrowers:
        limiter.acquire_on_behalf_of_nowait(each)
    yield
    for each in borrowers:
        limiter.release_on_behalf_of(each)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_whether_it_lives_is_told_at_once_while_the_disk_hangs(tmp_path: Path) -> None:
    async def hangs(_: object) -> None:
        await sleep_forever()

    async with (
        site(tmp_path, empty=True, looked_within=WITHIN) as made,
        httpx.AsyncClient(base_url=made.address, timeout=10, verify=False) as client,  # nothing is encrypted
    ):
        made.db.write = hangs  # type: ignore[method-assign,assignment]
        with all_taken(current_default_thread_limiter()):
            live = await client.get("/healthz")
            assert live.status_code == 200
            assert live.json() == {
                "live": True,
                "ready": None,
                "checks": {"discord": True, "model": True},
                "notes": {},
                "looked_seconds_ago": None,
            }
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["checks"]) == (503, {**ALL_WELL, "database": False})
            assert ready.json()["notes"] == {"database": LATE}
            assert (await client.get("/healthz?ready")).status_code == 503
            live = await client.get("/healthz")
            assert (live.status_code, live.json()["ready"], live.json()["checks"]["database"]) == (200, False, False)
            assert 0 <= live.json()["looked_seconds_ago"] < 20
        del made.db.write
