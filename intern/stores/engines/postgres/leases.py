"""Leases: which of the processes that share a database serves which shard, and until when.

A lease has a token, which grows with each take-over, and ends by the server's clock. The token fences each
write of a community on a shard (`fence_database`). So a process that lost its lease unknowingly writes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from secrets import token_hex
from typing import TYPE_CHECKING, Final, NamedTuple

from anyio import CancelScope, sleep

from intern.stores.database import PROCESS, Transaction

if TYPE_CHECKING:
    from intern.stores.engines.postgres.database import PostgresDatabase

LEASE_SECONDS: Final = 10.0

# Tables of the whole database, and of no community: so row-level security ignores them.
TABLES = """
    create table leases (
        shard bigint primary key,
        shards bigint not null,
        token bigint not null,
        holder text,
        ends_at timestamptz not null
    );
    create table lease_members (holder text primary key, shards bigint not null, seen_at timestamptz not null);
    create table identify_turns (bucket bigint primary key, free_at timestamptz not null, turn text not null)
"""

# A take-over waits for `key share`; a renewal, which changes no key, does not.
HELD = (
    "select pg_current_xact_id()::text from leases"
    " where shard = {} and token = {} and ends_at > clock_timestamp() for key share"
)
"""Opens a transaction: no row without the lease."""

HOLDER = "select holder from leases where ends_at > clock_timestamp() order by shard limit 1"

_COMMUNITY = ":leases"
"""No community has this name. Processes join one after another, as the writes of a community do."""

_CONNECTING_SECONDS = 6.0
"""The seconds after which a turn to IDENTIFY ends, since its process may have died. Connecting takes a moment."""
_BETWEEN_SECONDS = 5.0
"""Discord takes one IDENTIFY of a bucket in 5 seconds."""
_LOOK_SECONDS = 0.2  # between two looks whether the turn before has ended

# A process that is paused within a transaction would keep its locks, also those that a take-over needs. No timeout of
# the server ends such a transaction for sure: psycopg ends a pipeline with Flush, after which it counts no idle time.
_STALLED_SECONDS = 5.0
_END_STALLED = """
    select pg_terminate_backend(pid, 1000) from pg_locks join pg_stat_activity using (pid)
    where relation in (to_regclass('leases'), to_regclass('identify_turns'), to_regclass('hosted_communities'))
    and mode in ('RowShareLock', 'RowExclusiveLock') and datname = current_database()
    and wait_event_type = 'Client' and state_change < pg_catalog.clock_timestamp() - make_interval(secs => ?)
"""

_JOIN = """
    insert into lease_members (holder, shards, seen_at) values (?, ?, clock_timestamp())
    on conflict (holder) do update set shards = excluded.shards, seen_at = excluded.seen_at
"""
_AGREED = """
    select shards from lease_members where holder <> ? and seen_at > clock_timestamp() - make_interval(secs => ?)
    union all select shards from leases where holder <> ? and ends_at > clock_timestamp() limit 1
"""
_RENEW = """
    update leases set ends_at = clock_timestamp() + make_interval(secs => ?)
    where holder = ? and ends_at > clock_timestamp() returning shard, token
"""
_TAKE = """
    update leases set holder = ?, shards = ?, token = token + 1, ends_at = clock_timestamp() + make_interval(secs => ?)
    where shard in (
        select shard from leases where ends_at <= clock_timestamp()
        and shard in (select cast(value as integer) from json_each(?)) for update skip locked
    ) returning shard, token
"""
_TURN = """
    insert into identify_turns (bucket, free_at, turn) values (?, clock_timestamp() + make_interval(secs => ?), ?)
    on conflict (bucket) do update set free_at = excluded.free_at, turn = excluded.turn
    where identify_turns.free_at <= clock_timestamp() returning bucket
"""
_FREE_IN = """
    select cast(extract(epoch from free_at - clock_timestamp()) as double precision) from identify_turns
    where bucket = ?
"""
_NEXT_END = """
    select cast(extract(epoch from min(ends_at) - clock_timestamp()) as double precision) from leases
    where holder <> ? and shard < ? and ends_at > clock_timestamp()
"""


class Lease(NamedTuple):
    """A shard that a process serves, and the token that its writes show."""

    shard: int
    token: int


class LeaseStatus(NamedTuple):
    """The state of the leases after a heartbeat."""

    held: Mapping[int, int]
    """The tokens of its own leases, by shard; all of them were renewed."""
    free: tuple[int, ...]
    """The shards that have no lease."""
    members: int
    """The number of processes that share the shards, with this one unless it leaves."""
    next_end: float = inf
    """Seconds until the first lease of another process ends, unless it is renewed."""


class LeaseStore:
    """The leases in a database, for one process. Every call may raise KnowledgeError."""

    def __init__(self, db: PostgresDatabase, holder: str = "", *, seconds: float = LEASE_SECONDS) -> None:
        self._plain = db
        # A process that starts again is another one.
        self._holder = holder or f"{PROCESS} {token_hex(4)}"
        # Each has its own turns to write: a process that is paused within a heartbeat delays no other one. And no
        # heartbeat is late because communities read and write much.
        self._db = db.with_own_limits().for_community(f"{_COMMUNITY} {self._holder}")
        self._turns = db.with_own_limits().for_community(f"{_COMMUNITY} {self._holder} turns")
        self.seconds = seconds

    def fence_database(self, lease: Lease) -> PostgresDatabase:
        """Return the database for the communities of a leased shard."""
        return self._plain.with_fence(lease)

    async def register_process(self, shards: int) -> int:
        """Join the processes that share the shards, and return the number of shards: that of the others, if any."""

        def work(tx: Transaction) -> int:
            others = (self._holder, self.seconds, self._holder)
            agreed = tx.number(_AGREED, others) or shards
            tx.run(
                "delete from lease_members where seen_at <= clock_timestamp() - make_interval(secs => ?)",
                (self.seconds,),
            )
            tx.run(_JOIN, (self._holder, agreed))
            tx.run_each(
                "insert into leases (shard, shards, token, ends_at) values (?, ?, 0, '-infinity')"
                " on conflict do nothing",
                [(n, agreed) for n in range(agreed)],
            )
            return agreed

        return await self._plain.for_community(_COMMUNITY).write(work)

    async def renew_leases(self, shards: int, *, leaves: bool = False) -> LeaseStatus:
        """Renew all leases of this process. One that `leaves` takes no share any more."""

        def work(tx: Transaction) -> LeaseStatus:
            held = tx.rows(_RENEW, (self.seconds, self._holder))
            if leaves:
                tx.run("delete from lease_members where holder = ?", (self._holder,))
            else:
                tx.run(_JOIN, (self._holder, shards))
            members = tx.number(
                "select count(*) from lease_members where seen_at > clock_timestamp() - make_interval(secs => ?)",
                (self.seconds,),
            )
            free = tx.rows(
                "select shard from leases where shard < ? and ends_at <= clock_timestamp() order by shard", (shards,)
            )
            [(end,)] = tx.rows(_NEXT_END, (self._holder, shards))
            next_end = inf if end is None else float(str(end))
            return LeaseStatus(
                dict(map(_build_lease, held)), tuple(int(str(shard)) for (shard,) in free), members, next_end
            )

        await self._db.read(lambda tx: tx.rows(_END_STALLED, (_STALLED_SECONDS,)), steady=False)
        return await self._db.write(work)

    async def take_leases(self, shards: int, wanted: Collection[int]) -> list[Lease]:
        """Take the wanted shards that are free, and that no transaction of their last holder keeps."""

        def work(tx: Transaction) -> list[Lease]:
            values = (self._holder, shards, self.seconds, f"[{', '.join(map(str, wanted))}]")
            return sorted(map(_build_lease, tx.rows(_TAKE, values)))

        return await self._db.write(work) if wanted else []

    async def release_lease(self, shard: int, token: int) -> None:
        """Give a lease back. Does nothing where another process has it."""
        statement = "update leases set holder = null, ends_at = '-infinity' where (shard, token, holder) = (?, ?, ?)"
        await self._db.run(statement, (shard, token, self._holder))

    @asynccontextmanager
    async def identify_turn(self, bucket: int) -> AsyncGenerator[None]:
        """Wait until a shard of this bucket may identify to Discord, in turn with all processes.

        The next turn begins 5 seconds after it is left, which is when IDENTIFY was sent; after an error, at once.
        """
        turn, seconds = token_hex(8), 0.0
        try:
            while (free_in := await self._turns.write(partial(_claim_turn, bucket, turn))) > 0:  # noqa: ASYNC110 other processes tell us nothing
                # The turn before ends sooner than announced, once its shard has identified.
                await sleep(max(_LOOK_SECONDS, free_in - (_CONNECTING_SECONDS - _BETWEEN_SECONDS)))
            yield
            seconds = _BETWEEN_SECONDS
        finally:
            # A process that is cancelled while it asks for the turn does not know whether it got it.
            with CancelScope(shield=True):
                await self._turns.run(
                    "update identify_turns set free_at = clock_timestamp() + make_interval(secs => ?)"
                    " where bucket = ? and turn = ?",
                    (seconds, bucket, turn),
                )


def _claim_turn(bucket: int, turn: str, tx: Transaction) -> float:
    """Take the turn of a bucket if it is free; return the seconds until it will be, or 0."""
    if tx.rows(_TURN, (bucket, _CONNECTING_SECONDS, turn)):
        return 0.0
    [(free_in,)] = tx.rows(_FREE_IN, (bucket,))
    return max(_LOOK_SECONDS, float(str(free_in)))


def _build_lease(row: tuple[object, ...]) -> Lease:
    shard, token = row
    return Lease(int(str(shard)), int(str(token)))
