"""Attempts at a pair: counted before the work begins, so that a pair that ends the process is given up in the end.

An outage or a calm shutdown is no fault of the pair, and does not count.
"""

from __future__ import annotations

from typing import Protocol

from intern.domain import Failed, PairDecision, QAId
from intern.observe.log import get_logger

MOST_ATTEMPTS = 3  # what ended the process this often will do so again

_log = get_logger(__name__)


class GivenUp(Failed, frozen=True, kw_only=True):
    """Work on the pair never came to an end. It is parked unseen, even where its conversation has a topic."""


class Attempts(Protocol):
    """How often work on a pair was begun and did not end (see `intern.knowledge.attempts`)."""

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
