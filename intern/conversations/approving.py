"""What the team approves by a reaction, held until the capture that it means is there. Pure, and of the event loop.

Discord tells of a reaction once, and often before the conversation is captured: that takes a quiet window. A word
counts for what stood there when it was given; what was written or edited since waits for another one.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeVar

from intern.domain import (
    Approval,
    CapturedPair,
    GatewayEvent,
    MessageCreated,
    MessageEdited,
    MessageId,
    SessionStarted,
)
from intern.observe.clock import Clock

V = TypeVar("V")

HELD_FOR = timedelta(minutes=15)  # a batch has been captured by then, or never will be
MOST_HELD = 1000  # the team may use the emoji for anything
_EDITS_REMEMBERED = 10_000


class Held(NamedTuple):
    """Somebody's word, and when it was given."""

    approval: Approval
    at: datetime
    turn: int
    """Its place among all that was heard."""


class _Edited(NamedTuple):
    at: datetime
    turn: int


class Approvals:
    """Words of approval that nothing came of yet."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._turn = 0
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._held: OrderedDict[MessageId, Held] = OrderedDict()
        self._edited: OrderedDict[MessageId, _Edited] = OrderedDict()

    def hear(self, event: GatewayEvent) -> None:
        """Take in what the gateway tells, in its order. Never waits."""
        self._turn += 1
        match event:
            case Approval(message_id=message_id):
                # Our clock may be behind Discord's.
                at = max(self._clock.now(), self._newest)
                _put_last(self._held, message_id, Held(event, at, self._turn), MOST_HELD)
            case MessageCreated(message=message):
                self._newest = max(self._newest, message.at)
            case MessageEdited(message=message):
                _put_last(self._edited, message.id, _Edited(self._clock.now(), self._turn), _EDITS_REMEMBERED)
            case SessionStarted():
                # Nobody told what was edited in between.
                self._held.clear()
            case _:
                pass

    def held(self) -> tuple[Held, ...]:
        """What may still come to something, oldest first."""
        since = self._clock.now() - HELD_FOR
        while self._held and next(iter(self._held.values())).at < since:
            self._held.popitem(last=False)
        return tuple(self._held.values())

    def let_go(self, held: Held) -> None:
        """Something came of it, or nothing ever will."""
        if self._held.get(held.approval.message_id) is held:
            del self._held[held.approval.message_id]

    def covers(self, held: Held, pair: CapturedPair) -> bool:
        """Whether all that the pair holds stood there, as it is now, when the word was given."""
        if pair.answered_at > held.at:
            return False
        edits = (self._edited[each] for each in pair.message_ids if each in self._edited)
        return all(edit.turn < held.turn and edit.at <= pair.timestamp for edit in edits)


def _put_last(entries: OrderedDict[MessageId, V], key: MessageId, value: V, limit: int) -> None:
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > limit:
        entries.popitem(last=False)
