"""The search file is a copy: it follows the database, and can be lost at any time."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import anyio
import apsw
import pytest
from anyio import fail_after
from anyio.to_thread import run_sync
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from intern.core.errors import KnowledgeError
from intern.core.ids import SourceId
from intern.core.search_documents import SearchDocument, SearchFilter
from intern.stores.database import Row
from intern.stores.engines.sqlite import database
from intern.stores.engines.sqlite.copies import copy_database
from intern.stores.search_file import search_index
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.tables.documents import DocumentStore
from tests.examples import examples
from tests.search.documents import document, opened, vector

pytestmark = pytest.mark.anyio

ALL = SearchFilter()
SOME = [
    document(f"kb:{n}", f"ports {n * 'and more '}安装驱动", n=n, part="text" if n % 3 else "description")
    for n in range(9)
]


async def found(store: SqliteSearchStore, word: str = "ports") -> list[str]:
    hits, *_ = await store.search_words([word], [], [], ALL, 100)
    return [hit.source_id for hit in hits]


async def everything(store: SqliteSearchStore) -> list[list[Row]]:
    """Return the whole content of the file, as rows."""
    file = await store.ensure_current()
    return [await file.rows(f"select * from {table} order by 1") for table in ("search_documents", "search_vectors")]


async def filled(folder: Path) -> list[list[Row]]:
    async with opened(folder) as (store, _):
        await store.replace_documents(SOME)
        await store.store_vectors("m", [(each, vector(n)) for n, each in enumerate(SOME[:5])])
        await store.delete_sources([SourceId("kb:3")])
        await store.replace_documents([replace(SOME[4], text="ports and others")])
        return await everything(store)


def lost(file: Path) -> None:
    file.unlink()


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def overwritten(file: Path) -> None:
    file.write_bytes(b"no database " * 1000)


def of_another_version(file: Path) -> None:
    raw: Any = apsw.Connection(str(file))
    raw.pragma("user_version", 999)
    raw.close()


@pytest.mark.parametrize("harm", [lost, emptied, overwritten, of_another_version])
async def test_a_file_that_cannot_be_used_is_made_again_just_as_it_was(tmp_path: Path, harm: object) -> None:
    with fail_after(20):
        before = await filled(tmp_path)
        assert callable(harm)
        harm(tmp_path / "search.db")
        async with opened(tmp_path) as (store, _):
            assert await everything(store) == before
            assert await store.count_unembedded("m") == len(SOME) - 1 - 3, (
                "no vector was lost but those of changed texts"
            )


async def test_a_file_that_turns_out_damaged_while_it_is_searched_is_made_again(tmp_path: Path) -> None:
    with fail_after(20):
        async with opened(tmp_path) as (store, _):
            await store.replace_documents(SOME)
            before = await found(store)
            damage = "delete from search_words_data"
            await (await store.ensure_current()).run(damage)
            assert await found(store) == before
            await (await store.ensure_current()).run(damage)
            await store.replace_documents([document("kb:new", "ports")])
            assert "kb:new" in await found(store)


async def test_the_file_of_another_database_is_not_used(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with fail_after(20):
        await filled(here)
        async with opened(there) as (store, _):
            await store.replace_documents([document("kb:theirs", "ports")])
        (here / "search.db").replace(there / "search.db")
        async with opened(there) as (store, _):
            assert await found(store) == ["kb:theirs"]


async def test_a_database_that_went_back_takes_its_search_with_it(tmp_path: Path) -> None:
    with fail_after(20):
        await filled(tmp_path)
        older = (tmp_path / "intern.db").read_bytes()
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([document("kb:later", "ports")])
            assert "kb:later" in await found(store)
        (tmp_path / "intern.db").write_bytes(older)
        async with opened(tmp_path) as (store, _):
            assert "kb:later" not in await found(store)


async def test_what_was_written_without_the_search_is_found_once_somebody_searches(tmp_path: Path) -> None:
    """As after a kill between the two commits, or beside a process that only writes."""
    with fail_after(20):
        async with opened(tmp_path) as (store, db):
            await store.replace_documents(SOME)
            beside = DocumentStore(db)
            await beside.delete_sources([each.source_id for each in SOME[1:]])
            await beside.replace_documents([document("kb:new", "ports"), replace(SOME[0], title="Ports")])
            assert sorted(await found(store)) == ["kb:0", "kb:new"]
            await beside.store_vectors("m", [(document("kb:new", "ports"), vector(3))])
            assert [hit.source_id for hit in await store.search_vector(vector(0), "m", ALL, 9)] == ["kb:new"]


async def test_another_community_is_neither_found_nor_changed(tmp_path: Path) -> None:
    with fail_after(20):
        async with opened(tmp_path) as (store, db):
            other = SqliteSearchStore(db.for_community("other"), tmp_path / "other.db")
            await store.replace_documents([document("kb:a", "ports")])
            await other.replace_documents([document("kb:a", "keys"), document("kb:b", "ports")])
            await other.store_vectors("m", [(document("kb:b", "ports"), vector(0))])
            assert await found(store) == ["kb:a"]
            assert await found(other) == ["kb:b"]
            assert await store.search_vector(vector(0), "m", ALL, 9) == ()
            await other.delete_sources([SourceId("kb:a")])
            assert await found(store) == ["kb:a"]
            assert await store.count_unembedded("m") == 1


async def test_a_file_that_cannot_be_opened_is_an_error_and_stays(tmp_path: Path) -> None:
    with fail_after(20):
        (tmp_path / "search.db").mkdir()
        async with opened(tmp_path) as (store, _):
            with pytest.raises(KnowledgeError):
                await found(store)
        assert (tmp_path / "search.db").is_dir()


def words(random: Random, number: int) -> str:
    """So many words, few of them twice."""
    return " ".join(f"w{random.randrange(10**6)}" for _ in range(number))


# Finding G1.
async def test_filling_the_file_for_the_first_time_reads_it_no_more_than_a_few_times(tmp_path: Path) -> None:
    """FTS5 deletes the pieces that it merged by a range of rows; a plan that scans for them reads the whole file."""
    random = Random(1)
    (tmp_path / "search.db").touch()  # or the tests' copy of ready-made tables would stand there
    with fail_after(60):
        async with opened(tmp_path) as (store, _):
            for batch in range(30):
                await store.replace_documents([document(f"kb:{batch}-{n}", words(random, 400)) for n in range(20)])
            file = await store.ensure_current()
            read = await file.write(bytes_read)
            assert read < 2 * (tmp_path / "search.db").stat().st_size


def bytes_read(tx: Any) -> int:
    """Return the bytes that the writer has read so far, without the pages that it still held."""
    misses, _ = tx._db.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)
    return int(misses) * 4096


# Finding G1.
@pytest.mark.parametrize("schema", [database.SCHEMA, search_index._SCHEMA])
async def test_the_connection_that_made_the_tables_looks_rows_up_by_their_number(tmp_path: Path, schema: Path) -> None:
    (tmp_path / "any.db").touch()
    async with await database.SqliteDatabase.open(
        tmp_path / "any.db", schema=await anyio.Path(schema).read_text()
    ) as db:
        tables = await db.write(
            lambda tx: tx.texts("select name from sqlite_schema where name like '%\\_data' escape '\\'")
        )
        assert tables or schema == database.SCHEMA
        for table in tables:
            statement = f"explain query plan delete from {table} where id >= ? and id <= ?"
            plan = await db.write(lambda tx, of=statement: tx.rows(of, (1, 2)))
            assert [str(row[-1]).split()[0] for row in plan] == ["SEARCH"], table


ACTS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "embed", "drop"]), st.integers(0, 3), st.integers(0, 3)), max_size=12
)


@settings(max_examples=examples(40), deadline=None)
@given(ACTS, st.randoms(use_true_random=False))
def test_the_file_is_what_a_rebuild_makes_however_often_it_followed(
    acts: list[tuple[str, int, int]], chance: Random
) -> None:
    async def law() -> None:
        with fail_after(30), tempfile.TemporaryDirectory() as folder:
            async with opened(Path(folder)) as (store, db):
                beside = DocumentStore(db)
                for act, n, more in acts:
                    await _act(chance.choice([beside, store]), act, n, more)
                before = await everything(store)
                await store.rebuild()
                assert await everything(store) == before

    anyio.run(law)


async def _act(documents: DocumentStore, act: str, n: int, more: int) -> None:
    made = list(_documents(n, more))
    if act == "put":
        await documents.replace_documents(made)
    elif act == "embed":
        await documents.store_vectors("m", [(each, struct.pack("<2f", 0, 1)) for each in made])
    else:
        await documents.delete_sources([SourceId(f"kb:{n}")])


def _documents(n: int, more: int) -> Iterator[SearchDocument]:
    for part in range(more):
        described = part == more % 2
        yield document(f"kb:{n}", f"ports {(n + more) % 2}", n=part, part="description" if described else "text")


async def test_a_backup_in_the_place_of_its_database_is_not_searched_as_what_came_after_it(tmp_path: Path) -> None:
    with fail_after(20):
        await filled(tmp_path)
        await run_sync(copy_database, tmp_path / "intern.db", tmp_path / "copy.db")
        async with opened(tmp_path) as (store, _):
            await store.replace_documents([document("kb:later", "ports")])
            assert "kb:later" in await found(store)
        (tmp_path / "copy.db").replace(tmp_path / "intern.db")
        async with opened(tmp_path) as (store, db):
            # As many changes as before: the position alone could not tell.
            await DocumentStore(db).replace_documents([document("kb:other", "ports")])
            hits = await found(store)
            assert "kb:other" in hits
            assert "kb:later" not in hits
