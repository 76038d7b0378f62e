"""Vectors that were paid for are remembered, and unused ones are deleted."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio import fail_after

from intern.core.ids import MessageId
from intern.stores.tables.vector_cache import VectorMemory
from tests.engines import open_database
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]


async def test_a_vector_is_remembered_by_its_key(tmp_path: Path) -> None:
    with fail_after(5):
        async with await open_database(tmp_path / "intern.db") as db:
            memory = VectorMemory(db, clock=HandClock())
            assert await memory.recall(["a"]) == {}
            await memory.remember({"a": b"1", "b": b"2"})
            await memory.remember({"b": b"3"})
        async with await open_database(tmp_path / "intern.db") as db:
            assert await VectorMemory(db, clock=HandClock()).recall(["b", "a", "c"]) == {"a": b"1", "b": b"3"}


async def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    clock = HandClock()
    async with await open_database(tmp_path / "intern.db") as db:
        memory = VectorMemory(db, clock=clock)
        memory.most = 2
        with fail_after(5):
            await memory.remember({"a": b"1"})
            clock.turn(days=1)
            await memory.remember({"b": b"2"})
            clock.turn(days=2)
            assert await memory.recall(["a"])
            await memory.remember({"c": b"3"})
            assert set(await memory.recall(["a", "b", "c"])) == {"a", "c"}


async def test_forgetting_leaves_no_vector(tmp_path: Path) -> None:
    async with await open_database(tmp_path / "intern.db") as db:
        memory = VectorMemory(db, clock=HandClock())
        with fail_after(5):
            await memory.remember({"a": b"1"})
            await memory.forget([])
            assert await memory.recall(["a"])
            await memory.forget([MessageId("1")])
            assert await memory.recall(["a"]) == {}
