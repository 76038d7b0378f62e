"""A nudge says only "look"; the log on disk holds the rest. A full stream is fine, and so is one that nobody reads."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence, Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from anyio import BrokenResourceError, EndOfStream, WouldBlock, move_on_after
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


@dataclass(frozen=True, kw_only=True)
class Due(Generic[T_co]):
    """An older record that is to be worked on again, if there is one now."""

    record: T_co | None = None
    key: Hashable = None
    """Another one each time that the same record becomes due."""
    seconds: float | None = None
    """Where there is none, how long to wait before looking again; None: until the log grows."""


class DueLog(Protocol[T_co]):
    """Which older records are to be worked on again."""

    async def due(self, handed: AbstractSet[Hashable], /) -> Due[T_co]:
        """The next of them whose key is not among those handed on already."""
        ...


def nudge(stream: MemoryObjectSendStream[T], message: T) -> None:
    """Send without waiting; whoever follows looks anyway."""
    with suppress(WouldBlock, BrokenResourceError):
        stream.send_nowait(message)


async def follow(
    log: Log[T, P],
    nudges: MemoryObjectReceiveStream[object],
    *,
    after: P | None,
    position_of: Callable[[T], P],
    again: DueLog[T] | None = None,
    settles_in: Callable[[T], float] = lambda _: 0.0,
) -> AsyncGenerator[T]:
    """Each record after `after`, in order, for ever: first what is there, then what a nudge announces.

    In between come those that are due `again`, one at a time, whenever the log is read to its end. Ends once the nudges
    have ended and nothing is left, so that what was written before a calm shutdown is still handed on. Whoever reads
    only some of it closes it with `aclosing`.

    A record waits, with all behind it, until it `settles_in` no more seconds; at the end, none waits.
    """
    position = after
    ended = False
    handed: set[Hashable] = set()
    while True:
        unsettled = 0.0
        while not unsettled and (records := await log.after(position)):
            for record in records:
                unsettled = 0.0 if ended else settles_in(record)
                if unsettled:
                    break
                yield record
                position = position_of(record)
        found = Due[T]() if again is None else await again.due(handed)
        if found.record is not None:
            handed.add(found.key)
            yield found.record
            continue
        if ended:
            return
        try:
            with move_on_after(min(math.inf if found.seconds is None else found.seconds, unsettled or math.inf)):
                await nudges.receive()
        except EndOfStream:
            ended = True
