"""After each new session, what was captured lately is read again, to learn of edits and deletions that were missed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from anyio import create_memory_object_stream, create_task_group, current_time, sleep, sleep_until
from anyio.streams.memory import MemoryObjectReceiveStream

from intern.actors.guard import surviving
from intern.actors.wakeups import wake
from intern.chat.platform import Gateway
from intern.core.clock import Clock
from intern.core.errors import InternError
from intern.core.flow import GatewayEvent, LateChange, MessageEdited, MessagesDeleted, SessionStarted
from intern.core.ids import MessageId
from intern.core.log import get_logger

SETTLES = 30.0
"""Seconds after a new session before anything is read again: what was written meanwhile comes first."""
SHORTEST_WAIT = 600.0
"""Seconds from one look to the next, however often sessions are lost."""

_log = get_logger(__name__)

Look = Callable[[datetime, Callable[[LateChange], object]], Awaitable[int]]
"""Tells what changed of what was captured before an outage; returns the requests made. Raises KnowledgeError."""


class Rereading:
    """A gateway that also tells what was missed before its sessions began, as if it had just happened."""

    def __init__(self, gateway: Gateway, look: Look, *, attended: datetime, clock: Clock) -> None:
        """`attended` is when an earlier run was connected last."""
        self._gateway = gateway
        self._look = look
        self._outage: datetime | None = attended  # until a look has gone back to it
        self._clock = clock
        self._live: set[MessageId] | None = None  # while a look is under way: what the gateway told of; that is newer

    async def listen(self, deliver: Callable[[GatewayEvent], None]) -> None:
        """As the gateway does it."""
        failure: InternError | None = None
        begun, to_look = create_memory_object_stream[SessionStarted](1)

        def hear(event: GatewayEvent) -> None:
            deliver(event)
            match event:
                case SessionStarted():
                    wake(begun, event)
                case MessageEdited() | MessagesDeleted() if self._live is not None:
                    self._live.update(_ids_of(event))
                case _:
                    pass

        async with begun, create_task_group() as tg:
            tg.start_soon(self._look_after_each, to_look, deliver)
            try:
                await self._gateway.listen(hear)
            except InternError as error:  # raised below, where no task group wraps it
                failure = error
            tg.cancel_scope.cancel()
        if failure:
            raise failure

    async def _look_after_each(
        self, begun: MemoryObjectReceiveStream[SessionStarted], deliver: Callable[[GatewayEvent], None]
    ) -> None:
        async with begun:
            async for _ in begun:
                self._outage = self._outage or self._clock.now()
                await sleep(SETTLES)
                began = current_time()
                with surviving("rereading"):
                    requests = await self._look_since(self._outage, deliver)
                    self._outage = None
                    _log.info("missed_changes_looked_for", requests=requests)
                await sleep_until(began + SHORTEST_WAIT)

    async def _look_since(self, outage: datetime, deliver: Callable[[GatewayEvent], None]) -> int:
        live = self._live = set()

        def tell(change: LateChange) -> None:
            if live.isdisjoint(_ids_of(change)):
                _log.info("missed_change_found", change=type(change).__name__, message_ids=_ids_of(change))
                deliver(change)

        try:
            return await self._look(outage, tell)
        finally:
            self._live = None


def _ids_of(change: LateChange) -> tuple[MessageId, ...]:
    return (change.message.id,) if isinstance(change, MessageEdited) else change.message_ids
