"""The vectors of a community in an engine of their own, which follows the change log as search.db does.

The engine proposes documents, and search.db compares them: so it ranks as a search without an engine does, and finds
nothing that is gone. While the engine is away, or far behind, local vectors serve instead.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from operator import itemgetter
from typing import cast

from anyio import Lock, current_time

from intern.core.clock import Wakeup
from intern.core.errors import VectorEngineError
from intern.core.log import get_logger
from intern.core.search_documents import SearchFilter
from intern.stores.database import Database, Transaction
from intern.stores.tables.change_log import ChangeLogEntry, read_changes
from intern.stores.tables.documents import DOCUMENTS, ensure_identity
from intern.stores.tables.positions import read_position, save_position
from intern.stores.tables.store import NUMBER_IN, OURS, Store, json_array
from intern.stores.vector_engines.engine import NearDocument, VectorEngine, VectorPoint

_log = get_logger(__name__)

_SOME = 256
"""Changes that are copied before the position moves."""
_MOST_BEHIND = 1000
"""Changes that a search compares beside the engine's proposals. With more, local vectors serve instead."""
_LEFT_ALONE = 30.0  # seconds without a search in an engine that failed
_PER_SOURCE = 4
"""Documents to ask for where sources are wanted."""

_KINDS = ("document", "vector")
_CHANGED = f"select distinct name from changes {OURS} and kind in {_KINDS} and position > ?"
_POINTS = (
    f"select rid, model, vector, {DOCUMENTS.columns} from documents join document_vectors using (community, rid)"
    f" {OURS} and model = ? and rid {NUMBER_IN}"
)
_VECTOR = f"select vector from document_vectors {OURS} and model = ?"


class VectorCopy(Store, Wakeup):
    """The vectors of one model in an engine. Only the process that holds the folder's lock writes there."""

    def __init__(self, db: Database, engine: VectorEngine, model: str) -> None:
        Store.__init__(self, db)
        Wakeup.__init__(self)
        self.engine = engine
        self._model = model
        self._follower = f"vectors of {model} in {engine.where}"
        self._turn = Lock()
        self._is_marked = False
        self._left_alone_until = 0.0
        self._troubles: dict[str, str] = {}
        self.away_since: datetime | None = None
        """The time since when something fails; None while all works."""
        self.failures = 0

    @property
    def trouble(self) -> str:
        """The current failures; empty while all works."""
        return "; ".join(dict.fromkeys(self._troubles.values()))

    async def catch_up(self) -> None:
        """Copy changed vectors and delete removed ones. Raises VectorEngineError; the rest is then still to be done."""
        async with self._turn:
            with self._track_failures("copying"):
                await self._copy_changes()

    async def refill(self) -> None:
        """Delete all vectors in the engine, and copy all again. Raises VectorEngineError."""
        async with self._turn:
            await self._save_position(0)
        await self.catch_up()

    async def propose_documents(self, vector: bytes, model: str, wanted: SearchFilter, limit: int) -> list[int] | None:
        """Return documents that include the `limit` sources most similar to a vector.

        None if local vectors must serve instead.
        """
        changed = await self.db.read(self._read_changed)
        if changed is None or model != self._model or current_time() < self._left_alone_until:
            return None
        try:
            with self._track_failures("searching"):
                found = await self._find_nearest(vector, wanted, limit + len(changed))
        except VectorEngineError:
            self._left_alone_until = current_time() + _LEFT_ALONE
            self.wake()
            return None
        return [*changed, *(each.rid for each in found)]

    async def count(self) -> tuple[int, int]:
        """Return how many vectors the engine holds, and how many there are. Raises VectorEngineError."""
        there = await self.db.number(f"select count(*) from ({_VECTOR}) as vectors", (self._model,))
        return await self.engine.count(self.db.community, self._model), there

    def count_behind(self, db: Transaction) -> int:
        """Return the number of documents still to be copied or deleted."""
        return db.number(f"select count(*) from ({_CHANGED}) as logged", (self._read_position(db),))

    async def _find_nearest(self, vector: bytes, wanted: SearchFilter, limit: int) -> list[NearDocument]:
        most = limit if wanted.per == "document" else limit * _PER_SOURCE
        while True:
            found = await self.engine.find_nearest(self.db.community, self._model, vector, wanted, most)
            enough = wanted.per == "document" or len({each.source_id for each in found}) >= limit
            if enough or len(found) < most:
                return [*found]
            most *= _PER_SOURCE

    def _read_changed(self, db: Transaction) -> list[int] | None:
        """Return the changes since the last write to the engine; None if there are too many."""
        position = self._read_position(db)
        changed = db.texts(f"{_CHANGED} limit ?", (position, _MOST_BEHIND + 1))
        return None if not position or len(changed) > _MOST_BEHIND else [*map(int, changed)]

    async def _copy_changes(self) -> None:
        community, (origin, _) = self.db.community, await self.db.write(ensure_identity)
        position = await self._find_position(origin)
        await self._save_position(position)
        if not position:
            await self.engine.delete_points(community)
        for until, rids in split_changes(await self.db.read(lambda db: read_changes(db, position, _KINDS))):
            points = await self.db.read(partial(self._read_points, rids))
            some = points[0].vector if points else await self.db.read(self._read_any_vector)
            if some is None:  # then the engine has to hold nothing
                await self._save_position(0)
                await self.engine.delete_points(community)
                return
            await self.engine.upsert_points(community, points)
            await self.engine.delete_points(community, rids, points)
            await self._save_position(until)
            await self.engine.write_mark(community, f"{origin} {until}", some)
            self._is_marked = True

    async def _find_position(self, origin: str) -> int:
        """Return the position up to which the engine has all, by its own mark; 0 if it must be filled anew.

        It may have been lost or emptied, or either side may have been restored from a backup.
        """
        said = await self.engine.read_mark(self.db.community)
        theirs, _, position = said.partition(" ")
        stored = await self.db.read(self._read_position)
        if theirs == origin and int(position) <= stored:
            return int(position)
        if said and theirs != origin and self._is_marked:
            await self._save_position(0)
            raise self.engine.build_error("another database writes there, too; give each its own search.collection")
        if stored or said:
            _log.warning("vector_engine_refilled", engine=self.engine.where)
        return 0

    def _read_position(self, db: Transaction) -> int:
        return int(read_position(db, self._follower) or 0)

    def _read_points(self, rids: Sequence[int], db: Transaction) -> list[VectorPoint]:
        rows = db.rows(_POINTS, (self._model, json_array(rids)))
        return [
            VectorPoint(cast("int", rid), str(model), DOCUMENTS.from_row(document), cast("bytes", vector))
            for rid, model, vector, *document in rows
        ]

    def _read_any_vector(self, db: Transaction) -> bytes | None:
        row = db.row(f"{_VECTOR} limit 1", (self._model,))
        return None if row is None else cast("bytes", row[0])

    async def _save_position(self, position: int) -> None:
        if await self.db.read(self._read_position) != position:
            await self.db.write(lambda db: save_position(db, self._follower, str(position)))

    @contextmanager
    def _track_failures(self, what: str) -> Generator[None]:
        """Note whether the engine works, and log each change of that once."""
        try:
            yield
        except VectorEngineError as error:
            self.failures += 1
            self._troubles[what] = str(error)
            if self.away_since is None:
                self.away_since = self.clock.now()
                _log.warning("vector_engine_away", reason=str(error))
            raise
        self._troubles.pop(what, None)
        if self.away_since is not None and not self._troubles:
            self.away_since = None
            _log.info("vector_engine_back", engine=self.engine.where)


def split_changes(changes: Sequence[ChangeLogEntry], some: int = _SOME) -> Iterator[tuple[int, list[int]]]:
    """Split the changes: yield documents, and the position up to which no other document changed last."""
    last = {each.name: each.position for each in changes}
    rids: list[int] = []
    reached = 0
    for name, position in sorted(last.items(), key=itemgetter(1)):
        if len(rids) >= some and position != reached:
            yield reached, rids
            rids = []
        rids.append(int(name))
        reached = position
    if rids:
        yield reached, rids
