"""The responder answers many questions at once; those of one thread, one after the other.

If a member adds to an unanswered question, both parts are one question: the older part is recalled and asked again
with the newer one, even if its reply is on its way to Discord. An edited question is asked again in the same way.
Messages from history are not joined, because they come all at once. A withdrawn question is not answered.
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

from intern.actors.activity import ActivityReporter
from intern.actors.checkpointer import Settle
from intern.actors.loops import surviving
from intern.answering.answerer import QuestionAnswerer
from intern.answering.question_records import record_question
from intern.answering.replies import ReplyBuilder
from intern.chat.conversations import merge_questions, revise_question
from intern.chat.delivery import RecallableReplies
from intern.core.errors import ChatError, ChatRefusedError
from intern.core.flow import AnswerRequest, MessageRevisions, Reply
from intern.core.ids import ChannelId, MessageId, UserId
from intern.core.log import bind_trace_id, get_logger
from intern.core.messages import AnswerResult
from intern.core.tasks import open_task_group
from intern.stores.tables.answers import AnswerStore

AT_ONCE = 16  # questions in work; the model's own limit decides how many of their calls are in flight
ROOM = 32  # questions in work or queued: one busy thread must not delay the others
TYPING_SECONDS = 8.0  # Discord shows it for ten

_Place = tuple[ChannelId, UserId | None]

_log = get_logger(__name__)


@dataclass(eq=False)
class _AnswerJob:
    request: AnswerRequest
    scope: CancelScope | None = None
    withdrawn: bool = False
    over: bool = False
    """Whether its reply was handed over, or it has none: further messages are another question."""


@dataclass(kw_only=True)
class Responder:
    """Answers questions, in order for each place; it settles those without a reply, the poster settles the rest."""

    answers: QuestionAnswerer
    replying: ReplyBuilder
    outgoing: RecallableReplies
    done_with: Callable[[MessageId], Awaitable[bool]]
    """Whether the reply to a message was posted or dropped before. Raises KnowledgeError."""
    typing: Callable[[ChannelId], Awaitable[object]]
    """Shows for ten seconds that a reply is being written. Raises the ChatError family."""
    records: AnswerStore
    settle: Settle
    events: ActivityReporter

    async def run(self, inbox: Receiver[AnswerRequest | MessageRevisions], replies: Sender[Reply]) -> None:
        """Answer each question until the inbox ends and the last one in work is done."""
        async with inbox, replies, open_task_group() as self._tg:
            self._replies = replies
            self._lines: dict[_Place, deque[_AnswerJob]] = {}
            self._left = Event()
            self._at_once = Semaphore(AT_ONCE)
            async for item in inbox:
                if isinstance(item, AnswerRequest):
                    self._add_question(item)
                else:
                    self._apply_revision(item)
                while len(self._list_jobs()) > ROOM:
                    self._left = Event()
                    await self._left.wait()

    def _list_jobs(self) -> list[_AnswerJob]:
        return [job for line in self._lines.values() for job in line]

    def _add_question(self, request: AnswerRequest) -> None:
        """Begin a question or queue it, at once: the next event must find it there."""
        place = _line_key(request)
        # History brings messages at once that were written minutes apart, so they add to no other question.
        same = None if request.batch.from_history else (place, request.batch.author.id)
        for job in reversed(self._lines.get(place, ())):
            if (place, job.request.batch.author.id) == same and not (job.over or job.withdrawn):
                self._replace_question(job, merge_questions(job.request, request, self.replying.options))
                return
        for older in self.outgoing.recall("superseded", lambda it: (_line_key(it), it.batch.author.id) == same):
            request = merge_questions(older, request, self.replying.options)
        line = self._lines.setdefault(place, deque())
        line.append(_AnswerJob(request))
        if len(line) == 1:
            self._tg.start_soon(self._run_line, place, line)

    def _apply_revision(self, revision: MessageRevisions) -> None:
        """Give up deleted questions; ask edited ones again, and those that lost a part. Posted replies stay."""
        newest = partial(revise_question, versions=revision.versions, options=self.replying.options)
        for job in self._list_jobs():
            if not (job.over or job.withdrawn) and (left := newest(job.request)) != job.request:
                self._replace_question(job, left)
        for request in self.outgoing.recall("withdrawn", lambda each: newest(each) != each):
            left = newest(request)
            self._settle_removed(request, left)
            if left:
                self._add_question(left)

    def _replace_question(self, job: _AnswerJob, newer: AnswerRequest | None) -> None:
        """Ask the newer question instead of the one in work; without a newer one, give it up."""
        _log.info("question_changed", message_id=job.request.batch.last.id, by=newer and newer.batch.last.id)
        self._settle_removed(job.request, newer)
        job.withdrawn, job.request = newer is None, newer or job.request
        if job.scope:
            job.scope.cancel()

    async def _run_line(self, place: _Place, line: deque[_AnswerJob]) -> None:
        while line:
            async with self._at_once:
                await self._run_job(line[0])
            line.popleft()
            self._left.set()
        del self._lines[place]

    async def _run_job(self, job: _AnswerJob) -> None:
        while not (job.over or job.withdrawn):
            request = job.request
            question = request.batch.last.id
            with bind_trace_id(question), CancelScope() as job.scope, surviving("responder", message_id=question):
                await self._answer(job, request)
            if job.request is request:
                break
        job.over = True
        if job.withdrawn:
            await record_question(self.records, job.request, outcome="withdrawn", with_words=False)

    async def _answer(self, job: _AnswerJob, request: AnswerRequest) -> None:
        if len(request.batch.messages) > 1:  # a part of it may be about to be answered
            await self.outgoing.wait_until_resumed()
        done = [each.id for each in request.batch.messages if await self.done_with(each.id)]
        if done:  # a part answered before a crash came back and was joined: it is context now
            self.settle(request.batch.channel_id, done)
            left = tuple(each for each in request.batch.messages if each.id not in done)
            if not left:
                _log.info("question_done_before", message_id=request.batch.last.id)
                return
            request = structs.replace(request, batch=structs.replace(request.batch, messages=left))
        result = await self._call_answerer(request)
        await checkpoint_if_cancelled()  # the model may be slightly faster than a newer part of the question
        reply = self.replying.decide_reply(request, result)
        outcome = "silent" if reply is None else "notice" if reply.notice else "answer"
        await record_question(self.records, request, outcome=outcome, reason=result.reason, debug=result.debug)
        await self.outgoing.wait_for_recalled_parts(request)
        await checkpoint_if_cancelled()
        job.over = True
        self.events.report_answer(request, result)
        if reply is None:
            self._settle_removed(request, None)
            self.events.report_no_reply(request)
            return
        self.outgoing.add_reply(request)
        await self._replies.send(reply)

    async def _call_answerer(self, request: AnswerRequest) -> AnswerResult:
        # No task group around the call: it would wrap the errors.
        typing = CancelScope()
        self._tg.start_soon(self._show_typing, request, typing)
        try:
            return await self.answers.answer(request.conversation, request.context, addressed=request.addressed)
        finally:
            typing.cancel()

    async def _show_typing(self, request: AnswerRequest, scope: CancelScope) -> None:
        with scope:
            if not (request.addressed or any("?" in message.text for message in request.batch.messages)):
                # Most messages turn out to be no question before this is over.
                await sleep(TYPING_SECONDS)
            while True:
                try:
                    await self.typing(request.channel.id)
                except ChatRefusedError:
                    return
                except ChatError as error:
                    _log.debug("typing_failed", channel_id=request.channel.id, reason=str(error))
                await sleep(TYPING_SECONDS)

    def _settle_removed(self, request: AnswerRequest, left: AnswerRequest | None) -> None:
        """Settle the messages of a question that were removed from it."""
        kept = {message.id for message in left.batch.messages} if left else ()
        ids = [message.id for message in request.batch.messages if message.id not in kept]
        self.settle(request.batch.channel_id, ids)


def _line_key(request: AnswerRequest) -> _Place:
    """Return the queue key of a question: one for a whole thread; in a channel, one for each asker."""
    return request.channel.id, None if request.channel.is_thread else request.batch.author.id
