"""What went wrong with PostgreSQL: what, where, and what to do next. No message holds the password of the address."""

from __future__ import annotations

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from intern.core.errors import ConfigError, KnowledgeError

CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected)
"""Another transaction was in the way; the same work may succeed when it is repeated."""


def place(url: str) -> str:
    """Return an address without user and password. Raises ConfigError when it is not one."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # its message repeats parts of the address
        raise ConfigError(
            "data.url is not an address of PostgreSQL; it should read postgresql://USER@HOST:5432/DATABASE"
        ) from None
    host = parts.get("host") or parts.get("hostaddr") or "localhost"
    return f"PostgreSQL at {host}:{parts.get('port') or 5432}/{parts.get('dbname') or parts.get('user') or ''}"


def explained(where: str, error: psycopg.Error) -> Exception:  # noqa: PLR0911
    """Return the error that says what to do. An error that only wrong SQL can cause is a bug and stays as it is."""
    match error:
        case errors.SerializationFailure() | errors.DeadlockDetected():
            return KnowledgeError(f"{where} is too busy: other transactions were in the way each time; try again")
        case errors.LockNotAvailable() | errors.QueryCanceled():
            return KnowledgeError(f"{where} is held by another program for too long; end it and try again")
        case errors.DiskFull():
            return KnowledgeError(f"{where} has no space left; free some on the server and try again")
        case errors.ReadOnlySqlTransaction():
            return KnowledgeError(
                f"{where} cannot be opened for writing; connect to the primary server, and check "
                "default_transaction_read_only"
            )
        case errors.InsufficientPrivilege() | errors.InvalidSchemaName():
            return KnowledgeError(
                f"{where} lacks a right ({_first_line(error)}); let the role of data.url own its tables and create in "
                "its schema"
            )
        case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification() | errors.InvalidCatalogName():
            return KnowledgeError(f"{where} refuses the connection ({_first_line(error)}); check data.url")
        case (
            errors.OutOfMemory()
            | errors.InsufficientResources()
            | errors.DataCorrupted()
            | errors.IoError()
            | errors.SystemError()
        ):
            return KnowledgeError(f"{where} failed ({_first_line(error)}); read the server's log")
        case psycopg.OperationalError():
            return KnowledgeError(
                f"{where} cannot be reached ({_first_line(error)}); check that the server runs, the address and the "
                "password in data.url"
            )
        case _:
            return error


def _first_line(error: psycopg.Error) -> str:
    said = error.diag.message_primary or str(error)
    return said.strip().splitlines()[0] if said.strip() else type(error).__name__
