"""Decide on the facts that a model proposes. Pure.

A proposal can refer to existing facts only. It replaces at most one, and never brings back a retired fact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from uuid import uuid4

import msgspec
from msgspec import Struct, structs

from intern.core import knowledge
from intern.core.ids import FactId
from intern.core.text.masking import mask_secrets
from intern.core.text.similarity import is_same_subject, text_similarity
from intern.core.text.words import normalise_wording, truncate_text
from intern.facts.visibility import RULES, FactOptions, decide_visibility, rate_fact_text, strictest_visibility

_LIKE_REFUTED = 0.2  # similarity to a retired fact; low, because the same messages say both
_NUMBER = re.compile(r"\d+(?:\.\d+)*")

MAX_SUMMARY = 100
MAX_SNIPPET = 500


class FactProposal(Struct, frozen=True, kw_only=True):
    """A fact that a model found in a conversation."""

    category: knowledge.FactCategory
    content: str
    summary: str = ""
    visibility: knowledge.Visibility = "shared"
    confidence: float = 1.0
    sentiment: knowledge.Sentiment = "neutral"
    context_snippet: str = ""
    """A quote of its source."""
    duplicate_of: str | None = None
    supersedes: str | None = None


class FactRetirement(Struct, frozen=True, kw_only=True):
    """An operator's request to mark a fact as outdated."""

    fact_id: FactId
    why: str


def decide_proposals(
    proposals: Sequence[FactProposal],
    conversation: knowledge.DistilledConversation,
    known: knowledge.KnownFacts,
    options: FactOptions,
    *,
    new_id: Callable[[], str] = lambda: str(uuid4()),
) -> tuple[knowledge.FactDecision, ...]:
    """Decide on each proposal, in their order.

    `known` has the facts that proposals name or repeat word for word, and those that the conversation said before.
    """
    restated = {normalise_wording(each.content) for each in proposals}
    return tuple(map(_ProposalDecider(conversation, known, options, new_id, restated).decide, proposals))


@dataclass
class _ProposalDecider:
    """The state while the proposals of one conversation are decided one by one."""

    conversation: knowledge.DistilledConversation
    known: knowledge.KnownFacts
    options: FactOptions
    new_id: Callable[[], str]
    restated: set[str]
    """Wordings of all proposals."""

    def __post_init__(self) -> None:
        self._known = {fact.id: fact for fact in self.known.facts}
        self._taken: set[FactId] = set()
        """Facts that an earlier proposal replaced."""
        self._said: set[tuple[str, str]] = set()

    def decide(self, proposal: FactProposal) -> knowledge.FactDecision:
        content = proposal.content.strip()
        if not content:
            return knowledge.RefusedFact(reason="empty")
        visibility = _decide_fact_visibility(proposal, proposal.visibility, self.options)
        if visibility == "secret" and not self.options.keep_secret:
            return knowledge.RefusedFact(reason="secret", gone=self._find_exposed_fact(proposal, content))
        for name in (proposal.duplicate_of, proposal.supersedes):
            refused = self._check_fact_id(name) if name else None
            if refused is not None:
                return refused
        same = self._find_repeated_fact(proposal, content)
        if same is not None:
            return self._decide_repetition(proposal, same, visibility)
        if (normalise_wording(content), "") in self._said:
            return knowledge.RefusedFact(reason="said_already")
        return self._decide_new_fact(proposal, content, visibility)

    def _check_fact_id(self, name: str) -> knowledge.RefusedFact | None:
        """Return why a proposal may not name this fact. Prompts hold no secret facts, so a reply cannot mean one."""
        fact = self._known.get(FactId(name))
        if fact is not None and self._is_refuted(fact):
            return None
        if fact is None or fact.visibility == "secret":
            return knowledge.RefusedFact(reason="unknown_id")
        if fact.agent_id != self.conversation.agent_id:
            return knowledge.RefusedFact(reason="other_agent")
        return None if fact.is_active else knowledge.RefusedFact(reason="retired_id")

    def _find_repeated_fact(self, proposal: FactProposal, content: str) -> knowledge.Fact | None:
        """Return the fact that the proposal repeats. A repetition replaces nothing, even if the proposal says so.

        The same words are a repetition, whether the model noticed or not. A fact that was retired after this
        conversation counts, too: reading an old conversation again brings nothing back.
        """
        refuted = self._find_retired_fact(proposal, content)
        if refuted is not None:
            return refuted
        if proposal.duplicate_of:
            return self._known[FactId(proposal.duplicate_of)]
        wanted, at = normalise_wording(content), self.conversation.last_message_at
        ours = (fact for fact in self._known.values() if fact.agent_id == self.conversation.agent_id)
        same = (fact for fact in ours if normalise_wording(fact.content) == wanted)
        alike = (fact for fact in same if knowledge.can_accept_statement(fact, at))
        return max(alike, key=lambda fact: (fact.is_active, fact.last_seen_at, fact.id), default=None)

    def _find_retired_fact(self, proposal: FactProposal, content: str) -> knowledge.Fact | None:
        """Return the retired fact that the same messages say again in other words.

        A proposal with other numbers is a different fact: the messages may have been corrected.
        """
        named = self._known.get(FactId(proposal.duplicate_of or ""))
        candidates = [fact for fact in self._known.values() if self._is_refuted(fact)]
        if named in candidates:
            return named
        numbers = {*_NUMBER.findall(content)}
        candidates = [fact for fact in candidates if {*_NUMBER.findall(fact.content)} == numbers]
        alike = [(text_similarity(fact.content, content), fact.id, fact) for fact in candidates]
        best = max(alike, default=None)
        return best[2] if best and best[0] >= _LIKE_REFUTED else None

    def _is_refuted(self, fact: knowledge.Fact) -> bool:
        said_since = fact.retired_at is None or self.conversation.last_message_at >= fact.retired_at
        return fact.id in self.known.retired_here and not said_since

    def _find_exposed_fact(self, proposal: FactProposal, content: str) -> FactId | None:
        """Return the stored fact that a secret proposal shows to be secret."""
        named = self._known.get(FactId(proposal.duplicate_of or ""))
        if named and (self._check_fact_id(named.id) is not None or not is_same_subject(named.content, content)):
            named = None
        mine = (fact for fact in self._known.values() if fact.agent_id == self.conversation.agent_id)
        same = (fact for fact in mine if normalise_wording(fact.content) == normalise_wording(content))
        fact = named or next(same, None)
        return fact.id if fact is not None and self._raise_visibility(fact, "secret") == "secret" else None

    def _raise_visibility(self, fact: knowledge.Fact, visibility: knowledge.Visibility) -> knowledge.Visibility:
        """Return the visibility of a repeated fact: as strict as before, or stricter, unless a rule decides."""
        return _decide_fact_visibility(fact, strictest_visibility(fact.visibility, visibility), self.options)

    def _decide_repetition(
        self, proposal: FactProposal, fact: knowledge.Fact, visibility: knowledge.Visibility
    ) -> knowledge.FactDecision:
        same = normalise_wording(proposal.content) == normalise_wording(fact.content)
        alike = same or is_same_subject(fact.content, proposal.content)
        raised = self._raise_visibility(fact, visibility) if alike else fact.visibility
        if raised == "secret" and not self.options.keep_secret:
            return knowledge.RefusedFact(reason="secret", gone=fact.id)
        occurrence = self._make_occurrence(proposal, structs.replace(fact, visibility=raised), visibility)
        said = (fact.id, occurrence.context_snippet)
        if said in self._said:
            return knowledge.RefusedFact(reason="said_already")
        self._said.add(said)
        if raised != fact.visibility:
            self._known[fact.id] = structs.replace(fact, visibility=raised)
        return knowledge.RepeatedFact(occurrence=occurrence, visibility=None if raised == fact.visibility else raised)

    def _decide_new_fact(
        self, proposal: FactProposal, content: str, visibility: knowledge.Visibility
    ) -> knowledge.FactDecision:
        at = self.conversation.last_message_at
        older = self._known[FactId(proposal.supersedes)] if proposal.supersedes else self._find_reworded_fact(content)
        if older is not None and not is_same_subject(older.content, content):
            older = None
        if older is not None and not older.is_active:
            return knowledge.RefusedFact(reason="not_older")
        if older is not None and older.id in self.known.only_here:
            # Only this conversation said so, and it changed. So replace the fact before that one.
            older = self._known.get(older.supersedes) if older.supersedes else None
        elif older is not None and at < older.last_seen_at:
            return knowledge.RefusedFact(reason="not_older")
        if older is not None and (older.id in self._taken or at <= older.first_seen_at):
            older = None
        self._said.add((normalise_wording(content), ""))
        keeps = visibility == "secret"
        summary = proposal.summary if keeps else mask_secrets(proposal.summary).text
        fact = knowledge.Fact(
            id=FactId(self.new_id()),
            agent_id=self.conversation.agent_id,
            category=proposal.category,
            content=content if keeps else mask_secrets(content).text,
            summary=truncate_text(summary.strip(), MAX_SUMMARY),
            visibility=visibility,
            confidence=_clamp_confidence(proposal.confidence),
            first_seen_at=at,
            last_seen_at=at,
        )
        occurrence = self._make_occurrence(proposal, fact, visibility)
        if older is None:
            return knowledge.NewFact(fact=fact, occurrence=occurrence)
        self._taken.add(older.id)
        return knowledge.UpdatedFact(fact=structs.replace(fact, supersedes=older.id), occurrence=occurrence)

    def _find_reworded_fact(self, content: str) -> knowledge.Fact | None:
        """Return the fact in a chain that only this conversation said, and that it now says in other words."""
        mine = (fact for fact in self._known.values() if fact.id in self.known.only_here)
        placed = (fact for fact in mine if fact.supersedes or not fact.is_active)
        gone = (fact for fact in placed if normalise_wording(fact.content) not in self.restated)
        return next((fact for fact in gone if is_same_subject(fact.content, content)), None)

    def _make_occurrence(
        self, proposal: FactProposal, fact: knowledge.Fact, visibility: knowledge.Visibility
    ) -> knowledge.FactOccurrence:
        """Make the occurrence, without the quote if that is stricter than the fact."""
        snippet = proposal.context_snippet.strip()
        if fact.visibility != "secret" and rate_fact_text(snippet) == "secret":
            snippet = ""
        if strictest_visibility(fact.visibility, visibility) != fact.visibility:
            snippet = ""
        return knowledge.FactOccurrence(
            id=self.new_id(),
            fact_id=fact.id,
            conversation_id=self.conversation.id,
            timestamp=self.conversation.last_message_at,
            context_snippet=truncate_text(snippet, MAX_SNIPPET),
            sentiment=proposal.sentiment,
        )


def rules_hash(options: FactOptions) -> str:
    """Return a hash that changes with the visibility rules."""
    return sha256(msgspec.json.encode((RULES, options))).hexdigest()


def reapply_visibility(fact: knowledge.Fact, options: FactOptions) -> knowledge.Fact | None:
    """Apply the current settings to a fact; return None if it must be deleted.

    Only an operator's rule can make a fact visible to more readers: the model's first proposal was not stored.
    """
    visibility = _decide_fact_visibility(fact, fact.visibility, options)
    if visibility == "secret":
        return structs.replace(fact, visibility=visibility) if options.keep_secret else None
    if fact.visibility != "secret":
        return structs.replace(fact, visibility=visibility)
    content, summary = mask_secrets(fact.content).text, mask_secrets(fact.summary).text
    return structs.replace(fact, visibility=visibility, content=content, summary=summary)


def _decide_fact_visibility(
    said: FactProposal | knowledge.Fact, proposed: knowledge.Visibility, options: FactOptions
) -> knowledge.Visibility:
    text = f"{said.content}\n{said.summary}"
    return decide_visibility(text, said.category, proposed=proposed, rules=options.overrides)


def _clamp_confidence(confidence: float) -> float:
    return min(max(confidence, 0.0), 1.0) if math.isfinite(confidence) else 0.0
