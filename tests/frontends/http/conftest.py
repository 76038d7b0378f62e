"""The page is served on asyncio only, for aiohttp knows nothing else, and neither does `intern run`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.frontends.http.site import Site, site


@pytest.fixture(scope="module")  # so that one browser serves all tests
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def page(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Site]:
    """For tests that only look."""
    async with site(tmp_path_factory.mktemp("page"), patience=None) as made:
        yield made


@pytest.fixture
async def own(tmp_path: Path) -> AsyncGenerator[Site]:
    """For a test that changes something."""
    async with site(tmp_path) as made:
        yield made
