"""Skipped sources: readable at any time, and logged once for each reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after
from anyio.to_thread import run_sync
from structlog.testing import capture_logs

from intern.sources.source_folder import SkippedFile, drop_hidden_files
from intern.stores.tables.skipped_sources import SkippedKind, SkippedSource, SkippedSourceStore, read_skipped_sources
from tests.engines import ON_SQLITE, open_database
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

BIG, LATIN = SkippedFile("big.md", "it is too big"), SkippedFile("latin.md", "it is not UTF-8 text")


async def logged(store: SkippedSourceStore, kind: SkippedKind, *skipped: SkippedFile) -> Sequence[Any]:
    with capture_logs() as log:
        await store.save(kind, skipped)
    assert {each["log_level"] for each in log} <= {"warning"}
    return [(each["event"], each["source_id"], each["reason"]) for each in log]


async def test_each_is_logged_once_and_again_for_another_reason_after_it_was_well_and_after_a_start(
    tmp_path: Path,
) -> None:
    with fail_after(5):
        for _ in range(2):
            async with await open_database(tmp_path / "intern.db") as db:
                store = SkippedSourceStore(db, clock=HandClock())
                big, latin = (("document_left_out", *each) for each in (BIG, LATIN))
                assert await logged(store, "document", BIG, LATIN) == [big, latin]
                assert await logged(store, "document", LATIN, BIG) == []
                empty = SkippedFile("latin.md", "it is empty")
                assert await logged(store, "document", empty) == [("document_left_out", *empty)]
                assert await logged(store, "document", empty, BIG) == [big]
                link = SkippedFile("links.txt:2", "'big.md': no address")
                assert await logged(store, "link", link) == [("link_left_out", *link)]
                assert await logged(store, "document", empty, BIG) == []


@ON_SQLITE
async def test_all_are_kept_with_the_time_since_when_for_a_reason_and_nothing_is_written_where_nothing_changed(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    began = clock.now()
    with fail_after(5):
        async with await open_database(tmp_path / "intern.db") as db:
            store = SkippedSourceStore(db, clock=clock)
            await store.save("document", [BIG, LATIN])
            await store.save("link", [SkippedFile("links.txt:2", "no address")])
            version = await db.read(lambda tx: tx.row("pragma data_version"))
            clock.turn(hours=1)
            await store.save("document", [LATIN, BIG])
            await SkippedSourceStore(db, clock=clock).save("document", [LATIN, BIG])
            assert await db.read(lambda tx: tx.row("pragma data_version")) == version
            await store.save("document", [BIG, LATIN._replace(reason="it is empty")])
            assert await run_sync(read_skipped_sources, db) == (
                SkippedSource("document", "big.md", "it is too big", began),
                SkippedSource("document", "latin.md", "it is empty", began + timedelta(hours=1)),
                SkippedSource("link", "links.txt:2", "no address", began),
            )
            await store.save("document", [])
            assert [each.kind for each in await run_sync(read_skipped_sources, db)] == ["link"]


def test_hidden_and_temporary_files_are_missed_by_nobody() -> None:
    skipped = [SkippedFile(path, "why") for path in (".git", "a/.b.md", "a/b.md~", "#c.md#", "~$d.docx")]
    assert drop_hidden_files([*skipped, BIG]) == [BIG]


async def test_a_folder_of_pictures_does_not_flood_the_log_and_secrets_of_the_list_stand_in_neither(
    tmp_path: Path,
) -> None:
    key = "sk-proj-" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY"
    with fail_after(5):
        async with await open_database(tmp_path / "intern.db") as db:
            store = SkippedSourceStore(db, clock=HandClock())
            with capture_logs() as log:
                await store.save("document", [SkippedFile(f"{n:03}.png", "no document") for n in range(120)])
            assert (len(log), log[-1]["event"], log[-1]["more"]) == (51, "documents_left_out", 70)
            with capture_logs() as log:
                await store.save("link", [SkippedFile("links.txt:1", f"'ftp://x/?key={key}': no address")])
            assert key not in str(log) + str(await run_sync(read_skipped_sources, db))
            assert len(await run_sync(read_skipped_sources, db)) == 121
