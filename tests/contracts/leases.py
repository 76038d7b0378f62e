"""The contract of every store of leases, and a store in memory for tests of its users."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from math import inf
from typing import Protocol

import anyio
from anyio import fail_after, lowlevel

from intern.core.errors import KnowledgeError
from intern.stores.engines.postgres.leases import LEASE_SECONDS, Lease, LeaseStatus, LeaseStore


class MemoryLeases:
    """The data that processes share, with a clock of its own."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.seconds = seconds
        self.rows: dict[int, tuple[str, int, float]] = {}
        """Holder, token and end, by shard."""
        self.members: dict[str, tuple[int, float]] = {}
        """Number of shards, and when it was seen, by holder."""
        self.away: set[str] = set()
        """The holders that cannot reach it."""

    def of(self, holder: str) -> MemoryLeaseStore:
        return MemoryLeaseStore(self, holder)


class MemoryLeaseStore(LeaseStore):
    """The leases as one process sees them."""

    def __init__(self, shared: MemoryLeases, holder: str) -> None:
        self._shared, self._holder, self.seconds = shared, holder, LEASE_SECONDS

    async def _now(self) -> float:
        await lowlevel.checkpoint()
        if self._holder in self._shared.away:
            raise KnowledgeError("the database is away")
        return self._shared.seconds()

    async def register_process(self, shards: int) -> int:
        now, rows, members = await self._now(), self._shared.rows, self._shared.members
        others = [of for name, (of, seen) in members.items() if name != self._holder and seen > now - self.seconds]
        agreed = next(iter(others), shards)
        members[self._holder] = (agreed, now)
        for shard in range(agreed):
            rows.setdefault(shard, ("", 0, 0.0))
        return agreed

    async def renew_leases(self, shards: int, *, leaves: bool = False) -> LeaseStatus:
        now, rows, members = await self._now(), self._shared.rows, self._shared.members
        held = dict[int, int]()
        for shard, (holder, token, end) in rows.items():
            if holder == self._holder and end > now:
                rows[shard], held[shard] = (holder, token, now + self.seconds), token
        members[self._holder] = (shards, now)
        if leaves:
            del members[self._holder]
        living = [name for name, (_, seen) in members.items() if seen > now - self.seconds]
        free = tuple(sorted(shard for shard, (_, _, end) in rows.items() if end <= now and shard < shards))
        ends = [
            end - now for shard, (who, _, end) in rows.items() if who != self._holder and end > now and shard < shards
        ]
        return LeaseStatus(held, free, len(living), min(ends, default=inf))

    async def take_leases(self, shards: int, wanted: Collection[int]) -> list[Lease]:
        now, rows, taken = await self._now(), self._shared.rows, list[Lease]()
        for shard in sorted(wanted):
            _, token, end = rows[shard]
            if end <= now and shard < shards:
                rows[shard] = (self._holder, token + 1, now + self.seconds)
                taken.append(Lease(shard, token + 1))
        return taken

    async def release_lease(self, shard: int, token: int) -> None:
        await self._now()
        if self._shared.rows[shard][:2] == (self._holder, token):
            self._shared.rows[shard] = ("", token, 0.0)

    @asynccontextmanager
    async def identify_turn(self, bucket: int) -> AsyncGenerator[None]:
        del bucket
        yield


class Cell(Protocol):
    """The leases of a test: as each process sees them, and how time passes for them."""

    def of(self, holder: str) -> LeaseStore: ...

    def pass_time(self, seconds: float) -> None: ...


class LeasesContract:
    """Tests of a store. A subclass gives the fixture `cell`."""

    async def test_a_lease_is_one_process_s_until_it_ends_and_its_token_grows(self, cell: Cell) -> None:
        one, two = cell.of("one"), cell.of("two")
        with fail_after(10):
            assert (await one.register_process(3), await two.register_process(3)) == (3, 3)
            assert await one.take_leases(3, (0, 1)) == [Lease(0, 1), Lease(1, 1)]
            assert await two.take_leases(3, (0, 1)) == []
            standing = await two.renew_leases(3)
            assert standing[:3] == ({}, (2,), 2)
            assert 9 < standing.next_end <= 10
            cell.pass_time(6)
            assert 3 < (await two.renew_leases(3)).next_end <= 4
            assert await one.renew_leases(3) == LeaseStatus({0: 1, 1: 1}, (2,), 2)
            cell.pass_time(6)
            assert await two.take_leases(3, (0, 1)) == [], "it was renewed"
            cell.pass_time(6)
            assert await two.take_leases(3, (1, 0)) == [Lease(0, 2), Lease(1, 2)]
            assert (await one.renew_leases(3)).held == {}

    async def test_what_has_ended_is_not_renewed_though_it_is_free(self, cell: Cell) -> None:
        one = cell.of("one")
        with fail_after(10):
            await one.register_process(1)
            await one.take_leases(1, (0,))
            cell.pass_time(11)
            assert await one.renew_leases(1) == LeaseStatus({}, (0,), 1)
            assert await one.take_leases(1, (0,)) == [Lease(0, 2)]

    async def test_only_its_holder_hands_a_lease_over(self, cell: Cell) -> None:
        one, two = cell.of("one"), cell.of("two")
        with fail_after(10):
            await one.register_process(1)
            await one.take_leases(1, (0,))
            await two.release_lease(0, 1)
            await one.release_lease(0, 7)
            assert (await one.renew_leases(1)).held == {0: 1}
            await one.release_lease(0, 1)
            assert await two.take_leases(1, (0,)) == [Lease(0, 2)]

    async def test_the_dead_and_those_who_leave_have_no_share(self, cell: Cell) -> None:
        one, two, three = map(cell.of, ("one", "two", "three"))
        with fail_after(10):
            for each in (one, two, three):
                await each.register_process(2)
            assert (await one.renew_leases(2)).members == 3
            assert (await two.renew_leases(2, leaves=True)).members == 2
            cell.pass_time(11)
            assert (await one.renew_leases(2)).members == 1
            assert (await three.renew_leases(2)).members == 2, "it was only paused"

    async def test_who_comes_later_learns_the_number_of_shards(self, cell: Cell) -> None:
        one, two = cell.of("one"), cell.of("two")
        with fail_after(10):
            assert await one.register_process(2) == 2
            assert await two.register_process(3) == 2
            cell.pass_time(11)
            assert await two.register_process(3) == 3, "the other one is gone"
            assert (await two.renew_leases(3)).free == (0, 1, 2)

    async def test_of_processes_that_race_for_a_lease_one_gets_it(self, cell: Cell) -> None:
        stores = [cell.of(str(n)) for n in range(4)]
        taken: list[Lease] = []

        async def race(store: LeaseStore) -> None:
            await store.register_process(8)
            taken.extend(await store.take_leases(8, range(8)))

        with fail_after(20):
            async with anyio.create_task_group() as tg:
                for store in stores:
                    tg.start_soon(race, store)
        assert sorted(taken) == [Lease(shard, 1) for shard in range(8)]
