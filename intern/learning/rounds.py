"""What a regeneration does in which order: which pairs, in which epochs, and in which order its decisions are told.

Pure, but for reading the archive. The order never depends on who was faster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from itertools import takewhile
from math import inf
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from intern.core.ids import ConversationId, MessageId, QAId
from intern.core.records import AwaitingReview, CapturedPair, Moved, PairDecision, Rejected, Replaced
from intern.learning.filing import PairsAfter
from intern.stores.blocks import time_of

EPOCH = 32
"""Pairs that are classified against the same index."""


class Decided(Protocol):
    """What was decided so far (see `intern.stores.decisions`)."""

    def of(self, qa_id: QAId) -> PairDecision | None:
        """The last decision about a pair."""
        ...

    def is_withdrawn(self, message_id: MessageId) -> bool:
        """Whether a message may teach nothing any more."""
        ...


class Round(Struct, frozen=True, kw_only=True, tag="round", tag_field="line"):
    """The pairs of one reading of the archive; a further round takes what was archived meanwhile."""

    pairs: int
    """Older captures of the same conversations included, also what is held back."""
    order: tuple[QAId, ...]
    """One pair of each conversation, its most complete one; oldest answer first."""
    replaced: tuple[tuple[QAId, QAId], ...]
    """Older captures, each with the one that stands for its conversation."""
    last: QAId | None
    digest: str
    """Tells the pairs that were read from any others."""

    def epochs(self) -> Iterator[tuple[QAId, ...]]:
        """The order, an epoch at a time."""
        for start in range(0, len(self.order), EPOCH):
            yield self.order[start : start + EPOCH]


class _Version(NamedTuple):
    """A capture of a conversation; the greatest is the one to keep."""

    messages: int
    """Less those that were withdrawn since."""
    archived: datetime
    answered: datetime
    qa_id: QAId


def planned(
    archive: PairsAfter, after: QAId | None, decisions: Decided, awaits_review: Callable[[QAId], bool]
) -> Round:
    """The round that follows the pair `after`. What waits for review or was rejected is left out. Blocks."""
    versions: defaultdict[ConversationId, list[_Version]] = defaultdict(list)
    pairs, last, digest = 0, after, sha256()
    for pair in archive.after(after):
        pairs, last = pairs + 1, pair.qa_id
        digest.update(msgspec.json.encode(pair))
        if not is_held_back(pair.qa_id, decisions) and not awaits_review(pair.qa_id):
            messages = len(pair.message_ids) - sum(map(decisions.is_withdrawn, pair.message_ids))
            version = _Version(messages, pair.timestamp, pair.answered_at, pair.qa_id)
            versions[pair.conversation_id].append(version)
    kept = sorted(map(max, versions.values()), key=lambda version: (version.answered, version.archived))
    replaced = [(version.qa_id, max(group).qa_id) for group in versions.values() for version in sorted(group)[:-1]]
    order = tuple(version.qa_id for version in kept)
    return Round(pairs=pairs, order=order, replaced=tuple(replaced), last=last, digest=digest.hexdigest())


def is_held_back(qa_id: QAId, decisions: Decided) -> bool:
    """Whether the team has not approved the pair, or has rejected it."""
    return isinstance(decisions.of(qa_id), AwaitingReview | Rejected)


def awaiting_review(
    decisions: Decided, passed_over: QAId | None, stands: Callable[[QAId], bool]
) -> Callable[[QAId], bool]:
    """Where the team reviews all captures: whether a pair is still to be put to them.

    So are all without a decision, for a damaged log may have lost a rejection; but not what `stands` in a topic
    already, nor what is as old as `passed_over`, the pair up to which the operator wants none looked at.
    """
    known = None if passed_over is None else time_of(passed_over)

    def awaits(qa_id: QAId) -> bool:
        return decisions.of(qa_id) is None and (known is None or time_of(qa_id) > known) and not stands(qa_id)

    return awaits


def still_begins_with(archive: PairsAfter, rounds: Iterable[Round]) -> bool:
    """Whether the archive holds what these rounds have read, unchanged. Blocks."""
    after: QAId | None = None
    for each in rounds:
        if _digest(archive, after, each.last) != each.digest:
            return False
        after = each.last
    return True


def _digest(archive: PairsAfter, after: QAId | None, last: QAId | None) -> str:
    digest = sha256()
    if last is not None:
        for pair in takewhile(_until(time_of(last)), archive.after(after)):
            digest.update(msgspec.json.encode(pair))
    return digest.hexdigest()


def _until(last: datetime) -> Callable[[CapturedPair], bool]:
    return lambda pair: time_of(pair.qa_id) <= last


def in_order(decisions: Iterable[PairDecision], epochs: Sequence[Sequence[QAId]]) -> list[PairDecision]:
    """The decisions as they would have come one by one, whichever topic was faster.

    Those about a pair stay in their order, and so do those of a topic, which come in the order of its pairs.
    """
    places = {time_of(qa_id): (n, float(at)) for n, epoch in enumerate(epochs) for at, qa_id in enumerate(epoch)}
    told: dict[datetime, tuple[int, float]] = {}
    now = 0
    placed: list[tuple[tuple[int, float], PairDecision]] = []
    for each in decisions:
        about = [time_of(each.qa_id), *([time_of(each.by)] if isinstance(each, Replaced) else ())]
        # Moves come at an epoch's end, one by one.
        known = [] if isinstance(each, Moved) else [places[time] for time in about if time in places]
        place = max([max(known, default=(now, inf)), *(told[time] for time in about if time in told)])
        now = max(now, place[0])
        told[about[0]] = place
        placed.append((place, each))
    return [each for _, each in sorted(placed, key=lambda item: item[0])]
