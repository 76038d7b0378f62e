"""The router gathers what a batch belongs to and hands it to whom it concerns: several at once, in order by channel.

Whatever comes in is settled by somebody: here where nobody needs to act, else by those to whom it is handed on. A batch
whose surroundings Discord cannot show now is asked for again, and stays unsettled until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from anyio import Event, Semaphore, WouldBlock, create_task_group, move_on_after
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec.structs import replace

from intern.actors.guard import surviving
from intern.actors.pauses import Pauses, growing_pauses
from intern.actors.witness import Witness
from intern.conversations.late import LateChanges, Meanwhile
from intern.domain import (
    AnswerRequest,
    Batch,
    CaptureRequest,
    ChannelId,
    ChatMessage,
    MessageEdited,
    MessageId,
    MessagesDeleted,
    Withdrawal,
)
from intern.errors import DiscordRefusedError, DiscordUnavailableError
from intern.observe.log import get_logger

Requests = Sequence[AnswerRequest | CaptureRequest]

AT_ONCE = 8  # Discord allows 50 requests a second over all; a batch waits for a handful, one after the other

_log = get_logger(__name__)


class Dispatch(Protocol):
    """Decides whom a batch concerns, reading on Discord what it needs to know."""

    async def dispatch(self, batch: Batch, /) -> Requests:
        """What follows from the batch; nothing where it concerns nobody. Raises the DiscordError family."""
        ...


class Settles(Protocol):
    """Hears of messages that need not be handled again after a restart."""

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId], /) -> None:
        """These messages of a channel are done with."""
        ...


async def router(
    inbox: MemoryObjectReceiveStream[Batch | MessageEdited | MessagesDeleted],
    answers: MemoryObjectSendStream[AnswerRequest | Withdrawal],
    captures: MemoryObjectSendStream[CaptureRequest],
    withdrawals: MemoryObjectSendStream[Withdrawal],
    *,
    dispatch: Dispatch,
    late: LateChanges,
    settles: Settles,
    witness: Witness,
    pauses: Pauses = growing_pauses,
) -> None:
    """Route each batch, and what follows from late changes, until the inbox ends.

    A capture waits for room; a question that finds none is shed. At the end, what Discord cannot show stays unsettled.
    """
    turns, reader = _Turns(), _Reader(dispatch, late, pauses)

    async def work(item: Batch | MessageEdited, turn: _Turn, meanwhile: Meanwhile) -> None:
        message = _message_of(item)
        found: list[Requests] = []
        try:
            with surviving("router", channel_id=message.channel_id, message_id=message.id):
                found.append(await reader.read(item, meanwhile))
            await turn.come()
            # What could not be found out stays unsettled: after a restart it is read again.
            for requests in found:
                await desk.hand_on(item, requests, meanwhile)
        finally:
            late.end(meanwhile)
            turns.end(turn)

    async with inbox, answers, captures, withdrawals, create_task_group() as tg:
        desk = _Desk(answers, captures, tg, late=late, settles=settles, witness=witness)
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

    def end(self, turn: _Turn) -> None:
        turn.done.set()
        if self._last_of.get(turn.channel_id) is turn:
            del self._last_of[turn.channel_id]
        self._places.release()


class _Reader:
    """Finds out what follows from an item, however long Discord takes."""

    def __init__(self, dispatch: Dispatch, late: LateChanges, pauses: Pauses) -> None:
        self._dispatch = dispatch
        self._late = late
        self._pauses = pauses
        self.closing = Event()
        """Nothing new comes in; who waits for Discord gives up."""

    async def read(self, item: Batch | MessageEdited, meanwhile: Meanwhile) -> Requests:
        message_id = _message_of(item).id
        for pause in self._pauses():
            try:
                return await self._look(item, meanwhile)
            except DiscordRefusedError as refusal:
                _log.warning("batch_unreadable", message_id=message_id, reason=str(refusal))
                return ()
            except DiscordUnavailableError as error:
                if self.closing.is_set():
                    raise
                _log.warning("batch_delayed", message_id=message_id, reason=str(error), again_in_seconds=pause)
                with move_on_after(pause):
                    await self.closing.wait()
        raise AssertionError("the pauses never end")

    async def _look(self, item: Batch | MessageEdited, meanwhile: Meanwhile) -> Requests:
        if isinstance(item, MessageEdited):
            return await self._late.captured_anew(item)
        messages = meanwhile.now(item.messages)
        return await self._dispatch.dispatch(replace(item, messages=messages)) if messages else ()


class _Desk:
    """Hands on what follows, and settles what nothing follows from."""

    def __init__(
        self,
        answers: MemoryObjectSendStream[AnswerRequest | Withdrawal],
        captures: MemoryObjectSendStream[CaptureRequest],
        tg: TaskGroup,
        *,
        late: LateChanges,
        settles: Settles,
        witness: Witness,
    ) -> None:
        self._answers = answers
        self._captures = captures
        self._tg = tg
        self._late = late
        self._settles = settles
        self._witness = witness

    async def hand_on(self, item: Batch | MessageEdited, requests: Requests, meanwhile: Meanwhile) -> None:
        questions = [request for request in requests if isinstance(request, AnswerRequest)]
        current = (meanwhile.captured_now(request) for request in requests if isinstance(request, CaptureRequest))
        taught = [request for request in current if request is not None]
        if isinstance(item, Batch):
            if not requests:
                self._witness.ignored(item)
            self._settle(item, questions, taught)
        for request in taught:
            # All of them before the first is sent: what changes while we wait for room concerns each.
            self._late.teaches(request)
        for question in questions:
            self._ask(question, meanwhile)
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

    def _settle(self, batch: Batch, questions: Sequence[AnswerRequest], taught: list[CaptureRequest]) -> None:
        ids = tuple(message.id for message in batch.messages)
        if taught and not questions:
            taught[-1] = replace(taught[-1], settles=ids)
            return
        asked = {message.id for question in questions for message in question.batch.messages}
        if others := [message_id for message_id in ids if message_id not in asked]:
            self._settles.settle(batch.channel_id, others)

    def _ask(self, question: AnswerRequest, meanwhile: Meanwhile) -> None:
        try:
            self._answers.send_nowait(question)
        except WouldBlock:
            self._witness.shed(question)
            self._settles.settle(question.batch.channel_id, [message.id for message in question.batch.messages])
            return
        self._late.asks(question)
        self.unask(meanwhile.deleted_of(question.batch.messages))


def _message_of(item: Batch | MessageEdited) -> ChatMessage:
    return item.last if isinstance(item, Batch) else item.message
