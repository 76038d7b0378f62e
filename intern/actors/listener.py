"""The listener takes gateway events and never makes the gateway wait: the heartbeat depends on that.

A message that does not fit is in Discord's history: its channel falls behind and is read over REST. So it loses only
interactions that could not be answered in time, and changes beyond WAITING_CHANGES.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from anyio import Event, WouldBlock
from anyio.streams.memory import MemoryObjectSendStream as Sender

from intern.actors.loops import listen_with_task, wake
from intern.chat.checkpoints import Checkpoints, admit_every_channel
from intern.chat.platform import Deliver, Gateway
from intern.core import flow
from intern.core.log import get_logger
from intern.core.messages import Channel, ChatMessage

WAITING_CHANGES = 1000  # edits and deletions that found no room; a message needs none, since its channel falls behind

_log = get_logger(__name__)


@dataclass(kw_only=True)
class GatewayListener:
    """Hands on the gateway's events without waiting."""

    gateway: Gateway
    checkpoints: Checkpoints
    subscribers: Sequence[Deliver] = ()
    """Get each event first, in this order; they must neither wait nor raise."""
    admits: Callable[[Channel], bool] = admit_every_channel
    """Whether to read a channel: if it refuses one when a session starts, the missed messages there are not read."""

    async def run(
        self,
        events: Sender[flow.BatcherEvent],
        interactions: Sender[flow.Interaction],
        behind: Sender[flow.BackfillNeeded],
        approved: Sender[flow.ApprovalReaction],
    ) -> None:
        """Hand on each event until cancelled; then close the streams, so that the actors behind can finish."""
        self._events, self._interactions, self._behind, self._approved = events, interactions, behind, approved
        self._changes: deque[flow.LateChange] = deque()
        self._waiting = Event()
        async with events, interactions, behind, approved:
            await listen_with_task(self.gateway, self._deliver, self._send_changes)

    def _deliver(self, event: flow.GatewayEvent) -> None:
        for receive in (*self.subscribers, self._receive):
            receive(event)

    def _receive(self, event: flow.GatewayEvent) -> None:
        match event:
            case flow.MessageCreated(message=message):
                self._hand_on_message(message)
            case flow.MessageEdited(message=message):
                if not self.checkpoints.note_change(message.channel_id, message.id):
                    self._hand_on_change(event)
            case flow.MessagesDeleted(channel_id=channel_id, message_ids=ids):
                for each in ids:
                    self.checkpoints.note_change(channel_id, each)  # so a page in work is read again
                # Also messages still to be read: they may be archived already, and REST no longer shows them.
                self._hand_on_change(event)
            case flow.SessionStarted():
                self.checkpoints.begin_session(event, self.admits)
                wake(self._behind, flow.BackfillNeeded())
            case flow.ApprovalReaction():
                wake(self._approved, event)
            case flow.GuildJoined() | flow.GuildLeft():
                pass  # the process that hosts communities handles these
            case _:
                try:
                    self._interactions.send_nowait(event)
                except WouldBlock:
                    _log.error("interaction_shed", event_kind=type(event).__name__)

    async def _send_changes(self) -> None:
        """Send the changes that found no room, in order."""
        while True:
            await self._waiting.wait()
            while self._changes:
                await self._events.send(self._changes[0])
                self._changes.popleft()
            self._waiting = Event()

    def _hand_on_message(self, message: ChatMessage) -> None:
        if not self.checkpoints.is_live(message):
            self._fall_behind(message)
        elif not self.checkpoints.knows(message):
            try:
                self._events.send_nowait(flow.MessageCreated(message=message))
            except WouldBlock:
                self._fall_behind(message)
            else:
                self.checkpoints.begin(message)

    def _fall_behind(self, message: ChatMessage) -> None:
        if self.checkpoints.fall_behind(message):
            _log.info("channel_fell_behind", channel_id=message.channel_id, message_id=message.id)
            wake(self._behind, flow.BackfillNeeded())

    def _hand_on_change(self, event: flow.LateChange) -> None:
        if not self._changes:
            with suppress(WouldBlock):
                self._events.send_nowait(event)
                return
        if len(self._changes) < WAITING_CHANGES:
            self._changes.append(event)
            self._waiting.set()
        else:
            place = event.message if isinstance(event, flow.MessageEdited) else event
            _log.error("change_shed", event_kind=type(event).__name__, channel_id=place.channel_id)
