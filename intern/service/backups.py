"""Copies of the database file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from secrets import token_hex

from msgspec import Struct

from intern.core.errors import ConfigError, KnowledgeError
from intern.service.databases import open_read_only
from intern.settings.settings import Settings
from intern.stores.engines.sqlite.copies import copy_database, find_problems
from intern.stores.engines.sqlite.database import database_files
from intern.stores.files import FileLayer


class BackupResult(Struct, frozen=True, kw_only=True):
    """The files of a backup."""

    path: str
    bytes: int
    beside: tuple[str, ...]
    """Files and folders that a backup needs, but that this file does not contain."""


def back_up(settings: Settings, to: Path, *, force: bool = False) -> BackupResult:
    """Copy the database to a file, with `force` replacing another. Blocks; works beside a running bot.

    Raises ConfigError if the file must not or cannot be written there, and KnowledgeError if the database cannot be
    read, there is no room, or the copy is incomplete; nothing has changed then.
    """
    if settings.data.url:
        raise ConfigError(
            f"{open_read_only(settings).place} is backed up by its own tools, such as pg_dump; copy {settings.data.dir}"
            " after that: what is archived later is read again"
        )
    source = settings.paths.database
    if not source.exists():
        raise KnowledgeError(
            f"there is no database {source} yet; it is made by the first `intern index` or `intern run`"
        )
    if to.is_dir():
        raise ConfigError(f"{to} is a folder; name a file in it, as in {to / 'intern-backup.db'}")
    if to.resolve() in {each.resolve() for each in database_files(source)} or (to.exists() and to.samefile(source)):
        raise ConfigError(f"{to} is the database itself; choose another file")
    if to.exists() and not force:
        raise ConfigError(f"{to} is there already; choose another name, or --force to write over it")
    beside = to.with_name(f".{to.name}.{token_hex(4)}.tmp")
    try:
        if not to.parent.is_dir():
            raise ConfigError(f"there is no folder {to.parent}; make it, or choose another one")
        _check_room(source, to.parent)
        copy_database(source, beside)
        if wrong := find_problems(beside, _MOST_TOLD):
            raise KnowledgeError(
                f"{source} is damaged, so its copy was not kept ({'; '.join(wrong)}); run `intern doctor`, and go back "
                "to an older backup"
            )
        _move_in_place(beside, to)
    except OSError as error:
        raise ConfigError(f"{to} cannot be written ({error.strerror}); check the rights of its folder") from error
    finally:
        for each in database_files(beside):
            each.unlink(missing_ok=True)
    return BackupResult(path=str(to), bytes=to.stat().st_size, beside=tuple(map(str, _list_companions(settings))))


_MOST_TOLD = 3  # the errors that it found


def _check_room(source: Path, folder: Path) -> None:
    log = source.with_name(source.name + "-wal")
    needed = source.stat().st_size + (log.stat().st_size if log.exists() else 0)
    if shutil.disk_usage(folder).free < needed:
        raise KnowledgeError(f"there is no room in {folder}: about {needed // 1_000_000 + 1} MB are needed")


def _move_in_place(beside: Path, to: Path) -> None:
    # Only the owner may read the database.
    beside.chmod(0o600)
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    beside.replace(to)
    FileLayer().sync_folder(to.parent)


def _list_companions(settings: Settings) -> list[Path]:
    """List the other existing paths that a backup needs, without those inside of others."""
    paths = settings.paths
    found = [path for path in (paths.data, paths.raw, paths.topics, paths.sources, paths.links) if path.exists()]
    return [path for path in found if not any(other != path and path.is_relative_to(other) for other in found)]
