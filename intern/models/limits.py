"""How much of an endpoint we use: calls in flight, calls a minute, tokens and money a day; and its circuit breaker.

Calls wait for the first two, in order of arrival. A budget that is used up is an error at once: tomorrow is far.

The circuit breaker leaves an endpoint that keeps failing alone for a while, then tries it with one call. While the
circuit is closed, every call passes. FAILURES attempts in a row that fail open it, and every call is refused at once
until its pause is over. Then it is half open: one answer's call is let through as a probe, and, a little later, one of
the background's. The two have a place each, so background work never takes the probe from an answer. A success closes
the circuit; a probe that fails opens it again, for twice as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Literal, NamedTuple

import anyio

from intern.core.errors import ModelBudgetError, ModelBudgetTooSmallError
from intern.models.options import BACKGROUND_SHARE, FREE, Price
from intern.models.usage import Usage


class Window:
    """At most `limit` starts in any `seconds`. Pure: callers pass the time in monotonic seconds, and it never waits."""

    def __init__(self, limit: int, seconds: float = 60.0) -> None:
        self._limit = limit
        self._seconds = seconds
        self._starts: deque[float] = deque()

    def wait(self, now: float) -> float:
        """Return the seconds until a start fits; 0 if one fits now."""
        while self._starts and self._starts[0] + self._seconds <= now:
            self._starts.popleft()
        return self._starts[0] + self._seconds - now if len(self._starts) >= self._limit else 0.0

    def start(self, now: float) -> None:
        """Count one."""
        self._starts.append(now)


class _Taking(NamedTuple):
    """The most that one call may take."""

    tokens: int
    cost: float
    share: float
    """Of the day's budget that such calls may use up."""
    what: str


StillFits = Callable[[], Awaitable[None]]
"""Checks the budget again before a retry. Raises `ModelBudgetError`."""


class Budget:
    """Tokens and money of a UTC day: what is spent, what calls under way may still spend, and what is left.

    What is spent and held back stands in `usage`, so endpoints that share it see each other's calls.
    """

    def __init__(self, tokens: int, usage: Usage, *, cost: float = 0.0, price: Price = FREE) -> None:
        self._tokens = tokens
        self._cost = cost
        self._price = price
        self._usage = usage

    @asynccontextmanager
    async def reserved(
        self, prompt_tokens: int, reply_tokens: int, *, share: float, what: str
    ) -> AsyncGenerator[StillFits]:
        """Hold back the most that a call may take until it is counted.

        Raises `ModelBudgetError` where that does not fit into what is left of `share`, and `ModelBudgetTooSmallError`
        where it would fit into no day's.
        """
        taking = _Taking(
            prompt_tokens + reply_tokens, self._price.of(prompt_tokens, reply_tokens), share=share, what=what
        )
        await self._read()
        self._fit(taking)
        with self._usage.holding(taking.tokens, taking.cost):
            yield partial(self._still_fits, taking)

    async def _still_fits(self, taking: _Taking) -> None:
        await self._read()
        self._fit(taking, own=taking)

    async def _read(self) -> None:
        """Read the usage. This is the only await, so no other call can come between the checks of `_fit`."""
        if self._tokens or self._cost:
            await self._usage.read(self._usage.today())

    def _fit(self, taking: _Taking, *, own: _Taking | None = None) -> None:
        """Raise unless the call fits. `own` is the part held back for this very call."""
        usage, (tokens, cost, share, what) = self._usage, taking
        today = usage.today()
        if self._tokens:
            held = usage.held_tokens - (own.tokens if own else 0)
            left = int(self._tokens * share) - usage.spent_by_now(today) - held
            if tokens > left:
                raise _too_much(
                    f"{what} may take {tokens} tokens",
                    f"(llm.daily_token_budget = {self._tokens}) has {max(0, left)} left",
                    "llm.daily_token_budget" if tokens > int(self._tokens * share) else "",
                )
        if self._cost:
            held_cost = usage.held_cost - (own.cost if own else 0.0)
            rest = self._cost * share - usage.cost_by_now(today) - held_cost
            if cost > rest:
                raise _too_much(
                    f"{what} may cost {cost:.4f}",
                    f"(llm.daily_cost_budget = {self._cost:g}) has {max(0.0, rest):.4f} left",
                    "llm.daily_cost_budget" if cost > self._cost * share else "",
                )


def _too_much(takes: str, left: str, never: str) -> ModelBudgetError | ModelBudgetTooSmallError:
    says = f"{takes}, and today's budget {left} for such calls"
    if never:  # waiting for tomorrow would never end, and would hold up the work behind it
        return ModelBudgetTooSmallError(
            f"{says}; it would not fit into a whole day's: raise {never}, or lower llm.max_tokens"
        )
    return ModelBudgetError(f"{says}; it starts anew at 00:00 UTC")


class _Gate:
    """Calls in flight and calls a minute, for all that share it."""

    def __init__(self, in_flight: int, per_minute: int) -> None:
        self._slots = anyio.CapacityLimiter(in_flight)
        self._window = Window(per_minute) if per_minute else None
        self._next_in_line = anyio.Lock(fast_acquire=True)

    @asynccontextmanager
    async def passed(self) -> AsyncGenerator[None]:
        try:
            self._slots.acquire_nowait()  # no turn of the event loop if no call is waiting
        except anyio.WouldBlock:
            await self._slots.acquire()
        try:
            if self._window:
                async with self._next_in_line:
                    # Only the next in line takes a start, so one wait is enough.
                    if wait := self._window.wait(anyio.current_time()):
                        await anyio.sleep(wait)
                    self._window.start(anyio.current_time())
            yield
        finally:
            self._slots.release()


class Limits:
    """The limits of one endpoint. A `per_minute`, `tokens_a_day` or `cost_a_day` of 0 is no limit."""

    def __init__(
        self,
        *,
        in_flight: int,
        per_minute: int,
        tokens_a_day: int,
        usage: Usage,
        cost_a_day: float = 0.0,
        price: Price = FREE,
    ) -> None:
        self._in_flight = in_flight
        self._per_minute = per_minute
        self._budget = Budget(tokens_a_day, usage, cost=cost_a_day, price=price)
        self._share = 1.0
        self._gates: tuple[_Gate, ...] = (_Gate(in_flight, per_minute),)

    def background(self) -> Limits:
        """Return these limits for work that must never starve answers: half in flight, 80% of the rest.

        Such a call passes a narrower gate before the shared one, so it waits without holding up answers. All
        background work should go through one such view, since each has a narrower gate of its own.
        """
        view = object.__new__(Limits)
        view._in_flight = max(1, self._in_flight // 2)
        view._per_minute = max(1, int(self._per_minute * BACKGROUND_SHARE)) if self._per_minute else 0
        view._budget = self._budget
        view._share = BACKGROUND_SHARE
        view._gates = (_Gate(view._in_flight, view._per_minute), *self._gates)
        return view

    def budgeted(self, tokens: int, *, what: str, reply_tokens: int = 0) -> AbstractAsyncContextManager[StillFits]:
        """Reserve room in today's budgets, around a call and its retries. Raises as `Budget.reserved`, naming `what`.

        `tokens` are those of the prompt, and of the reply unless `reply_tokens` are given. A failed attempt may have
        been counted, so call the result before each retry.
        """
        return self._budget.reserved(tokens, reply_tokens, share=self._share, what=what)

    @property
    def is_background(self) -> bool:
        """Whether these are the limits of background work."""
        return len(self._gates) > 1

    def attempt(self) -> AbstractAsyncContextManager[None]:
        """Wait for a slot and for the minute, around each attempt."""
        return self._all_passed() if self.is_background else self._gates[0].passed()

    @asynccontextmanager
    async def _all_passed(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            for gate in self._gates:
                await stack.enter_async_context(gate.passed())
            yield


FAILURES = 8  # attempts; two calls with all their retries
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0  # seconds
HEAD_START = 2.0  # seconds that answers have before the background may probe

State = Literal["closed", "open", "half_open"]


class Permit(NamedTuple):
    """One attempt that may be made. Return it with the outcome."""

    opening: int
    """How often the circuit had opened by then."""
    background: bool
    probe: bool


class Refused(NamedTuple):
    """An attempt that may not be made."""

    seconds: float
    """When to ask again, at the earliest."""


class Held(NamedTuple):
    """A circuit that is not closed, for health checks. Times are monotonic seconds."""

    since: float
    """When it first opened; later openings do not change it."""
    probed_at: float
    """The time from which the next call may try the endpoint."""
    reason: str
    """The error that opened it last."""


class Breaker:
    """The circuit of one endpoint. Pure: callers pass the time in monotonic seconds, and it never waits."""

    def __init__(self, *, failures: int = FAILURES, first_pause: float = FIRST_PAUSE) -> None:
        self._most = failures
        self._first_pause = first_pause
        self._failed = 0
        self.pause = 0.0
        """Seconds, from when it opened last until it is tried again."""
        self._until: float | None = None
        self._since = 0.0  # where it is not closed
        self._probing: set[bool] = set()  # whose probes are under way: of the background, of answers
        self.openings = 0
        """How often it opened."""
        self.refusals = 0
        """How many attempts it refused."""
        self.reason = ""
        """The error that opened it; empty while it is closed."""

    def state(self, now: float) -> State:
        """Return the state of the circuit."""
        if self._until is None:
            return "closed"
        return "open" if now < self._until else "half_open"

    @property
    def held(self) -> Held | None:
        """Since when the endpoint is left alone, and when it is tried; None while the circuit is closed."""
        return None if self._until is None else Held(self._since, self._until, self.reason)

    def asks(self, now: float, *, background: bool) -> Permit | Refused:
        """Ask to make an attempt."""
        if self._until is None:
            return Permit(self.openings, background, probe=False)
        begins = self._until + (HEAD_START if background else 0.0)
        if now < begins:
            return self._refused(begins - now)
        if background in self._probing:
            return self._refused(HEAD_START)  # the probe under way will tell
        self._probing.add(background)
        return Permit(self.openings, background, probe=True)

    def refuses(self, now: float, *, background: bool) -> Refused | None:
        """Return the refusal that `asks` would give; None if it would let an attempt pass."""
        asked = self.asks(now, background=background)
        if isinstance(asked, Refused):
            return asked
        self.gave_up(asked)
        return None

    def succeeded(self, permit: Permit) -> bool:
        """Record any answer of the endpoint. Return whether it closes the circuit."""
        self._returned(permit)
        closes = self._until is not None
        self._failed, self.pause, self._until, self.reason = 0, 0.0, None, ""
        self._probing.clear()
        return closes

    def failed(self, permit: Permit, now: float, reason: str) -> bool:
        """Record that the endpoint did not answer. Return whether this opens the circuit."""
        probed = self._returned(permit)
        if self._until is None:
            self._failed += 1
            opens = self._failed >= self._most
        else:
            opens = probed  # an attempt that began before it opened tells nothing new
        if opens:
            self._open(now, reason)
        return opens

    def gave_up(self, permit: Permit) -> None:
        """Record that the caller did not wait for the end, so nothing is known."""
        self._returned(permit)

    def _returned(self, permit: Permit) -> bool:
        """Return whether it was one of the probes under way."""
        current = permit.probe and permit.opening == self.openings and permit.background in self._probing
        if current:
            self._probing.discard(permit.background)
        return current

    def _open(self, now: float, reason: str) -> None:
        self.pause = min(2 * self.pause, LONGEST_PAUSE) if self.pause else self._first_pause
        if self._until is None:
            self._since = now
        self._until = now + self.pause
        self._failed = 0
        self._probing.clear()
        self.openings += 1
        self.reason = reason

    def _refused(self, seconds: float) -> Refused:
        self.refusals += 1
        return Refused(seconds)
