"""Tokens add up by day and prompt, over restarts, and the usage counter can use the store as it is."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import anyio
import pytest

from intern.models.usage import UsageMeter, UsageStore
from intern.stores.tables.usage import UsageLog
from tests.engines import open_database

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

MONDAY = date(2026, 2, 2)
TUESDAY = date(2026, 2, 3)


async def test_tokens_add_up_by_day_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "intern.db"
    with anyio.fail_after(5):
        async with await open_database(path) as db:
            store: UsageStore = UsageLog(db)
            assert await store.read_spent(MONDAY) == (0, 0.0)
            await store.add(MONDAY, "gate", UsageMeter(1, 100, 10))
            await store.add(MONDAY, "gate", UsageMeter(2, 200, 20, cached_tokens=64))
            await store.add(MONDAY, "gate", UsageMeter(cached_tokens=32))
            await store.add(MONDAY, "answer", UsageMeter(1, 1000))
            await store.add(TUESDAY, "gate", UsageMeter(1, 1, 1))
        async with await open_database(path) as db:
            assert await UsageLog(db).read_spent(MONDAY) == (1330, 0.0)
            assert await UsageLog(db).read_spent(TUESDAY) == (2, 0.0)
            rows = await db.read(lambda tx: tx.rows("select prompt, calls from usage where day = '2026-02-02'"))
            assert sorted(rows) == [("answer", 1), ("gate", 3)]
            assert [each.cached_tokens for each in (await UsageLog(db).read_since(MONDAY))[MONDAY]] == [0, 96]
