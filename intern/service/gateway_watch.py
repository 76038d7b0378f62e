"""The gateway, watched: the time of its last message, and deletions that stores learn at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from intern.chat.platform import Deliver, Gateway
from intern.core.clock import Clock
from intern.core.flow import GatewayEvent, MessageCreated, MessagesDeleted
from intern.core.ids import MessageId

Drop = Callable[[Collection[MessageId]], object]
"""Takes deleted messages out of a store; never waits."""


class GatewayWatch:
    """A gateway that notes the time of the last message, and hands deleted messages to `drops`."""

    def __init__(self, gateway: Gateway, *, clock: Clock, drops: Sequence[Drop]) -> None:
        self._gateway, self._clock, self._drops = gateway, clock, drops
        self.last_message_at: datetime | None = None

    async def listen(self, deliver: Deliver) -> None:
        """Listen as the gateway does."""

        def note(event: GatewayEvent) -> None:
            match event:
                case MessageCreated():
                    self.last_message_at = self._clock.now()
                case MessagesDeleted(message_ids=message_ids):
                    for drop in self._drops:
                        drop(message_ids)
                case _:
                    pass
            deliver(event)

        await self._gateway.listen(note)
