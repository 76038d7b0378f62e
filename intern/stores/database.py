"""The database as stores see it: transactions, and one statement at a time. Each engine has a subclass of both.

Statements are the SQL that SQLite and PostgreSQL share; `engines/postgres/dialect.py` translates the rest.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import lru_cache
from socket import gethostname
from typing import Self, TypeAlias, TypeVar, cast

from anyio import CancelScope, Event, to_thread

from intern.core.errors import KnowledgeError

T = TypeVar("T")
Value: TypeAlias = str | int | float | bytes | None
Row: TypeAlias = tuple[Value, ...]

DEFAULT_COMMUNITY = "default"
"""The one community of a data folder."""

PROCESS = f"process {os.getpid()} on {gethostname()}"[:63]
"""The name of this process for others, and for people."""

SCHEMA_VERSION = 1
"""The version of `schema.sql`. Raise it with each change that existing databases lack."""

_PLACEHOLDER = re.compile(r"'[^']*'|\?|:community\b")


@lru_cache(maxsize=2048)
def resolve_placeholders(statement: str) -> tuple[str, tuple[int, ...]]:
    """Return the statement with `?` alone, and which of these are `:community`, by number."""
    marks = [each for each in _PLACEHOLDER.findall(statement) if not each.startswith("'")]
    plain = _PLACEHOLDER.sub(lambda found: "?" if found[0] == ":community" else found[0], statement)
    return plain, tuple(n for n, each in enumerate(marks) if each == ":community")


class Transaction(ABC):
    """The operations for work inside its transaction. Statements are run to their end, so none outlives it.

    `:community` in a statement means the community that the store is bound to; each `?` the next value.
    """

    def __init__(self, community: str = DEFAULT_COMMUNITY) -> None:
        self._community = community

    @abstractmethod
    def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """Return all rows that the statement gives."""

    def row(self, statement: str, values: Sequence[Value] = ()) -> Row | None:
        """Return the first row that the statement gives, or None."""
        return next(iter(self.rows(statement, values)), None)

    def texts(self, statement: str, values: Sequence[Value] = ()) -> list[str]:
        """Return the first column of all rows, as texts."""
        return [str(row[0]) for row in self.rows(statement, values)]

    def number(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Return the one number that the statement gives; 0 where it gives none."""
        return next((int(cast("int", row[0] or 0)) for row in self.rows(statement, values)), 0)

    @abstractmethod
    def run(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Return how many rows the statement (insert, update or delete) touched."""

    @abstractmethod
    def run_each(self, statement: str, values: Iterable[Sequence[Value]]) -> None:
        """Run the statement once for each set of values."""

    def advance_numbering(self, table: str, column: str) -> None:  # noqa: B027 an engine may do so by itself
        """Make new rows get numbers after the largest existing one. Needed after inserting rows with numbers."""

    def _with_community(self, values: Sequence[Value], places: Sequence[int]) -> Sequence[Value]:
        if not places:
            return values
        given = list(values)
        for place in places:
            given.insert(place, self._community)
        return given


class Database(ABC):
    """One open database, bound to a community. Belongs to the event loop that opened it.

    Close it there, also after an error. A write that returned survives any crash; a write that raised left no trace.
    """

    def __init__(self, place: str) -> None:
        self.community = DEFAULT_COMMUNITY
        self.place = place
        """Its file or address, for people."""
        self._others: list[Callable[[], Awaitable[object]]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def for_community(self, community: str) -> Self:
        """Return the same database, bound to another community."""
        other = copy(self)
        other.community = community
        return other

    def with_own_limits(self) -> Self:
        """Return the same database, for calls that must not wait for those of others, which may be many and slow."""
        return self

    @asynccontextmanager
    async def community_scope(self, community: str) -> AsyncGenerator[Self]:
        """Bind the database to a community for a while.

        At the end, unlock the community and close everything that was opened with it; the database stays open.
        """
        other = self.for_community(community)
        other._others = []  # noqa: SLF001 - the same class
        try:
            yield other
        finally:
            with CancelScope(shield=True):
                await other._close_dependents()  # noqa: SLF001
                await other.unlock_community()

    async def unlock_community(self) -> None:  # noqa: B027 most engines need nothing
        """Release the lock on the community."""

    async def lock_community(self, *, beside_leases: bool = False) -> None:  # noqa: B027 most engines need nothing
        """Lock the community's database against other processes until this one is closed; holding it already is fine.

        The lock of its folder does that for a file. Raises FolderBusyError where another process holds it, or where
        processes have leases: they share all communities. `beside_leases`: for a community that is served no more.
        """

    def wait_for_server_until(self, stop: Event) -> None:  # noqa: B027 most engines need nothing
        """Wait for a server that is away until it is back, or `stop` is set; without this, only for some seconds."""

    @abstractmethod
    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run `work` in a transaction; once this returns, its changes survive any crash.

        An error from `work` undoes its own changes only and is raised here. If the caller is cancelled, the work is
        still done, or not at all. `work` does not commit, and may be run again after a conflict or a lost connection.
        Raises KnowledgeError when the database cannot be reached, or is busy, damaged, full or unwritable.
        """

    @abstractmethod
    async def read(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        """Run `work` on a worker thread against one unchanging view of the committed data. It cannot write.

        Unless it is `steady`, the data may change between two statements. One statement alone needs no more, and a
        transaction takes as long as a read of some rows. Raises KnowledgeError as `write` does.
        """

    @abstractmethod
    def read_blocking(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        """Read as `read` does, in the calling thread, which must be a worker thread. Blocks."""

    async def rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """Read all rows that one statement gives. Raises KnowledgeError as `read` does."""
        return await self.read(lambda db: db.rows(statement, values), steady=False)

    async def row(self, statement: str, values: Sequence[Value] = ()) -> Row | None:
        """Read the first row that one statement gives, or None. Raises KnowledgeError as `read` does."""
        return await self.read(lambda db: db.row(statement, values), steady=False)

    async def texts(self, statement: str, values: Sequence[Value] = ()) -> list[str]:
        """Read the first column that one statement gives, as texts. Raises KnowledgeError as `read` does."""
        return await self.read(lambda db: db.texts(statement, values), steady=False)

    async def number(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Read the one number that one statement gives. Raises KnowledgeError as `read` does."""
        return await self.read(lambda db: db.number(statement, values), steady=False)

    async def run(self, statement: str, values: Sequence[Value] = ()) -> int:
        """Run one statement as `write` does, and return how many rows it touched."""
        return await self.write(lambda db: db.run(statement, values))

    @abstractmethod
    async def scrub(self) -> None:
        """Remove deleted and overwritten data from the files of the database. Takes long; writes wait."""

    def close_with(self, close: Callable[[], Awaitable[object]]) -> None:
        """Close something else with this database: `close` awaits `_close_dependents`."""
        self._others.append(close)

    async def _close_dependents(self) -> None:
        for close in self._others:
            await close()

    @abstractmethod
    async def close(self) -> None:
        """Finish the work under way, then close the database. Harmless when repeated."""


class ReadOnlyDatabase(Database):
    """A database for reading only, whether or not a bot is running."""

    async def read(self, work: Callable[[Transaction], T], *, steady: bool = True) -> T:
        """Read on a worker thread. Raises KnowledgeError."""
        return await to_thread.run_sync(lambda: self.read_blocking(work, steady=steady))

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Raise KnowledgeError."""
        raise KnowledgeError(f"{self.place} is open for reading only, so {work.__name__} is not done")

    async def scrub(self) -> None:
        """Raise KnowledgeError."""
        raise KnowledgeError(f"{self.place} is open for reading only, so nothing is scrubbed")

    async def close(self) -> None:
        """Do nothing: each read closes its own connection."""
