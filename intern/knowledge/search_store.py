"""What can be searched by its words: documents in the database, and SQLite's full-text tables beside them.

Derived from sources, topics and discovered files: lost, it is built again. Text of others reaches the engine only as a
`Match` that `intern.search.query` made. Room is left for vectors, nuggets and facts beside the same documents.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from intern.domain import (
    HeldTerms,
    Match,
    SearchDocument,
    SearchFilter,
    SearchHit,
    SearchKind,
    SourceId,
)
from intern.knowledge.database import Database, Row, Transaction, Value
from intern.text.words import plain_words, unspaced_runs

WordTable = Literal["words", "trigrams"]

_COLUMNS = "id, source_id, kind, part, type, status, path, title, text, unspaced, meta, stamp, at"
_READ = "id, source_id, kind, part, type, status, path, title, text, meta, stamp, at"
_PUT = (
    f"insert into search_documents ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
    " on conflict (id) do update set source_id = excluded.source_id, kind = excluded.kind, part = excluded.part,"
    " type = excluded.type, status = excluded.status,"
    " path = excluded.path, title = excluded.title, text = excluded.text,"
    " unspaced = excluded.unspaced, meta = excluded.meta, stamp = excluded.stamp, at = excluded.at"
)
_IN = "in (select value from json_each(?))"
_DROP_OTHERS = f"delete from search_documents where source_id = ? and id not {_IN}"  # noqa: S608

# A short title that holds the word says as much as a sentence; a path says less, and holds the same words again.
_SCORE = {"words": "-bm25(search_words, 1.0, 0.5, 1.0)", "trigrams": "-bm25(search_trigrams)"}
# A bare column beside max() is of the row with the maximum. Texts are read of those only that are told of: of 100,000
# documents, thousands may match.
_BEST_OF_EACH = (
    "with hits as materialized"
    " (select rowid as rid, {score} as score from search_{table} where search_{table} match ?),"
    " best as materialized (select rid, source_id as best_of, max(score) as score"
    " from hits cross join search_documents using (rid) where {wanted}"
    " group by source_id order by max(score) desc, source_id limit ?)"
    " select rid, {columns}, score from best cross join search_documents using (rid) order by score desc, best_of"
)


class SqliteSearchStore:
    """Documents and their words. All methods raise KnowledgeError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def put(self, documents: Sequence[SearchDocument]) -> None:
        """These are from now on all the documents of the sources that they are of. One transaction."""
        rows = [_row_of(document) for document in documents]
        by_source: dict[str, list[str]] = {}
        for document in documents:
            by_source.setdefault(document.source_id, []).append(document.id)

        def work(db: Transaction) -> None:
            for source_id, ids in by_source.items():
                db.run(_DROP_OTHERS, (source_id, _json(ids)))
            db.run_each(_PUT, rows)

        if rows:
            await self._db.write(work)

    async def drop(self, source_ids: Collection[SourceId]) -> None:
        """Nothing leads to these sources any more. Harmless where nothing did."""
        if source_ids:
            statement = f"delete from search_documents where source_id {_IN}"  # noqa: S608
            await self._db.write(lambda db: db.run(statement, (_json(source_ids),)))

    async def stamps(self, kind: SearchKind) -> Mapping[SourceId, str]:
        """The stamp of each source of a kind."""
        statement = "select source_id, max(stamp) from search_documents where kind = ? group by source_id"
        rows = await self._db.read(lambda db: db.rows(statement, (kind,)))
        return {SourceId(source_id): stamp for source_id, stamp in msgspec.convert(rows, list[tuple[str, str]])}

    async def documents(
        self, kind: SearchKind, source_ids: Collection[SourceId] | None = None
    ) -> tuple[SearchDocument, ...]:
        """All documents of a kind, or those of some sources, by id."""
        only, values = ("", [kind]) if source_ids is None else (f" and source_id {_IN}", [kind, _json(source_ids)])
        statement = f"select {_READ} from search_documents where kind = ?{only} order by id"  # noqa: S608
        rows = await self._db.read(lambda db: db.rows(statement, values))
        return tuple(map(_document_of, rows))

    async def held(self, terms: Sequence[Match], at_most: float, least: int) -> HeldTerms:
        """How many documents hold each term, counted up to the share `at_most` of all; nothing below `least` documents.

        A bound, since a word of every second document would take as long to count as to search for.
        """

        def work(db: Transaction) -> HeldTerms:
            total = _number(db.row("select count(*) from search_documents"))
            if total < least:
                return HeldTerms(documents=total, counts=(0,) * len(terms))
            count = "select count(*) from (select 1 from search_words where search_words match ? limit ?)"
            bound = int(total * at_most) + 1
            return HeldTerms(documents=total, counts=tuple(_number(db.row(count, (term, bound))) for term in terms))

        return await self._db.read(work)

    async def matching(self, match: Match, table: WordTable, wanted: SearchFilter, limit: int) -> tuple[SearchHit, ...]:
        """The sources whose best document matches best, best first."""
        conditions, values = _conditions(wanted)
        statement = _BEST_OF_EACH.format(score=_SCORE[table], table=table, columns=_READ, wanted=conditions)
        rows = await self._db.read(lambda db: db.rows(statement, (match, *values, limit)))
        return tuple(_hit_of(row) for row in rows)

    async def containing(self, part: str, wanted: SearchFilter, limit: int) -> tuple[SearchHit, ...]:
        """Sources that hold a run of characters too short for trigrams, in scripts without spaces."""
        conditions, values = _conditions(wanted)
        statement = (
            f"select rid, {_READ}, 0.0 from search_documents where unspaced <> ''"  # noqa: S608
            f" and instr(unspaced, ?) and {conditions}"
            " group by source_id order by source_id limit ?"
        )
        rows = await self._db.read(lambda db: db.rows(statement, (part, *values, limit)))
        return tuple(_hit_of(row) for row in rows)

    async def which(self, terms: Mapping[str, Match], rids: Collection[int]) -> Mapping[int, tuple[str, ...]]:
        """Which of the terms each document holds."""
        statement = f"select rowid from search_words where search_words match ? and rowid {_IN}"  # noqa: S608

        def work(db: Transaction) -> dict[int, tuple[str, ...]]:
            found: dict[int, tuple[str, ...]] = {}
            for term, match in terms.items():
                for (rid,) in msgspec.convert(db.rows(statement, (match, _json(rids))), list[tuple[int]]):
                    found[rid] = (*found.get(rid, ()), term)
            return found

        return await self._db.read(work)

    async def check(self) -> None:
        """Hold the full-text tables against the documents. Raises KnowledgeError where they differ."""

        def work(db: Transaction) -> None:
            for table in ("search_words", "search_trigrams"):
                db.run(f"insert into {table} ({table}, rank) values ('integrity-check', 1)")  # noqa: S608

        await self._db.write(work)

    async def rebuild(self) -> None:
        """Make the full-text tables anew from the documents."""

        def work(db: Transaction) -> None:
            for table in ("search_words", "search_trigrams"):
                db.run(f"insert into {table} ({table}) values ('rebuild')")  # noqa: S608

        await self._db.write(work)


def _conditions(wanted: SearchFilter) -> tuple[str, list[Value]]:
    conditions, values = ["1"], list[Value]()
    if wanted.kinds:
        conditions.append(f"kind {_IN}")
        values.append(_json(wanted.kinds))
    for column, value in (("part", wanted.part), ("type", wanted.type), ("status", wanted.status)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    for condition, moment in (("at >= ?", wanted.after), ("at < ?", wanted.before)):
        if moment is not None:
            conditions.append(condition)
            values.append(_time(moment))
    return " and ".join(conditions), values


def _row_of(document: SearchDocument) -> Row:
    fields = (document.title, document.path, document.text)
    title, path, text = map(_carried, fields)
    return (
        document.id,
        document.source_id,
        document.kind,
        document.part,
        document.type,
        document.status,
        path,
        title,
        text,
        _unspaced(f"{title} {path} {text}"),
        msgspec.json.encode(document.meta).decode(),
        document.stamp,
        _time(document.at),
    )


def _carried(text: str) -> str:
    """What SQLite can hold: it would end a text at a zero byte here and not there, and UTF-8 has no surrogates."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8")


def _unspaced(text: str) -> str:
    """The words with scripts that are written without spaces in them: the engine takes a whole line for one word."""
    return "" if text.isascii() else " ".join(word for word in plain_words(text) if unspaced_runs(word))


def _document_of(row: Sequence[Any]) -> SearchDocument:
    fields = dict(zip(_READ.split(", "), row, strict=True))
    fields["meta"] = msgspec.json.decode(fields["meta"])
    return msgspec.convert(fields, SearchDocument)


def _hit_of(row: Sequence[Any]) -> SearchHit:
    return SearchHit(rid=row[0], document=_document_of(row[1:-1]), bm25=row[-1])


def _time(moment: datetime) -> str:
    """As text that sorts like the time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _json(values: Collection[object]) -> str:
    return msgspec.json.encode(list(values)).decode()


def _number(row: Row | None) -> int:
    return msgspec.convert(row, tuple[int])[0]
