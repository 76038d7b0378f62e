"""The responder waits on the model, for many questions at once; in a thread one after the other.

A member who adds to an unanswered question asks one question: the older part is taken back and asked again with the
newer one, even if its reply is on its way to Discord. An edited question is asked again in the same way. What history
brings is not joined: it comes all at once. A withdrawn question is not answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from anyio import CancelScope, Event, Semaphore, sleep
from anyio.lowlevel import checkpoint_if_cancelled
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender
from msgspec import structs

from intern.actors.checkpointer import Settle
from intern.actors.events import Events
from intern.actors.loops import surviving
from intern.answering.replying import Replying
from intern.answering.workflow import Answers
from intern.chat.conversations import joined, revise
from intern.chat.outbox import Outgoing
from intern.core.errors import ChatError, ChatRefusedError
from intern.core.flow import AnswerRequest, Reply, Revision
from intern.core.ids import ChannelId, MessageId, UserId
from intern.core.log import get_logger, traced
from intern.core.messages import AIResult
from intern.core.tasks import open_task_group
from intern.stores.sqlite.store import save_record
from intern.stores.sqlite.traces import TraceStore

AT_ONCE = 16  # questions in work; the model's own limit decides how many of their calls are in flight
ROOM = 32  # questions in work or in line: one busy thread must not delay the others
TYPING_SECONDS = 8.0  # Discord shows it for ten

_Place = tuple[ChannelId, UserId | None]

_log = get_logger(__name__)


@dataclass(eq=False)
class _Job:
    request: AnswerRequest
    scope: CancelScope | None = None
    withdrawn: bool = False
    over: bool = False
    """Its reply was handed over, or there is none: further messages are another question."""


@dataclass(kw_only=True)
class Responder:
    """Answers questions, each place's in order; it settles those without a reply, the poster the rest."""

    answers: Answers
    replying: Replying
    outgoing: Outgoing
    done_with: Callable[[MessageId], Awaitable[bool]]
    """Whether the reply to a message was posted or dropped before. Raises KnowledgeError."""
    typing: Callable[[ChannelId], Awaitable[object]]
    """Shows for ten seconds that a reply is being written. Raises the ChatError family."""
    traces: TraceStore
    settle: Settle
    events: Events

    async def run(self, inbox: Receiver[AnswerRequest | Revision], replies: Sender[Reply]) -> None:
        """Answer each question until the inbox ends and the last one in work is done."""
        async with inbox, replies, open_task_group() as self._tg:
            self._replies = replies
            self._lines: dict[_Place, deque[_Job]] = {}
            self._left = Event()
            self._at_once = Semaphore(AT_ONCE)
            async for item in inbox:
                if isinstance(item, AnswerRequest):
                    self._take(item)
                else:
                    self._revise(item)
                while len(self._jobs()) > ROOM:
                    self._left = Event()
                    await self._left.wait()

    def _jobs(self) -> list[_Job]:
        return [job for line in self._lines.values() for job in line]

    def _take(self, request: AnswerRequest) -> None:
        """Begin with a question, or put it in line, at once: what comes next must find it there."""
        place = _place_of(request)
        # History brings at once what its asker wrote minutes apart: that adds to no other question.
        same = None if request.batch.from_history else (place, request.batch.author.id)
        for job in reversed(self._lines.get(place, ())):
            if (place, job.request.batch.author.id) == same and not (job.over or job.withdrawn):
                self._change(job, joined(job.request, request, self.replying.options))
                return
        for older in self.outgoing.take_back("superseded", lambda it: (_place_of(it), it.batch.author.id) == same):
            request = joined(older, request, self.replying.options)
        line = self._lines.setdefault(place, deque())
        line.append(_Job(request))
        if len(line) == 1:
            self._tg.start_soon(self._work_off, place, line)

    def _revise(self, revision: Revision) -> None:
        """Give up deleted questions; ask edited ones, and the rest of others, again. Posted replies stay."""
        newest = partial(revise, versions=revision.versions, options=self.replying.options)
        for job in self._jobs():
            if not (job.over or job.withdrawn) and (left := newest(job.request)) != job.request:
                self._change(job, left)
        for request in self.outgoing.take_back("withdrawn", lambda each: newest(each) != each):
            left = newest(request)
            self._settle_gone(request, left)
            if left:
                self._take(left)

    def _change(self, job: _Job, newer: AnswerRequest | None) -> None:
        """Ask the newer question in place of the one in work; with none, give it up."""
        _log.info("question_changed", message_id=job.request.batch.last.id, by=newer and newer.batch.last.id)
        self._settle_gone(job.request, newer)
        job.withdrawn, job.request = newer is None, newer or job.request
        if job.scope:
            job.scope.cancel()

    async def _work_off(self, place: _Place, line: deque[_Job]) -> None:
        while line:
            async with self._at_once:
                await self._do(line[0])
            line.popleft()
            self._left.set()
        del self._lines[place]

    async def _do(self, job: _Job) -> None:
        while not (job.over or job.withdrawn):
            request = job.request
            question = request.batch.last.id
            with traced(question), CancelScope() as job.scope, surviving("responder", message_id=question):
                await self._answer(job, request)
            if job.request is request:
                break
        job.over = True
        if job.withdrawn:
            await self._keep(job.request, "withdrawn")

    async def _answer(self, job: _Job, request: AnswerRequest) -> None:
        if len(request.batch.messages) > 1:  # a part of it may be just about to be answered
            await self.outgoing.resumed()
        done = [each.id for each in request.batch.messages if await self.done_with(each.id)]
        if done:  # a part that was answered before a crash came back, and was joined: it is context now
            self.settle(request.batch.channel_id, done)
            left = tuple(each for each in request.batch.messages if each.id not in done)
            if not left:
                _log.info("question_done_before", message_id=request.batch.last.id)
                return
            request = structs.replace(request, batch=structs.replace(request.batch, messages=left))
        result = await self._thought_over(request)
        await checkpoint_if_cancelled()  # the model may be faster than a newer part of the question, by a hair
        reply = self.replying.reply_of(request, result)
        outcome = "silent" if reply is None else "notice" if reply.notice else "answer"
        await self._keep(request, outcome, result)
        await self.outgoing.make_way(request)
        await checkpoint_if_cancelled()
        job.over = True
        self.events.answered(request, result)
        if reply is None:
            self._settle_gone(request, None)
            self.events.unsaid(request)
            return
        self.outgoing.hand_over(request)
        await self._replies.send(reply)

    async def _thought_over(self, request: AnswerRequest) -> AIResult:
        # No task group around the call: what it raises would come out wrapped.
        typing = CancelScope()
        self._tg.start_soon(self._type, request, typing)
        try:
            return await self.answers.answer(request.conversation, request.context, addressed=request.addressed)
        finally:
            typing.cancel()

    async def _type(self, request: AnswerRequest, scope: CancelScope) -> None:
        with scope:
            if not _seems_to_ask(request):
                # Most messages are found to be no question before this is over.
                await sleep(TYPING_SECONDS)
            while True:
                try:
                    await self.typing(request.channel.id)
                except ChatRefusedError:
                    return
                except ChatError as error:
                    _log.debug("typing_failed", channel_id=request.channel.id, reason=str(error))
                await sleep(TYPING_SECONDS)

    async def _keep(self, request: AnswerRequest, outcome: str, result: AIResult | None = None) -> None:
        keep = partial(
            self.traces.keep,
            [message.id for message in request.batch.messages],
            request.batch.channel_id,
            outcome=outcome,
            reason=result.reason if result else "",
            debug=result.debug if result else None,
        )
        await save_record(keep, message_id=request.batch.last.id)

    def _settle_gone(self, request: AnswerRequest, left: AnswerRequest | None) -> None:
        """Settle the messages of a question that are not in what is left of it."""
        kept = {message.id for message in left.batch.messages} if left else ()
        ids = [message.id for message in request.batch.messages if message.id not in kept]
        self.settle(request.batch.channel_id, ids)


def _place_of(request: AnswerRequest) -> _Place:
    """Return the line of a question: one for a whole thread; in a channel, one for each asker."""
    return request.channel.id, None if request.channel.is_thread else request.batch.author.id


def _seems_to_ask(request: AnswerRequest) -> bool:
    return request.addressed or any("?" in message.text for message in request.batch.messages)
