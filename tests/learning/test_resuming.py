"""A regeneration that was killed goes on where it was, pays for nothing twice, and comes to the same end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from intern.core.errors import ModelReplyError, ModelUnavailableError
from intern.core.ids import TopicName
from intern.core.records import Filed, Forgotten, Parked, Removed, Withdrawn
from intern.learning.draft import JOURNAL, finish_swap
from intern.learning.prompts import CLASSIFY, INTEGRATE, LearningOptions
from intern.learning.regenerating import progress_of
from intern.stores.archive import Archive
from intern.stores.library import TopicLibrary
from tests.learning.anew import KEEP, Opinionated, again, by_first_word, held, outcome, until_killed
from tests.learning.pairs import KillingLayer, Team

pytestmark = pytest.mark.anyio

SMALL = LearningOptions(max_topic_chars=700)
"""So that topics are split, too."""


def taught(folder: Path) -> Team:
    """Half a dozen conversations, one of which grew, an older library, and somebody's notes."""
    team = Team(folder)
    team.placed("old", team.archived("gpu one", "1 " + "word " * 20))
    pairs = [team.archived(f"gpu {n}", f"{n} " + "word " * 20, after=n) for n in range(2, 7)]
    team.archived("gpu 6", "6 and more " + "word " * 20, conversation=pairs[-1].conversation_id, messages=3, after=7)
    (team.topics_dir / "notes.md").write_text("mine")
    return team


async def reopened(team: Team, layer: KillingLayer | None = None) -> None:
    """As a new process finds it."""
    team.archive = Archive(team.topics_dir.parent / "raw", clock=team.clock)
    team.open(layer)
    finish_swap(team.topics_dir, team.decisions, layer)


class Undisturbed:
    """What comes of it when nobody is killed."""

    calls: Counter[str]
    result: tuple[dict[str, bytes], list[object]]


async def undisturbed(folder: Path, seed: int, concurrency: int) -> Undisturbed:
    team, model, found = taught(folder), Opinionated(0, seed=seed), Undisturbed()
    await again(team, model=model, options=SMALL, concurrency=concurrency)
    found.calls, found.result = Counter(model.calls), outcome(team)
    assert any(call.startswith("split_topic") for call in found.calls)
    return found


SEED = 0


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_killed_at_any_step_it_comes_to_the_same_end_and_asks_nothing_twice(
    tmp_path: Path, concurrency: int
) -> None:
    with fail_after(100):
        expected = await undisturbed(tmp_path / "undisturbed", SEED, concurrency)
        steps = -1
        for steps in count():
            team, model = taught(tmp_path / str(steps)), Opinionated(0, seed=SEED)
            layer = KillingLayer(steps)
            team.open(layer)
            common: dict[str, Any] = {"model": model, "options": SMALL, "concurrency": concurrency}
            if await until_killed(team, files=layer, **common) is not None:
                break
            await reopened(team)
            if "old" in held(team.topics_dir):
                await again(team, **common)
            # Else the swap was due, and the start has finished it.
            assert outcome(team) == expected.result
            asked = Counter(model.calls)
            assert asked.keys() == expected.calls.keys()
            # What was on its way when the process died is asked once more: one call for each pair in work.
            twice = asked - expected.calls
            assert sum(twice.values()) <= concurrency, twice
        assert steps > 60


async def test_killed_again_and_again_it_comes_to_its_end(tmp_path: Path) -> None:
    with fail_after(60):
        expected = await undisturbed(tmp_path / "undisturbed", SEED, 2)
        team, model = taught(tmp_path / "killed"), Opinionated(0, seed=SEED)
        for steps in count(8):  # enough to write one line more than the one before
            layer = KillingLayer(steps)
            try:
                await reopened(team, layer)
            except BaseException as error:
                if type(error).__name__ != "KilledError":
                    raise
                continue
            if await until_killed(team, files=layer, model=model, options=SMALL, concurrency=2) is not None:
                break
        team.open()
        files, decisions = outcome(team)
        # Whoever died right after a write says on the next start, once more, what had been decided last.
        assert (files, _said_once(decisions)) == expected.result


def _said_once(decisions: Sequence[object]) -> list[object]:
    """Without what repeats the last decision about its pair."""
    last: dict[object, object] = {}
    kept: list[object] = []
    for each in decisions:
        pair = getattr(each, "qa_id", None)
        if pair is None or last.get(pair) != each:
            kept.append(each)
        last[pair] = each
    return kept


@pytest.fixture
def team(tmp_path: Path) -> Team:
    """A model that answers three calls, and then is away."""
    team = Team(tmp_path)
    for n in range(4):
        team.archived("gpu", str(n), after=n)
    team.model.next(CLASSIFY, *([by_first_word] * 3))
    team.model.always(CLASSIFY, ModelUnavailableError("down"))
    team.model.always(INTEGRATE, KEEP)
    return team


async def stopped(team: Team, **options: Any) -> None:
    with fail_after(5), pytest.raises(ModelUnavailableError, match="down; 0 of 4 conversations are done and kept"):
        await again(team, **options)
    team.model.asked.clear()
    team.model.always(CLASSIFY, by_first_word)


async def test_what_a_model_chose_before_it_went_away_is_kept(team: Team) -> None:
    await stopped(team)
    progress = progress_of(team.topics_dir)
    assert progress is not None
    assert (progress.classified, progress.decided, progress.total) == (3, 0, 4)
    assert held(team.topics_dir) == {}
    await reopened(team)
    with fail_after(5):
        await again(team)

    assert len(team.model.calls(CLASSIFY)) == 1
    assert held(team.topics_dir) == {"gpu": ["0", "1", "2", "3"]}
    assert progress_of(team.topics_dir) is None


@pytest.mark.parametrize("changed", ["options", "basis", "archive", "journal"])
async def test_it_begins_anew_where_what_decides_the_result_has_changed(team: Team, changed: str) -> None:
    await stopped(team)
    options: dict[str, Any] = {}
    if changed == "options":
        options = {"options": LearningOptions(max_pair_chars=500)}
    elif changed == "basis":
        options = {"basis": "another prompt"}
    elif changed == "archive":
        [week] = (team.topics_dir.parent / "raw").iterdir()
        week.write_bytes(week.read_bytes().replace(b"Team: 2", b"Team: two"))
    else:
        (team.topics_dir.with_name("topics.next") / JOURNAL).write_bytes(b'{"line": "begun"')
    (team.topics_dir.with_name("topics.next") / "stale.txt").write_text("--- QA ---\n")
    await reopened(team)
    with fail_after(5):
        await again(team, **options)

    assert len(team.model.calls(CLASSIFY)) == 4
    assert [path.name for path in team.topics_dir.iterdir()] == ["gpu.txt"]


async def test_what_happened_while_it_lay_still_is_taken_in(team: Team) -> None:
    await stopped(team)
    first = next(iter(team.archive.after(None)))
    team.archived("disk", "later", after=9)
    team.clock.turn(hours=1)
    team.decisions.append(Withdrawn(message_ids=first.message_ids, at=team.clock.now()))
    await reopened(team)
    with fail_after(5):
        result = await again(team)

    assert held(team.topics_dir) == {"gpu": ["1", "2", "3"], "disk": ["later"]}
    assert isinstance(team.decisions.of(first.qa_id), Removed)
    assert result.pairs == 5


async def test_decisions_about_the_old_library_meanwhile_do_not_hide_what_the_new_one_lacks(team: Team) -> None:
    """The bot went on with the old library, and filed there what the new one had parked or skipped."""
    pairs = list(team.archive.after(None))
    team.model.next(INTEGRATE, ModelReplyError("junk"))
    team.model.always(CLASSIFY, by_first_word)

    team.model.next(INTEGRATE, ModelUnavailableError("down"))
    with fail_after(5), pytest.raises(ModelUnavailableError):
        await again(team)
    team.clock.turn(hours=1)
    team.decisions.append(Filed(qa_id=pairs[1].qa_id, topic=TopicName("old"), at=team.clock.now()))
    await reopened(team)
    with fail_after(5):
        await again(team)

    assert held(team.topics_dir) == {"gpu": ["0", "2", "3"]}
    assert isinstance(team.decisions.of(pairs[1].qa_id), Parked)


async def test_what_was_forgotten_while_it_lay_still_counts_as_removed(team: Team) -> None:
    """Whoever forgets clears the unfinished library, too."""
    team.model.always(CLASSIFY, by_first_word)
    team.model.next(INTEGRATE, KEEP)
    team.model.next(INTEGRATE, ModelUnavailableError("down"))
    with fail_after(5), pytest.raises(ModelUnavailableError):
        await again(team)
    first = next(iter(team.archive.after(None)))
    team.decisions.append(Forgotten(message_ids=first.message_ids, at=team.clock.now()))
    TopicLibrary(team.topics_dir.with_name("topics.next")).update(TopicName("gpu"), None, [first.qa_id])
    await reopened(team)
    with fail_after(5):
        await again(team)

    assert held(team.topics_dir) == {"gpu": ["1", "2", "3"]}
    assert isinstance(team.decisions.of(first.qa_id), Removed)
