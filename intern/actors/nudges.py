"""A nudge says only "look"; the log on disk holds the rest. A full stream is fine, and so is one that nobody reads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from anyio import BrokenResourceError, EndOfStream, WouldBlock
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

T = TypeVar("T")
P = TypeVar("P")
T_co = TypeVar("T_co", covariant=True)
P_contra = TypeVar("P_contra", contravariant=True)


class Log(Protocol[T_co, P_contra]):
    """Records on disk in a fixed order, each with a position that only grows."""

    async def after(self, position: P_contra | None, /) -> Sequence[T_co]:
        """Some of the records after `position` (None: from the start), oldest first; empty when there is none."""
        ...


def nudge(stream: MemoryObjectSendStream[T], message: T) -> None:
    """Send without waiting; whoever follows looks anyway."""
    with suppress(WouldBlock, BrokenResourceError):
        stream.send_nowait(message)


async def follow(
    log: Log[T, P], nudges: MemoryObjectReceiveStream[object], *, after: P | None, position_of: Callable[[T], P]
) -> AsyncGenerator[T]:
    """Each record after `after`, in order, for ever: first what is there, then what a nudge announces.

    Ends once the nudges have ended and the log is read to its end, so that what was written before a calm shutdown
    is still handed on. Whoever reads only some of it closes it with `aclosing`.
    """
    position = after
    ended = False
    while True:
        while records := await log.after(position):
            for record in records:
                yield record
                position = position_of(record)
        if ended:
            return
        try:
            await nudges.receive()
        except EndOfStream:
            ended = True
