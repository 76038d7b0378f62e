"""Indexing an indexed folder makes no call, and writes nothing anywhere in the data folder."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from anyio import fail_after

from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from intern.settings.settings import Settings
from tests.worlds.endpoint import endpoint_double

pytestmark = pytest.mark.anyio

FILES = 40


def traces(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the time and the content of each file."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        # The holder of the folder writes that down; SQLite's side files are there while it is open.
        if path.is_file() and not path.name.startswith(".lock") and not path.name.endswith(("-wal", "-shm"))
    }


async def indexed(settings: Settings) -> int:
    """Index, and return the number of descriptions."""
    async with open_intern(settings) as intern:
        return len((await intern.index()).changed)


@pytest.mark.rest
async def test_a_second_run_asks_nothing_and_writes_nothing_and_one_change_costs_one_call(tmp_path: Path) -> None:
    sources = tmp_path / "knowledge-base" / "sources"
    sources.mkdir(parents=True)
    for n in range(FILES):
        (sources / f"{n}.{'html' if n % 10 == 0 else 'md'}").write_text(f"<html><h1>Part {n}</h1><p>It is number {n}.")
    with endpoint_double() as endpoint, fail_after(60):
        settings = load_settings(
            environ={},
            overrides={"data": {"dir": str(tmp_path)}, "llm": {"base_url": endpoint.base_url, "model": "mock"}},
        )
        assert await indexed(settings) == FILES
        assert len(endpoint.requests) == FILES
        before = traces(tmp_path)

        assert await indexed(settings) == 0
        assert len(endpoint.requests) == FILES
        assert traces(tmp_path) == before

        (sources / "7.md").write_text("# Another part")
        assert await indexed(settings) == 1
        assert len(endpoint.requests) == FILES + 1
