"""The search is kept true to what is listed."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest

from intern.core.ids import SourceId
from intern.sources.catalogue import SourceContent, update_search_index
from intern.stores.source_cache import CachedFile
from tests.search.documents import opened
from tests.stores.full_text import check


async def read(source_id: SourceId) -> SourceContent:
    return SourceContent("", [("", f"how to rotate the ports of {source_id}")])


def listed(n: int) -> dict[SourceId, CachedFile]:
    at = datetime(2026, 2, 1, tzinfo=UTC)
    return {
        SourceId(f"kb:{each}.md"): CachedFile(
            rel_path=f"{each}.md", size_bytes=1, version=1, content_hash="1", summary_text="ports", last_indexed_at=at
        )
        for each in range(n)
    }


@pytest.mark.rest
async def test_after_many_sources_came_a_search_looks_into_one_piece_and_a_few_more_are_only_added(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (store, _):

        async def pieces() -> int:
            row = await (await store.ensure_current()).row("select count(distinct segid) from search_words_idx")
            return int(str((row or (0,))[0]))

        assert await update_search_index(store, listed(200), read) == 200
        assert await pieces() == 1
        assert await update_search_index(store, listed(203), read) == 3
        assert await pieces() > 1  # to merge all for each of them would write all for each
        assert await update_search_index(store, listed(203), read) == 0
        assert await update_search_index(store, listed(3203), read) == 3000
        assert await pieces() == 1
        assert await update_search_index(store, listed(3303), read) == 100  # no more than one of twenty
        assert await pieces() > 1
        await check(store)


# Finding G1.
@pytest.mark.parametrize("fails", [False, True])
async def test_the_file_has_a_larger_cache_only_while_many_sources_are_put(tmp_path: Path, *, fails: bool) -> None:
    seen = set[int]()
    async with opened(tmp_path) as (store, _):

        async def kilobytes() -> int:
            return -await (await store.ensure_current()).write(lambda tx: tx.number("pragma cache_size"))

        async def read_and_look(source_id: SourceId) -> SourceContent:
            seen.add(await kilobytes())
            if fails:
                raise ZeroDivisionError
            return await read(source_id)

        usual = await kilobytes()
        with pytest.raises(ZeroDivisionError) if fails else nullcontext():
            await update_search_index(store, listed(70), read_and_look)
        assert min(seen) > 4 * usual
        assert await kilobytes() == usual
