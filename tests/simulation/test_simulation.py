"""The whole bot among people, outages and crashes that a seed chose; afterwards the laws must hold.

A seed that fails names itself, and fails again: `SIMULATION_SEEDS=17 pytest tests/simulation/test_simulation.py`.
`make soak-leases` plays 300 lives with leases, or SIMULATION_SEEDS=30-59 of them.
How many more `pytest -m long` plays, and of greater length, `SIMULATION_MORE` says, or `SOAK_MINUTES` for how long;
`SIMULATION_LENGTH=100` lets a seed be played at that length.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from trio import _threads

from tests.engines import Server
from tests.simulation.cell import Cell, prepare
from tests.simulation.community import Community
from tests.simulation.laws import books_of, desk_violations, violations
from tests.simulation.machine import SimulatedTime, run_seed
from tests.simulation.seeds import chosen, further

SEEDS = 30
MORE = 40
MANY = 300
LENGTH = int(os.environ.get("SIMULATION_LENGTH", "22"))  # things that happen
_IN_A_GROUP = 10
_FEW = 5


def simulate(
    seed: int, folder: Path, *, length: int = LENGTH, url: str = "", kind: type[Community] = Community
) -> tuple[list[str], list[str]]:
    """Return the history, and the broken laws."""

    async def main(time: SimulatedTime) -> tuple[list[str], list[str]]:
        run = kind(seed, folder / "life-1", time, length=length, url=url)
        await run.live()
        books = await books_of(run)
        ends = [*map(str, run.stage.posts()), *map(str, books.parts), *map(str, books.archive.pairs_after(None))]
        return [*run.transcript, *ends], [*violations(run, books), *desk_violations(run, books)]

    try:
        return run_seed(seed, main, pauses=kind.thread_pauses)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check(seed: int, folder: Path, *, length: int = LENGTH, url: str = "", kind: type[Community] = Community) -> None:
    """Fail with the whole history if a law is broken."""
    transcript, broken = simulate(seed, folder, length=length, url=url, kind=kind)
    assert not broken, "\n".join([f"seed {seed} breaks:", *broken, "", *transcript])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", range(SEEDS // _IN_A_GROUP))
def test_whatever_happens_the_laws_hold(group: int, tmp_path: Path) -> None:
    for seed in chosen("SIMULATION_SEEDS", range(SEEDS))[group :: SEEDS // _IN_A_GROUP]:
        check(seed, tmp_path / str(seed))


@pytest.mark.rest
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEEDS, MORE, _IN_A_GROUP))
def test_in_more_lives_the_laws_hold_too(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + _IN_A_GROUP):
        check(seed, tmp_path / str(seed))


@pytest.mark.rest
@pytest.mark.timeout(600)
def test_on_postgresql_the_laws_hold_too(postgres: Server, tmp_path: Path) -> None:
    """In a few lives, for those with leases are played there, too."""
    for seed in chosen("SIMULATION_SEEDS", range(_FEW)):
        with postgres.emptied() as schema:
            check(seed, tmp_path / str(seed), url=postgres.url(schema))


@pytest.mark.rest
@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", range(SEEDS // _IN_A_GROUP))
def test_while_processes_take_over_from_one_another_the_laws_hold_too(
    group: int, postgres: Server, tmp_path: Path
) -> None:
    check_with_leases(chosen("SIMULATION_SEEDS", range(SEEDS))[group :: SEEDS // _IN_A_GROUP], postgres, tmp_path)


def check_with_leases(seeds: Sequence[int], postgres: Server, folder: Path) -> None:
    for seed in seeds:
        with postgres.emptied() as schema:
            check(seed, folder / str(seed), url=prepare(postgres, schema), kind=Cell)


_WITH_LEASES = chosen("SIMULATION_SEEDS", range(MANY))


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("group", range(-(-len(_WITH_LEASES) // _IN_A_GROUP)))
def test_in_many_lives_with_leases_the_laws_hold_too(group: int, postgres: Server, tmp_path: Path) -> None:
    check_with_leases(_WITH_LEASES[group * _IN_A_GROUP :][:_IN_A_GROUP], postgres, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_longer_lives_keep_the_laws_too(tmp_path: Path) -> None:
    for seed in further(MANY, "SIMULATION_MORE", 300):
        check(seed, tmp_path / str(seed), length=100)


@pytest.mark.rest
@pytest.mark.parametrize("seed", [1, 9])
def test_a_seed_gives_the_same_run_again_however_slow_the_loop_is(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, broken = simulate(seed, tmp_path / "once")
    monkeypatch.setattr(_threads.RunSync, "run_sync", _run_slowly)
    again, broken_again = simulate(seed, tmp_path / "again")
    assert [pair for pair in zip_longest(once, again) if pair[0] != pair[1]][:3] == []
    assert broken == broken_again


_run = _threads.RunSync[Any].run_sync


def _run_slowly(call: _threads.RunSync[Any]) -> None:
    """Run the call of a thread in the loop; then the thread has time to go on before the loop does."""
    _run(call)
    sleep(0.004)
