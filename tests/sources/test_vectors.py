"""Every document gets a vector of the model in use, whatever fails, changes or dies meanwhile."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from anyio import create_task_group, fail_after, wait_all_tasks_blocked

from intern.actors.upkeep import regularly
from intern.core.errors import ModelRefusedError, ModelUnavailableError
from intern.core.ids import SourceId
from intern.core.records import SearchDocument, SearchFilter
from intern.sources.catalogue import Embedding, embedded_text
from intern.stores.sqlite.database import Database
from intern.stores.sqlite.search_index import SqliteSearchStore

pytestmark = pytest.mark.anyio

NORTH, EAST = struct.pack("<2f", 0, 1), struct.pack("<2f", 1, 0)


class Compass:
    """Texts about the north point there, others to the east."""

    dimensions = 2

    def __init__(self, model: str = "compass-1") -> None:
        self.model = model
        self.asked: list[list[str]] = []
        self.away = 0
        self.refuses = "\0"

    async def embed(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        self.asked.append(list(texts))
        if self.away:
            self.away -= 1
            raise ModelUnavailableError("the endpoint is down")
        if any(self.refuses in text for text in texts):
            raise ModelRefusedError("the endpoint will not take this")
        return [NORTH if "north" in text else EAST for text in texts]


def document(n: int, text: str, title: str = "") -> SearchDocument:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return SearchDocument(id=f"kb:{n}#1", source_id=SourceId(f"kb:{n}"), kind="source", title=title, text=text, at=at)


def documents(count: int) -> list[SearchDocument]:
    return [document(n, f"{'north' if n % 2 else 'south'} {n}") for n in range(count)]


async def like(store: SqliteSearchStore, model: str = "compass-1") -> list[str]:
    hits = await store.by_vector(NORTH, model, SearchFilter(), 100)
    told = await store.documents_at([hit.document_id for hit in hits], SearchFilter())
    return [told[hit.document_id].text for hit in hits]


async def test_all_documents_get_their_vectors_some_at_a_time(tmp_path: Path) -> None:
    async with await Database.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        with fail_after(5):
            await store.put(documents(300))
            await Embedding(store, compass).all()
            assert [len(texts) for texts in compass.asked] == [128, 128, 44]
            assert all("north" in text for text in (await like(store))[:100])
            await Embedding(store, compass).all()  # as after a restart
        assert len(compass.asked) == 3


async def test_identical_texts_that_stand_far_apart_are_embedded_once(tmp_path: Path) -> None:
    async with await Database.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        with fail_after(5):
            await store.put([*documents(200), *(document(200 + n, "north 1") for n in range(200))])
            embedding = Embedding(store, compass)
            await embedding.all()
            assert [len(texts) for texts in compass.asked] == [128, 72]
            assert await embedding.missing() == 0
            assert len(await like(store)) == 100
            await store.put([document(400, "north 1")])
            await embedding.all()
        assert compass.asked[2:] == [["north 1"]]  # nothing is kept once all is done


async def test_another_model_makes_all_anew_and_old_vectors_are_no_answer_to_it(tmp_path: Path) -> None:
    async with await Database.open(tmp_path / "intern.db") as db:
        store = SqliteSearchStore(db, tmp_path / "search.db")
        with fail_after(5):
            await store.put(documents(140))
            await Embedding(store, Compass()).all()
            newer = Embedding(store, Compass("compass-2"))
            assert await newer.some() == 128
            assert len(await like(store)) == 12  # what is still to come
            assert len(await like(store, "compass-2")) == 100
            await newer.all()
            assert await like(store) == []


async def test_a_text_that_changed_gets_another_vector(tmp_path: Path) -> None:
    async with await Database.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        with fail_after(5):
            await store.put([document(1, "south")])
            await Embedding(store, compass).all()
            await store.put([document(1, "north")])
            await Embedding(store, compass).all()
        assert compass.asked == [["south"], ["north"]]


async def test_a_text_that_is_refused_holds_up_no_other_and_is_not_asked_again(tmp_path: Path) -> None:
    async with await Database.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        compass.refuses = "south 44"
        with fail_after(5):
            await store.put(documents(50))
            embedding = Embedding(store, compass)
            await embedding.all()
            assert len(await like(store)) == 49
            asked = len(compass.asked)
            assert await embedding.some() == 0
        assert len(compass.asked) == asked


async def test_the_embedder_goes_on_where_the_endpoint_was_away_and_works_when_woken(tmp_path: Path) -> None:
    async with await Database.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        compass.away = 2
        embedding = Embedding(store, compass)
        await store.put(documents(3))
        with fail_after(5):
            async with create_task_group() as tasks:
                tasks.start_soon(
                    partial(
                        regularly,
                        "embedder",
                        embedding.all,
                        interval_seconds=30,
                        woken=embedding.wait,
                        backoff=lambda: iter([0.0] * 9),
                    )
                )
                while len(await like(store)) < 3:
                    await wait_all_tasks_blocked()
                await store.put([document(9, "north by north")])
                embedding.wake()
                while len(await like(store)) < 4:
                    await wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
        assert [len(texts) for texts in compass.asked] == [3, 3, 3, 1]


def test_what_stands_above_a_text_belongs_to_it() -> None:
    assert embedded_text(document(1, "Hello!", "Ann")) == "Ann: Hello!"
    assert embedded_text(document(1, "Hello!")) == "Hello!"
    assert embedded_text(document(1, "", "Ann")) == "Ann"


@pytest.mark.rest
async def test_vectors_that_another_folder_has_of_the_same_text_are_used(tmp_path: Path) -> None:
    async with await Database.open(tmp_path / "a.db") as a, await Database.open(tmp_path / "b.db") as b:
        theirs, ours, compass = (
            SqliteSearchStore(a, tmp_path / "a-search.db"),
            SqliteSearchStore(b, tmp_path / "b-search.db"),
            Compass(),
        )
        with fail_after(5):
            await theirs.put(documents(300))
            await Embedding(theirs, compass).all()
            await ours.put([*documents(299), document(299, "north, but another text")])
            compass.asked.clear()
            embedding = Embedding(ours, compass)
            await embedding.take_over(theirs.embedded(compass.model))
            assert await embedding.missing() == 1
            await embedding.all()
        assert compass.asked == [["north, but another text"]]


async def test_embedding_within_a_time_leaves_the_rest_for_later(tmp_path: Path) -> None:
    async with await Database.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        with fail_after(5):
            await store.put(documents(300))
            embedding = Embedding(store, compass)
            await embedding.all(within=0)
            assert await embedding.missing() == 172
