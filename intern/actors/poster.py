"""The poster posts each reply to Discord exactly once, even after a crash; within a thread, one after the other.

While an asker is adding something, the reply is held. If the addition becomes a question, the reply is recalled; if
not, it is posted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from anyio import Lock, Semaphore, current_time, move_on_after
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver

from intern.actors.activity import ActivityReporter
from intern.actors.checkpointer import Settle
from intern.actors.loops import Backoff, exponential_backoff, retry, surviving
from intern.chat.delivery import NO_LONGER, PostOutcome, RecallableReplies, ReportOutcome
from intern.core.errors import ChatError, ChatUnavailableError, ChatUnknownOutcomeError, InternError, KnowledgeError
from intern.core.flow import Reply
from intern.core.ids import ChannelId, MessageId
from intern.core.log import bind_trace_id, get_logger
from intern.core.tasks import open_task_group
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.outbox import Post
from intern.stores.tables.store import save_record

T = TypeVar("T")

AT_ONCE = 4  # replies being posted; one that waits for a rate limit does not hold up the others
ROOM = 64  # replies that wait for an outage to end, for their asker, or for their turn in a thread: a few KB each
TRIES = 300  # with growing pauses, a day: `ReplyDelivery` ends earlier once a reply is too old
DISK_TRIES = 12  # twenty minutes, while the outbox cannot be written: the age of a reply is unknown then
RESUME_TRIES = 6  # half a minute; new replies wait meanwhile
HOLDS = 2  # an asker who keeps writing gets an answer to the first part

_log = get_logger(__name__)


class ReplyDelivery(Protocol):
    """Posts replies through the outbox; repeating it is harmless."""

    async def post(self, reply: Reply, /, *, waited_for: MessageId | None = None) -> PostOutcome:
        """Post the reply, and return the outcome. It is held if its asker wrote something newer than `waited_for`.

        Gives up once the reply is too old, however long Discord is away.

        Raises the ChatError and KnowledgeError families.
        """
        ...

    async def resume(self, ended: ReportOutcome, /) -> int:
        """Finish the replies that an earlier run left half posted, report each, and return their number."""
        ...


class StuckReplies(NamedTuple):
    """Replies that Discord does not take."""

    replies: int
    since: float
    """The time by the event loop's clock."""
    problem: str
    """The last failure; empty if none failed, and the first response is still pending."""


class WaitingReplies:
    """The replies that wait for Discord, and when the last one got through."""

    def __init__(self) -> None:
        self._since: dict[object, float] = {}
        self._through = float("-inf")
        self._problem = ""

    @contextmanager
    def track_reply(self) -> Generator[None]:
        """Count a reply as waiting within the block."""
        me = object()
        self._since[me] = current_time()
        try:
            yield
        finally:
            del self._since[me]

    def record_success(self) -> None:
        """Note that Discord took a reply, or refused it."""
        self._through, self._problem = current_time(), ""

    def record_failure(self, error: Exception) -> None:
        """Note why a reply has to wait longer."""
        self._problem = str(error)

    def find_stuck(self) -> StuckReplies | None:
        """Return the waiting replies, and the time since which none got through; None if none waits."""
        if not self._since:
            return None
        return StuckReplies(len(self._since), max(self._through, min(self._since.values())), self._problem)


@dataclass(kw_only=True)
class Poster:
    """Posts replies, each thread's in order."""

    posts: ReplyDelivery
    outgoing: RecallableReplies
    records: AnswerStore
    settle: Settle
    events: ActivityReporter
    hold_seconds: float
    """Seconds after the asker's newest message until it is surely routed: a bit more than the batch wait."""
    backoff: Backoff = exponential_backoff
    waiting: WaitingReplies = field(default_factory=WaitingReplies)

    async def run(self, inbox: Receiver[Reply]) -> None:
        """Finish the replies that an earlier run left half posted, then post each reply until the inbox ends."""
        self._room, self._places = Semaphore(ROOM), Semaphore(AT_ONCE)
        self._turns: dict[ChannelId, Lock] = {}
        self._in_line: Counter[ChannelId] = Counter()
        async with inbox, open_task_group() as tg:
            with surviving("poster"), self.outgoing.resuming(), self.waiting.track_reply():
                resumed = await self._retry(partial(self.posts.resume, self._record_resumed), RESUME_TRIES)
                if resumed:
                    _log.info("posts_resumed", count=resumed)
            async for reply in inbox:
                await self._room.acquire()
                tg.start_soon(self._process_reply, reply)
            # The actors that recall replies are gone.
            self.outgoing.close()

    async def _process_reply(self, reply: Reply) -> None:
        """Post a reply, and settle its question."""
        question_id = reply.question.id
        try:
            with bind_trace_id(question_id), surviving("poster", message_id=question_id):
                await self._deliver_and_record(reply)
        finally:
            self.outgoing.remove_reply(question_id)
            self._room.release()

    async def _deliver_and_record(self, reply: Reply) -> None:
        try:
            outcome = await self._post_when_complete(reply)
        except ChatError:
            # The outbox holds it, and the next start resumes it.
            self.settle(reply.question.channel_id, reply.settles or (reply.question.id,))
            await self._record_failure(reply)
            raise
        except KnowledgeError:
            # As after a crash: if the outbox holds the reply, the next start finishes it. If not, no part was posted,
            # and the question is asked again.
            await self._record_failure(reply)
            raise
        if outcome.status != "recalled":
            self.settle(reply.question.channel_id, reply.settles or (reply.question.id,))
        await self._record_outcome(reply.notice or outcome.notice, reply.question.id, outcome.status, outcome.reason)
        self.events.report_post(reply, _describe_outcome(outcome))

    async def _record_resumed(self, entry: Post, outcome: PostOutcome) -> None:
        """Record the outcome of a reply of an earlier run."""
        await self._record_outcome(entry.notice or outcome.notice, entry.question_id, outcome.status, outcome.reason)
        self.events.report_resumed_post(entry.question_id, entry.channel_id, _describe_outcome(outcome))

    async def _record_failure(self, reply: Reply) -> None:
        await self._record_outcome(reply.notice, reply.question.id, "failed")
        self.events.report_post(reply, "failed")

    async def _post_when_complete(self, reply: Reply) -> PostOutcome:
        waited_for: MessageId | None = None
        for _ in range(HOLDS):
            outcome = await self._post_in_turn(reply, waited_for)
            if outcome.status != "held":
                return outcome
            waited_for = outcome.newest
            _log.info("reply_held", message_id=reply.question.id, reason=outcome.reason)
            with move_on_after(self.hold_seconds):
                await self.outgoing.wait_for_recall(reply.question.id)
        return await self._post_in_turn(reply, NO_LONGER)

    async def _post_in_turn(self, reply: Reply, waited_for: MessageId | None) -> PostOutcome:
        async def act() -> PostOutcome:
            async with self._places:
                return await self.posts.post(reply, waited_for=waited_for)

        # A thread that hangs on a message has the message's id.
        thread = reply.question.channel_id if reply.target == "in_place" else ChannelId(reply.question.id)
        with self.waiting.track_reply():
            async with self._take_turn(thread):
                outcome = await self._retry(act, TRIES, message_id=reply.question.id)
            if outcome.status == "posted" or outcome.reason == "refused":
                self.waiting.record_success()
        return outcome

    @asynccontextmanager
    async def _take_turn(self, thread: ChannelId) -> AsyncGenerator[None]:
        """Allow one reply at a time, first in first out."""
        turn = self._turns.setdefault(thread, Lock())
        self._in_line[thread] += 1
        try:
            async with turn:
                yield
        finally:
            self._in_line[thread] -= 1
            if not self._in_line[thread]:
                del self._in_line[thread], self._turns[thread]

    async def _retry(self, act: Callable[[], Awaitable[T]], tries: int, **ids: str) -> T:
        """Try until it works, because Discord comes back and a full disk gets room; the last failure passes through."""
        refused = 0

        def log_delay(error: InternError, pause: float) -> None:
            nonlocal refused
            self.waiting.record_failure(error)
            refused += isinstance(error, KnowledgeError)
            if refused == DISK_TRIES:
                raise error
            _log.warning("post_delayed", reason=str(error), again_in_seconds=pause, **ids)

        survived = (ChatUnavailableError, ChatUnknownOutcomeError, KnowledgeError)
        return await retry(act, *survived, backoff=islice(self.backoff(), tries - 1), delayed=log_delay)

    async def _record_outcome(self, notice: bool, question_id: MessageId, status: str, reason: str = "") -> None:  # noqa: FBT001 told apart by its type
        outcome = f"{'notice' if notice else 'answer'} {status.replace('_', ' ')}"
        keep = partial(self.records.save_outcome, question_id, outcome=outcome, reason=reason)
        await save_record(keep, message_id=question_id)


def _describe_outcome(outcome: PostOutcome) -> str:
    # The reason of a recall concerns the question, which is asked again or gone.
    return outcome.status if outcome.status == "recalled" else outcome.reason or outcome.status
