"""What was decided about each archived pair, and what came of it: topics with their blocks, and the indices' entries.

Each decision is one transaction (`Knowledge.change`): blocks, decisions and entries change together, or not at all. In
memory stand the last decision about each pair, and which messages were withdrawn or forgotten.

A regeneration builds the topics of the next generation beside the current ones (`Draft`), and `Change.switch` makes
them the current ones.
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

from intern.core import records
from intern.core.clock import Clock, micros_of
from intern.core.errors import SourceError
from intern.core.ids import ConversationId, MessageId, QAId, SourceId, TopicName, UserId, position_of
from intern.core.text.masking import whole
from intern.stores.blocks import bare, format_topic, parse_blocks, qa_id_of, time_of, times_of, whole_id
from intern.stores.database import Database, Row, Transaction, Value
from intern.stores.library import CachedSource, Index
from intern.stores.sqlite.changes import HERE, NEXT, log_changes, next_position
from intern.stores.sqlite.store import IN, NUMBER_IN, OURS, Store, as_json, listed

T = TypeVar("T")
D = TypeVar("D", bound=records.PairDecision)

_DECODER: msgspec.json.Decoder[records.Decision] = msgspec.json.Decoder(records.Decision)
_SOURCES: msgspec.json.Decoder[CachedSource] = msgspec.json.Decoder(CachedSource)

TOPIC = "topic"
"""The kind of a changed topic in the change log. An index has its own name as the kind of its entries."""

_GENERATION = f"coalesce((select generation from communities {OURS}), 0) + ?"
_BLOCKS = f"from blocks {OURS} and generation = {_GENERATION}"
_DECIDED = f"from decisions {OURS} and draft = ?"


class Placed(NamedTuple):
    """A decision and its position: a follower goes on from there."""

    position: int
    decision: records.Decision


class Written(NamedTuple):
    """A text file that was written from all this: hashes of its text and of the text before it, its size and time."""

    digest: bytes
    before: bytes
    size: int = -1
    mtime_ns: int = -1


def files_written(db: Transaction) -> dict[str, Written]:
    """Return what is recorded of the text files, by name."""
    rows = db.rows(f"select file, digest, before, size, mtime_ns from projected {OURS}")
    return {str(file): msgspec.convert(each, Written) for file, *each in rows}


def note_written(db: Transaction, files: Mapping[str, Written | None]) -> None:
    """Record what text files are to hold, and what they hold until then; None for a file that is no more."""
    db.run_each(
        "insert into projected (community, file, digest, before, size, mtime_ns) values (:community, ?, ?, ?, ?, ?)"
        " on conflict (community, file) do update set digest = excluded.digest, before = excluded.before,"
        " size = excluded.size, mtime_ns = excluded.mtime_ns",
        ((file, *written) for file, written in files.items() if written),
    )
    gone = ((file,) for file, written in files.items() if not written)
    db.run_each(f"delete from projected {OURS} and file = ?", gone)


class _Taken(NamedTuple):
    """A decision as its row has it."""

    pair: str | None
    """The pair's id, with its whole fraction; None where it is about messages."""
    action: str
    text: str


class _View(ABC):
    """Reads topics, decisions and entries. A topic is its blocks; one without blocks is none."""

    draft: int
    """1 for the generation that is being built, 0 for the current one."""

    @abstractmethod
    def _rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        """Return all rows that the statement gives."""

    def names(self) -> tuple[TopicName, ...]:
        """Return all topics, sorted."""
        rows = self._rows(f"select distinct topic {_BLOCKS} order by topic", (self.draft,))
        return tuple(TopicName(str(name)) for (name,) in rows)

    def read(self, name: TopicName) -> tuple[records.TopicBlock, ...]:
        """Return the blocks of a topic, oldest answer first; none where there is no such topic."""
        return _parsed(self.data(name), f"{name}.txt")

    def text(self, name: TopicName) -> str:
        """Return the text of a topic, for a model to read. Raises SourceError where there is no such topic."""
        text = self.texts([name]).get(name)
        if text is None:
            raise SourceError(f"there is no topic {name}")
        return text

    def texts(self, names: Collection[TopicName]) -> dict[TopicName, str]:
        """Return the texts of those of these topics that there are."""
        # In the order of the index, or SQLite reads all blocks that there are.
        statement = f"select topic, block {_BLOCKS} and topic {IN} order by topic, answered, time"
        rows = self._rows(statement, (self.draft, listed(names)))
        blocks = defaultdict[TopicName, list[str]](list)
        for name, block in rows:
            blocks[TopicName(str(name))].append(cast("bytes", block).decode())
        return {name: "".join(each) for name, each in blocks.items()}

    def topic_of(self, qa_id: QAId) -> TopicName | None:
        """Return the topic with the pair's block; None where there is none."""
        found = self.places([qa_id])
        return found[0][0] if found else None

    def of_conversation(self, conversation_id: ConversationId) -> list[tuple[TopicName, QAId]]:
        """Return topic and id of each block of a conversation, oldest first."""
        rows = self._rows(
            f"select topic, qa_id {_BLOCKS} and conversation_id = ? order by time", (self.draft, conversation_id)
        )
        return [(TopicName(str(name)), QAId(str(qa_id))) for name, qa_id in rows]

    def topic_of_conversation(self, conversation_id: ConversationId) -> TopicName | None:
        """Return the topic with a conversation's newest block; None where there is none."""
        places = self.of_conversation(conversation_id)
        return places[-1][0] if places else None

    def places(self, qa_ids: Iterable[QAId]) -> list[tuple[TopicName, QAId]]:
        """Return topic and id of each of these pairs that stands in a topic, oldest first."""
        times = as_json(micros_of(time) for time in times_of(qa_ids))
        if times == "[]":
            return []
        rows = self._rows(f"select topic, qa_id {_BLOCKS} and time {NUMBER_IN} order by time", (self.draft, times))
        return [(TopicName(str(name)), QAId(str(qa_id))) for name, qa_id in rows]

    def data(self, name: TopicName) -> bytes:
        """Return a topic as its file has it; empty where there is none."""
        rows = self._rows(f"select block {_BLOCKS} and topic = ? order by answered, time", (self.draft, name))
        return b"".join(block for (block,) in rows if isinstance(block, bytes))

    def after(self, position: int, most: int) -> list[Placed]:
        """Return some of the decisions after a position, oldest first; all where `most` is negative."""
        statement = f"select position, decision {_DECIDED} and position > ? order by position"
        limit = f" limit {most:d}" if most >= 0 else ""
        rows = self._rows(statement + limit, (self.draft, position))
        return [Placed(int(str(at)), _DECODER.decode(str(text))) for at, text in rows]

    def position(self) -> int:
        """Return the position of the newest change."""
        return next((int(str(at)) for (at,) in self._rows(HERE)), 0)

    def sources_after(self, index: Index, position: int) -> tuple[int, dict[SourceId, CachedSource | None]]:
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


class Change(_View):
    """What is decided at once. Reads see what it changed before."""

    def __init__(self, db: Transaction, draft: int) -> None:
        self.db = db
        self.draft = draft
        self.taken: list[_Taken] = []
        self.told: list[Callable[[], object]] = []
        self._topics: set[TopicName] = set()

    def _rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        return self.db.rows(statement, values)

    def say(self, log: Any, event: str, **fields: object) -> None:
        """Log an event once the change is on disk."""
        self.told.append(partial(log.info, event, **fields))

    def drafted(self) -> Change:
        """Return the same transaction on what is drafted."""
        return Change(self.db, 1)

    def decide(self, *decisions: records.Decision) -> None:
        """Log decisions, in this order."""
        for each in decisions:
            pair = None if isinstance(each, records.Withdrawn | records.Forgotten) else whole_id(each.qa_id)
            text = msgspec.json.encode(replace(each, reason=whole(each.reason))).decode()
            taken = _Taken(pair, _action(type(each)), text)
            self.taken.append(taken)
            self.db.run_each(NEXT, [()])
            self.db.run_each(
                "insert into decisions (community, draft, position, pair, action, decision)"
                f" values (:community, ?, ({HERE}), ?, ?, ?)",
                [(self.draft, *taken)],
            )

    def put(self, topic: TopicName, *blocks: records.TopicBlock) -> None:
        """Put blocks into a topic. Each leaves the topic where it stood before, and replaces the block of its id."""
        self._topics.update(name for name, _ in self.places(block.qa_id for block in blocks))
        self._topics.add(topic)
        self.db.run_each(
            "insert into blocks (community, generation, time, topic, qa_id, conversation_id, answered, block)"
            f" values (:community, {_GENERATION}, ?, ?, ?, ?, ?, ?)"
            " on conflict (community, generation, time) do update set topic = excluded.topic, qa_id = excluded.qa_id,"
            " conversation_id = excluded.conversation_id, answered = excluded.answered, block = excluded.block",
            (
                (
                    self.draft,
                    micros_of(block.timestamp),
                    topic,
                    block.qa_id,
                    block.conversation_id,
                    micros_of(block.answered_at or block.timestamp),
                    whole(format_topic(block)).encode(),
                )
                for block in blocks
            ),
        )

    def remove(self, qa_ids: Iterable[QAId]) -> list[tuple[TopicName, QAId]]:
        """Take blocks out of their topics; return those that were there, with their topics. A model may name any id."""
        if found := self.places(qa_ids):
            times = as_json(micros_of(time_of(qa_id)) for _, qa_id in found)
            self.db.run_each(f"delete {_BLOCKS} and time {NUMBER_IN}", [(self.draft, times)])
        self._topics.update(name for name, _ in found)
        return found

    def lists(self, index: Index, source_id: SourceId) -> bool:
        """Whether an index has an entry of the source."""
        return bool(self._rows(f"select 1 from sources {OURS} and catalogue = ? and source_id = ?", (index, source_id)))

    def put_sources(self, index: Index, put: Mapping[SourceId, CachedSource], drop: Collection[SourceId] = ()) -> None:
        """Put entries into an index, and take others out. Entries that stay the same are not touched."""
        statement = f"select source_id, source from sources {OURS} and catalogue = ?"
        rows = self._rows(f"{statement} and source_id {IN}", (index, as_json([*put, *drop])))
        known = {str(source_id): str(source) for source_id, source in rows}
        fresh = {each: text for each, source in put.items() if (text := _encoded(source)) != known.get(each)}
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

    def switch(self, drafted: Sequence[records.PairDecision]) -> None:
        """Make the drafted topics the current ones, and log these decisions."""
        before = self.names()
        self.db.run(f"delete {_BLOCKS}", (0,))
        next_position(self.db)
        self.db.run(f"update communities set generation = generation + 1 {OURS}")
        self._topics.update(before, self.names())
        self.discard()
        self.decide(*drafted)

    def discard(self) -> None:
        """Delete all that was drafted."""
        self.db.run(f"delete {_BLOCKS}", (1,))
        self.db.run(f"delete {_DECIDED}", (1,))
        self.db.run(f"delete from regeneration {OURS}")

    def close(self) -> None:
        """Log which topics changed."""
        if self._topics and not self.draft:
            log_changes(self.db, TOPIC, sorted(self._topics))


class Knowledge(Store, _View):
    """The decisions, topics and index entries of a community. Reads block, and must not run on the event loop."""

    draft = 0

    def __init__(self, db: Database, *, clock: Clock | None = None) -> None:
        super().__init__(db, clock=clock)
        # By the pair's id, and as text: few of many are asked for.
        self._last: dict[str, str] = {}
        self._open: dict[str, tuple[str, str]] = {}
        self._reviewed: dict[str, str] = {}
        self._newest = ""
        self._gone: set[str] = set()
        self._forgotten: dict[UserId, datetime] = {}
        self._turn = Lock()
        self.changed: Callable[[], None] = lambda: None
        """Is called after each change: there is something for the projections."""
        self.read_again()

    def read_again(self) -> None:
        """Remember all decisions, also those that another process has taken since."""
        for row in self._rows(f"select pair, action, decision {_DECIDED} order by position", (self.draft,)):
            self._remember(*cast("_Taken", row))

    def _rows(self, statement: str, values: Sequence[Value] = ()) -> list[Row]:
        return self.db.look(lambda db: db.rows(statement, values), steady=False)

    async def change(self, work: Callable[[Change], T]) -> T:
        """Change something, on the writer thread, in one transaction. What `work` raises undoes all of it.

        Changes wait for each other, so what `work` reads is as the last one left it. Raises KnowledgeError.
        """

        def run(db: Transaction) -> tuple[T, Change]:
            change = Change(db, self.draft)
            result = work(change)
            change.close()
            return result, change

        # Not abandoned on cancellation: memory must know what was decided.
        results: list[T] = []
        async with self._turn:
            with CancelScope(shield=True):
                result, change = await self.db.write(run)
                for each in change.taken:
                    self._remember(*each)
                for tell in change.told:
                    tell()
                results.append(result)
        self.changed()
        return results[0]

    def all(self) -> list[records.Decision]:
        """Return every decision ever taken, oldest first."""
        return [each.decision for each in self.after(0, -1)]

    def versions(self, name: TopicName | None = None) -> dict[TopicName, tuple[int, int]]:
        """Return the length of each topic, or of one, in bytes, and the position of its newest change."""
        only, values = ("", (self.draft,)) if name is None else (" and topic = ?", (self.draft, name))
        rows = self._rows(
            "select topic, sum(length(block)), (select position from changes where changes.community = :community"
            f" and kind = '{TOPIC}' and name = topic) {_BLOCKS}{only} group by topic order by topic",
            values,
        )
        return {TopicName(str(name)): (int(str(length)), int(str(at or 0))) for name, length, at in rows}

    def journal(self) -> list[str]:
        """Return the lines of an unfinished regeneration, in order."""
        return self.db.look(lambda db: db.texts(f"select line from regeneration {OURS} order by n"))

    async def write_journal(self, line: str) -> None:
        """Add a line to them, durably."""
        number = f"select coalesce(max(n), -1) + 1 from regeneration {OURS}"
        await self.db.run(f"insert into regeneration (community, n, line) values (:community, ({number}), ?)", (line,))

    def of(self, qa_id: QAId) -> records.PairDecision | None:
        """Return the last decision about a pair; None where there is none yet."""
        known = next((self._last.get(qa_id_of(time)) for time in times_of((qa_id,))), None)
        return None if known is None else _decode(known)

    def undecided(self, qa_ids: AbstractSet[str]) -> AbstractSet[str]:
        """Return the pairs, by ids with the whole fraction, that nothing was decided about yet."""
        return qa_ids - self._last.keys()

    def cursor(self) -> QAId | None:
        """Return the newest pair that was decided; None where none was."""
        return _decode(self._last[self._newest]).qa_id if self._newest else None

    def due(self) -> Sequence[records.Approved]:
        """Return the pairs that are approved and not filed yet, oldest pair first."""
        return self._still(records.Approved)

    def parked(self) -> Sequence[records.Parked]:
        """Return the pairs that are parked now, oldest pair first."""
        return self._still(records.Parked)

    def awaiting(self) -> Sequence[records.AwaitingReview]:
        """Return the pairs that wait for a review by the team, oldest pair first."""
        return self._still(records.AwaitingReview)

    def review_of(self, qa_id: QAId) -> records.Approved | records.Rejected | None:
        """Return the last review of a pair by the team, even if other decisions followed."""
        known = self._reviewed.get(whole_id(qa_id))
        return None if known is None else cast("records.Approved | records.Rejected", _decode(known))

    def is_withdrawn(self, message_id: MessageId) -> bool:
        """Whether a message may teach nothing any more: it was deleted, or is to be forgotten."""
        return bare(message_id) in self._gone

    def is_forgotten(self, user_id: UserId, message_id: MessageId) -> bool:
        """Whether a member's message is older than their wish to be forgotten.

        It need not have been captured by then. For an id without a time, the answer is yes.
        """
        until = self._forgotten.get(user_id)
        if until is None:
            return False
        try:
            return position_of(bare(message_id)).time <= until
        except (ValueError, OverflowError):
            return True

    def _still(self, kind: type[D]) -> Sequence[D]:
        # A copy at once: another thread may decide meanwhile.
        waiting, wanted = sorted(self._open.items()), _action(kind)
        return [cast("D", _decode(text)) for _, (action, text) in waiting if action == wanted]

    def _remember(self, pair: str | None, action: str, text: str) -> None:
        if pair is None:
            decision = cast("records.Withdrawn | records.Forgotten", _DECODER.decode(text))
            self._gone.update(map(bare, decision.message_ids))
            if isinstance(decision, records.Forgotten) and decision.user_id is not None:
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


class Draft(Knowledge):
    """Topics and decisions that count only once they are switched to. Withdrawals are the current ones."""

    draft = 1

    def __init__(self, current: Knowledge) -> None:
        super().__init__(current.db, clock=current.clock)
        self._gone = current._gone  # noqa: SLF001 - the same class
        self._turn = current._turn  # noqa: SLF001

    def taken(self) -> list[records.PairDecision]:
        """Return all drafted decisions, oldest first."""
        return [each for each in self.all() if not isinstance(each, records.Withdrawn | records.Forgotten)]


# A topic that a pair is filed in is read several times before it changes.
@lru_cache(maxsize=8)
def _parsed(data: bytes, file: str) -> tuple[records.TopicBlock, ...]:
    return parse_blocks(data, file=file).blocks


def _encoded(source: CachedSource) -> str:
    return msgspec.json.encode(source).decode("utf-8", "replace")


def _action(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)


_OPEN = frozenset(_action(each) for each in (records.Approved, records.AwaitingReview, records.Parked))
_REVIEWED = frozenset((_action(records.Approved), _action(records.Rejected)))


def _decode(text: str) -> records.PairDecision:
    return cast("records.PairDecision", _DECODER.decode(text))
