"""Classify and file pairs, with counted attempts and retries.

An attempt is counted before the work begins, so a pair that crashes the process is given up in the end. An outage or a
normal shutdown does not count. `again` says which approved and parked pairs are due.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain, islice
from typing import NamedTuple, Protocol

from anyio import CancelScope, get_cancelled_exc_class
from anyio.to_thread import run_sync
from msgspec import Struct

from intern.core.errors import InternError, KnowledgeError
from intern.core.flow import Filing, Skip, Topic
from intern.core.ids import QAId
from intern.core.log import get_logger
from intern.core.records import Approved, CapturedPair, PairDecision, Parked
from intern.learning.classifying import OF_ONE_PAIR, Choice, GivenUp, failed
from intern.learning.filing import Filer
from intern.learning.prompts import CLASSIFY
from intern.stores.archive import Archive
from intern.stores.blocks import time_of
from intern.stores.sqlite.work import Retry, retry_of

_log = get_logger(__name__)

Choose = Callable[[CapturedPair], Awaitable[Topic | Skip]]

MOST_ATTEMPTS = 3  # a pair that crashed the process this often will do so again

# Pairs read from the archive at a time: starting a thread for each would cost more than reading it.
_READ_AHEAD = 32


class Tally(Struct, frozen=True, kw_only=True):
    """The number of pairs for each kind of decision."""

    filed: int = 0
    skipped: int = 0
    parked: int = 0
    replaced: int = 0
    removed: int = 0
    moved: int = 0
    awaiting_review: int = 0
    approved: int = 0
    rejected: int = 0

    @classmethod
    def of(cls, decisions: Iterable[PairDecision]) -> Tally:
        """Count each decision once."""
        return cls(**Counter(str(type(decision).__struct_config__.tag) for decision in decisions))


class Again(NamedTuple):
    """The pairs that are due now, and the time until the next."""

    due: tuple[Approved | Parked, ...]
    seconds: float | None
    """Until the next known one is due; None without one."""


def again(
    approved: Iterable[Approved],
    parked: Iterable[Parked],
    retries: Mapping[QAId, Retry],
    *,
    now: datetime,
    passed_over: QAId | None = None,
) -> Again:
    """Find the due pairs: approved ones, then parked ones. Skip parked pairs up to `passed_over`."""
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


class Attempts(Protocol):
    """Counts unfinished attempts at pairs (see `intern.stores.sqlite.work`)."""

    async def begin(self, qa_id: QAId, /) -> int:
        """Count an attempt on disk, and return the number of attempts with this one."""
        ...

    async def clear(self, qa_id: QAId, /) -> None:
        """Delete a pair's attempts, because none of them failed. Harmless without any."""
        ...

    async def end(self, decision: PairDecision, /, *, again: bool = True) -> None:
        """Note a decision. A parked pair is retried later, unless `again` is false."""
        ...


async def begun(attempts: Attempts, qa_id: QAId) -> GivenUp | None:
    """Count an attempt. Return the choice to give up if too many attempts did not end."""
    if await attempts.begin(qa_id) <= MOST_ATTEMPTS:
        return None
    _log.error("qa_pair_given_up", qa_id=qa_id, attempts=MOST_ATTEMPTS)
    return GivenUp(reason=f"{MOST_ATTEMPTS} attempts to file it did not finish: the process ended each time")


async def choice_for(pair: CapturedPair, *, filer: Filer, choose: Choose) -> Choice:
    """Return the topic that the conversation is in already; else the result of `choose`, or its failure.

    `choose` gets the pair without withdrawn messages. It is not called if nothing is left of the pair, or if the pair
    is not to be filed now. Raises ModelUnavailableError while the model is away.
    """
    known = await filer.known_topic(pair)
    if known is not None:
        return Topic(name=known)
    if not filer.is_open(pair):
        return Skip(reason="it is not to be filed now")
    left = filer.left_of(pair)
    if left is None:
        return Skip(reason="its question or its answer was withdrawn")
    try:
        return await choose(left)
    except OF_ONE_PAIR as error:
        _log.warning("llm_classification_failed", qa_id=pair.qa_id, reason=str(error))
        return failed(CLASSIFY.name, error)


async def try_once(
    pair: CapturedPair,
    *,
    filer: Filer,
    choose: Choose,
    attempts: Attempts,
) -> PairDecision:
    """Classify and file one pair, as a counted attempt. Raises as `Filer.file` does; that attempt does not count."""
    try:
        choice = await begun(attempts, pair.qa_id) or await choice_for(pair, filer=filer, choose=choose)
        decision = await filer.file(Filing(pair=pair, choice=choice))
    except (InternError, get_cancelled_exc_class()):
        with CancelScope(shield=True), suppress(KnowledgeError):  # the first error says more
            await attempts.clear(pair.qa_id)
        raise
    await attempts.end(decision, again=not isinstance(choice, GivenUp))
    return decision


async def catch_up(
    archive: Archive,
    after: QAId | None,
    *,
    filer: Filer,
    choose: Choose,
    filed: Callable[[CapturedPair, PairDecision], Awaitable[None]] | None = None,
    due: Sequence[CapturedPair] = (),
    attempts: Attempts,
) -> Tally:
    """Classify and file all pairs that were archived after a position, in order, then the `due` ones.

    Each is a counted attempt, and `filed` hears of each. A pair with senseless replies is parked, and the next one
    follows. Raises ModelUnavailableError while the model is away, and KnowledgeError if the disk fails. Pairs filed
    before that stay filed.
    """
    decisions: list[PairDecision] = []
    pairs = chain(archive.after(after), due)
    while ahead := await run_sync(_next_of, pairs):
        for pair in ahead:
            decision = await try_once(pair, filer=filer, choose=choose, attempts=attempts)
            decisions.append(decision)
            if filed is not None:
                await filed(pair, decision)
    return Tally.of(decisions)


def _next_of(pairs: Iterator[CapturedPair]) -> list[CapturedPair]:
    return list(islice(pairs, _READ_AHEAD))
