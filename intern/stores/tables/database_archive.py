"""The archive of a community that may move from process to process: its week files are rows of the database.

The files have the same bytes as on disk, so all that reads an archive reads this one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, TypeVar

from anyio import CancelScope, from_thread

from intern.core.clock import Clock
from intern.stores.archive import Archive
from intern.stores.block_format import erase_messages
from intern.stores.database import Database, Row, Transaction, Value
from intern.stores.tables.store import OURS

T = TypeVar("T")

_ADD = "insert into captures (community, week, start, block) values (:community, ?, ?, ?)"


class DatabaseArchive(Archive):
    """An archive in the database. What appends or erases must run in a worker thread of the event loop."""

    def __init__(self, db: Database, *, clock: Clock | None = None) -> None:
        self._db = db
        super().__init__(Path(f"the archive of {db.community} in {db.place}"), clock=clock)

    def file_stamps(self) -> dict[str, tuple[int, int]]:
        """Return the number of blocks and of bytes of each week."""
        rows = self._query(f"select week, count(*), sum(length(block)) from captures {OURS} group by week")
        return {str(week): (int(str(size)), int(str(number))) for week, number, size in rows}

    def _week_files(self) -> list[str]:
        return [str(week) for (week,) in self._query(f"select distinct week from captures {OURS} order by week")]

    @contextmanager
    def _open_week(self, week: str) -> Generator[BinaryIO]:
        blocks = f"select block from captures {OURS} and week = ? order by start"
        yield BytesIO(b"".join(map(_block_bytes, self._query(blocks, week))))

    def _read_block(self, week: str, start: int, length: int) -> bytes:
        block = f"select block from captures {OURS} and week = ? and start = ?"
        return b"".join(map(_block_bytes, self._query(block, week, start)))[:length]

    def _query(self, statement: str, *values: Value) -> list[Row]:
        return self._db.read_blocking(lambda db: db.rows(statement, values), steady=False)

    def _append(self, week: str, block: bytes) -> int:
        end = f"select max(start + length(block)) from captures {OURS} and week = ?"

        def work(db: Transaction) -> int:
            start = db.number(end, (week,))
            db.run(_ADD, (week, start, block))
            return start

        return self._write(work)

    def import_weeks(self, folder: Path) -> None:
        """Import the week files of a folder, unchanged; they replace rows of the same weeks. Raises KnowledgeError."""
        for week, file in Archive(folder).open_weeks():
            self._replace_week(week, file, frozenset())

    def _rewrite(self, week: str, doomed: frozenset[str]) -> None:
        with self._open_week(week) as file:
            self._replace_week(week, file, doomed)

    def _replace_week(self, week: str, file: BinaryIO, doomed: frozenset[str]) -> None:
        pieces = [piece.data for piece in erase_messages(file, doomed) if piece.data]

        def work(db: Transaction) -> None:
            db.run(f"delete from captures {OURS} and week = ?", (week,))
            start = 0
            for data in pieces:
                db.run(_ADD, (week, start, data))
                start += len(data)

        self._write(work)

    def _write(self, work: Callable[[Transaction], T]) -> T:
        async def write_shielded() -> None:
            # Else a row might be there that this process does not know of.
            with CancelScope(shield=True):
                done.append(await self._db.write(work))

        done: list[T] = []
        from_thread.run(write_shielded)
        return done[0]


def _block_bytes(row: tuple[object, ...]) -> bytes:
    [data] = row
    assert isinstance(data, bytes)
    return data
