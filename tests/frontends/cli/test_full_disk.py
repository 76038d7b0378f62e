"""A disk that is really full, and one that is read-only: said aloud, nothing half-written, and mended by room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from anyio import run

from intern.core.captures import CapturedPair
from intern.core.decisions import PairFiled
from intern.core.errors import KnowledgeError
from intern.core.ids import TopicName
from intern.stores.archive import Archive
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.knowledge import KnowledgeChange
from tests.frontends.cli.conftest import Intern
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.knowledge import block_of, knowledge_in

SMALL = "4m"


def mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def unmount(path: Path) -> None:
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def disk(folder: Path) -> Generator[Path]:
    """A disk of its own, where the data folder lies."""
    path = folder / "data"
    path.mkdir()
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", f"size={SMALL}", "none", str(path)):
        pytest.skip("only root can mount a small disk")
    try:
        yield path
    finally:
        unmount(path)


def fill(disk: Path, leaving: int = 0) -> Path:
    """Take all room but so many bytes."""
    junk = disk / "junk"
    with junk.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(max(0, file.tell() - leaving))
    return junk


def document(disk: Path) -> None:
    sources = disk / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    (sources / "ports.md").write_text("# Ports\n\nThe relay listens on port 7480.\n")


def test_a_command_on_a_full_disk_ends_with_3_and_works_once_there_is_room(intern: Intern, disk: Path) -> None:
    document(disk)
    junk = fill(disk)
    ended = intern("index")
    assert ended.code == 3
    assert ended.err.startswith("intern: ")
    assert "free" in ended.err
    assert "Traceback" not in ended.err
    junk.unlink()
    assert intern("index").code == 0
    assert "ports.md" in (disk / "knowledge-base" / "index.txt").read_text()


def test_a_folder_that_may_not_be_written_to_is_named_and_can_still_be_read(intern: Intern, disk: Path) -> None:
    document(disk)
    assert intern("index").code == 0
    assert mount("-o", "remount,ro", str(disk))
    ended = intern("index")
    assert ended.code == 3
    assert "check" in ended.err
    assert "Traceback" not in ended.err
    assert intern("status").code == 0
    assert mount("-o", "remount,rw", str(disk))
    assert intern("index").code == 0


def test_an_archive_on_a_full_disk_keeps_what_it_holds_and_takes_the_next_once_there_is_room(disk: Path) -> None:
    archive = Archive(disk / "raw", clock=HandClock())
    first = archive.append(samples.capture())
    junk = fill(disk)
    with pytest.raises(KnowledgeError, match=r"No space left.*free space"):
        archive.append(samples.capture("Long?", "x" * 8192, n=2))
    assert list(Archive(disk / "raw").pairs_after(None)) == [first]
    junk.unlink()
    second = archive.append(samples.capture("Long?", "x" * 8192, n=2))
    assert list(Archive(disk / "raw").pairs_after(None)) == [first, second]


async def _filed_on_a_full_disk(disk: Path) -> None:
    async with knowledge_in(disk) as knowledge:
        old, new = samples.pair(), samples.pair("Long?", "x" * 500_000, n=2)
        at, name = HandClock().now(), TopicName("ports")

        def file(pair: CapturedPair) -> Callable[[KnowledgeChange], None]:
            def work(db: KnowledgeChange) -> None:
                db.decide(PairFiled(qa_id=pair.qa_id, topic=name, at=at))
                db.file_blocks(name, block_of(pair))

            return work

        await knowledge.change(file(old))
        junk = fill(disk)
        with pytest.raises(KnowledgeError, match=r"no space is left"):
            await knowledge.change(file(new))
        assert [block.qa_id for block in knowledge.read_topic(name)] == [old.qa_id]
        assert [type(knowledge.last_decision(each.qa_id)) for each in (old, new)] == [PairFiled, type(None)]
        junk.unlink()
        await knowledge.change(file(new))
        assert [block.qa_id for block in knowledge.read_topic(name)] == [old.qa_id, new.qa_id]


def test_a_topic_and_its_decisions_stay_as_they_were_on_a_full_disk(disk: Path) -> None:
    run(_filed_on_a_full_disk, disk)


def test_a_database_on_a_full_disk_says_so_and_goes_on_once_there_is_room(disk: Path) -> None:
    async def work() -> None:
        async with await SqliteDatabase.open(disk / "intern.db", schema="create table notes (text text) strict") as db:
            await db.write(lambda tx: tx.run("insert into notes values ('first')"))
            junk = fill(disk)
            with pytest.raises(KnowledgeError, match=r"no space is left for .*intern\.db; free some"):
                await db.write(lambda tx: tx.run("insert into notes values (?)", ("x" * 100_000,)))
            junk.unlink()
            await db.write(lambda tx: tx.run("insert into notes values ('second')"))
            assert await db.read(lambda tx: tx.rows("select text from notes")) == [("first",), ("second",)]

    run(work)
