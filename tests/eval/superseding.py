"""A measurement of how often the rules retire the right fact, if a model always names the most similar one.

Revisions of real entries come in the order of their time, each with the most alike of all facts that are active then,
whatever that is about. What is unrelated comes once more with the most alike of all other entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from intern.core.clock import SystemClock
from intern.core.ids import ConversationId, FactId
from intern.core.knowledge import DistilledConversation, ExtractionResult, Fact, KnownFacts, NewFact, UpdatedFact
from intern.core.text.words import stem_words
from intern.facts.reconciliation import FactProposal, decide_proposals
from intern.facts.visibility import FactOptions, VisibilityRule
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.facts import FactFilter, FactStore
from tests.eval.chats import EVAL

RIGHT_BAR = 0.80
WRONG_BAR = 0.02
PAIRS = EVAL / "supersede_pairs.jsonl"
# What is measured is what takes whose place; an entry that speaks of passwords counts like any other.
_OPTIONS = FactOptions(overrides=(VisibilityRule(visibility="shared"),))
_AGENT = "eval"


class Pair(Struct, frozen=True):
    """Two revisions of one entry."""

    pair_id: str
    cluster: str
    old: str
    new: str
    old_time: str
    new_time: str
    label: str

    @property
    def revisions(self) -> tuple[Revision, Revision]:
        """The older, which is nobody's update here, and the newer."""
        return (
            Revision(_aware(self.old_time), self.cluster, self.old, "first"),
            Revision(_aware(self.new_time), self.cluster, self.new, self.label),
        )


class Revision(NamedTuple):
    """The text of an entry from then on."""

    at: datetime
    cluster: str
    text: str
    label: str


class Measured(NamedTuple):
    """Counts of proposals."""

    updates: int
    right: int
    """Updates that took the place of an older revision of the same entry."""
    proposed: int
    wrong: int
    """Proposals of any kind that took the place of another entry."""
    unrelated: int
    retired: int
    """Proposals that took the place of another entry, where there was nothing else to take."""


async def measure(folder: Path) -> Measured:
    """Read all revisions, and what each retires."""
    pairs = [msgspec.json.decode(line, type=Pair) for line in PAIRS.read_bytes().splitlines()]
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        stream = Stream(db)
        for revision in _in_time(pairs):
            await stream.read(revision)
    retired = 0
    for pair in pairs:
        others = {FactId(each.pair_id): each.old for each in pairs if each.cluster != pair.cluster}
        at = _aware(pair.new_time)
        retired += _retires(pair.new, others, at)
    return Measured(stream.updates, stream.right, stream.proposed, stream.wrong, len(pairs), retired)


class Stream:
    """A store that revisions come to."""

    def __init__(self, db: SqliteDatabase) -> None:
        self._store = FactStore(db, clock=SystemClock())
        self._log = ExtractionLog(db, clock=SystemClock())
        self._cluster_of: dict[FactId, str] = {}
        self._ids = (f"f{number}" for number in count())
        self.updates = self.right = self.proposed = self.wrong = 0

    async def read(self, revision: Revision) -> None:
        """A conversation that says one thing."""
        before = {fact.id: fact.content for fact in await self._store.all(FactFilter(agent_id=_AGENT))}
        of = DistilledConversation(
            id=ConversationId(f"c{next(self._ids)}"), agent_id=_AGENT, last_message_at=revision.at, content_hash=""
        )
        nearest = _nearest(revision.text, before)
        proposal = FactProposal(category="technical", content=revision.text, supersedes=nearest)
        known = await self._store.read_known_facts(of, [revision.text], [nearest] if nearest else [])
        decisions = decide_proposals([proposal], of, known, _OPTIONS, new_id=lambda: next(self._ids))
        await self._log.apply(
            ExtractionResult(conversation=of, facts=decisions, model_used="nearest", extracted_at=datetime.now(UTC))
        )
        after = {fact.id for fact in await self._store.all(FactFilter(agent_id=_AGENT))}
        gone = [self._cluster_of[each] for each in before.keys() - after]
        assert len(gone) <= 1
        for each in decisions:
            if isinstance(each, NewFact | UpdatedFact):
                self._cluster_of[each.fact.id] = revision.cluster
        self.proposed += nearest is not None
        self.wrong += gone not in ([], [revision.cluster])
        if revision.label == "update":
            self.updates += 1
            self.right += gone == [revision.cluster]


def _in_time(pairs: list[Pair]) -> list[Revision]:
    """Every revision once; an older one that is another's newer one is told of there."""
    told = {(pair.cluster, pair.new) for pair in pairs}
    revisions = [each for pair in pairs for each in pair.revisions]
    wanted = {each for each in revisions if each.label != "first" or (each.cluster, each.text) not in told}
    return sorted(wanted, key=lambda each: (each.at, each.label != "first", each.cluster, each.text))


def _retires(text: str, others: Mapping[FactId, str], at: datetime) -> bool:
    nearest = _nearest(text, others)
    assert nearest is not None
    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    fact = Fact(
        id=nearest,
        agent_id=_AGENT,
        category="technical",
        content=others[nearest],
        first_seen_at=long_ago,
        last_seen_at=long_ago,
    )
    of = DistilledConversation(id=ConversationId("c"), agent_id=_AGENT, last_message_at=at, content_hash="")
    proposal = FactProposal(category="technical", content=text, supersedes=nearest)
    [decision] = decide_proposals([proposal], of, KnownFacts(facts=(fact,)), _OPTIONS)
    return isinstance(decision, UpdatedFact)


def _nearest(text: str, texts: Mapping[FactId, str]) -> FactId | None:
    return max(texts, key=lambda each: (_jaccard(texts[each], text), each), default=None)


def _jaccard(one: str, other: str) -> float:
    first, second = set(stem_words(one)), set(stem_words(other))
    return len(first & second) / len(first | second) if first | second else 0.0


def _aware(written: str) -> datetime:
    moment = datetime.fromisoformat(written)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
