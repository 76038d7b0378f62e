"""How much of an endpoint we use: calls in flight, calls a minute, tokens a day.

Waiting is for the first two, in order of arrival. A budget that is used up is an error at once: tomorrow is far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import anyio

from intern.errors import ModelBudgetError
from intern.llm.usage import Usage

_BACKGROUND_SHARE = 0.8  # of calls a minute and of the budget; the rest is for answers


class Window:
    """At most `limit` starts in any `seconds`. Pure: it is told the time, monotonic seconds, and never waits."""

    def __init__(self, limit: int, seconds: float = 60.0) -> None:
        self._limit = limit
        self._seconds = seconds
        self._starts: deque[float] = deque()

    def wait(self, now: float) -> float:
        """Seconds until a start fits; 0 if one fits now."""
        while self._starts and self._starts[0] + self._seconds <= now:
            self._starts.popleft()
        return self._starts[0] + self._seconds - now if len(self._starts) >= self._limit else 0.0

    def start(self, now: float) -> None:
        """Count one."""
        self._starts.append(now)


class Budget:
    """Tokens of a UTC day: what is spent, what calls under way may still spend, and what is left."""

    def __init__(self, tokens: int, usage: Usage) -> None:
        self._tokens = tokens
        self._usage = usage
        self._reserved = 0

    @asynccontextmanager
    async def reserved(self, tokens: int, *, share: float, what: str) -> AsyncGenerator[None]:
        """Hold `tokens` back until the call is counted. Raises `ModelBudgetError` if they do not fit into `share`."""
        if self._tokens:
            left = int(self._tokens * share) - await self._usage.spent(self._usage.today()) - self._reserved
            if tokens > left:
                raise ModelBudgetError(
                    f"{what} may take {tokens} tokens, and today's budget (llm.daily_token_budget = {self._tokens}) "
                    f"has {max(0, left)} left for such calls; it starts anew at 00:00 UTC"
                )
        with self._held(tokens):
            yield

    @contextmanager
    def _held(self, tokens: int) -> Generator[None]:
        self._reserved += tokens
        try:
            yield
        finally:
            self._reserved -= tokens


class _Gate:
    """Calls in flight and calls a minute, for everybody who shares it."""

    def __init__(self, in_flight: int, per_minute: int) -> None:
        self._slots = anyio.CapacityLimiter(in_flight)
        self._window = Window(per_minute) if per_minute else None
        self._next_in_line = anyio.Lock()

    @asynccontextmanager
    async def passed(self) -> AsyncGenerator[None]:
        async with self._slots:
            if self._window:
                async with self._next_in_line:
                    # Only who is next in line takes a start, so one wait is enough.
                    await anyio.sleep(self._window.wait(anyio.current_time()))
                    self._window.start(anyio.current_time())
            yield


class Limits:
    """The limits of one endpoint. A `per_minute` or `tokens_a_day` of 0 is no limit."""

    def __init__(self, *, in_flight: int, per_minute: int, tokens_a_day: int, usage: Usage) -> None:
        self._in_flight = in_flight
        self._per_minute = per_minute
        self._budget = Budget(tokens_a_day, usage)
        self._share = 1.0
        self._gates: tuple[_Gate, ...] = (_Gate(in_flight, per_minute),)

    def background(self) -> Limits:
        """The same limits for work that must never starve answers: half in flight, 80% of the rest.

        Such a call passes a narrower gate before the one that it shares, so it waits where it holds nobody up. All
        background work should go through one such view, since each has a narrower gate of its own.
        """
        view = object.__new__(Limits)
        view._in_flight = max(1, self._in_flight // 2)
        view._per_minute = max(1, int(self._per_minute * _BACKGROUND_SHARE)) if self._per_minute else 0
        view._budget = self._budget
        view._share = _BACKGROUND_SHARE
        view._gates = (_Gate(view._in_flight, view._per_minute), *self._gates)
        return view

    @asynccontextmanager
    async def budgeted(self, tokens: int, *, what: str) -> AsyncGenerator[None]:
        """Around a call and its retries: room in today's budget, or `ModelBudgetError` which names `what`."""
        async with self._budget.reserved(tokens, share=self._share, what=what):
            yield

    @asynccontextmanager
    async def attempt(self) -> AsyncGenerator[None]:
        """Around each attempt: waits for a slot and for the minute."""
        async with AsyncExitStack() as stack:
            for gate in self._gates:
                await stack.enter_async_context(gate.passed())
            yield
