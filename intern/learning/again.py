"""Which pairs are to be filed after all: those that the team approved, and those that were parked for long enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from intern.domain import Approved, Parked, QAId
from intern.knowledge.attempts import Retry, retry_of
from intern.knowledge.blocks import time_of


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
