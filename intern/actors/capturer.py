"""The capturer is the durable edge: once it has settled, a team answer is safe on disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.events import Events
from intern.actors.settling import Settle
from intern.actors.wakeups import wake
from intern.chat.conversations import capture_of
from intern.core.flow import Archived, CapturePending, CaptureRequest
from intern.core.ids import MessageId
from intern.core.log import traced
from intern.core.records import Capture, CapturedPair
from intern.stores.sqlite.pending import PendingCaptures

Keep = Callable[[Capture], Awaitable[CapturedPair | None]]
"""Archives a conversation; returns None where the archive holds all of it already. Raises KnowledgeError."""


async def capturer(
    inbox: MemoryObjectReceiveStream[CaptureRequest],
    archived: MemoryObjectSendStream[Archived],
    waiting: MemoryObjectSendStream[CapturePending],
    *,
    keep: Keep,
    known: Callable[[CaptureRequest], Awaitable[Mapping[MessageId, Sequence[str]] | None]],
    pending: PendingCaptures,
    settle: Settle,
    events: Events,
) -> None:
    """Archive each capture, in order, until the inbox ends; let those wait whose images nobody has looked at.

    `known` returns the words for the images of each message; None where a model has to look first.

    It asks no model, so nobody waits for a picture but who shares its conversation. A disk that fails ends the
    process, loudly: going on would lose answers one after the other.
    """
    async with inbox, archived, waiting:
        async for request in inbox:
            with traced((request.settles or [message.id for message in request.messages])[-1]):
                texts = await known(request)
                if texts is None:
                    await pending.add(request)
                    wake(waiting, CapturePending())
                elif await pending.join(request):
                    wake(waiting, CapturePending())
                else:
                    pair = await keep(capture_of(request, texts))
                    if pair is not None:
                        events.captured(pair)
                        wake(archived, Archived())
            if request.settles:
                settle(request.channel_id, request.settles)
