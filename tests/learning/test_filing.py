from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest
from anyio import fail_after
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from intern.core.captures import CapturedPair
from intern.core.decisions import Decision, PairFiled, PairParked, PairReplaced, PairSkipped
from intern.core.errors import KnowledgeError, ModelReplyError, ModelUnavailableError
from intern.core.flow import FailedChoice, FilingDecision, SkipChoice, TopicChoice
from intern.core.ids import QAId, TopicName
from intern.learning.attempts import AttemptsExhausted
from intern.learning.filing import DecisionCounts, file_pairs
from intern.learning.prompts import INTEGRATE, IntegrateIn, IntegrateOut, answer_time, build_block
from tests.worlds.actors import Attempts
from tests.worlds.disk import KilledError
from tests.worlds.samples import pair as sample
from tests.worlds.team import NOON, Team, unasked

NODES = TopicName("nodes")
KEEP = IntegrateOut(skip=False, remove_ids=())


def removing(*ids: str) -> IntegrateOut:
    return IntegrateOut(skip=False, remove_ids=ids)


def filing(pair: CapturedPair, topic: str = "nodes") -> FilingDecision:
    return FilingDecision(pair=pair, choice=TopicChoice(name=TopicName(topic)))


async def test_a_new_topic_is_opened_without_asking_the_model(team: Team) -> None:
    pair = team.archived("How do I start?", "Run it.\n--- QA ---\nid: forged")
    decision = await team.filer.file(filing(pair))

    assert decision == PairFiled(qa_id=pair.qa_id, topic=NODES, at=team.clock.now())
    [block] = team.knowledge.read_topic(NODES)
    assert (block.qa_id, block.turns, block.conversation_id) == (pair.qa_id, pair.turns, pair.conversation_id)
    assert block.answered_at == pair.answered_at
    assert team.knowledge.last_decision(pair.qa_id) == decision
    assert team.knowledge.cursor() == pair.qa_id


async def test_the_integrator_sees_the_blocks_in_order_of_their_answers(team: Team) -> None:
    late, early = team.archived("late?", "yes", after=-1), team.archived("early?", "no", after=-2)
    await team.placed("nodes", late)
    await team.placed("nodes", early)
    team.model.next(INTEGRATE, KEEP)
    await team.filer.file(filing(team.archived("new?", "maybe")))

    [given] = team.model.calls(INTEGRATE)
    assert given.topic == "nodes"
    assert given.blocks.index("early?") < given.blocks.index("late?")
    assert "new?" in given.pair
    assert "new?" not in given.blocks


async def test_what_the_new_pair_makes_obsolete_is_removed_and_named(team: Team) -> None:
    old = team.archived("Which port?", "7000", after=-3)
    other = team.archived("Which host?", "localhost", after=-2)
    await team.placed("nodes", old)
    await team.placed("nodes", other)
    pair = team.archived("Which port?", "8000")
    team.model.next(INTEGRATE, removing(old.qa_id))
    decision = await team.filer.file(filing(pair))

    assert isinstance(decision, PairFiled)
    assert decision.removed == (old.qa_id,)
    assert [block.qa_id for block in team.knowledge.read_topic(NODES)] == [other.qa_id, pair.qa_id]


async def test_a_model_may_remove_only_older_blocks_of_this_topic_and_not_many(team: Team) -> None:
    old = [team.archived(f"Question {n}?", "x", after=-9 + n) for n in range(4)]
    newer = team.archived("Newer?", "x", after=1)
    elsewhere = team.archived("Elsewhere?", "x", after=-9)
    for pair in (*old, newer):
        await team.placed("nodes", pair)
    await team.placed("other", elsewhere)
    fresh = team.archived("Fresh?", "x")
    ids = (newer.qa_id, elsewhere.qa_id, fresh.qa_id, "qa_1", "../x", "", old[0].qa_id, *(pair.qa_id for pair in old))
    team.model.next(INTEGRATE, removing(*ids))
    with fail_after(5):
        decision = await team.filer.file(filing(fresh))

    assert isinstance(decision, PairFiled)
    assert decision.removed == tuple(pair.qa_id for pair in old[: team.options.max_removals])
    left = [block.qa_id for block in team.knowledge.read_topic(NODES)]
    assert left == [old[3].qa_id, fresh.qa_id, newer.qa_id]
    assert team.knowledge.find_topic(elsewhere.qa_id) == "other"


async def test_ids_are_met_as_times_with_or_without_a_fraction(team: Team) -> None:
    old = team.archived("Old?", "x", after=-1)
    await team.placed("nodes", old)
    assert old.qa_id.endswith(".000000")
    team.model.next(INTEGRATE, removing(old.qa_id.removesuffix(".000000")))
    decision = await team.filer.file(filing(team.archived("New?", "x")))

    assert isinstance(decision, PairFiled)
    assert decision.removed == (old.qa_id,)


async def test_a_pair_that_is_covered_already_is_skipped_and_removes_nothing(team: Team) -> None:
    old = team.archived("Old?", "x", after=-1)
    await team.placed("nodes", old)
    pair = team.archived("New?", "x")
    team.model.next(INTEGRATE, IntegrateOut(skip=True, remove_ids=()))
    decision = await team.filer.file(filing(pair))

    assert isinstance(decision, PairSkipped)
    assert "nodes" in decision.reason
    assert [block.qa_id for block in team.knowledge.read_topic(NODES)] == [old.qa_id]
    assert team.knowledge.cursor() == pair.qa_id


@pytest.mark.parametrize(
    "said",
    [
        IntegrateOut(skip=True, remove_ids=("qa_20260201_031056",)),
        IntegrateOut(reason="The port has changed, so add.", skip=True, remove_ids=()),
        IntegrateOut(reason="It says the same, so skip.", skip=False, remove_ids=()),
    ],
)
async def test_an_integrator_that_contradicts_itself_parks_the_pair(team: Team, said: IntegrateOut) -> None:
    old = team.archived("Old?", "x", after=-1)
    await team.placed("nodes", old)
    pair = team.archived("New?", "x")
    team.model.next(INTEGRATE, said)
    decision = await team.filer.file(filing(pair))

    assert isinstance(decision, PairParked)
    assert [block.qa_id for block in team.knowledge.read_topic(NODES)] == [old.qa_id]


ASKED = "How do I empty the spool of the relay without losing agents?"


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("Can the dashboard show times in the zone of whoever looks at it?", 0),
        ("Is there a way to purge the relay's spool and keep all agents?", 1),
        ("Why?", 1),  # too short to tell
    ],
)
async def test_a_model_compares_a_pair_only_with_blocks_that_may_be_about_the_same(
    team: Team, question: str, asked: int
) -> None:
    await team.placed("nodes", team.archived(ASKED, "Stop it, then run the purge command.", after=-1))
    pair = team.archived(question, "Yes, under settings." if asked == 0 else "Yes, run the new one.")
    team.model.always(INTEGRATE, KEEP)
    decision = await team.filer.file(filing(pair))

    assert isinstance(decision, PairFiled)
    assert len(team.model.calls(INTEGRATE)) == asked


@pytest.mark.parametrize(
    ("choice", "end"),
    [(SkipChoice(reason="small talk"), PairSkipped), (FailedChoice(reason="the model is down"), PairParked)],
)
async def test_what_is_not_filed_gets_its_reason_and_the_queue_goes_on(
    team: Team, choice: SkipChoice | FailedChoice, end: type[Decision]
) -> None:
    pair = team.archived()
    decision = await team.filer.file(FilingDecision(pair=pair, choice=choice))

    assert isinstance(decision, end)
    assert decision.reason == choice.reason
    assert team.knowledge.last_decision(pair.qa_id) == decision
    assert team.knowledge.topic_names() == ()
    assert team.knowledge.cursor() == pair.qa_id


async def test_an_integrator_s_senseless_reply_parks_the_pair_and_changes_no_topic(team: Team) -> None:
    error = ModelReplyError("junk")
    old = await team.placed("nodes", team.archived("Old?", "x", after=-1))
    pair = team.archived("New?", "x")
    team.model.next(INTEGRATE, error)
    decision = await team.filer.file(filing(pair))

    assert isinstance(decision, PairParked)
    assert decision.reason == "the model's reply did not fit integrate; the log says how"
    assert [block.qa_id for block in team.knowledge.read_topic(NODES)] == [old.qa_id]


async def test_an_absent_integrator_leaves_the_pair_undecided(team: Team) -> None:
    old = await team.placed("nodes", team.archived("Old?", "x", after=-1))
    pair = team.archived("New?", "x")
    team.model.next(INTEGRATE, ModelUnavailableError("down"))
    with pytest.raises(ModelUnavailableError):
        await team.filer.file(filing(pair))

    assert team.knowledge.last_decision(pair.qa_id) is None
    assert [block.qa_id for block in team.knowledge.read_topic(NODES)] == [old.qa_id]


async def test_a_parked_pair_can_be_filed_later(team: Team) -> None:
    pair = team.archived()
    await team.filer.file(FilingDecision(pair=pair, choice=FailedChoice(reason="down")))
    decision = await team.filer.file(filing(pair))

    assert isinstance(decision, PairFiled)
    assert team.knowledge.last_decision(pair.qa_id) == decision


async def test_a_decided_pair_is_left_as_it_is(team: Team) -> None:
    pair = team.archived()
    first = await team.filer.file(FilingDecision(pair=pair, choice=SkipChoice(reason="small talk")))
    again = await team.filer.file(filing(pair))

    assert again == first
    assert team.knowledge.topic_names() == ()
    assert list(team.knowledge.read_decisions()) == [first]


async def test_a_fuller_capture_takes_its_older_blocks_place_and_keeps_its_topic(team: Team) -> None:
    first = team.archived("How?", "So.", conversation="thread_1")
    other = team.archived("Other?", "x", after=-1)
    await team.placed("nodes", other)
    team.model.always(INTEGRATE, KEEP)
    await team.filer.file(filing(first))
    fuller = team.archived("How?", "So. And so.", conversation="thread_1", messages=3)
    assert await team.filer.choose_topic(fuller, unasked) == TopicChoice(name=TopicName("nodes"))
    decision = await team.filer.file(filing(fuller, "somewhere-else"))

    assert isinstance(decision, PairFiled)
    assert (decision.topic, decision.removed) == ("nodes", ())
    assert [block.qa_id for block in team.knowledge.read_topic(NODES)] == [other.qa_id, fuller.qa_id]
    replaced = team.knowledge.last_decision(first.qa_id)
    assert isinstance(replaced, PairReplaced)
    assert replaced.by == fuller.qa_id
    # The integrator is not shown the block that goes anyway.
    assert "How?" not in team.model.calls(INTEGRATE)[-1].blocks


async def test_a_fuller_capture_is_kept_even_if_the_integrator_calls_it_covered(team: Team) -> None:
    await team.placed("nodes", team.archived("Other?", "x", after=-1))
    first = team.archived("How?", "So.", conversation="thread_1")
    await team.placed("nodes", first)
    fuller = team.archived("How?", "So. And so.", conversation="thread_1", messages=3)
    team.model.next(INTEGRATE, IntegrateOut(skip=True, remove_ids=()))
    decision = await team.filer.file(filing(fuller))

    assert isinstance(decision, PairFiled)
    assert team.knowledge.find_topic(first.qa_id) is None


@pytest.mark.parametrize("choice", [SkipChoice(reason="small talk"), FailedChoice(reason="down")])
async def test_a_fuller_capture_needs_no_classifier(team: Team, choice: SkipChoice | FailedChoice) -> None:
    first = team.archived("How?", "So.", conversation="thread_1")
    await team.placed("nodes", first)
    fuller = team.archived("How?", "So. And so.", conversation="thread_1", messages=3)
    decision = await team.filer.file(FilingDecision(pair=fuller, choice=choice))

    assert isinstance(decision, PairFiled)
    assert team.knowledge.find_topic(fuller.qa_id) == "nodes"


async def test_a_pair_that_is_given_up_is_parked_even_where_its_conversation_has_a_topic(team: Team) -> None:
    first = team.archived("How?", "So.", conversation="thread_1")
    await team.placed("nodes", first)
    await team.placed("nodes", team.archived("Another?", "x"))
    fuller = team.archived("How?", "So. And so.", conversation="thread_1", messages=3)
    decision = await team.filer.file(FilingDecision(pair=fuller, choice=AttemptsExhausted(reason="it never ended")))

    assert isinstance(decision, PairParked)
    assert team.model.asked == []
    assert team.knowledge.find_topic(first.qa_id) == "nodes"


async def test_each_failure_that_parks_is_logged_once_and_an_outage_is_left_to_the_one_who_waits(team: Team) -> None:
    async def choose(_: object) -> TopicChoice:
        await checkpoint()
        raise ModelReplyError("gibberish")

    await team.placed("nodes", team.archived("Old?", "x", after=-1))
    pair = team.archived("New?", "x")
    team.model.next(INTEGRATE, ModelUnavailableError("down"), ModelReplyError("junk"))
    with capture_logs() as logs:
        await team.filer.choose_topic(pair, choose)
        with pytest.raises(ModelUnavailableError):
            await team.filer.file(filing(pair))
        await team.filer.file(filing(pair))
    assert [(log["event"], log["reason"]) for log in logs if log["event"].startswith("llm_")] == [
        ("llm_classification_failed", "gibberish"),
        ("llm_integration_failed", "junk"),
    ]


async def test_an_older_capture_never_takes_the_place_of_a_fuller_one(team: Team) -> None:
    first = team.archived("How?", "So.", conversation="thread_1")
    fuller = team.archived("How?", "So. And so.", conversation="thread_1", messages=3)
    await team.placed("nodes", fuller)
    decision = await team.filer.file(filing(first))

    assert isinstance(decision, PairReplaced)
    assert decision.by == fuller.qa_id
    assert [block.qa_id for block in team.knowledge.read_topic(NODES)] == [fuller.qa_id]


async def test_blocks_of_one_conversation_in_several_topics_end_as_one(team: Team) -> None:
    one, two = (team.archived(f"How {n}?", "So.", conversation="thread_1") for n in range(2))
    await team.placed("one", one)
    await team.placed("two", two)
    fuller = team.archived("How?", "So.", conversation="thread_1", messages=3)
    await team.filer.file(filing(fuller))

    assert team.knowledge.topic_names() == ("two",)
    assert [type(team.knowledge.last_decision(pair.qa_id)) for pair in (one, two, fuller)] == [
        PairReplaced,
        PairReplaced,
        PairFiled,
    ]


async def test_killed_at_any_step_a_filing_is_done_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    steps = -1
    for steps in count():
        async with Team.at(tmp_path / str(steps)) as team:
            obsolete = team.archived("Old?", "x", after=-2)
            first = team.archived("How?", "So.", conversation="thread_1")
            for pair in (obsolete, first):
                await team.placed("nodes", pair)
                await team.decided(PairFiled(qa_id=pair.qa_id, topic=NODES, at=team.clock.now()))
            before = list(team.knowledge.read_decisions())
            fuller = team.archived("How?", "So. And so.", conversation="thread_1", messages=3)
            team.model.always(INTEGRATE, removing(obsolete.qa_id))
            team.open(steps)
            killed = False
            try:
                await team.filer.file(filing(fuller))
            except KilledError:
                killed = True
                team.open()
                is_filed = team.knowledge.last_decision(fuller.qa_id) is not None
                assert is_filed == (team.knowledge.find_topic(fuller.qa_id) == NODES)
                assert is_filed == (team.knowledge.find_topic(obsolete.qa_id) is None)
                assert is_filed == (team.knowledge.find_topic(first.qa_id) is None)
                asked = len(team.model.asked)
                await team.filer.file(filing(fuller))
                assert len(team.model.asked) == asked + (not is_filed)

            assert [block.qa_id for block in team.knowledge.read_topic(NODES)] == [fuller.qa_id]
            replaced = PairReplaced(qa_id=first.qa_id, by=fuller.qa_id, at=team.clock.now())
            filed = PairFiled(qa_id=fuller.qa_id, topic=NODES, removed=(obsolete.qa_id,), at=team.clock.now())
            assert team.knowledge.read_decisions() == [*before, replaced, filed]
        if not killed:
            break
    assert steps == 4


async def test_prompts_stay_bounded_while_a_topic_grows(team: Team) -> None:
    for n in range(60):
        await team.placed("nodes", team.archived(f"Question {n} about subject {n}?", "word " * 400, after=-100 + n))
    like = team.archived("Why is the moon not cheese?", "It is rock.", after=-200)
    await team.placed("nodes", like)
    team.model.next(INTEGRATE, KEEP)
    await team.filer.file(filing(team.archived("Is the moon cheese?", "No. " * 9000)))

    [given] = team.model.calls(INTEGRATE)
    assert isinstance(given, IntegrateIn)
    assert len(given.blocks) <= team.options.max_blocks_chars
    assert len(given.pair) <= team.options.max_pair_chars
    assert like.qa_id in given.blocks


async def test_a_database_that_fails_leaves_the_pair_undecided(team: Team) -> None:
    pair = team.archived()
    team.open(steps=2)
    team.db.error = partial(KnowledgeError, "no space is left")
    with pytest.raises(KnowledgeError):
        await team.filer.file(filing(pair))

    assert team.knowledge.last_decision(pair.qa_id) is None
    assert team.knowledge.topic_names() == ()


@pytest.mark.rest
async def test_catching_up_files_everything_in_order_and_parks_what_fails(team: Team) -> None:
    pairs = [team.archived(f"Question {n}?", "x", after=n) for n in range(40)]
    team.model.always(INTEGRATE, KEEP)
    heard: list[QAId] = []

    async def choose(pair: CapturedPair) -> TopicChoice | SkipChoice:
        if pair == pairs[3]:
            raise ModelReplyError("junk")
        return SkipChoice(reason="dull") if pair == pairs[5] else TopicChoice(name=NODES)

    async def filed(pair: CapturedPair, decision: Decision) -> None:
        assert team.knowledge.last_decision(pair.qa_id) == decision
        heard.append(pair.qa_id)

    tally = await file_pairs(
        team.archive.pairs_after(pairs[0].qa_id), filer=team.filer, choose=choose, attempts=Attempts(), filed=filed
    )
    nothing = await file_pairs(
        team.archive.pairs_after(team.knowledge.cursor()), filer=team.filer, choose=choose, attempts=Attempts()
    )

    assert tally == DecisionCounts(filed=37, skipped=1, parked=1)
    assert nothing == DecisionCounts()
    assert heard == [pair.qa_id for pair in pairs[1:]]
    parked = team.knowledge.last_decision(pairs[3].qa_id)
    assert isinstance(parked, PairParked)
    assert parked.reason == "the model's reply did not fit classify; the log says how"


async def test_catching_up_stops_where_the_model_is_away_and_goes_on_from_there(team: Team) -> None:
    pairs = [team.archived(f"Question {n}?", "x", after=n) for n in range(3)]
    team.model.always(INTEGRATE, KEEP)
    away = True

    async def choose(pair: CapturedPair) -> TopicChoice | SkipChoice:
        if away and pair == pairs[1]:
            raise ModelUnavailableError("down")
        return TopicChoice(name=NODES)

    with pytest.raises(ModelUnavailableError):
        await file_pairs(team.archive.pairs_after(None), filer=team.filer, choose=choose, attempts=Attempts())
    assert team.knowledge.cursor() == pairs[0].qa_id

    away = False
    assert await file_pairs(
        team.archive.pairs_after(team.knowledge.cursor()), filer=team.filer, choose=choose, attempts=Attempts()
    ) == DecisionCounts(filed=2)


async def test_catching_up_asks_nobody_for_a_conversation_that_has_its_topic(team: Team) -> None:
    await team.placed("nodes", team.archived("How?", "So.", conversation="thread_1"))
    fuller = team.archived("How?", "So. And so.", conversation="thread_1", messages=3)
    after = QAId("qa_20260101_000000")

    async def choose(pair: CapturedPair) -> TopicChoice | SkipChoice:
        raise AssertionError(f"nobody should be asked about {pair.qa_id}")

    tally = await file_pairs(team.archive.pairs_after(after), filer=team.filer, choose=choose, attempts=Attempts())

    assert tally == DecisionCounts(filed=1, replaced=1)
    assert team.knowledge.find_topic(fuller.qa_id) == "nodes"


def test_a_block_without_an_answer_time_is_as_old_as_its_archiving() -> None:
    block = build_block(msgspec.structs.replace(sample(), answered_at=NOON))
    assert answer_time(block) == NOON
    assert answer_time(msgspec.structs.replace(block, answered_at=None)) == block.timestamp
