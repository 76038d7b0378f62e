"""With `kb.review`, nothing is learned from a capture before a team member has approved it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from intern.core.captures import CapturedPair, Turn
from intern.core.decisions import (
    PairApproved,
    PairDecision,
    PairFiled,
    PairRejected,
    PairRemoved,
    PairReplaced,
    PairReviewRequested,
)
from intern.core.errors import ConfigError
from intern.core.flow import FilingDecision, SkipChoice, TopicChoice
from intern.core.ids import MessageId, QAId, TopicName
from intern.learning.filing import DecisionCounts, file_pairs
from intern.learning.prompts import LearningOptions
from intern.learning.review import Review, find_waiting_pairs, make_review_decisions
from tests.worlds.actors import Attempts
from tests.worlds.team import Team, capture

NODES = TopicName("nodes")


@pytest.fixture
def team(team: Team) -> Team:
    team.options = LearningOptions(review=True)
    team.open()
    return team


async def nobody(pair: CapturedPair) -> TopicChoice | SkipChoice:
    raise AssertionError(f"nobody should be asked about {pair.qa_id}")


async def nodes(pair: CapturedPair) -> TopicChoice | SkipChoice:
    return TopicChoice(name=NODES)


async def said(team: Team, action: str, *pairs: CapturedPair | str, by: str = "77") -> tuple[PairDecision, ...]:
    """Log a review, and return its decisions."""
    ids = tuple(QAId(pair) if isinstance(pair, str) else pair.qa_id for pair in pairs)
    review = Review(action="approve" if action == "approve" else "reject", qa_ids=ids, by=by)
    taken = make_review_decisions(review, team.knowledge, team.archive, team.clock.now())
    await team.decided(*taken)
    return taken


def fuller(team: Team, pair: CapturedPair, *, more: str = "And so.") -> CapturedPair:
    """Archive a fuller capture of the conversation."""
    told = capture("", "", conversation=pair.conversation_id)
    return team.archive.append(
        replace(
            told,
            turns=(*pair.turns, Turn("Team", more)),
            message_ids=(*pair.message_ids, MessageId(f"{pair.conversation_id}{len(pair.message_ids)}")),
            replaces=pair.qa_id,
        )
    )


async def filed(team: Team, pair: CapturedPair) -> PairDecision:
    return await team.filer.file(FilingDecision(pair=pair, choice=await team.filer.choose_topic(pair, nodes)))


async def test_a_new_capture_waits_and_no_model_is_asked(team: Team) -> None:
    pairs = [team.archived(f"Question {n}?") for n in range(2)]
    tally = await file_pairs(team.archive.pairs_after(None), filer=team.filer, choose=nobody, attempts=Attempts())
    assert tally == DecisionCounts(awaiting_review=2)
    assert (team.model.asked, team.knowledge.topic_names()) == ([], ())
    assert [each.qa_id for each in team.knowledge.list_awaiting_review()] == [pair.qa_id for pair in pairs]
    assert team.knowledge.cursor() == pairs[-1].qa_id


async def test_what_waits_goes_on_waiting_whoever_asks_for_it(team: Team) -> None:
    pair = team.archived()
    first = await filed(team, pair)
    team.open()
    assert await team.filer.file(FilingDecision(pair=pair, choice=TopicChoice(name=NODES))) == first
    assert list(team.knowledge.read_decisions()) == [PairReviewRequested(qa_id=pair.qa_id, at=team.clock.now())]


async def test_what_was_approved_is_filed_like_a_new_one(team: Team) -> None:
    pair = team.archived()
    await filed(team, pair)
    assert await said(team, "approve", pair) == (PairApproved(qa_id=pair.qa_id, by="77", at=team.clock.now()),)
    assert [each.qa_id for each in team.knowledge.list_due()] == [pair.qa_id]
    tally = await file_pairs(iter([pair]), filer=team.filer, choose=nodes, attempts=Attempts())
    assert tally == DecisionCounts(filed=1)
    assert team.knowledge.find_topic(pair.qa_id) == NODES
    assert list(team.knowledge.list_due()) == []


async def test_what_was_rejected_is_never_filed(team: Team) -> None:
    pair = team.archived()
    await filed(team, pair)
    await said(team, "reject", pair)
    team.open()
    decision = await team.filer.file(FilingDecision(pair=pair, choice=TopicChoice(name=NODES)))
    assert isinstance(decision, PairRejected)
    assert team.knowledge.topic_names() == ()


async def test_until_a_fuller_capture_is_approved_the_older_block_stands_and_it_does_if_it_is_rejected(
    team: Team,
) -> None:
    first = team.archived("How?", "So.", conversation="thread_1")
    second = fuller(team, first)
    await filed(team, first)
    await said(team, "approve", first)
    await filed(team, first)
    assert isinstance(await filed(team, second), PairReviewRequested)
    assert [block.qa_id for block in team.knowledge.read_topic(NODES)] == [first.qa_id]
    await said(team, "reject", second)
    assert isinstance(await filed(team, second), PairRejected)
    assert [block.qa_id for block in team.knowledge.read_topic(NODES)] == [first.qa_id]
    third = fuller(team, second, more="No: so.")
    await filed(team, third)
    await said(team, "approve", third)
    await filed(team, third)
    assert [block.qa_id for block in team.knowledge.read_topic(NODES)] == [third.qa_id]
    assert isinstance(team.knowledge.last_decision(first.qa_id), PairReplaced)
    assert isinstance(team.knowledge.last_decision(second.qa_id), PairRejected)


async def test_older_versions_need_not_wait_once_a_fuller_one_is_approved(team: Team) -> None:
    first = team.archived("How?", "So.", conversation="thread_1")
    second = fuller(team, first)
    third = fuller(team, second)
    other = team.archived("Other?", "So.")
    for pair in (first, second, third, other):
        await filed(team, pair)
    at = team.clock.now()
    assert set(await said(team, "approve", third)) == {
        PairApproved(qa_id=third.qa_id, by="77", at=at),
        PairReplaced(qa_id=second.qa_id, by=third.qa_id, at=at),
        PairReplaced(qa_id=first.qa_id, by=third.qa_id, at=at),
    }
    assert [each.qa_id for each in team.knowledge.list_awaiting_review()] == [other.qa_id]


async def test_what_waits_is_found_by_any_of_its_messages_newest_first(team: Team) -> None:
    first = team.archived("How?", "So.", conversation="thread_1")
    second = fuller(team, first)
    third = fuller(team, second)
    other = team.archived("Other?", "So.")

    def found(message_id: str) -> list[QAId]:
        return [pair.qa_id for pair in find_waiting_pairs(MessageId(message_id), team.knowledge, team.archive)]

    assert found(first.message_ids[0]) == []  # the classifier has not seen it yet
    for pair in (first, second, third, other):
        await filed(team, pair)
    ids = [pair.qa_id for pair in (third, second, first)]
    assert [found(message_id) for message_id in third.message_ids] == [ids, ids, ids[:2], ids[:1]]
    assert found(other.message_ids[0]) == [other.qa_id]
    assert found("4711") == []
    await said(team, "reject", third)
    # No other version has the rejected message.
    assert [found(message_id) for message_id in third.message_ids] == [ids[1:], ids[1:], ids[1:2], []]


async def test_a_capture_whose_question_was_deleted_waits_for_nobody(team: Team) -> None:
    pair = team.archived()
    await team.withdraw(pair.message_ids)
    assert isinstance(await filed(team, pair), PairRemoved)


async def test_what_was_filed_before_review_was_wanted_stays(team: Team) -> None:
    pair = team.archived()
    team.filer.options = LearningOptions()
    await filed(team, pair)
    team.open()
    assert isinstance(await filed(team, pair), PairFiled)


async def test_saying_the_same_twice_is_harmless_and_the_opposite_is_an_error(team: Team) -> None:
    first, second = team.archived("One?"), team.archived("Two?")
    for pair in (first, second):
        await filed(team, pair)
    await said(team, "approve", first)
    await said(team, "reject", second)
    await filed(team, first)  # it is not due any more
    assert await said(team, "approve", first, first, by="78") == await said(team, "reject", second) == ()
    with pytest.raises(ConfigError, match=f"{first.qa_id} does not wait for review: it has been approved already"):
        await said(team, "reject", first)
    with pytest.raises(ConfigError, match="been rejected already"):
        await said(team, "approve", second)


@pytest.mark.parametrize("action", ["approve", "reject"])
async def test_an_id_that_is_unknown_or_waits_for_nobody_is_an_error_and_nothing_is_written(
    team: Team, action: str
) -> None:
    pair, undecided = team.archived("One?"), team.archived("Two?")
    team.filer.options = LearningOptions()
    await filed(team, pair)
    team.open()
    waiting = team.archived("Three?")
    await filed(team, waiting)
    before = list(team.knowledge.read_decisions())
    for wrong, why in (
        (pair, "been filed already"),
        (undecided, "not been looked at yet"),
        ("qa_20200101_000000", "holds no pair"),
        ("nonsense", "holds no pair 'nonsense'"),
    ):
        with pytest.raises(ConfigError, match=why):
            await said(team, action, waiting, wrong)
    assert team.knowledge.read_decisions() == before
