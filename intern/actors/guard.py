"""An actor survives any single message: the errors that it can survive are said aloud, and the next one is taken."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from intern.errors import InternError
from intern.observe.log import get_logger

_log = get_logger(__name__)


@contextmanager
def surviving(actor: str, **ids: str) -> Generator[None]:
    """Log an `InternError` and go on. Anything else is a bug, passes through, and ends the process."""
    try:
        yield
    except InternError as error:
        _log.error("message_failed", actor=actor, error=type(error).__name__, reason=str(error), **ids)
