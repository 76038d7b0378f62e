"""What the team taught: captures, archived pairs, and what was done with each."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from intern.domain.ids import ChannelId, ConversationId, GuildId, MessageId, QAId, TopicName, UserId

Speaker = Literal["User", "Team"]


class Turn(Struct, frozen=True):
    """One message of a captured conversation, its text exactly as written."""

    speaker: Speaker
    text: str


class Capture(Struct, frozen=True, kw_only=True):
    """A question and its team answer, not yet archived. `turns` and `message_ids` run side by side, oldest first."""

    conversation_id: ConversationId
    turns: tuple[Turn, ...]
    message_ids: tuple[MessageId, ...]
    answered_at: datetime
    """Time of the last message (UTC): tells newer knowledge from older, whenever it was archived."""
    guild_id: GuildId | None = None
    channel_id: ChannelId | None = None
    replaces: QAId | None = None
    """The pair that this capture is a fuller or edited version of."""
    author_ids: tuple[UserId, ...] = ()
    """Who wrote each message, beside `message_ids`; "" for one that nobody knows, empty where it is known of none."""
    author_names: tuple[tuple[str, ...], ...] = ()
    """What each of `author_ids` is called, or empty. Only on the way to the archive, which holds no names."""

    @property
    def question(self) -> str:
        """What the user asked before the first team turn; all user turns where the team spoke first."""
        users: list[str] = []
        for turn in self.turns:
            if turn.speaker == "Team" and users:
                break
            if turn.speaker == "User":
                users.append(turn.text)
        return "\n".join(users)


class CapturedPair(Capture, frozen=True, kw_only=True):
    """A question and its team answer, safe in the archive."""

    qa_id: QAId
    timestamp: datetime
    """Time of archiving (UTC); strictly increases through the archive. `qa_id` is derived from it."""
    extra_headers: tuple[tuple[str, str], ...] = ()
    """Header lines of the archive that this version does not know; kept as they are."""


class TopicBlock(Struct, frozen=True, kw_only=True):
    """A pair as it stands in a topic file."""

    qa_id: QAId
    timestamp: datetime
    turns: tuple[Turn, ...]
    conversation_id: ConversationId | None = None
    """None in files that other programs wrote."""
    answered_at: datetime | None = None
    extra_headers: tuple[tuple[str, str], ...] = ()


class _Decided(Struct, frozen=True, kw_only=True, tag_field="action"):
    at: datetime
    reason: str = ""


class Filed(_Decided, frozen=True, kw_only=True, tag="filed"):
    """The pair stands in a topic file; `removed` names the blocks that it made obsolete."""

    qa_id: QAId
    topic: TopicName
    removed: tuple[QAId, ...] = ()


class Skipped(_Decided, frozen=True, kw_only=True, tag="skipped"):
    """The pair cannot guide a future answer, or is covered already."""

    qa_id: QAId


class Parked(_Decided, frozen=True, kw_only=True, tag="parked"):
    """Nobody could decide; the pair waits for a person or a retry, and the queue went on."""

    qa_id: QAId


class Replaced(_Decided, frozen=True, kw_only=True, tag="replaced"):
    """The pair's block gave way to a fuller or newer version of the same conversation."""

    qa_id: QAId
    by: QAId


class Removed(_Decided, frozen=True, kw_only=True, tag="removed"):
    """The pair stands in no topic any more: once messages were withdrawn, its question or its answer was gone."""

    qa_id: QAId


class Withdrawn(_Decided, frozen=True, kw_only=True, tag="withdrawn"):
    """These messages teach nothing from now on, whatever pair they stand in. The archive still holds them."""

    message_ids: tuple[MessageId, ...]


class Moved(_Decided, frozen=True, kw_only=True, tag="moved"):
    """The pair's block stands in another topic by now: the one where it was filed had outgrown its bound."""

    qa_id: QAId
    topic: TopicName


class AwaitingReview(_Decided, frozen=True, kw_only=True, tag="awaiting_review"):
    """The pair waits for somebody of the team to approve or reject it (`kb.review`)."""

    qa_id: QAId


class Approved(_Decided, frozen=True, kw_only=True, tag="approved"):
    """Somebody of the team wants the pair filed; that comes next."""

    qa_id: QAId
    by: str = ""
    """A member's id; empty where it was done on the command line."""


class Rejected(_Decided, frozen=True, kw_only=True, tag="rejected"):
    """Somebody of the team wants nothing learned from the pair, also not by a regeneration."""

    qa_id: QAId
    by: str = ""


class Forgotten(_Decided, frozen=True, kw_only=True, tag="forgotten"):
    """A tombstone: these messages teach nothing any more, nor does anything that the member wrote until then."""

    message_ids: tuple[MessageId, ...]
    user_id: UserId | None = None


PairDecision = Filed | Skipped | Parked | Replaced | Removed | Moved | AwaitingReview | Approved | Rejected
"""What was done with one pair."""

Decision = PairDecision | Withdrawn | Forgotten
