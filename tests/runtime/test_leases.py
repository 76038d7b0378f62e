"""Processes that share shards by leases: an even spread, take-over in time, and no serving without a lease."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
from anyio import Event, create_task_group, current_time, fail_after, sleep
from anyio.abc import TaskGroup
from hypothesis import given, strategies as st

from intern.runtime.leases import LeaseHolder, plan_lease_changes
from intern.stores.engines.postgres.leases import Lease, LeaseStatus
from tests.contracts.leases import MemoryLeases
from tests.worlds.actors import running


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 8), st.randoms(use_true_random=False))
def test_any_processes_that_decide_in_any_order_come_to_an_even_spread(
    sizes: Sequence[int], shards: int, dice: Random
) -> None:
    owner: dict[int, int] = {}
    for members in sizes:  # some come, some go
        owner = {shard: each for shard, each in owner.items() if each < members}
        for _ in range(2):
            for each in dice.sample(range(members), members):
                mine = [shard for shard, its in owner.items() if its == each]
                free = tuple(shard for shard in range(shards) if shard not in owner)
                steps = plan_lease_changes(LeaseStatus({}, free, members), mine, shards=shards, only=None)
                assert not set(steps.take) & owner.keys()
                owner = {shard: its for shard, its in owner.items() if shard not in steps.hand_over}
                owner.update(dict.fromkeys(steps.take, each))
        assert sorted(owner) == list(range(shards))
        assert max([*owner.values()].count(each) for each in range(members)) <= -(-shards // members)


def test_a_process_with_shards_of_its_own_takes_these_and_no_others() -> None:
    steps = plan_lease_changes(LeaseStatus({}, (1, 2, 3), 4), [0], shards=12, only=(0, 1, 3))
    assert steps.take == (1, 3)
    assert steps.hand_over == ()


class Process:
    """A process that serves the shards of its leases, and records it."""

    def __init__(self, cell: Cell, name: str) -> None:
        self.cell, self.name, self.stop, self.over = cell, name, Event(), Event()
        self.slept = 0.0
        """Seconds that passed for its clock alone, as if the machine had slept."""
        self.serves: dict[int, int] = {}
        self.told: list[str] = []
        self.calm = Event()
        self.calm.set()
        self.is_settled = True
        self.leases = LeaseHolder(
            cell.shared.of(name),
            shards=cell.shards,
            took=self.took,
            leave=self.leave,
            lost=self.lost,
            settled=lambda: self.is_settled,
            seconds=lambda: current_time() + self.slept,
        )

    async def took(self, lease: Lease) -> None:
        self.serves[lease.shard] = lease.token
        self.cell.served.append((lease, current_time()))

    async def leave(self, shard: int) -> None:
        await self.calm.wait()
        self.serves.pop(shard, None)
        self.told.append(f"leave {shard}")

    async def lost(self, shard: int) -> None:
        self.serves.pop(shard, None)
        self.told.append(f"lost {shard}")

    async def run(self) -> None:
        await self.cell.shared.of(self.name).register_process(self.cell.shards)
        await self.leases.run(stop=self.stop)
        self.over.set()


class Cell:
    """Processes that share some shards."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.shared = MemoryLeases(current_time)
        self.served: list[tuple[Lease, float]] = []
        """The leases that were served, and since when."""
        self.tasks: TaskGroup

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[None]:
        with fail_after(1000):
            async with create_task_group() as self.tasks:
                yield
                self.tasks.cancel_scope.cancel()

    async def start(self, name: str) -> Process:
        process = Process(self, name)
        self.tasks.start_soon(process.run)
        return process


async def until(processes: Sequence[Process], *numbers: int) -> None:
    with fail_after(60):
        while sorted(len(each.serves) for each in processes) != sorted(numbers):  # noqa: ASYNC110 time is virtual
            await sleep(0.1)


@pytest.mark.jumps
async def test_processes_share_evenly_as_they_come_and_go() -> None:
    cell = Cell(12)
    async with cell.at_work():
        one = await cell.start("one")
        await until([one], 12)
        await sleep(2.7)  # until right before a heartbeat of the first one
        two, begun = await cell.start("two"), current_time()
        await until([one, two], 6, 6)
        assert current_time() - begun < 2, "one that has too few looks each second"
        three = await cell.start("three")
        await until([one, two, three], 4, 4, 4)
        assert not [each for each in (*one.told, *two.told) if each.startswith("lost")], "all moves were calm"
        one.stop.set()
        await one.over.wait()
        begun = current_time()
        await until([one, two, three], 0, 6, 6)
        assert current_time() - begun <= 4
    tokens = [token for lease, _ in cell.served for token in lease[1:] if lease.shard == 0]
    assert tokens == sorted(set(tokens))


@pytest.mark.jumps
async def test_the_shards_of_a_dead_process_are_served_within_fifteen_seconds() -> None:
    cell = Cell(4)
    async with cell.at_work():
        alive = await cell.start("alive")
        dead = Process(cell, "dead")
        async with running(dead.run):
            await until([alive, dead], 2, 2)
        await until([alive], 4)


@pytest.mark.jumps
async def test_without_the_database_a_process_lets_go_before_another_one_may_take() -> None:
    cell = Cell(2)
    async with cell.at_work():
        one = await cell.start("one")
        await until([one], 2)
        cell.shared.away.add("one")
        await until([one], 0)
        assert sorted(one.told) == ["lost 0", "lost 1"]
        assert one.leases.held == ()
        assert all(end > current_time() for _, _, end in cell.shared.rows.values())
        cell.shared.away.clear()
        await until([one], 2)
        assert one.serves == {0: 2, 1: 2}, "with new tokens"


@pytest.mark.jumps
async def test_a_process_that_wakes_up_on_a_machine_that_slept_serves_nothing() -> None:
    cell = Cell(1)
    async with cell.at_work():
        one = await cell.start("one")
        await until([one], 1)
        one.slept = 3600
        assert one.leases.held == ()
        cell.shared.rows[0] = ("two", 2, current_time() + 100)
        await until([one], 0)
        assert one.told == ["lost 0"]


@pytest.mark.jumps
async def test_a_lease_is_renewed_while_its_shard_is_left_and_a_loss_is_told_meanwhile() -> None:
    cell = Cell(1)
    async with cell.at_work():
        one = await cell.start("one")
        await until([one], 1)
        one.calm = Event()
        one.stop.set()
        await sleep(30)
        assert one.leases.held == (0,)
        cell.shared.rows[0] = ("two", 2, current_time() + 100)
        await until([one], 0)
        assert one.told == ["lost 0"]
        assert not one.over.is_set()
        one.calm.set()
        await one.over.wait()
        assert cell.shared.rows[0][:2] == ("two", 2), "the new holder's lease is not given back"


@pytest.mark.jumps
async def test_a_process_keeps_its_shards_until_all_are_live_but_for_a_minute_at_most() -> None:
    cell = Cell(6)
    async with cell.at_work():
        one = await cell.start("one")
        one.is_settled = False
        await until([one], 6)
        two = await cell.start("two")
        await sleep(30)
        assert (len(one.serves), len(two.serves)) == (6, 0)
        one.is_settled = True
        await until([one, two], 3, 3)
        two.is_settled = False
        three, begun = await cell.start("three"), current_time()
        await until([one, two, three], 3, 2, 1)
        await sleep(begun + 50 - current_time())
        assert len(two.serves) == 3
        await until([one, two, three], 2, 2, 2)


async def test_leases_are_taken_and_handed_over_on_both_event_loops() -> None:
    cell = Cell(3)
    async with cell.at_work():
        one = await cell.start("one")
        await until([one], 3)
        one.stop.set()
        await one.over.wait()
        assert sorted(one.told) == ["leave 0", "leave 1", "leave 2"]
        assert {holder for holder, *_ in cell.shared.rows.values()} == {""}
        assert cell.shared.members == {}


@pytest.mark.jumps
@pytest.mark.rest
@pytest.mark.parametrize("seed", range(10))
async def test_whatever_happens_a_shard_is_served_by_one_process_at_a_time(seed: int) -> None:
    dice, cell = Random(seed), Cell(5)
    async with cell.at_work():
        processes = [await cell.start(name) for name in ("one", "two", "three")]
        for step in range(40):
            await sleep(dice.uniform(0, 6))
            one = dice.choice(processes)
            away = cell.shared.away
            act = dice.choice((partial(away.add, one.name), away.clear, away.clear, one.stop.set))
            act()
            if one.stop.is_set() and dice.random() < 0.5:
                await one.over.wait()
                processes.append(await cell.start(f"{step}"))
                processes.remove(one)
            served = [shard for each in processes for shard in each.leases.held]
            assert len(served) == len(set(served))
        for each in processes:
            each.stop.set()
        cell.shared.away.clear()
        last = await cell.start("last")
        await until([last], 5)
    assert len({lease for lease, _ in cell.served}) == len(cell.served)
