"""Review of captures by the team (`kb.review`): approvals and rejections. Also, which pairs are due again.

The team may also approve by a reaction. Discord reports a reaction once, often before the conversation is captured. So
approvals are held until the capture arrives. An approval counts for the messages as they were at the time; a
conversation that was continued or edited since needs another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, TypeVar

from msgspec import Struct, structs

from intern.core import records
from intern.core.clock import Clock
from intern.core.errors import ConfigError
from intern.core.flow import ApprovalReaction, GatewayEvent, MessageCreated, MessageEdited, SessionStarted
from intern.core.ids import MessageId, QAId, TopicName
from intern.facts.segments import has_user_and_team, remove_withdrawn
from intern.stores.archive import Archive
from intern.stores.blocks import qa_id_time
from intern.stores.sqlite.knowledge import KnowledgeStore
from intern.stores.sqlite.work import Retry, find_retry


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
) -> tuple[records.CapturedPair, ...]:
    """Return the pairs with this message that wait for review, newest first. Reads the disk."""
    found: dict[datetime, records.CapturedPair] = {}
    for conversation in archive.find_conversations(message_id):
        latest = archive.latest_capture(conversation)
        for pair in () if latest is None else (latest, *_iter_older_versions(latest, archive)):
            if message_id in pair.message_ids and isinstance(
                decisions.last_decision(pair.qa_id), records.PairReviewRequested
            ):
                found[pair.timestamp] = pair
    return tuple(found[time] for time in sorted(found, reverse=True))


def make_review_decisions(
    review: Review, decisions: KnowledgeStore, archive: Archive, at: datetime
) -> tuple[records.PairDecision, ...]:
    """Return the decisions of a review, to be logged in one write. Pairs with the same verdict before are skipped.

    An approval covers older versions of the pair, so they need no review any more. A rejection does not. Raises
    ConfigError for an unknown id, or a pair that does not wait.
    """
    taken: dict[datetime, records.PairDecision] = {}
    verdict = records.PairApproved if review.action == "approve" else records.PairRejected
    for qa_id in review.qa_ids:
        pair = get_pair(qa_id, archive)
        waits = isinstance(decisions.last_decision(pair.qa_id), records.PairReviewRequested)
        if waits or not isinstance(decisions.last_review(pair.qa_id), verdict):
            check_awaits_review(pair.qa_id, decisions)
            taken[pair.timestamp] = _make_verdict(review, pair.qa_id, at)
    if review.action == "approve":
        for qa_id in review.qa_ids:
            for each in _replace_covered(get_pair(qa_id, archive), decisions, archive, at):
                taken.setdefault(qa_id_time(each.qa_id), each)
    return tuple(taken.values())


def approve_edited(
    review: Review, pair: records.CapturedPair, decisions: KnowledgeStore, archive: Archive, at: datetime
) -> tuple[records.PairDecision, ...]:
    """Return the decisions that approve `pair`, an edited version that was archived just now."""
    return (_make_verdict(review, pair.qa_id, at), *_replace_covered(pair, decisions, archive, at))


def apply_edits(review: Review, decisions: KnowledgeStore, archive: Archive) -> records.Capture | None:
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
    return records.copy_capture(left, turns=turns, replaces=None)


def _make_verdict(review: Review, qa_id: QAId, at: datetime) -> records.PairApproved | records.PairRejected:
    if review.action == "reject":
        return records.PairRejected(qa_id=qa_id, by=review.by, at=at)
    return records.PairApproved(qa_id=qa_id, by=review.by, topic=review.topic, at=at)


def _replace_covered(
    pair: records.CapturedPair, decisions: KnowledgeStore, archive: Archive, at: datetime
) -> Iterator[records.PairReplaced]:
    """Yield the decisions about older versions that wait: an approval covers them."""
    for older in _iter_older_versions(pair, archive):
        if isinstance(decisions.last_decision(older.qa_id), records.PairReviewRequested):
            yield records.PairReplaced(qa_id=older.qa_id, by=pair.qa_id, at=at)


def get_pair(qa_id: QAId, archive: Archive) -> records.CapturedPair:
    """Return the pair of a given id. Raises ConfigError for an unknown one."""
    pair = archive.get(qa_id)
    if pair is None:
        raise ConfigError(f"the archive holds no pair {qa_id[:80]!r}; `intern archive` lists their ids")
    return pair


def check_awaits_review(qa_id: QAId, decisions: KnowledgeStore) -> None:
    """Raise ConfigError if a pair does not wait for review."""
    decided = decisions.last_decision(qa_id)
    if isinstance(decided, records.PairReviewRequested):
        return
    decided = decisions.last_review(qa_id) or decided
    stands = "not been looked at yet" if decided is None else f"been {decided.__struct_config__.tag} already"
    raise ConfigError(f"{qa_id} does not wait for review: it has {stands}; `intern review` lists those that wait")


def _iter_older_versions(pair: records.CapturedPair, archive: Archive) -> Iterator[records.CapturedPair]:
    """Yield the older versions of the pair, newest first."""
    while pair.replaces is not None and (older := archive.get(pair.replaces)) is not None:
        if qa_id_time(older.qa_id) >= qa_id_time(pair.qa_id):
            return  # another program's archive may have any value
        yield older
        pair = older


class DuePairs(NamedTuple):
    """The pairs that are due now, and the time until the next."""

    due: tuple[records.PairApproved | records.PairParked, ...]
    seconds: float | None
    """Until the next known one is due; None without one."""


def find_due_pairs(
    parked: Iterable[records.PairParked], retries: Mapping[QAId, Retry], now: datetime, passed_over: QAId | None
) -> DuePairs:
    """Find the due ones of the parked pairs. Skip those up to `passed_over`."""
    due: list[records.PairParked] = []
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


V = TypeVar("V")

HELD_FOR = timedelta(minutes=15)  # after this, a batch will never be captured
MOST_HELD = 1000  # the team may use the emoji for anything
_EDITS_REMEMBERED = 10_000


class HeldApproval(NamedTuple):
    """An approval and its time."""

    approval: ApprovalReaction
    at: datetime
    turn: int
    """Its place among all events."""


class ApprovalQueue:
    """Approvals whose captures have not arrived yet."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._turn = 0
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._held: OrderedDict[MessageId, HeldApproval] = OrderedDict()
        self._edited: OrderedDict[MessageId, tuple[datetime, int]] = OrderedDict()

    def receive(self, event: GatewayEvent) -> None:
        """Note an event of the gateway, in order. Never waits."""
        self._turn += 1
        match event:
            case ApprovalReaction(message_id=message_id):
                # Our clock may be slow.
                at = max(self._clock.now(), self._newest)
                append_bounded(self._held, message_id, HeldApproval(event, at, self._turn), MOST_HELD)
            case MessageCreated(message=message):
                self._newest = max(self._newest, message.at)
            case MessageEdited(message=message):
                append_bounded(self._edited, message.id, (self._clock.now(), self._turn), _EDITS_REMEMBERED)
            case SessionStarted():
                # Edits between the sessions were not reported.
                self._held.clear()
            case _:
                pass

    def list_waiting(self) -> tuple[HeldApproval, ...]:
        """Return the approvals that are not too old, oldest first."""
        since = self._clock.now() - HELD_FOR
        while self._held and next(iter(self._held.values())).at < since:
            self._held.popitem(last=False)
        return tuple(self._held.values())

    def discard(self, held: HeldApproval) -> None:
        """Discard an approval that was used, or cannot be used."""
        if self._held.get(held.approval.message_id) is held:
            del self._held[held.approval.message_id]

    def covers(self, held: HeldApproval, pair: records.CapturedPair) -> bool:
        """Whether the pair's messages all existed, as they are now, at the time of the approval."""
        if pair.answered_at > held.at:
            return False
        edits = (self._edited[each] for each in pair.message_ids if each in self._edited)
        return all(turn < held.turn and at <= pair.timestamp for at, turn in edits)


def append_bounded(entries: OrderedDict[MessageId, V], key: MessageId, value: V, limit: int) -> None:
    """Put an entry at the end; if there are too many, drop the first one."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > limit:
        entries.popitem(last=False)
