"""The reviewer writes down what the team approves by a reaction. It waits on Discord's REST and on what is captured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from anyio import EndOfStream, move_on_after
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.events import Events
from intern.actors.wakeups import wake
from intern.core.errors import ChatRefusedError, ConfigError, InternError
from intern.core.flow import Approval, Archived
from intern.core.ids import ChannelId, MessageId
from intern.core.log import get_logger
from intern.core.records import CapturedPair, PairDecision
from intern.learning.review import Approvals, Held, Review

LOOK_AGAIN_SECONDS = 2.0  # at what nothing came of yet; memory tells of most that there is nothing

_log = get_logger(__name__)


class Reviews(Protocol):
    """Knows what waits for the team, and writes down what they say of it. Both raise KnowledgeError."""

    async def waiting_with(self, message_id: MessageId, /) -> Sequence[CapturedPair]:
        """The pairs with this message that wait for somebody of the team, newest first."""
        ...

    async def review(self, review: Review, /) -> Sequence[PairDecision]:
        """Write it down, and return what stands about each pair now. Raises ConfigError where one does not wait."""
        ...


async def reviewer(
    approved: MemoryObjectReceiveStream[Approval],
    archived: MemoryObjectSendStream[Archived],
    *,
    approvals: Approvals,
    reviews: Reviews,
    admits: Callable[[ChannelId], Awaitable[bool]],
    events: Events,
) -> None:
    """See to each approval until the wakeups end. The newest capture with that message that it covers is approved.

    An approval without a capture is held a while, for that may be on its way. One in a channel that is not admitted
    counts for nothing.
    """
    desk = _Desk(approvals, reviews, admits, events)
    async with approved, archived:
        while True:
            for held in approvals.held():
                if await desk.approve(held):
                    wake(archived, Archived())
            try:
                with move_on_after(LOOK_AGAIN_SECONDS if approvals.held() else None):
                    await approved.receive()
            except EndOfStream:
                return


class _Desk:
    def __init__(
        self,
        approvals: Approvals,
        reviews: Reviews,
        admits: Callable[[ChannelId], Awaitable[bool]],
        events: Events,
    ) -> None:
        self._approvals = approvals
        self._reviews = reviews
        self._admits = admits
        self._events = events

    async def approve(self, held: Held) -> bool:
        """Whether there is something to file now."""
        ids = {"message_id": held.approval.message_id, "channel_id": held.approval.channel_id}
        try:
            return await self._approve(held)
        except (ConfigError, ChatRefusedError) as error:  # decided otherwise meanwhile, or the channel is gone
            _log.info("approval_dropped", reason=str(error), **ids)
            self._approvals.let_go(held)
        except InternError as error:
            _log.warning("approval_delayed", reason=str(error), again_in_seconds=LOOK_AGAIN_SECONDS, **ids)
        return False

    async def _approve(self, held: Held) -> bool:
        word = held.approval
        waiting = await self._reviews.waiting_with(word.message_id)
        pair = next((each for each in waiting if self._approvals.covers(held, each)), None)
        if pair is None:
            return False
        if not await self._admits(word.channel_id):
            raise ChatRefusedError(f"channel {word.channel_id} is closed to us")
        decisions = await self._reviews.review(Review(action="approve", qa_ids=(pair.qa_id,), by=word.by))
        self._approvals.let_go(held)
        for decision in decisions:
            _log.info("capture_approved", qa_id=decision.qa_id, user_id=word.by)
            self._events.decided(decision)
        return True
