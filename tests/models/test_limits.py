"""Limits: who waits, who is refused, and what background work leaves for answers."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from hypothesis import given, strategies as st
from trio.testing import MockClock

from intern.core.errors import ModelBudgetError, ModelBudgetTooSmallError
from intern.models.limits import EndpointLimits, FairCallQueue, RateWindow, make_call_queue
from intern.models.options import LlmOptions
from intern.models.pricing import ModelPrice
from intern.models.usage import UsageCounter
from tests.worlds.actors import running
from tests.worlds.clock import HandClock


def limits(
    in_flight: int = 4, per_minute: int = 0, tokens_a_day: int = 0, usage: UsageCounter | None = None
) -> EndpointLimits:
    options = LlmOptions(max_in_flight=in_flight, calls_per_minute=per_minute, daily_token_budget=tokens_a_day)
    return EndpointLimits(options, usage or UsageCounter(clock=HandClock()), make_call_queue(options))


class Callers:
    """Calls that stay in flight until they are let go."""

    def __init__(self) -> None:
        self.in_flight: list[str] = []
        self.done = anyio.Event()

    async def call(self, limits: EndpointLimits, name: str) -> None:
        async with limits.hold_attempt():
            self.in_flight.append(name)
            await self.done.wait()


async def test_calls_beyond_the_limit_wait_their_turn() -> None:
    callers, shared = Callers(), limits(in_flight=2)
    async with anyio.create_task_group() as tg:
        for name in "abc":
            tg.start_soon(callers.call, shared, name)
            await wait_all_tasks_blocked()
        assert callers.in_flight == ["a", "b"]
        callers.done.set()
    assert callers.in_flight == ["a", "b", "c"]


@pytest.mark.parametrize(("in_flight", "background_calls"), [(4, 2), (3, 1), (1, 1)])
async def test_background_work_takes_half_of_the_calls_in_flight(in_flight: int, background_calls: int) -> None:
    callers, shared = Callers(), limits(in_flight=in_flight)
    background = shared.background()
    async with anyio.create_task_group() as tg:
        for _ in range(10):
            tg.start_soon(callers.call, background, "background")
        await wait_all_tasks_blocked()
        assert len(callers.in_flight) == background_calls
        for _ in range(10):
            tg.start_soon(callers.call, shared, "answer")
        await wait_all_tasks_blocked()
        assert callers.in_flight.count("answer") == in_flight - background_calls
        callers.done.set()


async def test_a_cancelled_caller_leaves_its_place_to_the_next() -> None:
    callers, shared = Callers(), limits(in_flight=1, per_minute=100)
    async with running(callers.call, shared, "a"):
        await wait_all_tasks_blocked()
    callers.done.set()
    await callers.call(shared, "b")
    assert callers.in_flight == ["a", "b"]


def paid(usage: UsageCounter, budget: float) -> EndpointLimits:
    """Return limits of money alone: a token costs one."""
    price = ModelPrice(model="m", input=1_000_000, output=1_000_000)
    options = LlmOptions(model="m", prices=(price,), daily_cost_budget=budget)
    return EndpointLimits(options, usage, make_call_queue(options))


async def test_a_call_starts_only_if_all_that_it_may_cost_fits_into_what_is_left_of_the_day() -> None:
    clock = HandClock()
    usage = UsageCounter(clock=clock)
    shared = paid(usage, 10.0)
    await usage.add("gate", 1, 0, 6.0)
    with pytest.raises(ModelBudgetError, match=r"answer may cost 5\.0000.*daily_cost_budget = 10\) has 4\.0000 left"):
        async with shared.reserve(2, reply_tokens=3, what="answer"):
            raise AssertionError("it was let in")
    async with shared.reserve(2, reply_tokens=2, what="answer"):
        with pytest.raises(ModelBudgetError):
            async with shared.reserve(1, what="what is held back for the other is gone"):
                raise AssertionError("it was let in")
    async with shared.reserve(4, what="once it is done, what it did not take is there again"):
        pass
    clock.turn(days=1)
    async with shared.reserve(10, what="tomorrow"):
        pass


async def test_background_work_leaves_a_fifth_of_the_money_for_answers() -> None:
    shared = paid(UsageCounter(clock=HandClock()), 10.0)
    with pytest.raises(ModelBudgetTooSmallError, match=r"whole day's: raise llm\.daily_cost_budget"):
        async with shared.background().reserve(9, what="extract"):
            raise AssertionError("it was let in")
    async with shared.background().reserve(8, what="extract"), shared.reserve(2, what="answer"):
        pass


@pytest.mark.parametrize("money", [False, True], ids=["tokens", "money"])
async def test_endpoints_that_share_a_budget_see_what_calls_of_each_other_may_still_take(money: bool) -> None:  # noqa: FBT001 a case
    usage = UsageCounter(clock=HandClock())
    answers, learning = (
        (paid(usage, 10.0), paid(usage, 10.0)) if money else (limits(tokens_a_day=10, usage=usage) for _ in range(2))
    )
    async with learning.reserve(4, reply_tokens=2, what="classify"):
        with pytest.raises(ModelBudgetError, match=r"has 4(\.0000)? left"):
            async with answers.reserve(3, reply_tokens=2, what="answer"):
                raise AssertionError("it was let in")
        async with answers.reserve(2, reply_tokens=2, what="answer"):
            pass
    async with answers.reserve(6, reply_tokens=4, what="what is held back for the other is there again"):
        pass


async def test_who_has_no_budget_is_seen_by_who_has_one() -> None:
    usage = UsageCounter(clock=HandClock())
    async with limits(usage=usage).reserve(600, what="classify"):
        with pytest.raises(ModelBudgetError, match="has 400 left"):
            async with limits(tokens_a_day=1000, usage=usage).reserve(401, what="answer"):
                raise AssertionError("it was let in")


async def test_a_call_that_began_yesterday_holds_its_part_of_todays_budget_back() -> None:
    clock = HandClock()
    shared = limits(tokens_a_day=1000, usage=UsageCounter(clock=clock))
    async with shared.reserve(600, what="answer"):
        clock.turn(days=1)  # it will be counted today
        with pytest.raises(ModelBudgetError, match="has 400 left"):
            async with shared.reserve(600, what="answer"):
                raise AssertionError("it was let in")


async def test_a_call_is_not_tried_again_once_what_failed_has_used_the_budget_up() -> None:
    usage = UsageCounter(clock=HandClock())
    shared = limits(tokens_a_day=1000, usage=usage)
    async with shared.reserve(300, reply_tokens=200, what="answer") as still_fits:
        usage.count("answer", 300, 0)
        await still_fits()
        usage.count("answer", 300, 0)
        with pytest.raises(ModelBudgetError, match=r"answer may take 500 tokens.* has 400 left"):
            await still_fits()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 100)), max_size=12))
def test_whatever_is_called_in_whatever_order_no_day_costs_more_than_its_budget(
    calls: list[tuple[int, int, int]],
) -> None:
    async def spend() -> float:
        usage = UsageCounter(clock=HandClock())
        shared = paid(usage, 100.0)
        for asked, most, percent in calls:
            try:
                async with shared.reserve(asked, reply_tokens=most, what="answer"):
                    await usage.add("answer", asked, 0, float(asked + most * percent // 100))
            except ModelBudgetError:
                pass
        return (await usage.read_spent(usage.today())).cost

    assert anyio.run(spend) <= 100.0


async def test_a_call_that_does_not_fit_todays_budget_is_refused_by_name_until_tomorrow() -> None:
    clock = HandClock()
    usage = UsageCounter(clock=clock)
    shared = limits(tokens_a_day=1000, usage=usage)
    await usage.add("gate", 600, 0)

    with pytest.raises(ModelBudgetError, match=r"answer may take 401 tokens.*= 1000\) has 400 left.*00:00 UTC"):
        async with shared.reserve(401, what="answer"):
            pass
    async with shared.reserve(400, what="answer"):
        pass
    clock.turn(days=1)
    async with shared.reserve(1000, what="answer"):
        pass


async def test_calls_under_way_hold_their_part_of_the_budget_back() -> None:
    shared = limits(tokens_a_day=1000)
    async with shared.reserve(600, what="answer"):
        with pytest.raises(ModelBudgetError):
            async with shared.reserve(600, what="answer"):
                pass
    async with shared.reserve(600, what="answer"):
        pass


async def test_background_work_leaves_a_fifth_of_the_budget_to_answers() -> None:
    usage = UsageCounter(clock=HandClock())
    shared = limits(tokens_a_day=1000, usage=usage)
    background = shared.background()
    await usage.add("summarize_source", 700, 0)

    with pytest.raises(ModelBudgetError, match="has 100 left for such calls"):
        async with background.reserve(101, what="summarize_source"):
            pass
    async with background.reserve(100, what="summarize_source"), shared.reserve(200, what="answer"):
        await checkpoint()


async def test_without_a_budget_the_store_is_not_even_asked() -> None:
    async with limits(tokens_a_day=0).reserve(10**9, what="answer"):
        await checkpoint()


@given(st.integers(1, 5), st.lists(st.floats(0, 50), max_size=60))
def test_no_minute_ever_sees_more_starts_than_its_limit(limit: int, gaps: list[float]) -> None:
    window, now = RateWindow(limit), 0.0
    starts: list[float] = []
    for gap in gaps:
        now += gap
        now += window.seconds_until_start(now)
        assert window.seconds_until_start(now) == pytest.approx(0, abs=1e-9)
        window.count_start(now)
        starts.append(now)

    for first, last in zip(starts, starts[limit:], strict=False):
        assert last - first >= 60 - 1e-9


@pytest.mark.jumps
async def test_calls_a_minute_are_spread_in_order_of_arrival() -> None:
    shared, starts = limits(in_flight=10, per_minute=1), list[tuple[int, float]]()
    begun = anyio.current_time()

    async def call(n: int) -> None:
        async with shared.hold_attempt():
            starts.append((n, round(anyio.current_time() - begun)))

    async with anyio.create_task_group() as tg:
        for n in range(5):
            tg.start_soon(call, n)
            await wait_all_tasks_blocked()
    assert starts == [(0, 0), (1, 60), (2, 120), (3, 180), (4, 240)]


@pytest.mark.jumps
async def test_however_many_calls_wait_for_a_minute_few_of_them_wake_up_at_a_time() -> None:
    looks: list[float] = []

    class Counting(FairCallQueue):
        def _give_places(self, now: float) -> float:
            looks.append(now)
            return super()._give_places(now)

    turns = Counting(200, 1, 1.0)

    async def call() -> None:
        async with turns.hold_place("", background=False):
            pass

    async with anyio.create_task_group() as tg:
        for _ in range(100):
            tg.start_soon(call)
    assert anyio.current_time() >= 99
    assert len(looks) < 100 * 6


@pytest.mark.jumps
async def test_processes_share_a_limit_and_a_larger_share_holds_at_once() -> None:
    turns, starts = FairCallQueue(10, 4, 1.0), list[float]()
    turns.set_share(1 / 8)  # half a call a second
    begun = anyio.current_time()

    async def call() -> None:
        async with turns.hold_place("", background=False):
            starts.append(anyio.current_time() - begun)

    async with anyio.create_task_group() as tg:
        for _ in range(7):
            tg.start_soon(call)
        await anyio.sleep(3)
        turns.set_share(1)
        await wait_all_tasks_blocked()
    assert starts == pytest.approx([0, 2, 3, 3, 3, 3, 4])


@pytest.mark.jumps
async def test_a_burst_of_background_work_does_not_hold_up_an_answer() -> None:
    shared = limits(in_flight=10, per_minute=10)
    background = shared.background()
    begun = anyio.current_time()

    async def call(view: EndpointLimits) -> float:
        async with view.hold_attempt():
            return anyio.current_time() - begun

    async with anyio.create_task_group() as tg:
        for _ in range(50):
            tg.start_soon(call, background)
        await wait_all_tasks_blocked()
        assert await call(shared) == pytest.approx(0)


class Parties:
    """Calls of ten seconds each, under trio's clock; `waited` has how long each party's calls waited."""

    def __init__(self, in_flight: int, per_minute: int = 0) -> None:
        options = LlmOptions(max_in_flight=in_flight, calls_per_minute=per_minute)
        self._options, self.turns = options, make_call_queue(options)
        self.waited: dict[str, list[float]] = {}

    async def call(self, party: str, *, background: bool = False) -> None:
        limits = EndpointLimits(self._options, UsageCounter(clock=HandClock()), turns=self.turns, party=party)
        asked = anyio.current_time()
        async with (limits.background() if background else limits).hold_attempt():
            self.waited.setdefault(party, []).append(anyio.current_time() - asked)
            await anyio.sleep(10)


@pytest.mark.jumps
async def test_a_community_that_floods_delays_another_by_one_of_its_own_calls_at_most() -> None:
    parties = Parties(in_flight=4)

    async with anyio.create_task_group() as tg:
        for n in range(100):
            tg.start_soon(partial(parties.call, "floods", background=n % 2 == 0))
        for n in range(20):
            await anyio.sleep(20)
            tg.start_soon(partial(parties.call, "asks", background=n % 2 == 0))
    assert max(parties.waited["asks"]) <= 10
    assert len(parties.waited["floods"]) == 100


@pytest.mark.jumps
async def test_a_minute_is_shared_fairly_too() -> None:
    parties = Parties(in_flight=50, per_minute=6)

    async with anyio.create_task_group() as tg:
        for _ in range(30):
            tg.start_soon(parties.call, "floods")
        await anyio.sleep(1)
        for _ in range(3):
            tg.start_soon(parties.call, "asks")
    # The first minute was taken before it asked; of the next one it gets its half.
    assert parties.waited["asks"] == [59, 59, 59]
    assert max(parties.waited["floods"]) == 300


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 40)), max_size=30), st.integers(0, 3))
def test_every_call_gets_its_place_whoever_gives_up_meanwhile(calls: list[tuple[str, bool, int]], minute: int) -> None:
    parties, served = Parties(in_flight=2, per_minute=minute), list[int]()

    async def one(n: int, party: str, background: bool, begins: int) -> None:  # noqa: FBT001
        await anyio.sleep(begins)
        # Each third one gives up, waiting or in work.
        with anyio.move_on_after(5 if n % 3 == 0 else 10_000):
            await parties.call(party, background=background)
            served.append(n)

    async def main() -> None:
        async with anyio.create_task_group() as tg:
            for n, call in enumerate(calls):
                tg.start_soon(one, n, *call)

    anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
    assert {n for n in range(len(calls)) if n % 3} <= set(served)
    assert parties.turns._free == {False: 2, True: 1}
    assert not parties.turns._busy
