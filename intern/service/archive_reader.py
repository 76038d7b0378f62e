"""The knowledge of a data folder, for people to read: topics and archive, each pair with its decisions.

Blocks that newer pairs made obsolete stay visible: the removed ones of a topic, with the newer pair.

Read without the folder's lock and without changing anything, whether or not a bot is running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from intern.core import captures
from intern.core.decisions import Decision, MessagesForgotten, MessagesWithdrawn, PairDecision, PairFiled, PairMoved
from intern.core.errors import ConfigError
from intern.core.ids import ChannelId, ConversationId, QAId, SourceId, TopicName
from intern.core.knowledge import IndexEntry
from intern.core.text.topic_names import make_topic_name
from intern.learning.prompts import build_block, strip_withdrawn
from intern.learning.review import get_pair
from intern.service.databases import open_archive, open_read_only
from intern.settings.settings import Settings
from intern.sources.catalogue import Catalogue
from intern.stores.archive import Archive
from intern.stores.qa_ids import qa_id_time
from intern.stores.source_cache import topic_id
from intern.stores.tables.knowledge import KnowledgeStore

if TYPE_CHECKING:
    from intern.service.stores import Stores


class RemovedPair(Struct, frozen=True, kw_only=True):
    """A block that was part of a topic until a newer pair made it obsolete. The archive still holds it."""

    qa_id: QAId
    by: QAId
    """The pair that made it obsolete."""
    at: datetime
    turns: tuple[captures.Turn, ...]
    """Empty if none of it may be shown any more, or the archive does not hold it."""


def find_removed_pairs(topic: TopicName, decisions: KnowledgeStore, archive: Archive) -> tuple[RemovedPair, ...]:
    """Return the blocks that newer pairs removed from a topic for good, oldest removal first.

    Withdrawn messages are left out. Reads the whole log; blocks.
    """
    removed: dict[datetime, PairFiled] = {}
    ids: dict[datetime, QAId] = {}
    for decision in decisions.read_decisions():
        if isinstance(decision, MessagesWithdrawn | MessagesForgotten):
            continue
        if isinstance(decision, PairFiled | PairMoved):
            removed.pop(qa_id_time(decision.qa_id), None)  # it was filed again
        if isinstance(decision, PairFiled):
            for qa_id in decision.removed:
                time = qa_id_time(qa_id)
                removed.pop(time, None)
                removed[time], ids[time] = decision, qa_id
    return tuple(
        RemovedPair(qa_id=ids[time], by=by.qa_id, at=by.at, turns=_read_turns(ids[time], decisions, archive))
        for time, by in removed.items()
        if by.topic == topic
    )


def _read_turns(qa_id: QAId, decisions: KnowledgeStore, archive: Archive) -> tuple[captures.Turn, ...]:
    left = load_without_withdrawn(archive, decisions, qa_id)
    return () if left is None else build_block(left).turns


def load_without_withdrawn(archive: Archive, decisions: KnowledgeStore, qa_id: QAId) -> captures.CapturedPair | None:
    """Return an archived pair without withdrawn messages; None where it has no question or no answer left."""
    pair = archive.get(qa_id)
    return pair and strip_withdrawn(pair, decisions.is_withdrawn)


class TopicLine(Struct, frozen=True, kw_only=True):
    """A topic in a list."""

    name: TopicName
    blocks: int
    chars: int
    """The length of its file as a prompt would see it."""
    answered_at: datetime | None
    """Time of its newest answer (UTC)."""
    description: str


def build_topic_line(name: TopicName, knowledge: KnowledgeStore, entries: Mapping[SourceId, IndexEntry]) -> TopicLine:
    """Return a topic as lists show it, with its entry in the index. Blocks."""
    blocks, entry = knowledge.read_topic(name), entries.get(topic_id(name))
    return TopicLine(
        name=name,
        blocks=len(blocks),
        chars=len(knowledge.read_text(name)) if blocks else 0,
        answered_at=max((block.answered_at or block.timestamp for block in blocks), default=None),
        description=entry.description if entry else "",
    )


class TopicDetails(Struct, frozen=True, kw_only=True):
    """A topic as answers see it."""

    name: TopicName
    description: str
    blocks: tuple[captures.TopicBlock, ...]
    removed: tuple[RemovedPair, ...]


class PairLine(Struct, frozen=True, kw_only=True):
    """An archived pair in a list."""

    qa_id: QAId
    answered_at: datetime
    conversation_id: ConversationId
    decision: str
    """The last decision about it, such as `filed`; `waiting` if there is none yet."""
    topic: TopicName | None
    question: str


class PairForReview(Struct, frozen=True, kw_only=True):
    """A pair that the team has to approve or reject."""

    qa_id: QAId
    answered_at: datetime
    seconds: float
    """The time since it was archived."""
    conversation_id: ConversationId
    channel_id: ChannelId | None
    turns: tuple[captures.Turn, ...]
    """All turns as they would be filed; none if its question or its answer was deleted since."""
    in_newer: QAId | None
    """A newer version that waits, too: approving that one decides this one, too."""


class PairDetails(Struct, frozen=True, kw_only=True):
    """An archived pair, complete, with all decisions about it."""

    pair: captures.CapturedPair
    decisions: tuple[Decision, ...]


class ArchiveReader:
    """One view of a data folder. Raises KnowledgeError for existing files that cannot be read. Blocks."""

    def __init__(self, settings: Settings, stores: Stores | None = None) -> None:
        """Use `stores` of the process that holds the folder, if given, and read no file again."""
        # The decisions first: pairs archived meanwhile wait, but every decision is about a pair that we see.
        self._knowledge = stores.knowledge if stores else KnowledgeStore(open_read_only(settings))
        self._archive = stores.archive if stores else open_archive(settings, open_read_only(settings))
        self._index = Catalogue(self._knowledge, "team").entries()

    def topics(self) -> tuple[TopicLine, ...]:
        """Return all topics, by name."""
        return tuple(build_topic_line(name, self._knowledge, self._index) for name in self._knowledge.topic_names())

    def topic(self, label: str) -> TopicDetails:
        """Return one topic by any spelling of its name. Raises ConfigError if there is none of that name."""
        name = parse_topic_name(label)
        blocks = self._knowledge.read_topic(name)
        removed = find_removed_pairs(name, self._knowledge, self._archive)
        if not blocks and not removed:
            raise ConfigError(f"there is no topic {name}; `intern topics` lists them")
        entry = self._index.get(topic_id(name))
        return TopicDetails(name=name, description=entry.description if entry else "", blocks=blocks, removed=removed)

    def history(self, label: str) -> tuple[PairDecision, ...]:
        """Return all decisions about the pairs of a topic, oldest first. Raises ConfigError as `topic` does."""
        name = parse_topic_name(label)
        gone = MessagesWithdrawn, MessagesForgotten
        decisions = [each for each in self._knowledge.read_decisions() if not isinstance(each, gone)]
        places = (each for each in decisions if isinstance(each, PairFiled | PairMoved) and each.topic == name)
        concerned = {qa_id_time(each.qa_id) for each in places}
        if not concerned:
            raise ConfigError(f"nothing was ever filed under {name}; `intern topics` lists what there is")
        return tuple(each for each in decisions if qa_id_time(each.qa_id) in concerned)

    def pairs(self, *, newest: int | None = None) -> tuple[PairLine, ...]:
        """List archived pairs, oldest first; at most the `newest` ones."""
        pairs = self._archive.pairs_after(None) if newest is None else self._archive.newest_pairs(newest)
        lines = [self._build_pair_line(pair) for pair in pairs]
        topics = {
            qa_id_time(qa_id): topic for topic, qa_id in self._knowledge.locate_pairs(line.qa_id for line in lines)
        }
        return tuple(replace(line, topic=topics.get(qa_id_time(line.qa_id))) for line in lines)

    def pair(self, qa_id: str) -> PairDetails:
        """Return one archived pair. Raises ConfigError if the id is unknown."""
        pair = get_pair(QAId(qa_id), self._archive)
        return PairDetails(
            pair=pair, decisions=tuple(each for each in self._knowledge.read_decisions() if _concerns(each, pair))
        )

    def list_waiting_pairs(self, now: datetime) -> tuple[PairForReview, ...]:
        """List the pairs that wait for the team at the time `now`, oldest first."""
        pairs = [
            pair
            for each in self._knowledge.list_awaiting_review()
            if (pair := self._archive.get(each.qa_id)) is not None
        ]
        newer = {qa_id_time(pair.replaces): pair.qa_id for pair in pairs if pair.replaces is not None}
        return tuple(self._build_waiting_pair(pair, newer.get(pair.timestamp), now) for pair in pairs)

    def _build_waiting_pair(self, pair: captures.CapturedPair, newer: QAId | None, now: datetime) -> PairForReview:
        left = strip_withdrawn(pair, self._knowledge.is_withdrawn)
        return PairForReview(
            qa_id=pair.qa_id,
            answered_at=pair.answered_at,
            seconds=max((now - pair.timestamp).total_seconds(), 0.0),
            conversation_id=pair.conversation_id,
            channel_id=pair.channel_id,
            turns=() if left is None else left.turns,
            in_newer=newer,
        )

    def _build_pair_line(self, pair: captures.CapturedPair) -> PairLine:
        decision = self._knowledge.last_decision(pair.qa_id)
        return PairLine(
            qa_id=pair.qa_id,
            answered_at=pair.answered_at,
            conversation_id=pair.conversation_id,
            decision="waiting" if decision is None else str(decision.__struct_config__.tag),
            topic=None,
            question=" ".join(pair.question.split()),
        )


def parse_topic_name(label: str) -> TopicName:
    """Return a topic's name from any spelling. Raises ConfigError for an impossible name."""
    try:
        return make_topic_name(label)
    except ValueError as error:
        raise ConfigError(f"{label[:80]!r} can be no topic ({error}); `intern topics` lists them") from error


def _concerns(decision: Decision, pair: captures.CapturedPair) -> bool:
    if isinstance(decision, MessagesWithdrawn | MessagesForgotten):
        return not set(decision.message_ids).isdisjoint(pair.message_ids)
    ids: Sequence[QAId] = (decision.qa_id, *(decision.removed if isinstance(decision, PairFiled) else ()))
    return any(qa_id_time(qa_id) == pair.timestamp for qa_id in ids)
