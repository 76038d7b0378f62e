"""The sequencer reads the context of batches and hands them on: several at once, in order within each channel.

It settles a batch that concerns no actor; the others settle theirs. If Discord is away, a batch is retried, and stays
unsettled until then. If Discord refuses to show a batch's context, later batches pass it. They also pass a missed
question while the responder has no room. A member who called the bot and gets no answer gets the reason through the
poster, unless there is a flood of such notices.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from anyio import Event, Lock, Semaphore, WouldBlock, move_on_after
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender
from msgspec.structs import replace

from intern.actors.activity import ActivityReporter
from intern.actors.checkpointer import Settle
from intern.actors.loops import REFUSED_FOR_SECONDS, Backoff, exponential_backoff, surviving
from intern.answering.replies import Decliner
from intern.chat.delivery import RecallableReplies
from intern.chat.routing import Requests
from intern.core import flow
from intern.core.errors import ChatError, ChatNotFoundError, ChatRefusedError, ChatUnavailableError
from intern.core.ids import ChannelId, MessageId
from intern.core.log import bind_trace_id, get_logger
from intern.core.messages import ChatMessage
from intern.core.tasks import open_task_group
from intern.learning.message_changes import BatchChanges, MessageChanges

AT_ONCE = 8  # Discord allows 50 requests a second over all; a batch makes a handful, one after the other
ASIDE = 500  # batches that Discord refuses to show, or that wait for the responder; some KB each
_ROOM_EVERY = 0.15  # seconds; a stream does not announce that half of it is free

_log = get_logger(__name__)

_Item = flow.Batch | flow.MessageEdited
_Aside = Callable[[], Awaitable[None]]
RouteBatch = Callable[[flow.Batch], Awaitable[Requests]]
"""Returns the requests that follow from a batch; none if it concerns no actor. Raises the ChatError family."""


class _ChannelTurn:
    """A turn in a channel: work begins at once, but is handed on only after the earlier work of the channel."""

    def __init__(self, channel_id: ChannelId, before: _ChannelTurn | None) -> None:
        self.channel_id = channel_id
        self.done = Event()
        self._before = before.done if before else None

    async def wait_for_turn(self) -> None:
        if self._before is not None:
            await self._before.wait()


class _ChannelOrder:
    """First in, first out within each channel; several channels, and several batches of each, are in work at once."""

    def __init__(self) -> None:
        self._places = Semaphore(AT_ONCE)
        self._last_of: dict[ChannelId, _ChannelTurn] = {}

    async def begin(self, channel_id: ChannelId) -> _ChannelTurn:
        await self._places.acquire()
        turn = self._last_of[channel_id] = _ChannelTurn(channel_id, self._last_of.get(channel_id))
        return turn

    async def step_aside(self, turn: _ChannelTurn) -> None:
        """Let later items of the channel pass, though this one is not done."""
        await turn.wait_for_turn()
        self.end(turn)

    def end(self, turn: _ChannelTurn) -> None:
        if turn.done.is_set():
            return
        turn.done.set()
        if self._last_of.get(turn.channel_id) is turn:
            del self._last_of[turn.channel_id]
        self._places.release()


@dataclass(kw_only=True)
class _RoutingRetry:
    """Reads the context of an item, and retries while Discord is away."""

    dispatch: RouteBatch
    late: MessageChanges
    backoff: Backoff
    closing: Event = field(default_factory=Event)
    """Set when no more items come in; then those that wait for Discord give up."""
    aside: int = 0
    """The items that Discord refuses to show."""

    async def route(self, item: _Item, meanwhile: BatchChanges, *, step_aside: _Aside) -> Requests:
        message_id, backoff = _item_message(item).id, self.backoff()
        while True:
            try:
                return await self._route_once(item, meanwhile)
            except ChatRefusedError as refusal:
                return await self._route_aside(item, meanwhile, refusal, step_aside)
            except ChatUnavailableError as error:
                if self.closing.is_set():
                    raise
                pause = next(backoff)
                _log.warning("batch_delayed", message_id=message_id, reason=str(error), again_in_seconds=pause)
                with move_on_after(pause):
                    await self.closing.wait()

    async def _route_aside(self, item: _Item, at: BatchChanges, refusal: ChatError, step_aside: _Aside) -> Requests:
        if self.aside >= ASIDE:
            return self._give_up(item, refusal)
        self.aside += 1
        try:
            await step_aside()
            return await self._retry_refused(item, at, refusal)
        finally:
            self.aside -= 1

    async def _retry_refused(self, item: _Item, meanwhile: BatchChanges, error: ChatError) -> Requests:
        messages = item.messages if isinstance(item, flow.Batch) else (item.message,)
        waited = 0.0
        for pause in self.backoff():
            if self.closing.is_set():
                raise error
            if waited > REFUSED_FOR_SECONDS:
                break
            _log.warning("batch_refused", message_id=_item_message(item).id, reason=str(error), again_in_seconds=pause)
            meanwhile.pause(messages)
            with move_on_after(pause):
                await self.closing.wait()
            waited += pause
            meanwhile.resume()
            try:
                return await self._route_once(item, meanwhile)
            except (ChatRefusedError, ChatUnavailableError) as again:
                error = again
        return self._give_up(item, error)

    def _give_up(self, item: _Item, error: ChatError) -> Requests:
        message = _item_message(item)
        _log.error("batch_given_up", channel_id=message.channel_id, message_id=message.id, reason=str(error))
        return ()

    async def _route_once(self, item: _Item, meanwhile: BatchChanges) -> Requests:
        try:
            if isinstance(item, flow.MessageEdited):
                question = await self.late.ask_again(item)
                return await self.dispatch(question) if question else await self.late.capture_again(item)
            messages = meanwhile.apply_changes(item.messages)
            return await self.dispatch(replace(item, messages=messages)) if messages else ()
        except ChatNotFoundError as gone:
            _log.warning("batch_unreadable", message_id=_item_message(item).id, reason=str(gone))
            return ()


@dataclass(kw_only=True)
class Sequencer:
    """Routes batches and late changes, and settles those that no other actor gets."""

    dispatch: RouteBatch
    declines: Decliner
    outgoing: RecallableReplies
    late: MessageChanges
    settle: Settle
    events: ActivityReporter
    capturing: Callable[[Collection[MessageId]], object] = lambda _: None
    """Called with messages that are both asked and captured: they are settled twice."""
    backoff: Backoff = exponential_backoff

    async def run(
        self,
        inbox: Receiver[flow.Batch | flow.MessageEdited | flow.MessagesDeleted],
        answers: Sender[flow.AnswerRequest | flow.MessageRevisions],
        captures: Sender[flow.CaptureRequest],
        withdrawals: Sender[flow.MessageWithdrawal],
        words: Sender[flow.Reply],
    ) -> None:
        """Route each batch, and what follows from late changes, until the inbox ends.

        Captures and missed questions wait for room; a live question without room is shed. At the end, batches that
        Discord cannot show stay unsettled. `words` leads to the poster, and takes the notices of why there is no
        answer. They use at most half of its room.
        """
        self._answers, self._captures, self._words = answers, captures, words
        self._owed: dict[MessageId, ChatMessage | None] = {}
        self._turns, self._in_line = _ChannelOrder(), Lock()
        self._reader = _RoutingRetry(dispatch=self.dispatch, late=self.late, backoff=self.backoff)
        async with inbox, answers, captures, withdrawals, words, open_task_group() as self._tg:
            async for item in inbox:
                if isinstance(item, flow.MessagesDeleted):
                    gone = self.late.record_deletion(item)
                    self._queue_revisions(dict.fromkeys(gone.asked))
                    if gone.taught:
                        await withdrawals.send(flow.MessageWithdrawal(message_ids=gone.taught))
                    continue
                if isinstance(item, flow.MessageEdited) and self.late.is_asked(item.message.id):
                    self._queue_revisions({item.message.id: item.message})
                if isinstance(item, flow.Batch) or self.late.record_edit(item):
                    turn = await self._turns.begin(_item_message(item).channel_id)
                    # Collect from here on, not only once the task runs: no change may go unnoticed.
                    self._tg.start_soon(self._process_item, item, turn, self.late.start_collecting())
            self._reader.closing.set()

    async def _process_item(self, item: _Item, turn: _ChannelTurn, meanwhile: BatchChanges) -> None:
        message = _item_message(item)
        found: list[Requests] = []
        step_aside = partial(self._turns.step_aside, turn)
        try:
            with bind_trace_id(message.id):
                if isinstance(item, flow.Batch):
                    _log.debug("batch_taken", message_ids=[message.id for message in item.messages])
                with surviving("sequencer", channel_id=message.channel_id, message_id=message.id):
                    found.append(await self._reader.route(item, meanwhile, step_aside=step_aside))
                await turn.wait_for_turn()
                # A batch that could not be read stays unsettled: after a restart it is read again.
                for requests in found:
                    await self._send_requests(item, requests, turn, meanwhile)
        finally:
            self.late.stop_collecting(meanwhile)
            self._turns.end(turn)

    async def _send_requests(
        self, item: _Item, requests: Requests, turn: _ChannelTurn, meanwhile: BatchChanges
    ) -> None:
        questions = [request for request in requests if isinstance(request, flow.AnswerRequest)]
        declined = [request for request in requests if isinstance(request, flow.QuestionDeclined)]
        captures = [request for request in requests if isinstance(request, flow.CaptureRequest)]
        taught = [request for request in map(meanwhile.update_capture, captures) if request is not None]
        if isinstance(item, flow.Batch):
            if not requests:
                self.events.report_ignored_batch(item)
            self._settle_rest(item, [*questions, *(each.request for each in declined)], taught)
        for request in taught:
            # Record all of them before the first is sent: a change while we wait for room concerns each.
            self.late.record_capture(request)
        waits = any(each.batch.from_history for each in questions) and self._in_line.statistics().tasks_waiting < ASIDE
        shed = [] if waits else [question for question in questions if not self._send_question(question, meanwhile)]
        for each in (*declined, *(flow.QuestionDeclined(request=question, reason="shed") for question in shed)):
            await self._decline(each, meanwhile)
        for request in taught:
            await self._captures.send(request)
        if waits:
            self._turns.end(turn)
            for question in questions:
                await self._send_question_later(question, meanwhile)

    def _queue_revisions(self, versions: Mapping[MessageId, ChatMessage | None]) -> None:
        """Tell the responder that questions were edited, or are gone."""
        if versions and not self._owed:
            # The sequencer must not wait until the model gets to it.
            self._tg.start_soon(self._send_revisions)
        self._owed |= versions

    async def _send_revisions(self) -> None:
        while versions := dict(self._owed):
            await self._answers.send(flow.MessageRevisions(versions=versions))
            self._owed = {each: now for each, now in self._owed.items() if versions.get(each, each) is not now}

    def _settle_rest(
        self, batch: flow.Batch, questions: Sequence[flow.AnswerRequest], taught: list[flow.CaptureRequest]
    ) -> None:
        ids = tuple(message.id for message in batch.messages)
        if taught and not questions:
            taught[-1] = replace(taught[-1], settles=ids)
            return
        asked = {message.id for question in questions for message in question.batch.messages}
        kept = {message.id for request in taught for message in request.messages}
        if settles := tuple(message_id for message_id in ids if message_id in kept):
            taught[-1] = replace(taught[-1], settles=settles)
            self.capturing(asked.intersection(settles))
        if others := [message_id for message_id in ids if message_id not in asked | kept]:
            self.settle(batch.channel_id, others)

    def _send_question(self, question: flow.AnswerRequest, meanwhile: BatchChanges) -> bool:
        """Hand the question to the responder; return False if that has no room."""
        try:
            self._answers.send_nowait(question)
        except WouldBlock:
            return False
        self._track_question(question, meanwhile)
        return True

    async def _send_question_later(self, question: flow.AnswerRequest, meanwhile: BatchChanges) -> None:
        """Wait for room; live questions need half of it. At the end, the question stays unsettled and is read again."""
        async with self._in_line:
            while (ahead := self._answers.statistics()).current_buffer_used >= ahead.max_buffer_size / 2:
                with move_on_after(_ROOM_EVERY):
                    await self._reader.closing.wait()
                    return
            self._send_question(question, meanwhile)

    async def _decline(self, declined: flow.QuestionDeclined, meanwhile: BatchChanges) -> None:
        await self.declines.record_decline(declined)
        self.events.report_decline(declined)
        question = declined.request
        if self._send_notice(declined):
            self._track_question(question, meanwhile)
        else:
            self.settle(question.batch.channel_id, [message.id for message in question.batch.messages])
            self.events.report_no_reply(question)

    def _send_notice(self, declined: flow.QuestionDeclined) -> bool:
        """Tell the asker why there is no answer; return False if there is no notice or no room. Never wait."""
        waiting = self._words.statistics()
        if waiting.current_buffer_used >= waiting.max_buffer_size / 2:  # answers need the rest
            return False
        reply = self.declines.decide_reply(declined)
        if reply is None:
            return False
        # So its asker's next message recalls it, and so does a deletion.
        self.outgoing.add_reply(declined.request)
        self._words.send_nowait(reply)
        return True

    def _track_question(self, question: flow.AnswerRequest, meanwhile: BatchChanges) -> None:
        """Note that the responder or poster has the question, so that a change reaches it."""
        self.late.record_question(question)
        self._queue_revisions(meanwhile.find_changed(question.batch.messages))


def _item_message(item: _Item) -> ChatMessage:
    return item.last if isinstance(item, flow.Batch) else item.message
