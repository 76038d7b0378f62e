"""What is known about the community and its work, one sentence at a time, and how it came to be known."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from msgspec import Struct

from intern.domain.ids import ChannelId, ConversationId, FactId, GuildId, MessageId, NuggetId
from intern.domain.nuggets import Nugget

FactCategory = Literal[
    "preference", "decision", "person", "action_item", "correction", "technical", "routine", "emotional"
]
Visibility = Literal["shared", "private", "secret"]
"""From the least to the most strict."""
Sentiment = Literal["neutral", "frustration", "confirmation", "correction", "update"]


class Fact(Struct, frozen=True, kw_only=True):
    """A sentence that was true when it was last said, as far as anybody knows."""

    id: FactId
    agent_id: str
    """The community that it is known in."""
    category: FactCategory
    content: str
    summary: str = ""
    """At most 100 characters."""
    visibility: Visibility = "shared"
    confidence: float = 1.0
    """From 0 to 1."""
    first_seen_at: datetime
    last_seen_at: datetime
    occurrence_count: int = 1
    supersedes: FactId | None = None
    """The older fact that this one took the place of."""
    is_active: bool = True
    """False once a newer fact took its place, or somebody retired it."""
    retired_at: datetime | None = None
    retired_why: str = ""
    """What the operator said, or UNSAID; empty while it is active, and where a newer fact took its place."""


class Occurrence(Struct, frozen=True, kw_only=True):
    """A conversation in which a fact was said."""

    id: str
    fact_id: FactId
    conversation_id: ConversationId
    timestamp: datetime
    context_snippet: str = ""
    sentiment: Sentiment = "neutral"
    is_withdrawn: bool = False
    """The conversation was withdrawn, or says something else by now; the snippet is gone then."""


UNSAID = "no conversation says so any more"
"""Why a fact was retired whose conversations were withdrawn, or say something else by now."""

Origin = Literal["capture", "answer", "note"]


class Distilled(Struct, frozen=True, kw_only=True):
    """A conversation that something is learned from, as it stood when it was read."""

    id: ConversationId
    agent_id: str
    """The community that it took place in."""
    origin: Origin = "capture"
    guild_id: GuildId | None = None
    channel_id: ChannelId | None = None
    message_ids: tuple[MessageId, ...] = ()
    last_message_at: datetime
    content_hash: str


class NewFact(Struct, frozen=True, kw_only=True, tag=True):
    """Nobody said this before."""

    fact: Fact
    occurrence: Occurrence


class RepeatedFact(Struct, frozen=True, kw_only=True, tag=True):
    """A known fact was said once more."""

    occurrence: Occurrence
    visibility: Visibility | None = None
    """Who may read the fact from now on; None: whoever might before."""


class UpdatedFact(Struct, frozen=True, kw_only=True, tag=True):
    """A fact that takes the place of the one that it supersedes."""

    fact: Fact
    occurrence: Occurrence


FactRefusal = Literal["empty", "unknown_id", "retired_id", "other_agent", "secret", "not_older", "said_already"]


class RefusedFact(Struct, frozen=True, kw_only=True, tag=True):
    """Not taken; nothing of its text is kept."""

    reason: FactRefusal
    gone: FactId | None = None
    """A known fact that says the same, and goes, too."""


FactDecision = NewFact | RepeatedFact | UpdatedFact | RefusedFact


class Outcome(Struct, frozen=True, kw_only=True):
    """All that was learned from a conversation: it takes the place of what was learned from it before."""

    conversation: Distilled
    nuggets: tuple[Nugget, ...] = ()
    facts: tuple[FactDecision, ...] = ()
    model_used: str
    extracted_at: datetime


class Applied(Struct, frozen=True, kw_only=True):
    """What became of an outcome."""

    facts_extracted: int = 0
    facts_updated: int = 0
    facts_deduplicated: int = 0
    nuggets_extracted: int = 0
    refused: tuple[FactRefusal, ...] = ()
    """Also what had changed since it was decided, such as a fact that somebody retired meanwhile."""


class Touched(Struct, frozen=True, kw_only=True):
    """Nuggets and facts that something was done to; some may be gone."""

    nuggets: tuple[NuggetId, ...] = ()
    facts: tuple[FactId, ...] = ()


class KnownFacts(Struct, frozen=True, kw_only=True):
    """What has to be known to decide about proposals for a conversation."""

    facts: tuple[Fact, ...] = ()
    only_here: frozenset[FactId] = frozenset()
    """Those that no other conversation says."""
    retired_here: frozenset[FactId] = frozenset()
    """Those that the conversation said, and an operator retired."""


def is_retired_by_word(fact: Fact) -> bool:
    """Whether an operator said that nobody is to believe it."""
    return not fact.is_active and fact.retired_why not in {"", UNSAID}


def takes_occurrence(fact: Fact, at: datetime) -> bool:
    """Whether something said at this time can be one more occurrence of a fact.

    What is retired is not said again; but what was said before it was retired was, though it may be read only now.
    """
    if fact.is_active:
        return True
    return fact.retired_why != UNSAID and fact.retired_at is not None and at < fact.retired_at
