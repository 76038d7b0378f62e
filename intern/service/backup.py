"""A copy of the database that is whole at one moment, taken while others write to it.

It appears under its name only when it was copied, checked and brought to disk, so that no half backup exists.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from secrets import token_hex

from msgspec import Struct

from intern.core.errors import ConfigError, KnowledgeError
from intern.settings.loading import Settings
from intern.stores.sqlite.maintenance import copied, problems


class BackedUp(Struct, frozen=True, kw_only=True):
    """What was written."""

    path: str
    bytes: int
    beside: tuple[str, ...]
    """Files and folders that belong to a backup, and that this does not hold."""


def back_up(settings: Settings, to: Path, *, force: bool = False) -> BackedUp:
    """Copy the database to a file, with `force` in place of another. Blocks, reads beside a bot at work.

    Raises ConfigError where the file must not or cannot be written there, and KnowledgeError where the database cannot
    be read, there is no room, or the copy is not whole; nothing has changed then.
    """
    source = settings.paths.database
    if not source.exists():
        raise KnowledgeError(
            f"there is no database {source} yet; it is made by the first `intern index` or `intern run`"
        )
    if to.is_dir():
        raise ConfigError(f"{to} is a folder; name a file in it, as in {to / 'intern-backup.db'}")
    _not_the_database_itself(source, to)
    if to.exists() and not force:
        raise ConfigError(f"{to} is there already; choose another name, or --force to write over it")
    beside = to.with_name(f".{to.name}.{token_hex(4)}.tmp")
    try:
        if not to.parent.is_dir():
            raise ConfigError(f"there is no folder {to.parent}; make it, or choose another one")
        _has_room(source, to.parent)
        copied(source, beside)
        if wrong := problems(beside, _MOST_TOLD):
            raise KnowledgeError(
                f"{source} is damaged, so its copy was not kept ({'; '.join(wrong)}); run `intern doctor`, and go back "
                "to an older backup"
            )
        _put_in_place(beside, to)
    except OSError as error:
        raise ConfigError(f"{to} cannot be written ({error.strerror}); check the rights of its folder") from error
    finally:
        _clear(beside)
    return BackedUp(path=str(to), bytes=to.stat().st_size, beside=tuple(map(str, _beside(settings))))


_MOST_TOLD = 3  # of what is wrong


def _not_the_database_itself(source: Path, to: Path) -> None:
    own = {source.resolve(), *(source.with_name(source.name + end).resolve() for end in ("-wal", "-shm", "-journal"))}
    if to.resolve() in own or (to.exists() and to.samefile(source)):
        raise ConfigError(f"{to} is the database itself; choose another file")


def _has_room(source: Path, folder: Path) -> None:
    log = source.with_name(source.name + "-wal")
    needed = source.stat().st_size + (log.stat().st_size if log.exists() else 0)
    if shutil.disk_usage(folder).free < needed:
        raise KnowledgeError(f"there is no room in {folder}: about {needed // 1_000_000 + 1} MB are needed")


def _put_in_place(beside: Path, to: Path) -> None:
    # Only the owner may read what the database holds.
    beside.chmod(0o600)
    with beside.open("rb+") as file:
        os.fsync(file.fileno())
    beside.replace(to)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(to.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _clear(beside: Path) -> None:
    for each in (beside, *(beside.with_name(beside.name + end) for end in ("-wal", "-shm", "-journal"))):
        each.unlink(missing_ok=True)


def _beside(settings: Settings) -> list[Path]:
    """What belongs to a backup and is there, but for the database: the folders that hold others once."""
    paths = settings.paths
    found = [path for path in (paths.data, paths.raw, paths.topics, paths.sources, paths.links) if path.exists()]
    return [path for path in found if not any(other != path and path.is_relative_to(other) for other in found)]
