"""Review: what somebody of the team says of captures that wait for them (`kb.review`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal, Protocol

from msgspec import Struct

from intern.domain import (
    Approved,
    AwaitingReview,
    CapturedPair,
    ConversationId,
    MessageId,
    PairDecision,
    QAId,
    Rejected,
    Replaced,
)
from intern.errors import ConfigError
from intern.knowledge.blocks import time_of


class Review(Struct, frozen=True, kw_only=True):
    """Somebody's word on some pairs."""

    action: Literal["approve", "reject"]
    qa_ids: tuple[QAId, ...]
    by: str = ""
    """A member's id; empty where it is done on the command line."""


class Decisions(Protocol):
    """What was decided so far (see `intern.knowledge.decisions`)."""

    def of(self, qa_id: QAId) -> PairDecision | None:
        """The last decision about a pair."""
        ...

    def review_of(self, qa_id: QAId) -> Approved | Rejected | None:
        """What somebody last said of a pair."""
        ...


class Pairs(Protocol):
    """Where pairs are looked up (see `intern.knowledge.archive`)."""

    def get(self, qa_id: QAId) -> CapturedPair | None:
        """The pair of that id."""
        ...


class Conversations(Pairs, Protocol):
    """Where pairs are found by what is in them (see `intern.knowledge.archive`)."""

    def conversations_of(self, message_id: MessageId) -> Sequence[ConversationId]:
        """All conversations that a message was captured with. From memory."""
        ...

    def latest_of(self, conversation_id: ConversationId) -> CapturedPair | None:
        """The newest pair of a conversation."""
        ...


def waiting_with(message_id: MessageId, decisions: Decisions, archive: Conversations) -> tuple[CapturedPair, ...]:
    """The pairs with this message that wait for somebody's word, newest first. Reads the disk."""
    found: dict[datetime, CapturedPair] = {}
    for conversation in archive.conversations_of(message_id):
        latest = archive.latest_of(conversation)
        for pair in () if latest is None else (latest, *_older(latest, archive)):
            if message_id in pair.message_ids and isinstance(decisions.of(pair.qa_id), AwaitingReview):
                found[pair.timestamp] = pair
    return tuple(found[time] for time in sorted(found, reverse=True))


def reviewed(review: Review, decisions: Decisions, archive: Pairs, at: datetime) -> tuple[PairDecision, ...]:
    """What is to be written down, all at once. What the same was said of before is passed over.

    Whoever approves a pair has seen all that its older versions say: those need not wait any more. Who rejects one
    says nothing about the others. Raises ConfigError for an id that is unknown, or of a pair that does not wait.
    """
    taken: dict[datetime, PairDecision] = {}
    for qa_id in review.qa_ids:
        pair = pair_of(qa_id, archive)
        if not _was_said(review, pair, decisions):
            taken[pair.timestamp] = _verdict(review, pair.qa_id, at)
    if review.action == "approve":
        for qa_id in review.qa_ids:
            for older in _older(pair_of(qa_id, archive), archive):
                if isinstance(decisions.of(older.qa_id), AwaitingReview) and older.timestamp not in taken:
                    taken[older.timestamp] = Replaced(qa_id=older.qa_id, by=qa_id, at=at)
    return tuple(taken.values())


def pair_of(qa_id: QAId, archive: Pairs) -> CapturedPair:
    """The pair of an id that somebody gave. Raises ConfigError where there is none."""
    pair = archive.get(qa_id)
    if pair is None:
        raise ConfigError(f"the archive holds no pair {qa_id[:80]!r}; `intern archive` lists their ids")
    return pair


def _was_said(review: Review, pair: CapturedPair, decisions: Decisions) -> bool:
    """Whether the same was said before. Raises ConfigError where the pair does not wait for anybody's word."""
    said = decisions.review_of(pair.qa_id)
    waits = isinstance(decisions.of(pair.qa_id), AwaitingReview)
    if not waits and isinstance(said, Approved if review.action == "approve" else Rejected):
        return True
    check_waits(pair.qa_id, decisions)
    return False


def check_waits(qa_id: QAId, decisions: Decisions) -> None:
    """Raise ConfigError where a pair does not wait for anybody's word."""
    decided = decisions.of(qa_id)
    if isinstance(decided, AwaitingReview):
        return
    decided = decisions.review_of(qa_id) or decided
    stands = "not been looked at yet" if decided is None else f"been {_word(decided)} already"
    raise ConfigError(f"{qa_id} does not wait for review: it has {stands}; `intern review` lists those that wait")


def _word(decision: PairDecision) -> str:
    return type(decision).__name__.lower()


def _verdict(review: Review, qa_id: QAId, at: datetime) -> Approved | Rejected:
    return (Approved if review.action == "approve" else Rejected)(qa_id=qa_id, by=review.by, at=at)


def _older(pair: CapturedPair, archive: Pairs) -> Iterator[CapturedPair]:
    """The versions that the pair followed, newest first."""
    while pair.replaces is not None and (older := archive.get(pair.replaces)) is not None:
        if time_of(older.qa_id) >= time_of(pair.qa_id):
            return  # an archive from elsewhere may say anything
        yield older
        pair = older
