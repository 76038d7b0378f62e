"""What models have cost: calls, tokens and money for each prompt and UTC day, and meters around a piece of work."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from math import ceil
from typing import Protocol

from intern.errors import KnowledgeError
from intern.observe.clock import Clock, SystemClock
from intern.observe.log import get_logger

_log = get_logger(__name__)

# A commit waits for the disk, and a question makes four calls: each would wait. A kill costs the count of so much.
_STORED_EVERY = timedelta(seconds=5)


def estimated_tokens(text: str) -> int:
    """About as many tokens as `text` has, without a tokenizer: 3.6 characters each."""
    return ceil(len(text) / 3.6)


@dataclass
class Meter:
    """Calls and tokens so far."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """In `llm.currency`, as far as prices are set."""

    @property
    def tokens(self) -> int:
        """Prompt and reply together."""
        return self.prompt_tokens + self.completion_tokens

    def add(self, prompt_tokens: int, completion_tokens: int, cost: float = 0.0) -> None:
        """Count one call more."""
        self.calls += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.cost += cost


_meters: ContextVar[tuple[Meter, ...]] = ContextVar("intern_llm_meters", default=())


@contextmanager
def metered() -> Generator[Meter]:
    """Count what is called inside, child tasks that were started inside included; meters may nest."""
    meter = Meter()
    token = _meters.set((*_meters.get(), meter))
    try:
        yield meter
    finally:
        _meters.reset(token)


class UsageStore(Protocol):
    """Keeps the counts when the process ends."""

    async def add(
        self, day: date, prompt: str, calls: int, prompt_tokens: int, completion_tokens: int, *, cost: float = 0.0
    ) -> None:
        """Add to the counts of a prompt on a day."""
        ...

    async def spent(self, day: date, /) -> int:
        """All tokens of a day, prompts and replies together."""
        ...

    async def cost(self, day: date, /) -> float:
        """All money of a day."""
        ...


class Usage:
    """The counts of this process, on top of what a store remembers from earlier ones.

    A store that fails costs no reply: the counts go on in memory, and the log tells of it.
    """

    def __init__(self, store: UsageStore | None = None, *, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._counts: dict[tuple[date, str], Meter] = {}
        self._spent: dict[date, Meter] = {}
        self._stored: dict[date, Meter] = {}
        self._earlier: dict[date, int] = {}
        self._earlier_cost: dict[date, float] = {}
        self._owed: dict[tuple[date, str], Meter] = {}
        self._stored_at: datetime | None = None
        self.counted: Callable[[str, int, int, float], object] = lambda _prompt, _asked, _said, _cost: None
        """Hears of each call: prompt, tokens of the prompt and of the reply, cost; it must neither wait nor raise."""

    def today(self) -> date:
        """The UTC day that budgets and counts go by."""
        return self._clock.now().astimezone(UTC).date()

    def of(self, prompt: str, day: date | None = None) -> Meter:
        """What this process has counted for a prompt on a day (today); a copy."""
        return replace(self._counts.get((day or self.today(), prompt), Meter()))

    async def add(self, prompt: str, prompt_tokens: int, completion_tokens: int, cost: float = 0.0) -> None:
        """Count one call, in the meters around it and in memory; the store hears of it within seconds of calls."""
        day = self.today()
        for meter in (
            self._counts.setdefault((day, prompt), Meter()),
            self._owed.setdefault((day, prompt), Meter()),
            self._spent.setdefault(day, Meter()),
            *_meters.get(),
        ):
            meter.add(prompt_tokens, completion_tokens, cost)
        self.counted(prompt, prompt_tokens, completion_tokens, cost)
        now = self._clock.now()
        if self._stored_at is None or not timedelta(0) <= now - self._stored_at < _STORED_EVERY:
            self._stored_at = now
            await self.keep()

    async def keep(self) -> None:
        """Store what the store has not heard of yet."""
        owed, self._owed = self._owed, {}
        if self._store is None:
            return
        for (day, prompt), meter in owed.items():
            try:
                await self._store.add(
                    day, prompt, meter.calls, meter.prompt_tokens, meter.completion_tokens, cost=meter.cost
                )
                self._stored.setdefault(day, Meter()).add(meter.prompt_tokens, meter.completion_tokens, meter.cost)
            except KnowledgeError as error:
                _log.warning("usage_not_stored", prompt=prompt, error=str(error))

    async def spent(self, day: date) -> int:
        """All tokens of a day, those of earlier processes included; rather too many than too few."""
        if day not in self._earlier and self._store is not None:
            ours = self._stored.get(day, Meter()).tokens
            try:
                self._earlier[day] = max(0, await self._store.spent(day) - ours)
            except KnowledgeError as error:
                # Not remembered as zero: the next question asks the store again.
                _log.warning("usage_not_read", day=day.isoformat(), error=str(error))
        return self._earlier.get(day, 0) + self._spent.get(day, Meter()).tokens

    async def cost(self, day: date) -> float:
        """All money of a day; as `spent`."""
        if day not in self._earlier_cost and self._store is not None:
            ours = self._stored.get(day, Meter()).cost
            try:
                self._earlier_cost[day] = max(0.0, await self._store.cost(day) - ours)
            except KnowledgeError as error:
                _log.warning("usage_not_read", day=day.isoformat(), error=str(error))
        return self._earlier_cost.get(day, 0.0) + self._spent.get(day, Meter()).cost
