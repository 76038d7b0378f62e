"""The listener takes what the gateway delivers and never makes it wait: the heartbeat depends on that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from anyio import WouldBlock
from anyio.streams.memory import MemoryObjectSendStream

from intern.domain import MessageEvent
from intern.observe.log import get_logger

_log = get_logger(__name__)


class Gateway(Protocol):
    """A connection that tells what happens on Discord."""

    async def listen(self, deliver: Callable[[MessageEvent], None], /) -> None:
        """Call `deliver` for each event, in order, until cancelled.

        Raises ConfigError where Discord refuses us for good, DiscordError where the connection cannot be had.
        """
        ...


async def listener(gateway: Gateway, events: MemoryObjectSendStream[MessageEvent]) -> None:
    """Hand on each event until cancelled; then close the stream, so that everybody behind can finish."""

    def deliver(event: MessageEvent) -> None:
        try:
            events.send_nowait(event)
        except WouldBlock:
            # hikari knows no back-pressure: what does not fit is named here and lives on in Discord's history.
            _log.error("event_shed", event_kind=type(event).__name__, **_place(event))

    async with events:
        await gateway.listen(deliver)


def _place(event: MessageEvent) -> dict[str, str]:
    message = getattr(event, "message", None)
    return {"channel_id": message.channel_id, "message_id": message.id} if message else {}
