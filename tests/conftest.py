"""Fixtures for every room. Async tests run on asyncio and on trio."""

from __future__ import annotations

import logging
from collections.abc import Generator

import pytest


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True, scope="session")
def words_alone() -> Generator[None]:
    """Nobody loads the embedding model by the way: where no setting names one, it counts as not installed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("intern.app.models.installed", lambda: False)
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
