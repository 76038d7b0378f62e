"""Jobs: what a command asks of the process that holds the data folder.

Anybody may submit and wait; only the holder of the folder's lock claims. A job is done at least once, so the work
behind each kind must bear repetition.

`Remains` takes people's words out of jobs, and out of posted answers and accounts of questions. A store with a business
of its own (pending captures) sees to it itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set as AbstractSet
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from intern.core.flow import CaptureRequest
from intern.core.ids import MessageId, UserId
from intern.core.records import Capture
from intern.stores.blocks import bare
from intern.stores.sqlite.columns import IN, Table, listed
from intern.stores.sqlite.database import Database, Transaction

# A job that ended its process this often is to blame; without a bound it would end every process to come.
_MOST_CLAIMS = 3

# A command waits for its job, so only the latest outcomes are ever read again.
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


S = TypeVar("S", bound=Struct)

_CAPTURES = "select id, kind, state, payload, coalesce(result, x'') from jobs where kind in ('capture', 'import')"
_NOTHING = b"null"


class Remains:
    """Traces, posts, jobs, votes and greetings. All methods raise KnowledgeError, and nothing is changed then."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def written_by(self, user_id: UserId) -> frozenset[MessageId]:
        """Return a member's messages that are on their way to the archive, or were brought there by a command."""

        def work(db: Transaction) -> frozenset[MessageId]:
            requests = _readable(db, "select request from pending_captures", CaptureRequest)
            waiting = {each.id for request in requests for each in request.messages if each.author.id == user_id}
            captures = (each for job in _jobs(db) for each in _captures_in(job.payload) or ())
            return frozenset(waiting.union(*(_by(capture, user_id) for capture in captures)))

        return await self._db.read(work)

    async def held(self, message_ids: Collection[MessageId]) -> bool:
        """Whether anything here is about these messages."""
        gone = frozenset(map(bare, message_ids))

        def work(db: Transaction) -> bool:
            return any(db.row(statement, (listed(gone),) * statement.count("?")) for statement in _ABOUT) or any(
                _names(job.payload, gone) for job in _jobs(db)
            )

        return await self._db.read(work)

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Take messages out.

        Replies to them are dropped if they are not on Discord yet. Of all replies that are posted or given
        up only the ids stay: they may quote any message, and their text is not needed any more.
        """
        gone = frozenset(map(bare, message_ids))

        def work(db: Transaction) -> None:
            for statement in _FORGETTING:
                db.run(statement, (listed(gone),) * statement.count("?"))
            for job in _jobs(db):
                if _names(job.payload, gone) or _names(job.result, gone):
                    payload = _NOTHING if job.state == "finished" else _left(job, gone)
                    # Of an import, the result is numbers; of a capture, it is the pair.
                    result = job.result if job.kind == "import" else _NOTHING
                    db.run(
                        "update jobs set payload = ?, result = ? where id = ?",
                        (payload, result if job.state == "finished" else None, job.id),
                    )

        await self._db.write(work)

    async def forget_member(self, user_id: UserId) -> None:
        """Take out a member's votes, and that they were greeted."""

        def work(db: Transaction) -> None:
            db.run("delete from feedback where user_id = ?", (user_id,))
            db.run("delete from greeted where user_id = ?", (user_id,))

        await self._db.write(work)


_POSTS = f"(question_id {IN} or question_id in (select question_id from post_messages where message_id {IN}))"
_TRACES = f"rid in (select trace from trace_messages where message_id {IN})"
_ABOUT = (
    f"select 1 from traces where {_TRACES}",
    f"select 1 from posts where {_POSTS}",
    f"select 1 from pending_messages where message_id {IN}",
)
_FORGETTING = (
    f"delete from traces where {_TRACES}",
    f"update posts set state = 'dropped', reason = 'forgotten' where state = 'open' and {_POSTS}",
    "update post_parts set text = '' where question_id in (select question_id from posts where state <> 'open')",
)


def _readable(db: Transaction, statement: str, kind: type[S]) -> Iterator[S]:
    """Yield the values of a column of JSON; skip those that cannot be decoded, since their authors are unknown."""
    for (data,) in msgspec.convert(db.rows(statement), list[tuple[bytes]]):
        try:
            yield msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError:
            continue


class _Job(NamedTuple):
    """A job that holds captures."""

    id: int
    kind: str
    state: str
    payload: bytes
    result: bytes


def _jobs(db: Transaction) -> list[_Job]:
    return msgspec.convert(db.rows(_CAPTURES), list[_Job])


def _captures_in(data: bytes) -> Sequence[Capture] | None:
    """Return the captures in a payload or result; None where it cannot be decoded."""
    try:
        found: Capture | list[Capture] | None = msgspec.json.decode(
            data or _NOTHING, type=Capture | list[Capture] | None
        )
    except msgspec.MsgspecError:
        return None
    match found:
        case None:
            return ()
        case Capture():
            return (found,)
        case _:
            return found


def _by(capture: Capture, user_id: UserId) -> Iterator[MessageId]:
    written = zip(capture.message_ids, capture.author_ids, strict=False)
    return (message_id for message_id, author in written if author == user_id)


def _names(data: bytes, gone: AbstractSet[str]) -> bool:
    """Whether one of these messages stands in a job's payload or result."""
    captures = _captures_in(data)
    if captures is None:
        return any(each.encode() in data for each in gone)
    return any(not gone.isdisjoint(map(bare, capture.message_ids)) for capture in captures)


def _left(job: _Job, gone: AbstractSet[str]) -> bytes:
    """Return a payload without these messages; none of a payload that cannot be decoded, since no one could do it."""
    captures = [_without(capture, gone) for capture in _captures_in(job.payload) or ()]
    if job.kind == "import":
        return msgspec.json.encode(captures)
    return msgspec.json.encode(captures[0] if captures else None)


def _without(capture: Capture, gone: AbstractSet[str]) -> Capture:
    kept = [n for n, message_id in enumerate(capture.message_ids) if bare(message_id) not in gone]
    aligned = len(capture.turns) == len(capture.message_ids)
    return replace(
        capture,
        turns=tuple(capture.turns[n] for n in kept) if aligned else (),
        message_ids=tuple(capture.message_ids[n] for n in kept) if aligned else (),
        author_ids=tuple(capture.author_ids[n] for n in kept) if aligned and capture.author_ids else (),
        author_names=tuple(capture.author_names[n] for n in kept) if aligned and capture.author_names else (),
    )
