"""The batcher holds an author's messages together until they pause: one heap and one deadline serve everybody."""

from __future__ import annotations

from anyio import CancelScope, EndOfStream, current_time
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.conversations.batching import Batches
from intern.domain import Batch, MessageEvent


async def batcher(
    inbox: MemoryObjectReceiveStream[MessageEvent], batches: MemoryObjectSendStream[Batch], *, open_batches: Batches
) -> None:
    """Send each batch once its author paused for the window; at the end of the inbox, those still open too."""
    async with inbox, batches:
        ended = False
        while not ended:
            with CancelScope(deadline=open_batches.next_deadline()):
                try:
                    open_batches.add(await inbox.receive(), current_time())
                except EndOfStream:
                    ended = True
            for batch in open_batches.flush() if ended else open_batches.due(current_time()):
                await batches.send(batch)
