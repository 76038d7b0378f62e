"""A folder has one writer, and a dead one does not keep the next out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from intern.core.errors import FolderBusyError, KnowledgeError
from intern.stores.folder_lock import FolderLock


def test_a_second_writer_is_told_who_the_first_is_and_what_to_do(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "data") as first:
        assert first.is_held
        first.acquire()
        second = FolderLock(tmp_path / "data")
        with pytest.raises(FolderBusyError, match=rf"data is in use by process {os.getpid()}; stop that first"):
            second.acquire()
        assert not second.is_held
    with second:
        assert second.is_held


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    hold = (
        "import sys; from pathlib import Path; from intern.stores.folder_lock import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); lock.acquire(); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(FolderBusyError, match=f"process {other.pid};"):
            FolderLock(tmp_path).acquire()
        other.send_signal(signal.SIGKILL)
        other.wait()

        # The dead process's pid is still in the file; only the flock counts.
        assert (tmp_path / ".lock").read_text() == f"{other.pid}\n"
        with FolderLock(tmp_path):
            assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


def test_a_foreign_text_in_the_lock_file_is_no_pid(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("a text that is longer than any pid")
    with FolderLock(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
        (tmp_path / ".lock").write_text("rm -rf")
        with pytest.raises(FolderBusyError, match="in use by another process;"):
            FolderLock(tmp_path).acquire()


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(KnowledgeError, match="file could not be locked"):
        FolderLock(tmp_path / "file").acquire()
