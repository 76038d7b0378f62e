"""Records of knowledge: captures and archived pairs of the team's answers, and the decisions on each.

Also the index entries of sources; nuggets, which are richer than a question and its answer; facts, one sentence
each, with their occurrences; and the documents, filters and results of the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import Struct

from intern.core import ids


@cache
def build_types() -> int:
    """Let msgspec build all types of ours that are loaded, and return how many. Call it before threads use any.

    Two threads that use a type for the first time at once end the process with a segmentation fault (msgspec 0.22).
    """
    types, found = 0, [Struct]
    while found:
        kind = found.pop()
        found += kind.__subclasses__()
        if kind.__module__.startswith("intern."):
            with suppress(NameError, TypeError):  # one with a name that is not loaded is no type that is decoded
                msgspec.json.Decoder(kind)
                types += 1
    return types


Speaker = Literal["User", "Team"]


class Turn(Struct, frozen=True):
    """One message of a captured conversation, its text exactly as written."""

    speaker: Speaker
    text: str


class Capture(Struct, frozen=True, kw_only=True):
    """A question and its team answer, not yet archived. `turns` and `message_ids` run side by side, oldest first."""

    conversation_id: ids.ConversationId
    turns: tuple[Turn, ...]
    message_ids: tuple[ids.MessageId, ...]
    answered_at: datetime
    """Time of the last message (UTC): tells newer knowledge from older, whenever it was archived."""
    guild_id: ids.GuildId | None = None
    channel_id: ids.ChannelId | None = None
    replaces: ids.QAId | None = None
    """The pair that this capture is a fuller or edited version of."""
    author_ids: tuple[ids.UserId, ...] = ()
    """The author of each message, parallel to `message_ids`; "" for an unknown one, empty if none is known."""
    author_names: tuple[tuple[str, ...], ...] = ()
    """The name of each of `author_ids`, or empty. Only on the way to the archive, which holds no names."""

    @property
    def question(self) -> str:
        """The user's turns before the first team turn; all user turns if the team spoke first."""
        return extract_question(self.turns)


def extract_question(turns: Iterable[Turn]) -> str:
    """Return the user's turns before the first team turn; all user turns if the team spoke first."""
    users: list[str] = []
    for turn in turns:
        if turn.speaker == "Team" and users:
            break
        if turn.speaker == "User":
            users.append(turn.text)
    return "\n".join(users)


def copy_capture(capture: Capture, **changes: Any) -> Capture:
    """Return a capture with changes; for an archived pair, the capture in it."""
    return Capture(**{each: getattr(capture, each) for each in Capture.__struct_fields__} | changes)


class CapturedPair(Capture, frozen=True, kw_only=True):
    """A question and its team answer, safe in the archive."""

    qa_id: ids.QAId
    timestamp: datetime
    """Time of archiving (UTC); strictly increases through the archive. `qa_id` is derived from it."""
    extra_headers: tuple[tuple[str, str], ...] = ()
    """Header lines of the archive that this version does not know; kept as they are."""


class TopicBlock(Struct, frozen=True, kw_only=True):
    """A pair in a topic file."""

    qa_id: ids.QAId
    timestamp: datetime
    turns: tuple[Turn, ...]
    conversation_id: ids.ConversationId | None = None
    """None in files that other programs wrote."""
    answered_at: datetime | None = None
    extra_headers: tuple[tuple[str, str], ...] = ()


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


SearchKind = Literal["source", "file", "nugget", "fact"]
"""`source`: of the index. `file`: discovered, and no source of answers unless the operator wants that. `nugget` and
`fact`: distilled from conversations."""

SearchPart = Literal["text", "description"]
"""A part of a source's text, or its description."""

SourceType = Literal["document", "page", "topic"]
"""The types of index entries, as a search names them."""

FileType = Literal["documentation", "configuration", "source_code", "services"]
"""The types of discovered files, from the most to the least useful."""

_FileStatus = Literal["summary_failed", "unsupported_type", "permission_denied"]
SearchStatus = Literal["ok", "pending", _FileStatus, NuggetStatus, "active", "retired"]
"""Sources have the first two, files all but the second before a nugget's, facts the last two."""

Scalar = str | int | float | bool | None


class SearchDocument(Struct, frozen=True, kw_only=True):
    """A piece of text that can be found. A long source is several documents, which all lead to it."""

    id: str
    source_id: ids.SourceId
    """The source that a result leads to."""
    kind: SearchKind
    part: SearchPart = "text"
    type: str = ""
    """A `SourceType`; of a discovered file, its `FileType`; of a fact, its category; of a nugget none."""
    status: str = "ok"
    """A `SearchStatus`."""
    visibility: str = "shared"
    """The visibility of a fact; `secret` ones are no documents."""
    guild_id: str = ""
    """The server that it comes from; empty where it comes from none."""
    path: str = ""
    title: str = ""
    text: str = ""
    meta: Mapping[str, Scalar | tuple[str, ...]] = {}
    stamp: str = ""
    """A stamp that changes with the material of the document."""
    at: datetime
    """When its text was written, as far as that is known (UTC)."""


class SearchFilter(Struct, frozen=True, kw_only=True):
    """A filter of documents; a field that is None or empty lets all pass."""

    per: Literal["source", "document"] = "source"
    """The kind of result: a source, by the best of its documents, or each document by itself."""
    kinds: tuple[SearchKind, ...] = ()
    part: SearchPart | None = None
    type: str | None = None
    keyword: str | None = None
    """A nugget's keyword, spelled as there."""
    status: str | None = None
    retired: bool = False
    """Include retired facts, if no status is given."""
    visibility: str | None = None
    guild_id: str | None = None
    after: datetime | None = None
    before: datetime | None = None


class ScoredMatch(Struct, frozen=True, kw_only=True):
    """A result of a search: a source, by the best of its documents, or a document."""

    key: str
    """The id of the source or of the document, as the filter asks for."""
    document_id: str
    source_id: ids.SourceId
    score: float
    """Its relevance, larger is better: bm25 of words, the cosine of a vector (1 says the same, 0 is unrelated)."""
    written: bool = False
    """It is a document, a page or a file, and not a text from a chat."""


class PassageHit(Struct, frozen=True, kw_only=True):
    """The passage of a source that fits a question best, and how well it does."""

    source_id: ids.SourceId
    title: str = ""
    """The title and the headings above a document's passage; the question of a team answer."""
    text: str = ""
    """As it was indexed; of a team answer, what was said, without names and dates."""
    score: float = 0.0
    """Orders the hits of one question; not comparable between questions."""
    by_words: float = 0.0
    """The match of its words, from 0 to 1; comparable between questions, and between communities of any size."""
    likeness: float | None = None
    """From -1 to 1; None if it was not compared. Comparable between questions."""
    is_measured: bool = True
    """Whether the likeness comes from an embedder with measured cosines, so that a threshold makes sense."""
