"""A killed regeneration continues where it was, repeats no model call, and has the same result."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from intern.core.decisions import MessagesForgotten, MessagesWithdrawn, PairFiled, PairParked, PairRemoved
from intern.core.errors import ModelReplyError, ModelUnavailableError
from intern.core.ids import TopicName
from intern.learning.prompts import CLASSIFY, INTEGRATE, LearningOptions, build_block
from intern.learning.regenerating import read_progress
from intern.learning.withdrawing import remove_messages
from intern.stores.tables.knowledge import KnowledgeDraft
from tests.learning.anew import KEEP, Opinionated, again, by_first_word, outcome, until_killed
from tests.worlds.samples import pair
from tests.worlds.team import Team, held

SMALL = LearningOptions(max_topic_chars=700)
"""A small bound, so that topics are split, too."""


async def taught(team: Team) -> None:
    """Archive six conversations. Older topics exist, and one conversation grew."""
    await team.placed("old", team.archived("gpu one", "1 " + "word " * 20))
    pairs = [team.archived(f"gpu {n}", f"{n} " + "word " * 20, after=n) for n in range(2, 7)]
    team.archived("gpu 6", "6 and more " + "word " * 20, conversation=pairs[-1].conversation_id, messages=3, after=7)


class Undisturbed:
    """The result without a kill."""

    calls: Counter[str]
    result: tuple[dict[str, str], list[object]]


async def undisturbed(folder: Path, seed: int, concurrency: int) -> Undisturbed:
    model, found = Opinionated(0, seed=seed), Undisturbed()
    async with Team.at(folder) as team:
        await taught(team)
        await again(team, model=model, options=SMALL, concurrency=concurrency)
        found.calls, found.result = Counter(model.calls), outcome(team)
    assert any(call.startswith("split_topic") for call in found.calls)
    return found


SEED = 0


@pytest.mark.rest
@pytest.mark.parametrize(("anyio_backend", "concurrency"), [("asyncio", 1), ("trio", 3)])
async def test_killed_at_any_step_it_comes_to_the_same_end_and_asks_nothing_twice(
    tmp_path: Path, concurrency: int
) -> None:
    with fail_after(100):
        expected = await undisturbed(tmp_path / "undisturbed", SEED, concurrency)
        done, steps = None, 0
        for steps in count():
            async with Team.at(tmp_path / str(steps)) as team:
                await taught(team)
                team.open(steps)
                model = Opinionated(0, seed=SEED)
                common: dict[str, Any] = {"model": model, "options": SMALL, "concurrency": concurrency}
                done = await until_killed(team, **common)
                team.open()
                if done is None and "old" in held(team.knowledge):
                    assert list(held(team.knowledge)) == ["old"]
                    await again(team, **common)
                # Else the new library had taken its place.
                assert outcome(team) == expected.result
                asked = Counter(model.calls)
                assert asked.keys() == expected.calls.keys()
                # Calls in flight when the process died are repeated: one for each pair in work.
                twice = asked - expected.calls
                assert sum(twice.values()) <= concurrency, twice
            if done is not None:
                break
        assert steps > 60


async def test_killed_again_and_again_it_comes_to_its_end(tmp_path: Path) -> None:
    expected = await undisturbed(tmp_path / "undisturbed", SEED, 2)
    async with Team.at(tmp_path / "killed") as team:
        await taught(team)
        model = Opinionated(0, seed=SEED)
        for steps in count(2):  # enough to write one line more than the one before
            team.open(steps)
            if await until_killed(team, model=model, options=SMALL, concurrency=2) is not None:
                break
        assert outcome(team) == expected.result


@pytest.fixture
def team(team: Team) -> Team:
    """Make a team with a model that answers three calls, and then is away."""
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
    progress = read_progress(team.knowledge)
    assert progress is not None
    assert (progress.classified, progress.decided, progress.total) == (3, 0, 4)
    assert held(team.knowledge) == {}
    team.open()
    await again(team)

    assert len(team.model.calls(CLASSIFY)) == 1
    assert held(team.knowledge) == {"gpu": ["0", "1", "2", "3"]}
    assert read_progress(team.knowledge) is None


@pytest.mark.parametrize("changed", ["options", "basis", "archive"])
async def test_it_begins_anew_where_what_decides_the_result_has_changed(team: Team, changed: str) -> None:
    await stopped(team)
    options: dict[str, Any] = {}
    if changed == "options":
        options = {"options": LearningOptions(max_pair_chars=500)}
    elif changed == "basis":
        options = {"basis": "another prompt"}
    else:
        [week] = team.raw.iterdir()
        week.write_bytes(week.read_bytes().replace(b"Team: 2", b"Team: two"))
    stale = build_block(pair("stale", "stale"))
    await KnowledgeDraft(team.knowledge).change(lambda draft: draft.file_blocks(TopicName("stale"), stale))
    team.open()
    await again(team, **options)

    assert len(team.model.calls(CLASSIFY)) == 4
    assert team.knowledge.topic_names() == ("gpu",)


async def test_what_happened_while_it_lay_still_is_taken_in(team: Team) -> None:
    await stopped(team)
    first = next(iter(team.archive.pairs_after(None)))
    team.archived("disk", "later", after=9)
    team.clock.turn(hours=1)
    await team.decided(MessagesWithdrawn(message_ids=first.message_ids, at=team.clock.now()))
    team.open()
    result = await again(team)

    assert held(team.knowledge) == {"gpu": ["1", "2", "3"], "disk": ["later"]}
    assert isinstance(team.knowledge.last_decision(first.qa_id), PairRemoved)
    assert result.pairs == 5


async def test_decisions_about_the_old_library_meanwhile_do_not_hide_what_the_new_one_lacks(team: Team) -> None:
    """The bot continued with the old library, and filed pairs there that the new one had parked or skipped."""
    pairs = list(team.archive.pairs_after(None))
    team.model.next(INTEGRATE, ModelReplyError("junk"))
    team.model.always(CLASSIFY, by_first_word)

    team.model.next(INTEGRATE, ModelUnavailableError("down"))
    with pytest.raises(ModelUnavailableError):
        await again(team)
    team.clock.turn(hours=1)
    await team.decided(PairFiled(qa_id=pairs[1].qa_id, topic=TopicName("old"), at=team.clock.now()))
    team.open()
    await again(team)

    assert held(team.knowledge) == {"gpu": ["0", "2", "3"]}
    assert isinstance(team.knowledge.last_decision(pairs[1].qa_id), PairParked)


async def test_what_was_forgotten_while_it_lay_still_counts_as_removed(team: Team) -> None:
    """A request to forget clears the unfinished library, too."""
    team.model.always(CLASSIFY, by_first_word)
    team.model.next(INTEGRATE, KEEP)
    team.model.next(INTEGRATE, ModelUnavailableError("down"))
    with pytest.raises(ModelUnavailableError):
        await again(team)
    first = next(iter(team.archive.pairs_after(None)))
    forgotten = MessagesForgotten(message_ids=first.message_ids, at=team.clock.now())
    await team.knowledge.change(partial(remove_messages, team.knowledge, team.archive, forgotten, first.message_ids))
    team.open()
    assert KnowledgeDraft(team.knowledge).find_topic(first.qa_id) is None
    await again(team)

    assert held(team.knowledge) == {"gpu": ["1", "2", "3"]}
    assert isinstance(team.knowledge.last_decision(first.qa_id), PairRemoved)
