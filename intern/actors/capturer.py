"""The capturer is the durable edge: once it has settled, a team answer is safe on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from intern.actors.nudges import nudge
from intern.actors.witness import Witness
from intern.conversations.capturing import capture_of
from intern.domain import Archived, Capture, CapturedPair, CaptureRequest, ChannelId, MessageId


class Keeper(Protocol):
    """Puts conversations into the archive."""

    async def keep(self, capture: Capture, /) -> CapturedPair | None:
        """The archived pair, or None where the archive holds all of it already. Raises KnowledgeError."""
        ...


class Settles(Protocol):
    """Hears of messages that need not be handled again after a restart."""

    def settle(self, channel_id: ChannelId, message_ids: Sequence[MessageId], /) -> None:
        """These messages of a channel are done with."""
        ...


async def capturer(
    inbox: MemoryObjectReceiveStream[CaptureRequest],
    archived: MemoryObjectSendStream[Archived],
    *,
    keeper: Keeper,
    settles: Settles,
    witness: Witness,
) -> None:
    """Archive each capture, in order, until the inbox ends.

    A disk that fails ends the process, loudly: going on would lose answers one after the other.
    """
    async with inbox, archived:
        async for request in inbox:
            pair = await keeper.keep(capture_of(request))
            if pair is not None:
                witness.captured(pair)
                nudge(archived, Archived())
            if request.settles:
                settles.settle(request.channel_id, request.settles)
