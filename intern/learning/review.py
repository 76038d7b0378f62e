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
from intern.core.flow import Approval, GatewayEvent, MessageCreated, MessageEdited, SessionStarted
from intern.core.ids import MessageId, QAId, TopicName
from intern.facts.segments import is_whole, without_withdrawn
from intern.stores.archive import Archive
from intern.stores.blocks import time_of
from intern.stores.sqlite.knowledge import Knowledge
from intern.stores.sqlite.work import Retry, retry_of


class Review(Struct, frozen=True, kw_only=True):
    """A team member's approval or rejection of pairs."""

    action: Literal["approve", "reject"]
    qa_ids: tuple[QAId, ...]
    by: str = ""
    """The team member's id; empty for the command line and the page."""
    topic: TopicName | None = None
    """Where to file what is approved, if its conversation is in no topic yet; None lets the model choose."""
    edited: Mapping[MessageId, str] = {}
    """Messages of the one pair that is approved, in the reviewer's words; one without text is left out."""


def waiting_with(message_id: MessageId, decisions: Knowledge, archive: Archive) -> tuple[records.CapturedPair, ...]:
    """Return the pairs with this message that wait for review, newest first. Reads the disk."""
    found: dict[datetime, records.CapturedPair] = {}
    for conversation in archive.conversations_of(message_id):
        latest = archive.latest_of(conversation)
        for pair in () if latest is None else (latest, *_older(latest, archive)):
            if message_id in pair.message_ids and isinstance(decisions.of(pair.qa_id), records.AwaitingReview):
                found[pair.timestamp] = pair
    return tuple(found[time] for time in sorted(found, reverse=True))


def reviewed(review: Review, decisions: Knowledge, archive: Archive, at: datetime) -> tuple[records.PairDecision, ...]:
    """Return the decisions of a review, to be logged in one write. Pairs with the same verdict before are skipped.

    An approval covers older versions of the pair, so they need no review any more. A rejection does not. Raises
    ConfigError for an unknown id, or a pair that does not wait.
    """
    taken: dict[datetime, records.PairDecision] = {}
    verdict = records.Approved if review.action == "approve" else records.Rejected
    for qa_id in review.qa_ids:
        pair = pair_of(qa_id, archive)
        waits = isinstance(decisions.of(pair.qa_id), records.AwaitingReview)
        if waits or not isinstance(decisions.review_of(pair.qa_id), verdict):
            check_waits(pair.qa_id, decisions)
            taken[pair.timestamp] = _verdict(review, pair.qa_id, at)
    if review.action == "approve":
        for qa_id in review.qa_ids:
            for each in _covered(pair_of(qa_id, archive), decisions, archive, at):
                taken.setdefault(time_of(each.qa_id), each)
    return tuple(taken.values())


def approved_as_edited(
    review: Review, pair: records.CapturedPair, decisions: Knowledge, archive: Archive, at: datetime
) -> tuple[records.PairDecision, ...]:
    """Return the decisions that approve `pair`, an edited version that was archived just now."""
    return (_verdict(review, pair.qa_id, at), *_covered(pair, decisions, archive, at))


def edited(review: Review, decisions: Knowledge, archive: Archive) -> records.Capture | None:
    """Return the capture with the reviewer's words; None if these are the words that it has.

    Raises ConfigError for a pair that is unknown, does not wait or is not the newest of its conversation, and for an
    edit without a question or an answer. Reads the disk.
    """
    [qa_id] = review.qa_ids
    pair = pair_of(qa_id, archive)
    check_waits(pair.qa_id, decisions)
    left = without_withdrawn(pair, decisions.is_withdrawn)
    newer = archive.newest_of(pair.conversation_id) != pair.qa_id
    if newer or len(left.turns) != len(left.message_ids) or not set(review.edited) <= set(left.message_ids):
        raise ConfigError(f"{qa_id} is not as it was shown any more; look at it again, then edit it")
    written = zip(left.turns, left.message_ids, strict=True)
    turns = tuple(structs.replace(turn, text=review.edited.get(each, turn.text)) for turn, each in written)
    if not is_whole([turn for turn in turns if turn.text.strip()]):
        raise ConfigError(f"{qa_id} would have no question or no answer; leave one of each, or reject it")
    if turns == left.turns:
        return None
    return records.capture_with(left, turns=turns, replaces=None)


def _verdict(review: Review, qa_id: QAId, at: datetime) -> records.Approved | records.Rejected:
    if review.action == "reject":
        return records.Rejected(qa_id=qa_id, by=review.by, at=at)
    return records.Approved(qa_id=qa_id, by=review.by, topic=review.topic, at=at)


def _covered(
    pair: records.CapturedPair, decisions: Knowledge, archive: Archive, at: datetime
) -> Iterator[records.Replaced]:
    """Yield the decisions about older versions that wait: an approval covers them."""
    for older in _older(pair, archive):
        if isinstance(decisions.of(older.qa_id), records.AwaitingReview):
            yield records.Replaced(qa_id=older.qa_id, by=pair.qa_id, at=at)


def pair_of(qa_id: QAId, archive: Archive) -> records.CapturedPair:
    """Return the pair of a given id. Raises ConfigError for an unknown one."""
    pair = archive.get(qa_id)
    if pair is None:
        raise ConfigError(f"the archive holds no pair {qa_id[:80]!r}; `intern archive` lists their ids")
    return pair


def check_waits(qa_id: QAId, decisions: Knowledge) -> None:
    """Raise ConfigError if a pair does not wait for review."""
    decided = decisions.of(qa_id)
    if isinstance(decided, records.AwaitingReview):
        return
    decided = decisions.review_of(qa_id) or decided
    stands = "not been looked at yet" if decided is None else f"been {type(decided).__name__.lower()} already"
    raise ConfigError(f"{qa_id} does not wait for review: it has {stands}; `intern review` lists those that wait")


def _older(pair: records.CapturedPair, archive: Archive) -> Iterator[records.CapturedPair]:
    """Yield the older versions of the pair, newest first."""
    while pair.replaces is not None and (older := archive.get(pair.replaces)) is not None:
        if time_of(older.qa_id) >= time_of(pair.qa_id):
            return  # another program's archive may say anything
        yield older
        pair = older


class Again(NamedTuple):
    """The pairs that are due now, and the time until the next."""

    due: tuple[records.Approved | records.Parked, ...]
    seconds: float | None
    """Until the next known one is due; None without one."""


def again(
    parked: Iterable[records.Parked], retries: Mapping[QAId, Retry], now: datetime, passed_over: QAId | None
) -> Again:
    """Find the due ones of the parked pairs. Skip those up to `passed_over`."""
    due: list[records.Parked] = []
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


V = TypeVar("V")

HELD_FOR = timedelta(minutes=15)  # by then, a batch is captured, or never will be
MOST_HELD = 1000  # the team may use the emoji for anything
_EDITS_REMEMBERED = 10_000


class Held(NamedTuple):
    """An approval and its time."""

    approval: Approval
    at: datetime
    turn: int
    """Its place among all events."""


class Approvals:
    """Approvals whose captures have not arrived yet."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._turn = 0
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._held: OrderedDict[MessageId, Held] = OrderedDict()
        self._edited: OrderedDict[MessageId, tuple[datetime, int]] = OrderedDict()

    def hear(self, event: GatewayEvent) -> None:
        """Note an event of the gateway, in order. Never waits."""
        self._turn += 1
        match event:
            case Approval(message_id=message_id):
                # Our clock may be slow.
                at = max(self._clock.now(), self._newest)
                put_last(self._held, message_id, Held(event, at, self._turn), MOST_HELD)
            case MessageCreated(message=message):
                self._newest = max(self._newest, message.at)
            case MessageEdited(message=message):
                put_last(self._edited, message.id, (self._clock.now(), self._turn), _EDITS_REMEMBERED)
            case SessionStarted():
                # Edits between the sessions were not reported.
                self._held.clear()
            case _:
                pass

    def held(self) -> tuple[Held, ...]:
        """Return the approvals that are not too old, oldest first."""
        since = self._clock.now() - HELD_FOR
        while self._held and next(iter(self._held.values())).at < since:
            self._held.popitem(last=False)
        return tuple(self._held.values())

    def let_go(self, held: Held) -> None:
        """Drop an approval that was used, or that is of no use."""
        if self._held.get(held.approval.message_id) is held:
            del self._held[held.approval.message_id]

    def covers(self, held: Held, pair: records.CapturedPair) -> bool:
        """Whether the pair's messages were all there, as they are now, at the time of the approval."""
        if pair.answered_at > held.at:
            return False
        edits = (self._edited[each] for each in pair.message_ids if each in self._edited)
        return all(turn < held.turn and at <= pair.timestamp for at, turn in edits)


def put_last(entries: OrderedDict[MessageId, V], key: MessageId, value: V, limit: int) -> None:
    """Put an entry at the end; if there are too many, drop the first one."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > limit:
        entries.popitem(last=False)
