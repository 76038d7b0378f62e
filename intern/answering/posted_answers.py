"""Compare the citations of posted answers with their sources, and edit outdated answers to a note.

Texts are compared in normal form; white space, typography and markup are no change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from typing import NamedTuple

from anyio.to_thread import run_sync
from msgspec import Struct, structs

from intern.answering.quotes import digest_text, normalise_text
from intern.core.captures import TopicBlock
from intern.core.clock import Clock
from intern.core.decisions import PairFiled, PairReplaced
from intern.core.errors import SourceError
from intern.core.ids import MessageId, QAId, SourceId, TopicName
from intern.core.knowledge import SourceText
from intern.core.log import get_logger
from intern.core.text.masking import mask_secrets
from intern.core.text.passages import select_best_passages
from intern.learning.prompts import team_text
from intern.sources.library import Library
from intern.stores.qa_ids import qa_id_time
from intern.stores.tables.answers import AnswerStore
from intern.stores.tables.citations import CitationState, CitationStore, OutdatedAnswer, PostedCitation
from intern.stores.tables.knowledge import KnowledgeStore
from intern.stores.tables.store import save_record

SETTLED = timedelta(minutes=5)
"""The time for which a citation must be outdated before its answer is edited: a document may be half written now."""

_AT_ONCE = 50  # sources that are read together
_MOVED = 3  # sources that may contain the text of one that is gone
_LONGEST_CHAIN = 20  # newer versions of a conversation
_MOST_SHOWN = 1_000  # characters

_log = get_logger(__name__)


class OutdatedCitation(Struct, frozen=True, kw_only=True):
    """A citation that its source no longer supports, and the source's current text."""

    cited: PostedCitation
    now: str
    """Empty if the source was withdrawn."""


class OutdatedAnswerReport(Struct, frozen=True, kw_only=True):
    """A posted answer with outdated citations."""

    answer: OutdatedAnswer
    changes: tuple[OutdatedCitation, ...]


class _CurrentText(NamedTuple):
    """The current text of a source."""

    text: str | None
    """None if the source is gone."""
    is_newer: bool = False
    """Whether it is a newer version of the conversation."""
    quotable: str | None = None
    """A conversation's whole text with the speakers; only changes of the team's part count as a change."""


@dataclass
class PostedAnswers:
    """Compares posted answers with their sources. All methods raise KnowledgeError."""

    store: CitationStore
    library: Library
    knowledge: KnowledgeStore
    emails: bool = False
    """Whether addresses are masked in quotes."""
    _seen: dict[SourceId, tuple[str, bool]] = field(default_factory=dict[SourceId, tuple[str, bool]], init=False)

    async def check(self) -> None:
        """Compare every citation whose source was never compared, or has changed since."""
        watched = await self.store.list_sources()
        self._seen = {each: seen for each, _ in watched if (seen := self._seen.get(each))}
        for start in range(0, len(watched), _AT_ONCE):
            await self._compare(watched[start : start + _AT_ONCE])

    async def list_outdated(self, limit: int) -> tuple[OutdatedAnswerReport, ...]:
        """Return the outdated answers, newest first, with the current texts of their sources."""
        answers = await self.store.list_outdated(limit)
        texts = await self._read_texts({each.source_id for answer in answers for each in answer.citations})

        def list_changes(answer: OutdatedAnswer) -> tuple[OutdatedCitation, ...]:
            return tuple(
                OutdatedCitation(cited=each, now=_excerpt_current(texts.get(each.source_id), each))
                for each in answer.citations
            )

        return tuple(OutdatedAnswerReport(answer=answer, changes=list_changes(answer)) for answer in answers)

    async def _compare(self, watched: Sequence[tuple[SourceId, bool]]) -> None:
        texts = await self._read_texts(source_id for source_id, _ in watched)
        for source_id, is_new in watched:
            text = texts.get(source_id)
            if text is None:
                continue  # it cannot be read now; the next check will try again
            read_as = "" if text.text is None else await run_sync(normalise_text, text.text)
            seen = ("" if text.text is None else digest_text(read_as), text.is_newer)
            if is_new or self._seen.get(source_id) != seen:
                cited = await self.store.find_citations(source_id)
                judge = partial(self._judge, text=text, read_as=read_as, found=seen[0])
                judged = await run_sync(list[PostedCitation], map(judge, cited))
                pairs = zip(cited, judged, strict=True)
                await self.store.save_comparisons([await self._resolve_result(one, result) for one, result in pairs])
                self._seen[source_id] = seen

    async def _resolve_result(self, cited: PostedCitation, judged: PostedCitation) -> PostedCitation:
        if judged.state == "gone" and (moved := await self._find_moved(cited)) is not None:
            judged = structs.replace(judged, source_id=moved, state="")
        if judged.state and not cited.state:
            _log.info("answer_outdated", message_id=cited.question_id, source_id=judged.source_id, state=judged.state)
        return judged

    async def _find_moved(self, cited: PostedCitation) -> SourceId | None:
        """Find the source that contains the quote of a document that is gone: it may have been renamed."""
        if not cited.quote or not cited.source_id.startswith("kb:"):
            return None
        hits = await self.library.find_hits(cited.quote, _MOVED) or ()
        found = [hit.source_id for hit in hits if hit.source_id.startswith("kb:")]
        for source_id, text in (await self._read_texts(found)).items():
            if text.text is not None and normalise_text(cited.quote) in await run_sync(normalise_text, text.text):
                return source_id
        return None

    async def _read_texts(self, source_ids: Iterable[SourceId]) -> dict[SourceId, _CurrentText]:
        """Read the current texts of sources; without those that cannot be read just now."""
        wanted = list(dict.fromkeys(source_ids))
        blocks = {each: block for each in wanted if (block := _parse_block_id(each))}
        texts: dict[SourceId, _CurrentText] = await run_sync(self._read_blocks, blocks) if blocks else {}
        others = [each for each in wanted if each not in blocks]
        listed = {entry.source_id for entry in await self.library.entries()} if others else set[SourceId]()
        for source_id, read in zip(others, await self.library.load_each(others), strict=True):
            if isinstance(read, SourceText):
                texts[source_id] = _CurrentText(f"{read.text}\n{read.said or ''}")
                continue
            # If no document is listed at all, their folder is probably unavailable.
            is_gone = source_id not in listed and (listed or not source_id.startswith("kb:"))
            if isinstance(read, SourceError) and is_gone:
                texts[source_id] = _CurrentText(None)
            else:
                _log.warning("cited_source_unreadable", source_id=source_id, error=str(read))
        return texts

    # Worker threads.

    def _judge(self, cited: PostedCitation, text: _CurrentText, read_as: str, found: str) -> PostedCitation:
        state = self._judge_state(cited, text, read_as, found)
        block = None if state else self._find_quoted_block(cited)
        return structs.replace(
            cited,
            source_id=block or cited.source_id,
            # From now on, it is compared with the block.
            digest="" if block else cited.digest or found or "-",
            state=state,
        )

    def _judge_state(self, cited: PostedCitation, text: _CurrentText, read_as: str, found: str) -> CitationState:
        if text.text is None:
            return "gone"
        within = read_as if text.quotable is None else normalise_text(text.quotable)
        holds = (
            not cited.quote or normalise_text(cited.quote) in within or self._has_masked_quote(text.text, cited.quote)
        )
        # A document may change outside the quote.
        if not _parse_block_id(cited.source_id) or (not text.is_newer and cited.digest in {"", found}):
            return "" if holds else "changed"
        return "extended" if cited.quote and holds else "changed"

    def _has_masked_quote(self, text: str, quote: str) -> bool:
        # The stored quote has a document's secrets masked.
        return "[masked " in quote and normalise_text(quote) in normalise_text(
            mask_secrets(text, emails=self.emails).text
        )

    def _read_blocks(self, wanted: Mapping[SourceId, QAId]) -> dict[SourceId, _CurrentText]:
        newer = cache(partial(_map_replacements, self.knowledge))  # reads all decisions, and is seldom needed
        texts: dict[SourceId, _CurrentText] = {}
        for source_id, qa_id in wanted.items():
            same = self._find_block(qa_id)
            block = same or self._find_newer_block(qa_id, newer())
            texts[source_id] = (
                _CurrentText(team_text(block.turns), same is None, _format_turns(block))
                if block
                else _CurrentText(None)
            )
        return texts

    def _find_newer_block(self, qa_id: QAId, newer: Mapping[QAId, QAId]) -> TopicBlock | None:
        """Return the block that replaced another; None if there is none."""
        for _ in range(_LONGEST_CHAIN):
            if qa_id not in newer:
                return None
            qa_id = newer[qa_id]
            if (block := self._find_block(qa_id)) is not None:
                return block
        return None

    def _find_quoted_block(self, cited: PostedCitation) -> SourceId | None:
        """Return the block that holds the quote, for a topic that is cited as a whole: it may move to another topic."""
        kind, _, name = cited.source_id.partition(":")
        if kind != "team" or "#" in name or not cited.quote:
            return None
        part = normalise_text(cited.quote)
        for block in self.knowledge.read_topic(TopicName(name.removesuffix(".txt"))):
            if part in normalise_text(_format_turns(block)):
                return SourceId(f"{cited.source_id}#{block.qa_id}")
        return None

    def _find_block(self, qa_id: QAId) -> TopicBlock | None:
        """Find a block in any topic."""
        topic = self.knowledge.find_topic(qa_id)
        blocks = () if topic is None else self.knowledge.read_topic(topic)
        return next((each for each in blocks if qa_id_time(each.qa_id) == qa_id_time(qa_id)), None)


@dataclass
class AnswerRetractor:
    """Edits answers that their sources no longer support. Raises the ChatError and KnowledgeError families."""

    store: CitationStore
    edit: Callable[[MessageId], Awaitable[bool]]
    """Edits an answer to a note; false if that is impossible."""
    records: AnswerStore
    clock: Clock

    async def check_and_retract(self, check: Callable[[], Awaitable[None]]) -> None:
        """Check, then retract. If the check fails, retract nothing: the source of an outdated answer may be back."""
        await check()
        await self.retract()

    async def retract(self) -> None:
        """Edit each answer that has been outdated long enough to the note, once."""
        for question_id in await self.store.list_to_retract(self.clock.now() - SETTLED):
            # From here on it is completed, even if the source comes back.
            await self.store.save_retraction(question_id, "open")
            edited = await self.edit(question_id)
            await self.store.save_retraction(question_id, "retracted" if edited else "dropped")
            if edited:
                end = partial(
                    self.records.save_outcome, question_id, outcome="answer retracted", reason="source_changed"
                )
                await save_record(end, message_id=question_id)
            _log.info("answer_retracted", message_id=question_id, edited=edited)


def _parse_block_id(source_id: SourceId) -> QAId | None:
    """Return the block that a citation of a team answer names."""
    named = source_id.partition("#")[2] if source_id.startswith("team:") else ""
    try:
        qa_id_time(QAId(named))
    except ValueError:
        return None
    return QAId(named)


def _format_turns(block: TopicBlock) -> str:
    return "\n".join(f"{turn.speaker}: {turn.text}" for turn in block.turns)


def _map_replacements(knowledge: KnowledgeStore) -> dict[QAId, QAId]:
    """Map each replaced block to the block that replaced it."""
    newer: dict[QAId, QAId] = {}
    for decision in knowledge.read_decisions():
        if isinstance(decision, PairReplaced):
            newer[decision.qa_id] = decision.by
        elif isinstance(decision, PairFiled):
            newer.update(dict.fromkeys(decision.removed, decision.qa_id))
    return newer


def _excerpt_current(text: _CurrentText | None, cited: PostedCitation) -> str:
    """Return the current text; for a document, the passage that is nearest to the quote."""
    if text is None or text.text is None:
        return ""
    return select_best_passages(text.text, cited.quote or cited.title, _MOST_SHOWN)
