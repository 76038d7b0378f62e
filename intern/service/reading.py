"""What new answers made obsolete stays visible: the blocks that went out of a topic, and for which pair.

What a data folder holds, for people to read: topics and archive, each pair with what was decided about it.

Read without the folder's lock and without changing anything, whether or not a bot is at work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from intern.core import records
from intern.core.clock import Clock
from intern.core.errors import ConfigError
from intern.core.ids import ChannelId, ConversationId, QAId, SourceId, TopicName
from intern.core.text.words import topic_name
from intern.learning.prompts import block_of, left_of
from intern.learning.review import pair_of
from intern.search.finding import terms_of
from intern.service.databases import archive_of, at_rest
from intern.settings.loading import Settings
from intern.sources.catalogue import Catalogue
from intern.stores.archive import Archive
from intern.stores.blocks import time_of
from intern.stores.database import Database
from intern.stores.library import topic_id
from intern.stores.sqlite.extractions import ExtractionLog, NuggetStore
from intern.stores.sqlite.facts import FactFilter, FactStore, Link
from intern.stores.sqlite.knowledge import Knowledge
from intern.stores.sqlite.word_matches import any_of

if TYPE_CHECKING:
    from intern.service.stores import Stores

T = TypeVar("T")


class RemovedPair(Struct, frozen=True, kw_only=True):
    """A block that stood in a topic until a newer pair made it obsolete. The archive still holds it."""

    qa_id: QAId
    by: QAId
    """The pair that made it obsolete."""
    at: datetime
    turns: tuple[records.Turn, ...]
    """Empty where nothing of it may be shown any more, or the archive does not hold it."""


def removed_from(topic: TopicName, decisions: Knowledge, archive: Archive) -> tuple[RemovedPair, ...]:
    """Return the blocks that newer pairs removed from a topic for good, oldest removal first.

    Less the messages that were withdrawn. Reads the whole log; blocks.
    """
    removed: dict[datetime, records.Filed] = {}
    ids: dict[datetime, QAId] = {}
    for decision in decisions.all():
        if isinstance(decision, records.Withdrawn | records.Forgotten):
            continue
        if isinstance(decision, records.Filed | records.Moved):
            removed.pop(time_of(decision.qa_id), None)  # it stands again
        if isinstance(decision, records.Filed):
            for qa_id in decision.removed:
                time = time_of(qa_id)
                removed.pop(time, None)
                removed[time], ids[time] = decision, qa_id
    return tuple(
        RemovedPair(qa_id=ids[time], by=by.qa_id, at=by.at, turns=_turns(ids[time], decisions, archive))
        for time, by in removed.items()
        if by.topic == topic
    )


def _turns(qa_id: QAId, decisions: Knowledge, archive: Archive) -> tuple[records.Turn, ...]:
    left = left_in(archive, decisions, qa_id)
    return () if left is None else block_of(left).turns


def left_in(archive: Archive, decisions: Knowledge, qa_id: QAId) -> records.CapturedPair | None:
    """Return an archived pair without withdrawn messages; None where it has no question or no answer left."""
    pair = archive.get(qa_id)
    return pair and left_of(pair, decisions.is_withdrawn)


class TopicLine(Struct, frozen=True, kw_only=True):
    """A topic in a list."""

    name: TopicName
    blocks: int
    chars: int
    """Of its file; what a prompt would see of it."""
    answered_at: datetime | None
    """Time of its newest answer (UTC)."""
    description: str


def topic_line(name: TopicName, knowledge: Knowledge, entries: Mapping[SourceId, records.IndexEntry]) -> TopicLine:
    """Return a topic as lists show it, with its entry in the index. Blocks."""
    blocks, entry = knowledge.read(name), entries.get(topic_id(name))
    return TopicLine(
        name=name,
        blocks=len(blocks),
        chars=len(knowledge.text(name)) if blocks else 0,
        answered_at=max((block.answered_at or block.timestamp for block in blocks), default=None),
        description=entry.description if entry else "",
    )


class TopicText(Struct, frozen=True, kw_only=True):
    """A topic as answers see it."""

    name: TopicName
    description: str
    blocks: tuple[records.TopicBlock, ...]
    removed: tuple[RemovedPair, ...]


class PairLine(Struct, frozen=True, kw_only=True):
    """An archived pair in a list."""

    qa_id: QAId
    answered_at: datetime
    conversation_id: ConversationId
    decision: str
    """The last one about it, such as `filed`; `waiting` where there is none yet."""
    topic: TopicName | None
    question: str


class WaitingPair(Struct, frozen=True, kw_only=True):
    """A pair that the team has to approve or reject."""

    qa_id: QAId
    answered_at: datetime
    seconds: float
    """For how long it has stood in the archive."""
    conversation_id: ConversationId
    channel_id: ChannelId | None
    turns: tuple[records.Turn, ...]
    """Whole, as they would be filed; none where its question or its answer was deleted since."""
    in_newer: QAId | None
    """A newer version that waits, too: approving that one decides about this one, too."""


class PairText(Struct, frozen=True, kw_only=True):
    """An archived pair, whole, with all that was ever decided about it."""

    pair: records.CapturedPair
    decisions: tuple[records.Decision, ...]


class Reading:
    """One look at a data folder. Raises KnowledgeError for what is there and cannot be read. Blocks."""

    def __init__(self, settings: Settings, stores: Stores | None = None) -> None:
        """With `stores`, those of the process that holds the folder: nothing is read anew."""
        # The decisions first: what is archived meanwhile waits, but no decision is about a pair that we do not see.
        self._knowledge = stores.knowledge if stores else Knowledge(at_rest(settings))
        self._archive = stores.archive if stores else archive_of(settings, at_rest(settings))
        self._index = Catalogue(self._knowledge, "team").entries()

    def topics(self) -> tuple[TopicLine, ...]:
        """All topics, by name."""
        return tuple(topic_line(name, self._knowledge, self._index) for name in self._knowledge.names())

    def topic(self, label: str) -> TopicText:
        """One topic, met by its name however it is written. Raises ConfigError where there is none of that name."""
        name = named_topic(label)
        blocks = self._knowledge.read(name)
        removed = removed_from(name, self._knowledge, self._archive)
        if not blocks and not removed:
            raise ConfigError(f"there is no topic {name}; `intern topics` lists them")
        entry = self._index.get(topic_id(name))
        return TopicText(name=name, description=entry.description if entry else "", blocks=blocks, removed=removed)

    def history(self, label: str) -> tuple[records.PairDecision, ...]:
        """All that was decided about the pairs of a topic, oldest first. Raises ConfigError as `topic` does."""
        name = named_topic(label)
        gone = records.Withdrawn, records.Forgotten
        decisions = [each for each in self._knowledge.all() if not isinstance(each, gone)]
        places = (each for each in decisions if isinstance(each, records.Filed | records.Moved) and each.topic == name)
        concerned = {time_of(each.qa_id) for each in places}
        if not concerned:
            raise ConfigError(f"nothing was ever filed under {name}; `intern topics` lists what there is")
        return tuple(each for each in decisions if time_of(each.qa_id) in concerned)

    def pairs(self, *, newest: int | None = None) -> tuple[PairLine, ...]:
        """List archived pairs, oldest first; of many, the `newest` ones."""
        pairs = self._archive.after(None) if newest is None else self._archive.last(newest)
        lines = [self._pair_line(pair) for pair in pairs]
        topics = {time_of(qa_id): topic for topic, qa_id in self._knowledge.places(line.qa_id for line in lines)}
        return tuple(replace(line, topic=topics.get(time_of(line.qa_id))) for line in lines)

    def pair(self, qa_id: str) -> PairText:
        """One archived pair. Raises ConfigError where there is none of that id."""
        pair = pair_of(QAId(qa_id), self._archive)
        return PairText(pair=pair, decisions=tuple(each for each in self._knowledge.all() if _concerns(each, pair)))

    def awaiting(self, now: datetime) -> tuple[WaitingPair, ...]:
        """List the pairs that wait for the team at the time `now`, oldest first."""
        pairs = [pair for each in self._knowledge.awaiting() if (pair := self._archive.get(each.qa_id)) is not None]
        newer = {time_of(pair.replaces): pair.qa_id for pair in pairs if pair.replaces is not None}
        return tuple(self._waiting(pair, newer.get(pair.timestamp), now) for pair in pairs)

    def _waiting(self, pair: records.CapturedPair, newer: QAId | None, now: datetime) -> WaitingPair:
        left = left_of(pair, self._knowledge.is_withdrawn)
        return WaitingPair(
            qa_id=pair.qa_id,
            answered_at=pair.answered_at,
            seconds=max((now - pair.timestamp).total_seconds(), 0.0),
            conversation_id=pair.conversation_id,
            channel_id=pair.channel_id,
            turns=() if left is None else left.turns,
            in_newer=newer,
        )

    def _pair_line(self, pair: records.CapturedPair) -> PairLine:
        decision = self._knowledge.of(pair.qa_id)
        return PairLine(
            qa_id=pair.qa_id,
            answered_at=pair.answered_at,
            conversation_id=pair.conversation_id,
            decision="waiting" if decision is None else str(decision.__struct_config__.tag),
            topic=None,
            question=" ".join(pair.question.split()),
        )


def named_topic(label: str) -> TopicName:
    """Return a topic's name, however it is written. Raises ConfigError for what can be none."""
    try:
        return topic_name(label)
    except ValueError as error:
        raise ConfigError(f"{label[:80]!r} can be no topic ({error}); `intern topics` lists them") from error


def _concerns(decision: records.Decision, pair: records.CapturedPair) -> bool:
    if isinstance(decision, records.Withdrawn | records.Forgotten):
        return not set(decision.message_ids).isdisjoint(pair.message_ids)
    ids: Sequence[QAId] = (decision.qa_id, *(decision.removed if isinstance(decision, records.Filed) else ()))
    return any(time_of(qa_id) == pair.timestamp for qa_id in ids)


class Known:
    """Facts and nuggets of a database."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._facts = FactStore(db, clock=clock)
        self._nuggets = NuggetStore(db)
        self.extractions = ExtractionLog(db, clock=clock)
        """What each conversation taught."""

    async def facts(self, wanted: FactFilter, limit: int) -> tuple[records.Fact, ...]:
        """Return facts, the latest said first. Raises KnowledgeError."""
        return await self._facts.all(wanted, limit)

    async def search_facts(self, text: str, wanted: FactFilter, limit: int) -> tuple[records.Fact, ...]:
        """Return facts that hold words of a text, best first. Raises KnowledgeError."""
        terms = terms_of(text)
        unspaced = [each for each in (*terms.grams, *terms.short) if not each.isascii()]
        return await self._facts.search_facts(any_of(terms.words), wanted, limit, holding=unspaced)

    async def fact(self, prefix: str, *, secret: bool) -> records.Fact:
        """Return the fact whose id begins like that. Raises ConfigError for none or several, and KnowledgeError."""
        start = prefix.strip()
        found = await self._facts.beginning(start.removeprefix("fact:"), secret=secret) if start else ()
        return _only(found, "fact", prefix, "`intern facts list --all`")

    async def fact_history(self, prefix: str, *, secret: bool) -> tuple[records.Fact, tuple[Link, ...]]:
        """Return a fact as `fact` finds it, and its chain, oldest first."""
        fact = await self.fact(prefix, secret=secret)
        links = await self._facts.history(fact.id)
        return fact, tuple(each for each in links if secret or each.fact.visibility != "secret")

    async def nuggets(self, status: records.NuggetStatus | None, limit: int) -> tuple[records.Nugget, ...]:
        """Return nuggets, newest first. Raises KnowledgeError."""
        return await self._nuggets.all(status, limit=limit)

    async def nugget(self, prefix: str) -> records.Nugget:
        """Return the nugget whose id begins like that. Raises as `fact` does."""
        start = prefix.strip().removeprefix("nugget:")
        found = await self._nuggets.beginning(start) if start else ()
        return _only(found, "nugget", prefix, "`intern nuggets list`")


def _only(found: Sequence[T], kind: str, prefix: str, listed_by: str) -> T:
    if not found:
        raise ConfigError(f"there is no {kind} {prefix}; {listed_by} tells their ids")
    if len(found) > 1:
        raise ConfigError(f"{prefix} is the beginning of {len(found)} {kind}s' ids; name more of it")
    return found[0]
