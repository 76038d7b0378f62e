"""A team for each test of this room."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.worlds.team import Team


@pytest.fixture
async def team(tmp_path: Path) -> AsyncGenerator[Team]:
    """A team without knowledge."""
    async with Team.at(tmp_path) as team:
        yield team
