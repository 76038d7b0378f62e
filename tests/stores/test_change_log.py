"""The change log: each name once, at its newest change, and nothing of another community."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from intern.stores.database import Transaction
from intern.stores.tables.change_log import ChangeLogEntry, log_changes, read_changes
from tests.engines import open_database

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]


async def test_a_follower_reads_each_name_once_at_its_newest_change(tmp_path: Path) -> None:
    def change(tx: Transaction) -> None:
        for kind, names in (("topic", ["b", "a"]), ("source", ["a"]), ("topic", ["b"])):
            log_changes(tx, kind, names)

    def all_after_the_first(tx: Transaction) -> list[ChangeLogEntry]:
        return read_changes(tx, 1, ["topic", "source"])

    def topics(tx: Transaction) -> list[ChangeLogEntry]:
        return read_changes(tx, 0, ["topic"])

    with anyio.fail_after(5):
        async with await open_database(tmp_path / "intern.db") as db:
            await db.write(change)
            await db.for_community("other").write(change)
            assert await db.read(all_after_the_first) == [
                ChangeLogEntry("source", "a", 2),
                ChangeLogEntry("topic", "b", 3),
            ]
            assert await db.read(topics) == [ChangeLogEntry("topic", "a", 1), ChangeLogEntry("topic", "b", 3)]
