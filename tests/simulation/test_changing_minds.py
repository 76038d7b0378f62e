"""Members who edit, delete or go on while their question is in work, at moments that a seed chose; the laws must hold.

`make test-long` plays seeds 1 to 100, and 100 more that the commit's hash chooses: more than 2,000 such changes.
A seed that fails names itself, and fails again: `SIMULATION_SEEDS=17 pytest tests/simulation/test_changing_minds.py`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

import pytest
from anyio import sleep

from tests.simulation.community import WINDOW, Community
from tests.simulation.people import MEMBERS, Act
from tests.simulation.seeds import chosen
from tests.simulation.test_simulation import check

_IN_WORK = 12.0  # seconds, about, from the end of a batch to the post
_ASKERS = 2
_ALL = 100
_HERE = Path(__file__).parent
_changes = 0


class Wavering(Community):
    """Threads are slow, and members change their minds all the time."""

    thread_pauses = (0.0, 0.0, 0.02, 0.2, 1.0, 4.0)

    @property
    def acts(self) -> Mapping[Act, int]:
        return {**super().acts, self._ask_and_change: 100}

    async def _ask_and_change(self) -> None:
        for member in self.rng.sample(MEMBERS, _ASKERS):
            self._tasks.start_soon(self._change_soon, member)

    async def _change_soon(self, member: str) -> None:
        global _changes  # noqa: PLW0603
        asked = self.say(member, f"{self.mention} {self.question()}", self.rng.choice(self.places))
        await sleep(self.rng.uniform(WINDOW - 1, WINDOW + _IN_WORK))
        if asked.deleted is not None or not self._is_up or self._away or asked.id in self.looking.replied:
            return
        _changes += 1
        match self.rng.choice(("edit", "delete", "add")):
            case "edit":
                self.rewrite(asked, self.question())
            case "delete":
                self.remove(asked)
            case _:
                self.say(member, self.question(), asked.place)


def play(seeds: Iterable[int], folder: Path) -> int:
    """Return how many questions changed while they were in work."""
    before = _changes
    for seed in seeds:
        check(seed, folder / str(seed), kind=Wavering)
    return _changes - before


@pytest.mark.timeout(600)
def test_who_changes_their_mind_gets_one_reply_or_none(tmp_path: Path) -> None:
    assert play(chosen("SIMULATION_SEEDS", range(1, 4)), tmp_path) > 10


@pytest.mark.rest
@pytest.mark.timeout(600)
def test_in_more_lives_who_changes_their_mind_gets_one_reply_or_none_too(tmp_path: Path) -> None:
    play(range(4, 20), tmp_path)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_two_thousand_changes_of_questions_in_work_break_no_law(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=_HERE, capture_output=True, text=True, check=True).stdout
    drawn = sorted(Random(commit.strip()).sample(range(_ALL + 1, 1_000_000), _ALL))
    with capsys.disabled():
        print(f"\ncommit {commit.strip()}: seeds 1-{_ALL} and {drawn}")
    changes = play([*range(1, _ALL + 1), *drawn], tmp_path)
    with capsys.disabled():
        print(f"{changes} changes of questions in work")
    assert changes >= 2_000
