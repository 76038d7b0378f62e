"""The full-text tables equal a rebuild, after any inserts, deletions and vacuums."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest
from anyio import fail_after
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from intern.core.errors import KnowledgeError
from intern.core.ids import SourceId
from intern.core.search_documents import SearchDocument, SearchFilter
from intern.stores.database import Database, Transaction
from intern.stores.search_file.search_index import SqliteSearchStore
from tests.examples import examples
from tests.search.documents import NOON, document, opened, vector
from tests.stores.full_text import check

pytestmark = pytest.mark.anyio

ALL = SearchFilter()
SOME = [f"kb:{n}" for n in range(1, 5)]
UP = vector(90)


async def found(store: SqliteSearchStore, word: str, wanted: SearchFilter = ALL) -> list[str]:
    hits, _ = await store.search_words([word], [], [], wanted, 100)
    return [hit.source_id for hit in hits]


async def test_what_was_put_is_found_as_it_is_now(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([document("kb:a", "rotating keys"), document("kb:b", "ports")])
            assert await found(store, "rotation") == ["kb:a"]
            await store.replace_documents([document("kb:a", "all about ports")])
            assert await found(store, "rotation") == []
            assert sorted(await found(store, "port")) == ["kb:a", "kb:b"]
            await store.delete_sources([SourceId("kb:b"), SourceId("kb:never")])
            assert await found(store, "port") == ["kb:a"]
            await check(store)


async def test_what_is_counted_is_counted_anew_once_anybody_has_written(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _), opened(tmp_path) as (other, _):
            for writer, n in ((store, 1), (other, 2), (store, 3)):
                await writer.replace_documents([document(f"kb:{n}", "ports")])
                for each in (store, other, store):
                    assert await each.has_kinds(["source"])
            assert not await store.has_kinds(["nugget"])
            await other.replace_documents([document("nugget:1", "ports", kind="nugget")])
            assert await store.has_kinds(["nugget"])
            await store.delete_sources([SourceId("nugget:1")])
            assert not await store.has_kinds(["nugget"])
            assert not await other.has_kinds(["nugget"])


async def test_ids_are_those_of_the_best_though_one_source_has_most_of_what_matches(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([document("kb:many", "ports", n=n) for n in range(60)])
            await store.replace_documents([document(f"kb:{n}", f"ports {n * 50 * 'and more '}") for n in range(1, 5)])
            for limit, ids in ((1, ["kb:many"]), (3, ["kb:many", "kb:1", "kb:2"]), (9, ["kb:many", *SOME])):
                best, _ = await store.search_words(["xylophone", "ports"], [], [], ALL, limit)
                assert sorted(each.source_id for each in best) == sorted(ids)


async def test_each_part_is_found_where_it_is_wanted_also_once_a_document_is_of_the_other_part(tmp_path: Path) -> None:
    texts, descriptions = SearchFilter(part="text"), SearchFilter(part="description")
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            for n, source in enumerate(SOME):
                described = document(source, "ports", part="description")
                await store.replace_documents([described, document(source, "ports", n=1)] if n % 2 else [described])
            for wanted, sources in ((ALL, SOME), (descriptions, SOME), (texts, SOME[1::2])):
                assert sorted(await found(store, "port", wanted)) == sources
            await store.replace_documents(
                [document(SOME[0], "ports"), document(SOME[0], "ports", n=1, part="description")]
            )
            await store.replace_documents([document(SOME[1], "ports")])
            assert sorted(await found(store, "port", texts)) == [SOME[0], SOME[1], SOME[3]]
            assert sorted(await found(store, "port", descriptions)) == [SOME[0], *SOME[2:]]
            await check(store)


@pytest.mark.rest
async def test_many_puts_leave_pieces_that_are_one_once_optimized_and_the_same_is_found(tmp_path: Path) -> None:
    pieces = "select count(distinct segid) from search_{}_idx"
    with fail_after(10):
        async with opened(tmp_path) as (store, _):
            for n in range(40):
                await store.replace_documents([document(f"kb:{n}", f"{n * 'ports '} 端口轮换 {n}")])

            async def counted() -> list[Any]:
                return await (await store.ensure_current()).read(
                    lambda tx: [tx.row(pieces.format(each)) for each in ("words", "trigrams")]
                )

            assert min(n for (n,) in await counted()) > 4
            before = [await found(store, word) for word in ("port", "7", "端口轮换")]
            await store.optimize()
            assert await counted() == [(1,), (1,)]
            assert [await found(store, word) for word in ("port", "7", "端口轮换")] == before
            await check(store)
            await store.optimize()  # nothing to do is no trouble
            assert await counted() == [(1,), (1,)]


async def test_a_source_has_the_documents_that_were_put_last_and_no_others(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([document("kb:a", "one", n=0), document("kb:a", "two", n=1)])
            await store.replace_documents([document("kb:a", "one", n=0)])
            assert await found(store, "two") == []
            assert [each.id for each in await store.list_documents("source")] == ["kb:a#0"]


async def test_of_a_source_that_grew_only_what_is_new_is_indexed(tmp_path: Path) -> None:
    def pieces(tx: Transaction) -> list[object]:
        return [
            tx.rows(f"select id, block from {table}_data order by id") for table in ("search_words", "search_trigrams")
        ]

    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            first = document("kb:a", "one", n=0)
            await store.replace_documents([first])
            before = await (await store.ensure_current()).read(pieces)
            await store.replace_documents([replace(first, stamp="another")])
            assert await (await store.ensure_current()).read(pieces) == before
            assert [each.stamp for each in await store.list_documents("source")] == ["another"]
            await store.replace_documents([replace(first, title="Another")])
            assert await (await store.ensure_current()).read(pieces) != before
            assert await found(store, "another") == ["kb:a"]


async def test_a_source_is_found_once_by_its_best_document(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents(
                [document("kb:a", "ports and much else that is told here", n=0), document("kb:a", "ports", n=1)]
            )
            [hit], _ = await store.search_words(["ports"], [], [], ALL, 100)
            assert await store.read_documents([hit.document_id], ALL) == {
                hit.document_id: document("kb:a", "ports", n=1)
            }
            assert hit.score > 0
            assert await store.read_documents([hit.document_id], SearchFilter(kinds=("file",))) == {}


async def test_filters_leave_out_what_does_not_fit(tmp_path: Path) -> None:
    late = NOON + timedelta(microseconds=500)
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents(
                [
                    document("kb:a", "port", type="page"),
                    document("file:b", "port", kind="file", type="source_code", at=late),
                    document("file:c", "port", kind="file", type="services", status="summary_failed", at=late),
                ]
            )
            assert await found(store, "port", SearchFilter(kinds=("source",))) == ["kb:a"]
            assert await found(store, "port", SearchFilter(type="source_code")) == ["file:b"]
            assert await found(store, "port", SearchFilter(status="summary_failed")) == ["file:c"]
            assert await found(store, "port", SearchFilter(after=late, status="ok")) == ["file:b"]
            assert await found(store, "port", SearchFilter(before=late)) == ["kb:a"]


async def test_scripts_without_spaces_are_found_inside_of_words(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([document("kb:a", "如何安装GPU驱动程序"), document("kb:b", "GPU drivers")])
            none, *inside = await store.search_words([], ["驱动程"], ["安装"], ALL, 10)
            assert none == ()
            assert [[hit.source_id for hit in hits] for hits in inside] == [["kb:a"], ["kb:a"]]


async def test_what_sqlite_cannot_hold_is_no_error(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([document("kb:a", "a\0b \ud800 port", path="x\udcff")])
            assert await found(store, "port") == ["kb:a"]
            await check(store)


async def test_a_source_that_was_dropped_leaves_no_word_on_disk(tmp_path: Path) -> None:
    with fail_after(10):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents(
                [document(f"kb:{n}", f"word{n} xylophonist{n} 秘密の言葉") for n in range(50)]
            )
            await store.delete_sources([SourceId(f"kb:{n}") for n in range(50)])
            await store.scrub()
        held = (tmp_path / "search.db").read_bytes()
        assert b"xylophonist" not in held
        assert "秘密".encode() not in held


async def test_a_damaged_index_is_told_apart_from_one_that_holds_nothing(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([document("kb:a", "port")])
            assert await found(store, "nothing") == []

            def sneak(statement: str) -> None:
                raw: Any = apsw.Connection(str(tmp_path / "search.db"))
                raw.execute(statement)
                raw.close()

            sneak("insert into search_words (rowid, title, path, text) values (1, 'ghost', '', '')")
            with pytest.raises(KnowledgeError):
                await check(store)
            await rebuild(store)
            await check(store)


NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.text(st.sampled_from("abc 安装驱\"'\0-"), max_size=12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NAMES, st.lists(TEXTS, max_size=3)),
        st.tuples(st.just("drop"), NAMES, st.just([])),
        st.tuples(st.just("vacuum"), NAMES, st.just([])),
    ),
    max_size=12,
)


@settings(max_examples=examples(40), deadline=None)
@given(STEPS)
def test_any_sequence_of_changes_is_as_good_as_a_rebuild(steps: list[tuple[str, str, list[str]]]) -> None:
    async def law() -> None:
        with fail_after(20), tempfile.TemporaryDirectory() as folder:
            async with opened(Path(folder)) as (store, db):
                kept: dict[str, list[SearchDocument]] = {}
                for act, name, texts in steps:
                    await _act(store, db, (act, name, texts), kept)
                await check(store)
                stored = await store.list_documents("source")
                assert [each.id for each in stored] == sorted(each.id for put in kept.values() for each in put)
                before = await _all_found(store)
                await rebuild(store)
                assert await _all_found(store) == before

    anyio.run(law)


async def _act(
    store: SqliteSearchStore, db: Database, step: tuple[str, str, list[str]], kept: dict[str, list[SearchDocument]]
) -> None:
    act, name, texts = step
    if act == "put":
        documents = [document(name, text, n=n) for n, text in enumerate(texts)]
        await store.replace_documents(documents)
        if documents:
            kept[name] = documents
    elif act == "drop":
        await store.delete_sources([SourceId(name)])
        kept.pop(name, None)
    else:
        await store.scrub()


async def rebuild(store: SqliteSearchStore) -> None:
    """Make the full-text tables anew from the documents."""

    def work(tx: Transaction) -> None:
        for table in ("search_words", "search_trigrams"):
            tx.run(f"insert into {table} ({table}) values ('rebuild')")

    await (await store.ensure_current()).write(work)


async def _all_found(store: SqliteSearchStore) -> list[list[tuple[str, str, float]]]:
    asked: list[tuple[list[str], list[str]]] = [([word], []) for word in ("a", "b", "ab", "安装驱")]
    asked += [([], [gram]) for gram in ("安装驱", "装驱安")]
    found = [await store.search_words(words, grams, [], ALL, 100) for words, grams in asked]
    return [[(hit.document_id, hit.source_id, round(hit.score, 9)) for each in both for hit in each] for both in found]


async def test_the_documents_that_only_fill_are_never_found(tmp_path: Path) -> None:
    with fail_after(5):
        async with opened(tmp_path) as (store, _):
            assert await found(store, "zz") == []
            await store.replace_documents([document("kb:a", "zz top")])
            assert await found(store, "zz") == ["kb:a"]
            assert await store.count_documents() == 1
