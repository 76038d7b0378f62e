"""What each endpoint takes of a request, kept over restarts.

Calls, tokens and money by UTC day and prompt, kept over restarts.
"""

from __future__ import annotations

from datetime import date
from hashlib import sha256

import msgspec
from msgspec import Struct

from intern.models.usage import Meter
from intern.stores.sqlite.columns import Table
from intern.stores.sqlite.database import Database

Taken = tuple[int, bool, bool]
"""The form of streaming, whether a temperature is taken, and whether bounds in schemas are."""


class FormLog:
    """Forms in the database, by address, model and structured output. All methods raise KnowledgeError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def of(self, *endpoint: str) -> Taken | None:
        """Return what was kept of an endpoint; None where nothing was."""
        statement = "select streaming, temperature, bounds from endpoint_forms where endpoint = ?"
        row = await self._db.row(statement, (_key(endpoint),))
        return None if row is None else msgspec.convert(row, Taken, strict=False)

    async def keep(self, taken: Taken, *endpoint: str) -> None:
        """Replace what was kept of an endpoint."""
        await self._db.run(
            "insert into endpoint_forms (endpoint, streaming, temperature, bounds) values (?, ?, ?, ?)"
            " on conflict (endpoint) do update set streaming = excluded.streaming,"
            " temperature = excluded.temperature, bounds = excluded.bounds",
            (_key(endpoint), *taken),
        )


def _key(endpoint: tuple[str, ...]) -> str:
    """A hash: the query of an address may hold a secret."""
    return sha256(msgspec.json.encode(endpoint)).hexdigest()


class PromptUsage(Struct, frozen=True):
    """What a prompt cost on a day."""

    prompt: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float = 0.0
    """In the currency of the prices that were set."""
    cached_tokens: int = 0
    """Of the prompts', those that the endpoint says it had in its cache."""

    @property
    def tokens(self) -> int:
        """Prompts and replies together."""
        return self.prompt_tokens + self.completion_tokens


_USAGE = Table("usage", PromptUsage)


class UsageLog:
    """Counts in the database. All methods raise KnowledgeError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def add(self, day: date, prompt: str, counted: Meter) -> None:
        """Add to the counts of a prompt on a day."""
        row = (prompt, counted.calls, counted.prompt_tokens, counted.completion_tokens)
        await self._db.run(
            "insert into usage (day, prompt, calls, prompt_tokens, completion_tokens, cost, cached_tokens)"
            " values (?, ?, ?, ?, ?, ?, ?)"
            " on conflict (day, prompt) do update set calls = calls + excluded.calls,"
            " prompt_tokens = prompt_tokens + excluded.prompt_tokens,"
            " completion_tokens = completion_tokens + excluded.completion_tokens, cost = cost + excluded.cost,"
            " cached_tokens = cached_tokens + excluded.cached_tokens",
            (day.isoformat(), *row, counted.cost, counted.cached_tokens),
        )

    async def spent(self, day: date, /) -> int:
        """All tokens of a day, prompts and replies together."""
        statement = "select coalesce(sum(prompt_tokens + completion_tokens), 0) from usage where day = ?"
        return await self._db.number(statement, (day.isoformat(),))

    async def cost(self, day: date, /) -> float:
        """All money of a day."""
        row = await self._db.row("select coalesce(sum(cost), 0.0) from usage where day = ?", (day.isoformat(),))
        return msgspec.convert(row, tuple[float])[0]

    async def of(self, day: date) -> tuple[PromptUsage, ...]:
        """The counts of a day, by prompt."""
        rows = await self._db.rows(f"{_USAGE.select} where day = ? order by prompt", (day.isoformat(),))
        return tuple(map(_USAGE.struct, rows))
