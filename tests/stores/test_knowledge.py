"""Decisions and topics: each change is whole or nothing, and what memory says is what a new process would read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from threading import Event as ThreadEvent

import anyio
import pytest
from anyio import CancelScope, create_task_group, fail_after, wait_all_tasks_blocked
from hypothesis import HealthCheck, given, settings, strategies as st
from structlog.testing import capture_logs

from intern.core.captures import TopicBlock, Turn
from intern.core.decisions import (
    Decision,
    MessagesForgotten,
    MessagesWithdrawn,
    PairApproved,
    PairDecision,
    PairFiled,
    PairMoved,
    PairParked,
    PairRejected,
    PairRemoved,
    PairReplaced,
    PairReviewRequested,
    PairSkipped,
)
from intern.core.errors import SourceError
from intern.core.ids import ConversationId, MessageId, QAId, TopicName, UserId, position_at
from intern.core.log import get_logger
from intern.stores.block_format import format_topic_block
from intern.stores.qa_ids import make_qa_id, qa_id_time
from intern.stores.tables.change_log import read_changes
from intern.stores.tables.knowledge import TOPIC, KnowledgeChange, KnowledgeDraft, KnowledgeStore
from tests.examples import examples
from tests.timing import cpu_seconds
from tests.worlds.knowledge import knowledge_in
from tests.worlds.samples import START

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

_stories = count(1)  # a community for each example: to make tables takes longer than to live through it
GPU, NODE = TopicName("gpu"), TopicName("node-startup")
THREAD, REPLY = ConversationId("thread_1"), ConversationId("reply_2")


def block(
    n: int,
    *,
    conversation: ConversationId | None = None,
    answered: int | None = None,
    text: str = "so\n\nor --- QA ---",
) -> TopicBlock:
    at = START + timedelta(seconds=n)
    return TopicBlock(
        qa_id=make_qa_id(at),
        timestamp=at,
        turns=(Turn("User", f"how {n}?"), Turn("Team", text)),
        conversation_id=conversation,
        answered_at=None if answered is None else START + timedelta(seconds=answered),
    )


def qa(n: int) -> QAId:
    return make_qa_id(START + timedelta(seconds=n))


FIRST, SECOND, THIRD = map(qa, range(3))


def filed(qa_id: QAId = FIRST) -> PairFiled:
    return PairFiled(qa_id=qa_id, topic=GPU, removed=(FIRST,), at=START, reason="it\nfits\u2028 ü")


@pytest.fixture
async def knowledge(tmp_path: Path) -> AsyncGenerator[KnowledgeStore]:
    async with knowledge_in(tmp_path) as knowledge:
        yield knowledge


def reread(knowledge: KnowledgeStore) -> KnowledgeStore:
    """Return the knowledge as a new process reads it."""
    return KnowledgeStore(knowledge.db, clock=knowledge.clock)


async def decide(knowledge: KnowledgeStore, *decisions: Decision) -> None:
    await knowledge.change(lambda change: change.decide(*decisions))


async def put(knowledge: KnowledgeStore, topic: TopicName, *blocks: TopicBlock) -> None:
    await knowledge.change(lambda change: change.file_blocks(topic, *blocks))


async def changed_after(knowledge: KnowledgeStore, position: int) -> set[str]:
    changes = await knowledge.db.read(lambda db: read_changes(db, position, [TOPIC]))
    return {each.name for each in changes}


# A change is whole or nothing.


async def test_a_change_whose_work_raises_undoes_all_of_it(knowledge: KnowledgeStore) -> None:
    await put(knowledge, GPU, block(0))
    await decide(knowledge, filed())

    def fails(change: KnowledgeChange) -> None:
        change.file_blocks(NODE, block(0), block(1))
        change.remove_blocks([FIRST])
        change.decide(filed(SECOND), MessagesWithdrawn(message_ids=(MessageId("1"),), at=START))
        change.switch_to_draft([])
        assert change.topic_names() == ()
        raise ValueError("the work is wrong")

    with fail_after(5), pytest.raises(ValueError, match="the work is wrong"):
        await knowledge.change(fails)

    for each in (knowledge, reread(knowledge)):
        assert each.topic_names() == (GPU,)
        assert each.read_topic(GPU) == (block(0),)
        assert each.read_decisions() == [filed()]
        assert each.last_decision(SECOND) is None
        assert each.cursor() == FIRST
        assert not each.is_withdrawn(MessageId("1"))
    assert await changed_after(knowledge, 0) == {GPU}


async def test_an_event_is_logged_once_its_change_is_on_disk(knowledge: KnowledgeStore) -> None:
    log = get_logger("tests")

    def work(change: KnowledgeChange) -> None:
        change.decide(filed())
        change.log_after_commit(log, "filed")
        assert logs == []

    def failing(change: KnowledgeChange) -> None:
        work(change)
        raise ZeroDivisionError

    with capture_logs() as logs:
        with pytest.raises(ZeroDivisionError):
            await knowledge.change(failing)
        await knowledge.change(work)
    assert [each["event"] for each in logs] == ["filed"]


async def test_memory_says_only_what_is_committed(knowledge: KnowledgeStore) -> None:
    begun, go_on = anyio.Event(), ThreadEvent()

    def slow(change: KnowledgeChange) -> None:
        change.file_blocks(GPU, block(0))
        change.decide(filed(), MessagesWithdrawn(message_ids=(MessageId("1"),), at=START))
        anyio.from_thread.run_sync(begun.set, token=token)
        assert go_on.wait(5)

    token = anyio.lowlevel.current_token()
    with fail_after(5):
        async with create_task_group() as tg:
            tg.start_soon(knowledge.change, slow)
            await begun.wait()
            assert (knowledge.last_decision(FIRST), knowledge.cursor(), knowledge.topic_names()) == (None, None, ())
            assert not knowledge.is_withdrawn(MessageId("1"))
            go_on.set()
    assert (knowledge.last_decision(FIRST), knowledge.cursor(), knowledge.topic_names()) == (filed(), FIRST, (GPU,))
    assert knowledge.is_withdrawn(MessageId("1"))


async def test_a_cancelled_caller_leaves_memory_as_the_database_is(knowledge: KnowledgeStore) -> None:
    begun, go_on = anyio.Event(), ThreadEvent()
    token = anyio.lowlevel.current_token()

    def slow(change: KnowledgeChange) -> None:
        anyio.from_thread.run_sync(begun.set, token=token)
        assert go_on.wait(5)
        change.decide(filed())

    waiting = CancelScope()

    async def wait_for_its_turn() -> None:
        with waiting:
            await decide(knowledge, filed(SECOND))

    with fail_after(5):
        async with create_task_group() as tg:
            tg.start_soon(knowledge.change, slow)
            await begun.wait()
            tg.start_soon(wait_for_its_turn)
            await wait_all_tasks_blocked()
            waiting.cancel()  # it has not begun
            tg.cancel_scope.cancel()  # this one has, and is done to its end
            go_on.set()
    assert knowledge.last_decision(FIRST) == filed()
    assert knowledge.last_decision(SECOND) is None
    assert knowledge.read_decisions() == reread(knowledge).read_decisions() == [filed()]


async def test_changes_wait_for_each_other_and_each_sees_what_the_last_one_left(knowledge: KnowledgeStore) -> None:
    def next_one(change: KnowledgeChange) -> None:
        # Both what memory says and what the database says.
        last = knowledge.cursor()
        assert last == max((each.qa_id for each in change.read_topic(GPU)), default=None)
        n = len(change.read_topic(GPU))
        change.file_blocks(GPU, block(n))
        change.decide(filed(qa(n)))

    with fail_after(10):
        async with create_task_group() as tg:
            for _ in range(20):
                tg.start_soon(knowledge.change, next_one)
    assert knowledge.read_decisions() == [filed(qa(n)) for n in range(20)]
    assert len(knowledge.read_topic(GPU)) == 20


async def test_each_change_tells_that_there_is_something_new(knowledge: KnowledgeStore) -> None:
    told: list[list[Decision]] = []
    watched = KnowledgeStore(knowledge.db, clock=knowledge.clock, changed=lambda: told.append(watched.read_decisions()))
    await decide(watched, filed())
    assert told == [[filed()]]


async def test_two_communities_see_nothing_of_each_other(knowledge: KnowledgeStore) -> None:
    other = KnowledgeStore(knowledge.db.for_community("other"), clock=knowledge.clock)
    await put(knowledge, GPU, block(0, conversation=THREAD))
    await decide(knowledge, filed(), MessagesForgotten(message_ids=(MessageId("1"),), user_id=UserId("9"), at=START))
    await knowledge.write_journal("begun")
    await put(KnowledgeDraft(knowledge), NODE, block(1))

    for each in (other, reread(other)):
        assert (
            each.topic_names(),
            each.read_decisions(),
            each.cursor(),
            each.read_journal(),
            each.topic_versions(),
        ) == ((), [], None, [], {})
        assert each.find_conversation_pairs(THREAD) == []
        assert not each.is_withdrawn(MessageId("1"))
        assert not each.is_forgotten(UserId("9"), MessageId("1"))
        assert KnowledgeDraft(each).topic_names() == ()
    assert await changed_after(other, 0) == set()

    await put(other, NODE, block(0))
    await other.change(lambda change: change.switch_to_draft([PairSkipped(qa_id=FIRST, at=START)]))
    await other.change(lambda change: change.remove_blocks([FIRST]))
    assert knowledge.read_topic(GPU) == (block(0, conversation=THREAD),)
    assert knowledge.last_decision(FIRST) == filed()
    assert knowledge.read_journal() == ["begun"]
    assert KnowledgeDraft(knowledge).topic_names() == (NODE,)


# Topics.


async def test_a_topic_is_the_text_of_the_specification(knowledge: KnowledgeStore) -> None:
    await put(knowledge, GPU, block(0, conversation=THREAD, answered=-5))
    assert knowledge.read_text(GPU) == (
        "--- QA ---\n"
        f"id: {FIRST}\n"
        f"timestamp: {START:%Y-%m-%dT%H:%M:%S.%fZ}\n"
        "conversation_id: thread_1\n"
        f"answered_at: {START - timedelta(seconds=5):%Y-%m-%dT%H:%M:%S.%fZ}\n"
        "User: how 0?\n"
        "Team: so\n"
        "  \n"
        "  or --- QA ---\n"
        "\n"
    )  # fmt: skip


async def test_blocks_stand_in_the_order_in_which_they_were_answered(knowledge: KnowledgeStore) -> None:
    newest, imported, plain, twin = block(5, answered=4), block(6, answered=-100), block(2), block(7, answered=4)
    await put(knowledge, GPU, twin, newest, imported)
    await put(knowledge, GPU, plain)
    assert knowledge.read_topic(GPU) == (imported, plain, newest, twin)


async def test_several_topics_are_read_at_once_and_one_that_is_gone_is_not_among_them(
    knowledge: KnowledgeStore,
) -> None:
    await put(knowledge, GPU, block(5, answered=4), block(6, answered=-100))
    await put(knowledge, NODE, block(0))
    found = knowledge.read_texts([NODE, GPU, TopicName("gone")])
    assert found == {GPU: knowledge.read_text(GPU), NODE: knowledge.read_text(NODE)}
    assert found[GPU].index(qa(6)) < found[GPU].index(qa(5))


async def test_a_block_stands_once_where_it_was_put_last(knowledge: KnowledgeStore) -> None:
    await put(knowledge, GPU, block(0), block(1))
    await put(knowledge, GPU, block(0, conversation=THREAD))
    assert knowledge.read_topic(GPU) == (block(0, conversation=THREAD), block(1))
    await put(knowledge, NODE, block(0))
    assert (knowledge.read_topic(GPU), knowledge.read_topic(NODE)) == ((block(1),), (block(0),))


async def test_blocks_are_taken_out_by_any_ids_that_a_model_may_name(knowledge: KnowledgeStore) -> None:
    await put(knowledge, GPU, block(0), block(1), block(2))
    named = [FIRST, QAId(SECOND.removesuffix(".000000")), QAId("nonsense"), qa(9)]
    removed = await knowledge.change(lambda change: change.remove_blocks(named))
    assert removed == [(GPU, FIRST), (GPU, SECOND)]
    assert knowledge.read_topic(GPU) == (block(2),)


async def test_a_topic_without_blocks_is_gone_and_has_no_text(knowledge: KnowledgeStore) -> None:
    await put(knowledge, GPU, block(0))
    await knowledge.change(lambda change: change.remove_blocks([FIRST]))
    assert (knowledge.topic_names(), knowledge.read_topic(GPU), knowledge.topic_versions()) == ((), (), {})
    with pytest.raises(SourceError, match="no topic gpu"):
        knowledge.read_text(GPU)


async def test_a_pair_is_found_however_its_fraction_is_written(knowledge: KnowledgeStore) -> None:
    await put(knowledge, NODE, block(0, conversation=THREAD))
    assert FIRST.endswith(".000000")
    assert knowledge.find_topic(QAId(FIRST.removesuffix(".000000"))) == NODE
    assert knowledge.find_topic(SECOND) is None
    assert knowledge.find_topic(QAId("../gpu")) is None
    assert knowledge.find_conversation_pairs(THREAD) == [(NODE, FIRST)]
    assert knowledge.find_conversation_pairs(REPLY) == []


async def test_followers_read_each_topic_that_gained_or_lost_a_block(knowledge: KnowledgeStore) -> None:
    await put(knowledge, GPU, block(0), block(1))
    [gpu] = knowledge.topic_versions().values()
    await put(knowledge, NODE, block(0))  # it leaves the other topic
    assert await changed_after(knowledge, gpu[1]) == {GPU, NODE}
    versions = knowledge.topic_versions()
    assert versions[GPU] == (len(knowledge.read_text(GPU).encode()), versions[NODE][1])
    await decide(knowledge, filed())
    await put(KnowledgeDraft(knowledge), TopicName("drafted"), block(1))
    assert await changed_after(knowledge, versions[GPU][1]) == set()


async def test_half_a_character_becomes_a_whole_one(knowledge: KnowledgeStore) -> None:
    await put(knowledge, GPU, block(0, text="half \ud83d and \0"))
    assert knowledge.read_topic(GPU) == (block(0, text="half \ufffd and \0"),)
    await decide(knowledge, PairSkipped(qa_id=FIRST, at=START, reason="half \ud83d"))
    taken = PairSkipped(qa_id=FIRST, at=START, reason="half \ufffd")
    for each in (knowledge, reread(knowledge)):
        assert (each.read_decisions(), each.last_decision(FIRST)) == ([taken], taken)


# Decisions.


decisions = st.one_of(
    st.builds(filed, st.sampled_from([FIRST, SECOND, THIRD])),
    st.builds(PairSkipped, qa_id=st.sampled_from([FIRST, SECOND, THIRD]), at=st.just(START), reason=st.text()),
    st.builds(PairParked, qa_id=st.sampled_from([FIRST, SECOND, THIRD]), at=st.just(START), reason=st.text()),
    st.builds(PairReplaced, qa_id=st.sampled_from([FIRST, SECOND]), by=st.just(THIRD), at=st.just(START)),
    st.builds(PairRemoved, qa_id=st.sampled_from([FIRST, SECOND]), at=st.just(START)),
    st.builds(PairMoved, qa_id=st.sampled_from([FIRST, SECOND]), topic=st.just(NODE), at=st.just(START)),
    st.builds(PairReviewRequested, qa_id=st.sampled_from([FIRST, SECOND, THIRD]), at=st.just(START)),
    st.builds(PairApproved, qa_id=st.sampled_from([FIRST, SECOND, THIRD]), by=st.just("9"), at=st.just(START)),
    st.builds(PairRejected, qa_id=st.sampled_from([FIRST, SECOND, THIRD]), by=st.just("9"), at=st.just(START)),
    st.builds(
        MessagesWithdrawn, message_ids=st.lists(st.sampled_from("123").map(MessageId)).map(tuple), at=st.just(START)
    ),
    st.builds(
        MessagesForgotten,
        message_ids=st.lists(st.sampled_from("123").map(MessageId)).map(tuple),
        user_id=st.sampled_from([None, UserId("9")]),
        at=st.just(START),
    ),
)


@settings(deadline=None, max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.lists(st.lists(decisions, max_size=3), max_size=4))
def test_all_that_was_decided_is_known_live_and_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory, changes: list[list[Decision]]
) -> None:
    taken = [each for some in changes for each in some]
    about_pairs = [each for each in taken if not isinstance(each, MessagesWithdrawn | MessagesForgotten)]
    gone = {
        each for said in taken if isinstance(said, MessagesWithdrawn | MessagesForgotten) for each in said.message_ids
    }
    last_of = {each.qa_id: each for each in about_pairs}
    said_of = {each.qa_id: each for each in about_pairs if isinstance(each, PairApproved | PairRejected)}

    def check(knowledge: KnowledgeStore) -> None:
        assert knowledge.read_decisions() == taken
        assert {each for each in map(MessageId, "123") if knowledge.is_withdrawn(each)} == gone
        for qa_id in (FIRST, SECOND, THIRD):
            assert knowledge.last_decision(qa_id) == last_of.get(qa_id)
            assert knowledge.last_review(qa_id) == said_of.get(qa_id)
        waiting = (
            (PairApproved, knowledge.list_due()),
            (PairParked, knowledge.list_parked()),
            (PairReviewRequested, knowledge.list_awaiting_review()),
        )
        for kind, told in waiting:
            assert list(told) == [last for _, last in sorted(last_of.items()) if isinstance(last, kind)]
        forgotten = any(isinstance(each, MessagesForgotten) and each.user_id for each in taken)
        assert knowledge.is_forgotten(UserId("9"), position_at(START).id) == forgotten
        assert knowledge.cursor() == max((each.qa_id for each in about_pairs), default=None)
        # A follower that reads some at a time reads each once.
        followed: list[Decision] = []
        position = 0
        while some := knowledge.decisions_after(position, 2):
            assert len(some) <= 2
            followed += [each.decision for each in some]
            position = some[-1].position
        assert followed == taken

    async def live() -> None:
        async with knowledge_in(tmp_path_factory.getbasetemp(), community=f"story {next(_stories)}") as knowledge:
            for some in changes:
                await decide(knowledge, *some)
            check(knowledge)
            check(reread(knowledge))

    anyio.run(live)


async def test_a_message_is_met_however_its_id_is_written(knowledge: KnowledgeStore) -> None:
    await decide(knowledge, MessagesWithdrawn(message_ids=(MessageId("11"), MessageId("msg_12")), at=START))
    assert all(map(knowledge.is_withdrawn, map(MessageId, ("11", "msg_11", "12", "msg_12"))))
    assert not knowledge.is_withdrawn(MessageId("13"))


async def test_what_a_member_wrote_before_the_wish_to_be_forgotten_is_and_what_comes_later_is_not(
    knowledge: KnowledgeStore,
) -> None:
    member, other = UserId("9"), UserId("10")
    before, at, later = (position_at(START + timedelta(seconds=n)).id for n in (-1, 0, 1))
    await decide(
        knowledge,
        MessagesForgotten(message_ids=(MessageId("11"),), user_id=member, at=START),
        MessagesForgotten(message_ids=(), user_id=member, at=START - timedelta(days=1)),
    )
    for each in (knowledge, reread(knowledge)):
        assert [each.is_forgotten(member, message) for message in (before, at, later)] == [True, True, False]
        assert each.is_forgotten(member, MessageId(f"msg_{before}"))
        assert not each.is_forgotten(other, before)
        # An id that tells no time may be of any time.
        assert each.is_forgotten(member, MessageId("from-elsewhere"))
        assert each.is_withdrawn(MessageId("msg_11"))
        assert not each.is_withdrawn(before)


@pytest.mark.rest
async def test_the_few_that_wait_are_found_without_a_look_at_all_that_was_decided(knowledge: KnowledgeStore) -> None:
    await decide(knowledge, *(filed(qa(n)) for n in range(5000)))
    waiting = [PairParked(qa_id=qa(n), at=START, reason="") for n in (9, 8, 7)]
    await decide(knowledge, *waiting, filed(waiting[0].qa_id))
    assert knowledge.list_parked() == waiting[:0:-1]
    assert cpu_seconds(knowledge.list_parked) < 0.002


async def test_deciding_anew_about_an_older_pair_leaves_the_cursor_where_it_is(knowledge: KnowledgeStore) -> None:
    await decide(knowledge, PairParked(qa_id=FIRST, at=START), filed(THIRD))
    for decision in (PairApproved(qa_id=FIRST, at=START), PairMoved(qa_id=FIRST, topic=NODE, at=START)):
        await decide(knowledge, decision)
        assert knowledge.cursor() == reread(knowledge).cursor() == THIRD


async def test_ids_are_compared_as_times(knowledge: KnowledgeStore) -> None:
    bare = QAId(FIRST.removesuffix(".000000"))
    await decide(knowledge, PairSkipped(qa_id=QAId(f"{bare}.000001"), at=START), PairParked(qa_id=bare, at=START))
    assert knowledge.cursor() == f"{bare}.000001"
    assert knowledge.last_decision(FIRST) == PairParked(qa_id=bare, at=START)
    assert knowledge.last_decision(SECOND) is None
    assert knowledge.last_decision(QAId("nonsense")) is None


# The whole of it, against a model in plain memory.


class Plain:
    """Blocks by their numbers, each in one topic; the decisions; the same for a draft."""

    def __init__(self) -> None:
        self.blocks: tuple[dict[int, tuple[TopicName, TopicBlock]], ...] = ({}, {})
        self.decided: tuple[list[Decision], ...] = ([], [])
        self.gone: set[str] = set()

    def topics(self, draft: int) -> dict[TopicName, tuple[TopicBlock, ...]]:
        found: dict[TopicName, list[TopicBlock]] = {}
        for _, (topic, each) in sorted(self.blocks[draft].items()):
            found.setdefault(topic, []).append(each)
        return {topic: tuple(found[topic]) for topic in sorted(found)}


_TOPICS = st.sampled_from([GPU, NODE, TopicName("third")])
_NUMBERS = st.integers(0, 5)
_DRAFT = st.integers(0, 1)
_ACTS = st.one_of(
    st.tuples(st.just("file"), _DRAFT, _TOPICS, st.tuples(_NUMBERS, st.sampled_from([None, THREAD, REPLY]))),
    st.tuples(st.just("split"), _DRAFT, _TOPICS, st.sets(_NUMBERS)),
    st.tuples(st.just("withdraw"), st.just(0), _TOPICS, st.sets(_NUMBERS, max_size=2)),
    st.tuples(st.sampled_from(["switch", "discard", "raise", "restart"]), st.just(0), _TOPICS, st.none()),
)


class Both:
    """The real one and the plain one, side by side."""

    def __init__(self, knowledge: KnowledgeStore) -> None:
        self.knowledge = knowledge
        self.draft = KnowledgeDraft(knowledge)
        self.plain = Plain()

    async def act(self, kind: str, draft: int, topic: TopicName, given: object) -> None:
        await getattr(self, f"_{kind}")(draft, topic, given)

    async def _change(self, draft: int, work: Callable[[KnowledgeChange], None]) -> None:
        await (self.draft if draft else self.knowledge).change(work)

    async def _file(self, draft: int, topic: TopicName, given: tuple[int, ConversationId | None]) -> None:
        n, conversation = given
        if str(n) in self.plain.gone:
            return
        added, decision = block(n, conversation=conversation), PairFiled(qa_id=qa(n), topic=topic, at=START)

        def work(change: KnowledgeChange) -> None:
            change.file_blocks(topic, added)
            change.decide(decision)

        await self._change(draft, work)
        self.plain.blocks[draft][n] = (topic, added)
        self.plain.decided[draft].append(decision)

    async def _split(self, draft: int, topic: TopicName, numbers: set[int]) -> None:
        there = self.plain.blocks[draft]
        moving = [n for n in sorted(numbers) if n in there]
        moved = [PairMoved(qa_id=qa(n), topic=topic, at=START) for n in moving]

        def work(change: KnowledgeChange) -> None:
            change.file_blocks(topic, *(there[n][1] for n in moving))
            change.decide(*moved)

        await self._change(draft, work)
        there.update({n: (topic, there[n][1]) for n in moving})
        self.plain.decided[draft].extend(moved)

    async def _withdraw(self, _draft: int, _topic: TopicName, numbers: set[int]) -> None:
        decision = MessagesWithdrawn(message_ids=tuple(MessageId(str(n)) for n in sorted(numbers)), at=START)

        def work(change: KnowledgeChange) -> None:
            change.decide(decision)
            for each in (change, change.as_draft()):
                each.remove_blocks(map(qa, numbers))

        await self.knowledge.change(work)
        self.plain.gone.update(map(str, numbers))
        self.plain.decided[0].append(decision)
        for blocks in self.plain.blocks:
            for n in numbers:
                blocks.pop(n, None)

    async def _switch(self, *_: object) -> None:
        drafted = await anyio.to_thread.run_sync(self.draft.list_decisions)
        await self.knowledge.change(lambda change: change.switch_to_draft(drafted))
        self.plain.decided[0].extend(self.plain.decided[1])
        self.plain.decided[1].clear()
        self.plain.blocks = (self.plain.blocks[1], {})
        self.draft = KnowledgeDraft(self.knowledge)

    async def _discard(self, *_: object) -> None:
        await self.knowledge.change(KnowledgeChange.discard_draft)
        self.plain.decided[1].clear()
        self.plain.blocks[1].clear()
        self.draft = KnowledgeDraft(self.knowledge)

    async def _raise(self, _draft: int, topic: TopicName, _given: None) -> None:
        def work(change: KnowledgeChange) -> None:
            change.file_blocks(topic, block(5))
            change.decide(filed(qa(5)), MessagesWithdrawn(message_ids=(MessageId("5"),), at=START))
            change.switch_to_draft([])
            raise KeyError(topic)

        with pytest.raises(KeyError):
            await self.knowledge.change(work)

    async def _restart(self, *_: object) -> None:
        self.knowledge = reread(self.knowledge)
        self.draft = KnowledgeDraft(self.knowledge)

    async def check(self) -> None:
        # Nothing is left of what was replaced or discarded: it may have to be forgotten.
        left = await self.knowledge.db.number("select count(*) from blocks where community = :community")
        assert left == sum(map(len, self.plain.blocks))
        for draft, real in enumerate((self.knowledge, self.draft)):
            topics = self.plain.topics(draft)
            assert {name: real.read_topic(name) for name in real.topic_names()} == topics
            assert {name: real.read_text(name) for name in topics} == {
                name: "".join(map(format_topic_block, blocks)) for name, blocks in topics.items()
            }
            assert list(real.topic_versions()) == list(topics)
            blocks = self.plain.blocks[draft]
            for n in range(6):
                assert real.find_topic(qa(n)) == (blocks[n][0] if n in blocks else None)
            for conversation in (THREAD, REPLY):
                assert real.find_conversation_pairs(conversation) == [
                    (topic, each.qa_id)
                    for _, (topic, each) in sorted(blocks.items())
                    if each.conversation_id == conversation
                ]
            decided = self.plain.decided[draft]
            assert real.read_decisions() == decided
            last: dict[QAId, PairDecision] = {
                each.qa_id: each for each in decided if not isinstance(each, MessagesWithdrawn | MessagesForgotten)
            }
            assert {qa(n): found for n in range(6) if (found := real.last_decision(qa(n)))} == last
            assert real.cursor() == max(last, key=qa_id_time, default=None)
            assert {str(n) for n in range(6) if real.is_withdrawn(MessageId(str(n)))} == self.plain.gone


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(acts=st.lists(_ACTS, max_size=14))
def test_whatever_is_filed_split_withdrawn_and_switched_it_is_as_in_a_plain_model(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int, TopicName, object]]
) -> None:
    async def live() -> None:
        async with knowledge_in(tmp_path_factory.getbasetemp(), community=f"story {next(_stories)}") as knowledge:
            both = Both(knowledge)
            for act in acts:
                await both.act(*act)
                await both.check()

    anyio.run(live)
