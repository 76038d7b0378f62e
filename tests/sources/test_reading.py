"""Why a file has no text: what the system says becomes the trouble that discovery remembers."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from intern.sources.scanning import FileUnreadableError, ReadProblem, _unreadable_error, read_file


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        (errno.EACCES, "permission_denied"),
        (errno.EPERM, "permission_denied"),
        (errno.ENOENT, "gone"),
        (errno.ENOTDIR, "gone"),
        (errno.ELOOP, "gone"),
    ],
)
def test_what_may_not_be_read_is_told_from_what_is_gone(code: int, trouble: ReadProblem) -> None:
    # Made here: for root, who may run this, the system denies nothing.
    error = _unreadable_error(OSError(code, os.strerror(code)))
    assert (error.trouble, str(error)) == (trouble, os.strerror(code))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_is_denied_with_the_systems_reason(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("text")
    path.chmod(0)
    with pytest.raises(FileUnreadableError, match="Permission denied"):
        read_file(str(path))


def test_a_file_that_is_not_there_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileUnreadableError, match="No such file or directory") as raised:
        read_file(str(tmp_path / "a.md"))
    assert raised.value.trouble == "gone"
