"""The knowledge as the page shows it: topics with their history, facts, nuggets and sources, and one search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import chain, pairwise
from typing import Final, Generic, Literal, TypeVar

from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.core import knowledge, search_documents
from intern.core.captures import TopicBlock, Turn
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
from intern.core.ids import FactId, NuggetId, QAId, TopicName
from intern.core.text.words import collapse_whitespace, truncate_text
from intern.search.embedder import Embedder
from intern.search.hybrid_search import HybridSearch
from intern.search.ranking import find_and_rerank
from intern.service.archive_reader import TopicLine, build_topic_line, load_without_withdrawn, parse_topic_name
from intern.service.search_results import OutdatedResults, SearchResult, build_search_result
from intern.service.source_status import SourceStatus, read_source_statuses
from intern.service.stores import Stores
from intern.service.text_diff import DiffPiece, PieceKind, diff_texts
from intern.sources.catalogue import Catalogue
from intern.stores.qa_ids import qa_id_time
from intern.stores.tables.facts import FactFilter, FactStore
from intern.stores.tables.nuggets import NuggetStore

T = TypeVar("T")

ROWS = 50
"""Rows of a list on a page."""
_FOUND = 20
_BLOCKS = 12  # of a topic, on a page
_CHANGES = 15  # of a topic's history, on a page
_NUGGETS = 25
_OLD_NUGGETS = 5  # conversations of a fact that are shown with nuggets
_LATEST = 8  # changes on the first page
_QUESTION = 120  # characters of a capture in a list
_LONGEST = 1_200  # characters of an addition or a removal
EntryKind = Literal["topic", "document", "page", "fact", "nugget", "file"]
KINDS: Final[Mapping[EntryKind, search_documents.SearchFilter]] = {
    "topic": search_documents.SearchFilter(kinds=("source",), type="topic"),
    "document": search_documents.SearchFilter(kinds=("source",), type="document"),
    "page": search_documents.SearchFilter(kinds=("source",), type="page"),
    "fact": search_documents.SearchFilter(kinds=("fact",), retired=True),
    "nugget": search_documents.SearchFilter(kinds=("nugget",)),
    "file": search_documents.SearchFilter(kinds=("file",)),
}
Order = Literal["newest", "name", "longest"]
SourceStates = Literal["all", "stale", "skipped"]
FactListing = Literal["held", "gone", "all"]


class PagedList(Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a longer list."""

    rows: tuple[T, ...]
    total: int
    offset: int = 0
    size: int = ROWS
    """Rows on a page."""


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


class KnowledgeCounts(Struct, frozen=True, kw_only=True):
    """The amount of knowledge by kind, and the latest changes."""

    topics: int
    captures: int
    facts: int
    nuggets: int
    documents: int
    pages: int
    stale: int
    left_out: int
    latest: tuple[TopicChange, ...]


class TopicPage(Struct, frozen=True, kw_only=True):
    """A topic as answers see it, newest answers first, with some of its pairs."""

    name: TopicName
    description: str
    blocks: PagedList[TopicBlock]
    chars: int
    changes: int
    """The number of changes in its history."""


class FactPage(Struct, frozen=True, kw_only=True):
    """A fact with its chain, and the conversations that state it."""

    fact: knowledge.Fact
    chain: tuple[tuple[knowledge.Fact, tuple[DiffPiece, ...]], ...]
    """Newest first, each with its difference to the one before it."""
    occurrences: tuple[knowledge.FactOccurrence, ...]
    nuggets: tuple[knowledge.Nugget, ...]


class SourcesPage(Struct, frozen=True, kw_only=True):
    """Some sources, the stale ones first, and how many there are of each state."""

    listed: PagedList[SourceStatus]
    counts: Mapping[SourceStates, int]
    now: datetime


class KnowledgeBrowser:
    """Reads the knowledge from the stores that the process holds. Raises KnowledgeError where one cannot be read."""

    def __init__(self, stores: Stores, embedder: Embedder | None = None) -> None:
        self._stores, self._settings, self._clock = stores, stores.settings, stores.clock
        self._knowledge, self._archive = stores.knowledge, stores.archive
        self._index = Catalogue(stores.knowledge, "team")
        self._facts = FactStore(stores.db, clock=stores.clock)
        self._nuggets = NuggetStore(stores.db)
        self._finder = HybridSearch(stores.search, embedder)
        self._folded: tuple[int, list[TopicChange]] = (-1, [])

    async def counts(self) -> KnowledgeCounts:
        """Count the knowledge by kind, and list the latest changes."""
        sources = await run_sync(self._sources)
        states = [each.state for each in sources]
        versions = await run_sync(self._knowledge.topic_versions)
        changes = await run_sync(self._list_changes, None)
        return KnowledgeCounts(
            topics=len(versions),
            captures=len(self._archive),
            facts=await self._facts.count(FactFilter()),
            nuggets=await self._nuggets.count(),
            documents=sum(each.type not in {"page", "line"} and each.state != "skipped" for each in sources),
            pages=sum(each.type == "page" and each.state != "skipped" for each in sources),
            stale=sum(state not in {"ok", "skipped"} for state in states),
            left_out=states.count("skipped"),
            latest=await run_sync(self._add_diffs, changes[-_LATEST:][::-1]),
        )

    async def search(self, text: str, kind: EntryKind | None, offset: int = 0) -> PagedList[SearchResult]:
        """Search all, or one kind of it, best first. Secret facts are never found."""
        if not text.strip():
            return PagedList(rows=(), total=0)
        wanted = KINDS[kind] if kind else search_documents.SearchFilter()
        most = offset + _FOUND + 1
        found = await find_and_rerank(self._finder.find, text, wanted, most, now=self._clock.now())
        rows = tuple(build_search_result(each, OutdatedResults()) for each in found[offset : offset + _FOUND])
        return PagedList(rows=rows, total=len(found), offset=offset, size=_FOUND)

    async def topics(self, order: Order = "newest", offset: int = 0) -> PagedList[TopicLine]:
        """List topics: the last changed first, by name, or the longest first."""
        return await run_sync(self._topics, order, offset)

    async def topic(self, label: str, offset: int = 0) -> TopicPage:
        """Return one topic. Raises ConfigError if no pair was ever filed under that name."""
        return await run_sync(self._topic, label, offset)

    async def history(self, label: str, offset: int = 0) -> PagedList[TopicChange]:
        """List the changes of a topic, newest first. Raises ConfigError as `topic` does."""
        return await run_sync(self._history, label, offset)

    async def facts(
        self, held: FactListing = "held", category: knowledge.FactCategory | None = None, offset: int = 0
    ) -> PagedList[knowledge.Fact]:
        """List facts except secret ones, the last stated first."""
        wanted = FactFilter(active={"held": True, "gone": False, "all": None}[held], category=category)
        found = await self._facts.all(wanted, offset + ROWS)
        return PagedList(rows=found[offset:], total=await self._facts.count(wanted), offset=offset)

    async def fact(self, fact_id: FactId) -> FactPage:
        """Return one fact. Raises ConfigError if the id is unknown or the fact is secret."""
        links = [link for link in await self._facts.read_chain(fact_id) if link.fact.visibility != "secret"]
        link = next((each for each in links if each.fact.id == fact_id), None)
        if link is None:
            raise ConfigError(f"there is no fact {fact_id[:80]!r}")
        latest = link.occurrences[::-1]
        said_in = list(dict.fromkeys(each.conversation_id for each in latest))[:_OLD_NUGGETS]
        nuggets = tuple(chain.from_iterable([await self._nuggets.read_for_conversation(each) for each in said_in]))
        first = ((links[0].fact, ()),) if links else ()
        later = ((new.fact, diff_texts(old.fact.content, new.fact.content)) for old, new in pairwise(links))
        facts = (*first, *later)[::-1]
        return FactPage(fact=link.fact, chain=facts, occurrences=latest[:ROWS], nuggets=nuggets)

    async def nuggets(
        self, status: knowledge.NuggetStatus | None = None, offset: int = 0
    ) -> PagedList[knowledge.Nugget]:
        """List nuggets, newest first."""
        found = await self._nuggets.all(status, limit=_NUGGETS, offset=offset)
        return PagedList(rows=found, total=await self._nuggets.count(status), offset=offset, size=_NUGGETS)

    async def nugget(self, nugget_id: NuggetId) -> knowledge.Nugget:
        """Return one nugget. Raises ConfigError if the id is unknown."""
        for found in await self._nuggets.by_ids((nugget_id,)):
            return found
        raise ConfigError(f"there is no nugget {nugget_id[:80]!r}")

    async def sources(self, state: SourceStates = "all", offset: int = 0) -> SourcesPage:
        """List documents, pages and discovered files, the stale ones first; or the ignored ones with their reasons."""
        known = await run_sync(self._sources)
        order = {"failed": 0, "gone": 1, "pending": 2, "ok": 3}
        used = sorted((each for each in known if each.state != "skipped"), key=lambda each: order[each.state])
        of: dict[SourceStates, list[SourceStatus]] = {
            "all": used,
            "stale": [each for each in used if each.state != "ok"],
            "skipped": [each for each in known if each.state == "skipped"],
        }
        rows = tuple(of[state][offset : offset + ROWS])
        return SourcesPage(
            listed=PagedList(rows=rows, total=len(of[state]), offset=offset),
            counts={each: len(found) for each, found in of.items()},
            now=self._clock.now(),
        )

    # From here on: worker threads.

    def _sources(self) -> list[SourceStatus]:
        # Up-to-date topics have a list of their own.
        known = read_source_statuses(self._settings, self._knowledge, clock=self._clock)
        return [each for each in known if each.type != "topic" or each.state != "ok"]

    def _topics(self, order: Order, offset: int) -> PagedList[TopicLine]:
        versions = self._knowledge.topic_versions()
        names = list(versions)
        if order != "name":
            # The length of each topic, and the position of its newest change.
            names.sort(key=lambda name: versions[name][order == "newest"], reverse=True)
        entries = self._index.entries()
        rows = [build_topic_line(name, self._knowledge, entries) for name in names[offset : offset + ROWS]]
        return PagedList(rows=tuple(rows), total=len(names), offset=offset)

    def _topic(self, label: str, offset: int) -> TopicPage:
        name = parse_topic_name(label)
        blocks, changes = self._knowledge.read_topic(name)[::-1], self._list_changes(name)
        if not blocks and not changes:
            raise ConfigError(f"there is no topic {name}")
        line = build_topic_line(name, self._knowledge, self._index.entries())
        some = blocks[offset : offset + _BLOCKS]
        shown = PagedList(rows=some, total=len(blocks), offset=offset, size=_BLOCKS)
        return TopicPage(name=name, description=line.description, blocks=shown, chars=line.chars, changes=len(changes))

    def _history(self, label: str, offset: int) -> PagedList[TopicChange]:
        name = parse_topic_name(label)
        changes = self._list_changes(name)
        if not changes and not self._knowledge.read_topic(name):
            raise ConfigError(f"there is no topic {name}")
        some = self._add_diffs(changes[::-1][offset : offset + _CHANGES])
        return PagedList(rows=some, total=len(changes), offset=offset, size=_CHANGES)

    def _list_changes(self, name: TopicName | None) -> list[TopicChange]:
        """Return the changes of a topic, or of all topics, oldest first, without texts."""
        position = self._knowledge.position()
        at, changes = self._folded
        if at != position:
            changes = list(read_topic_changes(self._knowledge.read_decisions()))
            self._folded = position, changes
        return [each for each in changes if name in {None, each.topic}]

    def _add_diffs(self, changes: Iterable[TopicChange]) -> tuple[TopicChange, ...]:
        return tuple(map(self._add_diff, changes))

    def _add_diff(self, change: TopicChange) -> TopicChange:
        """Add the difference, without messages that were deleted or forgotten since."""
        left = load_without_withdrawn(self._archive, self._knowledge, change.qa_id)
        after = format_conversation(left.turns) if left else ""
        match change.what:
            case "updated":
                pieces = diff_texts(self._read_pair_text(change.before), after)
            case "edited":
                blocks = [each for each in self._knowledge.read_topic(change.topic) if each.qa_id == change.qa_id]
                pieces = diff_texts(after, format_conversation(blocks[0].turns)) if blocks else ()
            case _:
                kind: PieceKind = "added" if change.what in {"added", "moved here"} else "removed"
                pieces = (DiffPiece(kind, truncate_text(after, _LONGEST)),) if after else ()
        question = truncate_text(collapse_whitespace(left.question), _QUESTION) if left else ""
        return replace(change, pieces=pieces, question=question)

    def _read_pair_text(self, qa_id: QAId | None) -> str:
        left = load_without_withdrawn(self._archive, self._knowledge, qa_id) if qa_id else None
        return format_conversation(left.turns) if left else ""


def read_topic_changes(decisions: Iterable[Decision]) -> Iterator[TopicChange]:
    """Yield the changes of topics, oldest first, without texts. Decisions that changed nothing are left out."""
    places: dict[datetime, TopicName] = {}
    gave_way: dict[datetime, TopicChange] = {}  # by the time of the newer version, which is filed next
    for each in decisions:
        if not isinstance(
            each,
            MessagesWithdrawn | MessagesForgotten | PairReviewRequested | PairApproved,
        ):
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
