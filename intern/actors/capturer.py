"""The capturer is the durable edge: once it has settled, a team answer is safe on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.events import Witness
from intern.actors.settling import Settles
from intern.actors.wakeups import nudge
from intern.chat.conversations import capture_of
from intern.core.flow import Archived, CapturePending, CaptureRequest
from intern.core.ids import MessageId
from intern.core.log import traced
from intern.core.records import Capture, CapturedPair


class Keeper(Protocol):
    """Puts conversations into the archive."""

    async def keep(self, capture: Capture, /) -> CapturedPair | None:
        """The archived pair, or None where the archive holds all of it already. Raises KnowledgeError."""
        ...


class Pictures(Protocol):
    """Knows what images show; see `intern.learning.captioning`."""

    async def known(self, request: CaptureRequest, /) -> Mapping[MessageId, Sequence[str]] | None:
        """The words for the images of each message; None where somebody has to look first. Raises KnowledgeError."""
        ...


class Pending(Protocol):
    """Keeps captures that wait for a word on their images; see `stores.sqlite.pending`. Raises KnowledgeError."""

    async def add(self, request: CaptureRequest, /) -> None:
        """Let a capture wait, joined with what waits of its conversation already."""
        ...

    async def join(self, request: CaptureRequest, /) -> bool:
        """Join a capture with what waits of its conversation; false where nothing does."""
        ...


async def capturer(
    inbox: MemoryObjectReceiveStream[CaptureRequest],
    archived: MemoryObjectSendStream[Archived],
    waiting: MemoryObjectSendStream[CapturePending],
    *,
    keeper: Keeper,
    pictures: Pictures,
    pending: Pending,
    settles: Settles,
    witness: Witness,
) -> None:
    """Archive each capture, in order, until the inbox ends; let those wait whose images nobody has looked at.

    It asks no model, so nobody waits for a picture but who shares its conversation. A disk that fails ends the
    process, loudly: going on would lose answers one after the other.
    """
    async with inbox, archived, waiting:
        async for request in inbox:
            with traced((request.settles or [message.id for message in request.messages])[-1]):
                texts = await pictures.known(request)
                if texts is None:
                    await pending.add(request)
                    nudge(waiting, CapturePending())
                elif await pending.join(request):
                    nudge(waiting, CapturePending())
                else:
                    pair = await keeper.keep(capture_of(request, texts))
                    if pair is not None:
                        witness.captured(pair)
                        nudge(archived, Archived())
            if request.settles:
                settles.settle(request.channel_id, request.settles)
