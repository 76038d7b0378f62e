"""Review of captures by the team (`kb.review`): approvals and rejections. Also, which pairs are due again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Literal, NamedTuple

from msgspec import Struct, structs

from intern.core import captures
from intern.core.decisions import (
    PairApproved,
    PairDecision,
    PairParked,
    PairRejected,
    PairReplaced,
    PairReviewRequested,
)
from intern.core.errors import ConfigError
from intern.core.ids import MessageId, QAId, TopicName
from intern.facts.segments import has_user_and_team, remove_withdrawn
from intern.stores.archive import Archive
from intern.stores.qa_ids import qa_id_time
from intern.stores.tables.attempts import Retry, find_retry
from intern.stores.tables.knowledge import KnowledgeStore


class Review(Struct, frozen=True, kw_only=True):
    """A team member's approval or rejection of pairs."""

    action: Literal["approve", "reject"]
    qa_ids: tuple[QAId, ...]
    by: str = ""
    """The team member's id; empty for the command line and the page."""
    topic: TopicName | None = None
    """The topic for the approved pair, if its conversation is in no topic yet; None lets the model choose."""
    edited: Mapping[MessageId, str] = {}
    """Messages of the one pair that is approved, in the reviewer's words; one without text is left out."""


def find_waiting_pairs(
    message_id: MessageId, decisions: KnowledgeStore, archive: Archive
) -> tuple[captures.CapturedPair, ...]:
    """Return the pairs with this message that wait for review, newest first. Reads the disk."""
    found: dict[datetime, captures.CapturedPair] = {}
    for conversation in archive.find_conversations(message_id):
        latest = archive.latest_capture(conversation)
        for pair in () if latest is None else (latest, *_iter_older_versions(latest, archive)):
            if message_id in pair.message_ids and isinstance(decisions.last_decision(pair.qa_id), PairReviewRequested):
                found[pair.timestamp] = pair
    return tuple(found[time] for time in sorted(found, reverse=True))


def make_review_decisions(
    review: Review, decisions: KnowledgeStore, archive: Archive, at: datetime
) -> tuple[PairDecision, ...]:
    """Return the decisions of a review, to be logged in one write. Pairs with the same verdict before are skipped.

    An approval covers older versions of the pair, so they need no review any more. A rejection does not. Raises
    ConfigError for an unknown id, or a pair that does not wait.
    """
    taken: dict[datetime, PairDecision] = {}
    verdict = PairApproved if review.action == "approve" else PairRejected
    for qa_id in review.qa_ids:
        pair = get_pair(qa_id, archive)
        waits = isinstance(decisions.last_decision(pair.qa_id), PairReviewRequested)
        if waits or not isinstance(decisions.last_review(pair.qa_id), verdict):
            check_awaits_review(pair.qa_id, decisions)
            taken[pair.timestamp] = _make_verdict(review, pair.qa_id, at)
    if review.action == "approve":
        for qa_id in review.qa_ids:
            for each in _replace_covered(get_pair(qa_id, archive), decisions, archive, at):
                taken.setdefault(qa_id_time(each.qa_id), each)
    return tuple(taken.values())


def approve_edited(
    review: Review, pair: captures.CapturedPair, decisions: KnowledgeStore, archive: Archive, at: datetime
) -> tuple[PairDecision, ...]:
    """Return the decisions that approve `pair`, an edited version that was archived just now."""
    return (_make_verdict(review, pair.qa_id, at), *_replace_covered(pair, decisions, archive, at))


def apply_edits(review: Review, decisions: KnowledgeStore, archive: Archive) -> captures.Capture | None:
    """Return the capture with the reviewer's words; None if it has these words already.

    Raises ConfigError for a pair that is unknown, does not wait or is not the newest of its conversation. Also raises
    it for an edit without a question or an answer. Reads the disk.
    """
    [qa_id] = review.qa_ids
    pair = get_pair(qa_id, archive)
    check_awaits_review(pair.qa_id, decisions)
    left = remove_withdrawn(pair, decisions.is_withdrawn)
    newer = archive.latest_capture_id(pair.conversation_id) != pair.qa_id
    if newer or len(left.turns) != len(left.message_ids) or not set(review.edited) <= set(left.message_ids):
        raise ConfigError(f"{qa_id} is not as it was shown any more; look at it again, then edit it")
    written = zip(left.turns, left.message_ids, strict=True)
    turns = tuple(structs.replace(turn, text=review.edited.get(each, turn.text)) for turn, each in written)
    if not has_user_and_team([turn for turn in turns if turn.text.strip()]):
        raise ConfigError(f"{qa_id} would have no question or no answer; leave one of each, or reject it")
    if turns == left.turns:
        return None
    return captures.copy_capture(left, turns=turns, replaces=None)


def _make_verdict(review: Review, qa_id: QAId, at: datetime) -> PairApproved | PairRejected:
    if review.action == "reject":
        return PairRejected(qa_id=qa_id, by=review.by, at=at)
    return PairApproved(qa_id=qa_id, by=review.by, topic=review.topic, at=at)


def _replace_covered(
    pair: captures.CapturedPair, decisions: KnowledgeStore, archive: Archive, at: datetime
) -> Iterator[PairReplaced]:
    """Yield the decisions about older versions that wait: an approval covers them."""
    for older in _iter_older_versions(pair, archive):
        if isinstance(decisions.last_decision(older.qa_id), PairReviewRequested):
            yield PairReplaced(qa_id=older.qa_id, by=pair.qa_id, at=at)


def get_pair(qa_id: QAId, archive: Archive) -> captures.CapturedPair:
    """Return the pair of a given id. Raises ConfigError for an unknown one."""
    pair = archive.get(qa_id)
    if pair is None:
        raise ConfigError(f"the archive holds no pair {qa_id[:80]!r}; `intern archive` lists their ids")
    return pair


def check_awaits_review(qa_id: QAId, decisions: KnowledgeStore) -> None:
    """Raise ConfigError if a pair does not wait for review."""
    decided = decisions.last_decision(qa_id)
    if isinstance(decided, PairReviewRequested):
        return
    decided = decisions.last_review(qa_id) or decided
    stands = "not been looked at yet" if decided is None else f"been {decided.__struct_config__.tag} already"
    raise ConfigError(f"{qa_id} does not wait for review: it has {stands}; `intern review` lists those that wait")


def _iter_older_versions(pair: captures.CapturedPair, archive: Archive) -> Iterator[captures.CapturedPair]:
    """Yield the older versions of the pair, newest first."""
    while pair.replaces is not None and (older := archive.get(pair.replaces)) is not None:
        if qa_id_time(older.qa_id) >= qa_id_time(pair.qa_id):
            return  # another program's archive may have any value
        yield older
        pair = older


class DuePairs(NamedTuple):
    """The pairs that are due now, and the time until the next."""

    due: tuple[PairApproved | PairParked, ...]
    seconds: float | None
    """Until the next known one is due; None without one."""


def find_due_pairs(
    parked: Iterable[PairParked], retries: Mapping[QAId, Retry], now: datetime, passed_over: QAId | None
) -> DuePairs:
    """Find the due ones of the parked pairs. Skip those up to `passed_over`."""
    due: list[PairParked] = []
    later: list[float] = []
    for each in parked:
        at = find_retry(each, retries).next_at
        if at is None or (passed_over is not None and qa_id_time(each.qa_id) <= qa_id_time(passed_over)):
            continue
        if at <= now:
            due.append(each)
        else:
            later.append((at - now).total_seconds())
    return DuePairs(tuple(due), min(later, default=None))
