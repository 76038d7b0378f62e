"""Fixtures for every room. Async tests run on asyncio and on trio."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
import structlog
from hypothesis import settings

from intern.core.log import PROCESSORS

MEMORY = Path("/dev/shm")
ROOM = 2 * 2**30  # bytes, several times what a run leaves lying at once

# An example's 200 ms pass by themselves where other tests want the processor; a test that hangs has its own timeout.
settings.register_profile("beside others", deadline=None)
settings.load_profile("beside others")

structlog.configure(processors=PROCESSORS)  # so that structlog's capture_logs takes our events


def pytest_configure() -> None:
    """Let tests write to memory where there is room: what they wait for, else, is mostly fsync.

    A killed process loses as much there as on a disk: nothing that it had written. TMPDIR names another place.
    """
    if "TMPDIR" not in os.environ and _has_room(MEMORY):
        os.environ["TMPDIR"] = str(MEMORY)  # and for the processes that tests start
        tempfile.tempdir = None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One more than there are cores, for many tests wait: for sockets, for processes, for hikari's pauses."""
    return None if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ else (os.cpu_count() or 1) + 1


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.W_OK):
        return False
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize >= ROOM and not disk.f_flag & os.ST_NOEXEC


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True, scope="session")
def words_alone() -> Generator[None]:
    """Nobody loads the embedding model by the way: where no setting names one, it counts as not installed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("intern.service.models.installed", lambda: False)
        yield


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Generator[None]:
    """What a command sets for its process must not outlive its test."""
    root, libraries = (
        logging.getLogger(),
        [logging.getLogger(name) for name in ("hikari", "httpx", "httpcore", "aiohttp", "asyncio")],
    )
    handlers, levels = root.handlers[:], [logger.level for logger in (root, *libraries)]
    yield
    root.handlers[:] = handlers
    for logger, level in zip((root, *libraries), levels, strict=True):
        logger.setLevel(level)
