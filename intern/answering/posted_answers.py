"""Whether posted answers still stand: what they cite is compared with its source; some are edited to a note.

A comparison looks at how a text reads; white space, typography and markup are no change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from typing import NamedTuple

from anyio.to_thread import run_sync
from msgspec import Struct, structs

from intern.answering.citing import digest, reading
from intern.core.clock import Clock
from intern.core.errors import SourceError
from intern.core.ids import MessageId, QAId, SourceId, TopicName
from intern.core.log import get_logger
from intern.core.records import Filed, Replaced, SourceText, TopicBlock
from intern.core.text.masking import mask_secrets
from intern.core.text.passages import best_passages
from intern.learning.prompts import answer_of
from intern.sources.library import Library
from intern.stores.blocks import time_of
from intern.stores.sqlite.knowledge import Knowledge
from intern.stores.sqlite.outbox import Cited, CitedStore, OutdatedAnswer, State
from intern.stores.sqlite.store import save_record
from intern.stores.sqlite.traces import TraceStore

SETTLED = timedelta(minutes=5)
"""For how long a citation must not have stood before its answer is edited: a document may be half written just now."""

_AT_ONCE = 50  # sources that are read together
_MOVED = 3  # sources that may hold the text of one that is gone
_LONGEST_CHAIN = 20  # newer versions of a conversation
_MOST_SHOWN = 1_000  # characters

_log = get_logger(__name__)


class Change(Struct, frozen=True, kw_only=True):
    """A citation that does not stand any more, and what its source says now."""

    cited: Cited
    now: str
    """Empty where the source was withdrawn."""


class Outdated(Struct, frozen=True, kw_only=True):
    """A posted answer with such citations."""

    answer: OutdatedAnswer
    changes: tuple[Change, ...]


class _Text(NamedTuple):
    """What a source says now."""

    text: str | None
    """None: the source is gone."""
    is_newer: bool = False
    """It is that of a newer version of the conversation."""
    quotable: str | None = None
    """Of a conversation, what everybody said, with the speakers; what counts as a change of it is the team's part."""


@dataclass
class PostedAnswers:
    """Compares posted answers with their sources. All methods raise KnowledgeError."""

    store: CitedStore
    library: Library
    knowledge: Knowledge
    emails: bool = False
    """Whether addresses are masked in quotes."""
    _seen: dict[SourceId, tuple[str, bool]] = field(default_factory=dict[SourceId, tuple[str, bool]], init=False)

    async def check(self) -> None:
        """Compare every citation whose source was never compared, or reads differently since."""
        watched = await self.store.sources()
        self._seen = {each: seen for each, _ in watched if (seen := self._seen.get(each))}
        for start in range(0, len(watched), _AT_ONCE):
            await self._compare(watched[start : start + _AT_ONCE])

    async def outdated(self, limit: int) -> tuple[Outdated, ...]:
        """Return the outdated answers, newest first, with the current texts of their sources."""
        answers = await self.store.outdated(limit)
        texts = await self._texts({each.source_id for answer in answers for each in answer.citations})

        def changes(answer: OutdatedAnswer) -> tuple[Change, ...]:
            return tuple(Change(cited=each, now=_shown(texts.get(each.source_id), each)) for each in answer.citations)

        return tuple(Outdated(answer=answer, changes=changes(answer)) for answer in answers)

    async def _compare(self, watched: Sequence[tuple[SourceId, bool]]) -> None:
        texts = await self._texts(source_id for source_id, _ in watched)
        for source_id, is_new in watched:
            text = texts.get(source_id)
            if text is None:
                continue  # it cannot be read now; the next look tells more
            read_as = "" if text.text is None else await run_sync(reading, text.text)
            seen = ("" if text.text is None else digest(read_as), text.is_newer)
            if is_new or self._seen.get(source_id) != seen:
                cited = await self.store.citing(source_id)
                judge = partial(self._judge, text=text, read_as=read_as, found=seen[0])
                judged = await run_sync(list[Cited], map(judge, cited))
                pairs = zip(cited, judged, strict=True)
                await self.store.compared([await self._compared(one, result) for one, result in pairs])
                self._seen[source_id] = seen

    async def _compared(self, cited: Cited, judged: Cited) -> Cited:
        if judged.state == "gone" and (moved := await self._moved(cited)) is not None:
            judged = structs.replace(judged, source_id=moved, state="")
        if judged.state and not cited.state:
            _log.info("answer_outdated", message_id=cited.question_id, source_id=judged.source_id, state=judged.state)
        return judged

    async def _moved(self, cited: Cited) -> SourceId | None:
        """Where the quote of a document that is gone stands: it may have been renamed."""
        if not cited.quote or not cited.source_id.startswith("kb:"):
            return None
        hits = await self.library.hits(cited.quote, _MOVED) or ()
        found = [hit.source_id for hit in hits if hit.source_id.startswith("kb:")]
        for source_id, text in (await self._texts(found)).items():
            if text.text is not None and reading(cited.quote) in await run_sync(reading, text.text):
                return source_id
        return None

    async def _texts(self, source_ids: Iterable[SourceId]) -> dict[SourceId, _Text]:
        """Read the current texts of sources; without those that cannot be read just now."""
        wanted = list(dict.fromkeys(source_ids))
        blocks = {each: block for each in wanted if (block := _block_of(each))}
        texts: dict[SourceId, _Text] = await run_sync(self._blocks, blocks) if blocks else {}
        others = [each for each in wanted if each not in blocks]
        listed = {entry.source_id for entry in await self.library.entries()} if others else set[SourceId]()
        for source_id, read in zip(others, await self.library.load_each(others), strict=True):
            if isinstance(read, SourceText):
                texts[source_id] = _Text(f"{read.text}\n{read.said or ''}")
                continue
            # Where no document is listed at all, rather their folder is away.
            is_gone = source_id not in listed and (listed or not source_id.startswith("kb:"))
            if isinstance(read, SourceError) and is_gone:
                texts[source_id] = _Text(None)
            else:
                _log.warning("cited_source_unreadable", source_id=source_id, error=str(read))
        return texts

    # Worker threads.

    def _judge(self, cited: Cited, text: _Text, read_as: str, found: str) -> Cited:
        state = self._state(cited, text, read_as, found)
        block = None if state else self._block_with(cited)
        return structs.replace(
            cited,
            source_id=block or cited.source_id,
            # It is compared with the block from now on.
            digest="" if block else cited.digest or found or "-",
            state=state,
        )

    def _state(self, cited: Cited, text: _Text, read_as: str, found: str) -> State:
        if text.text is None:
            return "gone"
        within = read_as if text.quotable is None else reading(text.quotable)
        holds = not cited.quote or reading(cited.quote) in within or self._holds_masked(text.text, cited.quote)
        # A document may change in what was not quoted.
        if not _block_of(cited.source_id) or (not text.is_newer and cited.digest in {"", found}):
            return "" if holds else "changed"
        return "extended" if cited.quote and holds else "changed"

    def _holds_masked(self, text: str, quote: str) -> bool:
        # A secret in a document is masked in what is kept of it.
        return "[masked " in quote and reading(quote) in reading(mask_secrets(text, emails=self.emails).text)

    def _blocks(self, wanted: Mapping[SourceId, QAId]) -> dict[SourceId, _Text]:
        newer = cache(partial(_newer, self.knowledge))  # reads all decisions, and is seldom needed
        texts: dict[SourceId, _Text] = {}
        for source_id, qa_id in wanted.items():
            same = self._block(qa_id)
            block = same or self._block_since(qa_id, newer())
            texts[source_id] = _Text(answer_of(block.turns), same is None, _of_all(block)) if block else _Text(None)
        return texts

    def _block_since(self, qa_id: QAId, newer: Mapping[QAId, QAId]) -> TopicBlock | None:
        """Return the block that replaced another; None if there is none."""
        for _ in range(_LONGEST_CHAIN):
            if qa_id not in newer:
                return None
            qa_id = newer[qa_id]
            if (block := self._block(qa_id)) is not None:
                return block
        return None

    def _block_with(self, cited: Cited) -> SourceId | None:
        """Return the block that holds the quote, for a topic that is cited as a whole: it may move to another topic."""
        kind, _, name = cited.source_id.partition(":")
        if kind != "team" or "#" in name or not cited.quote:
            return None
        part = reading(cited.quote)
        for block in self.knowledge.read(TopicName(name.removesuffix(".txt"))):
            if part in reading(_of_all(block)):
                return SourceId(f"{cited.source_id}#{block.qa_id}")
        return None

    def _block(self, qa_id: QAId) -> TopicBlock | None:
        """Find a block in any topic."""
        topic = self.knowledge.topic_of(qa_id)
        blocks = () if topic is None else self.knowledge.read(topic)
        return next((each for each in blocks if time_of(each.qa_id) == time_of(qa_id)), None)


@dataclass
class Retractions:
    """Edits answers that their sources do not back any more. Raises the ChatError and KnowledgeError families."""

    store: CitedStore
    edit: Callable[[MessageId], Awaitable[bool]]
    """Edits an answer to a note; false where it cannot be."""
    traces: TraceStore
    clock: Clock

    async def check_and_retract(self, check: Callable[[], Awaitable[None]]) -> None:
        """Retract after a check that succeeded: the source of an older one may have come back."""
        await check()
        await self.retract()

    async def retract(self) -> None:
        """Edit each such answer to the note, once."""
        for question_id in await self.store.to_retract(self.clock.now() - SETTLED):
            # From here on it is finished, though the source may come back.
            await self.store.retract(question_id, "open")
            edited = await self.edit(question_id)
            await self.store.retract(question_id, "retracted" if edited else "dropped")
            if edited:
                end = partial(self.traces.ended, question_id, outcome="answer retracted", reason="source_changed")
                await save_record(end, message_id=question_id)
            _log.info("answer_retracted", message_id=question_id, edited=edited)


def _block_of(source_id: SourceId) -> QAId | None:
    """Return the block that a citation of a team answer names."""
    named = source_id.partition("#")[2] if source_id.startswith("team:") else ""
    try:
        time_of(QAId(named))
    except ValueError:
        return None
    return QAId(named)


def _of_all(block: TopicBlock) -> str:
    return "\n".join(f"{turn.speaker}: {turn.text}" for turn in block.turns)


def _newer(knowledge: Knowledge) -> dict[QAId, QAId]:
    """By block that gave way: the one that it gave way to."""
    newer: dict[QAId, QAId] = {}
    for decision in knowledge.all():
        if isinstance(decision, Replaced):
            newer[decision.qa_id] = decision.by
        elif isinstance(decision, Filed):
            newer.update(dict.fromkeys(decision.removed, decision.qa_id))
    return newer


def _shown(text: _Text | None, cited: Cited) -> str:
    """Return the current text: of a document, the passage that is nearest to the quote."""
    if text is None or text.text is None:
        return ""
    return best_passages(text.text, cited.quote or cited.title, _MOST_SHOWN)
