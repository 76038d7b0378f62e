"""What was asked of endpoints, kept over restarts: which form of requests each accepts, calls and costs, and vectors.

Counts are by UTC day and prompt. Vectors that were paid for are stored by a hash of model and text, so that the same
text is not sent again. They are bounded, hold no text, and are paid for again if lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from hashlib import sha256

import msgspec
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.ids import MessageId
from intern.models.usage import Meter
from intern.stores.sqlite.columns import IN, Table, as_json, keep_first
from intern.stores.sqlite.database import Database, Transaction

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
    """Return a hash: the query of an address may hold a secret."""
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
        """Return all tokens of a day, prompts and replies together."""
        statement = "select coalesce(sum(prompt_tokens + completion_tokens), 0) from usage where day = ?"
        return await self._db.number(statement, (day.isoformat(),))

    async def cost(self, day: date, /) -> float:
        """Return all costs of a day."""
        row = await self._db.row("select coalesce(sum(cost), 0.0) from usage where day = ?", (day.isoformat(),))
        return msgspec.convert(row, tuple[float])[0]

    async def of(self, day: date) -> tuple[PromptUsage, ...]:
        """Return the counts of a day, by prompt."""
        rows = await self._db.rows(f"{_USAGE.select} where day = ? order by prompt", (day.isoformat(),))
        return tuple(map(_USAGE.struct, rows))


MOST_REMEMBERED = 20_000
"""Vectors; of 1,536 numbers each they take 120 MB."""

_RECALL = f"select key, vector from vector_memory where key {IN}"
_USED = f"update vector_memory set used_at = ? where key {IN} and used_at < ?"
_REMEMBER = (
    "insert into vector_memory (key, vector, used_at) values (?, ?, ?)"
    " on conflict (key) do update set vector = excluded.vector, used_at = excluded.used_at"
)
_DAY = 86_400


class VectorMemory:
    """Remembers vectors by the hash of model and text. All methods raise KnowledgeError."""

    def __init__(self, db: Database, *, clock: Clock, most: int = MOST_REMEMBERED) -> None:
        self._db = db
        self._clock = clock
        self._most = most

    async def recall(self, keys: Sequence[str], /) -> Mapping[str, bytes]:
        """Return the known vectors."""
        known = dict(msgspec.convert(await self._db.rows(_RECALL, (as_json(keys),)), list[tuple[str, bytes]]))
        if known:
            now = int(self._clock.now().timestamp())
            # Once a day is enough, or each question would write.
            await self._db.run(_USED, (now, as_json(known), now - _DAY))
        return known

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Delete all vectors: each says something about its text, and the author of that text is not stored."""
        if message_ids:
            await self._db.run("delete from vector_memory")

    async def remember(self, vectors: Mapping[str, bytes], /) -> None:
        """Keep vectors, and delete those that were used longest ago."""
        now = int(self._clock.now().timestamp())

        def work(db: Transaction) -> None:
            db.run_each(_REMEMBER, [(key, vector, now) for key, vector in vectors.items()])
            keep_first(db, "vector_memory", "key", "used_at desc", self._most)

        await self._db.write(work)
