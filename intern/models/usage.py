"""The costs of models: calls, tokens and money for each prompt and UTC day, and meters around a piece of work."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from math import ceil
from typing import NamedTuple, Protocol

from anyio import CancelScope

from intern.core.clock import Clock, SystemClock
from intern.core.errors import KnowledgeError
from intern.core.log import failure_level, get_logger

_log = get_logger(__name__)

# A commit waits for the disk, and a question makes several calls: each would wait. A kill loses the counts since then.
_STORED_EVERY = timedelta(seconds=5)
# Two reads of a few rows, in a thread. A question makes several calls within this time, and waits for one read.
_READ_EVERY = timedelta(seconds=5)
# Up to the extended Latin letters: of other scripts a sign is about a token, be it a Chinese or a Greek one.
_LATIN = re.compile("[\0-\u024f]+")


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of `text`, without a tokenizer: 3.6 Latin letters each, or one sign of another script.

    Rather too many than too few: budgets are held against it.
    """
    others = 0 if text.isascii() else len(_LATIN.sub("", text))
    return others + ceil((len(text) - others) / 3.6)


@dataclass
class UsageMeter:
    """Calls and tokens so far."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """In `llm.currency`, as far as prices are set."""
    cached_tokens: int = 0
    """The tokens of the prompts that the endpoint had in its cache, by its own count."""

    @property
    def tokens(self) -> int:
        """Prompt and reply together."""
        return self.prompt_tokens + self.completion_tokens

    def add_counts(self, other: UsageMeter) -> None:
        """Add the counts of another meter."""
        self.calls += other.calls
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cost += other.cost
        self.cached_tokens += other.cached_tokens


_meters: ContextVar[tuple[UsageMeter, ...]] = ContextVar("intern_llm_meters", default=())


@contextmanager
def measure_usage() -> Generator[UsageMeter]:
    """Count the calls made inside, also those of child tasks that were started inside; meters may nest."""
    meter = UsageMeter()
    token = _meters.set((*_meters.get(), meter))
    try:
        yield meter
    finally:
        _meters.reset(token)


class UsageTotal(NamedTuple):
    """The tokens and the cost of several calls."""

    tokens: int
    """Prompts and replies."""
    cost: float


CountUsage = Callable[[str, int, int, float, int], object]
"""Counts a call: its prompt, the tokens of the prompt and of the reply, the cost, and the tokens from the cache."""


class UsageStore(Protocol):
    """A store that keeps counts over restarts."""

    async def add(self, day: date, prompt: str, counted: UsageMeter, /) -> None:
        """Add to the counts of a prompt on a day."""

    async def read_spent(self, day: date, /) -> UsageTotal:
        """Return all that was spent on a day."""
        ...


class UsageCounter:
    """The counts of this process, added to those of a store; and reservations of calls under way.

    One for all endpoints that share a budget. Counts of another process are seen within seconds, its reservations are
    not. A store that fails costs no reply: counting goes on in memory, with a warning, and the store is updated later.
    """

    def __init__(
        self, store: UsageStore | None = None, *, clock: Clock | None = None, counted: CountUsage | None = None
    ) -> None:
        """Call `counted` with each `count`; it must neither wait nor raise."""
        self._store, self._counted = store, counted
        self._clock = clock or SystemClock()
        self._spent: dict[date, UsageMeter] = {}
        self._others: dict[date, UsageTotal] = {}
        self._looked_at: dict[date, datetime] = {}
        self._owed: dict[tuple[date, str], UsageMeter] = {}
        self._written: dict[date, UsageMeter] = {}
        self._writing = 0
        self._stored_at: datetime | None = None
        self._held: list[UsageTotal] = []

    def today(self) -> date:
        """Return the current UTC day."""
        return self._clock.now().astimezone(UTC).date()

    @contextmanager
    def hold_reservation(self, tokens: int, cost: float) -> Generator[None]:
        """Reserve the most that a call may take, until it is counted.

        A call is counted on the day on which it ends.
        """
        held = UsageTotal(tokens, cost)
        self._held.append(held)
        try:
            yield
        finally:
            self._held.remove(held)

    @property
    def held(self) -> UsageTotal:
        """The most that all calls under way may take, at any endpoint."""
        return UsageTotal(sum(each.tokens for each in self._held), sum(each.cost for each in self._held))

    def count(self, prompt: str, prompt_tokens: int, reply_tokens: int, cost: float = 0.0, cached: int = 0) -> None:
        """Count one call, in the meters around it and in memory; the next `add` or `flush` stores it."""
        day = self.today()
        taken = UsageMeter(1, prompt_tokens, reply_tokens, cost, cached)
        own = self._owed.setdefault((day, prompt), UsageMeter()), self._spent.setdefault(day, UsageMeter())
        for meter in (*own, *_meters.get()):
            meter.add_counts(taken)
        if self._counted:
            self._counted(prompt, prompt_tokens, reply_tokens, cost, cached)

    async def add(self, prompt: str, prompt_tokens: int, reply_tokens: int, cost: float = 0.0, cached: int = 0) -> None:
        """Count one call, and store it unless something was stored within the last seconds."""
        self.count(prompt, prompt_tokens, reply_tokens, cost, cached)
        now = self._clock.now()
        if self._stored_at is None or not timedelta(0) <= now - self._stored_at < _STORED_EVERY:
            await self.flush()

    async def flush(self) -> None:
        """Store all counts that are not stored yet. Long-running programs call it every few seconds."""
        self._stored_at = self._clock.now()
        if self._store is None or not self._owed:
            return
        # Shielded, since a cancelled write could be lost or counted twice; it is soon done.
        with CancelScope(shield=True):
            owed, self._owed = self._owed, {}
            try:
                while owed:
                    (day, prompt), meter = next(iter(owed.items()))
                    await self._store_meter(self._store, day, prompt, meter)
                    del owed[day, prompt]
            except KnowledgeError as error:
                _log.log(failure_level(error), "usage_not_stored", error=str(error))
            finally:
                for key, meter in owed.items():
                    self._owed.setdefault(key, UsageMeter()).add_counts(meter)

    async def _store_meter(self, store: UsageStore, day: date, prompt: str, meter: UsageMeter) -> None:
        # First read the counts of others: until then, the store must hold no counts of ours to subtract.
        if day not in self._others:
            await self._read_others(store, day)
        self._writing += 1
        try:
            await store.add(day, prompt, meter)
            self._written.setdefault(day, UsageMeter()).add_counts(meter)
        finally:
            self._writing -= 1

    async def _read_others(self, store: UsageStore, day: date) -> None:
        """Read the counts of other processes: all that is stored for a day, without ours. Raises KnowledgeError."""
        ours, at = replace(self._written.get(day, UsageMeter())), self._clock.now()
        tokens, cost = await store.read_spent(day)
        # What we stored in between may have been read or not. Then the next call looks again.
        is_quiet = not self._writing and ours == self._written.get(day, UsageMeter())
        if is_quiet or day not in self._others:
            self._others[day], self._looked_at[day] = UsageTotal(tokens - ours.tokens, cost - ours.cost), at

    async def refresh(self, day: date) -> None:
        """Read the store's counts of a day, unless that was done within the last seconds."""
        at, now = self._looked_at.get(day), self._clock.now()
        if self._store is not None and (at is None or not timedelta(0) <= now - at < _READ_EVERY):
            try:
                await self._read_others(self._store, day)
            except KnowledgeError as error:
                # Not remembered as zero: the next question asks the store again.
                _log.warning("usage_not_read", day=day.isoformat(), error=str(error))

    def sum_spending(self, day: date) -> UsageTotal:
        """Return all that was spent on a day, as far as the store was read."""
        others, ours = self._others.get(day, UsageTotal(0, 0.0)), self._spent.get(day, UsageMeter())
        return UsageTotal(others.tokens + ours.tokens, others.cost + ours.cost)

    async def read_spent(self, day: date) -> UsageTotal:
        """Return all that was spent on a day, with that of other processes."""
        await self.refresh(day)
        return self.sum_spending(day)
