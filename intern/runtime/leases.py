"""The leases of this process, that is, its shards while several processes share a database.

All processes send a heartbeat every few seconds, take free shards up to an even share, and hand over the rest. A
process gives up a lease by its own clock before the server ends it, even if the machine slept or the database is
unavailable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from anyio import Event, move_on_after, sleep
from anyio.abc import TaskGroup

from intern.core.clock import read_boot_clock
from intern.core.errors import KnowledgeError
from intern.core.log import get_logger
from intern.core.tasks import open_task_group
from intern.stores.engines.postgres.leases import Lease, LeaseStatus, LeaseStore

_log = get_logger(__name__)

BEAT_SECONDS: Final = 3.0
"""A lease outlives two heartbeats that fail."""
_MARGIN = 1.0  # seconds by which a lease ends earlier for its holder than for the server
_RETRY_SECONDS = 1.0  # after a failed heartbeat
_SOON_SECONDS = 1.0  # until a heartbeat that may take a shard
_AFTER_END_SECONDS = 0.25  # until a heartbeat sees that a lease has ended, and its process
_SETTLE_SECONDS = 60.0  # for taken shards to connect, before others are handed over
_LOOK_SECONDS = 0.25  # between two looks at the clock, which may jump when the machine wakes up


class LeaseChanges(NamedTuple):
    """The changes after a heartbeat."""

    take: tuple[int, ...]
    hand_over: tuple[int, ...]


def plan_lease_changes(
    standing: LeaseStatus, mine: Sequence[int], *, shards: int, only: Collection[int] | None
) -> LeaseChanges:
    """Decide which free shards to take, and which own ones to hand over.

    An even share is the number of shards divided by that of all processes, rounded up. With `only`, the process serves
    these shards and no others. `mine` is in the order of taking: the last ones, which are not connected yet, are handed
    over first.
    """
    if only is not None:
        return LeaseChanges(tuple(shard for shard in standing.free if shard in only), ())
    share = -(-shards // max(1, standing.members))
    return LeaseChanges(standing.free[: max(0, share - len(mine))], tuple(mine[share:]))


class _HeldLease:
    """A lease of this process, from its taking until all work on its shard is closed."""

    def __init__(self, lease: Lease, until: float) -> None:
        self.lease, self.until = lease, until
        self.is_lost, self.ends = Event(), Event()

    def lose(self) -> None:
        self.is_lost.set()
        self.ends.set()


class LeaseHolder:
    """Takes, renews and gives up leases, while `run` is active."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        shards: int,
        took: Callable[[Lease], Awaitable[object]],
        leave: Callable[[int], Awaitable[object]],
        lost: Callable[[int], Awaitable[object]],
        settled: Callable[[], bool] = lambda: True,
        only: Collection[int] | None = None,
        seconds: Callable[[], float] = read_boot_clock,
        beat_seconds: float = BEAT_SECONDS,
    ) -> None:
        """Call `took` when a shard is to be served, and `leave` to end that calmly before it is handed over.

        Call `lost` when another process may serve the shard from now on: all work on it must end at once. It may come
        while one of the others still runs. An error of a callback ends `run`. Until the process is `settled`, for a
        minute at most after taking a shard, it hands none over to balance the shares.
        """
        self._store, self._shards, self._only = store, shards, only
        self._took, self._leave, self._lost, self._settled = took, leave, lost, settled
        self._seconds, self._beat_seconds = seconds, beat_seconds
        self._held: dict[int, _HeldLease] = {}
        self._settles_until = 0.0
        self._stop = Event()
        self._beat_now, self._gone = Event(), Event()

    @property
    def held(self) -> tuple[int, ...]:
        """The shards that are this process's own at this moment."""
        now = self._seconds()
        return tuple(shard for shard, held in self._held.items() if not held.is_lost.is_set() and now < held.until)

    async def run(self, *, stop: Event) -> None:
        """Keep leases until `stop` is set, then hand all of them over. Call `LeaseStore.register_process` first.

        An unavailable database ends the leases, but not this method: they are taken again when it is back.
        """
        self._stop = stop
        async with open_task_group() as tg:
            tg.start_soon(self._watch_expiry)
            tg.start_soon(self._beat, tg)
            await stop.wait()
            self._beat_now.set()
            for held in self._held.values():
                held.ends.set()
            while self._held:
                self._gone = Event()
                await self._gone.wait()
            tg.cancel_scope.cancel()
        with suppress(KnowledgeError), move_on_after(self._store.seconds):
            await self._store.renew_leases(self._shards, leaves=True)

    async def _watch_expiry(self) -> None:
        """Give up each lease that was not renewed in time."""
        while True:
            await sleep(_LOOK_SECONDS)
            self._lose_expired()

    def _lose_expired(self) -> None:
        now = self._seconds()
        for held in self._held.values():
            if now >= held.until and not held.is_lost.is_set():
                _log.warning("lease_lost", shard=held.lease.shard, reason="not renewed in time")
                held.lose()

    async def _beat(self, tasks: TaskGroup) -> None:
        while True:
            try:
                pause = await self._beat_once(tasks)
            except KnowledgeError as error:
                pause = _RETRY_SECONDS
                _log.warning("lease_beat_failed", error=type(error).__name__, reason=str(error))
            with move_on_after(pause):
                await self._beat_now.wait()
                self._beat_now = Event()

    async def _beat_once(self, tasks: TaskGroup) -> float:
        """Renew, take and hand over leases. Return the seconds until the next heartbeat."""
        standing = await self._renew()
        if self._stop.is_set():
            return self._beat_seconds
        mine = [shard for shard, held in self._held.items() if not held.ends.is_set()]
        free = tuple(shard for shard in standing.free if shard not in self._held)
        steps = plan_lease_changes(standing._replace(free=free), mine, shards=self._shards, only=self._only)
        if self._settled() or self._seconds() >= self._settles_until:
            for shard in steps.hand_over:
                self._held[shard].ends.set()
        until = self._next_expiry()
        if taken := await self._store.take_leases(self._shards, steps.take):
            self._settles_until = self._seconds() + _SETTLE_SECONDS
        for lease in taken:
            held = self._held[lease.shard] = _HeldLease(lease, until)
            if self._stop.is_set():  # since the call began
                held.ends.set()
            tasks.start_soon(self._serve_lease, held, name=f"lease on shard {lease.shard}")
        left = {*standing.free} - {lease.shard for lease in taken}
        if self._only is None:  # the rest has no taker yet; missing shards are about to be handed over
            soon = bool(left) or len(mine) + len(taken) < self._shards // max(1, standing.members)
        else:
            soon = bool(left & {*self._only})
        if soon:
            return _SOON_SECONDS
        return min(self._beat_seconds, standing.next_end + _AFTER_END_SECONDS)

    async def _renew(self) -> LeaseStatus:
        until = self._next_expiry()
        standing = await self._store.renew_leases(self._shards, leaves=self._stop.is_set())
        self._lose_expired()
        for shard, held in self._held.items():
            if not held.is_lost.is_set():
                if standing.held.get(shard) == held.lease.token:
                    held.until = until
                else:
                    _log.warning("lease_lost", shard=shard, reason="ended by the server's clock")
                    held.lose()
        for shard, token in standing.held.items():  # given up here before the renewal
            if shard not in self._held or self._held[shard].is_lost.is_set():
                await self._store.release_lease(shard, token)
        return standing

    def _next_expiry(self) -> float:
        return self._seconds() + self._store.seconds - _MARGIN

    async def _serve_lease(self, held: _HeldLease) -> None:
        shard, token = held.lease
        _log.info("lease_taken", shard=shard, token=token)
        async with open_task_group() as tg:
            tg.start_soon(self._report_loss, held)
            await self._took(held.lease)
            await held.ends.wait()
            if not held.is_lost.is_set():
                await self._leave(shard)
            if not held.is_lost.is_set():
                tg.cancel_scope.cancel()
        if not held.is_lost.is_set():
            try:
                await self._store.release_lease(shard, token)
                _log.info("lease_handed_over", shard=shard)
            except KnowledgeError as error:  # it ends by itself
                _log.warning("lease_not_handed_over", shard=shard, reason=str(error))
        del self._held[shard]
        self._gone.set()

    async def _report_loss(self, held: _HeldLease) -> None:
        await held.is_lost.wait()
        await self._lost(held.lease.shard)
