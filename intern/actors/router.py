"""The router gathers what a batch belongs to and hands it to whom it concerns: several at once, in order by channel.

Whatever comes in is settled by somebody: here where nobody needs to act, else by those to whom it is handed on. A batch
whose surroundings Discord cannot show now is asked for again, and stays unsettled until then; one that it refuses to
show steps aside meanwhile, so that nobody waits for it. Whoever called the bot and gets no answer is told why, straight
by way of the poster; only a flood of such words is cut short.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial

from anyio import Event, Semaphore, WouldBlock, create_task_group, move_on_after
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec.structs import replace

from intern.actors.checkpointer import Settle
from intern.actors.events import Events
from intern.actors.loops import REFUSED_FOR_SECONDS, Backoff, exponential_backoff, surviving
from intern.answering.replying import Declining
from intern.chat.outbox import Outgoing
from intern.core.errors import ChatError, ChatNotFoundError, ChatRefusedError, ChatUnavailableError
from intern.core.flow import (
    AnswerRequest,
    Batch,
    CaptureRequest,
    Declined,
    MessageEdited,
    MessagesDeleted,
    Reply,
    Withdrawal,
)
from intern.core.ids import ChannelId, MessageId
from intern.core.log import get_logger, traced
from intern.core.messages import ChatMessage
from intern.learning.message_changes import Meanwhile, MessageChanges

Requests = Sequence[AnswerRequest | CaptureRequest | Declined]

AT_ONCE = 8  # Discord allows 50 requests a second over all; a batch waits for a handful, one after the other
ASIDE = 500  # batches that Discord refuses to show; some KB each

_log = get_logger(__name__)

Dispatch = Callable[[Batch], Awaitable[Requests]]
"""Returns what follows from a batch; nothing where it concerns nobody. Raises the ChatError family."""


async def router(
    inbox: MemoryObjectReceiveStream[Batch | MessageEdited | MessagesDeleted],
    answers: MemoryObjectSendStream[AnswerRequest | Withdrawal],
    captures: MemoryObjectSendStream[CaptureRequest],
    withdrawals: MemoryObjectSendStream[Withdrawal],
    words: MemoryObjectSendStream[Reply],
    *,
    dispatch: Dispatch,
    declines: Declining,
    outgoing: Outgoing,
    late: MessageChanges,
    settle: Settle,
    events: Events,
    capturing: Callable[[Collection[MessageId]], object] = lambda _: None,
    backoff: Backoff = exponential_backoff,
) -> None:
    """Route each batch, and what follows from late changes, until the inbox ends.

    A capture waits for room; a question that finds none is shed. At the end, what Discord cannot show stays unsettled.
    `capturing` hears of messages that are both asked and captured: their account is settled twice.
    `words` is the poster's, too: why there is no answer. At most half of its room is taken for that.
    """
    turns, reader = _Turns(), _Reader(dispatch, late, backoff)

    async def work(item: Batch | MessageEdited, turn: _Turn, meanwhile: Meanwhile) -> None:
        with traced(_message_of(item).id):
            if isinstance(item, Batch):
                _log.debug("batch_taken", message_ids=[message.id for message in item.messages])
            await route(item, turn, meanwhile)

    async def route(item: Batch | MessageEdited, turn: _Turn, meanwhile: Meanwhile) -> None:
        message = _message_of(item)
        found: list[Requests] = []
        try:
            with surviving("router", channel_id=message.channel_id, message_id=message.id):
                found.append(await reader.read(item, meanwhile, step_aside=partial(turns.step_aside, turn)))
            await turn.come()
            # What could not be found out stays unsettled: after a restart it is read again.
            for requests in found:
                await desk.hand_on(item, requests, meanwhile)
        finally:
            late.end(meanwhile)
            turns.end(turn)

    async with inbox, answers, captures, withdrawals, words, create_task_group() as tg:
        refusals = _Refusals(words, declines=declines, outgoing=outgoing)
        desk = _Desk(answers, captures, tg, refusals, late=late, settle=settle, events=events, capturing=capturing)
        async for item in inbox:
            if isinstance(item, MessagesDeleted):
                gone = late.deleted(item)
                desk.unask(gone.asked)
                if gone.taught:
                    await withdrawals.send(Withdrawal(message_ids=gone.taught))
            elif isinstance(item, Batch) or late.edited(item):
                turn = await turns.begin(_message_of(item).channel_id)
                # From here on, not from when the task gets to run: nothing may change unnoticed.
                tg.start_soon(partial(work, item, turn, late.begin()))
        reader.closing.set()


class _Turn:
    """Work is begun at once, but handed on only after what came before it in its channel."""

    def __init__(self, channel_id: ChannelId, before: _Turn | None) -> None:
        self.channel_id = channel_id
        self.done = Event()
        self._before = before.done if before else None

    async def come(self) -> None:
        if self._before is not None:
            await self._before.wait()


class _Turns:
    """First in, first out in each channel; several channels, and several of a channel's batches, in work at once."""

    def __init__(self) -> None:
        self._places = Semaphore(AT_ONCE)
        self._last_of: dict[ChannelId, _Turn] = {}

    async def begin(self, channel_id: ChannelId) -> _Turn:
        await self._places.acquire()
        turn = self._last_of[channel_id] = _Turn(channel_id, self._last_of.get(channel_id))
        return turn

    async def step_aside(self, turn: _Turn) -> None:
        """Let the others by, though it is not done."""
        await turn.come()
        self.end(turn)

    def end(self, turn: _Turn) -> None:
        if turn.done.is_set():
            return
        turn.done.set()
        if self._last_of.get(turn.channel_id) is turn:
            del self._last_of[turn.channel_id]
        self._places.release()


class _Reader:
    """Finds out what follows from an item, however long Discord takes."""

    def __init__(self, dispatch: Dispatch, late: MessageChanges, backoff: Backoff) -> None:
        self._dispatch = dispatch
        self._late = late
        self._backoff = backoff
        self.closing = Event()
        """Nothing new comes in; who waits for Discord gives up."""
        self._aside = 0

    async def read(
        self, item: Batch | MessageEdited, meanwhile: Meanwhile, *, step_aside: Callable[[], Awaitable[None]]
    ) -> Requests:
        message_id, backoff = _message_of(item).id, self._backoff()
        while True:
            try:
                return await self._look(item, meanwhile)
            except ChatNotFoundError as refusal:
                _log.warning("batch_unreadable", message_id=message_id, reason=str(refusal))
                return ()
            except ChatRefusedError as refusal:
                return await self._read_aside(item, meanwhile, refusal, step_aside)
            except ChatUnavailableError as error:
                if self.closing.is_set():
                    raise
                pause = next(backoff)
                _log.warning("batch_delayed", message_id=message_id, reason=str(error), again_in_seconds=pause)
                with move_on_after(pause):
                    await self.closing.wait()

    async def _read_aside(
        self,
        item: Batch | MessageEdited,
        meanwhile: Meanwhile,
        refusal: ChatError,
        step_aside: Callable[[], Awaitable[None]],
    ) -> Requests:
        if self._aside >= ASIDE:
            return self._lost(item, refusal)
        self._aside += 1
        try:
            await step_aside()
            return await self._look_again(item, meanwhile, refusal)
        finally:
            self._aside -= 1

    async def _look_again(self, item: Batch | MessageEdited, meanwhile: Meanwhile, error: ChatError) -> Requests:
        messages = item.messages if isinstance(item, Batch) else (item.message,)
        waited = 0.0
        for pause in self._backoff():
            if self.closing.is_set():
                raise error
            if waited > REFUSED_FOR_SECONDS:
                break
            _log.warning("batch_refused", message_id=_message_of(item).id, reason=str(error), again_in_seconds=pause)
            meanwhile.pause(messages)
            with move_on_after(pause):
                await self.closing.wait()
            waited += pause
            meanwhile.resume()
            try:
                return await self._look(item, meanwhile)
            except ChatNotFoundError as gone:
                _log.warning("batch_unreadable", message_id=_message_of(item).id, reason=str(gone))
                return ()
            except (ChatRefusedError, ChatUnavailableError) as again:
                error = again
        return self._lost(item, error)

    def _lost(self, item: Batch | MessageEdited, error: ChatError) -> Requests:
        message = _message_of(item)
        _log.error("batch_given_up", channel_id=message.channel_id, message_id=message.id, reason=str(error))
        return ()

    async def _look(self, item: Batch | MessageEdited, meanwhile: Meanwhile) -> Requests:
        if isinstance(item, MessageEdited):
            return await self._late.captured_anew(item)
        messages = meanwhile.now(item.messages)
        return await self._dispatch(replace(item, messages=messages)) if messages else ()


class _Refusals:
    """Where words on why there is no answer leave; the poster settles what it is handed."""

    def __init__(self, words: MemoryObjectSendStream[Reply], *, declines: Declining, outgoing: Outgoing) -> None:
        self._words = words
        self._declines = declines
        self._outgoing = outgoing

    async def account_for(self, declined: Declined) -> None:
        await self._declines.account_for(declined)

    def send(self, declined: Declined) -> bool:
        """Say it, where there is something to say; false where nothing will be said. Never waits."""
        waiting = self._words.statistics()
        if waiting.current_buffer_used >= waiting.max_buffer_size / 2:  # answers need the rest
            return False
        reply = self._declines.word(declined)
        if reply is None:
            return False
        # So its asker's next message takes it back, and so does a deletion.
        self._outgoing.hand_over(declined.request)
        self._words.send_nowait(reply)
        return True


class _Desk:
    """Hands on what follows, and settles what nothing follows from."""

    def __init__(
        self,
        answers: MemoryObjectSendStream[AnswerRequest | Withdrawal],
        captures: MemoryObjectSendStream[CaptureRequest],
        tg: TaskGroup,
        refusals: _Refusals,
        *,
        late: MessageChanges,
        settle: Settle,
        events: Events,
        capturing: Callable[[Collection[MessageId]], object],
    ) -> None:
        self._answers = answers
        self._capturing = capturing
        self._captures = captures
        self._tg = tg
        self._refusals = refusals
        self._late = late
        self._settle = settle
        self._events = events

    async def hand_on(self, item: Batch | MessageEdited, requests: Requests, meanwhile: Meanwhile) -> None:
        questions = [request for request in requests if isinstance(request, AnswerRequest)]
        declined = [request for request in requests if isinstance(request, Declined)]
        current = (meanwhile.captured_now(request) for request in requests if isinstance(request, CaptureRequest))
        taught = [request for request in current if request is not None]
        if isinstance(item, Batch):
            if not requests:
                self._events.ignored(item)
            self._settle_rest(item, [*questions, *(each.request for each in declined)], taught)
        for request in taught:
            # All of them before the first is sent: what changes while we wait for room concerns each.
            self._late.teaches(request)
        shed = [question for question in questions if not self._ask(question, meanwhile)]
        for each in (*declined, *(Declined(request=question, reason="shed") for question in shed)):
            await self._decline(each, meanwhile)
        for request in taught:
            await self._captures.send(request)

    def unask(self, message_ids: tuple[MessageId, ...]) -> None:
        """Tell the responder that a question is gone."""
        if not message_ids:
            return
        try:
            self._answers.send_nowait(Withdrawal(message_ids=message_ids))
        except WouldBlock:
            # Nobody else is to wait until the model gets to it. There are no more of these than questions handed on.
            self._tg.start_soon(self._answers.send, Withdrawal(message_ids=message_ids))

    def _settle_rest(self, batch: Batch, questions: Sequence[AnswerRequest], taught: list[CaptureRequest]) -> None:
        ids = tuple(message.id for message in batch.messages)
        if taught and not questions:
            taught[-1] = replace(taught[-1], settles=ids)
            return
        asked = {message.id for question in questions for message in question.batch.messages}
        kept = {message.id for request in taught for message in request.messages}
        if settles := tuple(message_id for message_id in ids if message_id in kept):
            taught[-1] = replace(taught[-1], settles=settles)
            self._capturing(asked.intersection(settles))
        if others := [message_id for message_id in ids if message_id not in asked | kept]:
            self._settle(batch.channel_id, others)

    def _ask(self, question: AnswerRequest, meanwhile: Meanwhile) -> bool:
        """Hand it to the responder; false where that has no room."""
        try:
            self._answers.send_nowait(question)
        except WouldBlock:
            return False
        self._asked(question, meanwhile)
        return True

    async def _decline(self, declined: Declined, meanwhile: Meanwhile) -> None:
        await self._refusals.account_for(declined)
        self._events.declined(declined)
        question = declined.request
        if self._refusals.send(declined):
            self._asked(question, meanwhile)
        else:
            self._settle(question.batch.channel_id, [message.id for message in question.batch.messages])

    def _asked(self, question: AnswerRequest, meanwhile: Meanwhile) -> None:
        """From now on a deletion concerns whoever has it."""
        self._late.asks(question)
        self.unask(meanwhile.deleted_of(question.batch.messages))


def _message_of(item: Batch | MessageEdited) -> ChatMessage:
    return item.last if isinstance(item, Batch) else item.message
