"""The actor that joins an author's messages once they pause. One heap and one deadline serve all authors."""

from __future__ import annotations

from contextlib import suppress

from anyio import CancelScope, EndOfStream, WouldBlock, current_time, sleep_until
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender

from intern.actors.checkpointer import Settle
from intern.chat.batching import OpenBatches
from intern.core import flow
from intern.core.clock import Clock


async def batcher(
    inbox: Receiver[flow.BatcherEvent],
    batches: Sender[flow.Batch | flow.LateChange],
    *,
    open_batches: OpenBatches,
    settle: Settle,
    clock: Clock,
    flush: bool,
) -> None:
    """Send each batch once its author paused for the window, and each change to a message, whether sent before or not.

    It settles messages that are deleted in the window; other actors settle the rest. At the end of the inbox, open
    batches are sent too if `flush` is set; else they stay unsettled, and come back from history.
    """

    async def add_event(event: flow.BatcherEvent) -> None:
        # The age by the message's own time; only for messages that the gateway did not deliver just now, because our
        # clock and Discord's may differ.
        age = (clock.now() - event.message.at).total_seconds() if isinstance(event, flow.MessageBackfilled) else 0.0
        late = open_batches.add(event, current_time(), max(0.0, age))
        if isinstance(event, flow.MessagesDeleted):
            left = late.message_ids if isinstance(late, flow.MessagesDeleted) else ()
            settle(event.channel_id, [gone for gone in event.message_ids if gone not in left])
        if isinstance(event, flow.MessageEdited | flow.MessagesDeleted):
            # Also for messages held here: the reader of another batch may have read the old version.
            await batches.send(event)

    async with inbox, batches:
        ended = False
        while not ended:
            event = None
            if open_batches.is_full and inbox.statistics().open_send_streams:
                # The senders wait. We are not woken if they all leave, so check now and then.
                await sleep_until(min(open_batches.next_deadline(), current_time() + 1))
            else:
                try:
                    event = await _receive_until(inbox, open_batches.next_deadline())
                except EndOfStream:
                    ended = True
            if event is not None:
                await add_event(event)
            for batch in open_batches.take_due(current_time()):
                await batches.send(batch)
        for batch in open_batches.flush() if flush else ():
            await batches.send(batch)


async def _receive_until(inbox: Receiver[flow.BatcherEvent], deadline: float) -> flow.BatcherEvent | None:
    """Return the next event, or None at the deadline. An event that already waits, as in a burst, needs no timer."""
    with suppress(WouldBlock):
        return inbox.receive_nowait()
    with CancelScope(deadline=deadline):
        return await inbox.receive()
    return None
