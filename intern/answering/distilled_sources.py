"""Find nuggets and facts as sources of answers, as far as the conversations behind them still exist.

A model made them, so each comes with the team's own words from the archive: only these vouch for a command, a version
or a link. Withdrawn and forgotten messages are left out at once, even before the extractor reads the rest again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Final, NamedTuple

from anyio.to_thread import run_sync

from intern.core import knowledge, search_documents
from intern.core.clock import Clock
from intern.core.errors import KnowledgeError, SourceError
from intern.core.ids import ConversationId, FactId, NuggetId, SourceId
from intern.core.messages import is_distilled
from intern.core.text.words import truncate_text, word_overlap
from intern.facts.extraction import select_item_ids
from intern.facts.segments import Segment, read_current_segment
from intern.search.hybrid_search import HybridSearch
from intern.search.ranking import SearchHit, find_and_rerank
from intern.sources.library import DISCORD, message_link
from intern.stores.archive import Archive
from intern.stores.database import Database
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.tables.extractions import ExtractionLog
from intern.stores.tables.facts import FactStore
from intern.stores.tables.knowledge import KnowledgeStore
from intern.stores.tables.nuggets import NuggetStore

MOST_NUGGETS = 5
MOST_FACTS = 5
"""The most facts for one question."""

_LONGEST_SUMMARY = 300  # of a nugget in the index
_LONGEST_TITLE = 120
_KINDS: tuple[search_documents.SearchKind, ...] = ("nugget", "fact")

# A fact goes to the model without a selection, so it must fit the question: similar to it, or with half of its
# words.
_PROPOSED_FACTS = 20
_LIKE_ENOUGH = 0.45
_WORDS_ENOUGH = 0.5


class _CurrentConversation(NamedTuple):
    """The current state of a conversation."""

    read: knowledge.DistilledConversation
    """Its state when something was learned from it."""
    segment: Segment | None
    """Its current text in the archive; None if it was never archived, such as a note."""
    site: str
    """The beginning of links to its messages."""


@dataclass
class DistilledSourceFinder:
    """Finds and loads nuggets and facts. All methods raise KnowledgeError."""

    db: InitVar[Database]
    search: SqliteSearchStore
    finder: HybridSearch
    archive: Archive
    decisions: KnowledgeStore
    clock: Clock
    min_confidence: float = 0.0
    site: str = DISCORD
    """The beginning of links to messages."""

    def __post_init__(self, db: Database) -> None:
        self._nuggets = NuggetStore(db)
        self._facts = FactStore(db, clock=self.clock)
        self._log = ExtractionLog(db, clock=self.clock)

    async def find_distilled(self, query: str, /) -> knowledge.LearnedMatches:
        """Return the nuggets and facts that fit a question; compute no embedding if nothing was learned yet."""
        if not query.strip() or not await self.search.has_kinds(_KINDS):
            return knowledge.LearnedMatches()
        only = search_documents.SearchFilter(kinds=("nugget",))
        nuggets = await find_and_rerank(self.finder.find_without_terms, query, only, MOST_NUGGETS, now=self.clock.now())
        wanted = search_documents.SearchFilter(kinds=("fact",), status="active", visibility="shared")
        proposed = await self.finder.find_without_terms(query, wanted, _PROPOSED_FACTS)
        facts = await self._select_trusted([each for each in proposed if _fits(each, query)])
        ids = [each.document.source_id for each in (*nuggets, *facts)]
        loaded = await self._load_current(ids)
        told = [loaded[each] for each in ids if each in loaded]
        return knowledge.LearnedMatches(
            nuggets=tuple(_make_entry(each) for each, _ in told if isinstance(each, knowledge.Nugget)),
            likeness=max((each.likeness for each in nuggets if each.likeness is not None), default=None),
            facts=tuple(text for each, text in told if isinstance(each, knowledge.Fact)),
        )

    async def _select_trusted(self, found: Sequence[SearchHit]) -> list[SearchHit]:
        """Return the facts that are certain enough, best first; of about equal fits, the more certain one first."""
        ids = select_item_ids("fact", (each.document.source_id for each in found))
        facts = await self._facts.by_ids(list(map(FactId, ids)))
        confidence = {f"fact:{fact.id}": fact.confidence for fact in facts}
        trusted = [each for each in found if confidence.get(each.document.source_id, -1) >= self.min_confidence]
        trusted.sort(key=lambda each: -each.score * (1 + confidence[each.document.source_id]))
        return trusted[:MOST_FACTS]

    async def load_each(
        self, source_ids: Collection[SourceId], /
    ) -> Mapping[SourceId, knowledge.SourceText | KnowledgeError]:
        """Return the texts of the ids that are nuggets or facts, or the reasons why they cannot be used."""
        ids = [each for each in source_ids if is_distilled(each)]
        loaded = await self._load_current(ids)
        lost = {each: SourceError(f"{each} is not known any more, or is not public") for each in ids}
        return {**lost, **{each: text for each, (_, text) in loaded.items()}}

    async def _load_current(
        self, ids: Iterable[SourceId]
    ) -> dict[SourceId, tuple[knowledge.Nugget | knowledge.Fact, knowledge.SourceText]]:
        """Return the usable ones, as they are in the stores: the search may know an older state."""
        loaded: dict[SourceId, tuple[knowledge.Nugget | knowledge.Fact, knowledge.SourceText]] = {}
        for nugget in await self._nuggets.by_ids(list(map(NuggetId, select_item_ids("nugget", ids)))):
            standing = await self._read_current(nugget.conversation_id)
            if standing is not None and _still_says(standing, nugget.source_message_ids):
                source_id = SourceId(f"nugget:{nugget.id}")
                loaded[source_id] = (nugget, _render_nugget(source_id, nugget, standing))
        for fact in await self._facts.by_ids(list(map(FactId, select_item_ids("fact", ids)))):
            if fact.is_active and fact.visibility == "shared" and (text := await self._render_fact(fact)) is not None:
                loaded[text.source_id] = (fact, text)
        return loaded

    async def _render_fact(self, fact: knowledge.Fact) -> knowledge.SourceText | None:
        """Return the text of a fact; None if no conversation that states it is left."""
        link = next((each for each in await self._facts.read_chain(fact.id) if each.fact.id == fact.id), None)
        said_in = () if link is None else reversed([each for each in link.occurrences if not each.is_withdrawn])
        for occurrence in said_in:
            standing = await self._read_current(occurrence.conversation_id)
            # It is unknown which of its messages stated the fact, so all that were read must still exist.
            if standing is not None and _still_says(standing, standing.read.message_ids):
                known = f"confidence {fact.confidence:.2f}, said last on {fact.last_seen_at:%Y-%m-%d}"
                return knowledge.SourceText(
                    source_id=SourceId(f"fact:{fact.id}"),
                    text=f"{fact.content}\n({known})",
                    title=truncate_text(fact.summary or fact.content, _LONGEST_TITLE),
                    url=_make_link(standing, standing.read.message_ids),
                    said=_join_team_words(standing),
                )
        return None

    async def _read_current(self, conversation_id: ConversationId) -> _CurrentConversation | None:
        """Return the current conversation; None if it was removed."""
        read = await self._log.read_conversation(conversation_id)
        if read is None:
            return None
        if read.origin != "capture":
            return (
                None
                if any(map(self.decisions.is_withdrawn, read.message_ids))
                else _CurrentConversation(read, None, self.site)
            )
        segment = await run_sync(self._read_segment, conversation_id)
        return None if segment is None else _CurrentConversation(read, segment, self.site)

    def _read_segment(self, conversation_id: ConversationId) -> Segment | None:
        segment = read_current_segment(conversation_id, self.archive, self.decisions)
        if segment is None:
            return None
        written = zip(segment.author_ids, segment.message_ids, strict=False)
        return None if any(self.decisions.is_forgotten(author, message) for author, message in written) else segment


def _fits(found: SearchHit, query: str) -> bool:
    if found.likeness is not None and found.likeness >= _LIKE_ENOUGH:
        return True
    return word_overlap(query, f"{found.document.title}\n{found.document.text}") >= _WORDS_ENOUGH


def _still_says(standing: _CurrentConversation, message_ids: Collection[str]) -> bool:
    return standing.segment is None or set(message_ids) <= set(standing.segment.message_ids)


def _make_entry(nugget: knowledge.Nugget) -> knowledge.IndexEntry:
    words = f"{nugget.status}, {nugget.timestamp:%Y-%m-%d}. {nugget.topic}: {nugget.topic_summary}"
    return knowledge.IndexEntry(
        SourceId(f"nugget:{nugget.id}"), truncate_text(" ".join(words.split()), _LONGEST_SUMMARY)
    )


_SURE: Final[Mapping[knowledge.NuggetStatus, str]] = {
    "FACT": "the team said so",
    "SPECULATION": "not certain",
    "COMMUNITY_OPINION": "an opinion of members",
}


def _render_nugget(
    source_id: SourceId, nugget: knowledge.Nugget, standing: _CurrentConversation
) -> knowledge.SourceText:
    said = _join_team_words(standing)
    # On a line of its own, in words, because answers quote this text.
    sure = f"({_SURE[nugget.status]}, {nugget.timestamp:%Y-%m-%d})"
    account = f"{nugget.topic_summary}\n\n{nugget.detailed_analysis}\n{sure}"
    return knowledge.SourceText(
        source_id=source_id,
        text=f"{account}\n\nThe team's words:\n\n{said}" if said else account,
        title=truncate_text(nugget.topic, _LONGEST_TITLE),
        url=_make_link(standing, nugget.source_message_ids),
        said=said,
    )


def _join_team_words(standing: _CurrentConversation) -> str:
    turns = () if standing.segment is None else standing.segment.turns
    return "\n\n".join(turn.text for turn in turns if turn.speaker == "Team")


def _make_link(standing: _CurrentConversation, message_ids: Sequence[str]) -> str | None:
    """Return the link to the conversation; none if it was not on Discord."""
    if standing.segment is None and standing.read.origin == "note":
        return None
    read = standing.read
    return message_link(read.guild_id, read.channel_id, message_ids[-1] if message_ids else None, standing.site)
