"""The files of a folder as values."""

from __future__ import annotations

from pathlib import Path


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder by their names, without the database and the lock."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in found
        if not path.name.startswith(("intern.db", ".lock"))
    }
