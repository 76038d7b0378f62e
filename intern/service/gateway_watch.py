"""Subscribers to the gateway's events: the time of its last message, and deletions that stores learn at once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from intern.core.clock import Clock
from intern.core.flow import GatewayEvent, MessageCreated, MessagesDeleted
from intern.core.ids import MessageId

Drop = Callable[[Collection[MessageId]], object]
"""Takes deleted messages out of a store; never waits."""


class GatewayWatch:
    """Notes the time of the last message."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.last_message_at: datetime | None = None

    def receive(self, event: GatewayEvent) -> None:
        """Note an event of the gateway."""
        if isinstance(event, MessageCreated):
            self.last_message_at = self._clock.now()


def drop_deleted(drop: Drop, event: GatewayEvent) -> None:
    """Take the messages of a deletion out of a store."""
    if isinstance(event, MessagesDeleted):
        drop(event.message_ids)
