"""Both engines are held to the contract of databases."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from intern.core.decisions import MessagesWithdrawn
from intern.core.ids import MessageId
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.knowledge import KnowledgeStore
from tests.contracts.database import DatabaseContract
from tests.engines import Opening, Server
from tests.worlds.samples import START

pytestmark = pytest.mark.anyio


class TestSqlite(DatabaseContract):
    @pytest.fixture
    def opening(self, tmp_path: Path) -> Opening:
        return partial(SqliteDatabase.open, tmp_path / "intern.db")


class TestPostgres(DatabaseContract):
    @pytest.fixture
    def opening(self, postgres: Server) -> Generator[Opening]:
        with postgres.schema() as name:
            yield postgres.opening(name)


async def test_postgres_makes_its_tables_and_keeps_what_was_decided(postgres: Server) -> None:
    withdrawn = MessagesWithdrawn(message_ids=(MessageId("1"),), at=START)
    with anyio.fail_after(10), postgres.schema() as name:
        async with await postgres.opening(name)() as db:
            knowledge = await run_sync(KnowledgeStore, db)
            await knowledge.change(lambda change: change.decide(withdrawn))
        async with await postgres.opening(name)() as db:
            assert (await run_sync(KnowledgeStore, db)).is_withdrawn(MessageId("1"))
