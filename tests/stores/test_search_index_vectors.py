"""The search for similar vectors is exact, in each way of searching, and after any writes."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Sequence
from datetime import timedelta
from math import cos, sin
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import anyio
import apsw
import numpy as np
import pytest
from anyio import create_task_group, fail_after
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from numpy.typing import NDArray

from intern.core.ids import SourceId
from intern.core.memory import CacheBudget
from intern.core.search_documents import SearchDocument, SearchFilter, SearchKind
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.search_file.vector_index import VectorIndex
from tests.examples import examples
from tests.search.documents import NOON, document, opened, vector
from tests.stores.full_text import check

pytestmark = pytest.mark.anyio

ALL = SearchFilter()


async def alike(store: SqliteSearchStore, asked: bytes, wanted: SearchFilter = ALL, model: str = "m") -> list[str]:
    return [hit.source_id for hit in await store.search_vector(asked, model, wanted, 100)]


async def test_the_most_alike_come_first_and_filters_leave_out_the_others(tmp_path: Path) -> None:
    late = NOON + timedelta(microseconds=500)
    documents = [
        document("kb:a", "a"),
        document("nugget:b", "b", kind="nugget", status="FACT", guild_id="7", at=late),
        document("fact:c", "c", kind="fact", type="technical", status="active", visibility="private"),
        document("file:d", "d", kind="file", part="description", at=late),
    ]
    with fail_after(10):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents(documents)
            await store.store_vectors("m", [(each, vector(10 * n)) for n, each in enumerate(documents)])
            hits = await store.search_vector(vector(0), "m", ALL, 3)
            documents_at = await store.read_documents([hit.document_id for hit in hits], ALL)
            assert [documents_at[hit.document_id] for hit in hits] == documents[:3]
            assert [hit.score for hit in hits] == pytest.approx([math.cos(math.radians(10 * n)) for n in range(3)])
            near = vector(22)
            assert await alike(store, near) == ["fact:c", "file:d", "nugget:b", "kb:a"]
            for wanted, ids in {
                SearchFilter(kinds=("nugget", "fact")): ["fact:c", "nugget:b"],
                SearchFilter(part="description"): ["file:d"],
                SearchFilter(type="technical"): ["fact:c"],
                SearchFilter(status="FACT"): ["nugget:b"],
                SearchFilter(visibility="shared"): ["file:d", "nugget:b", "kb:a"],
                SearchFilter(guild_id="7"): ["nugget:b"],
                SearchFilter(after=late): ["file:d", "nugget:b"],
                SearchFilter(before=late): ["fact:c", "kb:a"],
                SearchFilter(kinds=("file",), before=late): [],
            }.items():
                assert await alike(store, near, wanted) == ids
            # Asked for, these alone.
            also = [SourceId("kb:a"), SourceId("file:d"), SourceId("kb:none")]
            told = [hit.source_id for hit in await store.search_vector(near, "m", ALL, 0, also=also)]
            assert told == ["file:d", "kb:a"]


async def test_a_source_is_found_once_by_the_document_that_is_most_alike(tmp_path: Path) -> None:
    with fail_after(10):
        async with opened(tmp_path) as (store, _):
            many = [document("kb:long", f"part {n}", n=n) for n in range(60)]
            await store.replace_documents([*many, document("kb:short", "short")])
            await store.store_vectors("m", [(each, vector(n)) for n, each in enumerate(many)])
            await store.store_vectors("m", [(document("kb:short", "short"), vector(80))])
            hits = await store.search_vector(vector(0), "m", ALL, 2)
            told = await store.read_documents([hit.document_id for hit in hits], ALL)
            assert [told[hit.document_id].id for hit in hits] == ["kb:long#0", "kb:short#0"]


async def test_vectors_of_different_models_are_never_compared(tmp_path: Path) -> None:
    with fail_after(10):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([document("kb:a", "a"), document("kb:b", "b"), document("kb:c", "c")])
            await store.store_vectors("old", [(document("kb:a", "a"), vector(0)), (document("kb:b", "b"), vector(1))])
            assert await alike(store, vector(0), model="new") == []
            await store.store_vectors("new", [(document("kb:b", "b"), vector(2))])
            assert await alike(store, vector(0), model="old") == ["kb:a"]
            assert await alike(store, vector(0), model="new") == ["kb:b"]
            # Nor what has more numbers than the vector that is asked for.
            await store.store_vectors("new", [(document("kb:c", "c"), vector(0) + struct.pack("<f", 0))])
            assert await alike(store, vector(0), model="new") == ["kb:b"]


async def test_what_has_no_vector_of_the_model_is_told_until_it_has(tmp_path: Path) -> None:
    with fail_after(10):
        async with opened(tmp_path) as (store, _):
            documents = [document(f"kb:{n}", f"text {n}") for n in range(5)]
            await store.replace_documents(documents)
            assert await store.find_unembedded("m", 2) == tuple(documents[:2])
            assert await store.store_vectors("m", [(each, vector(0)) for each in documents[:4]]) == 4
            assert await store.find_unembedded("m", 9) == (documents[4],)
            assert await store.find_unembedded("other", 9) == tuple(documents)


async def test_a_vector_goes_with_its_text_and_stays_when_that_is_put_again(tmp_path: Path) -> None:
    kept, changed = document("kb:kept", "as it was"), document("kb:changed", "before")
    with fail_after(10):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([kept, changed])
            await store.store_vectors("m", [(kept, vector(0)), (changed, vector(1))])
            assert await alike(store, vector(0)) == ["kb:kept", "kb:changed"]
            await store.replace_documents([replace(kept, status="pending", stamp="2"), replace(changed, text="after")])
            assert await alike(store, vector(0)) == ["kb:kept"]
            assert await alike(store, vector(0), SearchFilter(status="pending")) == ["kb:kept"]
            assert await alike(store, vector(0), SearchFilter(status="ok")) == []
            # The vector made meanwhile is of a text that is gone.
            assert await store.store_vectors("m", [(changed, vector(1)), (document("kb:gone"), vector(1))]) == 0
            assert [each.text for each in await store.find_unembedded("m", 9)] == ["after"]
            await store.delete_sources([SourceId("kb:kept")])
            assert await alike(store, vector(0)) == []


async def test_what_is_no_unit_vector_is_refused_and_nothing_of_it_is_kept(tmp_path: Path) -> None:
    ours = document("kb:a", "a")
    with fail_after(10):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([ours, document("kb:b", "b")])
            numbers = [(math.nan, 1.0), (math.inf, 0.0), (0.0, 0.0), (3.0, 4.0)]
            for blob in (*(struct.pack("<2f", *each) for each in numbers), b"", b"abc"):
                with pytest.raises(ValueError, match="kb:b"):
                    await store.store_vectors("m", [(ours, vector(0)), (document("kb:b", "b"), blob)])
            assert len(await store.find_unembedded("m", 9)) == 2


async def test_nothing_secret_can_be_put(tmp_path: Path) -> None:
    with fail_after(10):
        async with opened(tmp_path) as (store, _):
            with pytest.raises(apsw.ConstraintError):
                await store.replace_documents(
                    [document("fact:a", "the key under the mat", kind="fact", visibility="secret")]
                )
            assert await store.list_documents("fact") == ()


async def test_what_another_process_writes_is_found_without_reading_all_again(tmp_path: Path) -> None:
    vectors = VectorIndex(CacheBudget(10**6))
    with fail_after(20):
        async with opened(tmp_path) as (_, db), await SqliteDatabase.open(tmp_path / "intern.db") as other:
            ours, theirs = (SqliteSearchStore(each, tmp_path / "search.db") for each in (db, other))
            ours.vectors = vectors
            await theirs.replace_documents([document("kb:a", "a"), document("kb:b", "b")])
            await theirs.store_vectors("m", [(document("kb:a", "a"), vector(0)), (document("kb:b", "b"), vector(9))])
            assert await alike(ours, vector(0)) == ["kb:a", "kb:b"]
            before = vectors.reads
            await theirs.store_vectors("m", [(document("kb:a", "a"), vector(30))])
            assert await alike(ours, vector(0)) == ["kb:b", "kb:a"]
            await theirs.delete_sources([SourceId("kb:b")])
            assert await alike(ours, vector(0)) == ["kb:a"]
            assert vectors.reads == before
            assert vectors.held == 1


@pytest.mark.rest
async def test_after_a_change_most_vectors_stay_where_they_are(tmp_path: Path) -> None:
    documents = [document(f"kb:{n}", str(n)) for n in range(8_200)]
    wide = struct.pack("<64f", 1, *[0] * 63)
    with fail_after(60):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents(documents)
            # Each a little less alike: of equals, all would be put in order.
            turned = [(cos(n / 9000), sin(n / 9000)) for n in range(len(documents))]
            vectors = [struct.pack("<64f", *each, *[0] * 62) for each in turned]
            await store.store_vectors("m", list(zip(documents, vectors, strict=True)))
            assert store.vectors is None
            await store.search_vector(wide, "m", ALL, 1)
            await store.delete_sources([SourceId("kb:7")])
            tracemalloc.start()
            try:
                assert len(await store.search_vector(wide, "m", ALL, 3)) == 3
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 1.5 * len(documents) * len(wide) / 2, "one of two blocks, and columns of numbers"
            assert len(await alike(store, wide)) == 100


async def test_whoever_slept_through_too_many_changes_reads_all_again(tmp_path: Path) -> None:
    vectors = VectorIndex(CacheBudget(10**6))
    with fail_after(20):
        async with opened(tmp_path) as (_, db):
            store = SqliteSearchStore(db, tmp_path / "search.db")
            store.vectors = vectors
            await store.replace_documents([document("kb:a", "a"), document("kb:b", "b")])
            await store.store_vectors("m", [(document("kb:a", "a"), vector(0)), (document("kb:b", "b"), vector(9))])
            assert await alike(store, vector(0)) == ["kb:a", "kb:b"]
            await store.store_vectors("m", [(document("kb:a", "a"), vector(30))])
            file = await store.ensure_current()
            await file.write(
                lambda tx: tx.run(
                    "insert into search_changes (rid) with recursive n (i) as"
                    " (select 1 union all select i + 1 from n where i < 9000) select 12345 from n"
                )
            )
            [held] = await file.rows("select count(*) from search_changes")
            assert held == (8192,)
            assert await alike(store, vector(0)) == ["kb:b", "kb:a"]
            assert vectors.reads == 2


async def test_many_looks_at_once_share_one_copy(tmp_path: Path) -> None:
    vectors = VectorIndex(CacheBudget(10**6))
    with fail_after(20):
        async with opened(tmp_path) as (_, db):
            store = SqliteSearchStore(db, tmp_path / "search.db")
            store.vectors = vectors
            await store.replace_documents([document("kb:a", "a")])
            await store.store_vectors("m", [(document("kb:a", "a"), vector(0))])
            async with create_task_group() as tg:
                for _ in range(8):
                    tg.start_soon(alike, store, vector(0))
            assert vectors.reads == 1


async def test_communities_share_the_room_and_the_one_asked_least_recently_reads_again(tmp_path: Path) -> None:
    one = len(vector(0))
    room = CacheBudget(2 * one)
    with fail_after(20):
        async with opened(tmp_path) as (_, db):
            stores = [SqliteSearchStore(db.for_community(n), tmp_path / f"{n}.db", room=room) for n in "abc"]
            for store in stores:
                await store.replace_documents([document("kb:a", "a")])
                await store.store_vectors("m", [(document("kb:a", "a"), vector(0))])
            a, b, c = stores
            for store in (a, b, a, c, a, b):
                assert await alike(store, vector(0)) == ["kb:a"]
                assert room.held <= 2 * one
            held = [(each.vectors.held, each.vectors.reads) for each in stores if each.vectors is not None]
            assert held == [(1, 1), (1, 2), (0, 1)]
        assert room.held == 0, "all are closed"


@pytest.mark.rest
# Finding G8.
async def test_of_many_vectors_only_the_best_are_put_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_order, lexsort = list[int](), np.lexsort

    def count(keys: Sequence[NDArray[Any]]) -> NDArray[Any]:
        put_in_order.append(len(keys[0]))
        return lexsort(keys)

    monkeypatch.setattr(np, "lexsort", count)
    with fail_after(20):
        async with opened(tmp_path) as (store, _):
            documents = [document(f"kb:{n}") for n in range(360)]
            await store.replace_documents(documents)
            await store.store_vectors("m", [(each, vector(n)) for n, each in enumerate(documents)])
            assert await alike(store, vector(90)) != []
            put_in_order.clear()
            hits = await store.search_vector(vector(90), "m", ALL, 5)
    assert {hit.source_id for hit in hits} == {f"kb:{n}" for n in range(88, 93)}
    assert sum(put_in_order) <= 5 * 4 + 1


def test_whoever_searches_by_words_alone_does_not_load_numpy() -> None:
    code = (
        "import sys, intern.service, intern.search.hybrid_search, intern.stores.search_file.search_index;"
        "print('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"False\n"


SOURCES = 5
KINDS: tuple[SearchKind, ...] = ("source", "file", "nugget", "fact")
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "embed", "embed", "embed", "other model", "drop", "vacuum", "look", "look"]),
        st.integers(0, SOURCES - 1),
        st.integers(0, 3),
    ),
    max_size=25,
)


class Known(NamedTuple):
    """The expected content."""

    documents: dict[str, list[SearchDocument]]
    vectors: dict[str, tuple[str, bytes]]


@settings(max_examples=examples(30), deadline=None)
@given(ACTS, st.randoms(use_true_random=False))
def test_after_any_sequence_of_changes_likeness_is_as_computed_one_by_one(
    acts: list[tuple[str, int, int]], chance: Random
) -> None:
    async def law() -> None:
        with fail_after(30), tempfile.TemporaryDirectory() as folder:
            async with opened(Path(folder)) as (store, db):
                reading = SqliteSearchStore(db, Path(folder) / "search.db")
                reading.vectors = VectorIndex(CacheBudget(0))  # holds nothing: reads the disk each time
                known = Known({}, {})
                for act, n, more in acts:
                    await _act(store, known, act, f"kb:{n}", more)
                    if act == "vacuum":
                        await store.scrub()
                    await _agree([store], known, vector(n * 70 + more), ALL)
                    if act == "look":
                        asked, wanted = vector(chance.randrange(360)), SearchFilter(kinds=(KINDS[more],), part="text")
                        await _agree([store, reading], known, asked, wanted if n % 2 else ALL)
                await check(store)
                await _agree(
                    [store, reading, SqliteSearchStore(db, Path(folder) / "search.db")], known, vector(17), ALL
                )

    anyio.run(law)


async def _act(store: SqliteSearchStore, known: Known, act: str, name: str, more: int) -> None:
    if act == "put":
        before = {each.id: each.text for each in known.documents.get(name, [])}
        made = [document(name, "same" if n else f"text {more}", n=n, kind=KINDS[more]) for n in range(more + 1)]
        await store.replace_documents(made)
        known.documents[name] = made
        for id_ in before.keys() - {each.id for each in made if each.text == before.get(each.id)}:
            known.vectors.pop(id_, None)
    elif act in {"embed", "other model"}:
        model = "m" if act == "embed" else "other"
        for each in known.documents.get(name, [])[:2]:
            known.vectors[each.id] = (model, vector(more * 50 + len(each.text)))
            assert await store.store_vectors(model, [(each, known.vectors[each.id][1])]) == 1
    elif act == "drop":
        await store.delete_sources([SourceId(name)])
        for each in known.documents.pop(name, []):
            known.vectors.pop(each.id, None)


async def _agree(stores: Sequence[SqliteSearchStore], known: Known, asked: bytes, wanted: SearchFilter) -> None:
    best: dict[str, float] = {}
    for each in (each for documents in known.documents.values() for each in documents):
        model, blob = known.vectors.get(each.id, ("", b""))
        if model == "m" and (not wanted.kinds or each.kind in wanted.kinds):
            likeness = dot(asked, blob)
            best[each.source_id] = max(best.get(each.source_id, -2), likeness)
    order = sorted(best.values(), reverse=True)
    for store in stores:
        hits = await store.search_vector(asked, "m", wanted, SOURCES)
        assert {hit.source_id: hit.score for hit in hits} == pytest.approx(best, abs=1e-5)
        assert [hit.score for hit in hits] == pytest.approx(order, abs=1e-5)
        [first, *_] = [*await store.search_vector(asked, "m", wanted, 1), None]
        assert (first is None) == (not best)
        assert first is None or first.score == pytest.approx(order[0], abs=1e-5)


def numbers(blob: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(blob) // 4}f", blob)


def dot(one: bytes, other: bytes) -> float:
    return sum(a * b for a, b in zip(numbers(one), numbers(other), strict=True))
