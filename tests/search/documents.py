"""Documents for the tests of search."""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from intern.core.errors import ModelError
from intern.core.ids import SourceId
from intern.core.search_documents import SearchDocument
from intern.search.hybrid_search import HybridSearch
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.search_file.search_index import SqliteSearchStore

NOON = datetime(2026, 2, 1, 12, tzinfo=UTC)


def document(source: str, text: str = "", *, n: int = 0, **fields: Any) -> SearchDocument:
    """Return a document of a source; `n` distinguishes several."""
    made = SearchDocument(id=f"{source}#{n}", source_id=SourceId(source), kind="source", text=text, at=NOON)
    return replace(made, **fields)


def vector(degrees: float) -> bytes:
    """Return a direction in the plane."""
    turned = math.radians(degrees)
    return struct.pack("<2f", math.cos(turned), math.sin(turned))


async def ranked(finder: HybridSearch, text: str, limit: int) -> list[SourceId]:
    """Return the sources of the hits, best first."""
    return [hit.source_id for hit in await finder.find_passages(text, limit)]


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[tuple[SqliteSearchStore, SqliteDatabase]]:
    """Open a store in a folder."""
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        yield SqliteSearchStore(db, folder / "search.db"), db


class Directions:
    """An embedder that knows the direction of some texts; all others point the same way."""

    model = "m"
    dimensions = 2

    def __init__(self, known: Mapping[str, float] | None = None) -> None:
        self.known = known or {}
        self.asked: list[str] = []
        self.failure: ModelError | None = None

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        self.asked += texts
        if self.failure is not None:
            raise self.failure
        return [vector(self.known.get(text, 0)) for text in texts]
