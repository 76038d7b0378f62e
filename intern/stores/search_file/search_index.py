"""The search in one community: SQLite's full-text tables for words, vectors for their sense, in a file of its own.

The file is a copy of the documents and vectors in the database, which follows the change log. If it is lost, damaged
or of another database, it is made anew, without asking a model. Text of others reaches the engine only as quoted terms.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from anyio import CancelScope, Lock
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.core.errors import KnowledgeError
from intern.core.ids import SourceId
from intern.core.install_hints import format_install_hint
from intern.core.log import get_logger
from intern.core.memory import CacheBudget
from intern.core.search_documents import ScoredMatch, SearchDocument, SearchFilter
from intern.core.text.language import detect_language
from intern.core.text.words import find_unspaced_runs, split_words, stem_foreign_words
from intern.stores.database import Database, Row, Transaction, Value
from intern.stores.engines.sqlite.database import SqliteDatabase as SqliteFile, database_files, is_damage
from intern.stores.options import SearchOptions
from intern.stores.search_file.word_matches import WordTable, choose_matches, join_matches, quote_term
from intern.stores.tables.change_log import read_changes
from intern.stores.tables.documents import DESCRIPTIONS, DOCUMENTS, NEWEST, ORIGIN, DocumentStore, ensure_identity
from intern.stores.tables.store import IN, NUMBER_IN, join_conditions, json_array, sortable_time, text_array

if TYPE_CHECKING:
    from intern.stores.search_file.vector_copy import VectorCopy
    from intern.stores.search_file.vector_index import QueryVector, VectorIndex

_log = get_logger(__name__)

T = TypeVar("T")

_SCHEMA = Path(__file__).with_name("search.sql")
_SOME = 1000
"""Documents or vectors that are held while they are copied."""

_AT = "select origin, position from search_copy"
_COPIED = f"rid, {DOCUMENTS.columns}"
_THESE = f"select {_COPIED} from documents where community = :community and rid {NUMBER_IN}"
_VECTORS = "select rid, model, vector from document_vectors where community = :community"
_PUT = (
    f"insert into search_documents ({_COPIED}, unspaced, stems)"
    f" values ({', '.join('?' * (len(DOCUMENTS.names) + 3))}) on conflict (rid) do update"
    f" set unspaced = excluded.unspaced, stems = excluded.stems, {DOCUMENTS.assignments()}"
)
_PUT_VECTOR = (
    "insert into search_vectors (rid, model, vector) values (?, ?, ?) on conflict (rid) do update"
    " set model = excluded.model, vector = excluded.vector"
    " where (model, vector) is not (excluded.model, excluded.vector)"
)

_TELLING = 500  # characters of a text, which tell its language
_FEW = 8  # words, which do not: a heading like "Disk partition configuration" is French as well
_FILLING, _USUAL = 16_000, 2_000  # kB of the file in memory; two hundred communities may share a process
_PAGES = 64  # of 4 kB, merged in one go: some ms
_COUNT = "select count(*) from search_documents where rid > 0"
_CHANGES = "select total_changes()"

# A short title that holds the word counts as much as a sentence; a path counts less, and repeats the same words.
_SCORE = {"words": "-bm25(search_words, 1.0, 0.5, 1.0, 1.0)", "trigrams": "-bm25(search_trigrams)"}
# The best documents are looked at first: where they are of enough sources, no other can be better than these. Of
# 100,000 documents thousands may match, and to ask whether the filter lets them pass costs more than their scores.
_FIRST = 4
# Of two passages that fit as well, that of the longer document does so more often by chance: nDCG@10 is .473 instead of
# .451 on a FAQ. More than this is better among 600 documents, and worse where all others are short. A topic is no
# single text, but many independent answers.
_FITS = f"score * case when type = 'topic' or rid >= {DESCRIPTIONS} then 1.0 else pow(size, -0.05) end"
_CONTAINS = 3.0  # in place of bm25: one short run of signs says little
_KEY: Mapping[str, str] = {"source": "source_id", "document": "id"}
_WRITTEN = "kind = 'file' or type in ('document', 'page')"
_HITS = "select rowid as rid, {score} as score from search_{table} where search_{table} match ?{among}{first}"
# A bare column beside max() is of the row with the maximum. Twice as many as are wanted, since their order changes yet.
# The last row has the number of matches. No text is read.
_BEST_OF_EACH = (
    "with hits as materialized ({hits}), best as materialized (select rid, id, source_id, kind, type,"
    " max(score) as score from hits cross join search_documents using (rid) where rid > 0 and {wanted}"
    " group by {key} order by max(score) desc, {key} limit 2 * ?), sizes as materialized"
    f" (select source_id, sum(rid < {DESCRIPTIONS}) as size from search_documents"
    " where source_id in (select source_id from best) group by source_id)"
    f" select {{key}}, id, source_id, {_FITS} as fits, {_WRITTEN} from best join sizes using (source_id)"
    " union all select '', (select count(*) from hits), '', -1e999, 0 order by fits desc, {key}"
)

# Mostly there is none, and to find none takes the engine longer. Each leaf of trigrams has a row there (FTS5: "%_idx").
_HAS_TRIGRAMS = "select 1 from search_trigrams_idx limit 1"


class SqliteSearchStore(DocumentStore):
    """Documents, their words and their vectors.

    The file is opened at first use, and closed with the database. The first search by a vector reads all vectors of its
    model into memory, where this store keeps them: have one.
    """

    vectors: VectorIndex | None = None

    def __init__(
        self, db: Database, path: Path, engine: VectorCopy | None = None, room: CacheBudget | None = None
    ) -> None:
        super().__init__(db)
        self._room = room or CacheBudget(10**6 * SearchOptions().megabytes)
        self.engine = engine
        """The engine that proposes documents similar to a vector, in place of vectors in memory."""
        self._path = path
        self._opening = Lock()
        self._file: Database | None = None
        self._seen = -1
        self._counted: tuple[int, int] | None = None

    async def replace_documents(self, documents: Sequence[SearchDocument]) -> None:
        """Replace all documents of the sources that these belong to, in one transaction. They can be found then."""
        await super().replace_documents(documents)
        await self._publish_change()

    async def delete_sources(self, source_ids: Collection[SourceId]) -> None:
        """Delete all documents of these sources. Harmless where there are none."""
        await super().delete_sources(source_ids)
        await self._publish_change()

    async def store_vectors(self, model: str, vectors: Sequence[tuple[SearchDocument, bytes]]) -> int:
        """Store the vectors of documents as `DocumentStore` does. Afterwards, a search finds documents by them."""
        taken = await super().store_vectors(model, vectors)
        await self._publish_change()
        return taken

    async def _publish_change(self) -> None:
        await self.ensure_current()
        if self.engine is not None:
            self.engine.wake()

    async def search_words(
        self, words: Sequence[str], grams: Sequence[str], parts: Sequence[str], wanted: SearchFilter, limit: int
    ) -> list[tuple[ScoredMatch, ...]]:
        """Return the best results with one of the words, those with one of the trigrams, and those with each part.

        A part is a run of characters too short for trigrams, in scripts without spaces. Each ranking is best first.
        Reads the file once, and no text.
        """

        def work(db: Transaction) -> list[tuple[ScoredMatch, ...]]:
            inside = grams and db.row(_HAS_TRIGRAMS)
            return [
                self._find_best(db, "words", words, wanted, limit) if words else (),
                self._find_best(db, "trigrams", grams, wanted, limit) if inside else (),
                *(_find_containing(db, part, wanted, limit) for part in parts),
            ]

        # Each statement sees the state at its own time.
        return await self._read_current(work, steady=False)

    def _find_best(
        self, db: Transaction, table: WordTable, words: Sequence[str], wanted: SearchFilter, limit: int
    ) -> tuple[ScoredMatch, ...]:
        where, values = _build_conditions(wanted)
        terms = [*map(quote_term, words)]
        weighed = choose_matches(db, table, terms)
        most = limit * _FIRST
        found: list[Row] = []
        # The second look is at all of them: the filter may have left out most of those that the first one saw.
        for matches, first in ((weighed, f" order by score desc, rowid limit {most}"), ([join_matches(terms)], "")):
            statement = _format_query(table, len(matches), where, wanted, first)
            *found, (_, matched, *_) = db.rows(statement, (*matches, *values, limit))
            if len(found) >= limit or (weighed == [join_matches(terms)] and msgspec.convert(matched, int) < most):
                break
        return tuple(map(_build_scored, found[:limit]))

    async def read_documents(self, ids: Collection[str], wanted: SearchFilter) -> Mapping[str, SearchDocument]:
        """Return these documents by id, without those that are gone or no longer pass the filter."""
        where, values = _build_conditions(wanted)
        statement = f"select {DOCUMENTS.columns} from search_documents where id {IN} and {where}"
        rows = await self._read_current(lambda db: db.rows(statement, (json_array(ids), *values)))
        return {document.id: document for document in map(DOCUMENTS.from_row, rows)}

    async def count_documents(self) -> int:
        """Return how many documents there are. They are counted once for each state of the file."""
        if self._counted is None or self._counted[0] != self._seen:
            count = await self._read_current(lambda db: db.number(_COUNT), steady=False)
            self._counted = (self._seen, count)
        return self._counted[1]

    async def match_terms(self, terms: Sequence[str], ids: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """Return for each document the terms that it holds."""
        statement = (
            "select id from search_words join search_documents on search_documents.rid = search_words.rowid"
            f" where search_words match ? and search_words.rowid in (select rid from search_documents where id {IN})"
        )

        def work(db: Transaction) -> Mapping[str, tuple[str, ...]]:
            found: dict[str, tuple[str, ...]] = {}
            for term in terms:
                for each in db.texts(statement, (quote_term(term), json_array(ids))):
                    found[each] = (*found.get(each, ()), term)
            return found

        return await self._read_current(work)

    async def search_vector(
        self, vector: bytes, model: str, wanted: SearchFilter, limit: int, *, also: Collection[str] = ()
    ) -> tuple[ScoredMatch, ...]:
        """Return the results most similar to a vector of this model, best first; or those of `also`, keys of results.

        Documents without a vector of the model are left out. Exact: all that the filter lets pass are compared, or all
        that the engine proposes. No text is read.
        """
        proposed = None
        if self.engine is not None and not also:
            proposed = await self.engine.propose_documents(vector, model, wanted, limit)

        def work(db: Transaction) -> tuple[ScoredMatch, ...]:
            vectors, asked = self._load_vectors(model, vector)
            where, values = _build_conditions(wanted)
            among = proposed
            if among is None and wanted.keyword is not None:
                rids = db.rows(f"select rid from search_documents where {where}", values)
                among = [cast("int", rid) for (rid,) in rids]
            alike = vectors.find_similar(db, asked, wanted, limit, also, among=among)
            columns = f"rid, {_KEY[wanted.per]}, id, source_id, 0.0, {_WRITTEN}"
            statement = f"select {columns} from search_documents where rid {IN} and {where}"
            rows = db.rows(statement, (json_array([each.rid for each in alike]), *values))
            of = {cast("int", rid): _build_scored(row) for rid, *row in rows}
            # Documents that were deleted or changed since `db` was read are left out.
            return tuple(replace(of[rid], score=likeness) for rid, likeness in alike if rid in of)

        return await self._read_current(work)

    def _load_vectors(self, model: str, vector: bytes) -> tuple[VectorIndex, QueryVector]:
        try:
            # It loads numpy: 100 ms and 20 MB that a search by words alone does not need.
            from intern.stores.search_file.vector_index import QueryVector, VectorIndex  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise KnowledgeError(
                f'vectors cannot be compared without {error.name}; set embeddings.provider = "none", or'
                f" {format_install_hint('embeddings')}"
            ) from error
        self.vectors = self.vectors or VectorIndex(self._room)
        return self.vectors, QueryVector(model, vector)

    @asynccontextmanager
    async def widen_cache(self) -> AsyncGenerator[None]:
        """Hold more of the file in memory during many writes: each merge reads the pages that earlier ones wrote."""
        await (await self.ensure_current()).run(f"pragma cache_size = -{_FILLING}")
        try:
            yield
        finally:
            with CancelScope(shield=True):
                await (await self.ensure_current()).run(f"pragma cache_size = -{_USUAL}")

    async def optimize(self) -> None:
        """Merge the pieces of the full-text tables, which are many after many writes: a search looks into each.

        Works in steps, so that other writes wait no longer than for one write.
        """
        file = await self.ensure_current()
        for table in ("search_words", "search_trigrams"):
            pages = -_PAGES  # below zero: all pieces, not only those of one size
            while await file.write(partial(_merge_pages, table, pages)):
                pages = _PAGES

    async def scrub(self) -> None:
        """Remove deleted data from the disk."""
        await (await self.ensure_current()).scrub()

    async def rebuild(self) -> Database:
        """Make the file anew from documents and vectors, and return it."""
        async with self._opening:
            await run_sync(_remove_files, self._path)
            await self._release_vectors()
            self._file = file = await self._open_valid()
            self._seen = await file.write(self._copy_changes)
        return file

    async def ensure_current(self) -> Database:
        """Bring the file up to date, and return it. Raises KnowledgeError."""
        async with self._opening:
            if self._file is None:
                self._file = await self._open_valid()
            file = self._file
        if await self.db.read(self._is_behind, steady=False):
            try:
                self._seen = await file.write(self._copy_changes)
            except KnowledgeError as error:
                return await self._replace_damaged(error)
        return file

    def _is_behind(self, db: Transaction) -> bool:
        return db.number(NEWEST) != self._seen

    async def _read_current(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        def unless_behind(db: Transaction) -> tuple[T] | None:  # in one visit to a thread
            return None if self.db.read_blocking(self._is_behind, steady=False) else (work(db),)

        file = self._file or await self.ensure_current()
        try:
            found = await file.read(unless_behind, steady=steady)
            return found[0] if found else await (await self.ensure_current()).read(work, steady=steady)
        except KnowledgeError as error:
            return await (await self._replace_damaged(error)).read(work, steady=steady)

    async def _replace_damaged(self, error: KnowledgeError) -> Database:
        """Return a new file in place of a damaged one. Raises other errors."""
        if not is_damage(error):
            raise error
        _log.warning("search_file_rebuilt", reason=str(error))
        return await self.rebuild()

    async def _open_valid(self) -> Database:
        origin, newest = await self.db.write(ensure_identity)
        try:
            file = await self._open_file()
            known = await file.row(_AT)
            if known is not None and known[0] in {"", origin} and cast("int", known[1]) <= newest:
                return file
            _log.info("search_file_rebuilt", reason=f"{self._path} is of another database, or of a newer state of it")
        except KnowledgeError as error:
            if not is_damage(error):
                raise
            _log.warning("search_file_rebuilt", reason=str(error))
        await run_sync(_remove_files, self._path)
        return await self._open_file()

    async def _open_file(self) -> Database:
        file = await SqliteFile.open(self._path, schema=await run_sync(partial(_SCHEMA.read_text, encoding="utf-8")))
        self.db.close_with(file.close)
        self.db.close_with(self._release_vectors)
        return file

    async def _release_vectors(self) -> None:
        vectors, self.vectors = self.vectors, None
        if vectors is not None:
            self._room.remove(vectors)

    def _copy_changes(self, tx: Transaction) -> int:
        """Copy later changes and their position in one transaction; return the position. Runs in the file's thread."""
        return self.db.read_blocking(partial(_copy_changes, tx))


def _copy_changes(tx: Transaction, source: Transaction) -> int:
    [(origin, position)] = msgspec.convert(tx.rows(_AT), list[tuple[str, int]])
    newest = source.number(NEWEST)
    if not origin:
        for rows in _read_in_blocks(source, f"select {_COPIED} from documents where community = :community"):
            _insert_documents(tx, rows)
        for rows in _read_in_blocks(source, _VECTORS):
            tx.run_each(_PUT_VECTOR, rows)
        tx.run("update search_copy set origin = ?, position = ?", (*source.texts(ORIGIN), newest))
    elif changes := read_changes(source, position, ("document", "vector")):
        for start in range(0, len(changes), _SOME):
            some = changes[start : start + _SOME]
            _copy_documents(tx, source, text_array(each.name for each in some if each.kind == "document"))
            _copy_vectors(tx, source, text_array({each.name for each in some}))
        tx.run("update search_copy set position = ?", (newest,))
    return newest


def _read_in_blocks(source: Transaction, statement: str) -> Iterator[list[Row]]:
    last: Value = -1
    while rows := source.rows(f"{statement} and rid > ? order by rid limit {_SOME}", (last,)):
        yield rows
        last = rows[-1][0]


def _insert_documents(tx: Transaction, rows: Sequence[Row]) -> None:
    places = [DOCUMENTS.names.index(each) + 1 for each in ("title", "path", "text")]

    def with_terms(row: Row) -> Row:
        title, path, text = (str(row[place]) for place in places)
        return (*row, _extract_unspaced(f"{title} {path} {text}"), _stem_text(f"{title}\n{text}"))

    tx.run_each(_PUT, map(with_terms, rows))


def _copy_documents(tx: Transaction, source: Transaction, rids: str) -> None:
    rows = source.rows(f"{_THESE} order by rid", (rids,))
    gone = f"delete from search_documents where rid {NUMBER_IN} and rid not {IN}"
    tx.run(gone, (rids, json_array(rid for rid, *_ in rows)))
    _insert_documents(tx, rows)


def _copy_vectors(tx: Transaction, source: Transaction, rids: str) -> None:
    rows = source.rows(f"{_VECTORS} and rid {NUMBER_IN}", (rids,))
    gone = f"delete from search_vectors where rid {NUMBER_IN} and rid not {IN}"
    tx.run(gone, (rids, json_array(rid for rid, *_ in rows)))
    tx.run_each(_PUT_VECTOR, rows)


def _remove_files(path: Path) -> None:
    try:
        for each in database_files(path):
            each.unlink(missing_ok=True)
    except OSError as error:
        what = f"{path} cannot be made anew ({error.strerror}); check the rights of its folder"
        raise KnowledgeError(what) from error


def _find_containing(db: Transaction, part: str, wanted: SearchFilter, limit: int) -> tuple[ScoredMatch, ...]:
    where, values = _build_conditions(wanted)
    statement = (
        f"select {_KEY[wanted.per]}, id, source_id, {_CONTAINS}, {_WRITTEN} from search_documents where unspaced <> ''"
        f" and instr(unspaced, ?) and {where}"
        f" group by {_KEY[wanted.per]} order by {_KEY[wanted.per]} limit ?"
    )
    return tuple(map(_build_scored, db.rows(statement, (part, *values, limit))))


def _merge_pages(table: str, pages: int, db: Transaction) -> bool:
    """Return whether there was still something to merge (FTS5: fewer than two changes mean that there was not)."""
    before = db.number(_CHANGES)
    db.run(f"insert into {table} ({table}, rank) values ('merge', ?)", (pages,))
    return db.number(_CHANGES) - before > 1


_AMONG = {None: "", "text": f" and rowid < {DESCRIPTIONS}", "description": f" and rowid >= {DESCRIPTIONS}"}


def _format_query(table: WordTable, matches: int, conditions: str, wanted: SearchFilter, first: str) -> str:
    """Return the statement for so many matches; where several find a document, its best score counts."""
    hits = _HITS.format(score=_SCORE[table], table=table, among=_AMONG[wanted.part], first=first)
    if matches > 1:
        each = " union all ".join([f"select * from ({hits})"] * matches)
        hits = f"select rid, max(score) as score from ({each}) group by rid"
    return _BEST_OF_EACH.format(hits=hits, wanted=conditions, key=_KEY[wanted.per])


def _build_conditions(wanted: SearchFilter) -> tuple[str, tuple[Value, ...]]:
    return join_conditions(
        (f"kind {IN}", json_array(wanted.kinds) if wanted.kinds else None),
        ("part = ?", wanted.part),
        ("type = ?", wanted.type),
        ("exists (select 1 from json_each(meta, '$.keywords') where value = ?)", wanted.keyword),
        ("status = ?", wanted.status),
        ("visibility = ?", wanted.visibility),
        ("guild_id = ?", wanted.guild_id),
        ("status <> ?", "retired" if wanted.status is None and not wanted.retired else None),
        ("at >= ?", None if wanted.after is None else sortable_time(wanted.after)),
        ("at < ?", None if wanted.before is None else sortable_time(wanted.before)),
    )


def _extract_unspaced(text: str) -> str:
    """Return the words in scripts without spaces: the engine takes a whole line of them for one word."""
    return "" if text.isascii() else " ".join(word for word in split_words(text) if find_unspaced_runs(word))


def _stem_text(text: str) -> str:
    start = text[:_TELLING]
    return " ".join(stem_foreign_words(text, detect_language(start))) if len(start.split()) >= _FEW else ""


def _build_scored(row: Sequence[Any]) -> ScoredMatch:
    key, document_id, source_id, score, written = row
    return ScoredMatch(key=key, document_id=document_id, source_id=source_id, score=score, written=bool(written))
