"""Indexing writes below the data folder alone: a system without a writable temporary folder is fine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
import apsw

class NoTemporaryFolder(apsw.VFS):
    def __init__(self):
        super().__init__("no-temporary-folder", "", makedefault=True)

    def xOpen(self, name, flags):
        if name is None:
            raise apsw.CantOpenError("the temporary folder cannot be written to")
        return super().xOpen(name, flags)

vfs = NoTemporaryFolder()
from intern.frontends.cli import main
main()
"""


def intern(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": "",
        "TMPDIR": "/nonexistent",
        "SQLITE_TMPDIR": "/nonexistent",
        "INTERN__DATA__DIR": str(folder / "data"),
        "INTERN__EMBEDDINGS__PROVIDER": "none",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-c", CODE, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.rest
def test_indexing_and_searching_need_no_temporary_folder(tmp_path: Path) -> None:
    sources = tmp_path / "data" / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    for n in range(100):
        paragraphs = [f"Paragraph {m} of document {n} tells of the relay and its port.\n" * 8 for m in range(12)]
        (sources / f"{n}.md").write_text(f"# Document {n}\n\n" + "\n".join(paragraphs))
    indexed = intern(tmp_path, "index")
    assert (indexed.returncode, "I/O error" in indexed.stderr) == (0, False), indexed.stderr
    found = intern(tmp_path, "search", "relay", "port")
    assert found.returncode == 0, found.stderr
