"""SIGKILL in the middle of writing documents and vectors: what was on disk is there, whole, and all of it is true."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import anyio
import pytest
from anyio import fail_after
from anyio.streams.buffered import BufferedByteReceiveStream

from intern.core.search_documents import SearchFilter
from tests.search.documents import opened, vector
from tests.search.writing import NAMES
from tests.stores.full_text import check

LIVES = 6

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.on_asyncio,
]  # the tested code is in another process


@pytest.mark.rest
async def test_a_writer_that_is_killed_loses_nothing_that_it_had_told_of(tmp_path: Path) -> None:
    chance = Random(6)
    told: dict[str, set[int]] = {"put": set(), "vectors": set()}
    for _ in range(LIVES):
        before = len(told["vectors"])
        await _killed_after(chance.randrange(5, 150), tmp_path, told)
        assert len(told["vectors"]) > before
        await _all_is_there(tmp_path, told)


async def _killed_after(lines: int, folder: Path, told: dict[str, set[int]]) -> None:
    command = [sys.executable, "-m", "tests.search.writing", str(folder)]
    async with await anyio.open_process(command, cwd=Path(__file__).parents[2], stderr=None) as writer:
        assert writer.stdout is not None
        said = BufferedByteReceiveStream(writer.stdout)

        async def hear() -> None:
            what, n = (await said.receive_until(b"\n", 99)).decode().split()
            told[what].add(int(n))

        try:
            for _ in range(lines):
                await hear()
        finally:
            writer.kill()
        with suppress(anyio.IncompleteRead, anyio.EndOfStream):
            while True:  # the writes that it had reported before it died
                await hear()


async def _all_is_there(folder: Path, told: dict[str, set[int]]) -> None:
    with fail_after(30):
        async with opened(folder) as (store, db):
            await check(store)
            assert await db.read(lambda tx: tx.rows("pragma integrity_check")) == [("ok",)]
            assert await db.read(lambda tx: tx.rows("pragma foreign_key_check")) == []
            stamps = {str(name): int(stamp) for name, stamp in (await store.stamps("source")).items()}
            # All reported writes, and those on disk when it died before the report.
            newest = max(stamps.values())
            assert max(told["put"]) <= newest <= max(told["put"]) + 1
            assert stamps == {f"kb:{n % NAMES}": n for n in range(1, newest + 1)}
            documents = await store.list_documents("source")
            assert len(documents) == 3 * len(stamps)
            assert all(each.text.startswith(f"text {each.stamp} of part") for each in documents)
            hits = await store.search_vector(vector(0), "m", SearchFilter(), 1000)
            alike = {str(hit.source_id): hit.score for hit in hits}
            missing = {str(each.source_id) for each in await store.find_unembedded("m", 1000)}
            assert alike.keys() == stamps.keys() - missing
            assert not any(stamps[name] in told["vectors"] for name in missing)
            for name, likeness in alike.items():
                assert likeness == pytest.approx(math.cos(math.radians(stamps[name] % 360)), abs=1e-5)
