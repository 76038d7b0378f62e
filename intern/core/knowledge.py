"""Sources, nuggets and facts: what the bot knows."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Literal

import msgspec
from msgspec import Struct

from intern.core import ids


class IndexEntry(Struct, frozen=True):
    """One source and one paragraph on what it covers."""

    source_id: ids.SourceId
    description: str


class SourceText(Struct, frozen=True, kw_only=True):
    """A source, loaded. `text` is whole here; the answering room cuts it to passages that fit."""

    source_id: ids.SourceId
    text: str
    title: str
    url: str | None = None
    said: str | None = None
    """The team's own words, where the text is a model's account of them; None where the text is what was written."""


class LearnedMatches(Struct, frozen=True, kw_only=True):
    """The nuggets and facts that fit a question."""

    nuggets: tuple[IndexEntry, ...] = ()
    """Candidates, the best first."""
    likeness: float | None = None
    """The similarity of the nugget that is most similar to the question; None if none was compared."""
    facts: tuple[SourceText, ...] = ()
    """Known to fit, the best first."""


NuggetStatus = Literal["FACT", "SPECULATION", "COMMUNITY_OPINION"]


class Nugget(Struct, frozen=True, kw_only=True):
    """A piece of knowledge and how far it can be trusted. No text field holds a name, an id or a mention."""

    id: ids.NuggetId
    conversation_id: ids.ConversationId
    topic: str
    timestamp: datetime
    """The time of the last message of its conversation (UTC)."""
    topic_summary: str
    """One sentence."""
    detailed_analysis: str
    status: NuggetStatus
    keywords: tuple[str, ...] = ()
    source_message_ids: tuple[ids.MessageId, ...] = ()
    """Messages of the conversation that it was made from."""
    user_ids_involved: tuple[str, ...] = ()
    """`User_1` and so on, the same person the same number within a conversation."""
    guild_id: ids.GuildId | None = None
    channel_id: ids.ChannelId | None = None

    @property
    def stamp(self) -> str:
        """A stamp that changes with every field."""
        return sha256(msgspec.json.encode(self)).hexdigest()[:32]


_Said = Literal["preference", "decision", "person", "action_item"]
FactCategory = Literal[_Said, "correction", "technical", "routine", "emotional"]
Visibility = Literal["shared", "private", "secret"]
"""From the least to the most strict."""
Sentiment = Literal["neutral", "frustration", "confirmation", "correction", "update"]


class Fact(Struct, frozen=True, kw_only=True):
    """A sentence that was true when it was last said, as far as known."""

    id: ids.FactId
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
    supersedes: ids.FactId | None = None
    """The older fact that this one replaced."""
    is_active: bool = True
    """False once a newer fact replaced it, or an operator retired it."""
    retired_at: datetime | None = None
    retired_why: str = ""
    """The operator's reason, or UNSAID; empty while it is active, and where a newer fact replaced it."""


class FactOccurrence(Struct, frozen=True, kw_only=True):
    """A conversation in which a fact was said."""

    id: str
    fact_id: ids.FactId
    conversation_id: ids.ConversationId
    timestamp: datetime
    context_snippet: str = ""
    sentiment: Sentiment = "neutral"
    is_withdrawn: bool = False
    """The conversation was withdrawn, or says something else by now; the snippet is gone then."""


UNSAID = "no conversation says so any more"
"""The reason for retiring a fact whose conversations were withdrawn, or say something else by now."""

Origin = Literal["capture", "answer", "note"]


class DistilledConversation(Struct, frozen=True, kw_only=True):
    """A conversation that knowledge is learned from, as it was when it was read."""

    id: ids.ConversationId
    agent_id: str
    """The community that it took place in."""
    origin: Origin = "capture"
    guild_id: ids.GuildId | None = None
    channel_id: ids.ChannelId | None = None
    message_ids: tuple[ids.MessageId, ...] = ()
    last_message_at: datetime
    content_hash: str


class NewFact(Struct, frozen=True, kw_only=True, tag="NewFact"):
    """A fact that is new."""

    fact: Fact
    occurrence: FactOccurrence


class RepeatedFact(Struct, frozen=True, kw_only=True, tag="RepeatedFact"):
    """A known fact was said once more."""

    occurrence: FactOccurrence
    visibility: Visibility | None = None
    """The fact's visibility from now on; None: no change."""


class UpdatedFact(Struct, frozen=True, kw_only=True, tag="UpdatedFact"):
    """A fact that replaces the one that it supersedes."""

    fact: Fact
    occurrence: FactOccurrence


FactRefusal = Literal["empty", "unknown_id", "retired_id", "other_agent", "secret", "not_older", "said_already"]


class RefusedFact(Struct, frozen=True, kw_only=True, tag="RefusedFact"):
    """A refused proposal; none of its text is kept."""

    reason: FactRefusal
    gone: ids.FactId | None = None
    """A known fact that says the same, and goes, too."""


FactDecision = NewFact | RepeatedFact | UpdatedFact | RefusedFact


class ExtractionResult(Struct, frozen=True, kw_only=True):
    """All knowledge from a conversation: it replaces the knowledge that was learned from it before."""

    conversation: DistilledConversation
    nuggets: tuple[Nugget, ...] = ()
    facts: tuple[FactDecision, ...] = ()
    model_used: str
    extracted_at: datetime


class ExtractionCounts(Struct, frozen=True, kw_only=True):
    """The numbers of nuggets and facts that a conversation gave."""

    facts_extracted: int = 0
    facts_updated: int = 0
    facts_deduplicated: int = 0
    nuggets_extracted: int = 0


class AppliedExtraction(ExtractionCounts, frozen=True, kw_only=True):
    """The counts of a stored extraction, and the facts that were refused."""

    refused: tuple[FactRefusal, ...] = ()
    """Also changes since the decision, such as a fact that an operator retired meanwhile."""


class AffectedKnowledge(Struct, frozen=True, kw_only=True):
    """Nuggets and facts that a change affected; some may be gone."""

    nuggets: tuple[ids.NuggetId, ...] = ()
    facts: tuple[ids.FactId, ...] = ()


class KnownFacts(Struct, frozen=True, kw_only=True):
    """The known facts that decisions about a conversation's proposals need."""

    facts: tuple[Fact, ...] = ()
    only_here: frozenset[ids.FactId] = frozenset()
    """Those that no other conversation says."""
    retired_here: frozenset[ids.FactId] = frozenset()
    """Those that the conversation said, and an operator retired."""


def is_retired_by_operator(fact: Fact) -> bool:
    """Return whether an operator retired the fact."""
    return not fact.is_active and fact.retired_why not in {"", UNSAID}


def can_accept_statement(fact: Fact, at: datetime) -> bool:
    """Return whether a statement of this time counts for a fact; for a retired one only an earlier one does."""
    if fact.is_active:
        return True
    return fact.retired_why != UNSAID and fact.retired_at is not None and at < fact.retired_at
