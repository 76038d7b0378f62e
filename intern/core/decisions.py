"""Decisions about pairs and messages, as the change log holds them."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from intern.core import ids


class _DecisionRecord(Struct, frozen=True, kw_only=True, tag_field="action"):
    at: datetime
    reason: str = ""


class _PairDecisionRecord(_DecisionRecord, frozen=True, kw_only=True):
    qa_id: ids.QAId


class PairFiled(_PairDecisionRecord, frozen=True, kw_only=True, tag="filed"):
    """The pair is in a topic file; `removed` names the blocks that it made obsolete."""

    topic: ids.TopicName
    removed: tuple[ids.QAId, ...] = ()


class PairSkipped(_PairDecisionRecord, frozen=True, kw_only=True, tag="skipped"):
    """The pair cannot guide a future answer, or is covered already."""


class PairParked(_PairDecisionRecord, frozen=True, kw_only=True, tag="parked"):
    """The decision failed; the pair waits for a person or a retry, and the queue went on."""


class PairReplaced(_PairDecisionRecord, frozen=True, kw_only=True, tag="replaced"):
    """The pair's block gave way to a fuller or newer version of the same conversation."""

    by: ids.QAId


class PairRemoved(_PairDecisionRecord, frozen=True, kw_only=True, tag="removed"):
    """The pair is in no topic any more: after messages were withdrawn, its question or its answer was gone."""


class MessagesWithdrawn(_DecisionRecord, frozen=True, kw_only=True, tag="withdrawn"):
    """From now on, nothing is learned from these messages, in any pair. The archive still holds them."""

    message_ids: tuple[ids.MessageId, ...]


class PairMoved(_PairDecisionRecord, frozen=True, kw_only=True, tag="moved"):
    """The pair's block is in another topic by now: the one where it was filed had outgrown its bound."""

    topic: ids.TopicName


class PairReviewRequested(_PairDecisionRecord, frozen=True, kw_only=True, tag="awaiting_review"):
    """The pair waits for a team member to approve or reject it (`kb.review`)."""


class PairApproved(_PairDecisionRecord, frozen=True, kw_only=True, tag="approved"):
    """A team member wants the pair filed, which happens next."""

    by: str = ""
    """A member's id; empty where it was done on the command line or the page."""
    topic: ids.TopicName | None = None
    """The topic that the reviewer chose; None where the model is to choose."""


class PairRejected(_PairDecisionRecord, frozen=True, kw_only=True, tag="rejected"):
    """A team member wants nothing learned from the pair, also not by a regeneration."""

    by: str = ""


class MessagesForgotten(_DecisionRecord, frozen=True, kw_only=True, tag="forgotten"):
    """A tombstone: these messages teach nothing any more, nor does anything that the member wrote until then."""

    message_ids: tuple[ids.MessageId, ...]
    user_id: ids.UserId | None = None


PairDecision = (
    PairFiled
    | PairSkipped
    | PairParked
    | PairReplaced
    | PairRemoved
    | PairMoved
    | PairReviewRequested
    | PairApproved
    | PairRejected
)
"""The decision on one pair."""

Decision = PairDecision | MessagesWithdrawn | MessagesForgotten
