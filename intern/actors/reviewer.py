"""The actor that takes the team's ✅ on captures that wait for review."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender

from intern.actors.activity import ActivityReporter
from intern.actors.loops import wake
from intern.core.captures import CapturedPair
from intern.core.decisions import PairDecision
from intern.core.errors import ChatRefusedError, ConfigError, InternError
from intern.core.flow import ApprovalReaction, CaptureArchived
from intern.core.ids import ChannelId, MessageId
from intern.core.log import get_logger
from intern.learning.approvals import ApprovalQueue, HeldApproval
from intern.learning.review import Review

_log = get_logger(__name__)


LOOK_AGAIN_SECONDS = 2.0  # at approvals without a capture


class CaptureReviews(Protocol):
    """Finds the captures that wait for the team, and records decisions. Both raise KnowledgeError."""

    async def find_waiting_pairs(self, message_id: MessageId, /) -> Sequence[CapturedPair]:
        """Return the pairs with this message that wait for the team, newest first."""
        ...

    async def review(self, review: Review, /) -> Sequence[PairDecision]:
        """Record the decision, and return each pair's decision now. Raises ConfigError if one does not wait."""
        ...


@dataclass(frozen=True, kw_only=True)
class Reviewer:
    """Approves captures when team members put a ✅ on one of their messages.

    An approval without a capture is held a while, because the capture may be on its way. Approvals in channels that
    are not admitted are ignored.
    """

    approvals: ApprovalQueue
    reviews: CaptureReviews
    admits: Callable[[ChannelId], Awaitable[bool]]
    events: ActivityReporter

    async def run(self, approved: Receiver[ApprovalReaction], archived: Sender[CaptureArchived]) -> None:
        """Approve the newest capture that each approval covers, until the wakeups end."""
        async with approved, archived:
            while True:
                for held in self.approvals.list_waiting():
                    if await self._try_approve(held):
                        wake(archived, CaptureArchived())
                try:
                    with anyio.move_on_after(LOOK_AGAIN_SECONDS if self.approvals.list_waiting() else None):
                        await approved.receive()
                except anyio.EndOfStream:
                    return

    async def _try_approve(self, held: HeldApproval) -> bool:
        """Approve a capture; return whether there is something to file now."""
        ids = {"message_id": held.approval.message_id, "channel_id": held.approval.channel_id}
        try:
            return await self._approve(held)
        except (ConfigError, ChatRefusedError) as error:  # another decision came first, or the channel is gone
            _log.info("approval_dropped", reason=str(error), **ids)
            self.approvals.discard(held)
        except InternError as error:
            _log.warning("approval_delayed", reason=str(error), again_in_seconds=LOOK_AGAIN_SECONDS, **ids)
        return False

    async def _approve(self, held: HeldApproval) -> bool:
        word = held.approval
        waiting = await self.reviews.find_waiting_pairs(word.message_id)
        pair = next((each for each in waiting if self.approvals.covers(held, each)), None)
        if pair is None:
            return False
        if not await self.admits(word.channel_id):
            raise ChatRefusedError(f"channel {word.channel_id} is closed to us")
        decisions = await self.reviews.review(Review(action="approve", qa_ids=(pair.qa_id,), by=word.by))
        self.approvals.discard(held)
        for decision in decisions:
            _log.info("capture_approved", qa_id=decision.qa_id, user_id=word.by)
            self.events.report_decision(decision)
        return True
