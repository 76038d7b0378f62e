"""The archive in the database has what its files would have, for the next process, too."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.core.captures import Capture, CapturedPair, Turn
from intern.core.ids import ConversationId, MessageId
from intern.stores.archive import Archive
from intern.stores.database import Database
from intern.stores.tables.database_archive import DatabaseArchive
from tests.engines import open_database
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

NOW = datetime(2026, 2, 1, 3, 10, 56, tzinfo=UTC)
FIRST = Capture(
    conversation_id=ConversationId("thread_1"),
    turns=(Turn("User", "how?\0é"), Turn("Team", "so")),
    message_ids=(MessageId("11"), MessageId("12")),
    answered_at=NOW,
)
SECOND = replace(FIRST, conversation_id=ConversationId("thread_2"), message_ids=(MessageId("21"), MessageId("22")))


async def opened(db: Database, clock: HandClock, community: str = "rust") -> Archive:
    return await run_sync(partial(DatabaseArchive, db.for_community(community), clock=clock))


def pairs(archive: Archive) -> list[CapturedPair]:
    return list(archive.pairs_after(None))


async def test_it_reads_erases_and_exports_as_the_files_do_and_is_of_one_community(tmp_path: Path) -> None:
    clock, there = HandClock(NOW), HandClock(NOW)
    async with await open_database(tmp_path / "intern.db") as db:
        stored, filed = await opened(db, clock), Archive(tmp_path / "raw", clock=there)
        for capture in (FIRST, SECOND):
            assert await run_sync(stored.append, capture) == filed.append(capture)
            clock.turn(seconds=8 * 24 * 3600)
            there.turn(seconds=8 * 24 * 3600)
        later = await opened(db, clock)
        for archive in (stored, later):
            assert await run_sync(pairs, archive) == pairs(filed)
            assert archive.find_conversations(MessageId("21")) == ("thread_2",)
        assert len(await opened(db, clock, "other")) == 0

        await run_sync(later.copy_to, tmp_path / "export")
        weeks = sorted(path.name for path in (tmp_path / "raw").iterdir())
        assert [(tmp_path / "export" / each).read_bytes() for each in weeks] == [
            (tmp_path / "raw" / each).read_bytes() for each in weeks
        ]

        # What another process erased is seen when the archive is read again.
        before = await run_sync(stored.file_stamps)
        assert await run_sync(later.erase, [MessageId("11"), MessageId("22")]) == filed.erase(
            [MessageId("11"), MessageId("22")]
        )
        assert await run_sync(stored.file_stamps) != before
        await run_sync(stored.reload)
        for archive in (stored, later):
            assert await run_sync(pairs, archive) == pairs(filed)
