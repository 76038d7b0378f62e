"""Documents for the tests of search."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from intern.domain import SearchDocument, SourceId
from intern.knowledge.database import Database
from intern.knowledge.search_store import SqliteSearchStore

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)


def document(source: str, text: str = "", *, n: int = 0, **fields: Any) -> SearchDocument:
    """A document of a source; `n` tells several apart."""
    made = SearchDocument(id=f"{source}#{n}", source_id=SourceId(source), kind="source", text=text, at=NOON)
    return replace(made, **fields)


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[tuple[SqliteSearchStore, Database]]:
    """A store in a folder."""
    async with await Database.open(folder / "intern.db") as db:
        yield SqliteSearchStore(db), db
