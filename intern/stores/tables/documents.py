"""The documents that can be searched, and their vectors: the source of every search.

Derived from sources, topics, discovered files, nuggets and facts. A vector is deleted when its text changes.
Each change is in the change log, of the kind `document`, or `vector` if only its vector is another. The log names a
document by its `rid`: it keeps the names of deleted documents, and an id may hold words that are to be forgotten.
"""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from operator import mul
from typing import cast
from uuid import uuid4

import msgspec
from anyio.to_thread import run_sync

from intern.core.ids import SourceId
from intern.core.search_documents import SearchDocument, SearchKind
from intern.stores.database import Row, Transaction, Value
from intern.stores.tables.change_log import log_changes, next_position
from intern.stores.tables.store import IN, OURS, Store, Table, json_array, reads, sanitize_text, text_array, writes

DESCRIPTIONS = 1 << 40
"""Texts have a `rid` below this one, descriptions none: the engine leaves out a range, but weighs before it can ask."""

NEWEST = f"select position from communities {OURS}"
ORIGIN = f"select id from search_origins {OURS}"

DOCUMENTS = Table("documents", SearchDocument, json=("meta",))

# In the order in which they were put: a part takes the number after its last one.
_LAST = {
    "text": f"select coalesce(max(rid), 0) from documents {OURS} and rid < {DESCRIPTIONS}",
    "description": f"select coalesce(max(rid), {DESCRIPTIONS - 1}) from documents {OURS} and rid >= {DESCRIPTIONS}",
}
_PUT = {
    part: f"insert into documents (community, {DOCUMENTS.columns}, rid)"
    f" values (:community, {', '.join('?' * len(DOCUMENTS.names))}, ({last}) + 1)"
    f" on conflict (community, id) do update set {DOCUMENTS.assignments('id')}"
    for part, last in _LAST.items()
}
_THESE = f"select rid from documents {OURS} and id {IN}"
_OF_SOURCES = f"select rid from documents {OURS} and source_id {IN}"
_OTHERS = f"delete from documents {OURS} and source_id = ? and id not {IN} returning rid"
_OF_OTHER_PART = f"delete from documents {OURS} and id = ? and part <> ? returning rid"
_DROP_VECTOR_OF_OTHER_TEXT = (
    f"delete from document_vectors {OURS} and rid in"
    f" (select rid from documents {OURS} and id = ? and (title <> ? or text <> ?))"
)
_UNEMBEDDED = (
    f"{DOCUMENTS.select} {OURS} and rid in (select rid from documents {OURS} and rid not in"
    f" (select rid from document_vectors {OURS} and model = ?) order by rid limit ?) order by rid"
)
_EMBEDDED = (
    f"select rid, vector, {DOCUMENTS.columns} from documents join document_vectors using (community, rid)"
    f" {OURS} and model = ? and rid > ? order by rid limit 256"
)
_MISSING = (
    f"select (select count(*) from documents {OURS}) - (select count(*) from document_vectors {OURS} and model = ?)"
)
# Nothing for a document that changed or was deleted while its vector was made.
_PUT_VECTOR = (
    "insert into document_vectors (community, rid, model, vector) select community, rid, ?, ? from documents"
    f" {OURS} and id = ? and title = ? and text = ?"
    " on conflict (community, rid) do update set model = excluded.model, vector = excluded.vector"
)
_UNIT_WITHIN = 0.01


class DocumentStore(Store):
    """Documents and their vectors, each change in one transaction."""

    async def replace_documents(self, documents: Sequence[SearchDocument]) -> None:
        """Replace all documents of the sources that these belong to."""
        if not documents:
            return
        rows = await run_sync(lambda: [DOCUMENTS.to_row(document) for document in documents])
        by_source: dict[str, list[str]] = {}
        for document in documents:
            by_source.setdefault(document.source_id, []).append(document.id)

        def work(db: Transaction) -> None:
            next_position(db)  # locks the community, so that no other writer takes the same numbers
            gone: list[str] = []
            for source_id, ids in by_source.items():
                gone += db.texts(_OTHERS, (source_id, text_array(ids)))
            texts: list[Row] = []
            for document in documents:
                gone += db.texts(_OF_OTHER_PART, (document.id, document.part))
                texts.append((document.id, sanitize_text(document.title), sanitize_text(document.text)))
            db.run_each(_DROP_VECTOR_OF_OTHER_TEXT, texts)
            for part, statement in _PUT.items():
                db.run_each(statement, [row for row, each in zip(rows, documents, strict=True) if each.part == part])
            log_changes(db, "document", {*gone, *db.texts(_THESE, (text_array(each.id for each in documents),))})

        await self.db.write(work)

    async def delete_sources(self, source_ids: Collection[SourceId]) -> None:
        """Delete all documents of these sources. Harmless where there are none."""
        values = (text_array(source_ids),)

        def work(db: Transaction) -> None:
            if rids := db.texts(_OF_SOURCES, values):
                log_changes(db, "document", rids)
                db.run(f"delete from documents {OURS} and source_id {IN}", values)

        if source_ids:
            await self.db.write(work)

    async def stamps(self, kind: SearchKind) -> Mapping[SourceId, str]:
        """Return the stamp of each source of a kind."""
        statement = f"select source_id, max(stamp) from documents {OURS} and kind = ? group by source_id"
        return dict(msgspec.convert(await self.db.rows(statement, (kind,)), list[tuple[SourceId, str]]))

    @reads
    def list_documents(
        self, db: Transaction, kind: SearchKind, source_ids: Collection[SourceId] | None = None
    ) -> tuple[SearchDocument, ...]:
        """Return all documents of a kind, or those of some sources, by id."""
        only, values = ("", [kind]) if source_ids is None else (f" and source_id {IN}", [kind, text_array(source_ids)])
        return DOCUMENTS.all(db, f"{OURS} and kind = ?{only} order by id", values)

    @reads
    def find_unembedded(self, db: Transaction, model: str, limit: int) -> tuple[SearchDocument, ...]:
        """Return documents without a vector of this model: texts first, and of each part the oldest first."""
        return tuple(map(DOCUMENTS.from_row, db.rows(_UNEMBEDDED, (model, limit))))

    async def count_unembedded(self, model: str) -> int:
        """Return the number of documents without a vector of this model."""
        return await self.db.number(_MISSING, (model,))

    async def read_embedded(self, model: str) -> AsyncGenerator[Sequence[tuple[SearchDocument, bytes]]]:
        """Yield all documents that have a vector of this model, with it, some at a time."""
        last: Value = -1
        while rows := await self.db.rows(_EMBEDDED, (model, last)):
            yield [(DOCUMENTS.from_row(document), cast("bytes", vector)) for _, vector, *document in rows]
            last = rows[-1][0]

    @writes
    def store_vectors(self, db: Transaction, model: str, vectors: Sequence[tuple[SearchDocument, bytes]]) -> int:
        """Store the vectors of documents, in place of any of another model, and return how many were stored.

        A document whose title or text has changed meanwhile gets none. Raises ValueError for anything but a unit
        vector of 32-bit floats.
        """
        for document, vector in vectors:
            if not _is_unit(vector):
                raise ValueError(f"the vector of {document.id!a} by {model} is none of length 1")
        log_changes(db, "vector", db.texts(_THESE, (text_array(document.id for document, _ in vectors),)))
        rows = [
            (model, vector, document.id, sanitize_text(document.title), sanitize_text(document.text))
            for document, vector in vectors
        ]
        return sum(db.run(_PUT_VECTOR, row) for row in rows)

    async def read_guild_ids(self) -> frozenset[str]:
        """Return the servers that documents come from."""
        return frozenset(await self.db.texts(f"select distinct guild_id from documents {OURS} and guild_id <> ''"))

    async def has_kinds(self, kinds: Collection[SearchKind]) -> bool:
        """Return whether there is any document of these kinds."""
        return bool(await self.db.number(f"select 1 from documents {OURS} and kind {IN} limit 1", (json_array(kinds),)))


def ensure_identity(db: Transaction) -> tuple[str, int]:
    """Return the id that distinguishes the community from one of another database, and its position."""
    statement = "insert into search_origins (community, id) values (:community, ?) on conflict (community) do nothing"
    if not db.row(ORIGIN):
        db.run(statement, (uuid4().hex,))
    return db.texts(ORIGIN)[0], db.number(NEWEST)


def _is_unit(vector: bytes) -> bool:
    """Return whether these are finite numbers that make a vector of length 1."""
    if len(vector) % 4:
        return False
    numbers = struct.unpack(f"<{len(vector) // 4}f", vector)
    return math.isclose(sum(map(mul, numbers, numbers)), 1, rel_tol=_UNIT_WITHIN)
