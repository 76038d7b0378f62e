from __future__ import annotations

from typing import Any

import pytest

from intern.core.decisions import PairRejected
from intern.core.errors import ModelUnavailableError
from intern.learning.prompts import CLASSIFY, INTEGRATE
from intern.learning.regenerating import read_progress
from intern.models.prompt import Prompt
from intern.service.regeneration_estimate import RegenerationEstimate, estimate_from_archive
from tests.learning.anew import KEEP, again, by_first_word
from tests.worlds.team import Team


@pytest.fixture
def team(team: Team) -> Team:
    team.model.always(CLASSIFY, by_first_word)
    team.model.always(INTEGRATE, KEEP)
    return team


def hundred(_prompt: Prompt[Any, Any], _given: Any) -> int:
    return 100


def estimated(team: Team) -> RegenerationEstimate:
    return estimate_from_archive(team.archive, team.knowledge, tokens_of=hundred, options=team.options, basis="")


def taught(team: Team, *topics: str) -> None:
    for n, topic in enumerate(topics):
        team.archived(topic, str(n), after=n)


@pytest.mark.rest
async def test_it_knows_what_the_library_of_today_took(team: Team) -> None:
    taught(team, *(["gpu", "disk", "fan"] * 7))
    team.archived("gpu", "and more", conversation="thread_1")
    team.archived("gpu", "and more still", conversation="thread_1", messages=3)
    rejected = team.archived("gpu", "no")
    await team.decided(PairRejected(qa_id=rejected.qa_id, at=team.clock.now()))
    await again(team)
    before = len(team.model.asked)
    found = estimated(team)
    await again(team)

    asked = len(team.model.asked) - before
    assert (found.pairs, found.conversations, found.decided) == (24, 22, 0)
    assert asked <= found.calls <= asked + 1
    assert found.tokens == found.calls * 140


async def test_without_a_library_it_guesses(team: Team) -> None:
    taught(team, *(["gpu", "disk", "fan"] * 4))
    found = estimated(team)
    await again(team)
    assert abs(found.calls - len(team.model.asked)) <= 2


async def test_what_was_done_before_a_stop_costs_nothing_more(team: Team) -> None:
    taught(team, *(["gpu"] * 10))
    team.model.next(INTEGRATE, *([KEEP] * 4))
    team.model.always(INTEGRATE, ModelUnavailableError("down"))
    with pytest.raises(ModelUnavailableError):
        await again(team)
    found = estimated(team)

    assert (found.conversations, found.decided, found.calls) == (10, 5, 5)
    progress = read_progress(team.knowledge)
    assert progress is not None
    assert progress.decided == 0  # the estimate goes on from there, and changes nothing


async def test_nothing_costs_nothing_and_begins_nothing(team: Team) -> None:
    assert estimated(team) == RegenerationEstimate(pairs=0, conversations=0, decided=0, calls=0, tokens=0)
    assert team.knowledge.read_journal() == []
