"""Three processes share a bot's shards amid kills, pauses and restarts of the database: two minutes of it."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.hosting.soaking import Plan, soak

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


PATIENCE = 2.0
"""A factor of the time that a take-over may last: other tests use the same processors."""


@pytest.mark.rest
@pytest.mark.timeout(900)
async def test_processes_that_come_and_go_lose_nothing_and_write_nothing_without_a_lease(tmp_path: Path) -> None:
    plan = Plan(
        seconds=120,
        seed=secrets.token_hex(4),
        rate=4,
        communities=40,
        trouble_every=25,
        max_concurrency=4,
        patience=PATIENCE,
    )
    outcome = await soak(plan, tmp_path, print)
    amiss = [*outcome.amiss, *outcome.too_late]
    assert not amiss, "\n".join([*amiss, *(f"{name}: {each}" for name, each in outcome.figures.items())])
    # It was no test of processes that nothing happened to.
    assert outcome.said == 480
    assert outcome.accounted_for > 100
    assert outcome.captures > 50
    assert outcome.losses > 1
