"""What new answers made obsolete stays visible: the blocks that went out of a topic, and for which pair."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from intern.domain import (
    CapturedPair,
    Decision,
    Filed,
    Forgotten,
    MessageId,
    Moved,
    QAId,
    TopicBlock,
    TopicName,
    Withdrawn,
)
from intern.knowledge.blocks import time_of
from intern.learning.material import block_of, left_of


class RemovedBlock(Struct, frozen=True, kw_only=True):
    """A block that stood in a topic until a newer pair made it obsolete."""

    qa_id: QAId
    by: QAId
    """The pair that made it obsolete."""
    at: datetime
    block: TopicBlock | None
    """None where nothing of it may be shown any more, or the archive does not hold it."""


class Decisions(Protocol):
    """What was decided (see `intern.knowledge.decisions`)."""

    def all(self) -> Iterator[Decision]:
        """Every decision, oldest first."""
        ...

    def is_withdrawn(self, message_id: MessageId) -> bool:
        """Whether a message may teach nothing any more."""
        ...


class Pairs(Protocol):
    """Where pairs are looked up (see `intern.knowledge.archive`)."""

    def get(self, qa_id: QAId) -> CapturedPair | None:
        """The pair of that id."""
        ...


def removed_from(topic: TopicName, decisions: Decisions, archive: Pairs) -> tuple[RemovedBlock, ...]:
    """The blocks that newer pairs removed from a topic and that stand nowhere since, oldest removal first.

    Less the messages that were withdrawn. Reads the whole log; blocks.
    """
    removed: dict[datetime, Filed] = {}
    ids: dict[datetime, QAId] = {}
    for decision in decisions.all():
        if isinstance(decision, Withdrawn | Forgotten):
            continue
        if isinstance(decision, Filed | Moved):
            removed.pop(time_of(decision.qa_id), None)  # it stands again
        if isinstance(decision, Filed):
            for qa_id in decision.removed:
                time = time_of(qa_id)
                removed.pop(time, None)
                removed[time], ids[time] = decision, qa_id
    return tuple(
        RemovedBlock(qa_id=ids[time], by=by.qa_id, at=by.at, block=_block(ids[time], decisions, archive))
        for time, by in removed.items()
        if by.topic == topic
    )


def _block(qa_id: QAId, decisions: Decisions, archive: Pairs) -> TopicBlock | None:
    pair = archive.get(qa_id)
    left = None if pair is None else left_of(pair, decisions.is_withdrawn)
    return None if left is None else block_of(left)
