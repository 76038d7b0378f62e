"""The database that the settings name: a file in the data folder, or one on a server (`data.url`)."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from anyio import CancelScope
from anyio.to_thread import run_sync
from msgspec import Struct

from intern.core.clock import Clock
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.install_hints import format_install_hint
from intern.settings.settings import Paths, Settings, is_database_url
from intern.stores.archive import Archive
from intern.stores.database import DEFAULT_COMMUNITY, Database, ReadOnlyDatabase
from intern.stores.engines.postgres.leases import HOLDER
from intern.stores.engines.sqlite import database as sqlite
from intern.stores.engines.sqlite.copies import is_made as is_file_made
from intern.stores.files import FileLayer
from intern.stores.folder_lock import FolderLock
from intern.stores.tables.communities import CommunityStore
from intern.stores.tables.community_rows import copy_community, erase_community
from intern.stores.tables.database_archive import DatabaseArchive
from intern.stores.tables.knowledge import KnowledgeStore

if TYPE_CHECKING:
    from intern.stores.engines.postgres import database as postgres
    from intern.stores.engines.postgres.connection import PostgresInspection


async def open_database(settings: Settings) -> Database:
    """Open the database, made where it is missing. Raises ConfigError and KnowledgeError."""
    place = settings.data.url.reveal() or str(Paths(settings.home).database)
    return (await _open_at(place)).for_community(settings.community)


class DatabaseMove(Struct, frozen=True, kw_only=True):
    """The contents that were moved."""

    rows: int
    source: str
    target: str


async def move_database(settings: Settings, source: str, target: str) -> DatabaseMove:
    """Copy all that one database holds to another: each the name of a file, or the address of a server.

    No process may work in the data folder meanwhile. Raises ConfigError where there is nothing to move, or the target
    holds something, FolderBusyError, and KnowledgeError; the target is as it was then.
    """
    if not is_database_url(source) and not await run_sync(Path(source).exists):
        raise ConfigError(f"there is no database {source} to move")
    with FolderLock(settings.data.dir):
        async with await _open_at(source) as one, await _open_at(target) as two:
            known = await CommunityStore(one).all()
            rows = 0
            async with AsyncExitStack() as undo:
                for name in (DEFAULT_COMMUNITY, *(each.name for each in known)):
                    async with one.community_scope(name) as of, two.community_scope(name) as to:
                        await of.lock_community()
                        await to.lock_community()
                        rows += await copy_community(of, to, with_archive=is_database_url(target))
                        undo.push_async_callback(_undo_move, two.for_community(name))
                        if name != DEFAULT_COMMUNITY and is_database_url(source) != is_database_url(target):
                            raw = Paths(settings.data.dir / "communities" / name).raw
                            await run_sync(_move_archive, raw, of, to if is_database_url(target) else None, undo)
                await CommunityStore(two).import_communities(known)
                undo.pop_all()
            return DatabaseMove(rows=rows, source=one.place, target=two.place)


def _move_archive(raw: Path, source: Database, target: Database | None, undo: AsyncExitStack) -> None:
    """Copy the archive of a hosted community to the server, where it is rows; without a target, to its files."""
    if target is not None:
        DatabaseArchive(target).import_weeks(raw)
    elif len(Archive(raw)):
        raise ConfigError(f"{raw} holds an archive already; move it elsewhere first")
    else:
        undo.callback(shutil.rmtree, raw, ignore_errors=True)
        DatabaseArchive(source).copy_to(raw)


async def _undo_move(db: Database) -> None:
    with CancelScope(shield=True):
        await erase_community(db)


async def _open_at(place: str) -> Database:
    return await (
        _load_postgres()[0].open(place) if is_database_url(place) else sqlite.SqliteDatabase.open(Path(place))
    )


def open_read_only(settings: Settings) -> ReadOnlyDatabase:
    """Return the database for reading only, as it is. Raises ConfigError; reading raises KnowledgeError."""
    url = settings.data.url.reveal()
    found = _load_postgres()[1](url) if url else sqlite.ReadOnlySqliteDatabase(Paths(settings.home).database)
    return found.for_community(settings.community)


def open_archive(
    settings: Settings, db: Database, *, clock: Clock | None = None, files: FileLayer | None = None
) -> Archive:
    """Open the archive: the files beside the database, or its rows where communities move between processes. Blocks."""
    return DatabaseArchive(db, clock=clock) if settings.moves else Archive(settings.paths.raw, clock=clock, files=files)


def open_learned(settings: Settings, *, clock: Clock | None = None) -> tuple[KnowledgeStore, Archive]:
    """Open decisions, topics and archive for reading only, as they are. Blocks; raises KnowledgeError."""
    # The decisions first: pairs archived meanwhile wait, but every decision is about a pair that we see.
    knowledge = KnowledgeStore(open_read_only(settings))
    return knowledge, open_archive(settings, knowledge.db, clock=clock)


def is_any_process_running(settings: Settings) -> bool:
    """Return whether any process that shares the database is running. Blocks; raises KnowledgeError."""
    return settings.moves and bool(open_read_only(settings).read_blocking(lambda db: db.texts(HOLDER)))


async def find_worker(settings: Settings, db: Database) -> str:
    """Return the process that works on a community, as text for people. Raises KnowledgeError if there is none."""
    if (name := settings.community) != DEFAULT_COMMUNITY:
        known = await CommunityStore(db).get(name)
        if known.state != "active":
            suspended = f"`intern community resume {name}` serves it again, and does this"
            todo = suspended if known.state == "suspended" else f"`intern community delete {name}` erases all of it"
            raise KnowledgeError(f"no process works on community {name}, for it is {known.state}: {todo}")
    holders = await db.texts(HOLDER) if settings.moves else []
    return holders[0] if holders else await run_sync(FolderLock(settings.home).describe_holder)


def is_made(settings: Settings) -> bool:
    """Return whether the database has its tables. Blocks; raises ConfigError and KnowledgeError."""
    if url := settings.data.url.reveal():
        return _load_postgres()[1](url).is_made()
    file = Paths(settings.home).database
    return file.exists() and is_file_made(file)


class DatabaseServer(NamedTuple):
    """A database server and its state."""

    place: str
    found: PostgresInspection

    @property
    def trouble(self) -> tuple[str, str] | None:
        """The reason why intern cannot work with it, and the remedy; None if it can."""
        role, schema = self.found.role, self.found.schema
        if self.found.is_read_only:
            return (
                f"{self.place} takes no writes",
                "let data.url name the primary server, and check default_transaction_read_only there",
            )
        if schema is None:
            return (
                f"{self.place} has no schema for {role}",
                f"run there, as an administrator: create schema authorization {role}",
            )
        if not self.found.is_made and not self.found.may_create:
            return (
                f"{role} may make no tables at {self.place}",
                f"run there, as an administrator: grant usage, create on schema {schema} to {role}",
            )
        if self.found.closed:
            return (
                f"{role} may not read and write all tables at {self.place}: {self.found.closed}",
                f"run there, as their owner: grant all on all tables in schema {schema} to {role}",
            )
        return None


def examine_server(settings: Settings) -> DatabaseServer | None:
    """Examine server and role; None where the database is a file. Blocks; raises ConfigError and KnowledgeError."""
    url = settings.data.url.reveal()
    if not url:
        return None
    database = _load_postgres()[1](url)
    return DatabaseServer(database.place, database.inspect_server())


def _load_postgres() -> tuple[type[postgres.PostgresDatabase], type[postgres.ReadOnlyPostgresDatabase]]:
    try:
        from intern.stores.engines.postgres import database as engine  # noqa: PLC0415 an extra
    except ImportError as error:
        raise ConfigError(
            f"data.url names PostgreSQL, which cannot be used ({error}): leave data.url empty,"
            f" or {format_install_hint('postgres')}"
        ) from error
    return engine.PostgresDatabase, engine.ReadOnlyPostgresDatabase
