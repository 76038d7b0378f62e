"""Every document gets a vector of the model in use, despite failures, changes and kills meanwhile."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from anyio import wait_all_tasks_blocked

from intern.actors.upkeep import run_regularly
from intern.core.errors import ModelRefusedError, ModelUnavailableError
from intern.core.ids import SourceId
from intern.core.search_documents import SearchDocument, SearchFilter
from intern.sources.catalogue import EmbeddingUpdater, embedding_text
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.search_file.search_index import SqliteSearchStore
from tests.worlds.actors import running

NORTH, EAST = struct.pack("<2f", 0, 1), struct.pack("<2f", 1, 0)


class Compass:
    """Texts about the north point there, others to the east."""

    dimensions = 2

    def __init__(self, model: str = "compass-1") -> None:
        self.model = model
        self.asked: list[list[str]] = []
        self.away = 0
        self.count_question = "\0"

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        self.asked.append(list(texts))
        if self.away:
            self.away -= 1
            raise ModelUnavailableError("the endpoint is down")
        if any(self.count_question in text for text in texts):
            raise ModelRefusedError("the endpoint will not take this")
        return [NORTH if "north" in text else EAST for text in texts]


def document(n: int, text: str, title: str = "") -> SearchDocument:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return SearchDocument(id=f"kb:{n}#1", source_id=SourceId(f"kb:{n}"), kind="source", title=title, text=text, at=at)


def documents(count: int) -> list[SearchDocument]:
    return [document(n, f"{'north' if n % 2 else 'south'} {n}") for n in range(count)]


async def like(store: SqliteSearchStore, model: str = "compass-1") -> list[str]:
    hits = await store.search_vector(NORTH, model, SearchFilter(), 100)
    told = await store.read_documents([hit.document_id for hit in hits], SearchFilter())
    return [told[hit.document_id].text for hit in hits]


async def test_all_documents_get_their_vectors_some_at_a_time(tmp_path: Path) -> None:
    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        await store.replace_documents(documents(300))
        await EmbeddingUpdater(store, compass).update_all()
        assert [len(texts) for texts in compass.asked] == [128, 128, 44]
        assert all("north" in text for text in (await like(store))[:100])
        await EmbeddingUpdater(store, compass).update_all()  # as after a restart
        assert len(compass.asked) == 3


async def test_identical_texts_that_stand_far_apart_are_embedded_once(tmp_path: Path) -> None:
    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        await store.replace_documents([*documents(200), *(document(200 + n, "north 1") for n in range(200))])
        embedding = EmbeddingUpdater(store, compass)
        await embedding.update_all()
        assert [len(texts) for texts in compass.asked] == [128, 72]
        assert await embedding.count_missing() == 0
        assert len(await like(store)) == 100
        await store.replace_documents([document(400, "north 1")])
        await embedding.update_all()
        assert compass.asked[2:] == [["north 1"]]  # nothing is kept once all is done


async def test_another_model_makes_all_anew_and_old_vectors_are_no_answer_to_it(tmp_path: Path) -> None:
    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        store = SqliteSearchStore(db, tmp_path / "search.db")
        await store.replace_documents(documents(140))
        await EmbeddingUpdater(store, Compass()).update_all()
        newer = EmbeddingUpdater(store, Compass("compass-2"))
        assert await newer.update_batch() == 128
        assert len(await like(store)) == 12  # what is still to come
        assert len(await like(store, "compass-2")) == 100
        await newer.update_all()
        assert await like(store) == []


async def test_a_text_that_changed_gets_another_vector(tmp_path: Path) -> None:
    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        await store.replace_documents([document(1, "south")])
        await EmbeddingUpdater(store, compass).update_all()
        await store.replace_documents([document(1, "north")])
        await EmbeddingUpdater(store, compass).update_all()
        assert compass.asked == [["south"], ["north"]]


async def test_a_text_that_is_refused_holds_up_no_other_and_is_not_asked_again(tmp_path: Path) -> None:
    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        compass.count_question = "south 44"
        await store.replace_documents(documents(50))
        embedding = EmbeddingUpdater(store, compass)
        await embedding.update_all()
        assert len(await like(store)) == 49
        asked = len(compass.asked)
        assert await embedding.update_batch() == 0
        assert len(compass.asked) == asked


async def test_the_embedder_goes_on_where_the_endpoint_was_away_and_works_when_woken(tmp_path: Path) -> None:
    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        compass.away = 2
        embedding = EmbeddingUpdater(store, compass)
        await store.replace_documents(documents(3))
        async with running(
            partial(
                run_regularly,
                "embedder",
                embedding.update_all,
                interval_seconds=30,
                woken=embedding.wait,
                backoff=lambda: iter([0.0] * 9),
            )
        ):
            while len(await like(store)) < 3:
                await wait_all_tasks_blocked()
            await store.replace_documents([document(9, "north by north")])
            embedding.wake()
            while len(await like(store)) < 4:
                await wait_all_tasks_blocked()
        assert [len(texts) for texts in compass.asked] == [3, 3, 3, 1]


def test_what_stands_above_a_text_belongs_to_it() -> None:
    assert embedding_text(document(1, "Hello!", "Ann")) == "Ann: Hello!"
    assert embedding_text(document(1, "Hello!")) == "Hello!"
    assert embedding_text(document(1, "", "Ann")) == "Ann"


@pytest.mark.rest
async def test_vectors_that_another_folder_has_of_the_same_text_are_used(tmp_path: Path) -> None:
    async with await SqliteDatabase.open(tmp_path / "a.db") as a, await SqliteDatabase.open(tmp_path / "b.db") as b:
        theirs, ours, compass = (
            SqliteSearchStore(a, tmp_path / "a-search.db"),
            SqliteSearchStore(b, tmp_path / "b-search.db"),
            Compass(),
        )
        await theirs.replace_documents(documents(300))
        await EmbeddingUpdater(theirs, compass).update_all()
        await ours.replace_documents([*documents(299), document(299, "north, but another text")])
        compass.asked.clear()
        embedding = EmbeddingUpdater(ours, compass)
        await embedding.import_vectors(theirs.read_embedded(compass.model))
        assert await embedding.count_missing() == 1
        await embedding.update_all()
        assert compass.asked == [["north, but another text"]]


async def test_embedding_within_a_time_leaves_the_rest_for_later(tmp_path: Path) -> None:
    async with await SqliteDatabase.open(tmp_path / "intern.db") as db:
        store, compass = SqliteSearchStore(db, tmp_path / "search.db"), Compass()
        await store.replace_documents(documents(300))
        embedding = EmbeddingUpdater(store, compass)
        await embedding.update_all(within=0)
        assert await embedding.count_missing() == 172
