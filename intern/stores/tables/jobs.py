"""Jobs: a command submits one and waits; only the holder of the folder's lock claims it.

A job is done at least once, so the work of each kind must bear repetition.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from intern.stores.database import Transaction
from intern.stores.tables.store import IN, OURS, Store, Table, text_array, writes

# A job that ended its process this often is to blame; without a bound it would end every process to come.
_MOST_CLAIMS = 3

# A command waits for its job, so only the latest outcomes are ever read again.
_OUTCOMES_KEPT = 1000


class Job(Struct, frozen=True, kw_only=True):
    """A piece of work for the process that holds the folder."""

    id: int
    kind: str
    key: str
    payload: bytes


class JobOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a job; `error` is None if it succeeded."""

    result: bytes | None
    error: str | None
    exit_code: int
    """The exit code for the waiting command, as if it had done the job itself."""


_JOBS = Table("jobs", Job)
_OUTCOMES = Table("jobs", JobOutcome)
_EMPTIED = "payload = case when kind in ('capture', 'import', 'import_notes') then ? else payload end"


class JobQueue(Store):
    """The queue of jobs in the database, first in, first out but for kinds left waiting."""

    @writes
    def submit(self, db: Transaction, kind: str, payload: bytes, key: str) -> int:
        """Add a job and return its id; if one of the same kind and key waits unclaimed, return the id of that one."""
        return db.number(
            f"select id from jobs {OURS} and state = 'waiting' and kind = ? and key = ? order by id", (kind, key)
        ) or db.number(
            "insert into jobs (community, kind, key, payload, state) values (:community, ?, ?, ?, 'waiting')"
            " returning id",
            (kind, key, payload),
        )

    async def count_waiting(self) -> int:
        """Return how many jobs wait."""
        return await self.db.number(f"select count(*) from jobs {OURS} and state = 'waiting'")

    async def count_open(self) -> int:
        """Return how many jobs wait or are in work."""
        return await self.db.number(f"select count(*) from jobs {OURS} and state <> 'finished'")

    @writes
    def claim(self, db: Transaction, *, but: Collection[str] = ()) -> Job | None:
        """Claim the oldest waiting job that is of none of the kinds `but`, or None. No two claims ever get the same."""
        row = db.row(
            f"update jobs set state = 'claimed', claims = claims + 1 {OURS} and state = 'waiting' and id ="
            f" (select min(id) from jobs {OURS} and state = 'waiting' and kind not {IN}) returning {_JOBS.columns}",
            (text_array(but),),
        )
        return None if row is None else _JOBS.from_row(row)

    async def finish(
        self, job_id: int, *, result: bytes | None = None, error: str | None = None, exit_code: int = 0
    ) -> None:
        """Save the outcome of a claimed job. A job that has ended keeps its first outcome."""
        # The capture is in the archive by then, its secrets masked, so its original text need not stay here.
        await self.db.run(
            f"update jobs set state = 'finished', result = ?, error = ?, exit_code = ?, {_EMPTIED}"
            f" {OURS} and id = ? and state <> 'finished'",
            (result, error, exit_code, b"", job_id),
        )

    async def result(self, job_id: int) -> JobOutcome | None:
        """Return the outcome of a job; None while it waits or is in work. Raises LookupError for an unknown id."""
        row = await self.db.row(f"select state, {_OUTCOMES.columns} from jobs {OURS} and id = ?", (job_id,))
        if row is None:
            raise LookupError(f"there is no job {job_id}")
        return _OUTCOMES.from_row(row[1:]) if row[0] == "finished" else None

    @writes
    def reclaim(self, db: Transaction) -> int:
        """Put back jobs that a process claimed and did not finish; return how many. Only for a new holder of the lock.

        A job that was claimed three times without an end fails instead.
        """
        db.run(
            f"update jobs set state = 'finished', exit_code = 3, error = ?, {_EMPTIED}"
            f" {OURS} and state = 'claimed' and claims >= ?",
            (f"the job was begun {_MOST_CLAIMS} times, and each time the process ended before it", b"", _MOST_CLAIMS),
        )
        reclaimed = db.run(f"update jobs set state = 'waiting' {OURS} and state = 'claimed'")
        db.run(
            f"delete from jobs {OURS} and state = 'finished' and id <="
            f" (select id from jobs {OURS} order by id desc limit 1 offset ?)",
            (_OUTCOMES_KEPT,),
        )
        return reclaimed
