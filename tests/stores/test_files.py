"""Data on disk is whole, also when the disk is full or the program dies at any step."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from intern.core.errors import KnowledgeError
from intern.stores.files import FileLayer
from tests.worlds.disk import KilledError, MortalDisk


class Recorded(FileLayer):
    """Tells the steps apart, in their order."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self.steps.append("write")
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self.steps.append("fsync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else "fsync")
        super().fsync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self.steps.append("rename")
        super().rename(old, new)


class FullDisk(FileLayer):
    """Takes a number of bytes, and then no more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = super().write(fd, data[: self.room])
        self.room -= taken
        return taken


def test_an_append_is_one_write_and_a_sync(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    files = Recorded()

    assert files.append_durably(path, b"new\n") == 4
    assert files.steps == ["write", "fsync"]
    assert path.read_bytes() == b"old\nnew\n"


def test_a_new_file_has_its_folders_on_disk_before_its_data(tmp_path: Path) -> None:
    files = Recorded()

    assert files.append_durably(tmp_path / "raw" / "deep" / "log", b"new\n") == 0
    assert files.steps == ["fsync folder"] * 3 + ["write", "fsync"]


def test_an_append_after_a_torn_tail_starts_on_a_fresh_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"torn")

    assert FileLayer().append_durably(path, b"new\n", fresh_line=True) == 5
    assert FileLayer().append_durably(path, b"newer\n", fresh_line=True) == 9
    assert path.read_bytes() == b"torn\nnew\nnewer\n"


@pytest.mark.parametrize("room", [0, 1, 5])
def test_a_full_disk_leaves_an_appended_file_as_it_was(tmp_path: Path, room: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"old")

    with pytest.raises(KnowledgeError, match=r"log could not be written \(No space left.*free space"):
        FullDisk(room).append_durably(path, b"something new\n", fresh_line=True)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("room", [0, 5])
def test_a_full_disk_leaves_a_replaced_file_as_it_was(tmp_path: Path, room: int) -> None:
    path = tmp_path / "topic.txt"
    path.write_bytes(b"old")

    with pytest.raises(KnowledgeError, match=r"topic\.txt could not be written"):
        FullDisk(room).write_atomically(path, b"something new\n")
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["topic.txt"]


def test_a_file_is_written_beside_synced_and_renamed(tmp_path: Path) -> None:
    files = Recorded()

    files.write_atomically(tmp_path / "topic.txt", b"new")
    assert files.steps == ["write", "fsync", "rename", "fsync folder"]


def test_a_reader_sees_the_old_file_or_the_new_one_wherever_the_writer_dies(tmp_path: Path) -> None:
    path = tmp_path / "topic.txt"
    seen: list[bytes] = []
    for step in range(4):
        path.write_bytes(b"old")
        with pytest.raises(KilledError):
            MortalDisk(step).write_atomically(path, b"new")
        seen.append(path.read_bytes())

    assert seen == [b"old", b"old", b"old", b"new"]
    MortalDisk(4).write_atomically(path, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["topic.txt"]


def test_a_missing_file_is_none_and_an_unreadable_one_is_an_error(tmp_path: Path) -> None:
    assert FileLayer().read(tmp_path / "nothing") is None
    with pytest.raises(KnowledgeError, match="could not be read"):
        FileLayer().read(tmp_path)


def test_to_remove_what_is_gone_is_fine(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    FileLayer().remove(tmp_path / "a")
    FileLayer().remove(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == []
