"""When a shard may begin a session: the pauses between its own, the day's limit, and turns to IDENTIFY."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Final

# Discord resets the token of a bot that begins more than 1,000 sessions within 24 hours (its reference, "Gateway",
# "Session Start Limit"); a bot in thousands of servers may begin more.
_A_DAY: Final = 24 * 3600.0  # seconds
_OURS: Final = 0.9  # the share of them that we use
_MOST: Final = 900  # until Discord has said how many there are
_LATELY: Final = 3600.0  # sessions begun within these seconds make the next one wait longer
LONGEST_PAUSE: Final = 96.0  # seconds; the bot receives nothing meanwhile, and a day has 900 sessions
_NOBODY: Final = -1  # no shard: its sessions count against the day alone


class SessionStarts:
    """The time at which a shard may begin its next session: after pauses that grow with its recent sessions.

    All shards together begin at most nine tenths of what Discord allows a day.
    Times are seconds of any clock that only goes forward. Pure: the caller waits.
    """

    def __init__(self, first_pause: float = 1.0) -> None:
        self._first_pause = first_pause
        self._begun: deque[tuple[float, int]] = deque()
        self._most = _MOST
        self._earlier = 0
        self._earlier_count_until = 0.0

    def set_start_limit(self, *, total: int, remaining: int, reset_after: float, now: float) -> None:
        """Take Discord's own count, which includes sessions that earlier or other processes began."""
        self._forget(now)
        self._most = int(_OURS * total)
        self._earlier = max(0, total - remaining - len(self._begun))
        self._earlier_count_until = now + reset_after

    def reset_shard(self, shard: int) -> None:
        """Note that another process held the shard meanwhile: its next session counts as a first one."""
        self._begun = deque((at, _NOBODY if whose == shard else whose) for at, whose in self._begun)

    def add_start(self, now: float, shard: int = 0) -> None:
        """Count a session that begins."""
        self._begun.append((now, shard))

    @property
    def count(self) -> int:
        """The sessions that count against today's limit, as far as we know."""
        return len(self._begun) + self._earlier

    def pause(self, now: float, shard: int = 0) -> float:
        """Return the seconds to wait before the next session of a shard."""
        self._forget(now)
        lately = [at for at, whose in self._begun if whose == shard and at > now - _LATELY]
        pause = 0.0
        if lately:
            grown = self._first_pause * 2.0 ** min(len(lately) - 1, 30)
            pause = lately[-1] + min(grown, LONGEST_PAUSE) - now
        return max(0.0, pause, self.wait_for_a_day(now))

    def wait_for_a_day(self, now: float) -> float:
        """Return the seconds until one of today's sessions stops counting; 0 while there are any left."""
        self._forget(now)
        if self.count < self._most:
            return 0.0
        ends = [self._begun[0][0] + _A_DAY] if self._begun else []
        ends += [self._earlier_count_until] if self._earlier else []
        return min(ends, default=now) - now

    def _forget(self, now: float) -> None:
        while self._begun and self._begun[0][0] + _A_DAY <= now:
            self._begun.popleft()
        if self._earlier_count_until <= now:
            self._earlier = 0


Turn = Callable[[int], AbstractAsyncContextManager[None]]
"""A turn to IDENTIFY, of a bucket (shard % max_concurrency). It is left once IDENTIFY was sent; else with an error."""


def no_turn(_bucket: int) -> AbstractAsyncContextManager[None]:
    """Wait for no other process."""
    return nullcontext()


class _UnusedError(Exception):
    """The turn ended without IDENTIFY, and so leaves no pause behind it."""


class IdentifyTurns:
    """Turns to IDENTIFY: one at a time in each bucket, `between` seconds apart."""

    def __init__(self, across: Turn, between: float) -> None:
        self._across, self._between = across, between
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._holders: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def take_turn(self, bucket: int) -> AsyncGenerator[None]:
        """Wait for a turn of this bucket. It ends `between` seconds after the block, or at once where that fails."""
        entered, over, is_used = asyncio.Event(), asyncio.get_running_loop().create_future(), False
        holder = asyncio.create_task(self._hold(bucket, entered, over), name=f"discord: identify turn {bucket}")
        self._holders.add(holder)
        holder.add_done_callback(self._holders.discard)
        holder.add_done_callback(retrieve_exception)
        waiter = asyncio.create_task(entered.wait(), name="discord: wait for a turn")
        try:
            await asyncio.wait({holder, waiter}, return_when=asyncio.FIRST_COMPLETED)
            if not entered.is_set():
                holder.result()
            yield
            is_used = True
        finally:
            waiter.cancel()
            if not entered.is_set():
                holder.cancel()
            elif not over.done():
                over.set_result(is_used)

    def close(self) -> None:
        """End every turn."""
        for holder in self._holders:
            holder.cancel()

    async def _hold(self, bucket: int, entered: asyncio.Event, over: asyncio.Future[bool]) -> None:
        async with self._locks[bucket]:
            async with self._across(bucket):
                entered.set()
                if not await over:
                    raise _UnusedError
            await asyncio.sleep(self._between)


def retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's exception; otherwise asyncio complains."""
    if not task.cancelled():
        task.exception()
