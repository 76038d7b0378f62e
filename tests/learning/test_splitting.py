"""A topic that is too long is split in two, with any reply of the model and at any kill of the process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from intern.core.captures import CapturedPair, Turn
from intern.core.decisions import PairFiled, PairMoved
from intern.core.errors import ModelReplyError, ModelUnavailableError
from intern.core.ids import MessageId, QAId, TopicName
from intern.core.text.topic_names import make_topic_name
from intern.learning.classifying import format_outline, free_name
from intern.learning.offline_rules import split_topic
from intern.learning.prompts import SPLIT_TOPIC, SplitIn, SplitOut, build_block
from tests.examples import examples
from tests.worlds.disk import KilledError
from tests.worlds.samples import pair as pair_of
from tests.worlds.team import Team

NODES = TopicName("nodes")
GPU = TopicName("gpu")


class Grown(Team):
    """A team whose topic `nodes` has outgrown a small bound."""

    pairs: list[CapturedPair]

    async def grow(self, *, pairs: int = 4, max_topic_chars: int = 200) -> None:
        self.options = replace(self.options, max_topic_chars=max_topic_chars)
        self.open()
        self.pairs = [await self.filed(f"How do I set up part {n}?") for n in range(pairs)]

    async def filed(self, question: str, topic: TopicName = NODES) -> CapturedPair:
        pair = self.archived(question, "Like this.")
        await self.placed(topic, pair)
        await self.decided(PairFiled(qa_id=pair.qa_id, topic=topic, at=self.clock.now()))
        return pair

    def splits(self, name: str, *moves: CapturedPair | str) -> None:
        ids = tuple(each if isinstance(each, str) else each.qa_id for each in moves)
        self.model.next(SPLIT_TOPIC, SplitOut(topic_name=name, move_ids=ids))

    def where(self) -> dict[TopicName, list[QAId]]:
        names = self.knowledge.topic_names()
        return {name: [block.qa_id for block in self.knowledge.read_topic(name)] for name in names}


@pytest.fixture
async def team(tmp_path: Path) -> AsyncGenerator[Grown]:
    async with Grown.at(tmp_path) as team:
        await team.grow()
        yield team


def ids(pairs: Sequence[CapturedPair]) -> list[QAId]:
    return [pair.qa_id for pair in pairs]


async def test_the_model_says_what_leaves_and_each_move_is_a_decision(team: Grown) -> None:
    team.splits("GPU", *team.pairs[:2])
    assert await team.filer.split_outgrown(NODES) == GPU
    assert team.where() == {NODES: ids(team.pairs[2:]), GPU: ids(team.pairs[:2])}
    for pair in team.pairs[:2]:
        assert team.knowledge.last_decision(pair.qa_id) == PairMoved(qa_id=pair.qa_id, topic=GPU, at=team.clock.now())
    assert isinstance(team.knowledge.last_decision(team.pairs[2].qa_id), PairFiled)
    [given] = team.model.calls(SPLIT_TOPIC)
    assert given.questions.splitlines() == [f"{pair.qa_id} {pair.question}" for pair in team.pairs]
    for pair in team.pairs:
        assert team.knowledge.find_topic(pair.qa_id) == (GPU if pair in team.pairs[:2] else NODES)


@pytest.mark.parametrize(("pairs", "max_topic_chars"), [(4, 10_000), (1, 10)])
async def test_a_topic_within_its_bound_and_one_of_a_single_block_ask_nobody(
    tmp_path: Path, pairs: int, max_topic_chars: int
) -> None:
    async with Grown.at(tmp_path) as team:
        await team.grow(pairs=pairs, max_topic_chars=max_topic_chars)
        assert await team.filer.split_outgrown(NODES) is None
        assert team.model.asked == []


async def test_a_topic_that_is_gone_is_not_split(team: Grown) -> None:
    assert await team.filer.split_outgrown(TopicName("gone")) is None


@pytest.mark.parametrize("name", ["nodes", "Nodes", "../nodes.txt", "team:nodes.txt"])
async def test_a_name_that_a_topic_has_gets_a_number(team: Grown, name: str) -> None:
    await team.placed("nodes-2", team.archived("Another?", "Yes."))
    team.splits(name, team.pairs[0])
    assert await team.filer.split_outgrown(NODES) == "nodes-3"
    assert len(team.where()[NODES]) == 3


@given(st.text("ab-", min_size=1, max_size=70), st.integers(0, 12))
def test_a_free_name_is_free_and_its_own_slug(label: str, taken: int) -> None:
    try:
        name = make_topic_name(label)
    except ValueError:
        return
    used: list[TopicName] = []
    for _ in range(taken + 1):
        free = free_name(name, used)
        assert free not in used
        assert make_topic_name(free) == free
        used.append(free)


@pytest.mark.parametrize("name", ["", "...", "установка"])
async def test_a_reply_without_a_name_changes_nothing(team: Grown, name: str) -> None:
    before = team.where()
    team.splits(name, team.pairs[0])
    assert await team.filer.split_outgrown(NODES) is None
    assert team.where() == before


async def test_only_blocks_of_this_topic_move_and_both_topics_keep_some(team: Grown) -> None:
    elsewhere = await team.filed("Elsewhere?", TopicName("other"))
    strange = ("", "qa_1", "../x", elsewhere.qa_id, team.archived("Never filed?", "No.").qa_id)
    before = team.where()
    for moves in ((), strange, (*ids(team.pairs), *strange)):
        team.open()
        team.splits("gpu", *moves)
        with capture_logs() as logs:
            assert await team.filer.split_outgrown(NODES) is None
        assert [log["event"] for log in logs] == ["topic_split_failed"]
        assert team.where() == before

    team.open()
    bare = team.pairs[1].qa_id.removesuffix(".000000")
    team.splits("gpu", *strange, bare, team.pairs[1])
    assert await team.filer.split_outgrown(NODES) == GPU
    assert team.where()[GPU] == [team.pairs[1].qa_id]
    assert team.where()[TopicName("other")] == [elsewhere.qa_id]


async def test_after_a_bad_reply_nobody_is_asked_before_the_topic_has_grown_by_a_quarter(team: Grown) -> None:
    team.model.next(SPLIT_TOPIC, ModelReplyError("gibberish"))
    for _ in range(3):
        assert await team.filer.split_outgrown(NODES) is None
    assert len(team.model.asked) == 1
    length = len(team.knowledge.read_text(NODES))
    team.splits("gpu", team.pairs[0])
    opened = None
    while opened is None:
        await team.filed("One more?")
        grown = len(team.knowledge.read_text(NODES))
        opened = await team.filer.split_outgrown(NODES)
        assert (opened is not None) == (grown >= 1.25 * length)


async def test_an_outage_is_raised_and_is_no_bad_reply(team: Grown) -> None:
    team.model.next(SPLIT_TOPIC, ModelUnavailableError("down"))
    team.splits("gpu", team.pairs[0])
    with pytest.raises(ModelUnavailableError):
        await team.filer.split_outgrown(NODES)
    assert await team.filer.split_outgrown(NODES) == GPU


async def test_what_is_withdrawn_while_the_model_thinks_does_not_move(team: Grown) -> None:
    gone = team.pairs[0]

    async def withdraw_meanwhile(_: SplitIn) -> SplitOut:
        await team.withdraw(gone.message_ids)
        return SplitOut(topic_name="gpu", move_ids=(gone.qa_id, team.pairs[1].qa_id))

    team.model.next(SPLIT_TOPIC, withdraw_meanwhile)
    assert await team.filer.split_outgrown(NODES) == GPU
    assert team.where() == {NODES: ids(team.pairs[2:]), GPU: [team.pairs[1].qa_id]}


async def test_killed_at_any_step_all_blocks_have_moved_and_their_decisions_say_so_or_none_has(tmp_path: Path) -> None:
    seen: list[bool] = []
    for steps in range(2):
        async with Grown.at(tmp_path / str(steps)) as team:
            await team.grow()
            before = {block.qa_id: block for block in team.knowledge.read_topic(NODES)}
            moves = ids(team.pairs[:2])
            team.open(steps)
            team.splits("gpu", *moves)
            with pytest.raises(KilledError):
                await team.filer.split_outgrown(NODES)

            team.open()
            stands = {
                block.qa_id: (topic, block) for topic in (NODES, GPU) for block in team.knowledge.read_topic(topic)
            }
            assert {qa_id: block for qa_id, (_, block) in stands.items()} == before
            seen.append(set(moves) == {qa_id for qa_id, (topic, _) in stands.items() if topic == GPU})
            for qa_id, (topic, _) in stands.items():
                decision = team.knowledge.last_decision(qa_id)
                assert isinstance(decision, PairMoved if topic == GPU else PairFiled)
                assert decision.topic == topic
    assert seen == [False, True]


@pytest.mark.rest
@settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.text(max_size=300), min_size=1, max_size=80), st.integers(300, 6000))
def test_the_outline_keeps_its_bound_and_its_lines_whatever_is_asked(questions: list[str], max_chars: int) -> None:
    blocks = [
        replace(build_block(pair_of(n=n)), turns=(Turn("User", text), Turn("Team", "So.")))
        for n, text in enumerate(questions)
    ]
    lines = format_outline(blocks, max_chars).splitlines()
    assert sum(len(line) + 1 for line in lines) <= max_chars
    assert len(lines) >= min(len(blocks), 2)
    known = [block.qa_id for block in blocks]
    shown = [known.index(QAId(line.partition(" ")[0])) for line in lines]
    assert shown == sorted(set(shown))


@pytest.mark.rest
async def test_the_prompt_stays_the_same_size_however_long_the_topic_is(team: Grown) -> None:
    blocks = [replace(build_block(pair_of(n=n)), turns=turns(n)) for n in range(2000)]
    await team.knowledge.change(lambda change: change.file_blocks(NODES, *blocks))
    team.model.next(SPLIT_TOPIC, split_topic)
    opened = await team.filer.split_outgrown(NODES)
    [given] = team.model.calls(SPLIT_TOPIC)
    assert len(given.questions) <= team.options.max_outline_chars
    assert opened is not None
    assert len(team.where()[NODES]) + len(team.where()[opened]) == 2000 + len(team.pairs)


def turns(n: int) -> tuple[Turn, ...]:
    return (Turn("User", f"{'gpu driver' if n % 3 else 'wallet fee'} question {n}? " + "word " * 50), Turn("Team", "x"))


def test_rules_split_by_the_word_that_parts_the_questions_most_evenly() -> None:
    lines = [f"qa_{n} Which GPU driver fits node {n}?" for n in range(3)]
    lines += [f"qa_{n} Where is my wallet on node {n}?" for n in range(3, 6)]
    out = split_topic(SplitIn(topic="nodes", questions="\n".join(lines)))
    assert out.move_ids in (("qa_0", "qa_1", "qa_2"), ("qa_3", "qa_4", "qa_5"))
    assert out == split_topic(SplitIn(topic="nodes", questions="\n".join(lines)))
    assert make_topic_name(out.topic_name) == out.topic_name


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Zl", "Zp", "Cc"])), min_size=2, max_size=9))
def test_rules_always_move_some_and_leave_some(questions: list[str]) -> None:
    lines = [f"qa_{n} {' '.join(text.split())}" for n, text in enumerate(questions)]
    out = split_topic(SplitIn(topic="nodes", questions="\n".join(lines)))
    assert 0 < len(out.move_ids) < len(lines)
    assert make_topic_name(out.topic_name)


async def test_a_withdrawal_finds_what_has_moved(team: Grown) -> None:
    team.splits("gpu", team.pairs[0])
    await team.filer.split_outgrown(NODES)
    cleared = await team.withdraw([MessageId(each) for each in team.pairs[0].message_ids])
    assert cleared is not None
    assert cleared.topics == (GPU,)
    assert GPU not in team.where()
