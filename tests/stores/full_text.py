"""The full-text tables held against the documents that they are of."""

from __future__ import annotations

from intern.stores.database import Transaction
from intern.stores.search_file.search_index import SqliteSearchStore


async def check(store: SqliteSearchStore) -> None:
    """Raise KnowledgeError where they differ."""

    def work(tx: Transaction) -> None:
        for table in ("search_words", "search_trigrams"):
            tx.run(f"insert into {table} ({table}, rank) values ('integrity-check', 1)")

    await (await store.ensure_current()).write(work)
