"""Which pairs are to be filed after all: those that the team approved, and those that were parked for long enough.

Attempts at a pair: counted before the work begins, so that a pair that ends the process is given up in the end.

An outage or a calm shutdown is no fault of the pair, and does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple, Protocol

from intern.core.flow import Failed
from intern.core.ids import QAId
from intern.core.log import get_logger
from intern.core.records import Approved, PairDecision, Parked
from intern.stores.blocks import time_of
from intern.stores.sqlite.pending import Retry, retry_of


class Again(NamedTuple):
    """What is due now, and when there is more."""

    due: tuple[Approved | Parked, ...]
    seconds: float | None
    """Until the next one that is known of now; None where there is none."""


def again(
    approved: Iterable[Approved],
    parked: Iterable[Parked],
    retries: Mapping[QAId, Retry],
    *,
    now: datetime,
    passed_over: QAId | None = None,
) -> Again:
    """Approved pairs, then parked ones. Parked pairs up to `passed_over` are left to whoever asks for them by name."""
    due: list[Approved | Parked] = list(approved)
    later: list[float] = []
    for each in parked:
        at = retry_of(each, retries).next_at
        if at is None or (passed_over is not None and time_of(each.qa_id) <= time_of(passed_over)):
            continue
        if at <= now:
            due.append(each)
        else:
            later.append((at - now).total_seconds())
    return Again(tuple(due), min(later, default=None))


MOST_ATTEMPTS = 3  # what ended the process this often will do so again

_log = get_logger(__name__)


class GivenUp(Failed, frozen=True, kw_only=True):
    """Work on the pair never came to an end. It is parked unseen, even where its conversation has a topic."""


class Attempts(Protocol):
    """How often work on a pair was begun and did not end (see `intern.stores.sqlite.pending`)."""

    async def begin(self, qa_id: QAId, /) -> int:
        """Count an attempt, on disk before the work begins; how many there were, this one included."""
        ...

    async def clear(self, qa_id: QAId, /) -> None:
        """Forget a pair's attempts, for none of them failed; harmless where there were none."""
        ...

    async def end(self, decision: PairDecision, /, *, again: bool = True) -> None:
        """The pair was decided; one that was parked is tried again by itself some time, unless not `again`."""
        ...


class Uncounted:
    """For work that no crash can repeat."""

    async def begin(self, qa_id: QAId, /) -> int:
        """Always the first."""
        del qa_id
        return 1

    async def clear(self, qa_id: QAId, /) -> None:
        """Nothing to forget."""

    async def end(self, decision: PairDecision, /, *, again: bool = True) -> None:
        """Nothing to count."""


UNCOUNTED = Uncounted()


async def begun(attempts: Attempts, qa_id: QAId) -> GivenUp | None:
    """Count an attempt; what to do with the pair instead where too many of those before it did not end."""
    if await attempts.begin(qa_id) <= MOST_ATTEMPTS:
        return None
    _log.error("qa_pair_given_up", qa_id=qa_id, attempts=MOST_ATTEMPTS)
    return GivenUp(reason=f"{MOST_ATTEMPTS} attempts to file it did not finish: the process ended each time")
