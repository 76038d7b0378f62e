"""What becomes of the facts that a model proposes: it proposes, these rules decide. Pure.

Nothing a model says names a fact that is not there, retires more than one, or brings back what was retired.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from intern.core.ids import FactId
from intern.core.records import (
    Distilled,
    Fact,
    FactCategory,
    FactDecision,
    KnownFacts,
    NewFact,
    Occurrence,
    RefusedFact,
    RepeatedFact,
    Sentiment,
    UpdatedFact,
    Visibility,
    takes_occurrence,
)
from intern.core.text.masking import mask_secrets
from intern.core.text.similarity import likeness, same_subject
from intern.core.text.words import wording
from intern.facts.options import FactOptions
from intern.facts.visibility import RULES, of_words, strictest, visibility_of

_LIKE_REFUTED = 0.2  # to be taken for what was retired: the same messages say it, so little is enough
_NUMBER = re.compile(r"\d+(?:\.\d+)*")

MAX_SUMMARY = 100
MAX_SNIPPET = 500


class Proposal(Struct, frozen=True, kw_only=True):
    """A fact as a model reads it out of a conversation."""

    category: FactCategory
    content: str
    summary: str = ""
    visibility: Visibility = "shared"
    confidence: float = 1.0
    sentiment: Sentiment = "neutral"
    context_snippet: str = ""
    """What was said around it."""
    duplicate_of: str | None = None
    supersedes: str | None = None


class Retirement(Struct, frozen=True, kw_only=True):
    """What an operator asks for: that nobody believes a fact any more."""

    fact_id: FactId
    why: str


def decide(
    proposals: Sequence[Proposal],
    conversation: Distilled,
    known: KnownFacts,
    options: FactOptions,
    *,
    new_id: Callable[[], str] = lambda: str(uuid4()),
) -> tuple[FactDecision, ...]:
    """What becomes of each proposal, in their order.

    `known` are the facts that proposals name or repeat word for word, and those that the conversation said before.
    """
    one_by_one = _Deciding(conversation, known, options, new_id)
    one_by_one.restated = {wording(each.content) for each in proposals}
    return tuple(map(one_by_one.decide, proposals))


class _Deciding:
    """What is known while the proposals of one conversation are decided one after another."""

    def __init__(
        self, conversation: Distilled, known: KnownFacts, options: FactOptions, new_id: Callable[[], str]
    ) -> None:
        self._conversation = conversation
        self._options = options
        self._new_id = new_id
        self._known = {fact.id: fact for fact in known.facts}
        self._only_here = known.only_here
        self._retired_here = known.retired_here
        self._taken: set[FactId] = set()
        """Facts whose place is taken by a proposal that came before."""
        self._said: set[tuple[str, str]] = set()
        self.restated: set[str] = set()
        """Wordings of all proposals."""

    def decide(self, proposal: Proposal) -> FactDecision:
        content = proposal.content.strip()
        if not content:
            return RefusedFact(reason="empty")
        visibility = visibility_of(
            f"{content}\n{proposal.summary}",
            proposal.category,
            proposed=proposal.visibility,
            rules=self._options.overrides,
        )
        if visibility == "secret" and not self._options.keep_secret:
            return RefusedFact(reason="secret", gone=self._given_away(proposal, content))
        for name in (proposal.duplicate_of, proposal.supersedes):
            refused = self._refusal(name) if name else None
            if refused is not None:
                return refused
        same = self._same(proposal, content)
        if same is not None:
            return self._repeated(proposal, same, visibility)
        if (wording(content), "") in self._said:
            return RefusedFact(reason="said_already")
        return self._new(proposal, content, visibility)

    def _refusal(self, name: str) -> RefusedFact | None:
        """Why a proposal may not name this fact. No model is shown secret ones, so none can mean one."""
        fact = self._known.get(FactId(name))
        if fact is not None and self._is_refuted(fact):
            return None
        if fact is None or fact.visibility == "secret":
            return RefusedFact(reason="unknown_id")
        if fact.agent_id != self._conversation.agent_id:
            return RefusedFact(reason="other_agent")
        return None if fact.is_active else RefusedFact(reason="retired_id")

    def _same(self, proposal: Proposal, content: str) -> Fact | None:
        """The fact that is said once more. What names a fact twice is taken for that: it retires nothing.

        Said word for word, it is the same whether the model saw that or not. A retired fact is, too, where it was
        retired only after this was said: reading an old conversation again brings nothing back.
        """
        refuted = self._refuted(proposal, content)
        if refuted is not None:
            return refuted
        if proposal.duplicate_of:
            return self._known[FactId(proposal.duplicate_of)]
        wanted, at = wording(content), self._conversation.last_message_at
        alike = [
            fact
            for fact in self._known.values()
            if fact.agent_id == self._conversation.agent_id
            and wording(fact.content) == wanted
            and takes_occurrence(fact, at)
        ]
        return max(alike, key=lambda fact: (fact.is_active, fact.last_seen_at, fact.id), default=None)

    def _refuted(self, proposal: Proposal, content: str) -> Fact | None:
        """The fact that an operator retired, and that is read out of the same messages once more, in other words.

        What has other numbers than that is something else: the messages may have been put right.
        """
        named = self._known.get(FactId(proposal.duplicate_of or ""))
        candidates = [fact for fact in self._known.values() if self._is_refuted(fact)]
        if named in candidates:
            return named
        alike = [(likeness(fact.content, content), fact.id, fact) for fact in candidates]
        alike = [each for each in alike if each[0] >= _LIKE_REFUTED and _numbers(each[2].content) == _numbers(content)]
        return max(alike)[2] if alike else None

    def _is_refuted(self, fact: Fact) -> bool:
        said_since = fact.retired_at is None or self._conversation.last_message_at >= fact.retired_at
        return fact.id in self._retired_here and not said_since

    def _given_away(self, proposal: Proposal, content: str) -> FactId | None:
        """The fact that says what nobody may keep, as is known by now."""
        named = self._known.get(FactId(proposal.duplicate_of or ""))
        if named is not None and (self._refusal(named.id) is not None or not same_subject(named.content, content)):
            named = None
        mine = (fact for fact in self._known.values() if fact.agent_id == self._conversation.agent_id)
        fact = named or next((fact for fact in mine if wording(fact.content) == wording(content)), None)
        return fact.id if fact is not None and self._raised(fact, "secret") == "secret" else None

    def _raised(self, fact: Fact, visibility: Visibility) -> Visibility:
        """Who may read a fact that was said once more: as few as before, or fewer; the operator's rules go first."""
        return visibility_of(
            f"{fact.content}\n{fact.summary}",
            fact.category,
            proposed=strictest(fact.visibility, visibility),
            rules=self._options.overrides,
        )

    def _repeated(self, proposal: Proposal, fact: Fact, visibility: Visibility) -> FactDecision:
        alike = wording(proposal.content) == wording(fact.content) or same_subject(fact.content, proposal.content)
        raised = self._raised(fact, visibility) if alike else fact.visibility
        if raised == "secret" and not self._options.keep_secret:
            return RefusedFact(reason="secret", gone=fact.id)
        occurrence = self._occurrence(proposal, replace(fact, visibility=raised), visibility)
        said = (fact.id, occurrence.context_snippet)
        if said in self._said:
            return RefusedFact(reason="said_already")
        self._said.add(said)
        if raised != fact.visibility:
            self._known[fact.id] = replace(fact, visibility=raised)
        return RepeatedFact(occurrence=occurrence, visibility=None if raised == fact.visibility else raised)

    def _new(self, proposal: Proposal, content: str, visibility: Visibility) -> FactDecision:
        at = self._conversation.last_message_at
        older = self._known[FactId(proposal.supersedes)] if proposal.supersedes else self._reworded(content)
        if older is not None and not same_subject(older.content, content):
            older = None
        if older is not None and not older.is_active:
            return RefusedFact(reason="not_older")
        if older is not None and older.id in self._only_here:
            # This conversation alone said so, and now says something else: what that replaced is replaced by this.
            older = self._known.get(older.supersedes) if older.supersedes else None
        elif older is not None and at < older.last_seen_at:
            return RefusedFact(reason="not_older")
        if older is not None and (older.id in self._taken or at <= older.first_seen_at):
            older = None
        self._said.add((wording(content), ""))
        keeps = visibility == "secret"
        fact = Fact(
            id=FactId(self._new_id()),
            agent_id=self._conversation.agent_id,
            category=proposal.category,
            content=content if keeps else mask_secrets(content).text,
            summary=_shortened(proposal.summary if keeps else mask_secrets(proposal.summary).text, MAX_SUMMARY),
            visibility=visibility,
            confidence=_share(proposal.confidence),
            first_seen_at=at,
            last_seen_at=at,
        )
        occurrence = self._occurrence(proposal, fact, visibility)
        if older is None:
            return NewFact(fact=fact, occurrence=occurrence)
        self._taken.add(older.id)
        return UpdatedFact(fact=replace(fact, supersedes=older.id), occurrence=occurrence)

    def _reworded(self, content: str) -> Fact | None:
        """What this conversation alone said before and says in other words now, where it has a place in a chain."""
        mine = (fact for fact in self._known.values() if fact.id in self._only_here)
        placed = (fact for fact in mine if fact.supersedes or not fact.is_active)
        gone = (fact for fact in placed if wording(fact.content) not in self.restated)
        return next((fact for fact in gone if same_subject(fact.content, content)), None)

    def _occurrence(self, proposal: Proposal, fact: Fact, visibility: Visibility) -> Occurrence:
        """Without the snippet, where that is for fewer than the fact is."""
        snippet = proposal.context_snippet.strip()
        if fact.visibility != "secret" and of_words(snippet) == "secret":
            snippet = ""
        if strictest(fact.visibility, visibility) != fact.visibility:
            snippet = ""
        return Occurrence(
            id=self._new_id(),
            fact_id=fact.id,
            conversation_id=self._conversation.id,
            timestamp=self._conversation.last_message_at,
            context_snippet=_shortened(snippet, MAX_SNIPPET),
            sentiment=proposal.sentiment,
        )


def rules_hash(options: FactOptions) -> str:
    """Another one whenever facts may have to be seen by others, or kept no more."""
    return sha256(msgspec.json.encode((RULES, options))).hexdigest()


def judged_again(fact: Fact, options: FactOptions) -> Fact | None:
    """A fact as the settings want it by now, None where nothing of it is to be kept.

    Never for more than before, but by a rule of the operator's: what was proposed of it then, nobody knows any more.
    """
    text = f"{fact.content}\n{fact.summary}"
    visibility = visibility_of(text, fact.category, proposed=fact.visibility, rules=options.overrides)
    if visibility == "secret":
        return replace(fact, visibility=visibility) if options.keep_secret else None
    if fact.visibility != "secret":
        return replace(fact, visibility=visibility)
    content, summary = mask_secrets(fact.content).text, mask_secrets(fact.summary).text
    return replace(fact, visibility=visibility, content=content, summary=summary)


def _numbers(text: str) -> set[str]:
    return set(_NUMBER.findall(text))


def _shortened(text: str, most: int) -> str:
    text = text.strip()
    return text if len(text) <= most else text[: most - 1] + "…"


def _share(confidence: float) -> float:
    return min(max(confidence, 0.0), 1.0) if math.isfinite(confidence) else 0.0
