"""The batcher holds an author's messages together until they pause: one heap and one deadline serve everybody."""

from __future__ import annotations

from anyio import CancelScope, EndOfStream, WouldBlock, current_time, sleep_until
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.checkpointer import Settle
from intern.chat.batching import Batches
from intern.core.clock import Clock
from intern.core.flow import Batch, Heard, LateChange, MessageEdited, MessageRead, MessagesDeleted


async def batcher(
    inbox: MemoryObjectReceiveStream[Heard],
    batches: MemoryObjectSendStream[Batch | LateChange],
    *,
    open_batches: Batches,
    settle: Settle,
    clock: Clock,
    flush: bool,
) -> None:
    """Send each batch once its author paused for the window, and each change to a message, sent before or not.

    A message that is deleted in the window is settled here, all others by whoever ends their batch. Those still open
    at the end of the inbox are sent too if `flush` is set; else they stay unsettled, and come back from history.
    """

    async def take(event: Heard) -> None:
        # How long ago, by the message's own time; only for those that the gateway did not tell right now, because our
        # clock and Discord's need not agree.
        age = (clock.now() - event.message.at).total_seconds() if isinstance(event, MessageRead) else 0.0
        late = open_batches.add(event, current_time(), max(0.0, age))
        if isinstance(event, MessagesDeleted):
            left = late.message_ids if isinstance(late, MessagesDeleted) else ()
            settle(event.channel_id, [gone for gone in event.message_ids if gone not in left])
        if isinstance(event, MessageEdited | MessagesDeleted):
            # Also of what is held here: another batch's reader may have met it on Discord, as it was.
            await batches.send(event)

    async with inbox, batches:
        ended = False
        while not ended:
            event = None
            if open_batches.is_full and inbox.statistics().open_send_streams:
                # What waits upstream is felt there. Nobody wakes us should they all leave, so look now and then.
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


async def _next(inbox: MemoryObjectReceiveStream[Heard], deadline: float) -> Heard | None:
    """The next event, or None at the deadline. What waits already costs no timer: in a burst that is most of it."""
    try:
        return inbox.receive_nowait()
    except WouldBlock:
        with CancelScope(deadline=deadline):
            return await inbox.receive()
    return None
