"""The attempts to file a pair, counted across restarts."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from intern.core.decisions import PairDecision
from intern.core.flow import FailedChoice
from intern.core.ids import QAId
from intern.core.log import get_logger

_log = get_logger(__name__)


class AttemptsExhausted(FailedChoice, frozen=True, kw_only=True):
    """All attempts at the pair crashed. It is parked without another attempt, even if its conversation has a topic."""


MOST_ATTEMPTS = 3  # a pair that crashed the process this often will do so again


class AttemptCounter(Protocol):
    """Counts unfinished attempts at pairs (see `intern.stores.tables.jobs`)."""

    def begin(self, qa_id: QAId, /) -> Awaitable[int]:
        """Count an attempt on disk, and return the number of attempts with this one."""
        ...

    def clear(self, qa_id: QAId, /) -> Awaitable[None]:
        """Delete a pair's attempts, because none of them failed. Harmless without any."""
        ...

    def end(self, decision: PairDecision, /, *, again: bool = True) -> Awaitable[None]:
        """Note a decision. A parked pair is retried later, unless `again` is false."""
        ...


async def count_attempt(attempts: AttemptCounter, qa_id: QAId) -> AttemptsExhausted | None:
    """Count an attempt. Return the choice to give up if too many attempts did not end."""
    if await attempts.begin(qa_id) <= MOST_ATTEMPTS:
        return None
    _log.error("qa_pair_given_up", qa_id=qa_id, attempts=MOST_ATTEMPTS)
    return AttemptsExhausted(reason=f"{MOST_ATTEMPTS} attempts to file it did not finish: the process ended each time")
