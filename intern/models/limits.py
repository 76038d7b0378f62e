"""The limits of an endpoint: calls in flight, calls a minute, tokens and money a day.

Calls wait for the first two, communities in turn. A budget that is used up is an error at once: tomorrow is far.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import NamedTuple

import anyio

from intern.core.errors import ModelBudgetError, ModelBudgetTooSmallError
from intern.models.options import BACKGROUND_SHARE, LlmOptions
from intern.models.usage import UsageCounter


class RateWindow:
    """At most `limit` starts in any `seconds`. Pure: callers pass the time in monotonic seconds, and it never waits."""

    def __init__(self, limit: int, seconds: float = 60.0) -> None:
        self._whole = self._limit, self._seconds = limit, seconds
        self._starts: deque[float] = deque()

    def set_share(self, part: float) -> None:
        """Give this process its share of a limit that several processes split; at least one start, in a longer time."""
        limit, seconds = self._whole
        self._limit = max(1, int(limit * part))
        self._seconds = seconds * self._limit / (limit * part)

    def seconds_until_start(self, now: float) -> float:
        """Return the seconds until a start fits; 0 if one fits now."""
        while self._starts and self._starts[0] + self._seconds <= now:
            self._starts.popleft()
        return self._starts[0] + self._seconds - now if len(self._starts) >= self._limit else 0.0

    def count_start(self, now: float) -> None:
        """Count one start."""
        self._starts.append(now)


class _CallCost(NamedTuple):
    """The most that one call may take."""

    tokens: int
    cost: float
    what: str


StillFits = Callable[[], Awaitable[None]]
"""Checks the budget again before a retry. Raises `ModelBudgetError`."""


def _make_budget_error(takes: str, left: str, never: str) -> ModelBudgetError | ModelBudgetTooSmallError:
    says = f"{takes}, and today's budget {left} for such calls"
    if never:  # waiting for tomorrow would never end, and would hold up the work behind it
        mend = f"raise {never}, or lower llm.max_tokens"
        return ModelBudgetTooSmallError(f"{says}; it would not fit into a whole day's: {mend}")
    return ModelBudgetError(f"{says}; it starts anew at 00:00 UTC")


class _WaitingCall:
    """A call that waits for its place."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.given = False
        self.woken = anyio.Event()


_Kind = tuple[str, bool]
"""The calls of a party, either its background work or the others."""


class FairCallQueue:
    """Calls in flight and calls a minute at one endpoint, or in other seconds. Parties take turns.

    The next place goes to the party with the fewest calls in flight, and of these to the one that began a call longest
    ago. So a party that floods delays another one until one of its own calls ends, and no longer. Calls of one party
    are served in order. Background work never has more than half of the places, and 80% of the minute.
    """

    def __init__(self, in_flight: int, calls: int = 0, seconds: float = 60.0) -> None:
        """Take the most calls in flight, and the most that begin within some seconds; 0: no limit."""
        self._free = {False: in_flight, True: max(1, in_flight // 2)}
        """Places for all calls, and among these for background work."""
        most = {False: calls, True: max(1, int(calls * BACKGROUND_SHARE))} if calls else {}
        self._windows = {background: RateWindow(limit, seconds) for background, limit in most.items()}
        self._waiting: dict[_Kind, deque[_WaitingCall]] = {}
        self._busy: Counter[str] = Counter()
        self._began: dict[str, int] = {}
        """The number of the last call of each party that is busy."""
        self._calls = 0

    def set_share(self, part: float) -> None:
        """Begin only this part of the calls, since other processes begin the rest. Above 0, at most 1."""
        for window in self._windows.values():
            window.set_share(part)
        if self._waiting:
            self._check_queue()

    @property
    def is_crowded(self) -> bool:
        """Whether a call waits."""
        return bool(self._waiting)

    @asynccontextmanager
    async def hold_place(self, party: str, *, background: bool) -> AsyncGenerator[None]:
        """Wait for a place, and hold it."""
        kind = (party, background)
        await self._wait_for_place(kind)
        try:
            yield
        finally:
            self._free_place(kind)

    async def _wait_for_place(self, kind: _Kind) -> None:
        self._calls += 1
        turn = _WaitingCall(self._calls)
        self._waiting.setdefault(kind, deque()).append(turn)
        try:
            while True:
                turn.woken = anyio.Event()
                pause = self._give_places(now := anyio.current_time())
                if turn.given:
                    break
                # One waiting call wakes up in time, on behalf of all of them.
                with anyio.move_on_after(pause if turn is self._find_timed_call(now) else inf):
                    await turn.woken.wait()
        except BaseException:
            if turn.given:
                self._free_place(kind)
            else:
                self._remove_call(kind, turn)
            raise
        finally:
            self._check_queue()

    def _give_places(self, now: float) -> float:
        """Give free places to calls that wait. Return the seconds until the minute has room for more."""
        while ready := [kind for kind in self._waiting if not self._seconds_until_start(kind, now)]:
            kind = min(ready, key=self._queue_order)
            (party, background), turn = kind, self._waiting[kind][0]
            self._remove_call(kind, turn)
            for each in {False, background}:
                self._free[each] -= 1
                if self._windows:
                    self._windows[each].count_start(now)
            self._calls += 1
            self._busy[party] += 1
            self._began[party] = self._calls
            turn.given = True
            turn.woken.set()
        return min((self._seconds_until_start(kind, now) for kind in self._waiting), default=inf)

    def _seconds_until_start(self, kind: _Kind, now: float) -> float:
        """Return the seconds until a call of this kind may begin; infinite where a place must become free first."""
        lanes = {False, kind[1]}
        if not all(self._free[each] for each in lanes):
            return inf
        return max(self._windows[each].seconds_until_start(now) for each in lanes) if self._windows else 0.0

    def _queue_order(self, kind: _Kind) -> tuple[int, int, int]:
        party, _ = kind
        return self._busy[party], self._began.get(party, 0), self._waiting[kind][0].number

    def _check_queue(self) -> None:
        """Give free places; if the minute has no room, wake a waiting call, so that it checks again in time."""
        now = anyio.current_time()
        self._give_places(now)
        if (turn := self._find_timed_call(now)) is not None:
            turn.woken.set()

    def _find_timed_call(self, now: float) -> _WaitingCall | None:
        """Return a call that only waits until the minute has room; None where all wait for a place."""
        timed = (turns[0] for kind, turns in self._waiting.items() if self._seconds_until_start(kind, now) < inf)
        return next(timed, None)

    def _free_place(self, kind: _Kind) -> None:
        party, background = kind
        for each in {False, background}:
            self._free[each] += 1
        self._busy[party] -= 1
        if not self._busy[party]:
            del self._busy[party]
            if not any((party, each) in self._waiting for each in (False, True)):
                self._began.pop(party, None)
        self._check_queue()

    def _remove_call(self, kind: _Kind, turn: _WaitingCall) -> None:
        self._waiting[kind].remove(turn)
        if not self._waiting[kind]:
            del self._waiting[kind]


def make_call_queue(options: LlmOptions) -> FairCallQueue:
    """Return the queue of calls to an endpoint."""
    return FairCallQueue(options.max_in_flight, options.calls_per_minute)


@dataclass(frozen=True)
class EndpointLimits:
    """The limits of one endpoint: calls in flight, calls a minute, and its budget of a UTC day.

    `usage` holds the spent and reserved amounts, so endpoints that share it see each other's calls. Those that
    share `turns` are served in turn there, each under the name of its `party`.
    """

    options: LlmOptions
    usage: UsageCounter
    turns: FairCallQueue
    party: str = ""
    is_background: bool = False
    """Whether these are the limits of background work."""

    def background(self) -> EndpointLimits:
        """Return these limits for work that must never starve answers: half in flight, 80% of the rest.

        It waits without holding up answers.
        """
        return replace(self, is_background=True)

    def hold_attempt(self) -> AbstractAsyncContextManager[None]:
        """Wait for a slot and for the minute, around each attempt."""
        return self.turns.hold_place(self.party, background=self.is_background)

    @asynccontextmanager
    async def reserve(self, tokens: int, *, what: str, reply_tokens: int = 0) -> AsyncGenerator[StillFits]:
        """Reserve the most that a call and its retries may take, until the call is counted.

        `tokens` are those of the prompt, and of the reply unless `reply_tokens` are given. A failed attempt may have
        been counted, so call the result before each retry. Raises `ModelBudgetError`, naming `what`, where that does
        not fit into what is left of today's share, and `ModelBudgetTooSmallError` where it would fit into no day's.
        """
        taking = _CallCost(tokens + reply_tokens, self.options.price.compute_cost(tokens, reply_tokens), what)
        await self._check_budget(taking)
        with self.usage.hold_reservation(taking.tokens, taking.cost):
            yield partial(self._check_budget, taking, own=taking)

    async def _check_budget(self, taking: _CallCost, *, own: _CallCost = _CallCost(0, 0.0, "")) -> None:  # noqa: B008 it is immutable
        """Raise unless the call fits. `own` is the part held back for this very call."""
        usage, (tokens, cost, what) = self.usage, taking
        most_tokens, most_cost = self.options.daily_token_budget, self.options.daily_cost_budget
        share = BACKGROUND_SHARE if self.is_background else 1.0
        if most_tokens or most_cost:
            # The only await, so no other call can come between check and reservation.
            await usage.refresh(usage.today())
        spent = usage.sum_spending(usage.today())
        if most_tokens:
            left = int(most_tokens * share) - spent.tokens - (usage.held.tokens - own.tokens)
            if tokens > left:
                raise _make_budget_error(
                    f"{what} may take {tokens} tokens",
                    f"(llm.daily_token_budget = {most_tokens}) has {max(0, left)} left",
                    "llm.daily_token_budget" if tokens > int(most_tokens * share) else "",
                )
        if most_cost:
            rest = most_cost * share - spent.cost - (usage.held.cost - own.cost)
            if cost > rest:
                raise _make_budget_error(
                    f"{what} may cost {cost:.4f}",
                    f"(llm.daily_cost_budget = {most_cost:g}) has {max(0.0, rest):.4f} left",
                    "llm.daily_cost_budget" if cost > most_cost * share else "",
                )


FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0  # seconds
