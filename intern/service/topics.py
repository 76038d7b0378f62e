"""The topics of a data folder, for people to read: each with its blocks and its history.

Blocks that newer pairs made obsolete stay visible: the removed ones of a topic, with the newer pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from intern.core.captures import CapturedPair, TopicBlock, Turn
from intern.core.decisions import (
    Decision,
    MessagesForgotten,
    MessagesWithdrawn,
    PairApproved,
    PairDecision,
    PairFiled,
    PairMoved,
    PairReplaced,
    PairReviewRequested,
)
from intern.core.errors import ConfigError
from intern.core.ids import QAId, TopicName
from intern.core.text.topic_names import make_topic_name
from intern.core.text.words import collapse_whitespace, truncate_text
from intern.learning.prompts import build_block, strip_withdrawn
from intern.service.databases import open_learned
from intern.service.paging import PagedList, select_page
from intern.service.text_diff import DiffPiece, PieceKind, diff_texts
from intern.settings.settings import Settings
from intern.sources.catalogue import Catalogue
from intern.stores.archive import Archive
from intern.stores.qa_ids import qa_id_time
from intern.stores.source_cache import topic_id
from intern.stores.tables.knowledge import KnowledgeStore

_BLOCKS = 12  # of a topic, on a page
_CHANGES = 15  # of a topic's history, on a page
_LATEST = 8  # changes on the first page
_QUESTION = 120  # characters of a capture in a list
_LONGEST = 1_200  # characters of an addition or a removal
Order = Literal["newest", "name", "longest"]


class TopicLine(Struct, frozen=True, kw_only=True):
    """A topic in a list."""

    name: TopicName
    blocks: int
    chars: int
    """The length of its file as a prompt would see it."""
    answered_at: datetime | None
    """Time of its newest answer (UTC)."""
    description: str


class RemovedPair(Struct, frozen=True, kw_only=True):
    """A block that was part of a topic until a newer pair made it obsolete. The archive still holds it."""

    qa_id: QAId
    by: QAId
    """The pair that made it obsolete."""
    at: datetime
    turns: tuple[Turn, ...]
    """Empty if none of it may be shown any more, or the archive does not hold it."""


class TopicDetails(Struct, frozen=True, kw_only=True):
    """A topic as answers see it."""

    name: TopicName
    description: str
    blocks: tuple[TopicBlock, ...]
    removed: tuple[RemovedPair, ...]


class TopicPage(Struct, frozen=True, kw_only=True):
    """A topic as answers see it, newest answers first, with some of its pairs."""

    name: TopicName
    description: str
    blocks: PagedList[TopicBlock]
    changes: int
    """The number of changes in its history."""


class TopicChange(Struct, frozen=True, kw_only=True):
    """One change in the history of a topic."""

    topic: TopicName
    at: datetime
    what: Literal["added", "updated", "edited", "removed", "moved here", "moved away"]
    qa_id: QAId
    reason: str = ""
    other: TopicName | None = None
    """The topic that it moved to or came from."""
    by: QAId | None = None
    """The newer pair that made it obsolete."""
    before: QAId | None = None
    """The version of its conversation that it replaced."""
    question: str = ""
    """The beginning of the text."""
    pieces: tuple[DiffPiece, ...] = ()
    """The difference in words; empty where none of it may be shown any more."""


class Topics:
    """Reads topics. Methods block, and raise KnowledgeError for what exists and cannot be read.

    Those that take a name, in any spelling, raise ConfigError if no pair was ever filed under it.
    """

    def __init__(self, knowledge: KnowledgeStore, archive: Archive) -> None:
        self._knowledge, self._archive = knowledge, archive
        self._index = Catalogue(knowledge, "team")
        self._folded: tuple[int, list[TopicChange]] = (-1, [])

    def list_all(self) -> tuple[TopicLine, ...]:
        """Return all topics, by name."""
        return tuple(map(self._line_builder(), self._knowledge.topic_names()))

    def list_page(self, order: Order = "newest", offset: int = 0) -> PagedList[TopicLine]:
        """List topics: the last changed first, by name, or the longest first."""
        versions = self._knowledge.topic_versions()
        names = list(versions)
        if order != "name":
            # The length of each topic, and the position of its newest change.
            names.sort(key=lambda name: versions[name][order == "newest"], reverse=True)
        return select_page(names, offset).map(self._line_builder())

    def _line_builder(self) -> Callable[[TopicName], TopicLine]:
        entries = self._index.entries()

        def build_line(name: TopicName) -> TopicLine:
            blocks, entry = self._knowledge.read_topic(name), entries.get(topic_id(name))
            return TopicLine(
                name=name,
                blocks=len(blocks),
                chars=len(self._knowledge.read_text(name)) if blocks else 0,
                answered_at=max((block.answered_at or block.timestamp for block in blocks), default=None),
                description=entry.description if entry else "",
            )

        return build_line

    def read(self, label: str) -> TopicDetails:
        """Return one topic, and what newer pairs removed from it."""
        name, blocks = parse_topic_name(label), self._knowledge.read_topic(parse_topic_name(label))
        removed = find_removed_pairs(name, self._knowledge, self._archive)
        if not blocks and not removed:
            raise ConfigError(f"there is no topic {name}; `intern topics` lists them")
        return TopicDetails(name=name, description=self._describe(name), blocks=blocks, removed=removed)

    def read_page(self, label: str, offset: int = 0) -> TopicPage:
        """Return one topic with some of its pairs."""
        name, blocks, changes = self._find(label)
        page = select_page(blocks[::-1], offset, _BLOCKS)
        return TopicPage(name=name, description=self._describe(name), blocks=page, changes=len(changes))

    def list_changes(self, label: str, offset: int = 0) -> PagedList[TopicChange]:
        """List the changes of a topic, newest first."""
        return select_page(self._find(label)[2][::-1], offset, _CHANGES).map(self._add_diff)

    def list_latest_changes(self) -> tuple[TopicChange, ...]:
        """Return the latest changes of all topics, newest first."""
        return tuple(map(self._add_diff, self._fold_changes()[-_LATEST:][::-1]))

    def list_decisions(self, label: str) -> tuple[PairDecision, ...]:
        """Return all decisions about the pairs of a topic, oldest first."""
        name, gone = parse_topic_name(label), (MessagesWithdrawn, MessagesForgotten)
        decisions = [decision for decision in self._knowledge.read_decisions() if not isinstance(decision, gone)]
        concerned = {
            qa_id_time(decision.qa_id)
            for decision in decisions
            if isinstance(decision, PairFiled | PairMoved) and decision.topic == name
        }
        if not concerned:
            raise ConfigError(f"nothing was ever filed under {name}; `intern topics` lists what there is")
        return tuple(decision for decision in decisions if qa_id_time(decision.qa_id) in concerned)

    def _describe(self, name: TopicName) -> str:
        entry = self._index.entries().get(topic_id(name))
        return entry.description if entry else ""

    def _find(self, label: str) -> tuple[TopicName, Sequence[TopicBlock], list[TopicChange]]:
        name = parse_topic_name(label)
        blocks, changes = self._knowledge.read_topic(name), [c for c in self._fold_changes() if c.topic == name]
        if not blocks and not changes:
            raise ConfigError(f"there is no topic {name}")
        return name, blocks, changes

    def _fold_changes(self) -> list[TopicChange]:
        """Return the changes of all topics, oldest first, without texts."""
        position = self._knowledge.position()
        if self._folded[0] != position:
            self._folded = position, list(read_topic_changes(self._knowledge.read_decisions()))
        return self._folded[1]

    def _add_diff(self, change: TopicChange) -> TopicChange:
        """Add the difference, without messages that were deleted or forgotten since."""
        left = load_without_withdrawn(self._archive, self._knowledge, change.qa_id)
        after = format_conversation(left.turns) if left else ""
        match change.what:
            case "updated":
                pieces = diff_texts(self._read_pair_text(change.before), after)
            case "edited":
                blocks = [block for block in self._knowledge.read_topic(change.topic) if block.qa_id == change.qa_id]
                pieces = diff_texts(after, format_conversation(blocks[0].turns)) if blocks else ()
            case _:
                kind: PieceKind = "added" if change.what in {"added", "moved here"} else "removed"
                pieces = (DiffPiece(kind, truncate_text(after, _LONGEST)),) if after else ()
        question = truncate_text(collapse_whitespace(left.question), _QUESTION) if left else ""
        return replace(change, pieces=pieces, question=question)

    def _read_pair_text(self, qa_id: QAId | None) -> str:
        left = load_without_withdrawn(self._archive, self._knowledge, qa_id) if qa_id else None
        return format_conversation(left.turns) if left else ""


def open_topics(settings: Settings) -> Topics:
    """Open the topics for reading only, whether or not a bot runs. Blocks; raises KnowledgeError."""
    return Topics(*open_learned(settings))


def read_topic_changes(decisions: Iterable[Decision]) -> Iterator[TopicChange]:
    """Yield the changes of topics, oldest first, without texts. Decisions that changed nothing are left out."""
    places: dict[datetime, TopicName] = {}
    gave_way: dict[datetime, TopicChange] = {}  # by the time of the newer version, which is filed next
    for each in decisions:
        if not isinstance(each, MessagesWithdrawn | MessagesForgotten | PairReviewRequested | PairApproved):
            yield from _changes_by_decision(each, places, gave_way)


def _changes_by_decision(
    each: PairDecision, places: dict[datetime, TopicName], gave_way: dict[datetime, TopicChange]
) -> Iterator[TopicChange]:
    time = qa_id_time(each.qa_id)
    here, older = places.pop(time, None), gave_way.pop(time, None)
    topic = each.topic if isinstance(each, PairFiled | PairMoved) else None
    happened = partial(TopicChange, at=each.at, qa_id=each.qa_id, reason=each.reason)
    if topic is not None:
        places[time] = topic
    if topic is not None and older is not None and older.topic == topic:
        yield happened(topic=topic, what="updated", before=older.qa_id)
    elif isinstance(each, PairReplaced) and here is not None:
        gave_way[qa_id_time(each.by)] = happened(topic=here, what="removed", by=each.by)
    else:
        if here is not None and here != topic:
            what: Literal["moved away", "removed"] = "moved away" if topic else "removed"
            yield happened(topic=here, what=what, other=topic)
        if topic is not None and here != topic:
            yield happened(topic=topic, what="moved here" if here else "added", other=here)
        elif topic is not None and each.reason:
            yield happened(topic=topic, what="edited")
        if older is not None:
            yield older
    for qa_id in each.removed if isinstance(each, PairFiled) else ():
        if (gone := places.pop(qa_id_time(qa_id), None)) is not None:
            yield TopicChange(topic=gone, at=each.at, what="removed", qa_id=qa_id, by=each.qa_id)


def format_conversation(turns: Iterable[Turn]) -> str:
    """Return a conversation as text, a message after the other, each with its speaker."""
    return "\n".join(f"{turn.speaker}: {turn.text}" for turn in turns)


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


def _read_turns(qa_id: QAId, decisions: KnowledgeStore, archive: Archive) -> tuple[Turn, ...]:
    left = load_without_withdrawn(archive, decisions, qa_id)
    return () if left is None else build_block(left).turns


def load_without_withdrawn(archive: Archive, decisions: KnowledgeStore, qa_id: QAId) -> CapturedPair | None:
    """Return an archived pair without withdrawn messages; None where it has no question or no answer left."""
    pair = archive.get(qa_id)
    return pair and strip_withdrawn(pair, decisions.is_withdrawn)


def parse_topic_name(label: str) -> TopicName:
    """Return a topic's name from any spelling. Raises ConfigError for an impossible name."""
    try:
        return make_topic_name(label)
    except ValueError as error:
        raise ConfigError(f"{label[:80]!r} can be no topic ({error}); `intern topics` lists them") from error
