"""The whole process among busy people and trouble: a little of it at each change, five minutes of it where time is."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.soak.soaking import Outcome, Plan, soak

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _in_words(outcome: Outcome) -> str:
    return "\n".join([*outcome.amiss, *(f"{name}: {value}" for name, value in outcome.figures.items())])


@pytest.mark.rest
@pytest.mark.timeout(300)
async def test_killed_amid_traffic_and_faults_it_loses_and_doubles_nothing(tmp_path: Path) -> None:
    plan = Plan(seconds=8, seed="smoke", kill_every=4, trouble_every=1)
    outcome = await soak(plan, tmp_path)
    assert not outcome.amiss, _in_words(outcome)
    # Without messages or trouble, it would be no test.
    assert outcome.said == 160
    assert outcome.accounted_for > 10
    assert outcome.captures > 0
    assert outcome.lives > 1
    assert outcome.faults > 1


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_five_minutes_at_twenty_messages_a_second_lose_and_double_nothing(tmp_path: Path) -> None:
    plan = Plan(seconds=300, seed=secrets.token_hex(4))
    outcome = await soak(plan, tmp_path, print)
    assert not outcome.amiss, _in_words(outcome)
    assert outcome.said == 6000
    assert outcome.captures > 100
    assert outcome.lives > 2


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_where_nobody_kills_it_is_looked_at_while_it_rests(tmp_path: Path) -> None:
    outcome = await soak(Plan(seconds=20, seed="rests", kill_every=0, busy=3, trouble_every=1), tmp_path)
    assert not outcome.amiss, _in_words(outcome)
    assert (rests := int(outcome.figures["rests"])) > 0
    rows = (tmp_path / "samples.csv").read_text(encoding="utf-8").splitlines()
    assert sum(row.endswith(",1") for row in rows) == rests
    assert outcome.not_judged
    assert outcome.lives == 1


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_made_up_community_fares_as_well_where_nothing_is_recorded(tmp_path: Path) -> None:
    plan = Plan(seconds=60, seed=secrets.token_hex(4), recorded=tmp_path / "nothing", kill_every=15)
    (folder := tmp_path / "soak").mkdir()
    outcome = await soak(plan, folder, print)
    assert not outcome.amiss, _in_words(outcome)
    assert outcome.captures > 10
