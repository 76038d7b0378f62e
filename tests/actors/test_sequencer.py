from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count, repeat

import pytest
import trio
import trio.testing
from anyio import Event, create_memory_object_stream, fail_after, wait_all_tasks_blocked
from msgspec.structs import replace

from intern.actors.activity import ActivityReporter
from intern.actors.loops import REFUSED_FOR_SECONDS, Backoff
from intern.actors.sequencer import ASIDE, AT_ONCE, Sequencer
from intern.answering.replies import Decliner, make_notice
from intern.chat.delivery import RecallableReplies
from intern.core.captures import CapturedPair
from intern.core.errors import ChatNotFoundError, ChatRefusedError, ChatUnavailableError, KnowledgeError
from intern.core.flow import (
    AnswerRequest,
    Batch,
    CaptureRequest,
    MessageEdited,
    MessageRevisions,
    MessagesDeleted,
    MessageWithdrawal,
    QuestionDeclined,
    Reply,
)
from intern.core.ids import ChannelId, ConversationId, MessageId
from intern.core.messages import ChatMessage
from intern.learning.message_changes import BatchChanges, MessageChanges
from intern.stores.archive import Archive
from tests.worlds.actors import FOR_EVER, NO_PAUSES, finishing, running
from tests.worlds.samples import GUILD, answer_request, author, batch, capture_request, message, pair

MIRA = author("mira", "team_member")


class Noting(ActivityReporter):
    """Remembers the shed and ignored batches."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def report_decline(self, declined: QuestionDeclined) -> None:
        self.dropped.append(declined.request.batch.last.text)

    def report_ignored_batch(self, batch: Batch) -> None:
        self.dropped.append(batch.last.text)


Route = Callable[[Batch], Sequence[AnswerRequest | CaptureRequest | QuestionDeclined]]


def ask(batch: Batch) -> list[AnswerRequest]:
    asked = answer_request(*batch.messages)
    return [replace(asked, batch=replace(asked.batch, from_history=batch.from_history))]


def call(batch: Batch) -> list[AnswerRequest]:
    """Ask the bot by name."""
    return [replace(asked, called=True) for asked in ask(batch)]


def decline(batch: Batch) -> list[QuestionDeclined]:
    return [QuestionDeclined(request=asked, reason="too old") for asked in call(batch)]


def capture(batch: Batch) -> list[CaptureRequest]:
    return [taught(*batch.messages)]


def capture_each(batch: Batch) -> list[CaptureRequest]:
    return [taught(each) for each in batch.messages]


def capture_and_ask(batch: Batch) -> list[AnswerRequest | CaptureRequest]:
    return [taught(*batch.messages[:-1]), answer_request(*batch.messages[1:])]


def ignore(batch: Batch) -> list[AnswerRequest]:
    return []


class Dispatch:
    """Routes each batch as the test says, by its last message.

    Holds back those named in `gates`. Those named in `trouble` fail with their error, once each.
    """

    def __init__(self) -> None:
        self.routes: dict[MessageId, Route] = {}
        self.gates: dict[str, Event] = {}
        self.trouble: dict[str, list[Exception]] = {}
        self.begun: list[str] = []

    async def dispatch(self, batch: Batch, /) -> Sequence[AnswerRequest | CaptureRequest | QuestionDeclined]:
        text = batch.last.text
        self.begun.append(text)
        if text in self.gates:
            await self.gates[text].wait()
        if self.trouble.get(text):
            raise self.trouble[text].pop(0)
        return self.routes[batch.last.id](batch)


class Refusing(Decliner):
    """Has a notice for every member who called the bot, and records all declines."""

    def __init__(self) -> None:
        self.accounts: list[str] = []
        self.gate = Event()
        self.gate.set()

    async def record_decline(self, declined: QuestionDeclined) -> None:
        await self.gate.wait()
        self.accounts.append(f"{declined.reason}: {declined.request.batch.last.text}")

    def decide_reply(self, declined: QuestionDeclined) -> Reply | None:
        return make_notice(declined.request, f"no, {declined.reason}") if declined.request.called else None


class Captured(Archive):
    """The archived messages, each in a conversation of its own."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def find_conversations(self, message_id: MessageId) -> tuple[ConversationId, ...]:
        return (ConversationId(f"reply_{message_id}"),) if message_id in self.ids else ()

    def latest_capture(self, conversation_id: ConversationId) -> CapturedPair | None:
        asked, _ = (held := pair(conversation=conversation_id)).message_ids
        return replace(held, message_ids=(asked, MessageId(conversation_id.removeprefix("reply_"))))


class Late(MessageChanges):
    """Counts the batches that are begun and not ended."""

    open = 0

    def start_collecting(self) -> BatchChanges:
        self.open += 1
        return super().start_collecting()

    def stop_collecting(self, meanwhile: BatchChanges) -> None:
        self.open -= 1
        super().stop_collecting(meanwhile)


class Desk:
    """A sequencer with streams to look into."""

    def __init__(self, *, answers: int = 10, captures: int = 10, words: int = 10) -> None:
        self.to_route, self.inbox = create_memory_object_stream[Batch | MessageEdited | MessagesDeleted](1000)
        self.answers, self.asked = create_memory_object_stream[AnswerRequest | MessageRevisions](answers)
        self.captures, self.taught = create_memory_object_stream[CaptureRequest](captures)
        self.withdrawals, self.withdrawn = create_memory_object_stream[MessageWithdrawal](10)
        self.words, self.said = create_memory_object_stream[Reply](words)
        self.dispatch, self.events, self.captured = Dispatch(), Noting(), Captured()
        self.refusing, self.outgoing = Refusing(), RecallableReplies()
        self.late = Late(self.captured, admits=self.admits)
        self._numbers = count()
        self.settled: list[str] = []
        self.twice: list[str] = []
        self.one_settled = Event()
        self.closed_channels: set[ChannelId] = set()

    def put(
        self, *texts: str | tuple[str, Route], route: Route = ignore, channel: str = "200", from_history: bool = False
    ) -> list[ChatMessage]:
        """Send a batch for each text, which takes this route unless it names its own."""
        named = [(text, route) if isinstance(text, str) else text for text in texts]
        messages = [message(text, n=next(self._numbers), channel=channel) for text, _ in named]
        for each, (_, own) in zip(messages, named, strict=True):
            self.send(each, route=own, from_history=from_history)
        return messages

    def send(self, *messages: ChatMessage, route: Route, from_history: bool = False) -> None:
        """Send a batch that takes this route."""
        self.dispatch.routes[messages[-1].id] = route
        self.to_route.send_nowait(replace(batch(*messages), from_history=from_history))

    def delete(self, *messages: ChatMessage) -> None:
        ids = tuple(each.id for each in messages)
        self.to_route.send_nowait(MessagesDeleted(guild_id=GUILD, channel_id=messages[0].channel_id, message_ids=ids))

    def edit(self, before: ChatMessage, text: str) -> None:
        self.to_route.send_nowait(MessageEdited(message=replace(before, text=text)))

    async def admits(self, channel_id: ChannelId) -> bool:
        return channel_id not in self.closed_channels

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId], /) -> None:
        self.settled += [f"{channel_id}:{each}" for each in message_ids]
        self.one_settled.set()

    async def run(self, backoff: Backoff = NO_PAUSES) -> None:
        await Sequencer(
            dispatch=self.dispatch.dispatch,
            declines=self.refusing,
            outgoing=self.outgoing,
            late=self.late,
            settle=self.settle,
            events=self.events,
            capturing=self.twice.extend,
            backoff=backoff,
        ).run(self.inbox, self.answers, self.captures, self.withdrawals, self.words)

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        """Run the sequencer within the block, and then until it has handled all events."""
        with fail_after(15), self.to_route, self.asked, self.taught, self.withdrawn, self.said:
            async with finishing(self.run):
                yield
                self.to_route.close()

    async def next_question(self) -> str:
        asked = await self.asked.receive()
        assert isinstance(asked, AnswerRequest)
        return asked.batch.last.text

    async def taken(self) -> tuple[list[str], list[str], list[str]]:
        """Return the texts of the routed questions and captures, and withdrawn ids; those of questions after `-`."""
        with self.asked, self.taught, self.withdrawn, self.said:
            captures = [request.messages[-1].text async for request in self.taught]
            asked = [
                f"-{','.join(each.versions)}" if isinstance(each, MessageRevisions) else each.batch.last.text
                async for each in self.asked
            ]
            return asked, captures, [",".join(each.message_ids) async for each in self.withdrawn]


def taught(*messages: ChatMessage) -> CaptureRequest:
    """Make the capture of a team member's batch, with the question before it."""
    return capture_request(message("How?", n=-60), *(replace(each, author=MIRA) for each in messages))


def places(*messages: ChatMessage) -> list[str]:
    return [f"{each.channel_id}:{each.id}" for each in messages]


async def test_each_batch_goes_where_it_belongs_and_all_streams_close_at_the_end() -> None:
    desk = Desk()
    desk.put(("ask 1", ask), ("capture 1", capture), "chatter", ("ask 2", ask))
    desk.to_route.close()
    await desk.run()
    assert await desk.taken() == (["ask 1", "ask 2"], ["capture 1"], [])
    assert desk.events.dropped == ["chatter"]


async def test_a_slow_batch_holds_up_its_own_channel_only() -> None:
    desk = Desk()
    slow = desk.dispatch.gates["ask slow"] = Event()
    desk.put("ask slow", "ask behind", route=ask, channel="1")
    desk.put("ask elsewhere", route=ask, channel="2")
    desk.to_route.close()
    async with finishing(desk.run):
        await wait_all_tasks_blocked()
        first = desk.asked.receive_nowait()
        assert isinstance(first, AnswerRequest)
        assert first.batch.last.text == "ask elsewhere"
        slow.set()
        assert await desk.taken() == (["ask slow", "ask behind"], [], [])


async def test_no_more_than_a_few_batches_are_in_work_at_once() -> None:
    desk = Desk()
    gate = Event()
    texts = [f"ask {n}" for n in range(AT_ONCE + 3)]
    for n, text in enumerate(texts):
        desk.dispatch.gates[text] = gate
        desk.put(text, route=ask, channel=str(n))
    desk.to_route.close()
    async with finishing(desk.run):
        await wait_all_tasks_blocked()
        assert len(desk.dispatch.begun) == AT_ONCE
        gate.set()
        asked, _, _ = await desk.taken()
        assert sorted(asked + desk.events.dropped) == sorted(texts)


# Finding I6.
async def test_missed_questions_wait_for_room_in_order_and_hold_up_nobody() -> None:
    desk = Desk(answers=4)
    desk.put(*(f"ask {n}" for n in range(AT_ONCE * 3)), route=ask, from_history=True)
    desk.put("capture 1", route=capture, from_history=True)
    async with desk.at_work():
        taught = await desk.taught.receive()
        assert taught.messages[-1].text == "capture 1"
        desk.put("ask now", "ask now, too", route=ask)
        await wait_all_tasks_blocked()
        asked = [await desk.next_question() for _ in range(AT_ONCE * 3 + 2)]
    assert [text for text in asked if "now" not in text] == [f"ask {n}" for n in range(AT_ONCE * 3)]
    assert {"ask now", "ask now, too"} <= set(asked[:4]), "half of the room is for live questions"
    assert (desk.events.dropped, desk.settled) == ([], [])


# Finding I6.
async def test_a_live_question_that_finds_no_room_beside_missed_ones_is_shed_and_told() -> None:
    desk = Desk(answers=2)
    desk.put("ask 1", "ask 2", "ask 3", route=ask, from_history=True)
    desk.put(("ask now", ask), ("ask @intern now", call))
    async with desk.at_work():
        word = await desk.said.receive()
        assert word.question.text == "ask @intern now"
        assert [await desk.next_question() for _ in range(4)] == ["ask 1", "ask now", "ask 2", "ask 3"]
    assert desk.events.dropped == ["ask @intern now"]


# Finding I6.
async def test_missed_questions_without_room_at_the_end_stay_unsettled_and_keep_nobody() -> None:
    desk = Desk(answers=1)
    desk.put("ask 1", "ask 2", "ask 3", route=ask, from_history=True)
    desk.to_route.close()
    await desk.run()
    assert await desk.taken() == (["ask 1"], [], [])
    assert (desk.events.dropped, desk.settled) == ([], [])


# Finding I6.
async def test_a_missed_question_that_is_deleted_while_it_waits_is_withdrawn() -> None:
    desk = Desk(answers=2)
    _, second = desk.put("ask 1", "ask 2", route=ask, from_history=True)
    async with desk.at_work():
        await wait_all_tasks_blocked()
        desk.delete(second)
        await wait_all_tasks_blocked()
        assert [await desk.next_question() for _ in range(2)] == ["ask 1", "ask 2"]
        assert await desk.asked.receive() == MessageRevisions(versions={second.id: None})


# Finding I6.
async def test_more_missed_questions_than_may_wait_are_shed_and_named() -> None:
    desk = Desk(answers=2)
    desk.put(*(f"ask {n}" for n in range(ASIDE + 5)), route=ask, from_history=True)
    async with desk.at_work():
        await wait_all_tasks_blocked()
    # One is first in line, and two went into the stream.
    assert len(desk.events.dropped) == 2


async def test_questions_that_find_no_room_are_shed_named_and_settled_but_captures_wait() -> None:
    desk = Desk(answers=1, captures=0)
    _, second, _ = desk.put(("ask 1", ask), ("ask 2", ask), ("capture 1", capture))
    desk.to_route.close()
    async with finishing(desk.run):
        await wait_all_tasks_blocked()
        assert desk.events.dropped == ["ask 2"]
        assert desk.settled == places(second)
        assert await desk.taken() == (["ask 1"], ["capture 1"], [])


async def test_what_concerns_nobody_is_settled_and_what_is_handed_on_is_not_yet() -> None:
    desk = Desk()
    _, chatter, _ = desk.put(("ask 1", ask), "chatter", ("capture 1", capture))
    desk.to_route.close()
    with desk.asked, desk.taught, desk.withdrawn, desk.said:
        await desk.run()
    assert desk.settled == places(chatter)


async def test_the_last_capture_of_a_batch_settles_all_of_it() -> None:
    desk = Desk()
    lines = [message("captures one", n=1), message("captures two", n=2)]
    desk.send(*lines, route=capture_each)
    desk.to_route.close()
    with desk.asked, desk.withdrawn, desk.taught, desk.said:
        await desk.run()
        assert [request.settles async for request in desk.taught] == [(), tuple(line.id for line in lines)]
    assert desk.settled == []


async def test_what_is_asked_and_captured_is_settled_by_both() -> None:
    desk = Desk()
    captured, both, asked = (message(text, n=n) for n, text in enumerate(["thanks", "and how?", "both"]))
    desk.send(captured, both, asked, route=capture_and_ask)
    desk.to_route.close()
    with desk.taught, desk.asked, desk.withdrawn, desk.said:
        await desk.run()
        assert [request.settles async for request in desk.taught] == [(captured.id, both.id)]
    assert (desk.twice, desk.settled) == ([both.id], [])


async def test_while_discord_is_away_a_batch_is_asked_for_again_unsettled_and_its_channel_stays_in_order() -> None:
    desk = Desk()
    desk.dispatch.trouble["ask 1"] = [ChatUnavailableError("away")] * 3
    desk.put("ask 1", "ask 2", route=ask)
    async with finishing(desk.run):
        await wait_all_tasks_blocked()
        assert desk.dispatch.begun.count("ask 1") == 4
        desk.to_route.close()
        assert await desk.taken() == (["ask 1", "ask 2"], [], [])
    assert desk.settled == []


async def test_at_the_end_nobody_waits_for_a_discord_that_is_away_and_its_batch_stays_unsettled() -> None:
    desk = Desk()
    desk.dispatch.trouble["ask 1"] = [ChatUnavailableError("away")] * 9
    desk.put("ask 1", "ask 2", route=ask)
    async with finishing(desk.run, FOR_EVER):
        await wait_all_tasks_blocked()
        assert desk.dispatch.begun == ["ask 1", "ask 2"]
        desk.to_route.close()
        assert await desk.taken() == (["ask 2"], [], [])
    assert desk.settled == []


async def test_what_stood_in_a_channel_that_is_gone_is_settled() -> None:
    desk = Desk()
    desk.dispatch.trouble["ask 1"] = [ChatNotFoundError("unknown channel")]
    desk.dispatch.trouble["capture 1"] = [
        ChatRefusedError("missing access"),
        ChatNotFoundError("unknown channel"),
    ]
    gone = desk.put(("ask 1", ask), ("capture 1", capture), ("ask 2", ask))[:2]
    async with finishing(desk.run):
        await wait_all_tasks_blocked()
        desk.to_route.close()
        assert await desk.taken() == (["ask 2"], [], [])
    assert desk.settled == places(*gone)


async def test_nobody_waits_for_what_discord_refuses_to_show() -> None:
    desk = Desk()
    refused = [f"capture {n}" for n in range(AT_ONCE + 1)]
    desk.dispatch.trouble = {text: [ChatRefusedError("missing access")] * 2 for text in refused}
    desk.put(*refused, route=capture)
    desk.put("ask 1", route=ask)
    desk.put("ask 2", route=ask, channel="300")
    async with finishing(desk.run, FOR_EVER):
        await wait_all_tasks_blocked()
        assert desk.asked.statistics().current_buffer_used == 2
        desk.to_route.close()
        assert await desk.taken() == (["ask 1", "ask 2"], [], [])
    # They come back after a restart.
    assert desk.settled == []
    assert desk.late.open == 0


async def test_what_discord_refuses_to_show_for_a_while_is_asked_for_again() -> None:
    desk = Desk()
    refusal, away = ChatRefusedError("missing access"), ChatUnavailableError("away")
    desk.dispatch.trouble["capture 1"] = [refusal, away, refusal]
    desk.put("capture 1", route=capture)
    async with finishing(desk.run):
        assert (await desk.taught.receive()).messages[-1].text == "capture 1"
        desk.to_route.close()
        await desk.taken()
    assert desk.settled == []


async def test_refused_batches_that_wait_are_bounded_in_number() -> None:
    desk = Desk()
    texts = [f"capture {n}" for n in range(ASIDE + 1)]
    desk.dispatch.trouble = {text: [ChatRefusedError("missing access")] * 2 for text in texts}
    lines = desk.put(*texts, route=capture)
    with desk.to_route, desk.asked, desk.taught, desk.withdrawn, desk.said:
        async with running(desk.run, FOR_EVER):
            await desk.one_settled.wait()
            await wait_all_tasks_blocked()
    assert desk.settled == places(lines[-1])


async def test_a_batch_that_a_store_fails_does_not_hold_up_the_next_and_stays_unsettled() -> None:
    desk = Desk()
    slow = desk.dispatch.gates["ask 1"] = Event()
    desk.dispatch.trouble["ask 2"] = [KnowledgeError("no disk")]
    desk.put("ask 1", "ask 2", "ask 3", route=ask)
    desk.to_route.close()
    async with finishing(desk.run):
        await wait_all_tasks_blocked()
        slow.set()
        # The failed one did not overtake the one before it.
        assert await desk.taken() == (["ask 1", "ask 3"], [], [])
    assert desk.settled == []
    assert desk.late.open == 0


async def test_a_bug_is_not_survived() -> None:
    desk = Desk()
    desk.dispatch.trouble["ask 1"] = [ZeroDivisionError()]
    desk.put("ask 1", route=ask)
    with desk.to_route, desk.asked, desk.taught, desk.withdrawn, desk.said, pytest.raises(ExceptionGroup) as raised:
        await desk.run()
    assert raised.group_contains(ZeroDivisionError)


async def test_a_captured_message_that_is_deleted_is_withdrawn_and_one_that_is_edited_is_captured_anew() -> None:
    desk = Desk()
    one, two, three = (message(text, n=n) for n, text in enumerate("abc"))
    desk.captured.ids = {one.id, two.id}
    desk.delete(one, three)
    desk.edit(two, "b, but better")
    desk.edit(three, "nobody's")
    desk.to_route.close()
    await desk.run()
    assert await desk.taken() == ([], ["b, but better"], [one.id])
    assert desk.settled == []


async def test_an_edit_in_a_closed_channel_is_not_captured() -> None:
    desk = Desk()
    one = message("a")
    desk.captured.ids = {one.id}
    desk.closed_channels = {one.channel_id}
    desk.edit(one, "a secret")
    desk.to_route.close()
    await desk.run()
    assert await desk.taken() == ([], [], [])


async def test_a_change_of_a_message_that_is_on_its_way_to_the_archive_follows_it_there() -> None:
    desk = Desk(captures=0)
    lines = [message("first", n=1), message("capture second", n=2)]
    desk.send(*lines, route=capture)
    async with finishing(desk.run):
        await wait_all_tasks_blocked()  # the capture waits for room
        desk.delete(lines[0])
        desk.edit(lines[1], "capture second, better")
        desk.to_route.close()
        await wait_all_tasks_blocked()
        assert await desk.taken() == ([], ["capture second", "capture second, better"], [lines[0].id])


async def test_what_changes_while_discord_is_read_is_not_captured_as_it_was() -> None:
    desk = Desk()
    gate = desk.dispatch.gates["capture two"] = Event()
    lines = [message("one", n=1), message("capture two", n=2)]
    desk.send(*lines, route=capture)
    async with finishing(desk.run):
        await wait_all_tasks_blocked()
        desk.delete(lines[0])
        desk.edit(lines[1], "capture two, better")
        desk.to_route.close()
        await wait_all_tasks_blocked()
        gate.set()
        with desk.asked, desk.withdrawn, desk.taught, desk.said:
            [request] = [each async for each in desk.taught]
            assert [each.text for each in request.messages] == ["How?", "capture two, better"]
            assert request.settles == tuple(line.id for line in lines)


async def test_a_batch_that_is_deleted_while_it_is_read_teaches_nothing_and_is_settled() -> None:
    desk = Desk()
    gate = desk.dispatch.gates["capture 1"] = Event()
    [line] = desk.put("capture 1", route=capture)
    async with finishing(desk.run):
        await wait_all_tasks_blocked()
        desk.delete(line)
        desk.to_route.close()
        await wait_all_tasks_blocked()
        gate.set()
        assert await desk.taken() == ([], [], [])
    assert desk.settled == places(line)


async def test_a_batch_that_is_deleted_while_discord_is_away_is_not_asked_about_again() -> None:
    desk = Desk()
    desk.dispatch.trouble["ask 1"] = [ChatUnavailableError("away")]
    [line] = desk.put("ask 1", route=ask)
    async with finishing(desk.run, FOR_EVER):
        await wait_all_tasks_blocked()
        desk.delete(line)
        await wait_all_tasks_blocked()
        desk.to_route.close()
        assert await desk.taken() == ([], [], [])
    assert desk.dispatch.begun == ["ask 1"]
    assert desk.settled == places(line)


async def test_a_batch_that_is_deleted_right_behind_is_not_acted_on() -> None:
    desk = Desk()
    [line] = desk.put("ask 1", route=ask)
    desk.delete(line)
    desk.to_route.close()
    await desk.run()
    # In either order, it is not routed at all, or it is recalled.
    assert await desk.taken() in (([], [], []), (["ask 1", f"-{line.id}"], [], []))


async def test_a_question_that_is_deleted_while_it_is_read_is_withdrawn_right_behind_it() -> None:
    desk = Desk()
    gate = desk.dispatch.gates["ask 2"] = Event()
    lines = [message("well", n=1), message("ask 2", n=2)]
    desk.send(*lines, route=ask)
    async with finishing(desk.run):
        await wait_all_tasks_blocked()
        desk.delete(lines[0])
        desk.to_route.close()
        await wait_all_tasks_blocked()
        gate.set()
        assert await desk.taken() == (["ask 2", f"-{lines[0].id}"], [], [])


async def test_a_deleted_question_in_work_is_withdrawn_however_full_the_responder_is() -> None:
    desk = Desk(answers=1)
    [line] = desk.put("ask 1", route=ask)
    async with finishing(desk.run):
        await wait_all_tasks_blocked()
        desk.delete(line)
        desk.put("capture 1", route=capture, channel="3")
        desk.to_route.close()
        await wait_all_tasks_blocked()
        assert desk.taught.receive_nowait().messages[-1].text == "capture 1"  # without waiting for the model
        assert isinstance(await desk.asked.receive(), AnswerRequest)
        assert await desk.taken() == ([f"-{line.id}"], [], [])


# A member who called the bot gets the reason for no answer.


async def test_a_shed_question_is_accounted_for_and_its_asker_told_where_they_called_the_bot() -> None:
    desk = Desk(answers=1)
    _, shed, silent, _ = messages = desk.put(
        ("ask 1", ask), ("ask 2 @intern", call), ("ask 3", ask), ("late @intern", decline)
    )
    desk.to_route.close()
    with desk.said:
        await desk.run()
        words = [(reply.question.text, reply.text) async for reply in desk.said]
        assert words == [("ask 2 @intern", "no, shed"), ("late @intern", "no, too old")]
        assert await desk.taken() == (["ask 1"], [], [])
    assert desk.refusing.accounts == ["shed: ask 2 @intern", "shed: ask 3", "too old: late @intern"]
    assert desk.settled == places(silent)  # the poster settles the rest
    assert {each.batch.last.id for each in desk.outgoing.recall("withdrawn", lambda _: True)} == {
        shed.id,
        messages[-1].id,
    }


async def test_words_leave_half_of_the_poster_s_room_to_answers_and_the_rest_is_accounted_for_only() -> None:
    desk = Desk(words=4)
    texts = [f"late {n} @intern" for n in range(5)]
    lines = desk.put(*texts, route=decline)
    desk.to_route.close()
    await desk.run()
    assert desk.said.statistics().current_buffer_used == 2
    await desk.taken()
    assert desk.refusing.accounts == [f"too old: {text}" for text in texts]
    assert desk.settled == places(*lines[2:])


async def test_the_newest_version_of_a_question_reaches_the_responder_once_it_has_room() -> None:
    desk = Desk(answers=1)
    async with finishing(desk.run):
        [line, chatter] = desk.put(("ask", ask), "chatter")
        await wait_all_tasks_blocked()
        for text in ("edited", "edited again"):
            desk.edit(line, text)
            desk.edit(chatter, text)
            await wait_all_tasks_blocked()
        taken = [await desk.asked.receive() for _ in range(3)]
        assert [each.versions for each in taken if isinstance(each, MessageRevisions)][-1] == {
            line.id: replace(line, text="edited again")
        }
        desk.to_route.close()
        assert await desk.taken() == ([], [], [])


async def test_a_question_that_is_edited_while_it_is_read_is_asked_as_it_reads_now() -> None:
    desk = Desk()
    gate = desk.dispatch.gates["ask"] = Event()
    async with finishing(desk.run):
        [line] = desk.put("ask", route=ask)
        await wait_all_tasks_blocked()
        desk.edit(line, "edited")
        await wait_all_tasks_blocked()
        gate.set()
        await wait_all_tasks_blocked()
        asked, revision = desk.asked.receive_nowait(), desk.asked.receive_nowait()
        assert isinstance(asked, AnswerRequest)
        assert revision == MessageRevisions(versions={line.id: replace(line, text="edited")})
        desk.to_route.close()
        assert await desk.taken() == ([], [], [])


async def test_a_declined_question_that_is_deleted_is_withdrawn_like_any_other() -> None:
    desk = Desk()
    desk.refusing.gate = Event()
    [line] = desk.put("late @intern", route=decline)
    async with finishing(desk.run):
        await wait_all_tasks_blocked()
        desk.delete(line)
        desk.to_route.close()
        await wait_all_tasks_blocked()
        desk.refusing.gate.set()
        assert await desk.taken() == ([f"-{line.id}"], [], [])


# Tests with time: trio's clock jumps.


def tenacity(desk: Desk, *then: tuple[float, Callable[[], object]]) -> tuple[list[str], list[str], list[str]]:
    """Return the output of a sequencer that asks every 1000 s, if these things happen at these times."""
    taken: list[tuple[list[str], list[str], list[str]]] = []

    async def story() -> None:
        began = trio.current_time()
        with trio.fail_after(1e6):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(desk.run, partial(repeat, 1000.0))
                for at, act in then:
                    await trio.sleep_until(began + at)
                    act()
                desk.to_route.close()
                taken.append(await desk.taken())

    trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))
    return taken[0]


def test_what_stays_refused_for_longer_than_a_day_is_given_up() -> None:
    desk = Desk()
    desk.dispatch.trouble["capture 1"] = [ChatRefusedError("missing access")] * 1000
    lines = desk.put("capture 1", route=capture)
    still_kept = (REFUSED_FOR_SECONDS - 1, lambda: desk.settled.append("-"))
    assert tenacity(desk, still_kept, (REFUSED_FOR_SECONDS + 2000, lambda: None)) == ([], [], [])
    assert desk.settled == ["-", *places(*lines)]


def test_what_was_refused_is_captured_as_it_is_by_then() -> None:
    desk = Desk()
    desk.dispatch.trouble["capture two"] = [ChatRefusedError("missing access")]
    lines = [message("one", n=1), message("capture two", n=2), message("somebody else's", n=3)]
    desk.send(*lines[:2], route=capture)

    def change() -> None:
        desk.delete(lines[0])
        desk.edit(lines[1], "capture two, better")
        desk.edit(lines[2], "and nobody keeps that")

    assert tenacity(desk, (10, change), (1010, lambda: None)) == ([], ["capture two, better"], [])


def test_while_nothing_is_read_only_the_changes_of_what_waits_are_kept() -> None:
    mine, theirs = message("mine", n=1), message("theirs", n=2)
    meanwhile = BatchChanges()
    for change in ("before", "paused", "resumed"):
        if change == "paused":
            meanwhile.pause([mine])
            assert meanwhile.apply_changes([mine, theirs]) == (replace(mine, text="before"), theirs)
        if change == "resumed":
            meanwhile.resume()
        for each in (mine, theirs):
            meanwhile.record(MessageEdited(message=replace(each, text=change)))
        assert meanwhile.apply_changes([mine])[0].text == change
        assert meanwhile.apply_changes([theirs])[0].text == ("theirs" if change == "paused" else change)
