from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
from structlog.testing import capture_logs

from intern.core.captures import CapturedPair
from intern.core.decisions import PairApproved, PairFiled, PairParked, PairRejected, PairReplaced, PairReviewRequested
from intern.core.errors import (
    KnowledgeError,
    ModelAccessError,
    ModelBudgetError,
    ModelBudgetTooSmallError,
    ModelError,
    ModelRefusedError,
    ModelReplyError,
    ModelUnavailableError,
)
from intern.core.ids import QAId
from intern.core.messages import Image
from intern.learning.prompts import CLASSIFY, INTEGRATE, ClassifyIn, ClassifyOut, IntegrateIn, IntegrateOut
from intern.learning.regenerating import RegenerationProgress
from intern.models.prompt import InT, OutT, Prompt
from intern.models.usage import UsageCounter
from intern.stores.tables.knowledge import KnowledgeDraft
from tests.learning.anew import KEEP, again, by_first_word
from tests.worlds.model import ScriptedModel
from tests.worlds.samples import pair
from tests.worlds.team import Team, held


@pytest.fixture
def team(team: Team) -> Team:
    team.model.always(CLASSIFY, by_first_word)
    team.model.always(INTEGRATE, KEEP)
    return team


async def test_every_conversation_is_filed_once_by_its_most_complete_capture_oldest_answer_first(team: Team) -> None:
    late = team.archived("gpu late", "2", after=5)
    team.archived("gpu early", "1", after=1)
    first = team.archived("disk a", "3", conversation="thread_1", messages=2)
    fullest = team.archived("disk a", "3 and 4", conversation="thread_1", messages=4)
    same_size = team.archived("disk a", "3 and 5", conversation="thread_1", messages=4)
    told: list[tuple[int, int, int]] = []

    def tell(so_far: RegenerationProgress) -> None:
        told.append((so_far.classified, so_far.decided, so_far.total))

    result = await again(team, progress=tell)

    assert held(team.knowledge) == {"gpu": ["1", "2"], "disk": ["3 and 5"]}
    assert (result.pairs, result.topics, result.parked) == (5, 2, ())
    assert (result.tally.filed, result.tally.replaced) == (3, 2)
    assert [type(team.knowledge.last_decision(pair.qa_id)) for pair in (first, fullest, same_size)] == [
        PairReplaced,
        PairReplaced,
        PairFiled,
    ]
    assert team.knowledge.cursor() == same_size.qa_id
    assert told == [(1, 0, 3), (2, 0, 3), (3, 0, 3), (3, 1, 3), (3, 2, 3), (3, 3, 3)]
    assert isinstance(team.knowledge.last_decision(late.qa_id), PairFiled)


async def test_nobody_reads_the_new_topics_before_all_of_them_take_the_place_of_the_old(team: Team) -> None:
    await team.placed("old", team.archived("gpu", "1"))
    team.archived("gpu", "2", after=1)
    seen: list[object] = []

    def look(given: IntegrateIn) -> IntegrateOut:
        assert "gpu" in given.blocks  # the draft has the first
        seen.append((held(team.knowledge), team.knowledge.read_decisions()))
        return KEEP

    team.model.always(INTEGRATE, look)
    await again(team)
    assert seen == [({"old": ["1"]}, [])]
    assert held(team.knowledge) == {"gpu": ["1", "2"]}
    draft = KnowledgeDraft(team.knowledge)
    assert (draft.topic_names(), draft.read_decisions(), team.knowledge.read_journal()) == ((), [], [])
    # The next one begins from scratch.
    await again(team)
    assert held(team.knowledge) == {"gpu": ["1", "2"]}


async def test_followers_hear_of_the_topics_that_are_gone_and_of_the_new_ones(team: Team) -> None:
    await team.placed("old", team.archived("gpu", "1"))
    before = max(each.position for each in await team.changed())
    await again(team)
    assert {each.name for each in await team.changed(after=before)} == {"old", "gpu"}


async def test_a_pair_that_fails_is_parked_and_reported_and_the_others_go_on(team: Team) -> None:
    team.archived("gpu", "1")
    bad = team.archived("bad", "2", after=1)
    team.archived("disk", "3", after=2)

    def fails(given: ClassifyIn) -> ClassifyOut | Exception:
        return ModelReplyError("junk") if "bad" in given.pair else by_first_word(given)

    team.model.always(CLASSIFY, fails)
    result = await again(team)

    assert result.parked == (bad.qa_id,)
    assert isinstance(team.knowledge.last_decision(bad.qa_id), PairParked)
    assert held(team.knowledge) == {"gpu": ["1"], "disk": ["3"]}


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"--- QA ---\n"])
async def test_a_malformed_entry_of_the_archive_costs_itself_and_the_log_names_its_place(
    team: Team, damage: bytes
) -> None:
    team.archived("gpu", "1")
    team.archived("bad", "2", after=1)
    team.archived("disk", "3", after=2)
    (week,) = team.raw.iterdir()
    week.write_bytes(week.read_bytes().replace(b"User: bad", damage))

    with capture_logs() as logs:
        team.open()
        result = await again(team)

    assert held(team.knowledge) == {"gpu": ["1"], "disk": ["3"]}
    assert (result.pairs, result.parked) == (2, ())
    assert {log["file"] for log in logs if log["event"] == "archive_block_damaged"} == {week.name}


async def test_a_model_that_is_down_leaves_the_old_library_and_its_decisions_alone(team: Team) -> None:
    for n in range(9):
        await team.placed("old", team.archived(f"gpu {n}", str(n), after=n))
    team.model.always(CLASSIFY, ModelUnavailableError("down"))
    with pytest.raises(ModelUnavailableError):
        await again(team)

    assert len(team.model.calls(CLASSIFY)) == 1
    assert list(held(team.knowledge)) == ["old"]
    assert team.knowledge.read_decisions() == []


async def test_what_is_captured_meanwhile_is_filed_too(team: Team) -> None:
    team.archived("gpu", "1", conversation="thread_1")
    arrived: list[CapturedPair] = []

    def captures(given: ClassifyIn) -> ClassifyOut:
        if not arrived:
            arrived.append(team.archived("gpu", "1 and 2", conversation="thread_1", messages=3, after=1))
            arrived.append(team.archived("disk", "3", after=2))
        return by_first_word(given)

    team.model.always(CLASSIFY, captures)
    result = await again(team)

    assert result.pairs == 3
    assert held(team.knowledge) == {"gpu": ["1 and 2"], "disk": ["3"]}


async def test_an_empty_archive_gives_an_empty_library(team: Team) -> None:
    result = await again(team)

    assert (result.pairs, result.topics) == (0, 0)
    assert held(team.knowledge) == {}


async def test_an_empty_archive_does_not_empty_a_library_that_stands(team: Team) -> None:
    await team.placed("old", pair("gpu", "1"))
    with pytest.raises(KnowledgeError, match=r"archive holds no pairs.*Put the archive back"):
        await again(team)

    assert held(team.knowledge) == {"old": ["1"]}


@pytest.mark.rest
@pytest.mark.parametrize("prompt", [CLASSIFY, INTEGRATE])
@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (ModelAccessError("401: check llm.api_key"), ModelAccessError),
        (ModelBudgetError("spent"), ModelBudgetError),
        (ModelBudgetTooSmallError("raise it"), ModelBudgetError),
    ],
)
async def test_a_model_that_lets_nobody_in_ends_it_and_the_old_library_stands(
    team: Team, prompt: Prompt[Any, Any], error: ModelError, ends: type[ModelError]
) -> None:
    await team.placed("old", team.archived("gpu one", "1"))
    await team.placed("old", team.archived("gpu two", "2", after=1))
    team.model.always(prompt, error)
    with pytest.raises(ends, match=f"{error}; . of 2 conversations are done and kept"):
        await again(team)

    assert len(team.model.calls(prompt)) == 1
    assert held(team.knowledge) == {"old": ["1", "2"]}
    assert team.knowledge.read_decisions() == []


@pytest.mark.parametrize("error", [ModelReplyError("junk"), ModelRefusedError("junk")])
async def test_where_every_pair_fails_the_old_library_stands_and_the_next_begins_anew(
    team: Team, error: ModelError
) -> None:
    await team.placed("old", team.archived("gpu", "1"))
    team.model.always(CLASSIFY, error)
    with pytest.raises(KnowledgeError, match=r"1 of 1 conversations failed, the last one so: the model"):
        await again(team)

    assert held(team.knowledge) == {"old": ["1"]}
    assert team.knowledge.read_decisions() == []
    team.model.always(CLASSIFY, by_first_word)
    await again(team)
    assert held(team.knowledge) == {"gpu": ["1"]}


async def test_a_model_that_refuses_all_is_noticed_after_one_epoch(team: Team) -> None:
    for n in range(70):
        await team.placed("old", team.archived(f"gpu {n}", str(n), after=n))
    team.model.always(CLASSIFY, ModelRefusedError("unknown response format"))
    with pytest.raises(KnowledgeError, match=r"32 of 32 .*the model refused classify"):
        await again(team)

    assert len(team.model.calls(CLASSIFY)) == 32
    assert len(held(team.knowledge)["old"]) == 70


@pytest.mark.parametrize(("bad", "stays"), [(2, False), (3, True)])
async def test_up_to_half_may_fail(team: Team, bad: int, *, stays: bool) -> None:
    await team.placed("old", team.archived("good 0", "0"))
    for n in range(1, 4):
        team.archived("bad" if n <= bad else "good", str(n), after=n)
    team.model.always(CLASSIFY, lambda given: ModelReplyError("junk") if "bad" in given.pair else by_first_word(given))
    with pytest.raises(KnowledgeError, match="3 of 4") if stays else nullcontext():
        assert len((await again(team)).parked) == bad
    assert ("old" in held(team.knowledge)) == stays


async def test_a_model_that_skips_everything_does_not_empty_a_library(team: Team) -> None:
    await team.placed("old", team.archived("gpu", "1"))
    team.model.always(CLASSIFY, ClassifyOut(skip=True, topic_name=""))
    with pytest.raises(KnowledgeError, match=r"the model skipped all 1 conversations"):
        await again(team)

    assert held(team.knowledge) == {"old": ["1"]}


async def test_what_waits_for_review_or_was_rejected_is_left_out_and_stays_so(team: Team) -> None:
    approved = team.archived("gpu", "1", conversation="thread_1")
    fuller = team.archived("gpu", "1 and 2", conversation="thread_1", messages=4, after=1)
    rejected = team.archived("disk", "3", after=2)
    unseen = team.archived("fan", "4", after=3)
    at = team.clock.now()
    held_back: list[PairReviewRequested | PairRejected] = [
        PairReviewRequested(qa_id=fuller.qa_id, at=at),
        PairRejected(qa_id=rejected.qa_id, by="7", at=at),
    ]
    await team.decided(*[PairApproved(qa_id=approved.qa_id, at=at), *held_back])

    def is_unseen(qa_id: QAId) -> bool:
        return qa_id == unseen.qa_id

    result = await again(team, awaits_review=is_unseen)

    assert held(team.knowledge) == {"gpu": ["1"]}
    assert (result.pairs, result.tally.filed, result.tally.replaced) == (4, 1, 0)
    assert [team.knowledge.last_decision(each.qa_id) for each in held_back] == held_back
    assert team.knowledge.last_decision(unseen.qa_id) is None
    assert isinstance(team.knowledge.last_decision(approved.qa_id), PairFiled)


@pytest.mark.rest
@pytest.mark.parametrize("back", [0, 1, 3600])
async def test_its_decisions_count_though_the_clock_went_back(team: Team, back: int) -> None:
    pairs = [team.archived(f"gpu {n}", str(n), after=n) for n in range(3)]
    await again(team)
    newest = max(
        each.at for each in map(team.knowledge.last_decision, [pair.qa_id for pair in pairs]) if each is not None
    )
    team.clock.turn(seconds=-back)

    def another_mind(given: ClassifyIn) -> ClassifyOut:
        if "gpu 1" in given.pair:
            raise ModelReplyError("junk")
        return ClassifyOut(skip=False, topic_name="other")

    team.model.always(CLASSIFY, another_mind)
    result = await again(team)

    team.open()
    decided = [team.knowledge.last_decision(pair.qa_id) for pair in pairs]
    assert held(team.knowledge) == {"other": ["0", "2"]}
    assert [type(each) for each in decided] == [PairFiled, PairParked, PairFiled]
    assert {each.topic for each in decided if isinstance(each, PairFiled)} == {"other"}
    assert {each.at for each in decided if each is not None} == {newest}
    assert [each.qa_id for each in team.knowledge.list_parked()] == list(result.parked) == [pairs[1].qa_id]


async def test_what_is_rejected_while_the_library_is_rebuilt_is_not_in_the_new_one(team: Team) -> None:
    pairs = [team.archived("gpu", str(n), after=n) for n in range(3)]

    async def rejected_meanwhile(_: IntegrateIn) -> IntegrateOut:
        team.clock.turn(seconds=1)
        await team.decided(PairRejected(qa_id=pairs[0].qa_id, at=team.clock.now()))
        return KEEP

    team.model.next(INTEGRATE, rejected_meanwhile)
    await again(team)

    assert held(team.knowledge) == {"gpu": ["1", "2"]}
    assert isinstance(team.knowledge.last_decision(pairs[0].qa_id), PairRejected)


@pytest.mark.rest
async def test_it_tells_what_it_cost(team: Team) -> None:
    usage = UsageCounter()

    class Metered(ScriptedModel):
        async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
            await usage.add(prompt.name, 100, 5)
            return await super().ask(prompt, given)

    team.model = Metered()
    team.model.always(CLASSIFY, by_first_word)
    team.model.always(INTEGRATE, KEEP)
    for n in range(40):
        team.archived("gpu", str(n), after=n)
    told: list[RegenerationProgress] = []
    result = await again(team, progress=told.append)

    assert (result.calls, result.tokens) == (79, 79 * 105)
    assert told[-1] == RegenerationProgress(classified=40, decided=40, total=40, calls=79, tokens=79 * 105)
