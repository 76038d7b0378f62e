"""Approvals by a reaction, held until their capture arrives.

Discord reports a reaction once, often before the conversation is captured. An approval counts for the messages as they
were at the time; a conversation that was continued or edited since needs another one.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar

from intern.core import captures
from intern.core.clock import Clock
from intern.core.flow import ApprovalReaction, GatewayEvent, MessageCreated, MessageEdited, SessionStarted
from intern.core.ids import MessageId

V = TypeVar("V")

HELD_FOR = timedelta(minutes=15)  # after this, a batch will never be captured
MOST_HELD = 1000  # the team may use the emoji for anything
_EDITS_REMEMBERED = 10_000


class HeldApproval(NamedTuple):
    """An approval and its time."""

    approval: ApprovalReaction
    at: datetime
    turn: int
    """Its place among all events."""


class ApprovalQueue:
    """Approvals whose captures have not arrived yet."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._turn = 0
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._held: OrderedDict[MessageId, HeldApproval] = OrderedDict()
        self._edited: OrderedDict[MessageId, tuple[datetime, int]] = OrderedDict()

    def receive(self, event: GatewayEvent) -> None:
        """Note an event of the gateway, in order. Never waits."""
        self._turn += 1
        match event:
            case ApprovalReaction(message_id=message_id):
                # Our clock may be slow.
                at = max(self._clock.now(), self._newest)
                append_bounded(self._held, message_id, HeldApproval(event, at, self._turn), MOST_HELD)
            case MessageCreated(message=message):
                self._newest = max(self._newest, message.at)
            case MessageEdited(message=message):
                append_bounded(self._edited, message.id, (self._clock.now(), self._turn), _EDITS_REMEMBERED)
            case SessionStarted():
                # Edits between the sessions were not reported.
                self._held.clear()
            case _:
                pass

    def list_waiting(self) -> tuple[HeldApproval, ...]:
        """Return the approvals that are not too old, oldest first."""
        since = self._clock.now() - HELD_FOR
        while self._held and next(iter(self._held.values())).at < since:
            self._held.popitem(last=False)
        return tuple(self._held.values())

    def discard(self, held: HeldApproval) -> None:
        """Discard an approval that was used, or cannot be used."""
        if self._held.get(held.approval.message_id) is held:
            del self._held[held.approval.message_id]

    def covers(self, held: HeldApproval, pair: captures.CapturedPair) -> bool:
        """Whether the pair's messages all existed, as they are now, at the time of the approval."""
        if pair.answered_at > held.at:
            return False
        edits = (self._edited[each] for each in pair.message_ids if each in self._edited)
        return all(turn < held.turn and at <= pair.timestamp for at, turn in edits)


def append_bounded(entries: OrderedDict[MessageId, V], key: MessageId, value: V, limit: int) -> None:
    """Put an entry at the end; if there are too many, drop the first one."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > limit:
        entries.popitem(last=False)
