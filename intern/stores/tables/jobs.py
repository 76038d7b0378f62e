"""Jobs: a command submits one and waits; only the holder of the folder's lock claims it.

A job is done at least once, so the work of each kind must bear repetition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
from anyio import sleep
from anyio.lowlevel import checkpoint
from msgspec import Struct

from intern.core.errors import ConfigError, InternError, KnowledgeError
from intern.core.log import redact_text
from intern.core.text.encoding import encode_json
from intern.stores.database import Transaction
from intern.stores.tables.store import IN, OURS, Store, Table, text_array, writes

if TYPE_CHECKING:
    from typing_extensions import TypeForm  # for type checkers alone: it says that a union is a type, too

# A job that ended its process this often is to blame; without a bound it would end every process to come.
_MOST_CLAIMS = 3

# A command waits for its job, so only the latest outcomes are ever read again.
_OUTCOMES_KEPT = 1000

_POLL_SECONDS = 0.1  # a person waits

TakesT = TypeVar("TakesT")
GivesT = TypeVar("GivesT")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind(Generic[TakesT, GivesT]):
    """A kind of job. What it takes and gives crosses to another process as JSON."""

    name: str
    takes: TypeForm[TakesT]
    gives: TypeForm[GivesT]
    at_once: int = 1
    """The number of its jobs that may run side by side."""
    wakes: bool = False
    """Whether archive, topics or sources changed when it ends, so that the actors that follow them look at once."""

    def decode_given(self, payload: bytes) -> TakesT:
        """Return the value that a job was given. Raises msgspec.DecodeError."""
        given: TakesT = msgspec.json.decode(payload, type=self.takes)
        return given

    def decode_result(self, result: bytes) -> GivesT:
        """Return the result of a job. Raises msgspec.DecodeError."""
        given: GivesT = msgspec.json.decode(result, type=self.gives)
        return given


class Job(Struct, frozen=True, kw_only=True):
    """A piece of work for the process that holds the folder."""

    id: int
    kind: str
    payload: bytes


JobOutcome = bytes | InternError
"""The encoded result of a job, or the error that ended it."""

_JOBS = Table("jobs", Job)


class JobQueue(Store):
    """The queue of jobs in the database, first in, first out but for kinds left waiting."""

    async def submit(self, kind: JobKind[TakesT, GivesT], given: TakesT) -> int:
        """Add a job and return its id; if an equal one waits unclaimed, return the id of that one."""
        payload = encode_json(given)
        return await self._add(kind.name, payload, sha256(payload).hexdigest())

    @writes
    def _add(self, db: Transaction, kind: str, payload: bytes, key: str) -> int:
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

    async def finish(self, job_id: int, outcome: JobOutcome) -> None:
        """Save the outcome of a claimed job. A job that has ended keeps its first outcome."""
        ended: tuple[bytes | None, str | None, int]
        if isinstance(outcome, InternError):
            ended = None, redact_text(str(outcome)), outcome.exit_code
        else:
            ended = outcome, None, 0
        # A capture is in the archive by then, its secrets masked, so its original text need not stay here.
        await self.db.run(
            f"update jobs set state = 'finished', payload = ?, result = ?, error = ?, exit_code = ?"
            f" {OURS} and id = ? and state <> 'finished'",
            (b"", *ended, job_id),
        )

    async def wait(
        self, kind: JobKind[TakesT, GivesT], job_id: int, meanwhile: Callable[[], Awaitable[object]] = checkpoint
    ) -> GivesT:
        """Wait for the result of a job, with calls of `meanwhile`. Raises the error that ended it."""
        while (outcome := await self.result(job_id)) is None:
            await meanwhile()
            await sleep(_POLL_SECONDS)
        if isinstance(outcome, InternError):
            raise outcome
        return kind.decode_result(outcome)

    async def result(self, job_id: int) -> JobOutcome | None:
        """Return the outcome of a job; None while it waits or is in work. Raises LookupError for an unknown id.

        An error comes as the family that has its exit code: ConfigError or KnowledgeError.
        """
        row = await self.db.row(f"select state, result, error, exit_code from jobs {OURS} and id = ?", (job_id,))
        if row is None:
            raise LookupError(f"there is no job {job_id}")
        state, result, error, exit_code = msgspec.convert(row, tuple[str, bytes | None, str | None, int | None])
        if state != "finished":
            return None
        if error is not None:
            return (ConfigError if exit_code == ConfigError.exit_code else KnowledgeError)(error)
        return result or b"null"

    @writes
    def reclaim(self, db: Transaction) -> int:
        """Put back jobs that a process claimed and did not finish; return how many. Only for a new holder of the lock.

        A job that was claimed three times without an end fails instead.
        """
        db.run(
            f"update jobs set state = 'finished', exit_code = 3, payload = ?, error = ?"
            f" {OURS} and state = 'claimed' and claims >= ?",
            (b"", f"the job was begun {_MOST_CLAIMS} times, and each time the process ended before it", _MOST_CLAIMS),
        )
        reclaimed = db.run(f"update jobs set state = 'waiting' {OURS} and state = 'claimed'")
        db.run(
            f"delete from jobs {OURS} and state = 'finished' and id <="
            f" (select id from jobs {OURS} order by id desc limit 1 offset ?)",
            (_OUTCOMES_KEPT,),
        )
        return reclaimed
