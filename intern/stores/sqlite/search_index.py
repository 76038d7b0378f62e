"""What can be searched: documents in the database, SQLite's full-text tables for their words, vectors for their sense.

Derived from sources, topics, discovered files, nuggets and facts: lost, it is built again. Text of others reaches the
engine only as a `Match` that `intern.search.finding` made. A vector goes with the text that it is of.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from functools import partial
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
from anyio.to_thread import run_sync
from msgspec.structs import replace

from intern.core.errors import KnowledgeError
from intern.core.ids import SourceId
from intern.core.records import Match, Scored, SearchDocument, SearchFilter, SearchKind, SearchPart
from intern.core.text.words import plain_words, unspaced_runs
from intern.stores.database import Row, Transaction, Value
from intern.stores.sqlite.store import IN, Store, Table, as_json, carried, conditions, reads, sortable, writes

if TYPE_CHECKING:
    from intern.stores.sqlite.vectors import Asked, Vectors

WordTable = Literal["words", "trigrams"]

_DOCUMENTS = Table("search_documents", SearchDocument, json=("meta",))
_DESCRIPTIONS = 1 << 40
"""Texts have a `rid` below this one, descriptions none: the engine leaves out a range, but weighs before it can ask."""
_NEXT_RID = (
    "case ?4 when 'description'"
    f" then max(ifnull((select max(rid) from search_documents), 0) + 1, {_DESCRIPTIONS})"
    f" else ifnull((select max(rid) from search_documents where rid < {_DESCRIPTIONS}), 0) + 1 end"
)
_PUT = (
    f"insert into search_documents ({_DOCUMENTS.columns}, unspaced, rid)"
    f" values ({', '.join(f'?{n + 1}' for n in range(len(_DOCUMENTS.names) + 1))}, {_NEXT_RID})"
    f" on conflict (id) do update set unspaced = excluded.unspaced, {_DOCUMENTS.replacing('id')}"
)
_DROP_OF_OTHER_PART = "delete from search_documents where id = ? and part <> ?"  # its `rid` would be another one
_DROP_OTHERS = f"delete from search_documents where source_id = ? and id not {IN}"

_UNEMBEDDED = (
    f"select {_DOCUMENTS.columns} from search_documents where rid in (select rid from search_documents"
    " where rid not in (select rid from search_vectors where model = ?) order by rid limit ?) order by rid"
)
_EMBEDDED = (
    f"select rid, vector, {_DOCUMENTS.columns} from search_documents join search_vectors using (rid)"
    " where model = ? and rid > ? order by rid limit 256"
)
# Nothing of a document that changed or went while its vector was made.
_PUT_VECTOR = (
    "insert into search_vectors (rid, model, vector)"
    " select rid, ?, ? from search_documents where id = ? and title = ? and text = ?"
    " on conflict (rid) do update set model = excluded.model, vector = excluded.vector"
)
_UNIT_WITHIN = 0.01

_PAGES = 64  # of 4 kB, merged in one go: some ms
_CHANGES = "select total_changes()"

# A short title that holds the word says as much as a sentence; a path says less, and holds the same words again.
_SCORE = {"words": "-bm25(search_words, 1.0, 0.5, 1.0)", "trigrams": "-bm25(search_trigrams)"}
# Documents that are scored for one question. Where more hold one of its words, those that hold none but the commonest
# are not: among 100,000, the best 50 of questions with 14 words stayed the same but for .4%, in half the time. Where
# each word is in more, all are scored.
_WEIGHED = 8_000
_HOLDING = "select count(*) from (select 1 from search_{table} where search_{table} match ? limit {most})"
# Terms that are counted also where no more documents than these can match: it takes longer than it spares with more.
_COUNTED = 16
# As many documents as there can be, told by two looks at the ends of their numbers.
_AT_MOST = (
    f"select ifnull((select max(rid) from search_documents where rid < {_DESCRIPTIONS}), 0)"
    f" + max(ifnull((select max(rid) from search_documents), 0) - {_DESCRIPTIONS}, 0)"
)

# The best documents are looked at first: where they are of enough sources, no other can be better than these. Of
# 100,000 documents thousands may match, and to ask whether the filter lets them pass costs more than their scores.
_FIRST = 4
# Of two passages that fit as well, that of the longer document does so more often by chance: nDCG@10 is .473 instead of
# .451 on a FAQ. More than this is better among 600 documents, and worse where all others are short. A topic is no
# text, but many answers that stand for themselves.
_FITS = (
    f"score * case when type = 'topic' or rid >= {_DESCRIPTIONS} then 1.0 else pow((select count(*)"
    " from search_documents as passage where passage.source_id = best.source_id"
    f" and passage.rid < {_DESCRIPTIONS}), -0.05) end"
)
_WRITTEN = "kind = 'file' or type in ('document', 'page')"
_HITS = "select rowid as rid, {score} as score from search_{table} where search_{table} match ?{among}{first}"
# A bare column beside max() is of the row with the maximum. Twice as many as are wanted, since their order changes yet.
# The last row tells how many matched. No text is read.
_BEST_OF_EACH = (
    "with hits as materialized ({hits}), best as materialized (select rid, source_id, kind, type,"
    " max(score) as score from hits cross join search_documents using (rid) where {wanted}"
    " group by source_id order by max(score) desc, source_id limit 2 * ?)"
    f" select rid, source_id, {_FITS} as fits, {_WRITTEN} from best"
    " union all select (select count(*) from hits), '', -1e999, 0 order by fits desc, source_id"
)

# Mostly there is none, and to find none takes the engine longer. Each leaf of trigrams has a row there (FTS5: "%_idx").
_HAS_TRIGRAMS = "select 1 from search_trigrams_idx limit 1"


class SqliteSearchStore(Store):
    """Documents, their words and their vectors.

    The first search by a vector reads all vectors of its model into memory, where this store keeps them: have one.
    """

    vectors: Vectors | None = None

    async def put(self, documents: Sequence[SearchDocument]) -> None:
        """Replace all documents of the sources that these belong to, in one transaction."""
        rows = await run_sync(lambda: [_row_of(document) for document in documents])  # each word is looked at
        by_source: dict[str, list[str]] = {}
        for document in documents:
            by_source.setdefault(document.source_id, []).append(document.id)

        def work(db: Transaction) -> None:
            for source_id, ids in by_source.items():
                db.run(_DROP_OTHERS, (source_id, as_json(ids)))
            db.run_each(_DROP_OF_OTHER_PART, [(document.id, document.part) for document in documents])
            db.run_each(_PUT, rows)

        if rows:
            await self.db.write(work)

    async def drop(self, source_ids: Collection[SourceId]) -> None:
        """Delete all documents of these sources. Harmless where there are none."""
        if source_ids:
            statement = f"delete from search_documents where source_id {IN}"
            await self.db.run(statement, (as_json(source_ids),))

    async def stamps(self, kind: SearchKind) -> Mapping[SourceId, str]:
        """Return the stamp of each source of a kind."""
        statement = "select source_id, max(stamp) from search_documents where kind = ? group by source_id"
        return dict(msgspec.convert(await self.db.rows(statement, (kind,)), list[tuple[SourceId, str]]))

    async def documents(
        self, kind: SearchKind, source_ids: Collection[SourceId] | None = None
    ) -> tuple[SearchDocument, ...]:
        """Return all documents of a kind, or those of some sources, by id."""
        only, values = ("", [kind]) if source_ids is None else (f" and source_id {IN}", [kind, as_json(source_ids)])
        rows = await self.db.rows(f"{_DOCUMENTS.select} where kind = ?{only} order by id", values)
        return tuple(map(_DOCUMENTS.struct, rows))

    async def matching(
        self, words: Sequence[Match], trigrams: Sequence[Match], wanted: SearchFilter, limit: int
    ) -> tuple[tuple[Scored, ...], tuple[Scored, ...]]:
        """Return the best sources with one of the words, and those with one of the trigrams; each best first.

        One look at the file, and no text read.
        """

        def work(db: Transaction) -> tuple[tuple[Scored, ...], tuple[Scored, ...]]:
            inside = trigrams and db.row(_HAS_TRIGRAMS)
            return (
                self._best(db, "words", words, wanted, limit) if words else (),
                self._best(db, "trigrams", trigrams, wanted, limit) if inside else (),
            )

        # Each statement finds what is there as it runs.
        return await self.db.read(work, steady=False)

    def _best(
        self, db: Transaction, table: WordTable, terms: Sequence[Match], wanted: SearchFilter, limit: int
    ) -> tuple[Scored, ...]:
        where, values = _conditions(wanted)
        weighed = _weighed(db, table, terms)
        most = limit * _FIRST
        found: list[Row] = []
        # The second look is at all of them: the filter may have left out most of those that the first one saw.
        for matches, first in ((weighed, f" order by score desc, rowid limit {most}"), ([_any(terms)], "")):
            statement = _filled(table, len(matches), where, wanted.part, first)
            *found, (matched, *_) = db.rows(statement, (*matches, *values, limit))
            if len(found) >= limit or (weighed == [_any(terms)] and msgspec.convert(matched, int) < most):
                break
        return tuple(map(_scored, found[:limit]))

    async def containing(self, part: str, wanted: SearchFilter, limit: int) -> tuple[Scored, ...]:
        """Return sources with a run of characters too short for trigrams, in scripts without spaces."""
        where, values = _conditions(wanted)
        statement = (
            f"select rid, source_id, 0.0, {_WRITTEN} from search_documents where unspaced <> ''"
            f" and instr(unspaced, ?) and {where}"
            " group by source_id order by source_id limit ?"
        )
        return tuple(map(_scored, await self.db.rows(statement, (part, *values, limit))))

    async def documents_at(self, rids: Collection[int], wanted: SearchFilter) -> Mapping[int, SearchDocument]:
        """Return these documents, without those that went or do not pass the filter any more."""
        where, values = _conditions(wanted)
        statement = f"select rid, {_DOCUMENTS.columns} from search_documents where rid {IN} and {where}"
        rows = await self.db.rows(statement, (as_json(rids), *values))
        return {msgspec.convert(rid, int): _DOCUMENTS.struct(row) for rid, *row in rows}

    @reads
    def which(
        self, db: Transaction, terms: Mapping[str, Match], rids: Collection[int]
    ) -> Mapping[int, tuple[str, ...]]:
        """Which of the terms each document holds."""
        statement = f"select rowid from search_words where search_words match ? and rowid {IN}"
        found: dict[int, tuple[str, ...]] = {}
        for term, match in terms.items():
            for rid in map(int, db.texts(statement, (match, as_json(rids)))):
                found[rid] = (*found.get(rid, ()), term)
        return found

    async def unembedded(self, model: str, limit: int) -> tuple[SearchDocument, ...]:
        """Documents that have no vector of this model: texts first, and of each part those that were put first."""
        return tuple(map(_DOCUMENTS.struct, await self.db.rows(_UNEMBEDDED, (model, limit))))

    async def missing(self, model: str) -> int:
        """How many documents have no vector of this model."""
        statement = (
            "select (select count(*) from search_documents) - (select count(*) from search_vectors where model = ?)"
        )
        return await self.db.number(statement, (model,))

    async def embedded(self, model: str) -> AsyncGenerator[Sequence[tuple[SearchDocument, bytes]]]:
        """All documents that have a vector of this model, with it, some at a time."""
        last: Value = -1
        while rows := await self.db.rows(_EMBEDDED, (model, last)):
            yield [(_DOCUMENTS.struct(document), cast("bytes", vector)) for _, vector, *document in rows]
            last = rows[-1][0]

    @writes
    def put_vectors(self, db: Transaction, model: str, vectors: Sequence[tuple[SearchDocument, bytes]]) -> int:
        """Give documents their vectors, in place of any of another model, and say how many took theirs.

        A document whose title or text is another by now takes none. Raises ValueError for what is no unit vector of
        32-bit floats.
        """
        rows = [
            (model, vector, document.id, carried(document.title), carried(document.text))
            for document, vector in vectors
        ]
        for _, vector, document_id, _, _ in rows:
            if not _is_unit(vector):
                raise ValueError(f"the vector of {document_id!a} by {model} is none of length 1")
        return sum(db.run(_PUT_VECTOR, row) for row in rows)

    @reads
    def like(
        self,
        db: Transaction,
        vector: bytes,
        model: str,
        wanted: SearchFilter,
        limit: int,
        *,
        also: Collection[SourceId] = (),
    ) -> tuple[Scored, ...]:
        """Return the sources whose best document is most like a vector of this model, best first; then those of `also`.

        What has no vector of the model is not among them. Exact: all that the filter lets pass are compared. No text
        is read.
        """
        vectors, asked = self._asked(model, vector)
        alike = vectors.like(db, asked, wanted, limit, also)
        where, values = _conditions(wanted)
        statement = f"select rid, source_id, 0.0, {_WRITTEN} from search_documents where rid {IN} and {where}"
        rows = db.rows(statement, (as_json([each.rid for each in alike]), *values))
        of = {each.rid: each for each in map(_scored, rows)}
        # What went or changed since `db` looked is not among them.
        return tuple(replace(of[rid], score=likeness) for rid, likeness in alike if rid in of)

    async def guilds(self) -> frozenset[str]:
        """Return the servers that documents come from."""
        statement = "select distinct guild_id from search_documents where guild_id <> ''"
        return frozenset(await self.db.texts(statement))

    async def holds(self, kinds: Collection[SearchKind]) -> bool:
        """Whether there is any document of these kinds."""
        statement = f"select exists (select 1 from search_documents where kind {IN})"
        return bool(await self.db.number(statement, (as_json(kinds),)))

    def _asked(self, model: str, vector: bytes) -> tuple[Vectors, Asked]:
        try:
            # It loads numpy: 100 ms and 20 MB that a search by words alone does not need.
            from intern.stores.sqlite.vectors import Asked, Vectors  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise KnowledgeError(
                f'vectors cannot be compared without {error.name}; pip install "intern[embeddings]", or set '
                'embeddings.provider = "none"'
            ) from error
        self.vectors = self.vectors or Vectors()
        return self.vectors, Asked(model, vector)

    async def optimize(self) -> None:
        """Make one piece of the many that the full-text tables are in after many puts: a search looks into each.

        In steps, so that other writes wait no longer than for a put.
        """
        for table in ("search_words", "search_trigrams"):
            pages = -_PAGES  # below zero: all pieces, not only those of one size
            while await self.db.write(partial(_merged, table, pages)):
                pages = _PAGES


def _merged(table: str, pages: int, db: Transaction) -> bool:
    """Whether there was still something to do (FTS5: "less than two changes" say that there was not)."""
    before = db.number(_CHANGES)
    db.run(f"insert into {table} ({table}, rank) values ('merge', ?)", (pages,))
    return db.number(_CHANGES) - before > 1


_AMONG = {None: "", "text": f" and rowid < {_DESCRIPTIONS}", "description": f" and rowid >= {_DESCRIPTIONS}"}


def _filled(table: WordTable, matches: int, conditions: str, part: SearchPart | None, first: str) -> str:
    """Return the statement for so many matches; where several find a document, its best score counts."""
    hits = _HITS.format(score=_SCORE[table], table=table, among=_AMONG[part], first=first)
    if matches > 1:
        each = " union all ".join([f"select * from ({hits})"] * matches)
        hits = f"select rid, max(score) as score from ({each}) group by rid"
    return _BEST_OF_EACH.format(hits=hits, wanted=conditions)


def _weighed(db: Transaction, table: WordTable, terms: Sequence[Match]) -> Sequence[Match]:
    """Return matches for the documents worth a score: all with a term, or only those with one of the rarer terms.

    These get their whole score: bm25 is of the terms that a match names, so those that hold some of the commoner ones,
    too, are matched again with these. A term that more than half of all documents hold scores nothing in FTS5.
    """
    documents = db.number(_AT_MOST)
    if documents <= _WEIGHED and len(terms) > _COUNTED:
        return [_any(terms)]
    half = documents // 2
    counts = [db.number(_HOLDING.format(table=table, most=half + 1), (term,)) for term in terms]
    telling = [n for n in sorted(range(len(terms)), key=counts.__getitem__) if 0 < counts[n] <= half]
    together = [*accumulate(counts[n] for n in telling)]
    some = bisect_right(together, _WEIGHED)
    # Not one is rare enough, or none is left out.
    if not some or some == sum(map(bool, counts)):
        return [_any(terms)]
    rarer, commoner = (_any([terms[n] for n in each]) for each in (telling[:some], telling[some:]))
    return [rarer, Match(f"({rarer}) AND ({commoner})")] if commoner else [rarer]


def _any(matches: Sequence[Match]) -> Match:
    return Match(" OR ".join(matches))


def _conditions(wanted: SearchFilter) -> tuple[str, tuple[Value, ...]]:
    return conditions(
        (f"kind {IN}", as_json(wanted.kinds) if wanted.kinds else None),
        ("part = ?", wanted.part),
        ("type = ?", wanted.type),
        ("status = ?", wanted.status),
        ("visibility = ?", wanted.visibility),
        ("guild_id = ?", wanted.guild_id),
        ("status <> ?", "retired" if wanted.status is None and not wanted.retired else None),
        ("at >= ?", None if wanted.after is None else sortable(wanted.after)),
        ("at < ?", None if wanted.before is None else sortable(wanted.before)),
    )


def _row_of(document: SearchDocument) -> Row:
    title, path, text = map(carried, (document.title, document.path, document.text))
    return (*_DOCUMENTS.row(document), _unspaced(f"{title} {path} {text}"))


def _is_unit(vector: bytes) -> bool:
    """Whether these are finite numbers that make a vector of length 1."""
    if len(vector) % 4:
        return False
    numbers = struct.unpack(f"<{len(vector) // 4}f", vector)
    return math.isclose(sum(map(mul, numbers, numbers)), 1, rel_tol=_UNIT_WITHIN)


def _unspaced(text: str) -> str:
    """Return the words in scripts without spaces: the engine takes a whole line of them for one word."""
    return "" if text.isascii() else " ".join(word for word in plain_words(text) if unspaced_runs(word))


def _scored(row: Sequence[Any]) -> Scored:
    rid, source_id, score, written = row
    return Scored(rid=rid, source_id=SourceId(source_id), score=score, written=bool(written))
