from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import Event, fail_after, wait_all_tasks_blocked
from hypothesis import Phase, given, settings, strategies as st

from intern.core.decisions import MessagesWithdrawn, PairParked
from intern.core.errors import ModelReplyError
from intern.learning.prompts import (
    CLASSIFY,
    INTEGRATE,
    SPLIT_TOPIC,
    ClassifyIn,
    ClassifyOut,
    IntegrateIn,
    IntegrateOut,
    LearningOptions,
    SplitIn,
    SplitOut,
)
from intern.learning.regeneration_journal import EPOCH
from tests.examples import examples
from tests.learning.anew import KEEP, Opinionated, again, by_first_word, outcome
from tests.worlds.actors import finishing
from tests.worlds.team import Team, held


@pytest.fixture
def team(team: Team) -> Team:
    team.model.always(CLASSIFY, by_first_word)
    team.model.always(INTEGRATE, KEEP)
    return team


# The result does not depend on which call is faster.


async def taught(team: Team, seed: int) -> None:
    """Archive two epochs and a bit: single exchanges, threads that grew, answers archived out of order."""
    for n in range(EPOCH * 2 + 8):
        words = f"about {seed * 7 % 5} {n * 13 % 29}"
        pair = team.archived(f"How {words}?", f"So {n}.", after=(n * 31 + seed) % 100)
        if n % 6 == 0:
            team.archived(f"How {words}?", f"So {n} or so.", conversation=pair.conversation_id, messages=3, after=n)
        if n % 20 == 7:
            gone = MessagesWithdrawn(message_ids=pair.message_ids[:1], at=team.clock.now())
            await team.decided(gone)


@pytest.mark.rest
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(deadline=None, max_examples=examples(8), phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 10_000), paces=st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_topics_decisions_and_calls_are_the_same_at_any_concurrency(
    tmp_path_factory: pytest.TempPathFactory, backend: str, seed: int, paces: tuple[int, int]
) -> None:
    found: list[Any] = []
    for concurrency, pace in zip((1, 8), paces, strict=True):
        model = Opinionated(pace, seed=seed)
        result = anyio.run(_regenerated, tmp_path_factory.mktemp("team"), seed, model, concurrency, backend=backend)
        found.append((result, Counter(model.calls)))

    assert found[0] == found[1]


async def _regenerated(folder: Path, seed: int, model: Opinionated, concurrency: int) -> object:
    async with Team.at(folder) as team:
        await taught(team, seed)
        with fail_after(60):
            result = await again(
                team, model=model, concurrency=concurrency, options=LearningOptions(max_topic_chars=3000)
            )
        assert result.topics > 1  # or lanes could not show their order
        return outcome(team)


# The input of the classifier.


@pytest.mark.rest
async def test_an_epoch_is_classified_against_the_index_of_its_start(team: Team) -> None:
    for n in range(EPOCH + 2):
        team.archived("gpu", str(n), after=n)
    await again(team)

    indices = [asked.index for asked in team.model.calls(CLASSIFY)]
    assert indices == [""] * EPOCH + [f"team:gpu.txt\n{EPOCH} blocks"] * 2


async def test_a_pair_that_would_open_a_topic_is_asked_about_again_once_another_has_opened_one(team: Team) -> None:
    for n, question in enumerate(["gpu", "graphics", "gpu", "disk"]):
        team.archived(question, str(n), after=n)

    def joins_what_is_there(given: ClassifyIn) -> ClassifyOut:
        chosen = by_first_word(given)
        about_it = chosen.topic_name == "graphics" and "team:gpu.txt" in given.index
        return ClassifyOut(skip=False, topic_name="gpu") if about_it else chosen

    team.model.always(CLASSIFY, joins_what_is_there)
    await again(team)

    assert held(team.knowledge) == {"gpu": ["0", "1", "2"], "disk": ["3"]}
    # The first opens a topic and the third joins it by name; the other two are classified again.
    asked = [(given.pair.split("User: ")[1].split()[0], given.index) for given in team.model.calls(CLASSIFY)]
    assert asked[:4] == [("gpu", ""), ("graphics", ""), ("gpu", ""), ("disk", "")]
    assert asked[4:] == [("graphics", "team:gpu.txt\n1 blocks"), ("disk", "team:gpu.txt\n3 blocks")]


async def test_a_pair_that_fails_when_it_is_asked_about_again_is_parked(team: Team) -> None:
    team.archived("gpu", "1")
    disk = team.archived("disk", "2", after=1)
    team.archived("gpu", "3", after=2)
    team.model.always(CLASSIFY, lambda given: ModelReplyError("junk") if given.index else by_first_word(given))
    await again(team)

    assert held(team.knowledge) == {"gpu": ["1", "3"]}
    assert isinstance(team.knowledge.last_decision(disk.qa_id), PairParked)


async def test_no_call_is_made_twice_where_no_topic_is_new(team: Team) -> None:
    for n in range(5):
        team.archived("gpu", str(n), after=n)
    await again(team, concurrency=8)
    assert (len(team.model.calls(CLASSIFY)), len(team.model.calls(INTEGRATE))) == (5, 4)


# Side by side.


async def test_topics_are_integrated_side_by_side_and_the_pairs_of_one_in_order(team: Team) -> None:
    for n in range(4):
        for topic in ("gpu", "disk", "fan"):
            team.archived(topic, f"{topic} {n}", after=n)
    at_work: list[str] = []
    both, gate = Event(), Event()

    async def slow(given: IntegrateIn) -> IntegrateOut:
        at_work.append(given.topic)
        if len(at_work) == 2:
            both.set()
        await gate.wait()
        return KEEP

    team.model.always(INTEGRATE, slow)
    async with finishing(lambda: again(team, concurrency=2)):
        await both.wait()
        await wait_all_tasks_blocked()
        assert len(set(at_work)) == len(at_work) == 2
        gate.set()
    assert held(team.knowledge) == {topic: [f"{topic} {n}" for n in range(4)] for topic in ("gpu", "disk", "fan")}


async def test_a_topic_that_grew_too_long_is_split_at_the_end_of_an_epoch_until_all_are_short(team: Team) -> None:
    for n in range(12):
        team.archived("gpu", f"{n} " + "word " * 40, after=n)

    def all_but_three(given: SplitIn) -> SplitOut:
        ids = [line.split()[0] for line in given.questions.splitlines()]
        return SplitOut(topic_name="gpu-drivers", move_ids=tuple(ids[3:]))

    team.model.always(SPLIT_TOPIC, all_but_three)
    result = await again(team, concurrency=8, options=LearningOptions(max_topic_chars=1500))

    library = {name: [text.split()[0] for text in texts] for name, texts in held(team.knowledge).items()}
    assert library == {
        "gpu": ["0", "1", "2"],
        "gpu-drivers": ["3", "4", "5"],
        "gpu-drivers-2": ["6", "7", "8"],
        "gpu-drivers-3": ["9", "10", "11"],
    }
    assert (result.tally.filed, result.tally.moved) == (3, 9)
