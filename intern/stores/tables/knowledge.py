"""The decisions about each archived pair, and their results: topics with their blocks, and the indices' entries.

Each decision is one transaction (`KnowledgeStore.change`): blocks, decisions and entries change together, or not at
all. Memory holds the last decision about each pair, and the messages that were withdrawn or forgotten.

A regeneration builds the topics of the next generation beside the current ones (`KnowledgeDraft`), and
`KnowledgeChange.switch_to_draft` makes them the current ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from anyio import CancelScope, Lock
from msgspec.structs import replace

from intern.core import captures
from intern.core.clock import Clock, to_microseconds
from intern.core.decisions import (
    Decision,
    MessagesForgotten,
    MessagesWithdrawn,
    PairApproved,
    PairDecision,
    PairParked,
    PairRejected,
    PairReviewRequested,
)
from intern.core.errors import SourceError
from intern.core.ids import ConversationId, MessageId, QAId, SourceId, TopicName, UserId, parse_position
from intern.core.text.encoding import replace_surrogates
from intern.stores.block_format import format_topic_block, parse_topic_file
from intern.stores.database import Database, Row, Transaction, Value
from intern.stores.qa_ids import bare_message_id, make_qa_id, normalize_qa_id, qa_id_time, qa_id_times
from intern.stores.source_cache import CachedSource, Index
from intern.stores.tables.change_log import HERE, NEXT, log_changes, next_position
from intern.stores.tables.store import IN, NUMBER_IN, OURS, Store, json_array, text_array

T = TypeVar("T")
D = TypeVar("D", bound=PairDecision)

_DECODER: msgspec.json.Decoder[Decision] = msgspec.json.Decoder(Decision)
_OF_PAIRS: msgspec.json.Decoder[PairDecision] = msgspec.json.Decoder(PairDecision)
_REVIEWS: msgspec.json.Decoder[PairApproved | PairRejected] = msgspec.json.Decoder(PairApproved | PairRejected)
_REMOVALS: msgspec.json.Decoder[MessagesWithdrawn | MessagesForgotten] = msgspec.json.Decoder(
    MessagesWithdrawn | MessagesForgotten
)
_SOURCES: msgspec.json.Decoder[CachedSource] = msgspec.json.Decoder(CachedSource)

TOPIC = "topic"
"""The kind of a changed topic in the change log. An index has its own name as the kind of its entries."""

_GENERATION = f"coalesce((select generation from communities {OURS}), 0) + ?"
_BLOCKS = f"from blocks {OURS} and generation = {_GENERATION}"
_DECIDED = f"from decisions {OURS} and draft = ?"


class LoggedDecision(NamedTuple):
    """A decision and its position: a follower goes on from there."""

    position: int
    decision: Decision


class _DecisionRow(NamedTuple):
    """A decision as its row has it."""

    pair: str | None
    """The pair's id, with its whole fraction; None where it is about messages."""
    action: str
    text: str


class _KnowledgeReader(ABC):
    """Reads topics, decisions and entries. A topic is its blocks; one without blocks is none."""

    draft: int
    """1 for the generation that is being built, 0 for the current one."""

    @abstractmethod
    def _rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """Return all rows that the statement gives."""

    def topic_names(self) -> tuple[TopicName, ...]:
        """Return all topics, sorted."""
        rows = self._rows(f"select distinct topic {_BLOCKS} order by topic", (self.draft,))
        return tuple(TopicName(str(name)) for (name,) in rows)

    def read_topic(self, name: TopicName) -> tuple[captures.TopicBlock, ...]:
        """Return the blocks of a topic, oldest answer first; none where there is no such topic."""
        return _parse_topic(self.read_topic_file(name), f"{name}.txt")

    def read_text(self, name: TopicName) -> str:
        """Return the text of a topic, for a model to read. Raises SourceError where there is no such topic."""
        text = self.read_texts([name]).get(name)
        if text is None:
            raise SourceError(f"there is no topic {name}")
        return text

    def read_texts(self, names: Collection[TopicName]) -> dict[TopicName, str]:
        """Return the texts of those of these topics that there are."""
        # In the order of the index, or SQLite reads all blocks that there are.
        statement = f"select topic, block {_BLOCKS} and topic {IN} order by topic, answered, time"
        rows = self._rows(statement, (self.draft, text_array(names)))
        blocks = defaultdict[TopicName, list[str]](list)
        for name, block in rows:
            blocks[TopicName(str(name))].append(cast("bytes", block).decode())
        return {name: "".join(each) for name, each in blocks.items()}

    def find_topic(self, qa_id: QAId) -> TopicName | None:
        """Return the topic with the pair's block; None where there is none."""
        found = self.locate_pairs([qa_id])
        return found[0][0] if found else None

    def find_conversation_pairs(self, conversation_id: ConversationId) -> list[tuple[TopicName, QAId]]:
        """Return topic and id of each block of a conversation, oldest first."""
        statement = f"select topic, qa_id {_BLOCKS} and conversation_id = ? order by time"
        rows = self._rows(statement, (self.draft, conversation_id))
        return [(TopicName(str(name)), QAId(str(qa_id))) for name, qa_id in rows]

    def find_conversation_topic(self, conversation_id: ConversationId) -> TopicName | None:
        """Return the topic with a conversation's newest block; None where there is none."""
        places = self.find_conversation_pairs(conversation_id)
        return places[-1][0] if places else None

    def locate_pairs(self, qa_ids: Iterable[QAId]) -> list[tuple[TopicName, QAId]]:
        """Return topic and id of each of these pairs that is in a topic, oldest first."""
        times = json_array(to_microseconds(time) for time in qa_id_times(qa_ids))
        if times == "[]":
            return []
        rows = self._rows(f"select topic, qa_id {_BLOCKS} and time {NUMBER_IN} order by time", (self.draft, times))
        return [(TopicName(str(name)), QAId(str(qa_id))) for name, qa_id in rows]

    def read_topic_file(self, name: TopicName) -> bytes:
        """Return a topic as its file has it; empty where there is none."""
        rows = self._rows(f"select block {_BLOCKS} and topic = ? order by answered, time", (self.draft, name))
        return b"".join(block for (block,) in rows if isinstance(block, bytes))

    def decisions_after(self, position: int, most: int) -> list[LoggedDecision]:
        """Return some of the decisions after a position, oldest first; all where `most` is negative."""
        statement = f"select position, decision {_DECIDED} and position > ? order by position"
        limit = f" limit {most:d}" if most >= 0 else ""
        rows = self._rows(statement + limit, (self.draft, position))
        return [LoggedDecision(int(str(at)), _DECODER.decode(str(text))) for at, text in rows]

    def position(self) -> int:
        """Return the position of the newest change."""
        return next((int(str(at)) for (at,) in self._rows(HERE)), 0)

    def read_source_changes(self, index: Index, position: int) -> tuple[int, dict[SourceId, CachedSource | None]]:
        """Return the entries that changed after a position, None for those that are gone, and the new position."""
        rows = self._rows(
            "select changes.name, changes.position, sources.source from changes left join sources"
            " on sources.community = changes.community and sources.catalogue = changes.kind"
            " and sources.source_id = changes.name where changes.community = :community and changes.kind = ?"
            " and changes.position > ?",
            (index, position),
        )
        changed = {SourceId(str(name)): None if text is None else _SOURCES.decode(str(text)) for name, _, text in rows}
        return max((int(str(at)) for _, at, _ in rows), default=position), changed


class KnowledgeChange(_KnowledgeReader):
    """A set of decisions in one transaction. Reads see its own earlier changes."""

    def __init__(self, db: Transaction, draft: int) -> None:
        self.db = db
        self.draft = draft
        self.taken: list[_DecisionRow] = []
        self.told: list[Callable[[], object]] = []
        self._topics: set[TopicName] = set()

    def _rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        return self.db.rows(statement, values)

    def log_after_commit(self, log: Any, event: str, **fields: object) -> None:
        """Log an event once the change is on disk."""
        self.told.append(partial(log.info, event, **fields))

    def as_draft(self) -> KnowledgeChange:
        """Return the same transaction on the draft."""
        return KnowledgeChange(self.db, 1)

    def decide(self, *decisions: Decision) -> None:
        """Log decisions, in this order."""
        for each in decisions:
            pair = None if isinstance(each, MessagesWithdrawn | MessagesForgotten) else normalize_qa_id(each.qa_id)
            text = msgspec.json.encode(replace(each, reason=replace_surrogates(each.reason))).decode()
            taken = _DecisionRow(pair, _action_tag(type(each)), text)
            self.taken.append(taken)
            self.db.run_each(NEXT, [()])
            self.db.run_each(
                "insert into decisions (community, draft, position, pair, action, decision)"
                f" values (:community, ?, ({HERE}), ?, ?, ?)",
                [(self.draft, *taken)],
            )

    def file_blocks(self, topic: TopicName, *blocks: captures.TopicBlock) -> None:
        """Put blocks into a topic. Each leaves its previous topic, and replaces the block with its id."""
        self._topics.update(name for name, _ in self.locate_pairs(block.qa_id for block in blocks))
        self._topics.add(topic)
        self.db.run_each(
            "insert into blocks (community, generation, time, topic, qa_id, conversation_id, answered, block)"
            f" values (:community, {_GENERATION}, ?, ?, ?, ?, ?, ?)"
            " on conflict (community, generation, time) do update set topic = excluded.topic, qa_id = excluded.qa_id,"
            " conversation_id = excluded.conversation_id, answered = excluded.answered, block = excluded.block",
            (
                (
                    self.draft,
                    to_microseconds(block.timestamp),
                    topic,
                    block.qa_id,
                    block.conversation_id,
                    to_microseconds(block.answered_at or block.timestamp),
                    replace_surrogates(format_topic_block(block)).encode(),
                )
                for block in blocks
            ),
        )

    def remove_blocks(self, qa_ids: Iterable[QAId]) -> list[tuple[TopicName, QAId]]:
        """Remove blocks from their topics; return those that existed, with their topics. A model may name any id."""
        if found := self.locate_pairs(qa_ids):
            times = json_array(to_microseconds(qa_id_time(qa_id)) for _, qa_id in found)
            self.db.run_each(f"delete {_BLOCKS} and time {NUMBER_IN}", [(self.draft, times)])
        self._topics.update(name for name, _ in found)
        return found

    def has_entry(self, index: Index, source_id: SourceId) -> bool:
        """Return whether an index has an entry of the source."""
        return bool(self._rows(f"select 1 from sources {OURS} and catalogue = ? and source_id = ?", (index, source_id)))

    def update_sources(
        self, index: Index, put: Mapping[SourceId, CachedSource], drop: Collection[SourceId] = ()
    ) -> None:
        """Put entries into an index, and take others out. Entries that stay the same are not touched."""
        statement = f"select source_id, source from sources {OURS} and catalogue = ?"
        rows = self._rows(f"{statement} and source_id {IN}", (index, json_array([*put, *drop])))
        known = {str(source_id): str(source) for source_id, source in rows}
        fresh = {each: text for each, source in put.items() if (text := _encode_source(source)) != known.get(each)}
        gone = [each for each in drop if each in known]
        self.db.run_each(
            "insert into sources (community, catalogue, source_id, source) values (:community, ?, ?, ?)"
            " on conflict (community, catalogue, source_id) do update set source = excluded.source",
            ((index, source_id, text) for source_id, text in fresh.items()),
        )
        self.db.run_each(
            f"delete from sources {OURS} and catalogue = ? and source_id = ?",
            ((index, source_id) for source_id in gone),
        )
        if fresh or gone:
            log_changes(self.db, index, [*fresh, *gone])

    def switch_to_draft(self, drafted: Sequence[PairDecision]) -> None:
        """Make the drafted topics the current ones, and log these decisions."""
        before = self.topic_names()
        self.db.run(f"delete {_BLOCKS}", (0,))
        next_position(self.db)
        self.db.run(f"update communities set generation = generation + 1 {OURS}")
        self._topics.update(before, self.topic_names())
        self.discard_draft()
        self.decide(*drafted)

    def discard_draft(self) -> None:
        """Delete all that was drafted."""
        self.db.run(f"delete {_BLOCKS}", (1,))
        self.db.run(f"delete {_DECIDED}", (1,))
        self.db.run(f"delete from regeneration {OURS}")

    def log_changed_topics(self) -> None:
        """Log which topics changed."""
        if self._topics and not self.draft:
            log_changes(self.db, TOPIC, sorted(self._topics))


class KnowledgeStore(Store, _KnowledgeReader):
    """The decisions, topics and index entries of a community. Reads block, and must not run on the event loop."""

    draft = 0

    def __init__(
        self, db: Database, *, clock: Clock | None = None, changed: Callable[[], object] = lambda: None
    ) -> None:
        """Call `changed` after each change, so that the projections catch up."""
        super().__init__(db, clock=clock)
        self._changed = changed
        # By the pair's id, and as text: few of many are asked for.
        self._last: dict[str, str] = {}
        self._open: dict[str, tuple[str, str]] = {}
        self._reviewed: dict[str, str] = {}
        self._newest = ""
        self._gone: set[str] = set()
        self._forgotten: dict[UserId, datetime] = {}
        self._turn = Lock()
        self.reload()

    def reload(self) -> None:
        """Read all decisions into memory, also those that another process has made since."""
        for row in self._rows(f"select pair, action, decision {_DECIDED} order by position", (self.draft,)):
            self._remember(*cast("_DecisionRow", row))

    def _rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        return self.db.read_blocking(lambda db: db.rows(statement, values), steady=False)

    async def change(self, work: Callable[[KnowledgeChange], T]) -> T:
        """Run `work` on the writer thread, in one transaction. An error from `work` undoes all of it.

        Changes wait for each other, so `work` reads the state after the last one. Raises KnowledgeError.
        """

        def run(db: Transaction) -> tuple[T, KnowledgeChange]:
            change = KnowledgeChange(db, self.draft)
            result = work(change)
            change.log_changed_topics()
            return result, change

        # Not abandoned on cancellation: memory must know the decision.
        results: list[T] = []
        async with self._turn:
            with CancelScope(shield=True):
                result, change = await self.db.write(run)
                for each in change.taken:
                    self._remember(*each)
                for tell in change.told:
                    tell()
                results.append(result)
        self._changed()
        return results[0]

    def read_decisions(self) -> list[Decision]:
        """Return every decision ever taken, oldest first."""
        return [each.decision for each in self.decisions_after(0, -1)]

    def topic_versions(self, name: TopicName | None = None) -> dict[TopicName, tuple[int, int]]:
        """Return the length of each topic, or of one, in bytes, and the position of its newest change."""
        only, values = ("", (self.draft,)) if name is None else (" and topic = ?", (self.draft, name))
        rows = self._rows(
            "select topic, sum(length(block)), (select position from changes where changes.community = :community"
            f" and kind = '{TOPIC}' and name = topic) {_BLOCKS}{only} group by topic order by topic",
            values,
        )
        return {TopicName(str(name)): (int(str(length)), int(str(at or 0))) for name, length, at in rows}

    def read_journal(self) -> list[str]:
        """Return the lines of an unfinished regeneration, in order."""
        return self.db.read_blocking(lambda db: db.texts(f"select line from regeneration {OURS} order by n"))

    async def write_journal(self, line: str) -> None:
        """Add a line to them, durably."""
        number = f"select coalesce(max(n), -1) + 1 from regeneration {OURS}"
        await self.db.run(f"insert into regeneration (community, n, line) values (:community, ({number}), ?)", (line,))

    def last_decision(self, qa_id: QAId) -> PairDecision | None:
        """Return the last decision about a pair; None where there is none yet."""
        known = next((self._last.get(make_qa_id(time)) for time in qa_id_times((qa_id,))), None)
        return None if known is None else _OF_PAIRS.decode(known)

    def find_undecided(self, qa_ids: AbstractSet[str]) -> AbstractSet[str]:
        """Return the pairs without any decision yet, by ids with the whole fraction."""
        return qa_ids - self._last.keys()

    def cursor(self) -> QAId | None:
        """Return the newest pair that was decided; None where none was."""
        return _OF_PAIRS.decode(self._last[self._newest]).qa_id if self._newest else None

    def list_due(self) -> Sequence[PairApproved]:
        """Return the pairs that are approved and not filed yet, oldest pair first."""
        return self._list_open(PairApproved)

    def list_parked(self) -> Sequence[PairParked]:
        """Return the pairs that are parked now, oldest pair first."""
        return self._list_open(PairParked)

    def list_awaiting_review(self) -> Sequence[PairReviewRequested]:
        """Return the pairs that wait for a review by the team, oldest pair first."""
        return self._list_open(PairReviewRequested)

    def last_review(self, qa_id: QAId) -> PairApproved | PairRejected | None:
        """Return the last review of a pair by the team, even if other decisions followed."""
        known = self._reviewed.get(normalize_qa_id(qa_id))
        return None if known is None else _REVIEWS.decode(known)

    def is_withdrawn(self, message_id: MessageId) -> bool:
        """Return whether a message may no longer teach anything: it was deleted, or is to be forgotten."""
        return bare_message_id(message_id) in self._gone

    def is_forgotten(self, user_id: UserId, message_id: MessageId) -> bool:
        """Return whether a member's message is older than their wish to be forgotten.

        It need not have been captured by then. For an id without a time, the answer is yes.
        """
        until = self._forgotten.get(user_id)
        if until is None:
            return False
        try:
            return parse_position(bare_message_id(message_id)).time <= until
        except (ValueError, OverflowError):
            return True

    def _list_open(self, kind: type[D]) -> Sequence[D]:
        # A copy at once: another thread may decide meanwhile.
        waiting, wanted = sorted(self._open.items()), _action_tag(kind)
        return [msgspec.json.decode(text, type=kind) for _, (action, text) in waiting if action == wanted]

    def _remember(self, pair: str | None, action: str, text: str) -> None:
        if pair is None:
            decision = _REMOVALS.decode(text)
            self._gone.update(map(bare_message_id, decision.message_ids))
            if isinstance(decision, MessagesForgotten) and decision.user_id is not None:
                known = self._forgotten.get(decision.user_id, decision.at)
                self._forgotten[decision.user_id] = max(known, decision.at)
            return
        self._last[pair] = text
        self._open.pop(pair, None)
        if action in _OPEN:
            self._open[pair] = action, text
        if action in _REVIEWED:
            self._reviewed[pair] = text
        self._newest = max(self._newest, pair)


class KnowledgeDraft(KnowledgeStore):
    """Topics and decisions that count only once they are switched to. Withdrawals are the current ones."""

    draft = 1

    def __init__(self, current: KnowledgeStore) -> None:
        super().__init__(current.db, clock=current.clock)
        self._gone = current._gone  # noqa: SLF001 - the same class
        self._turn = current._turn  # noqa: SLF001

    def list_decisions(self) -> list[PairDecision]:
        """Return all drafted decisions, oldest first."""
        return [each for each in self.read_decisions() if not isinstance(each, MessagesWithdrawn | MessagesForgotten)]


# A topic that a pair is filed in is read several times before it changes.
@lru_cache(maxsize=8)
def _parse_topic(data: bytes, file: str) -> tuple[captures.TopicBlock, ...]:
    return parse_topic_file(data, file=file).blocks


def _encode_source(source: CachedSource) -> str:
    return msgspec.json.encode(source).decode("utf-8", "replace")


def _action_tag(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


_OPEN = frozenset(_action_tag(each) for each in (PairApproved, PairReviewRequested, PairParked))
_REVIEWED = frozenset((_action_tag(PairApproved), _action_tag(PairRejected)))
