"""Many questions at once, a thread's one after the other; additions join, withdrawn questions get no reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from anyio import Event, create_memory_object_stream, fail_after, wait_all_tasks_blocked
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import structs
from structlog.testing import capture_logs

from intern.actors.activity import ActivityReporter
from intern.actors.responder import AT_ONCE, ROOM, Responder
from intern.answering.replies import ReplyBuilder
from intern.answering.wordings import Wording
from intern.chat.delivery import RecallableReplies
from intern.chat.options import ConversationOptions
from intern.core.errors import ChatError, ChatRefusedError, ChatUnavailableError, KnowledgeError
from intern.core.flow import AnswerRequest, MessageRevisions, Reply
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import AnswerResult, Channel, Conversation, RequestContext
from intern.stores.tables.answers import AnswerStore, QuestionWords
from tests.worlds.actors import Settlements, running
from tests.worlds.clock import HandClock
from tests.worlds.samples import CHANNEL, GUILD, answer_request, author, message

WORDING = Wording(
    unknown="unknown",
    links="perhaps",
    handoff="handed off",
    refused="not mine",
    cannot_look="cannot look",
    over_budget="over budget",
    greeting="hi",
    limit="enough",
    busy="full",
    late="away",
    voice="voice",
    unposted="unposted",
    retracted="taken back",
    welcome="hello",
)
THREAD = ChannelId("70")
SILENCE = AnswerResult(should_reply=False, reason="no_sources", debug={"seconds": 1})


class Answers:
    """Echoes each question, unless a test has another outcome for its text; `slow` ones wait for a gate."""

    def __init__(self) -> None:
        self.gate = Event()
        self.slow: set[MessageId | None] = set()
        self.outcomes: dict[str, AnswerResult | Exception] = {}
        self.begun: list[str] = []
        self.ended: list[str] = []

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        question = " ".join(each.text for each in conversation.messages)
        self.begun.append(question)
        try:
            if not self.slow.isdisjoint(each.id for each in conversation.messages):
                await self.gate.wait()
        finally:
            self.ended.append(question)
        outcome = self.outcomes.get(question)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome or AnswerResult(should_reply=True, reply_text=f"echo: {question}")


class Desk:
    """The surroundings of the responder, as far as tests check them."""

    def __init__(self, questions: int = 100, replies: int = 100) -> None:
        self.answers = Answers()
        self.outgoing = RecallableReplies()
        self.settlements = Settlements()
        self.settled = self.settlements.ids
        self.kept: dict[str, tuple[str, str]] = {}
        self.typed: list[ChannelId] = []
        self.typing_fails: ChatError | None = None
        self.records_fail = 0
        self.done: set[MessageId] = set()
        streams = create_memory_object_stream[AnswerRequest | MessageRevisions](questions)
        self.requests: MemoryObjectSendStream[AnswerRequest | MessageRevisions] = streams[0]
        self.inbox: MemoryObjectReceiveStream[AnswerRequest | MessageRevisions] = streams[1]
        self.replies, self.posted = create_memory_object_stream[Reply](replies)
        self.collaborators = Responder(
            answers=self.answers,
            replying=ReplyBuilder({"en": WORDING}, ConversationOptions()),
            outgoing=self.outgoing,
            done_with=self.done_with,
            typing=self.typing,
            records=Records(self),
            settle=self.settlements.settle,
            events=ActivityReporter(),
        )

    async def typing(self, channel_id: ChannelId) -> None:
        self.typed.append(channel_id)
        if self.typing_fails:
            raise self.typing_fails

    async def done_with(self, question_id: MessageId) -> bool:
        return question_id in self.done

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        """Run the responder within the block; at the end, questions in work are given up."""
        with fail_after(5), self.posted, self.requests:
            async with running(self.run):
                yield
                await wait_all_tasks_blocked()

    async def run(self) -> None:
        await self.collaborators.run(self.inbox, self.replies)

    def slow(self, asked: AnswerRequest) -> AnswerRequest:
        """Let this question wait for the gate, with what joins it."""
        self.answers.slow.add(asked.batch.messages[0].id)
        return asked

    async def ask(self, *items: AnswerRequest | MessageRevisions) -> None:
        for item in items:
            await self.requests.send(item)
            await wait_all_tasks_blocked()

    async def replied(self) -> list[str]:
        await wait_all_tasks_blocked()
        texts: list[str] = []
        while self.posted.statistics().current_buffer_used:
            texts.append(self.posted.receive_nowait().text)
        return texts


class Records(AnswerStore):
    """Remembers the outcomes of questions."""

    def __init__(self, desk: Desk) -> None:
        self._desk, self.clock = desk, HandClock()

    async def save(
        self,
        message_ids: Sequence[MessageId],
        channel_id: ChannelId,
        *,
        outcome: str,
        reason: str = "",
        debug: Mapping[str, Any] | None = None,
        words: QuestionWords | None = None,
        beside: bool = False,
    ) -> None:
        if self._desk.records_fail:
            self._desk.records_fail -= 1
            raise KnowledgeError("full")
        self._desk.kept[message_ids[-1]] = outcome, reason


def request(text: str, n: int = 0, by: str = "alice", *, thread: bool = False) -> AnswerRequest:
    asked = answer_request(message(text, n=n, by=author(by), channel=THREAD if thread else CHANNEL))
    if thread:
        place = Channel(id=THREAD, guild_id=GUILD, kind="thread", parent_id=CHANNEL)
        asked = structs.replace(asked, channel=place)
    return asked


def missed(asked: AnswerRequest) -> AnswerRequest:
    """Make the same question, read from history."""
    return structs.replace(asked, batch=structs.replace(asked.batch, from_history=True))


def ids(*requests: AnswerRequest) -> list[str]:
    return [each.id for request in requests for each in request.batch.messages]


def withdrawal(*requests: AnswerRequest) -> MessageRevisions:
    return MessageRevisions(versions={each.id: None for request in requests for each in request.batch.messages})


class TestResponder:
    async def test_answers_become_replies_to_the_last_message_and_silence_is_settled_with_its_reason(self) -> None:
        desk = Desk()
        desk.answers.outcomes = {"hm": SILENCE, "oh": KnowledgeError("the disk is gone")}
        asked = [request(text, n, by=f"user {n}") for n, text in enumerate(["why", "hm", "oh", "how"])]
        for each in asked:
            desk.requests.send_nowait(each)
        desk.requests.close()
        with desk.posted:
            await desk.run()
            replies = {reply.text: reply async for reply in desk.posted}

        why, silent, broken, how = asked
        assert set(replies) == {"echo: why", "echo: how"}
        assert replies["echo: how"].question == how.batch.last
        assert replies["echo: how"].settles == tuple(ids(how))
        assert desk.settled == ids(silent)
        assert desk.kept == {
            why.batch.last.id: ("answer", ""),
            how.batch.last.id: ("answer", ""),
            silent.batch.last.id: ("silent", "no_sources"),
        }
        assert broken.batch.last.id not in desk.settled, "nobody looked: the next start does"

    async def test_who_calls_the_bot_gets_a_word(self) -> None:
        desk = Desk()
        desk.answers.outcomes = {"hm": SILENCE}
        async with desk.at_work():
            await desk.ask(structs.replace(request("hm"), called=True))
            assert await desk.replied() == ["unknown"]
            assert desk.settled == []
            assert list(desk.kept.values()) == [("notice", "no_sources")]

    async def test_a_quick_question_overtakes_a_slow_one(self) -> None:
        desk = Desk()
        async with desk.at_work():
            await desk.ask(desk.slow(request("slow", 1)), request("quick", 2, by="bob"))
            assert await desk.replied() == ["echo: quick"]
            desk.answers.gate.set()
            assert await desk.replied() == ["echo: slow"]

    async def test_in_a_thread_questions_are_answered_one_by_one_first_come_first_served(self) -> None:
        desk = Desk()
        async with desk.at_work():
            asked = [desk.slow(request(f"slow {n}", n, by=f"user {n}", thread=True)) for n in range(3)]
            await desk.ask(*asked, request("elsewhere", 9))
            assert desk.answers.begun == ["slow 0", "elsewhere"]
            assert await desk.replied() == ["echo: elsewhere"]
            desk.answers.gate.set()
            assert await desk.replied() == ["echo: slow 0", "echo: slow 1", "echo: slow 2"]

    async def test_a_stalled_model_leaves_further_questions_in_the_stream(self) -> None:
        desk = Desk()
        async with desk.at_work():
            for n in range(ROOM + 5):
                desk.requests.send_nowait(desk.slow(request("slow", n, by="x" * n)))
            await wait_all_tasks_blocked()
            assert len(desk.answers.begun) == AT_ONCE
            assert desk.inbox.statistics().current_buffer_used == 4  # one more is in hand
            desk.answers.gate.set()
            assert len(await desk.replied()) == ROOM + 5

    async def test_what_was_answered_before_a_restart_costs_no_model_call(self) -> None:
        desk, known = Desk(), request("how")
        desk.done.add(known.batch.last.id)
        async with desk.at_work():
            await desk.ask(known)
            assert desk.answers.begun == []
            assert desk.settled == ids(known)

    async def test_of_messages_that_are_asked_together_those_without_a_reply_are_answered_whichever_are_done(
        self,
    ) -> None:
        desk = Desk()
        first, second = desk.slow(request("how", 1)), request("on Windows", 2)
        desk.done.add(second.batch.last.id)
        async with desk.at_work():
            await desk.ask(first, second)
            desk.answers.gate.set()
            await wait_all_tasks_blocked()
            reply = desk.posted.receive_nowait()
        assert reply.settles == tuple(ids(first))
        assert desk.settled == ids(second)

    # Issue 45: a PostgreSQL server that is killed while it saves the trace.
    @pytest.mark.parametrize("failures", [1, 2])
    async def test_a_trace_that_is_not_kept_is_kept_again_or_logged_and_costs_nobody_an_answer(
        self, failures: int
    ) -> None:
        desk, asked = Desk(), request("how")
        desk.records_fail = failures
        with capture_logs() as logs:
            async with desk.at_work():
                await desk.ask(asked)
                assert await desk.replied() == ["echo: how"]
        question = asked.batch.last.id
        assert desk.kept == ({question: ("answer", "")} if failures == 1 else {})
        unusual = [(log["event"], log["message_id"]) for log in logs if log["log_level"] in {"warning", "error"}]
        assert unusual == [("record_not_saved", question)] * (failures - 1)


class TestSuperseding:
    @pytest.mark.parametrize("thread", [True, False])
    async def test_what_the_asker_adds_joins_the_question_in_work(self, *, thread: bool) -> None:
        desk = Desk()
        first, second = desk.slow(request("how", 1, thread=thread)), request("on Windows", 2, thread=thread)
        async with desk.at_work():
            await desk.ask(first, second)
            assert desk.answers.ended == ["how"], "the older answer is cancelled, for it is not needed"
            assert desk.answers.begun[1:] == ["how on Windows"]
            desk.answers.gate.set()
            await wait_all_tasks_blocked()
            reply = desk.posted.receive_nowait()
            assert await desk.replied() == []
        assert reply.question == second.batch.last
        assert reply.settles == tuple(ids(first, second))
        assert desk.settled == []

    async def test_what_an_earlier_process_left_is_posted_before_what_was_added_to_it_is_thought_over(self) -> None:
        desk = Desk()
        first, second = desk.slow(request("how", 1)), request("on Windows", 2)
        async with desk.at_work():
            with desk.outgoing.resuming():
                await desk.ask(first, second)
                assert desk.answers.begun == ["how"]
                desk.done |= {first.batch.last.id}
            await wait_all_tasks_blocked()
            desk.answers.gate.set()
            await wait_all_tasks_blocked()
            reply = desk.posted.receive_nowait()
        assert reply.settles == tuple(ids(second))
        assert desk.settled == ids(first)

    async def test_what_the_asker_adds_joins_the_question_in_line_and_keeps_its_turn(self) -> None:
        desk = Desk()
        async with desk.at_work():
            await desk.ask(
                desk.slow(request("slow", 1, by="bob", thread=True)),
                request("how", 2, thread=True),
                request("why", 3, by="carol", thread=True),
                request("on Windows", 4, thread=True),
            )
            desk.answers.gate.set()
            assert await desk.replied() == ["echo: slow", "echo: how on Windows", "echo: why"]

    # Finding I5.
    @pytest.mark.parametrize("thread", [True, False])
    async def test_what_history_brings_at_once_and_was_asked_apart_is_answered_apart(self, *, thread: bool) -> None:
        desk = Desk()
        asked = [missed(request(text, n, thread=thread)) for n, text in enumerate(("how", "why", "where"))]
        desk.slow(asked[0])
        async with desk.at_work():
            await desk.ask(*asked)
            desk.answers.gate.set()
            assert await desk.replied() == ["echo: how", "echo: why", "echo: where"]
            # Nor are replies that have not left taken back.
            await desk.ask(missed(request("when", 3, thread=thread)))
            assert await desk.replied() == ["echo: when"]
        assert [desk.outgoing.find_recall_reason(each.batch.last.id) for each in asked] == [None] * 3

    # Finding I5.
    async def test_what_the_asker_adds_now_joins_the_question_that_history_brought(self) -> None:
        desk = Desk()
        async with desk.at_work():
            await desk.ask(missed(desk.slow(request("how", 1))), request("on Windows", 2))
            desk.answers.gate.set()
            assert await desk.replied() == ["echo: how on Windows"]

    async def test_of_several_questions_it_joins_the_newest(self) -> None:
        desk = Desk()
        async with desk.at_work():
            await desk.ask(missed(desk.slow(request("how", 1))), missed(request("why", 2)), request("on Windows", 3))
            desk.answers.gate.set()
            assert await desk.replied() == ["echo: how", "echo: why on Windows"]

    async def test_other_askers_and_other_places_take_nothing_over(self) -> None:
        desk = Desk()
        async with desk.at_work():
            await desk.ask(
                desk.slow(request("slow", 1)), request("quick", 2, by="bob"), request("quick too", 3, thread=True)
            )
            desk.answers.gate.set()
            assert sorted(await desk.replied()) == ["echo: quick", "echo: quick too", "echo: slow"]

    async def test_a_reply_that_has_not_left_is_taken_back_and_asked_anew_with_what_was_added(self) -> None:
        desk, first = Desk(), request("how", 1)
        async with desk.at_work():
            await desk.ask(first)
            assert await desk.replied() == ["echo: how"]
            await desk.ask(request("on Windows", 2))
            assert desk.outgoing.find_recall_reason(first.batch.last.id) == "superseded"
            assert not desk.outgoing.begin_posting(first.batch.last.id)
            assert await desk.replied() == [], "the ledger still has the one that was taken back"
            desk.outgoing.remove_reply(first.batch.last.id)
            assert await desk.replied() == ["echo: how on Windows"]
            assert desk.settled == []

    async def test_a_reply_that_has_left_stays_and_what_was_added_is_a_question_of_its_own(self) -> None:
        desk, first = Desk(), request("how", 1)
        async with desk.at_work():
            await desk.ask(first)
            assert desk.outgoing.begin_posting(first.batch.last.id)
            await desk.ask(request("on Windows", 2))
            assert await desk.replied() == ["echo: how", "echo: on Windows"]

    async def test_a_reply_that_waits_for_room_is_taken_back_too(self) -> None:
        desk = Desk(replies=0)
        async with desk.at_work():
            first = request("how", 1)
            await desk.ask(first, request("on Windows", 2))
            assert (await desk.posted.receive()).text == "echo: how"
            assert not desk.outgoing.begin_posting(first.batch.last.id)
            desk.outgoing.remove_reply(first.batch.last.id)
            assert (await desk.posted.receive()).text == "echo: how on Windows"


class TestWithdrawing:
    async def test_a_withdrawn_question_in_work_is_given_up_and_settled(self) -> None:
        desk = Desk()
        asked = desk.slow(answer_request(message("slow", n=1), message("how", n=2)))
        async with desk.at_work():
            await desk.ask(asked, withdrawal(asked))
            assert desk.answers.ended == ["slow how"]
            desk.answers.gate.set()
            assert await desk.replied() == []
            assert desk.settled == ids(asked)
            assert desk.kept[asked.batch.last.id] == ("withdrawn", "")

    async def test_what_is_left_of_a_question_is_asked_again(self) -> None:
        desk = Desk()
        first = message("slow", n=1)
        async with desk.at_work():
            await desk.ask(
                desk.slow(answer_request(first, message("how", n=2))), MessageRevisions(versions={first.id: None})
            )
            assert await desk.replied() == ["echo: how"]
            assert desk.settled == [first.id]

    # Finding A11.
    async def test_what_is_left_of_a_question_and_the_next_message_of_its_asker_are_one_question(self) -> None:
        desk = Desk()
        gone, left = message("slow", n=1), message("how", n=2)
        more = request("on Windows", 3)
        async with desk.at_work():
            await desk.ask(desk.slow(answer_request(gone, left)))
            desk.answers.gate.set()
            assert await desk.replied() == ["echo: slow how"]
            desk.requests.send_nowait(MessageRevisions(versions={gone.id: None}))
            desk.requests.send_nowait(more)
            await wait_all_tasks_blocked()
            desk.outgoing.remove_reply(left.id)
            await wait_all_tasks_blocked()
            reply = desk.posted.receive_nowait()
            assert await desk.replied() == []
        assert reply.settles == (left.id, *ids(more))

    # Finding A11: a question that is asked again must not be lost on its way.
    async def test_what_is_left_of_a_question_can_be_withdrawn_at_once(self) -> None:
        desk, lines = Desk(), (message("what", n=1), message("how", n=2))
        async with desk.at_work():
            await desk.ask(answer_request(*lines))
            assert await desk.replied() == ["echo: what how"]
            for each in lines:
                desk.requests.send_nowait(MessageRevisions(versions={each.id: None}))
            assert await desk.replied() == []
            assert desk.settled == [each.id for each in lines]

    async def test_a_withdrawn_question_in_line_is_not_begun(self) -> None:
        desk, asked = Desk(), request("how", 2, thread=True)
        async with desk.at_work():
            await desk.ask(desk.slow(request("slow", 1, by="bob", thread=True)), asked, withdrawal(asked))
            desk.answers.gate.set()
            assert await desk.replied() == ["echo: slow"]
            assert desk.settled == ids(asked)

    async def test_a_withdrawn_question_is_not_posted_once_answered_unless_its_reply_has_left(self) -> None:
        desk, asked, gone = Desk(), request("how", 1), request("why", 2, by="bob")
        async with desk.at_work():
            await desk.ask(asked, gone)
            desk.outgoing.begin_posting(gone.batch.last.id)
            await desk.ask(withdrawal(asked, gone))
            assert desk.outgoing.find_recall_reason(asked.batch.last.id) == "withdrawn"
            assert desk.outgoing.find_recall_reason(gone.batch.last.id) is None
            assert desk.settled == ids(asked)

    async def test_withdrawals_get_through_though_everybody_waits_for_the_model(self) -> None:
        desk = Desk()
        asked = [desk.slow(request("slow", n, by="x" * n)) for n in range(ROOM)]
        async with desk.at_work():
            await desk.ask(*asked, withdrawal(*asked[:3]))
            assert sorted(desk.settled) == ids(*asked[:3])
            assert len(desk.answers.begun) == AT_ONCE + 3

    async def test_foreign_messages_concern_nobody_and_who_asks_again_is_answered(self) -> None:
        desk = Desk()
        asked = desk.slow(request("slow", 1))
        async with desk.at_work():
            await desk.ask(asked, MessageRevisions(versions={MessageId("7"): None}))
            assert desk.answers.ended == []
            # Both at once, while the withdrawn question is still being cancelled.
            desk.requests.send_nowait(withdrawal(asked))
            desk.requests.send_nowait(request("how", 2))
            assert await desk.replied() == ["echo: how"]


class TestEditing:
    def edit(self, asked: AnswerRequest, text: str) -> MessageRevisions:
        last = asked.batch.last
        return MessageRevisions(versions={last.id: structs.replace(last, text=text)})

    async def test_an_edited_question_in_work_is_answered_as_it_reads_now(self) -> None:
        desk = Desk()
        asked = desk.slow(answer_request(message("slow", n=1), message("how", n=2)))
        async with desk.at_work():
            await desk.ask(asked, self.edit(asked, "why"))
            assert desk.answers.ended == ["slow how"]
            desk.answers.gate.set()
            assert await desk.replied() == ["echo: slow why"]
            assert desk.settled == []

    async def test_a_reply_that_has_not_left_is_taken_back_when_its_question_is_edited(self) -> None:
        desk, asked, other = Desk(), request("how", 1), request("why", 2, by="bob")
        async with desk.at_work():
            await desk.ask(asked, other)
            desk.outgoing.begin_posting(other.batch.last.id)
            await desk.replied()
            await desk.ask(self.edit(asked, "how now"), self.edit(other, "why now"))
            desk.outgoing.remove_reply(asked.batch.last.id)
            assert await desk.replied() == ["echo: how now"]

    async def test_an_edit_that_was_read_before_changes_nothing(self) -> None:
        desk = Desk()
        asked = desk.slow(request("slow", 1))
        async with desk.at_work():
            await desk.ask(asked, self.edit(asked, "slow"))
            assert desk.answers.ended == []


def on_a_turned_clock(desk: Desk, *asked: AnswerRequest, seconds: float) -> None:
    """Let `seconds` of the fake clock pass during the model call."""

    async def story() -> None:
        with trio.fail_after(1000), desk.posted:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(desk.run)
                await desk.ask(*asked)
                await trio.sleep(seconds)
                desk.answers.gate.set()
                desk.requests.close()

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_bot_is_seen_typing_at_once_and_every_eight_seconds_until_it_has_thought() -> None:
    desk = Desk()
    on_a_turned_clock(desk, desk.slow(request("how?")), seconds=20)
    assert desk.typed == [CHANNEL] * 3


def test_at_what_is_no_question_it_is_not_seen_typing_before_it_took_a_while() -> None:
    desk = Desk()
    on_a_turned_clock(desk, desk.slow(request("slow morning")), seconds=7)
    assert desk.typed == []
    desk = Desk()
    on_a_turned_clock(desk, desk.slow(request("slow morning")), seconds=20)
    assert desk.typed == [CHANNEL] * 2


@pytest.mark.parametrize(("error", "times"), [(ChatUnavailableError("502"), 3), (ChatRefusedError("403"), 1)])
def test_typing_that_fails_costs_nobody_an_answer(error: ChatError, times: int) -> None:
    desk = Desk()
    desk.typing_fails = error
    on_a_turned_clock(desk, desk.slow(request("how?")), seconds=20)
    assert len(desk.typed) == times
    assert list(desk.kept.values()) == [("answer", "")]
