"""The batcher collects an author's messages until they pause. One heap and one deadline serve all authors."""

from __future__ import annotations

from anyio import CancelScope, EndOfStream, WouldBlock, current_time, sleep_until
from anyio.streams.memory import MemoryObjectReceiveStream as Receiver, MemoryObjectSendStream as Sender

from intern.actors.checkpointer import Settle
from intern.chat.batching import Batches
from intern.core.clock import Clock
from intern.core.flow import Batch, Heard, LateChange, MessageEdited, MessageRead, MessagesDeleted


async def batcher(
    inbox: Receiver[Heard],
    batches: Sender[Batch | LateChange],
    *,
    open_batches: Batches,
    settle: Settle,
    clock: Clock,
    flush: bool,
) -> None:
    """Send each batch once its author paused for the window, and each change to a message, sent before or not.

    It settles messages that are deleted in the window; other actors settle the rest. Batches still open at the end of
    the inbox are sent too if `flush` is set; else they stay unsettled, and come back from history.
    """

    async def take(event: Heard) -> None:
        # How long ago, by the message's own time; only for those that the gateway did not deliver just now, because our
        # clock and Discord's need not agree.
        age = (clock.now() - event.message.at).total_seconds() if isinstance(event, MessageRead) else 0.0
        late = open_batches.add(event, current_time(), max(0.0, age))
        if isinstance(event, MessagesDeleted):
            left = late.message_ids if isinstance(late, MessagesDeleted) else ()
            settle(event.channel_id, [gone for gone in event.message_ids if gone not in left])
        if isinstance(event, MessageEdited | MessagesDeleted):
            # Also for messages held here: the reader of another batch may have read the old version.
            await batches.send(event)

    async with inbox, batches:
        ended = False
        while not ended:
            event = None
            if open_batches.is_full and inbox.statistics().open_send_streams:
                # The senders wait. Nothing wakes us if they all leave, so look now and then.
                await sleep_until(min(open_batches.next_deadline(), current_time() + 1))
            else:
                try:
                    event = await _next(inbox, open_batches.next_deadline())
                except EndOfStream:
                    ended = True
            if event is not None:
                await take(event)
            for batch in open_batches.due(current_time()):
                await batches.send(batch)
        for batch in open_batches.flush() if flush else ():
            await batches.send(batch)


async def _next(inbox: Receiver[Heard], deadline: float) -> Heard | None:
    """Return the next event, or None at the deadline. An event that waits already, as in a burst, costs no timer."""
    try:
        return inbox.receive_nowait()
    except WouldBlock:
        with CancelScope(deadline=deadline):
            return await inbox.receive()
    return None
