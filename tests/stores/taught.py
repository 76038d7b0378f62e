"""Conversations, facts and nuggets for tests, and the expected facts, computed in another way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from intern.core.ids import ConversationId, FactId, MessageId, NuggetId
from intern.core.knowledge import (
    UNSAID,
    DistilledConversation,
    ExtractionResult,
    Fact,
    FactDecision,
    FactOccurrence,
    NewFact,
    Nugget,
    RefusedFact,
    RepeatedFact,
    UpdatedFact,
    Visibility,
)

START = datetime(2026, 1, 5, 9, tzinfo=UTC)
AGENT = "lumen"


def at(minutes: int) -> datetime:
    """Return a time of the tests."""
    return START + timedelta(minutes=minutes)


def conversation(n: int, minutes: int = 0, *, agent_id: str = AGENT, content_hash: str = "") -> DistilledConversation:
    """Return the n-th conversation, of two messages."""
    return DistilledConversation(
        id=ConversationId(f"reply_{n}"),
        agent_id=agent_id,
        message_ids=(MessageId(f"{n}1"), MessageId(f"{n}2")),
        last_message_at=at(minutes),
        content_hash=content_hash or f"hash {n}",
    )


def fact(
    name: str,
    content: str,
    minutes: int = 0,
    *,
    visibility: Visibility = "shared",
    agent_id: str = AGENT,
    supersedes: FactId | None = None,
) -> Fact:
    """Return a fact that was said once."""
    return Fact(
        id=FactId(name),
        agent_id=agent_id,
        category="technical",
        content=content,
        visibility=visibility,
        first_seen_at=at(minutes),
        last_seen_at=at(minutes),
        supersedes=supersedes,
    )


def said(name: str, n: int, minutes: int = 0, *, snippet: str = "", id_: str = "") -> FactOccurrence:
    """Return the occurrence of a fact in the n-th conversation."""
    return FactOccurrence(
        id=id_ or f"{name} in {n} at {minutes}",
        fact_id=FactId(name),
        conversation_id=conversation(n).id,
        timestamp=at(minutes),
        context_snippet=snippet,
    )


def nugget(name: str, n: int, summary: str = "The relay listens on port 7480.") -> Nugget:
    """Return a nugget of the n-th conversation."""
    return Nugget(
        id=NuggetId(name),
        conversation_id=conversation(n).id,
        topic="ports",
        timestamp=at(0),
        topic_summary=summary,
        detailed_analysis=f"{summary} User_1 said so.",
        status="FACT",
        keywords=("relay", "port"),
        source_message_ids=(MessageId(f"{n}2"),),
        user_ids_involved=("User_1",),
    )


def outcome(
    of: DistilledConversation,
    facts: Sequence[FactDecision] = (),
    nuggets: Sequence[Nugget] = (),
    *,
    minutes: int = 10_000,
) -> ExtractionResult:
    """Return all that a conversation taught."""
    return ExtractionResult(
        conversation=of, facts=tuple(facts), nuggets=tuple(nuggets), model_used="tiny", extracted_at=at(minutes)
    )


class Beliefs:
    """The same story told as who said what first when, what replaced what, and what the operator said.

    What was believed at a time follows from that alone, so nothing of a forgotten conversation can show in it.
    """

    def __init__(self) -> None:
        self.said: dict[FactId, list[ConversationId]] = defaultdict(list)
        self.ever: dict[FactId, dict[ConversationId, datetime]] = defaultdict(dict)
        self.before: dict[FactId, FactId | None] = {}
        self.retired: dict[FactId, str] = {}
        self._retired_at: dict[FactId, datetime] = {}

    def believed(self, moment: datetime) -> set[FactId]:
        """Return the newest fact of each chain that had been said by then, unless the operator had retired it."""
        after = {older: newer for newer, older in self.before.items() if older is not None}
        found = set[FactId]()
        for head in (each for each, older in self.before.items() if older is None):
            link: FactId | None = head
            since, best, last = None, None, head
            while link is not None:
                times = [time for time in self.ever[link].values() if since is None or time > since]
                since = min(times, default=since)
                assert since is not None
                best, last = (link if since <= moment else best), link
                link = after.get(link)
            if best is not None and not (best == last and last in self.retired and self._ended(last) <= moment):
                found.add(best)
        return found

    def _ended(self, fact_id: FactId) -> datetime:
        return self._retired_at[fact_id]

    def learn(self, of: DistilledConversation, decisions: Iterable[FactDecision], now: datetime) -> None:
        """Let a conversation say this, in place of its earlier facts."""
        taken = list(decisions)
        lost = self._take_back(of.id)
        kept = {each.occurrence.fact_id for each in taken if isinstance(each, RepeatedFact)}
        self._unsay([each for each in lost if each not in kept])
        for each in taken:
            match each:
                case RefusedFact():
                    pass
                case RepeatedFact(occurrence=occurrence):
                    self._say(occurrence)
                case NewFact(fact=new, occurrence=occurrence):
                    self.before[new.id] = None
                    self._say(occurrence)
                case UpdatedFact(fact=new, occurrence=occurrence):
                    assert new.supersedes is not None
                    self.retired[new.supersedes] = ""
                    self.before[new.id] = new.supersedes
                    self._say(occurrence)
        self._drop(lost)

    def retire(self, fact_id: FactId, now: datetime) -> None:
        """Retire a fact, as the operator does."""
        if fact_id not in self.retired:
            self.retired[fact_id], self._retired_at[fact_id] = "the operator", now

    def withdraw(self, conversation_id: ConversationId) -> None:
        """Withdraw all that a conversation taught."""
        lost = self._take_back(conversation_id)
        self._unsay(lost)
        self._drop(lost)

    def forget(self, conversation_id: ConversationId) -> None:
        """Forget a conversation, as if it had never happened."""
        touched = [each for each, where in self.ever.items() if conversation_id in where]
        self._take_back(conversation_id)
        for each in touched:
            del self.ever[each][conversation_id]
        self._unsay(touched)
        self._drop(touched)

    def _take_back(self, conversation_id: ConversationId) -> list[FactId]:
        lost = [each for each, where in self.said.items() if conversation_id in where]
        for each in lost:
            self.said[each] = [where for where in self.said[each] if where != conversation_id]
        return lost

    def _unsay(self, fact_ids: Iterable[FactId]) -> None:
        """Take a fact that no conversation says out of its chain, and close the chain."""
        for each in fact_ids:
            if self.said[each] or each not in self.before:
                continue
            after = next((newer for newer, older in self.before.items() if older == each), None)
            older, self.before[each] = self.before[each], None
            if after is not None:
                self.before[after] = older
            if each not in self.retired:
                self.retired[each] = UNSAID
                if older is not None:
                    del self.retired[older]
            elif not self.retired[each]:
                self.retired[each] = UNSAID
            elif older is not None and not self.retired[older]:
                self.retired[older] = self.retired[each]
                self._retired_at[older] = self._retired_at[each]

    def _drop(self, fact_ids: Iterable[FactId]) -> None:
        """Delete facts that no conversation says, but keep those that the operator retired and one said earlier."""
        for each in fact_ids:
            if not self.said[each] and not (self.ever[each] and self.retired.get(each) == "the operator"):
                for memory in (self.ever, self.said, self.before, self.retired):
                    memory.pop(each, None)

    def _say(self, occurrence: FactOccurrence) -> None:
        fact_id, where = occurrence.fact_id, occurrence.conversation_id
        self.said[fact_id].append(where)
        self.ever[fact_id][where] = min(self.ever[fact_id].get(where, occurrence.timestamp), occurrence.timestamp)
