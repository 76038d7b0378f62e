"""How long a source is left alone that the model could not describe.

A model that answers junk to one source, or refuses it, will most likely do so again, and each try is paid for. So it is
asked again when the text changed, when somebody asks for that, or after a pause. An outage says nothing of a source:
its pauses are short, and keep an endpoint that fails at one source alone from being asked with every capture.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta

from msgspec.structs import replace

from intern.core.errors import ModelError, ModelRefusedError, ModelReplyError
from intern.stores.indices import CachedPage, CachedSource, Tries

PAUSES = (timedelta(minutes=10), timedelta(hours=1), timedelta(hours=6), timedelta(days=1))
"""After the first, second and third time in a row that the same text was not described, and after each further one."""
OUTAGE_PAUSES = (timedelta(0), timedelta(minutes=1), timedelta(minutes=5), timedelta(minutes=10))
"""The same, where no model was there."""

_unasked: ContextVar[bool] = ContextVar("intern_indexing_unasked", default=False)


@contextmanager
def unasked() -> Generator[None]:
    """Nobody asked for what is refreshed inside, so it waits out the pauses; otherwise every summary is tried now."""
    token = _unasked.set(True)
    try:
        yield
    finally:
        _unasked.reset(token)


def rests(source: CachedSource, now: datetime) -> bool:
    """Whether this text is not to be asked for now."""
    next_at = source.tries.next_at if source.tries else None
    if not (_unasked.get() and source.summary_pending and next_at):
        return False
    # A time further off was written by a clock that was wrong.
    return now < next_at <= now + PAUSES[-1]


def not_described(entry: CachedSource, error: ModelError, now: datetime) -> CachedSource:
    """The entry after a try to describe its text failed."""
    before = entry.tries or Tries()
    if isinstance(error, ModelReplyError | ModelRefusedError):
        failed, unheard = before.failed + 1, 0
        pause = PAUSES[min(failed, len(PAUSES)) - 1]
    else:
        failed, unheard = before.failed, before.unheard + 1
        pause = OUTAGE_PAUSES[min(unheard, len(OUTAGE_PAUSES)) - 1]
    tries = Tries(failed=failed, unheard=unheard, next_at=now + pause)
    return replace(entry, last_error=str(error) or type(error).__name__, tries=tries)


def described(entry: CachedSource, description: str, now: datetime) -> CachedSource:
    """The entry with a model's description of its present text."""
    # That a page cannot be had now is another matter.
    unfetched = entry.fetch_status if isinstance(entry, CachedPage) and entry.failures else None
    return replace(
        entry,
        summary_text=description,
        last_indexed_at=now,
        summary_pending=False,
        provisional=False,
        last_error=unfetched,
        tries=None,
    )
