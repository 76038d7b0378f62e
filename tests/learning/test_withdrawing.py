"""Nothing is learned from a deleted message, in any order of events and at any kill of the process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, given, settings, strategies as st

from intern.core.captures import CapturedPair, TopicBlock
from intern.core.decisions import MessagesWithdrawn, PairDecision, PairFiled, PairRemoved, PairReplaced
from intern.core.flow import FilingDecision, SkipChoice, TopicChoice
from intern.core.ids import MessageId, TopicName
from intern.learning.filing import DecisionCounts, file_pairs
from intern.learning.prompts import CLASSIFY, INTEGRATE, ClassifyOut, IntegrateIn, IntegrateOut
from intern.learning.regenerating import Regeneration
from intern.stores.tables.knowledge import KnowledgeChange, KnowledgeStore
from tests.examples import examples
from tests.worlds.actors import Attempts
from tests.worlds.disk import KilledError
from tests.worlds.team import NODES, Writers

KEEP = IntegrateOut(skip=False, remove_ids=())


class Folder(Writers):
    async def filed(self, pair: CapturedPair | None) -> PairDecision:
        assert pair is not None
        return await self.filer.file(FilingDecision(pair=pair, choice=TopicChoice(name=NODES)))

    async def delete(self, *ids: str) -> tuple[TopicName, ...] | None:
        """Withdraw deleted messages; return the changed topics, None if all were withdrawn before."""
        cleared = await self.withdraw([MessageId(each) for each in ids])
        return None if cleared is None else cleared.topics


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncGenerator[Folder]:
    async with Folder.at(tmp_path) as folder:
        yield folder


async def test_a_deleted_answer_leaves_the_block_and_the_rest_of_it_stays(folder: Folder) -> None:
    pair = await folder.captured("q1", "a2", "a3")
    await folder.filed(pair)
    assert await folder.delete("2") == ("nodes",)

    assert folder.held() == [["q1", "a3"]]
    assert pair is not None
    assert isinstance(folder.knowledge.last_decision(pair.qa_id), PairFiled)
    [block] = folder.knowledge.read_topic(NODES)
    assert (block.qa_id, block.answered_at) == (pair.qa_id, pair.answered_at)
    assert folder.archive.get(pair.qa_id) == pair  # never rewritten


@pytest.mark.parametrize("gone", ["1", "2"])
async def test_without_its_only_question_or_its_only_answer_the_block_goes_and_the_decisions_say_so(
    folder: Folder, gone: str
) -> None:
    pair = await folder.captured("q1", "a2")
    await folder.filed(await folder.captured("q8", "a9", conversation="thread_8"))
    await folder.filed(pair)
    assert await folder.delete(gone) == ("nodes",)

    assert folder.held() == [["q8", "a9"]]
    withdrawn, removed = folder.knowledge.read_decisions()[-2:]
    assert withdrawn == MessagesWithdrawn(
        message_ids=(MessageId(gone),), reason="deleted on Discord", at=folder.clock.now()
    )
    assert pair is not None
    assert isinstance(removed, PairRemoved)
    assert removed.qa_id == pair.qa_id
    assert await folder.filed(pair) == removed  # a replay does not bring it back


async def test_a_topic_whose_last_block_goes_is_gone(folder: Folder) -> None:
    await folder.filed(await folder.captured("q1", "a2"))
    assert await folder.delete("1", "2") == ("nodes",)
    assert folder.knowledge.topic_names() == ()


async def test_a_delete_that_arrives_before_the_pair_is_filed_still_wins(folder: Folder) -> None:
    pair = await folder.captured("q1", "a2", "a3")
    assert await folder.delete("2") == ()
    await folder.filed(pair)
    assert folder.held() == [["q1", "a3"]]


async def test_a_delete_that_arrives_while_the_model_is_thinking_still_wins(folder: Folder) -> None:
    await folder.filed(await folder.captured("q8", "a9", conversation="thread_8"))

    async def deleted_meanwhile(given: IntegrateIn) -> IntegrateOut:
        assert "a2" in given.pair
        await folder.delete("2")
        return KEEP

    folder.model.next(INTEGRATE, deleted_meanwhile)
    decision = await folder.filed(await folder.captured("q1", "a2"))
    assert isinstance(decision, PairRemoved)
    assert folder.held() == [["q8", "a9"]]


async def test_no_model_sees_what_was_withdrawn_and_none_is_asked_about_what_is_left_of_nothing(folder: Folder) -> None:
    await folder.filed(await folder.captured("q8", "a9", conversation="thread_8"))
    seen: list[CapturedPair] = []

    async def choose(pair: CapturedPair) -> TopicChoice | SkipChoice:
        seen.append(pair)
        return TopicChoice(name=NODES)

    last = folder.knowledge.cursor()
    await folder.captured("q1", "a2", "a3")
    await folder.captured("q5", "a6", conversation="thread_5")
    await folder.delete("2", "6")
    tally = await file_pairs(folder.archive.pairs_after(last), filer=folder.filer, choose=choose, attempts=Attempts())

    assert tally == DecisionCounts(filed=1, removed=1)
    assert [[turn.text for turn in pair.turns] for pair in seen] == [["q1", "a3"]]
    [given] = folder.model.calls(INTEGRATE)
    assert "a2" not in given.pair
    assert folder.knowledge.cursor() == folder.knowledge.cursor()


async def test_an_edit_of_a_filed_answer_shows_in_its_topic(folder: Folder) -> None:
    first = await folder.captured("q1", "a2: old")
    await folder.filed(first)
    edited = await folder.captured("a2: new")
    assert isinstance(await folder.filed(edited), PairFiled)
    assert folder.held() == [["q1", "new"]]
    assert first is not None
    assert isinstance(folder.knowledge.last_decision(first.qa_id), PairReplaced)


async def test_a_message_that_was_edited_to_nothing_teaches_nothing_until_it_says_something_again(
    folder: Folder,
) -> None:
    await folder.filed(await folder.captured("q1", "a2"))
    emptied = await folder.captured("a2:  ")
    await folder.filed(emptied)
    assert folder.held() == []
    await folder.filed(await folder.captured("a2: again"))
    assert folder.held() == [["q1", "again"]]


async def test_a_message_that_stands_in_two_conversations_leaves_both(folder: Folder) -> None:
    await folder.filed(await folder.captured("q1", "a2"))
    await folder.filed(await folder.captured("q5", "a6", conversation="thread_5"))
    await folder.filed(await folder.captured("q1", "q5", "a6", conversation="thread_5"))
    await folder.delete("1")
    assert folder.held() == [["q5", "a6"]]


async def test_a_block_that_the_archive_cannot_account_for_goes_with_its_conversation_s_deleted_message(
    folder: Folder,
) -> None:
    pair = await folder.captured("q1", "a2", "a3")
    await folder.filed(pair)
    await folder.filed(await folder.captured("q8", "a9", conversation="thread_8"))
    [week] = folder.raw.iterdir()
    week.write_text(week.read_text().replace("User: q1", "Uxer: q1"))
    await folder.delete("2")
    assert folder.held() == [["q8", "a9"]]


async def test_a_pair_from_elsewhere_that_does_not_say_whose_turn_is_whose_goes_as_a_whole(folder: Folder) -> None:
    pair = folder.archived("q1", "a2", conversation="7", messages=3)
    await folder.filed(pair)
    await folder.delete(pair.message_ids[2])
    assert folder.held() == []


async def test_withdrawing_twice_is_recorded_once_and_concerns_nobody_else(folder: Folder) -> None:
    await folder.filed(await folder.captured("q1", "a2", "a3"))
    assert await folder.delete("2", "99", "2") == ("nodes",)
    assert await folder.delete("2", "99") is None
    folder.open()
    assert await folder.delete("2", "99") is None
    assert [
        len(each.message_ids) for each in folder.knowledge.read_decisions() if isinstance(each, MessagesWithdrawn)
    ] == [2]


@pytest.mark.parametrize("said", [("q1", "a2", "a3"), ("q1", "a2")])
async def test_killed_at_any_step_a_withdrawal_is_done_as_a_whole_or_not_at_all(
    tmp_path: Path, said: tuple[str, ...]
) -> None:
    seen: list[bool] = []
    for steps in range(2):
        async with Folder.at(tmp_path / str(steps)) as folder:
            await folder.filed(await folder.captured("q8", "a9", conversation="thread_8"))
            await folder.filed(await folder.captured(*said))
            before = folder.held()
            folder.open(steps)
            with pytest.raises(KilledError):
                await folder.delete("2")
            folder.open()
            seen.append(folder.knowledge.is_withdrawn(MessageId("2")))
            left = [["q8", "a9"], ["q1", "a3"]] if "a3" in said else [["q8", "a9"]]
            assert folder.held() == (left if seen[-1] else before)
            assert any(isinstance(each, PairRemoved) for each in folder.knowledge.read_decisions()) == (
                seen[-1] and "a3" not in said
            )
    assert seen == [False, True]


def describe(blocks: Sequence[TopicBlock]) -> str:
    return f"{len(blocks)} blocks"


async def regenerated(folder: Folder) -> list[list[str]]:
    folder.model.always(CLASSIFY, ClassifyOut(skip=False, topic_name="nodes"))
    await Regeneration(
        model=folder.model,
        archive=folder.archive,
        knowledge=folder.knowledge,
        describe=describe,
        clock=folder.clock,
    ).run()
    return folder.held()


T = TypeVar("T")


class Interrupted(KnowledgeStore):
    """A filer with another event just before its second change."""

    def __init__(self, known: KnowledgeStore, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(known.db, clock=known.clock)
        self._meanwhile: list[Callable[[], Awaitable[object]]] = [meanwhile, checkpoint]

    async def change(self, work: Callable[[KnowledgeChange], T]) -> T:
        if self._meanwhile:
            await self._meanwhile.pop()()
        return await super().change(work)


async def test_what_is_withdrawn_just_before_a_regeneration_s_switch_is_in_no_topic_and_decided_so(
    folder: Folder,
) -> None:
    await folder.filed(await folder.captured("q1", "a2"))
    gone = await folder.captured("q5", "a6", conversation="thread_5")
    assert gone is not None
    await folder.filed(gone)
    # A regeneration first clears what an earlier one drafted.
    folder.knowledge = Interrupted(folder.knowledge, lambda: folder.delete("5"))
    assert await regenerated(folder) == [["q1", "a2"]]
    folder.open()
    assert isinstance(folder.knowledge.last_decision(gone.qa_id), PairRemoved)


async def test_regeneration_leaves_out_what_was_withdrawn_and_asks_no_model_about_it(folder: Folder) -> None:
    await folder.captured("q1", "a2", "a3")
    await folder.captured("q5", "a6", conversation="thread_5")
    await folder.delete("2", "5")
    assert await regenerated(folder) == [["q1", "a3"]]
    [asked] = folder.model.calls(CLASSIFY)
    assert "a2" not in asked.pair


async def test_a_shorter_version_of_a_conversation_that_lost_a_message_still_wins_by_its_newer_text(
    folder: Folder,
) -> None:
    await folder.captured("q1", "a2: old", "a3")
    await folder.delete("3")
    await folder.captured("a2: new")
    assert await regenerated(folder) == [["q1", "new"]]


async def test_what_is_deleted_while_the_library_is_rebuilt_is_not_in_the_new_one(folder: Folder) -> None:
    await folder.captured("q1", "a2", "a3")
    await folder.captured("q5", "a6", conversation="thread_5")

    async def deleted_meanwhile(_: IntegrateIn) -> IntegrateOut:
        await folder.delete("2")  # its block is in the new library already
        return KEEP

    folder.model.next(INTEGRATE, deleted_meanwhile)
    assert sorted(await regenerated(folder)) == [["q1", "a3"], ["q5", "a6"]]
    assert isinstance(folder.knowledge.last_decision(next(iter(folder.archive.pairs_after(None))).qa_id), PairFiled)


# Five messages of each of two conversations, as in Discord's history at that time.
_NAMES = [[f"{kind}{conversation}{n}" for n, kind in enumerate("qaqaa")] for conversation in (1, 2)]
_ACTS = st.one_of(
    *(st.tuples(st.just("capture"), st.lists(st.sampled_from(names), min_size=1, unique=True)) for names in _NAMES),
    st.tuples(
        st.sampled_from(["edit", "withdraw"]), st.lists(st.sampled_from(list(chain(*_NAMES))), min_size=1, max_size=2)
    ),
    st.tuples(st.sampled_from(["file", "file", "restart"]), st.just([])),
)


class _Life:
    """A sequence of acts on a folder."""

    def __init__(self, folder: Folder) -> None:
        self.gone: set[str] = set()
        self._folder = folder
        self._texts: dict[str, str] = {}

    async def go_through(self, acts: list[tuple[str, list[str]]]) -> None:
        for act, names in [*acts, ("file", [])]:
            await getattr(self, f"_{act}")(sorted(names, key=lambda name: name[1:]))

    async def _capture(self, names: list[str]) -> None:
        said = (self._texts.get(name, name) for name in names)
        await self._folder.captured(*said, conversation=f"thread_{names[0][1]}")

    async def _edit(self, names: list[str]) -> None:
        for name in names:
            self._texts[name] = f"{name}: {name} v{len(self._texts)}"
            await self._folder.captured(self._texts[name], conversation=f"thread_{name[1]}")

    async def _withdraw(self, names: list[str]) -> None:
        self.gone.update(names)
        await self._folder.delete(*(name[1:] for name in names))

    async def _restart(self, _: list[str]) -> None:
        self._folder.open()

    async def _file(self, _: list[str]) -> None:
        async def choose(_: CapturedPair) -> TopicChoice | SkipChoice:
            return TopicChoice(name=NODES)

        folder = self._folder
        await file_pairs(
            folder.archive.pairs_after(folder.knowledge.cursor()),
            filer=folder.filer,
            choose=choose,
            attempts=Attempts(),
        )


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(acts=st.lists(_ACTS, max_size=12))
def test_whatever_happens_in_whatever_order_live_equals_regeneration(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, list[str]]]
) -> None:
    async def live() -> None:
        async with Folder.at(tmp_path_factory.mktemp("team")) as folder:
            life = _Life(folder)
            await life.go_through(acts)
            held = folder.held()
            assert life.gone.isdisjoint(text.split()[0] for block in held for text in block)
            assert len(held) <= 2
            assert sorted(await regenerated(folder)) == sorted(held)

    anyio.run(live)
