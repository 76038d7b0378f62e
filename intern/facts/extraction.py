"""Extraction: one model call turns a conversation into nuggets and facts.

The extractor has no state of its own. It reads a conversation from the archive and the decisions each time, and the log
says which version was read before. So a repetition costs nothing, and a crash costs one call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from anyio import CancelScope, Lock, to_thread
from msgspec.structs import replace
from structlog.contextvars import bound_contextvars

from intern.core.clock import Clock
from intern.core.errors import ModelError, ModelUnavailableError
from intern.core.ids import ConversationId, FactId, MessageId, NuggetId, SourceId
from intern.core.knowledge import ExtractionResult, Fact, Nugget, RefusedFact, RepeatedFact, Visibility
from intern.core.log import get_logger
from intern.core.search_documents import SearchDocument, SearchKind
from intern.core.text.words import find_key_terms
from intern.facts.prompts import EXTRACT, CheckedExtraction, build_extraction_input
from intern.facts.reconciliation import decide_proposals, reapply_visibility, rules_hash
from intern.facts.segments import ExtractionOptions, Pseudonyms, Segment, add_known_names, read_current_segment
from intern.facts.visibility import FactOptions
from intern.models.prompt import Model
from intern.search.terms import split_search_terms
from intern.stores.archive import Archive
from intern.stores.search_file.search_index import SqliteSearchStore
from intern.stores.search_file.word_matches import match_any
from intern.stores.tables.extractions import ExtractionEntry, ExtractionLog
from intern.stores.tables.facts import FactFilter, FactStore
from intern.stores.tables.knowledge import KnowledgeStore
from intern.stores.tables.members import NameStore
from intern.stores.tables.nuggets import NuggetStore

_log = get_logger(__name__)

T = TypeVar("T")

_SHOWN_AT_ONCE = 500  # nuggets or facts; a first start may put all of them into the search index
_MOST_RETIRED = 10  # facts of one conversation
_JUDGED = "visibility"  # a name in the log; its position is the hash of the rules that were applied last
_QUERY_TERMS = 32  # of a conversation; they find the facts that it may repeat

AGENT = "community"
"""The owner of all facts: a data folder has one audience."""

PAUSES = (timedelta(minutes=10), timedelta(hours=1))
"""Waiting times after the first and the second failure. After the third, only a change of the conversation helps."""

ExtractionOutcome = Literal["extracted", "nothing", "unchanged", "too short", "withdrawn", "unknown", "failed"]
"""The result for a conversation. `nothing`: it was read, and teaches nothing. `unchanged`: it was read before.
`unknown`: no topic has it, and nothing was learned from it. `failed`: the model call failed."""

ReadSegment = Callable[[], Awaitable[Segment | None]]
"""Reads a conversation as it is now; None where it is gone."""

WaitForModel = Callable[[], Awaitable[None]]
"""Waits until the model may be called."""


async def return_at_once() -> None:
    """Do not wait."""


@dataclass(kw_only=True)
class KnowledgeExtractor:
    """Keeps nuggets and facts in line with the archive and the topics.

    Raises ModelUnavailableError while the model is away, and KnowledgeError if the disk fails. Nothing has changed
    then.
    """

    model: Model
    model_name: str
    """For the log."""
    archive: Archive
    decisions: KnowledgeStore
    log: ExtractionLog
    facts: FactStore
    nuggets: NuggetStore
    documents: SqliteSearchStore
    clock: Clock
    options: ExtractionOptions
    fact_options: FactOptions
    names: NameStore
    pace: WaitForModel = return_at_once
    # Held from the last check of a conversation until its results are stored, so that no forgetting comes between.
    _keeping: Lock = field(default_factory=Lock, init=False)

    async def extract(self, conversation_id: ConversationId, *, learns: bool = True) -> ExtractionOutcome:
        """Learn from the current version of a captured conversation, and withdraw results of older versions.

        With `learns` false, only withdraw.
        """

        async def read_current() -> Segment | None:
            return await to_thread.run_sync(read_current_segment, conversation_id, self.archive, self.decisions)

        segment = await read_current()
        if segment is None or len(segment.turns) < self.options.min_turns:
            came = await self.withdraw(conversation_id, read_current)
            return "too short" if segment is not None and came == "unknown" else came
        if not learns:
            entry = await self.log.read_entry(conversation_id)
            outdated = entry is not None and entry.content_hash != segment.content_hash
            return await self.withdraw(conversation_id) if outdated else "unknown"
        return await self.extract_segment(segment, read_current)

    async def extract_segment(self, segment: Segment, standing: ReadSegment | None = None) -> ExtractionOutcome:
        """Learn from a conversation, unless that was done before. `standing` reads it again after the model call.

        A note needs no `standing`. Only another import retries a note that failed.
        """
        entry = await self.log.read_entry(segment.id)
        if entry is not None and entry.content_hash == segment.content_hash:
            if entry.error is None:
                return "unchanged"
            if segment.origin != "note" and not self._is_due(entry):
                return "failed"
        await self.pace()
        segment = await add_known_names(segment, self.names)
        pseudonyms, known = Pseudonyms(segment), await self._find_known_facts(segment)
        given = await to_thread.run_sync(build_extraction_input, segment, pseudonyms, known)
        try:
            with bound_contextvars(conversation_id=segment.id):
                reply = await self.model.ask(EXTRACT, given)
        except ModelUnavailableError:
            raise
        except ModelError as error:
            return await self.record_failure(segment, str(error), entry, parked=segment.origin == "note")
        reading = await to_thread.run_sync(CheckedExtraction, reply, segment, pseudonyms, known)
        conversation = segment.make_distilled_record(AGENT)
        async with self._keeping:
            now = await standing() if standing else segment
            if now is None or now.content_hash != segment.content_hash:
                # Edited, withdrawn or forgotten meanwhile. That change brings the conversation here again.
                return "unknown"
            ids = [each for one in reading.proposals for each in (one.duplicate_of, one.supersedes) if each]
            held = await self.facts.read_known_facts(conversation, (each.content for each in reading.proposals), ids)
            outcome = ExtractionResult(
                conversation=conversation,
                nuggets=reading.nuggets,
                facts=decide_proposals(reading.proposals, conversation, held, self.fact_options),
                model_used=self.model_name,
                extracted_at=self.clock.now(),
            )
            repeated = [each.occurrence.fact_id for each in outcome.facts if isinstance(each, RepeatedFact)]
            gone = [each.gone for each in outcome.facts if isinstance(each, RefusedFact) and each.gone is not None]
            applied = await self._apply_change(segment.id, lambda: self.log.apply(outcome), (*repeated, *gone))
        learned = applied.nuggets_extracted + applied.facts_extracted + applied.facts_updated
        _log.info(
            "extraction_finished",
            conversation_id=segment.id,
            nuggets=applied.nuggets_extracted,
            facts=applied.facts_extracted,
            updated=applied.facts_updated,
            deduplicated=applied.facts_deduplicated,
            refused=[*applied.refused, *["unsourced"] * reading.refused, *["not_public"] * reading.hidden],
            unknown_ids=reading.unknown_ids,
        )
        return "extracted" if learned + applied.facts_deduplicated else "nothing"

    async def record_failure(
        self, segment: Segment, why: str, entry: ExtractionEntry | None, *, parked: bool = False
    ) -> ExtractionOutcome:
        """Log that a conversation could not be read. `parked`: do not retry before it changes."""
        same = entry is not None and entry.error is not None and entry.content_hash == segment.content_hash
        tries = 1 + (entry.attempts if entry is not None and same else 0)
        next_at = None if parked or tries > len(PAUSES) else self.clock.now() + PAUSES[tries - 1]
        conversation = segment.make_distilled_record(AGENT)
        await self.log.log_failure(conversation, model_used=self.model_name, error=why, next_at=next_at)
        again_at = None if next_at is None else next_at.isoformat(timespec="seconds")
        _log.warning("extraction_failed", conversation_id=segment.id, reason=why, tries=tries, again_at=again_at)
        return "failed"

    async def park(self, conversation_id: ConversationId, why: str) -> None:
        """Do not read a conversation again until it changes."""
        segment = await to_thread.run_sync(read_current_segment, conversation_id, self.archive, self.decisions)
        if segment is not None:
            await self.record_failure(segment, why, await self.log.read_entry(conversation_id), parked=True)

    async def withdraw(self, conversation_id: ConversationId, standing: ReadSegment | None = None) -> ExtractionOutcome:
        """Delete what was learned from a conversation, also from the search, unless enough of it is `standing`."""
        async with self._keeping:
            if await self.log.read_conversation(conversation_id) is None:
                return "unknown"
            now = await standing() if standing else None
            if now is not None and len(now.turns) >= self.options.min_turns:
                return "unknown"
            await self._apply_change(conversation_id, lambda: self.log.withdraw((conversation_id,)))
        _log.info("extraction_withdrawn", conversation_id=conversation_id)
        return "withdrawn"

    async def forget(self, message_ids: Collection[MessageId]) -> None:
        """Delete these messages and everything made from them. Safe to repeat; raises KnowledgeError.

        The rest of their conversations is extracted again, where the archive still has it.
        """
        async with self._keeping:
            with CancelScope(shield=True):
                touched = await self.log.find_distilled(message_ids)
                facts = _make_source_ids("fact", touched.facts)
                # The search index first: a crash here may leave too little in it until the next start, never too much.
                if leading := _make_source_ids("nugget", touched.nuggets) | facts:
                    await self.documents.delete_sources(sorted(leading))
                await self.log.forget(message_ids)
                await self._update_documents(facts)

    async def update_search(self, fact_ids: Collection[FactId]) -> None:
        """Update the search documents of these facts."""
        async with self._keeping:
            with CancelScope(shield=True):
                await self._update_documents(_make_source_ids("fact", fact_ids))

    async def repair_search(self) -> int:
        """Repair the search after a crash, and return how many nuggets and facts differed.

        If the visibility settings changed, apply them to all facts first.
        """
        async with self._keeping:
            await self._apply_visibility_rules()
            return await self._repair_documents()

    async def next_retry(self) -> tuple[ConversationId | None, float | None]:
        """Return a conversation whose retry is due; else the seconds until the next one."""
        for entry in await self.log.list_failed():
            if self._is_due(entry):
                return entry.conversation_id, None
            if entry.next_at is not None:
                return None, (entry.next_at - self.clock.now()).total_seconds()
        return None, None

    def _is_due(self, entry: ExtractionEntry) -> bool:
        return entry.error is not None and entry.next_at is not None and entry.next_at <= self.clock.now()

    async def _find_known_facts(self, segment: Segment) -> Sequence[Fact]:
        """Find the facts that the conversation may repeat or change: those that share its words. No secret ones."""
        # Retired facts are shown, too, so that the model does not repeat them.
        retired = tuple(await self.facts.find_retired(segment.id))[:_MOST_RETIRED]
        if not self.options.existing_facts:
            return retired
        asked = split_search_terms(" ".join(await to_thread.run_sync(find_key_terms, segment.text, _QUERY_TERMS)))
        wanted, most = FactFilter(agent_id=AGENT), self.options.existing_facts
        # Scripts without spaces have no words to match, so look for parts of the text.
        unspaced = [each for each in (*asked.grams, *asked.short) if not each.isascii()]
        found = await self.facts.search_facts(match_any(asked.words), wanted, most, holding=unspaced[:16])
        return (*retired, *found)

    async def _apply_change(
        self, conversation_id: ConversationId, change: Callable[[], Awaitable[T]], facts: Iterable[FactId] = ()
    ) -> T:
        """Change the results of a conversation and those `facts`, together with their search documents."""
        done: list[T] = []
        # It takes little time, and a half change would leave the search wrong until the next start.
        with CancelScope(shield=True):
            touched = _find_affected_facts(await self.facts.by_ids(set(facts)))
            touched |= await self._find_learned_sources(conversation_id)
            done.append(await change())
            await self._update_documents(touched | await self._find_learned_sources(conversation_id))
        return done[0]

    async def _find_learned_sources(self, conversation_id: ConversationId) -> set[SourceId]:
        nuggets = await self.nuggets.read_for_conversation(conversation_id)
        facts = _find_affected_facts(await self.facts.read_for_conversation(conversation_id))
        return facts | _make_source_ids("nugget", (each.id for each in nuggets))

    async def _update_documents(self, source_ids: Collection[SourceId]) -> None:
        """Update the search documents of these; drop those of deleted items and secret facts."""
        nuggets = await self.nuggets.by_ids(list(map(NuggetId, select_item_ids("nugget", source_ids))))
        facts = await self.facts.by_ids(list(map(FactId, select_item_ids("fact", source_ids))))
        documents = [document for nugget in nuggets for document in build_nugget_documents(nugget)]
        documents += filter(None, map(build_fact_document, facts))
        await self.documents.replace_documents(documents)
        if gone := set(source_ids) - {each.source_id for each in documents}:
            await self.documents.delete_sources(sorted(gone))

    async def _repair_documents(self) -> int:
        nuggets, facts = await self.nuggets.stamps(), await self.facts.read_states()
        known = {**await self.documents.stamps("nugget"), **await self.documents.stamps("fact")}

        def find_differences() -> tuple[list[SourceId], list[SourceId]]:
            stamps = {_make_source_id("nugget", each): stamp for each, stamp in nuggets.items()}
            stamps |= {_make_source_id("fact", each): fact_stamp(*state) for each, state in facts.items()}
            stale = [each for each, stamp in stamps.items() if known.get(each) != stamp]
            return sorted(known.keys() - stamps.keys()), stale

        gone, stale = await to_thread.run_sync(find_differences)  # there may be tens of thousands of them
        await self.documents.delete_sources(gone)
        for n in range(0, len(stale), _SHOWN_AT_ONCE):
            await self._update_documents(stale[n : n + _SHOWN_AT_ONCE])
        return len(gone) + len(stale)

    async def _apply_visibility_rules(self) -> None:
        """Apply the visibility settings to all facts, unless they were applied before."""
        rules = rules_hash(self.fact_options)
        if await self.log.read_position(_JUDGED) != rules:
            judged = await self.facts.apply_rules(lambda fact: reapply_visibility(fact, self.fact_options))
            await self.log.save_position(_JUDGED, rules)
            if judged.facts:
                _log.info("facts_judged_again", changed=len(judged.facts))


def _make_source_id(kind: SearchKind, item_id: str) -> SourceId:
    return SourceId(f"{kind}:{item_id}")


def _make_source_ids(kind: SearchKind, ids: Iterable[str]) -> set[SourceId]:
    return {_make_source_id(kind, each) for each in ids}


def select_item_ids(kind: SearchKind, source_ids: Iterable[SourceId]) -> list[str]:
    """Return the ids of the nuggets, or of the facts, among these."""
    return [each.removeprefix(f"{kind}:") for each in source_ids if each.startswith(f"{kind}:")]


def _find_affected_facts(facts: Iterable[Fact]) -> set[SourceId]:
    """Return the facts and those that they replaced, which come back when these go."""
    return _make_source_ids("fact", (each for fact in facts for each in (fact.id, fact.supersedes) if each is not None))


def build_nugget_documents(nugget: Nugget) -> tuple[SearchDocument, ...]:
    """Return the search documents of a nugget: one for its analysis, one for its summary and keywords."""
    source_id = SourceId(f"nugget:{nugget.id}")
    analysis = SearchDocument(
        id=source_id,
        source_id=source_id,
        kind="nugget",
        status=nugget.status,
        guild_id=nugget.guild_id or "",
        title=nugget.topic,
        text=nugget.detailed_analysis,
        stamp=nugget.stamp,
        at=nugget.timestamp,
        meta={
            "conversation_id": nugget.conversation_id,
            "keywords": nugget.keywords,
            "topic_summary": nugget.topic_summary,
            "source_message_ids": nugget.source_message_ids,
            "user_ids_involved": nugget.user_ids_involved,
        },
    )
    summary = "\n".join((nugget.topic_summary, ", ".join(nugget.keywords)))
    return analysis, replace(analysis, id=f"{source_id}#summary", part="description", text=summary)


def fact_stamp(is_active: bool, visibility: Visibility, last_seen_at: datetime) -> str:  # noqa: FBT001 a fact's own
    """Return a stamp that changes whenever the fact's search document does."""
    return f"{is_active:d} {visibility} {last_seen_at.isoformat()}"


def build_fact_document(fact: Fact) -> SearchDocument | None:
    """Return the search document of a fact; None for a secret fact, and once no conversation says it."""
    if fact.visibility == "secret" or not fact.occurrence_count:
        return None
    source_id = SourceId(f"fact:{fact.id}")
    return SearchDocument(
        id=source_id,
        source_id=source_id,
        kind="fact",
        type=fact.category,
        status="active" if fact.is_active else "retired",
        visibility=fact.visibility,
        title=fact.summary,
        text=fact.content,
        stamp=fact_stamp(fact.is_active, fact.visibility, fact.last_seen_at),
        at=fact.last_seen_at,
    )
