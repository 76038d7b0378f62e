"""Blocks that newer answers removed can still be seen, as far as that is allowed."""

from __future__ import annotations

from intern.core.captures import CapturedPair
from intern.core.decisions import PairFiled, PairMoved
from intern.core.flow import FilingDecision, TopicChoice
from intern.core.ids import TopicName
from intern.learning.prompts import INTEGRATE, IntegrateOut
from intern.service.topics import find_removed_pairs
from tests.worlds.team import Team

NODES = TopicName("nodes")


async def replacing(team: Team, *old: CapturedPair) -> CapturedPair:
    """File a new pair that makes these obsolete."""
    pair = team.archived("New?", "Like that.", after=1)
    team.model.next(INTEGRATE, IntegrateOut(skip=False, remove_ids=tuple(each.qa_id for each in old)))
    await team.filer.file(FilingDecision(pair=pair, choice=TopicChoice(name=NODES)))
    return pair


async def test_removed_blocks_are_told_with_their_text_and_what_took_their_place(team: Team) -> None:
    old = [team.archived(f"Old {n}?", "So.", after=-n) for n in range(3)]
    for pair in old:
        await team.placed("nodes", pair)
    first = await replacing(team, old[0])
    second = await replacing(team, old[1])
    removed = find_removed_pairs(NODES, team.knowledge, team.archive)
    assert [(each.qa_id, each.by) for each in removed] == [(old[0].qa_id, first.qa_id), (old[1].qa_id, second.qa_id)]
    assert [each.turns for each in removed] == [old[0].turns, old[1].turns]
    assert find_removed_pairs(TopicName("other"), team.knowledge, team.archive) == ()


async def test_what_stands_again_is_not_told_as_removed(team: Team) -> None:
    old = await team.placed("nodes", team.archived("Old?", "So.", after=-1))
    again = team.archived("Again?", "So.")
    await replacing(team, team.archive.get(old.qa_id) or again)
    await team.decided(PairFiled(qa_id=old.qa_id, topic=NODES, at=team.clock.now()))
    assert find_removed_pairs(NODES, team.knowledge, team.archive) == ()


async def test_a_removal_stays_visible_where_the_pair_that_caused_it_moves_on(team: Team) -> None:
    old = team.archived("Old?", "So.", after=-1)
    await team.placed("nodes", old)
    pair = await replacing(team, old)
    await team.decided(PairMoved(qa_id=pair.qa_id, topic=TopicName("gpu"), at=team.clock.now()))
    assert [each.qa_id for each in find_removed_pairs(NODES, team.knowledge, team.archive)] == [old.qa_id]


async def test_what_was_withdrawn_is_shown_to_nobody(team: Team) -> None:
    old = team.archived("Old?", "So.", after=-1)
    await team.placed("nodes", old)
    await replacing(team, old)
    await team.withdraw(old.message_ids[:1])
    [removed] = find_removed_pairs(NODES, team.knowledge, team.archive)
    assert (removed.qa_id, removed.turns) == (old.qa_id, ())
