"""Calls and tokens by UTC day and prompt, kept over restarts."""

from __future__ import annotations

from datetime import date

import msgspec

from intern.knowledge.database import Database


class UsageLog:
    """Counts in the database. All methods raise KnowledgeError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def add(self, day: date, prompt: str, calls: int, prompt_tokens: int, completion_tokens: int) -> None:
        """Add to the counts of a prompt on a day."""
        await self._db.write(
            lambda db: db.run(
                "insert into usage (day, prompt, calls, prompt_tokens, completion_tokens) values (?, ?, ?, ?, ?)"
                " on conflict (day, prompt) do update set calls = calls + excluded.calls,"
                " prompt_tokens = prompt_tokens + excluded.prompt_tokens,"
                " completion_tokens = completion_tokens + excluded.completion_tokens",
                (day.isoformat(), prompt, calls, prompt_tokens, completion_tokens),
            )
        )

    async def spent(self, day: date) -> int:
        """All tokens of a day, prompts and replies together."""
        row = await self._db.read(
            lambda db: db.row(
                "select coalesce(sum(prompt_tokens + completion_tokens), 0) from usage where day = ?",
                (day.isoformat(),),
            )
        )
        return msgspec.convert(row, tuple[int])[0]
