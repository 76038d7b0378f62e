"""What each endpoint takes of a request, kept over restarts."""

from __future__ import annotations

from hashlib import sha256

import msgspec

from intern.knowledge.database import Database

Taken = tuple[int, bool, bool]
"""The form of streaming, whether a temperature is taken, and whether bounds in schemas are."""


class FormLog:
    """Forms in the database, by address, model and structured output. All methods raise KnowledgeError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def of(self, *endpoint: str) -> Taken | None:
        """Return what was kept of an endpoint; None where nothing was."""
        key = _key(endpoint)
        statement = "select streaming, temperature, bounds from endpoint_forms where endpoint = ?"
        row = await self._db.read(lambda db: db.row(statement, (key,)))
        return None if row is None else msgspec.convert(row, Taken, strict=False)

    async def keep(self, taken: Taken, *endpoint: str) -> None:
        """Replace what was kept of an endpoint."""
        key = _key(endpoint)
        await self._db.write(
            lambda db: db.run(
                "insert into endpoint_forms (endpoint, streaming, temperature, bounds) values (?, ?, ?, ?)"
                " on conflict (endpoint) do update set streaming = excluded.streaming,"
                " temperature = excluded.temperature, bounds = excluded.bounds",
                (key, *taken),
            )
        )


def _key(endpoint: tuple[str, ...]) -> str:
    """A hash: the query of an address may hold a secret."""
    return sha256(msgspec.json.encode(endpoint)).hexdigest()
