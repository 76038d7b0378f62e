"""A gateway that also delivers what was missed while no session was up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial

from anyio import create_memory_object_stream, current_time, sleep, sleep_until
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver

from intern.actors.loops import listen_with_task, surviving, wake
from intern.chat.platform import Deliver, Gateway
from intern.core import flow
from intern.core.clock import Clock
from intern.core.ids import MessageId
from intern.core.log import get_logger

_log = get_logger(__name__)


QUIET_AFTER_SESSION = 30.0
"""Seconds after a new session before anything is read again: newer messages come first."""
SHORTEST_WAIT = 600.0
"""The least seconds between two checks, however often sessions are lost."""

CheckMissed = Callable[[datetime, Callable[[flow.LateChange], object]], Awaitable[int]]
"""Reports changes to captures from before an outage; returns the number of requests. Raises KnowledgeError."""


class MissedChangesGateway:
    """A gateway that also delivers changes missed before its sessions began, as if they had just happened."""

    def __init__(self, gateway: Gateway, look: CheckMissed, *, attended: datetime, clock: Clock) -> None:
        """`attended` is when an earlier run was connected last."""
        self._gateway, self._look, self._clock = gateway, look, clock
        self._outage: datetime | None = attended  # until a check has covered it
        # During a check: the messages that the gateway reported. Its version is newer.
        self._live: set[MessageId] | None = None

    async def listen(self, deliver: Deliver) -> None:
        """Listen to the gateway, and check for missed changes after each new session."""
        begun, to_look = create_memory_object_stream[flow.SessionStarted](1)

        def receive(event: flow.GatewayEvent) -> None:
            deliver(event)
            match event:
                case flow.SessionStarted(continues=False):
                    wake(begun, event)
                case flow.MessageEdited() | flow.MessagesDeleted() if self._live is not None:
                    self._live.update(_message_ids(event))
                case _:
                    pass

        async with begun:
            await listen_with_task(self._gateway, receive, partial(self._check_after_sessions, to_look, deliver))

    async def _check_after_sessions(self, begun: Receiver[flow.SessionStarted], deliver: Deliver) -> None:
        async with begun:
            async for _ in begun:
                self._outage = self._outage or self._clock.now()
                await sleep(QUIET_AFTER_SESSION)
                began = current_time()
                with surviving("rereading"):
                    requests = await self._check_since(self._outage, deliver)
                    self._outage = None
                    _log.info("missed_changes_looked_for", requests=requests)
                await sleep_until(began + SHORTEST_WAIT)

    async def _check_since(self, outage: datetime, deliver: Deliver) -> int:
        live = self._live = set()

        def report(change: flow.LateChange) -> None:
            if live.isdisjoint(_message_ids(change)):
                _log.info("missed_change_found", change=type(change).__name__, message_ids=_message_ids(change))
                deliver(change)

        try:
            return await self._look(outage, report)
        finally:
            self._live = None


def _message_ids(change: flow.LateChange) -> tuple[MessageId, ...]:
    return (change.message.id,) if isinstance(change, flow.MessageEdited) else change.message_ids
