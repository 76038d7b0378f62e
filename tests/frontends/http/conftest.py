"""The page is served on asyncio only, for aiohttp knows nothing else, and neither does `intern run`."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")  # so that one browser serves all tests
def anyio_backend() -> str:
    return "asyncio"
