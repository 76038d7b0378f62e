"""`python -m tests.search.writing FOLDER`: puts documents and their vectors until it is killed.

It reports each on stdout once it is on disk. A text that changes loses its vector, and has the next one a moment later.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import anyio

from tests.search.documents import document, opened, vector

NAMES = 40


async def write(folder: Path) -> None:
    async with opened(folder) as (store, db):
        newest = "select coalesce(max(cast(stamp as integer)), 0) from documents"
        [(begun,)] = await db.read(lambda tx: tx.rows(newest))
        assert isinstance(begun, int)
        for n in count(begun + 1):
            name = f"kb:{n % NAMES}"
            parts = [document(name, f"text {n} of part {part}", n=part, stamp=str(n)) for part in range(3)]
            await store.replace_documents(parts)
            print("put", n, flush=True)
            await store.store_vectors("m", [(part, vector(n % 360)) for part in parts])
            print("vectors", n, flush=True)


if __name__ == "__main__":
    anyio.run(write, Path(sys.argv[1]))
