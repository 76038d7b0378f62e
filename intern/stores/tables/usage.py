"""Calls and costs of models, by UTC day and prompt."""

from __future__ import annotations

from dataclasses import astuple
from datetime import date

import msgspec
from msgspec import Struct

from intern.models.usage import UsageMeter, UsageTotal
from intern.stores.tables.store import OURS, Store, Table


class PromptUsage(Struct, frozen=True):
    """The usage and cost of a prompt on a day."""

    prompt: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float = 0.0
    """The cost in the currency of the prices that were set."""
    cached_tokens: int = 0
    """The prompts' tokens that the endpoint had in its cache, by its own count."""

    @property
    def tokens(self) -> int:
        """Prompts and replies together."""
        return self.prompt_tokens + self.completion_tokens


_USAGE = Table("usage", PromptUsage)


class UsageLog(Store):
    """Counts in the database."""

    async def add(self, day: date, prompt: str, counted: UsageMeter) -> None:
        """Add to the counts of a prompt on a day."""
        sums = ", ".join(f"{each} = usage.{each} + excluded.{each}" for each in _USAGE.names[1:])
        await self.db.run(
            f"insert into usage (community, day, {_USAGE.columns}) values (:community, ?, ?, ?, ?, ?, ?, ?)"
            f" on conflict (community, day, prompt) do update set {sums}",
            (day.isoformat(), prompt, *astuple(counted)),
        )

    async def read_spent(self, day: date, /) -> UsageTotal:
        """Return all tokens of a day, prompts and replies together, and all costs."""
        row = await self.db.row(
            "select cast(coalesce(sum(prompt_tokens + completion_tokens), 0) as bigint), coalesce(sum(cost), 0)"
            " from usage where community = :community and day = ?",
            (day.isoformat(),),
        )
        return msgspec.convert(row, UsageTotal)

    async def read_since(self, since: date) -> dict[date, tuple[PromptUsage, ...]]:
        """Return the usage of each prompt by day, from `since` on; days without any are left out."""
        statement = f"select day, {_USAGE.columns} from usage {OURS} and day >= ? order by day, prompt"
        days: dict[date, tuple[PromptUsage, ...]] = {}
        for day, *row in await self.db.rows(statement, (since.isoformat(),)):
            at = date.fromisoformat(str(day))
            days[at] = (*days.get(at, ()), _USAGE.from_row(row))
        return days
