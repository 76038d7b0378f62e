"""Jobs: what a command asks of the process that holds the data folder.

Anybody may submit and wait; only the holder of the folder's lock claims. A job is done at least once, so the work
behind each kind must bear repetition.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec import Struct

from intern.stores.sqlite.columns import IN, Table, listed
from intern.stores.sqlite.database import Database, Transaction

# A job that ended its process this often is to blame; without a bound it would end every process to come.
_MOST_CLAIMS = 3

# Whoever asked for a job waits for it, so only the latest outcomes are ever read again.
_OUTCOMES_KEPT = 1000


class Job(Struct, frozen=True, kw_only=True):
    """Something to do."""

    id: int
    kind: str
    key: str
    payload: bytes


class JobOutcome(Struct, frozen=True, kw_only=True):
    """How a job ended; `error` is None where it was done."""

    result: bytes | None
    error: str | None
    exit_code: int
    """For the command that waits: what it would have ended with, had it done the job itself."""


_JOBS = Table("jobs", Job)
_OUTCOMES = Table("jobs", JobOutcome)
_EMPTIED = "payload = case when kind in ('capture', 'import', 'import_notes') then x'' else payload end"


class Jobs:
    """The queue of jobs in the database, first in, first out but for kinds left waiting. All raise KnowledgeError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def submit(self, kind: str, payload: bytes, key: str) -> int:
        """Ask for a job and get its id; while one of the same kind and key waits unclaimed, get the id of that one."""

        def work(db: Transaction) -> int:
            row = db.row(
                "select id from jobs where state = 'waiting' and kind = ? and key = ? order by id", (kind, key)
            ) or db.row(
                "insert into jobs (kind, key, payload, state) values (?, ?, ?, 'waiting') returning id",
                (kind, key, payload),
            )
            return msgspec.convert(row, tuple[int])[0]

        return await self._db.write(work)

    async def claim(self, *, but: Collection[str] = ()) -> Job | None:
        """Take the oldest waiting job that is of none of the kinds `but`, or None. No two claims ever get the same."""
        row = await self._db.write(
            lambda db: db.row(
                "update jobs set state = 'claimed', claims = claims + 1 where id = (select min(id) from jobs"
                f" where state = 'waiting' and kind not {IN}) returning {_JOBS.columns}",
                (listed(but),),
            )
        )
        return None if row is None else _JOBS.struct(row)

    async def finish(
        self, job_id: int, *, result: bytes | None = None, error: str | None = None, exit_code: int = 0
    ) -> None:
        """Say how a claimed job ended. A job that has ended keeps its first outcome."""
        # What was captured is in the archive by then, its secrets masked, and need not lie here as it came.
        await self._db.run(
            f"update jobs set state = 'finished', result = ?, error = ?, exit_code = ?, {_EMPTIED}"
            " where id = ? and state <> 'finished'",
            (result, error, exit_code, job_id),
        )

    async def result(self, job_id: int) -> JobOutcome | None:
        """How the job ended; None while it waits or is in work. Raises LookupError for an id that was never given."""
        row = await self._db.row(f"select state, {_OUTCOMES.columns} from jobs where id = ?", (job_id,))
        if row is None:
            raise LookupError(f"there is no job {job_id}")
        return _OUTCOMES.struct(row[1:]) if row[0] == "finished" else None

    async def reclaim(self) -> int:
        """Put back what a process claimed and did not finish, and say how many jobs. For a new holder of the lock only.

        A job that was claimed three times without an end fails instead.
        """

        def work(db: Transaction) -> int:
            db.run(
                f"update jobs set state = 'finished', exit_code = 3, error = ?, {_EMPTIED}"
                " where state = 'claimed' and claims >= ?",
                (f"the job was begun {_MOST_CLAIMS} times, and each time the process ended before it", _MOST_CLAIMS),
            )
            reclaimed = db.run("update jobs set state = 'waiting' where state = 'claimed'")
            db.run(
                "delete from jobs where state = 'finished' and id <= (select max(id) from jobs) - ?", (_OUTCOMES_KEPT,)
            )
            return reclaimed

        return await self._db.write(work)
