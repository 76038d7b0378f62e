"""Counts of calls and tokens: by prompt and day, on top of what a store remembers."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import anyio
import pytest

from intern.core.errors import KnowledgeError, ModelBudgetError
from intern.models.limits import EndpointLimits, make_call_queue
from intern.models.options import LlmOptions
from intern.models.usage import UsageCounter, UsageMeter, UsageTotal, estimate_tokens, measure_usage
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.usage import UsageLog
from tests.worlds.actors import finishing
from tests.worlds.clock import HandClock
from tests.worlds.model import calls_of

DAY = date(2026, 2, 1)


class MemoryStore:
    """A usage store in memory, which can be out of order."""

    def __init__(self, spent: int = 0, paid: float = 0.0) -> None:
        self.tokens = spent
        self.paid = paid
        self.rows: list[tuple[date, str, int, int, int]] = []
        self.broken = False

    async def add(self, day: date, prompt: str, counted: UsageMeter, /) -> None:
        await self._work()
        self.rows.append((day, prompt, counted.calls, counted.prompt_tokens, counted.completion_tokens))
        self.tokens += counted.tokens
        self.paid += counted.cost

    async def read_spent(self, day: date, /) -> UsageTotal:
        await self._work()
        return UsageTotal(self.tokens, self.paid)

    async def _work(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.broken:
            raise KnowledgeError("usage cannot be written")


async def test_calls_are_counted_by_prompt_and_by_utc_day() -> None:
    clock = HandClock()
    usage = UsageCounter(clock=clock)
    await usage.add("gate", 10, 1)
    await usage.add("gate", 20, 2)
    await usage.add("answer", 300, 30)
    clock.turn(days=1)
    await usage.add("gate", 5, 0)

    gate = calls_of(usage, "gate", DAY)
    assert (gate.calls, gate.prompt_tokens, gate.completion_tokens, gate.tokens) == (2, 30, 3, 33)
    assert (await usage.read_spent(DAY)).tokens == 363
    assert calls_of(usage, "gate").tokens == 5
    assert calls_of(usage, "select").calls == 0


@pytest.mark.parametrize(("spent", "paid"), [(1000, 0.0), (0, 2.0)])
async def test_a_day_goes_on_after_a_restart(spent: int, paid: float) -> None:
    store = MemoryStore(spent=spent, paid=paid)
    usage = UsageCounter(store, clock=HandClock())
    await usage.add("gate", 10, 1, 0.25)

    assert await usage.read_spent(DAY) == (spent + 11, paid + 0.25)
    assert store.rows == [(DAY, "gate", 1, 10, 1)]
    assert await UsageCounter(store, clock=HandClock()).read_spent(DAY) == (spent + 11, paid + 0.25)


async def test_two_processes_on_one_folder_share_the_days_budget(tmp_path: Path) -> None:
    clock = HandClock()

    async def asked(usage: UsageCounter) -> None:
        options = LlmOptions(daily_token_budget=1000, daily_cost_budget=10.0)
        limits = EndpointLimits(options, usage, make_call_queue(options))
        async with limits.reserve(300, what="answer"):
            await usage.add("answer", 300, 0, 3.0)
        clock.turn(seconds=5)

    path = tmp_path / "intern.db"
    async with await SqliteDatabase.open(path) as here, await SqliteDatabase.open(path) as there:
        bot, ask = UsageCounter(UsageLog(here), clock=clock), UsageCounter(UsageLog(there), clock=clock)
        await asked(bot)
        await asked(ask)
        await asked(bot)
        for usage in (ask, bot):
            with pytest.raises(ModelBudgetError, match="has 100 left"):
                await asked(usage)
            assert await usage.read_spent(DAY) == (900, 9.0)


async def test_what_others_spend_is_looked_for_once_in_five_seconds_and_a_failure_forgets_nothing() -> None:
    clock, store = HandClock(), MemoryStore(spent=1000, paid=1.0)
    usage = UsageCounter(store, clock=clock)
    await usage.add("gate", 10, 1, 0.5)
    await store.add(DAY, "answer", UsageMeter(1, 200, cost=0.25))
    clock.turn(seconds=4)
    assert await usage.read_spent(DAY) == (1011, 1.5)
    clock.turn(seconds=1)
    store.broken = True
    assert await usage.read_spent(DAY) == (1011, 1.5)
    store.broken = False
    assert await usage.read_spent(DAY) == (1211, 1.75)


async def test_each_call_is_told_to_who_counts_along() -> None:
    told = list[tuple[object, ...]]()

    def note(*counted: object) -> None:
        told.append(counted)

    usage = UsageCounter(clock=HandClock(), counted=note)
    with measure_usage() as meter:
        await usage.add("gate", 10, 1, 0.5, 8)
        await usage.add("answer", 20, 2)
    assert told == [("gate", 10, 1, 0.5, 8), ("answer", 20, 2, 0.0, 0)]
    assert (meter.cached_tokens, calls_of(usage, "gate").cached_tokens) == (8, 8)


async def test_a_store_out_of_order_costs_no_reply_and_is_asked_again() -> None:
    store = MemoryStore(spent=1000)
    store.broken = True
    usage = UsageCounter(store, clock=HandClock())
    await usage.add("gate", 10, 1)
    assert (await usage.read_spent(DAY)).tokens == 11

    store.broken = False

    assert (await usage.read_spent(DAY)).tokens == 1011


class Paused(MemoryStore):
    """Tells when it is at work, and goes on when it may."""

    def __init__(self, spent: int = 0) -> None:
        super().__init__(spent)
        self.written, self.may_go_on = anyio.Event(), anyio.Event()

    async def add(self, day: date, prompt: str, counted: UsageMeter, /) -> None:
        await super().add(day, prompt, counted)
        self.written.set()
        with anyio.fail_after(2):  # of its own, since storing is shielded
            await self.may_go_on.wait()  # it is committed, but unknown here yet


@pytest.mark.parametrize("seconds", [0, 60], ids=["just looked", "to be looked again"])
async def test_what_is_being_stored_just_now_is_counted_once(seconds: int) -> None:
    store, clock = Paused(1000), HandClock()
    usage = UsageCounter(store, clock=clock)
    async with finishing(usage.add, "gate", 10, 1, 0.5):
        await store.written.wait()
        clock.turn(seconds=seconds)
        assert await usage.read_spent(DAY) == (1011, 0.5)
        store.may_go_on.set()
    assert await usage.read_spent(DAY) == (1011, 0.5)


@pytest.mark.parametrize("is_known", [False, True], ids=["the first look", "a later one"])
async def test_who_reads_slowly_while_another_stores_counts_nothing_twice(is_known: bool) -> None:  # noqa: FBT001 a case
    class SlowToRead(MemoryStore):
        def __init__(self) -> None:
            super().__init__(spent=1000)
            self.readers = -1 if is_known else 0
            self.first, self.may_read = anyio.Event(), anyio.Event()

        async def read_spent(self, day: date, /) -> UsageTotal:
            self.readers += 1
            if self.readers == 1:
                self.first.set()
                await self.may_read.wait()
            return await super().read_spent(day)

    store, clock = SlowToRead(), HandClock()
    usage = UsageCounter(store, clock=clock)
    if is_known:
        await usage.refresh(DAY)
        clock.turn(seconds=5)
    async with finishing(usage.read_spent, DAY):
        await store.first.wait()
        await usage.add("gate", 10, 1)
        store.may_read.set()
    assert store.tokens == 1011
    assert (await usage.read_spent(DAY)).tokens == 1011


async def test_who_gives_up_while_it_is_stored_neither_loses_nor_doubles_a_count() -> None:
    store = Paused()
    usage = UsageCounter(store, clock=HandClock())
    usage.count("gate", 10, 1)
    usage.count("select", 20, 2)
    async with anyio.create_task_group() as tg:
        tg.start_soon(usage.flush)
        await store.written.wait()
        tg.cancel_scope.cancel()
        store.may_go_on.set()
    await usage.flush()
    assert store.rows == [(DAY, "gate", 1, 10, 1), (DAY, "select", 1, 20, 2)]


async def test_what_a_store_out_of_order_did_not_take_it_is_told_later() -> None:
    store = MemoryStore()
    usage = UsageCounter(store, clock=HandClock())
    store.broken = True
    await usage.add("gate", 10, 1)
    await usage.add("select", 20, 2)
    await usage.flush()
    store.broken = False
    await usage.add("gate", 30, 3)
    await usage.flush()
    assert store.rows == [(DAY, "gate", 2, 40, 4), (DAY, "select", 1, 20, 2)]


async def test_calls_wait_for_no_disk_where_somebody_keeps_their_count_now_and_then() -> None:
    clock, store = HandClock(), MemoryStore()
    usage = UsageCounter(store, clock=clock)
    for _ in range(10):
        await usage.flush()
        clock.turn(seconds=1)
        await usage.add("gate", 10, 1)
        assert (await usage.read_spent(DAY)).tokens == 11 + sum(row[3] + row[4] for row in store.rows)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("x" * 3600, 1000),
        ("Wörter größer als üblich, naïve façade. " * 90, 1000),
        ("继" * 3600, 3600),
        ("как сбросить катушку" * 100, 1838),
        ("设" * 100 + "x" * 360, 200),
    ],
    ids=["nothing", "ascii", "latin", "chinese", "cyrillic", "both"],
)
def test_an_estimate_takes_each_sign_of_another_script_for_a_token(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == pytest.approx(tokens, rel=0.02)


async def test_a_meter_sees_the_calls_of_child_tasks_and_no_others() -> None:
    usage = UsageCounter(clock=HandClock())
    inside, outside = anyio.Event(), anyio.Event()

    async def stranger() -> None:
        await inside.wait()
        await usage.add("gate", 1000, 0)
        outside.set()

    async def metered_work() -> None:
        with measure_usage() as meter:
            inside.set()
            await outside.wait()
            async with anyio.create_task_group() as children:
                children.start_soon(usage.add, "gate", 10, 1)
                children.start_soon(usage.add, "select", 20, 2)
            with measure_usage() as inner:
                await usage.add("answer", 300, 30)
        await usage.add("verify", 1000, 0)
        assert (meter.calls, meter.prompt_tokens, meter.tokens) == (3, 330, 363)
        assert (inner.calls, inner.tokens) == (1, 330)

    async with finishing(stranger):
        await metered_work()
