"""A vector engine finds the same sources in the same order as local vectors, also after a fault."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import httpx
import pytest
from anyio import fail_after
from hypothesis import given, strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from intern.core.errors import KnowledgeError, VectorEngineError
from intern.core.ids import SourceId
from intern.core.search_documents import ScoredMatch, SearchDocument, SearchFilter
from intern.facts.extraction import build_nugget_documents
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.search_file.vector_copy import VectorCopy, split_changes
from intern.stores.tables.change_log import ChangeLogEntry
from intern.stores.vector_engines.engine import Conditions, EnginePoint, NearDocument, VectorEngine
from tests.contracts.vector_engines import KEY, Held, HeldByQdrant, held_by
from tests.engines import open_database
from tests.search.documents import NOON, document, vector
from tests.stores.taught import nugget

pytestmark = pytest.mark.anyio

ALL = SearchFilter()
ON_EACH_DATABASE = pytest.mark.usefixtures("engine")
ENGINES = ["qdrant", pytest.param("chroma", marks=pytest.mark.rest)]


@pytest.fixture(params=ENGINES)
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Held]:
    with held_by(request.param, tmp_path / "engine") as engine:
        yield engine


@pytest.fixture(params=["local", *ENGINES])
def maybe_held(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Held | None]:
    if request.param == "local":
        yield None
        return
    with held_by(request.param, tmp_path / "engine") as engine:
        yield engine


@asynccontextmanager
async def opened(
    folder: Path, engine: VectorEngine | None, community: str = "default"
) -> AsyncGenerator[SqliteSearchStore]:
    """Open a store in a folder, as in a process of its own."""
    async with await open_database(folder / "intern.db") as file:
        db = file.for_community(community)
        copy = None if engine is None else VectorCopy(db, engine, "m")
        if engine is not None:
            db.close_with(engine.aclose)
        yield SqliteSearchStore(db, folder / f"search-{community}.db", copy)


def engine_of(held: Held | None) -> VectorEngine | None:
    return None if held is None else held.engine()


async def put(store: SqliteSearchStore, documents: Sequence[SearchDocument], *vectors: bytes, model: str = "m") -> None:
    await store.replace_documents(documents)
    await store.store_vectors(model, list(zip(documents, vectors, strict=False)))


async def settle(store: SqliteSearchStore) -> None:
    if store.engine is not None:
        await store.engine.catch_up()


async def alike(store: SqliteSearchStore, asked: bytes, wanted: SearchFilter = ALL, limit: int = 100) -> list[str]:
    return [hit.source_id for hit in await store.search_vector(asked, "m", wanted, limit)]


async def by_itself(store: SqliteSearchStore, asked: bytes, wanted: SearchFilter, limit: int) -> Sequence[ScoredMatch]:
    """Return the results of local vectors."""
    engine, store.engine = store.engine, None
    found = await store.search_vector(asked, "m", wanted, limit)
    store.engine = engine
    return found


def direction(random: Random, numbers: int = 16) -> bytes:
    drawn = [random.gauss(0, 1) for _ in range(numbers)]
    return struct.pack(f"<{numbers}f", *(each / math.hypot(*drawn) for each in drawn))


# Finding B12.
async def test_nuggets_have_their_lists_and_are_found_by_a_keyword(tmp_path: Path, maybe_held: Held | None) -> None:
    made = [
        replace(nugget(f"n{n}", n), keywords=(word, "relay")) for n, word in enumerate(("spool", "clock, skew", ""))
    ]
    documents = [document for each in made for document in build_nugget_documents(each)[:1]]
    with fail_after(30):
        async with opened(tmp_path, engine_of(maybe_held)) as store:
            await put(store, documents, *(vector(10 * n) for n in range(3)))
            await settle(store)
            for keyword, ids in (("spool", ["nugget:n0"]), ("clock, skew", ["nugget:n1"]), ("clock", [])):
                assert await alike(store, vector(22), SearchFilter(keyword=keyword), limit=1) == ids
                if store.engine is not None:
                    asked = await store.engine.propose_documents(vector(22), "m", SearchFilter(keyword=keyword), 5)
                    assert asked is not None
                    assert len(asked) == len(ids)
            assert await alike(store, vector(22), SearchFilter(keyword="relay")) == [
                "nugget:n2",
                "nugget:n1",
                "nugget:n0",
            ]
        if maybe_held is not None:
            payloads = [payload for payload, _ in maybe_held.held().values()]
            assert {tuple(each["keywords"]) for each in payloads} == {
                ("spool", "relay"),
                ("clock, skew", "relay"),
                ("", "relay"),
            }
            assert all(isinstance(each["source_message_ids"], list) for each in payloads)


async def test_the_most_alike_come_first_and_filters_leave_out_the_others(
    tmp_path: Path, maybe_held: Held | None
) -> None:
    late = NOON + timedelta(microseconds=500)
    documents = [
        document("kb:a", "a"),
        document("nugget:b", "b", kind="nugget", status="FACT", guild_id="7", at=late),
        document("fact:c", "c", kind="fact", type="technical", status="active", visibility="private"),
        document("file:d", "d", kind="file", part="description", at=late),
        document("fact:e", "e", kind="fact", type="technical", status="retired"),
    ]
    with fail_after(30):
        async with opened(tmp_path, engine_of(maybe_held)) as store:
            await put(store, documents, *(vector(10 * n) for n in range(5)))
            await settle(store)
            near = vector(22)
            for wanted, ids in {
                ALL: ["fact:c", "file:d", "nugget:b", "kb:a"],
                SearchFilter(retired=True): ["fact:c", "file:d", "nugget:b", "fact:e", "kb:a"],
                SearchFilter(kinds=("nugget", "fact")): ["fact:c", "nugget:b"],
                SearchFilter(part="description"): ["file:d"],
                SearchFilter(type="technical"): ["fact:c"],
                SearchFilter(status="FACT"): ["nugget:b"],
                SearchFilter(status="retired"): ["fact:e"],
                SearchFilter(visibility="shared"): ["file:d", "nugget:b", "kb:a"],
                SearchFilter(guild_id="7"): ["nugget:b"],
                SearchFilter(after=late): ["file:d", "nugget:b"],
                SearchFilter(before=late): ["fact:c", "kb:a"],
                SearchFilter(kinds=("file",), before=late): [],
            }.items():
                assert await alike(store, near, wanted) == ids, wanted
            assert [each.score for each in await store.search_vector(near, "m", ALL, 1)] == pytest.approx(
                [math.cos(math.radians(2))]
            )
            assert await store.search_vector(near, "other", ALL, 9) == ()


@pytest.mark.rest
async def test_an_engine_ranks_as_local_vectors_do(tmp_path: Path, held: Held) -> None:
    random = Random(20)
    documents = [
        document(
            f"kb:{n % 70}",
            f"text {n}",
            n=n,
            part=random.choice(["text", "description"]),
            kind=random.choice(["source", "nugget"]),
            guild_id=random.choice(["", "7", "8"]),
            status=random.choice(["ok", "retired", "retired"]),
            at=NOON + timedelta(seconds=random.randrange(100)),
        )
        for n in range(400)
    ]
    with fail_after(60):
        async with opened(tmp_path, held.engine()) as store:
            await put(store, documents, *(direction(random) for _ in documents[:390]))
            await settle(store)
            for limit in (1, 3, 20, 200):
                for wanted in (
                    ALL,
                    SearchFilter(part="text"),
                    SearchFilter(kinds=("nugget",), guild_id="7"),
                    SearchFilter(after=NOON + timedelta(seconds=30), before=NOON + timedelta(seconds=60)),
                ):
                    asked = direction(random)
                    found = await store.search_vector(asked, "m", wanted, limit)
                    assert store.vectors is not None
                    assert store.vectors.held == 0, "the engine was not asked"
                    assert found == await by_itself(store, asked, wanted, limit)
                    store.vectors = None


async def test_a_source_of_many_documents_hides_no_other(tmp_path: Path, maybe_held: Held | None) -> None:
    with fail_after(30):
        async with opened(tmp_path, engine_of(maybe_held)) as store:
            many = [document("kb:long", f"part {n}", n=n) for n in range(60)]
            await put(store, [*many, document("kb:short", "short")], *map(vector, range(60)), vector(80))
            await settle(store)
            hits = await store.search_vector(vector(0), "m", ALL, 2)
            assert [hit.document_id for hit in hits] == ["kb:long#0", "kb:short#0"]


@pytest.mark.rest
@ON_EACH_DATABASE
async def test_whatever_changes_is_found_at_once_and_copied_later(tmp_path: Path, maybe_held: Held | None) -> None:
    first, second = document("kb:a", "a"), document("kb:b", "b")
    with fail_after(30):
        async with opened(tmp_path, engine_of(maybe_held)) as store:
            await put(store, [first, second], vector(0), vector(50))
            for change, ids in [
                (lambda: put(store, [document("kb:c", "c")], vector(20)), ["kb:a", "kb:c", "kb:b"]),
                (lambda: store.replace_documents([replace(first, text="another")]), ["kb:c", "kb:b"]),
                (lambda: store.store_vectors("m", [(second, vector(10))]), ["kb:b", "kb:c"]),
                (lambda: store.replace_documents([replace(second, status="retired")]), ["kb:c"]),
                # The next document has the number of this one.
                (lambda: store.delete_sources([SourceId("kb:c")]), []),
                (lambda: put(store, [document("kb:d", "d")], vector(70)), ["kb:d"]),
                (lambda: store.store_vectors("other", [(document("kb:d", "d"), vector(0))]), []),
            ]:
                typed: Callable[[], Awaitable[object]] = change
                await typed()
                assert await alike(store, vector(0)) == ids, "not copied yet"
                await settle(store)
                await settle(store)
                assert await alike(store, vector(0)) == ids
            assert [hit.source_id for hit in await store.search_vector(vector(0), "other", ALL, 9)] == ["kb:d"]
            if maybe_held is not None:
                assert [payload["document"] for payload, _ in maybe_held.held().values()] == ["kb:b#0"]


async def test_what_is_gone_here_hides_nothing_before_it_is_gone_there(tmp_path: Path, held: Held) -> None:
    documents = [document(f"kb:{n}", f"text {n}") for n in range(12)]
    with fail_after(30):
        async with opened(tmp_path, held.engine()) as store:
            await put(store, documents, *map(vector, range(12)))
            await settle(store)
            await store.delete_sources([SourceId(f"kb:{n}") for n in range(9)])
            assert await alike(store, vector(0), limit=1) == ["kb:9"]
            assert store.vectors is not None
            assert store.vectors.held == 0, "the engine was not asked"


@given(st.lists(st.tuples(st.integers(1, 3), st.sets(st.integers(0, 9), min_size=1)), max_size=12), st.integers(1, 5))
def test_a_position_is_passed_once_all_that_changed_last_before_it_is_copied(
    drawn: list[tuple[int, set[int]]], some: int
) -> None:
    """In whichever order documents changed, and however often."""
    changes, position = list[ChangeLogEntry](), 0
    for gap, names in drawn:
        position += gap
        changes += [ChangeLogEntry("document", str(name), position) for name in sorted(names)]
    last = {int(each.name): each.position for each in changes}
    copied, before = set[int](), 0
    for reached, rids in split_changes(changes, some):
        assert reached > before
        copied.update(rids)
        assert copied == {name for name, at in last.items() if at <= reached}
        assert len(rids) <= some - 1 + sum(last[each] == reached for each in rids)
        before = reached
    assert copied == last.keys()


@ON_EACH_DATABASE
async def test_communities_share_a_collection_and_see_nothing_of_each_other(tmp_path: Path, held: Held) -> None:
    with fail_after(30):
        async with (
            opened(tmp_path, held.engine(), "here") as here,
            opened(tmp_path, held.engine(), "there") as there,
        ):
            for store, degrees in ((here, 0), (there, 40)):
                await put(store, [document("kb:a", "a"), document(f"kb:{degrees}", "b")], vector(degrees), vector(90))
                await settle(store)
            assert await alike(here, vector(0)) == ["kb:a", "kb:0"]
            assert await alike(there, vector(0)) == ["kb:a", "kb:40"]
            await here.delete_sources([SourceId("kb:a"), SourceId("kb:0")])
            await settle(here)
            assert {payload["community"] for payload, _ in held.held().values()} == {"there"}
            assert here.engine is not None
            await here.engine.refill()
            assert len(held.held()) == 2


class KilledError(Exception):
    pass


class Dying(VectorEngine):
    """The process dies before or after the next change in the engine."""

    header = ""

    def __init__(self, engine: VectorEngine, at: int) -> None:
        self._engine, self._left = engine, at
        self.where = engine.where

    async def _step(self, act: Awaitable[None]) -> None:
        for moment in ("before", "after"):
            if moment == "after":
                await act
            self._left -= 1
            if not self._left:
                if moment == "before":
                    act.close()  # type: ignore[attr-defined]
                raise KilledError

    async def _upsert(self, points: Sequence[EnginePoint]) -> None:
        await self._step(self._engine._upsert(points))

    async def _drop(self, conditions: Conditions, keep: Sequence[str]) -> None:
        await self._step(self._engine._drop(conditions, keep))

    async def _find_nearest(
        self, numbers: Sequence[float], conditions: Conditions, limit: int
    ) -> Sequence[NearDocument]:
        return await self._engine._find_nearest(numbers, conditions, limit)

    async def _count(self, conditions: Conditions) -> int:
        return await self._engine._count(conditions)

    async def _read_text(self, point_id: str) -> str:
        return await self._engine._read_text(point_id)

    async def aclose(self) -> None:
        await self._engine.aclose()


@ON_EACH_DATABASE
async def test_killed_at_any_step_it_goes_on_where_it_was(tmp_path: Path, held: Held) -> None:
    documents = [document(f"kb:{n}", f"text {n}") for n in range(20)]
    with fail_after(60):
        async with opened(tmp_path, held.engine()) as store:
            await put(store, documents, *map(vector, range(20)))
        for at in range(1, 9):
            async with opened(tmp_path, Dying(held.engine(), at)) as store:
                await store.replace_documents([replace(documents[0], text=f"changed {at}")])
                await put(store, [document(f"kb:new{at}", "new")], vector(30 + at))
                await store.delete_sources([SourceId(f"kb:{at}")])
                with suppress(KilledError):
                    await settle(store)
                assert await alike(store, vector(0)) == [
                    hit.source_id for hit in await by_itself(store, vector(0), ALL, 100)
                ]
        async with opened(tmp_path, held.engine()) as store:
            await settle(store)
            expected = [f"kb:{n}" for n in range(9, 20)] + [f"kb:new{at}" for at in range(1, 9)]
            assert sorted(payload["source_id"] for payload, _ in held.held().values()) == sorted(expected)
            assert await alike(store, vector(0)) == expected


@ON_EACH_DATABASE
async def test_while_the_engine_is_away_local_vectors_do_and_a_removal_stays_owed(tmp_path: Path, held: Held) -> None:
    with fail_after(60), capture_logs() as log:
        async with opened(tmp_path, held.engine()) as store:
            copy = store.engine
            assert copy is not None
            await put(store, [document("kb:a", "a"), document("kb:b", "b")], vector(0), vector(50))
            await settle(store)
            with held.away():
                await store.delete_sources([SourceId("kb:a")])
                for _ in range(3):
                    assert await alike(store, vector(0)) == ["kb:b"]
                    with pytest.raises(VectorEngineError):
                        await copy.catch_up()
                assert copy.trouble
                assert copy.failures == 4, "a search does not ask again for a while"
                assert await store.db.read(copy.count_behind) == 1
            assert len(held.held()) == 2
            await copy.catch_up()
            assert len(held.held()) == 1
            assert await store.db.read(copy.count_behind) == 0
            copy._left_alone_until = 0.0
            assert await alike(store, vector(0)) == ["kb:b"]
            assert (copy.trouble, copy.away_since) == ("", None)
    told = [each["event"] for each in log if each["event"].startswith("vector_engine")]
    assert told == ["vector_engine_away", "vector_engine_back"]


@pytest.mark.parametrize("is_running", [True, False])
async def test_an_engine_that_lost_its_vectors_is_filled_anew(tmp_path: Path, held: Held, *, is_running: bool) -> None:
    documents = [document(f"kb:{n}", f"text {n}") for n in range(30)]
    with fail_after(60):
        async with opened(tmp_path, held.engine()) as store:
            await put(store, documents, *map(vector, range(30)))
            await settle(store)
            before = held.held().keys()
            held.lose()
            if is_running:
                assert await alike(store, vector(0), limit=2) == ["kb:0", "kb:1"]
                await settle(store)
                assert held.held().keys() == before
        async with opened(tmp_path, held.engine()) as store:
            await settle(store)
            assert held.held().keys() == before
        held.lose()
        async with opened(tmp_path, Dying(held.engine(), 3)) as store:
            with suppress(KilledError):
                await settle(store)
            assert store.engine is not None
            assert await store.db.read(store.engine.count_behind) == len(documents), "an engine was asked too early"


async def test_a_database_that_shares_its_collection_is_told_and_uses_local_vectors(tmp_path: Path, held: Held) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    with fail_after(60):
        async with opened(tmp_path / "here", held.engine()) as here, opened(tmp_path / "there", held.engine()) as there:
            for store, name in ((here, "kb:a"), (there, "kb:b")):
                await put(store, [document(name, name)], vector(0))
                await settle(store)
            for _ in range(2):
                with pytest.raises(VectorEngineError, match="another database"):
                    await settle(here)
                assert await alike(here, vector(0)) == ["kb:a"]
                assert here.vectors is not None
                assert here.vectors.held, "local vectors do"
            await settle(there)
            assert await alike(there, vector(0)) == ["kb:b"]


@pytest.mark.rest
async def test_whichever_side_goes_back_to_a_backup_the_engine_holds_what_the_database_does(
    tmp_path: Path, held: Held
) -> None:
    async def change(n: int) -> None:
        """Replace one document by another, so that their number stays the same."""
        async with opened(tmp_path, held.engine()) as store:
            await store.delete_sources([SourceId(f"kb:{n - 1}")])
            await put(store, [document(f"kb:{n}", f"text {n}")], vector(n))
            await settle(store)

    def texts() -> list[str]:
        return [payload["_text"] for payload, _ in held.held().values()]

    with fail_after(60):
        await change(1)
        database = (tmp_path / "intern.db").read_bytes()
        put_back = held.backup()
        await change(2)
        put_back()
        assert texts() == ["text 1"]
        async with opened(tmp_path, held.engine()) as store:
            await settle(store)
        assert texts() == ["text 2"]
        (tmp_path / "intern.db").write_bytes(database)
        async with opened(tmp_path, held.engine()) as store:
            await settle(store)
        assert texts() == ["text 1"]


async def test_points_have_the_ids_and_the_payload_of_the_specifications(tmp_path: Path, held: Held) -> None:
    path = "/home/me/docs/design.md"
    name = hashlib.sha256(path.encode())
    meta = {
        "file_path": path,
        "file_type": "markdown_doc",
        "file_size": 7789,
        "indexed_mtime": 1731826800.5,
        "indexed_at": "2025-11-17T01:15:30",
        "summary": "How it is built.",
        "doc_id": name.hexdigest(),
    }
    file = document(f"file:{name.hexdigest()}", "How it is built.", kind="file", path=path, meta=meta)
    made = nugget("n", 1)
    analysis, summary = build_nugget_documents(made)
    with fail_after(30):
        async with opened(tmp_path, held.engine()) as store:
            await put(store, [file], vector(30))
            await put(store, [analysis, summary], vector(60), vector(61))
            await settle(store)
            found = held.held()
    payload, numbers = found[str(UUID(bytes=name.digest()[:16]))]
    assert numbers == pytest.approx([math.cos(math.radians(30)), math.sin(math.radians(30))])
    assert {**meta, "_text": "How it is built."}.items() <= payload.items()
    payload, _ = found[str(UUID(bytes=hashlib.sha256(analysis.id.encode()).digest()[:16]))]
    told = {
        "_text": made.detailed_analysis,
        "topic": made.topic,
        "timestamp": made.timestamp.isoformat(),
        "topic_summary": made.topic_summary,
        "status": made.status,
        "keywords": [*made.keywords],
        "source_message_ids": [*made.source_message_ids],
        "user_ids_involved": [*made.user_ids_involved],
    }
    assert payload == payload | told


async def test_a_model_with_longer_vectors_is_refused_in_the_same_collection_and_says_so(
    tmp_path: Path, held: Held
) -> None:
    with fail_after(30), capture_logs() as log:
        async with opened(tmp_path, held.engine()) as store:
            await put(store, [document("kb:a", "a")], vector(0))
            await settle(store)
            await put(store, [document("kb:b", "b")], direction(Random(1), 3))
            assert store.engine is not None
            for _ in range(2):
                with pytest.raises(VectorEngineError, match=r"(?i)dimension"):
                    await settle(store)
                assert await alike(store, vector(0)) == ["kb:a"]
                assert "imension" in store.engine.trouble, "though it answers"
    assert [each["event"] for each in log] == ["vector_engine_away"]


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (500, f"no room; the key was {KEY}", "no room; the key was ***"),
        (200, "<html>", "no such engine"),
        (404, "<html>", "HTTP 404"),
    ],
)
async def test_what_an_engine_says_is_told_without_the_key(status: int, said: str, told: str) -> None:
    held = HeldByQdrant()
    engine = held.engine()
    engine._client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(status, text=said)))
    with fail_after(5):
        async with engine._client:
            with pytest.raises(KnowledgeError) as error:
                await engine.count("default", "m")
    assert told in str(error.value)
    assert KEY not in str(error.value)
    assert KEY not in repr(held.options())


async def test_qdrants_own_client_reads_what_was_written_over_the_same_api(tmp_path: Path) -> None:
    held = HeldByQdrant()
    with fail_after(30):
        async with opened(tmp_path, held.engine()) as store:
            await put(store, [document("kb:a", "a")], vector(0))
            await settle(store)
    qdrant: Any = pytest.importorskip("qdrant_client")
    models = qdrant.models
    client = qdrant.QdrantClient(
        url=held.url.replace("http:", "https:"),
        api_key=KEY,
        transport=httpx.MockTransport(held.double.answer),
        check_compatibility=False,
    )
    asked = {"community": "default", "model": "m"}
    ours = [models.FieldCondition(key=key, match=models.MatchValue(value=value)) for key, value in asked.items()]
    wanted = models.Filter(must=ours)
    assert client.count("kloros_knowledge", wanted, exact=True).count == 1
    found = client.query_points("kloros_knowledge", [1.0, 0.0], query_filter=wanted, limit=1).points
    assert [each.payload["source_id"] for each in found] == ["kb:a"]
