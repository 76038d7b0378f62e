"""The captures of a data folder, for people to read: all, those that wait for the team, and those that are parked.

No model is asked: the topic of a waiting capture is a guess by words, unless its conversation is in a topic already.
"""

from __future__ import annotations

from collections.abc import Sequence, Set as AbstractSet
from datetime import datetime
from itertools import chain

from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace

from intern.core.captures import CapturedPair, TopicBlock, Turn, extract_question
from intern.core.decisions import Decision, MessagesForgotten, MessagesWithdrawn, PairFiled, PairParked
from intern.core.errors import ConfigError
from intern.core.ids import ChannelId, ConversationId, MessageId, QAId, TopicName
from intern.core.search_documents import SearchFilter
from intern.core.text.similarity import text_similarity
from intern.core.text.words import stem_set
from intern.facts.segments import remove_withdrawn
from intern.learning.prompts import strip_withdrawn, team_text
from intern.learning.review import check_awaits_review, get_pair
from intern.search.hybrid_search import HybridSearch
from intern.service.databases import open_learned
from intern.service.paging import PagedList, select_page
from intern.service.text_diff import DiffPiece, diff_texts
from intern.service.topics import format_conversation
from intern.settings.settings import Settings
from intern.stores.archive import Archive
from intern.stores.qa_ids import qa_id_time
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.tables.attempts import AttemptStore, Retry, find_retry
from intern.stores.tables.knowledge import KnowledgeStore

_CARDS = 12  # on a page: each may hold a whole conversation
_LATEST = 40  # blocks of a topic that are compared with a capture
_CLOSE = 0.3  # the share of words that two answers, or two questions, have in common
_MOST_CLOSE = 3
_LIKELY = 0.6  # the least share of the question's words that the name and the questions of a likely topic contain…
_LIKELY_WORDS = 2  # …and their least number
_PROPOSED = 5  # topics that a search proposes for a question


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
    turns: tuple[Turn, ...]
    """All turns as they would be filed; none if its question or its answer was deleted since."""
    in_newer: QAId | None
    """A newer version that waits, too: approving that one decides this one, too."""


class PairDetails(Struct, frozen=True, kw_only=True):
    """An archived pair, complete, with all decisions about it."""

    pair: CapturedPair
    decisions: tuple[Decision, ...]


class CaptureForReview(Struct, frozen=True, kw_only=True):
    """A capture that the team has to approve or reject."""

    qa_id: QAId
    answered_at: datetime
    turns: tuple[Turn, ...]
    """Without deleted messages; empty where its question or its answer was deleted."""
    link: str
    """To its last message; empty where that is unknown."""
    topic: TopicName | None
    """The topic where it is likely to be filed; None if no topic is similar."""
    is_settled: bool
    """Whether its conversation is in that topic already, so it will be filed there."""
    older: tuple[QAId, ...]
    """Earlier versions of the conversation that wait, too."""
    replaces: tuple[DiffPiece, ...]
    """The difference to the version of the conversation that is in the topic now; empty where there is none."""
    close: tuple[TopicBlock, ...]
    """Blocks of the topic that say something similar. The model may remove older ones of these."""


class EditableCapture(Struct, frozen=True, kw_only=True):
    """A capture to edit, message by message."""

    capture: CaptureForReview
    messages: tuple[tuple[MessageId, Turn], ...]
    """Empty if its archive does not map turns to messages: then it can only be approved as it is."""
    topics: tuple[TopicName, ...]
    """The most likely ones."""


class ParkedCapture(Struct, frozen=True, kw_only=True):
    """A pair that could not be filed."""

    parked: PairParked
    retry: Retry
    question: str
    link: str


class CapturedPairs:
    """Reads captures. Raises KnowledgeError if a store cannot be read. Methods that are not async block."""

    def __init__(
        self, settings: Settings, knowledge: KnowledgeStore, archive: Archive, search: SqliteSearchStore
    ) -> None:
        self._settings, self._knowledge, self._archive = settings, knowledge, archive
        self._finder = HybridSearch(search)
        self._conversations: dict[QAId, ConversationId] = {}
        """Captures that were read already, for the archive holds these on disk."""

    def list_all(self, *, newest: int | None = None) -> tuple[PairLine, ...]:
        """Return archived pairs, oldest first; at most the `newest` ones."""
        pairs = self._archive.pairs_after(None) if newest is None else self._archive.newest_pairs(newest)
        lines = [self._build_line(pair) for pair in pairs]
        topics = {
            qa_id_time(qa_id): topic for topic, qa_id in self._knowledge.locate_pairs(line.qa_id for line in lines)
        }
        return tuple(replace(line, topic=topics.get(qa_id_time(line.qa_id))) for line in lines)

    def read(self, qa_id: str) -> PairDetails:
        """Return one archived pair. Raises ConfigError if the id is unknown."""
        pair = get_pair(QAId(qa_id), self._archive)
        decisions = tuple(each for each in self._knowledge.read_decisions() if _concerns(each, pair))
        return PairDetails(pair=pair, decisions=decisions)

    def list_waiting(self, now: datetime) -> tuple[PairForReview, ...]:
        """Return the pairs that wait for the team at the time `now`, oldest first."""
        waiting = (self._archive.get(each.qa_id) for each in self._knowledge.list_awaiting_review())
        pairs = [pair for pair in waiting if pair is not None]
        newer = {qa_id_time(pair.replaces): pair.qa_id for pair in pairs if pair.replaces is not None}
        return tuple(self._build_pair_for_review(pair, newer.get(pair.timestamp), now) for pair in pairs)

    def _build_pair_for_review(self, pair: CapturedPair, newer: QAId | None, now: datetime) -> PairForReview:
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

    def _build_line(self, pair: CapturedPair) -> PairLine:
        decision = self._knowledge.last_decision(pair.qa_id)
        return PairLine(
            qa_id=pair.qa_id,
            answered_at=pair.answered_at,
            conversation_id=pair.conversation_id,
            decision="waiting" if decision is None else str(decision.__struct_config__.tag),
            topic=None,
            question=" ".join(pair.question.split()),
        )

    async def list_review_page(self, offset: int = 0) -> PagedList[CaptureForReview]:
        """List conversations that wait, by their newest version, oldest first; those of a page are sorted by topic."""
        waiting = await run_sync(self._newest_versions)
        shown = [await self._load_waiting(*each) for each in waiting[offset : offset + _CARDS]]
        shown.sort(key=lambda each: (each.topic is None, each.topic or ""))
        return PagedList(rows=tuple(shown), total=len(waiting), offset=offset, size=_CARDS)

    async def suggest_topics(self) -> dict[QAId, TopicName | None]:
        """Return the topic of each conversation that waits, by its newest version."""
        return {
            newest: (await self._load_waiting(newest, older)).topic
            for newest, older in await run_sync(self._newest_versions)
        }

    async def load_capture(self, qa_id: QAId) -> EditableCapture:
        """Return one capture that waits, to edit it. Raises ConfigError if the id is unknown."""
        pair = await run_sync(get_pair, qa_id, self._archive)
        check_awaits_review(pair.qa_id, self._knowledge)
        older = next((older for each, older in await run_sync(self._newest_versions) if each == pair.qa_id), None)
        if older is None:
            raise ConfigError(f"{qa_id} has a newer version, which waits, too; review that one")
        left = remove_withdrawn(pair, self._knowledge.is_withdrawn)
        fits = len(left.turns) == len(left.message_ids)
        seen = await self._load_waiting(pair.qa_id, older)
        likely = (seen.topic,) if seen.is_settled and seen.topic else await self._find_likely_topics(pair)
        return EditableCapture(
            capture=seen, messages=tuple(zip(left.message_ids, left.turns, strict=True)) if fits else (), topics=likely
        )

    def add_older_versions(self, qa_ids: Sequence[QAId]) -> tuple[QAId, ...]:
        """Return captures and the earlier versions of them that wait, too. Blocks."""
        older = dict(self._newest_versions())
        return tuple(chain.from_iterable((*older.get(each, ()), each) for each in qa_ids))

    async def list_parked(self, offset: int = 0) -> PagedList[ParkedCapture]:
        """List pairs that could not be filed, the newest first."""
        retries = await AttemptStore(self._knowledge.db).read_retries()
        parked = sorted(self._knowledge.list_parked(), key=lambda each: each.at, reverse=True)
        page = select_page([(each, find_retry(each, retries)) for each in parked], offset)
        return await run_sync(page.map, self._build_parked_capture)

    async def _load_waiting(self, qa_id: QAId, older: tuple[QAId, ...]) -> CaptureForReview:
        pair = await run_sync(get_pair, qa_id, self._archive)
        known = await run_sync(self._knowledge.find_conversation_pairs, pair.conversation_id)
        likely = () if known else await self._find_likely_topics(pair)
        return await run_sync(self._build_waiting_capture, pair, older, known[-1] if known else None, likely)

    async def _find_likely_topics(self, pair: CapturedPair) -> tuple[TopicName, ...]:
        """Return the topics whose questions share most words with this one, the best first."""
        wanted = SearchFilter(kinds=("source",), type="topic")
        found = await self._finder.find_without_terms(pair.question, wanted, _PROPOSED)
        names = [TopicName(each.document.path.removesuffix(".txt")) for each in found]
        return await run_sync(self._filter_fitting_topics, stem_set(pair.question), names)

    # From here on: worker threads.

    def _newest_versions(self) -> list[tuple[QAId, tuple[QAId, ...]]]:
        """Return the newest waiting version of each conversation, oldest first, and the ids of the older ones."""
        versions: dict[ConversationId, tuple[QAId, ...]] = {}
        for each in self._knowledge.list_awaiting_review():
            if (conversation := self._find_conversation(each.qa_id)) is not None:
                versions[conversation] = (*versions.pop(conversation, ()), each.qa_id)
        return [(newest, tuple(older)) for *older, newest in versions.values()]

    def _find_conversation(self, qa_id: QAId) -> ConversationId | None:
        if qa_id not in self._conversations and (pair := self._archive.get(qa_id)) is not None:
            self._conversations[qa_id] = pair.conversation_id
        return self._conversations.get(qa_id)

    def _filter_fitting_topics(self, words: AbstractSet[str], names: Sequence[TopicName]) -> tuple[TopicName, ...]:
        """Keep the matching topics: the rules choose a topic in much the same way."""

        def count_shared_words(name: TopicName) -> int:
            questions = (extract_question(block.turns) for block in self._knowledge.read_topic(name)[-_LATEST:])
            return len(words & stem_set("\n".join((name, *questions))))

        return tuple(each for each in names if count_shared_words(each) >= max(_LIKELY_WORDS, _LIKELY * len(words)))

    def _build_waiting_capture(
        self,
        pair: CapturedPair,
        older: tuple[QAId, ...],
        known: tuple[TopicName, QAId] | None,
        likely: Sequence[TopicName],
    ) -> CaptureForReview:
        left = strip_withdrawn(pair, self._knowledge.is_withdrawn)
        topic = known[0] if known else next(iter(likely), None)
        blocks = self._knowledge.read_topic(topic)[-_LATEST:] if topic else ()
        before = next((format_conversation(each.turns) for each in blocks if known and each.qa_id == known[1]), "")
        others = [each for each in blocks if each.conversation_id != pair.conversation_id]
        close = [each for each in others if left is not None and _is_close(each, left)]
        return CaptureForReview(
            qa_id=pair.qa_id,
            answered_at=pair.answered_at,
            turns=() if left is None else left.turns,
            link=self._link(pair),
            topic=topic,
            is_settled=known is not None,
            older=older,
            replaces=diff_texts(before, format_conversation(left.turns)) if before and left else (),
            close=tuple(close[-_MOST_CLOSE:]),
        )

    def _build_parked_capture(self, row: tuple[PairParked, Retry]) -> ParkedCapture:
        parked, retry = row
        pair = self._archive.get(parked.qa_id)
        left = pair and strip_withdrawn(pair, self._knowledge.is_withdrawn)
        return ParkedCapture(
            parked=parked, retry=retry, question=left.question if left else "", link=self._link(pair) if pair else ""
        )

    def _link(self, pair: CapturedPair) -> str:
        from intern.service.stores import build_message_link

        last = pair.message_ids[-1] if pair.message_ids else None
        return build_message_link(self._settings, pair.guild_id, pair.channel_id, last)


def open_captures(settings: Settings) -> CapturedPairs:
    """Open the captures for reading only, whether or not a bot runs. Blocks; raises KnowledgeError."""
    knowledge, archive = open_learned(settings)
    return CapturedPairs(settings, knowledge, archive, SqliteSearchStore(knowledge.db, settings.paths.search))


def _is_close(block: TopicBlock, pair: CapturedPair) -> bool:
    shared = text_similarity(team_text(block.turns), team_text(pair.turns))
    return max(shared, text_similarity(extract_question(block.turns), pair.question)) >= _CLOSE


def _concerns(decision: Decision, pair: CapturedPair) -> bool:
    if isinstance(decision, MessagesWithdrawn | MessagesForgotten):
        return not set(decision.message_ids).isdisjoint(pair.message_ids)
    ids: Sequence[QAId] = (decision.qa_id, *(decision.removed if isinstance(decision, PairFiled) else ()))
    return any(qa_id_time(qa_id) == pair.timestamp for qa_id in ids)
