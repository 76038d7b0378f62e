"""A backup is complete, of one moment, taken beside writers, and never half written."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from anyio import create_task_group, fail_after
from anyio.to_thread import run_sync

from intern.core.errors import ConfigError, KnowledgeError
from intern.service.backups import back_up
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from intern.stores.engines.sqlite.copies import find_broken_indexes, find_problems
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.documents import DocumentStore
from intern.stores.tables.recordings import RecordingStore, StoredRecording
from tests.search.documents import document

pytestmark = pytest.mark.anyio


def settings_in(folder: Path) -> Settings:
    return load_settings(environ={}, overrides={"data": {"dir": str(folder / "data")}})


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def filled(settings: Settings, n: int = 20) -> None:
    async with await SqliteDatabase.open(settings.paths.database) as db:
        await DocumentStore(db).replace_documents([document(f"kb:{i}", f"signing keys number {i}") for i in range(n)])


async def test_a_backup_holds_all_is_sound_and_can_be_opened_in_place_of_the_database(tmp_path: Path) -> None:
    settings, to = settings_in(tmp_path), tmp_path / "backup.db"
    with fail_after(20):
        await filled(settings)
        done = await run_sync(back_up, settings, to)
        assert (done.path, done.bytes) == (str(to), to.stat().st_size)
        assert done.beside == (str(settings.data.dir),)
        assert stat.S_IMODE(to.stat().st_mode) == 0o600
        assert find_problems(to, 3) == find_broken_indexes(to) == ()
        shutil.copy(to, tmp_path / "restored.db")
        async with await SqliteDatabase.open(tmp_path / "restored.db") as db:
            assert len(await DocumentStore(db).list_documents("source")) == 20
        assert names_in(tmp_path) == {"backup.db", "data", "restored.db"}


async def test_a_backup_holds_no_recording(tmp_path: Path) -> None:
    settings, to = settings_in(tmp_path), tmp_path / "backup.db"
    row = StoredRecording(kind="answer", subject="1", at="", outcome="", unfit="", about=(), recording=b"the zebrafish")
    with fail_after(20):
        await filled(settings)
        async with await SqliteDatabase.open(settings.paths.database) as db:
            await RecordingStore(db).save([row], {"a": b"zebrafish, too"})
        await run_sync(back_up, settings, to)
        assert find_problems(to, 3) == ()
        assert b"zebrafish" not in to.read_bytes()
        async with await SqliteDatabase.open(settings.paths.database) as db:
            assert await RecordingStore(db).find_recordings("1")


async def test_it_is_of_one_moment_while_others_write(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    with fail_after(30):
        async with await SqliteDatabase.open(settings.paths.database) as db:
            store = DocumentStore(db)
            wrote = 0

            async def write() -> None:
                nonlocal wrote
                while True:
                    # Both or none of each two.
                    await store.replace_documents([document(f"kb:{wrote}", "a " * 400), document(f"kb:{wrote}b", "b")])
                    wrote += 1

            async with create_task_group() as tg:
                tg.start_soon(write)
                for n in range(3):
                    before = wrote
                    await run_sync(back_up, settings, tmp_path / f"{n}.db")
                    async with await SqliteDatabase.open(tmp_path / f"{n}.db") as copy:
                        held = len(await DocumentStore(copy).list_documents("source"))
                    assert held % 2 == 0
                    assert held >= 2 * before
                tg.cancel_scope.cancel()


async def test_a_file_that_is_there_is_written_over_on_demand_only(tmp_path: Path) -> None:
    settings, to = settings_in(tmp_path), tmp_path / "backup.db"
    with fail_after(20):
        await filled(settings)
        to.write_text("mine")
        with pytest.raises(ConfigError, match="is there already"):
            back_up(settings, to)
        assert to.read_text() == "mine"
        back_up(settings, to, force=True)
        assert find_problems(to, 3) == ()


async def test_the_database_is_never_written_over_whatever_it_is_called(tmp_path: Path) -> None:
    settings, link = settings_in(tmp_path), tmp_path / "link.db"
    with fail_after(20):
        await filled(settings)
        link.symlink_to(settings.paths.database)
        hard = tmp_path / "hard.db"
        hard.hardlink_to(settings.paths.database)
        wal = settings.paths.database.with_name("intern.db-wal")
        for to in (settings.paths.database, link, hard, wal):
            with pytest.raises(ConfigError, match="the database itself"):
                back_up(settings, to, force=True)
        assert find_problems(settings.paths.database, 3) == ()


class Disk(NamedTuple):
    total: int
    used: int
    free: int


async def test_what_cannot_be_done_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_in(tmp_path)
    with pytest.raises(KnowledgeError, match="there is no database"):
        back_up(settings, tmp_path / "b.db")
    with fail_after(20):
        await filled(settings)
    with pytest.raises(ConfigError, match="there is no folder"):
        back_up(settings, tmp_path / "nowhere" / "b.db")
    with pytest.raises(ConfigError, match="is a folder"):
        back_up(settings, tmp_path)

    def full(_: Path) -> Disk:
        return Disk(100, 100, 0)

    monkeypatch.setattr(shutil, "disk_usage", full)
    with pytest.raises(KnowledgeError, match="no room"):
        back_up(settings, tmp_path / "b.db")
    assert names_in(tmp_path) == {"data"}


async def test_a_damaged_database_gives_no_backup(tmp_path: Path) -> None:
    settings, to = settings_in(tmp_path), tmp_path / "b.db"
    with fail_after(20):
        await filled(settings, 400)
    damage(settings.paths.database)
    with pytest.raises(KnowledgeError, match="damaged"):
        back_up(settings, to)
    assert not to.exists()
    assert names_in(tmp_path) == {"data"}


def damage(database: Path) -> None:
    """Overwrite some pages in the middle."""
    db: Any = apsw.Connection(str(database))
    db.pragma("wal_checkpoint(truncate)")
    db.close()
    held = bytearray(database.read_bytes())
    middle = len(held) // 2 // 4096 * 4096
    held[middle : middle + 5 * 4096] = b"\x5a" * (5 * 4096)
    database.write_bytes(bytes(held))
