"""Vectors of one model, held in memory as in the database, and the search for the documents most similar to a vector.

Exact: every vector that the filter lets pass is compared. Changes by this or another process are read before each
search. Blocks, so it belongs on a worker thread. Only this module needs numpy; without vectors it is not loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from intern.core.memory import CacheBudget
from intern.core.search_documents import SearchFilter
from intern.stores.database import Row, Transaction
from intern.stores.tables.store import IN, json_array

Floats: TypeAlias = NDArray[np.float32]
Numbers: TypeAlias = NDArray[np.int64]
Slots: TypeAlias = NDArray[np.intp]

# Read at a time, and copied at a time when some change: all at once would need their room twice more.
_BLOCK = 4096
# Documents of a source, among the best: to put all in order takes as long as to compare them.
_DOCUMENTS = 4

# The values that filters compare, without the time: few different ones, however many documents.
_GROUP = "kind, part, type, status, visibility, guild_id"
_READ = f"select rid, source_id, at, vector, {_GROUP} from search_vectors join search_documents using (rid)"
_NEXT_BLOCK = f"{_READ} where model = ? and rid > ? and length(vector) = ? order by rid limit {_BLOCK}"
_THESE = f"{_READ} where rid {IN} and model = ? and length(vector) = ?"
_COUNT = "select count(*) from search_vectors where model = ?"
# Each by itself reads one end of the table; both at once would scan all of it.
_NOTED = "select coalesce((select min(n) from search_changes), 0), coalesce((select max(n) from search_changes), 0)"
_OF_KEYS = {
    "source": f"select rid from search_documents where source_id {IN}",
    "document": f"select rid from search_documents where id {IN}",
}
_SHRINK = "pragma shrink_memory"  # SQLite would keep 2 MB of the pages just read
_CHANGED = "select distinct rid from search_changes where n > ?"


class DocumentSimilarity(NamedTuple):
    """A document, and its similarity to the vector: 1 is the same, about 0 is unrelated."""

    rid: int
    likeness: float


class QueryVector:
    """A vector to compare with, and the model that it is of."""

    def __init__(self, model: str, vector: bytes) -> None:
        self.model = model
        self.width = len(vector)
        self.numbers: Floats = np.frombuffer(vector, dtype="<f4")


class VectorIndex:
    """The vectors of the model of the last search, and of no other.

    If they do not fit into the memory, each search reads all of them from the disk.
    """

    def __init__(self, room: CacheBudget) -> None:
        self._room = room
        self._lock = Lock()
        self._copy: _VectorColumns | None = None
        self.reads = 0
        """The number of times that all vectors were read, since memory did not hold those of the model."""

    @property
    def held(self) -> int:
        """The number of vectors in memory."""
        copy = self._copy
        return 0 if copy is None else copy.size

    def release(self) -> None:
        """Free the memory. A search under way keeps its vectors."""
        self._copy = None

    def find_similar(
        self,
        db: Transaction,
        asked: QueryVector,
        wanted: SearchFilter,
        limit: int,
        also: Collection[str] = (),
        *,
        among: Collection[int] | None = None,
    ) -> list[DocumentSimilarity]:
        """Return the `limit` results that are most similar, best first, a source by its best document; or `also`.

        Documents without a vector of the model are left out. `db` may see an older state than another search did. With
        `also` nothing but these results is compared, with `among` nothing but these documents: that takes no memory.
        """
        if among is not None:
            return _score_some(db, asked, wanted, among, limit)
        if also:
            rids = [cast("int", rid) for (rid,) in db.rows(_OF_KEYS[wanted.per], (json_array(also),))]
            return _score_some(db, asked, wanted, rids, len(also))
        with self._lock:
            copy = self._refresh_copy(db, asked)
            scored = _score_from_disk(db, asked, wanted) if copy is None else copy.score(asked.numbers, wanted)
        return scored.select_best(limit, wanted)

    def _refresh_copy(self, db: Transaction, asked: QueryVector) -> _VectorColumns | None:
        """Return the copy, at least as new as the state that `db` sees; None if there are too many vectors to hold."""
        copy = self._copy
        if copy is None or not copy.is_of(asked) or not copy.catch_up(db):
            self._copy = copy = None  # gives its room to the next one
            if not self._room.reserve(self, db.number(_COUNT, (asked.model,)) * asked.width):
                return None
            copy = _VectorColumns.read(db, asked)
            self.reads += 1
        self._copy = copy
        # Again: it may have grown, or was released meanwhile.
        if not self._room.reserve(self, copy.size * asked.width):
            self._copy = copy = None
        return copy


class _ScoredDocuments(NamedTuple):
    """Documents that a filter let pass, each with its similarity."""

    rids: Numbers
    sources: Numbers
    scores: Floats

    def select_best(self, limit: int, wanted: SearchFilter) -> list[DocumentSimilarity]:
        """Return the best documents, or the best one of each source, best first."""
        keys = self.sources if wanted.per == "source" else self.rids
        best = _first_of_each(keys, self._top_slots(_DOCUMENTS * limit), limit)
        if len(best) < limit:
            best = _first_of_each(keys, self._top_slots(len(self.rids)), limit)
        return [DocumentSimilarity(int(self.rids[slot]), float(self.scores[slot])) for slot in best.values()]

    def _top_slots(self, most: int) -> Slots:
        """Return the slots of the best, and of others that are as good as the last of them, in order."""
        slots = np.arange(len(self.scores))
        if most < len(slots):
            slots = np.flatnonzero(self.scores >= np.partition(self.scores, -most)[-most])
        return slots[np.lexsort((self.rids[slots], -self.scores[slots]))]


_Columns: TypeAlias = tuple[NDArray[Any], ...]
"""Vectors, and beside each the data of its document that filters and results need."""


class _VectorColumns:
    """Columns in blocks."""

    def __init__(self, asked: QueryVector) -> None:
        self._asked = asked
        self._seen = 0
        self._groups: dict[tuple[str, ...], int] = {}
        none = np.empty(0, np.int64)
        self._blocks: list[_Columns] = [(none, none, none, none, np.empty((0, asked.width // 4), np.float32))]

    @property
    def size(self) -> int:
        return sum(len(rids) for rids, *_ in self._blocks)

    @classmethod
    def read(cls, db: Transaction, asked: QueryVector) -> _VectorColumns:
        """Read all that `db` sees."""
        copy = cls(asked)
        _, copy._seen = _read_change_range(db)
        for rows in _read_blocks(db, asked):
            copy.add(rows)
        db.rows(_SHRINK)
        return copy

    def is_of(self, asked: QueryVector) -> bool:
        return (self._asked.model, self._asked.width) == (asked.model, asked.width)

    def catch_up(self, db: Transaction) -> bool:
        """Read changed vectors again; return False where the list of changes is too short."""
        oldest, newest = _read_change_range(db)
        if self._seen < oldest - 1:
            return False
        if newest > self._seen:
            changed = [rid for (rid,) in db.rows(_CHANGED, (self._seen,))]
            blocks, self._blocks = self._blocks, []
            for block in blocks:
                kept = ~np.isin(block[0], np.array(changed, np.int64))
                self._append(block if kept.all() else tuple(column[kept] for column in block))
            self.add(db.rows(_THESE, (json_array(changed), self._asked.model, self._asked.width)))
            self._seen = newest
        return True

    def add(self, rows: Sequence[Row]) -> None:
        """Add some documents from rows of the database."""
        if rows:
            self._append(self._build_columns(rows))

    def _append(self, block: _Columns) -> None:
        """Add a block, as a part of the last one if both fit into one."""
        if self._blocks and len(self._blocks[-1][0]) + len(block[0]) <= _BLOCK:
            block = tuple(map(np.concatenate, zip(self._blocks.pop(), block, strict=True)))
        self._blocks.append(block)

    def score(self, numbers: Floats, wanted: SearchFilter) -> _ScoredDocuments:
        """Compare those that the filter lets pass."""
        groups, found = np.array([_passes(group, wanted) for group in self._groups], bool), list[_ScoredDocuments]()
        for rids, sources, moments, group_of, vectors in self._blocks:
            # Not `@`: its threads wait for each other by spinning. On two busy cores that took 100 ms, this takes 13.
            scores: Floats = np.einsum("ij,j->i", vectors, numbers)
            passing = groups[group_of]
            if wanted.after is not None:
                passing &= moments >= _to_micros(wanted.after)
            if wanted.before is not None:
                passing &= moments < _to_micros(wanted.before)
            found.append(_ScoredDocuments(rids[passing], sources[passing], scores[passing]))
        return _join_scores(found)

    def _build_columns(self, rows: Sequence[Row]) -> _Columns:
        rids, sources, moments, vectors, *groups = zip(*rows, strict=True)
        group_of = [self._groups.setdefault(group, len(self._groups)) for group in zip(*groups, strict=True)]
        return (
            np.array(rids, np.int64),
            # 64 bits that differ for each source, since no one outside of this process can predict them.
            np.array([*map(hash, sources)], np.int64),
            np.array([each[:26] for each in moments], "datetime64[us]").astype(np.int64),
            np.array(group_of, np.int64),
            np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(rows), -1),
        )


def _first_of_each(keys: Numbers, slots: Slots, limit: int) -> dict[int, int]:
    """Return the first slot of each key."""
    first: dict[int, int] = {}
    for slot in slots:
        if len(first) == limit:
            break
        first.setdefault(int(keys[slot]), int(slot))
    return first


def _score_some(
    db: Transaction, asked: QueryVector, wanted: SearchFilter, rids: Collection[int], limit: int
) -> list[DocumentSimilarity]:
    """Compare these documents alone."""
    copy = _VectorColumns(asked)
    copy.add(db.rows(_THESE, (json_array(rids), asked.model, asked.width)))
    return copy.score(asked.numbers, wanted).select_best(limit, wanted)


def _score_from_disk(db: Transaction, asked: QueryVector, wanted: SearchFilter) -> _ScoredDocuments:
    """Compare all vectors without holding more than a block at a time."""
    parts = [_VectorColumns(asked).score(asked.numbers, wanted)]
    for rows in _read_blocks(db, asked):
        copy = _VectorColumns(asked)
        copy.add(rows)
        parts.append(copy.score(asked.numbers, wanted))
    return _join_scores(parts)


def _join_scores(parts: Sequence[_ScoredDocuments]) -> _ScoredDocuments:
    return _ScoredDocuments(*map(np.concatenate, zip(*parts, strict=True)))


def _read_blocks(db: Transaction, asked: QueryVector) -> Iterator[list[Row]]:
    rid: Any = -(2**63)
    while rows := db.rows(_NEXT_BLOCK, (asked.model, rid, asked.width)):
        yield rows
        rid = rows[-1][0]


def _passes(group: tuple[str, ...], wanted: SearchFilter) -> bool:
    kind, *others = group
    asked = (wanted.part, wanted.type, wanted.status, wanted.visibility, wanted.guild_id)
    same = all(want is None or want == have for want, have in zip(asked, others, strict=True))
    known = wanted.status is not None or wanted.retired or group[3] != "retired"
    return same and known and (not wanted.kinds or kind in wanted.kinds)


def _to_micros(moment: datetime) -> int:
    """Return a time in microseconds, as the copy holds it."""
    return int(np.datetime64(moment.astimezone(UTC).replace(tzinfo=None), "us").astype(np.int64))


def _read_change_range(db: Transaction) -> tuple[int, int]:
    return msgspec.convert(db.row(_NOTED), tuple[int, int])
