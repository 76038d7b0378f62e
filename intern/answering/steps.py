"""The five steps of an answer: gate, select, load, generate, verify; with their results and what they share.

`fused_steps.FUSED` and `separate_steps.SEPARATE` are two tables of the same five. A step knows the question and the
results before its own. It never sees the trace, which is written from the results.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct, structs

from intern.answering.line_ranking import LineRanker
from intern.answering.prepared_question import PreparedQuestion
from intern.answering.prompts import AnsweringOptions, ClosestPassage, ShownPassage, ShownSource
from intern.answering.source_index import drop_duplicates
from intern.core.errors import KnowledgeError
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry, LearnedMatches, SourceText
from intern.core.log import get_logger
from intern.core.messages import SilenceReason
from intern.core.search_documents import PassageHit
from intern.core.text.orders import has_prompt_injection, remove_prompt_injection
from intern.models.prompt import Model, Prompt
from intern.stores.tables.judgements import Calibration

_log = get_logger(__name__)

ShownT = TypeVar("ShownT", bound=ShownSource)
FromSourceT = TypeVar("FromSourceT", bound=ShownSource | PassageHit)


class KnowledgeLookup(Protocol):
    """The knowledge that steps look up. Methods raise the `KnowledgeError` family unless they say otherwise."""

    async def entries(self) -> Sequence[IndexEntry]:
        """Return the index, in its own order."""
        ...

    async def load_each(self, source_ids: Sequence[SourceId], /) -> Sequence[SourceText | KnowledgeError]:
        """Return whole sources of the index, or the errors of reading them; one for each id, in their order."""
        ...

    async def find_hits(self, query: str, limit: int, /) -> Sequence[PassageHit] | None:
        """Return the best passages, best first, several of a source; None if the search fails. Raises nothing."""
        ...

    async def find_distilled(self, query: str, /) -> LearnedMatches:
        """Return the nuggets and facts that fit a question; none if the search fails. Raises nothing."""
        ...

    async def citation_link(self, source_id: SourceId, /) -> str | None:
        """Return the jump link of a team answer (`team:<topic>.txt#<qa id>`); None if there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionWork:
    """One question, and everything that its steps need."""

    model: Model
    knowledge: KnowledgeLookup
    options: AnsweringOptions
    asked: PreparedQuestion
    query: str = ""
    """The question by itself, if the gate has rewritten it."""
    nearest: LineRanker | None
    """Finds the lines to point a model at; None where rules answer, which need no pointer."""
    calibration: Calibration | None = None
    """The score that an answer must reach; None without a calibration."""
    setup: str = ""
    """The setup that a score belongs to: scores of other models or steps cannot be compared."""


class StepResult(Struct, frozen=True, kw_only=True):
    """The result of a step, and its part of the trace, which decides nothing."""

    silence: SilenceReason = ""
    """Why there is no answer; empty if the next step may follow."""
    fields: Mapping[str, object] = {}
    words: Mapping[str, str | Sequence[str]] = {}
    """A model's words. The log does not contain them, because models may repeat people's words."""
    of_gate: Mapping[str, object] = {}
    """Fields of the gate, where a later step decides what kind of message it is."""


class GateResult(StepResult, frozen=True, kw_only=True):
    """Whether a message is a question that the bot should answer."""

    query: str = ""
    """The question by itself, if it was rewritten."""


class SelectedSources(StepResult, frozen=True, kw_only=True):
    """The sources to read."""

    source_ids: tuple[SourceId, ...]
    others: tuple[SourceId, ...] = ()
    """Sources to read instead if some of these are unreadable or repeat another."""
    facts: tuple[SourceText, ...] = ()
    """Facts that fit, loaded already."""
    hits: tuple[PassageHit, ...] = ()
    """The hits of the search, best first. Of `fused` only, as are the next fields."""
    is_all: bool = False
    """Whether these are all existing sources, so that they are shown whole if their texts are short enough."""
    likenesses: tuple[float, ...] = ()
    """The similarity of the question and each found source, as far as they were compared."""


class LoadedSources(StepResult, Generic[ShownT], frozen=True, kw_only=True):
    """The sources as they are now, cut to what fits the question."""

    query: str
    """The search text that they were cut for."""
    shown: Sequence[ShownT]
    closest: ClosestPassage | None = None
    """The best passage to quote without a model. Of `fused` only."""


class DraftCitation(NamedTuple):
    """A citation of a draft, with the source that it was shown in, and a quote from that."""

    source_id: SourceId
    source: ShownSource
    quote: str | None


class CheckedDraft(StepResult, frozen=True, kw_only=True):
    """An answer, checked against its cited sources as far as code can."""

    text: str = ""
    cited: tuple[ShownSource, ...] = ()
    citations: tuple[DraftCitation, ...] = ()
    """The citations to post."""
    urls: tuple[str, ...] = ()
    """Addresses that no source with a found quote contains."""
    strange: tuple[str, ...] = ()
    """Commands and versions that no source with a found quote contains."""
    suspicions: tuple[str, ...] = ()
    """These commands and versions, and numbers and other code, for the verifying model."""
    quotes: tuple[tuple[ShownPassage, str], ...] = ()
    """The quoted lines behind it, each with its passage. Of `fused` only, as are the next fields."""
    quoted: float = 1.0
    """The share of the quotes that the passages hold."""
    unnamed: tuple[str, ...] = ()
    """Names in the question that no passage contains, for the second call."""
    is_near: bool = True
    """Whether its quotes are so near to the question that rules would answer with them, as far as is known."""
    passage: str = ""
    """The text to post instead of `text`, if this is a passage that is quoted without a model."""


class VerifiedDraft(StepResult, frozen=True, kw_only=True):
    """Whether an answer may be posted."""

    by_model: bool = True
    """Whether a second call confirmed it; else code alone did."""


@dataclass(frozen=True, kw_only=True)
class StepTable(Generic[ShownT]):
    """The functions of the five steps. They raise `InternError`."""

    gate: Callable[[QuestionWork], Awaitable[GateResult]]
    select: Callable[[QuestionWork], Awaitable[SelectedSources]]
    load: Callable[[QuestionWork, SelectedSources], Awaitable[LoadedSources[ShownT]]]
    generate: Callable[[QuestionWork, LoadedSources[ShownT]], Awaitable[CheckedDraft]]
    verify: Callable[[QuestionWork, LoadedSources[ShownT], CheckedDraft], Awaitable[VerifiedDraft]]
    prompts: Mapping[str, Prompt[Any, Any]]
    """The prompts of the steps that ask a model, by the steps' names in the trace."""


def first_per_source(items: Iterable[FromSourceT]) -> list[FromSourceT]:
    """Return the first item of each source, in their order."""
    firsts: dict[str, FromSourceT] = {}
    for item in items:
        firsts.setdefault(item.source_id, item)
    return [*firsts.values()]


async def read_sources(work: QuestionWork, selected: SelectedSources) -> tuple[dict[SourceId, SourceText], int]:
    """Read sources without repetitions; return them with the facts, and the number of unreadable ones."""
    texts: tuple[SourceText, ...] = ()
    failed = 0
    reading, waiting = selected.source_ids, selected.others
    while reading:
        reads = await work.knowledge.load_each(reading)
        for source_id, read in zip(reading, reads, strict=True):
            if not isinstance(read, SourceText):
                failed += 1
                _log.warning("source_unreadable", source_id=source_id, error=str(read))
        texts = drop_duplicates((*texts, *(read for read in reads if isinstance(read, SourceText))))
        free = len(selected.source_ids) - len(texts)
        reading, waiting = waiting[:free], waiting[free:]
    return {source.source_id: source for source in (*texts, *selected.facts)}, failed


def strip_prompt_injections(shown: Sequence[ShownT]) -> tuple[ShownT, ...]:
    """Return the passages without sentences that give orders to a model; log the sources of those sentences."""
    kept = [
        structs.replace(
            each, text=remove_prompt_injection(each.text), said=each.said and remove_prompt_injection(each.said)
        )
        for each in shown
        if not has_prompt_injection(each.source_id)
    ]
    if kept != [*shown]:
        _log.warning("orders_left_out", source_ids=[each.source_id for each in shown if each not in kept])
    return tuple(each for each in kept if each.text.strip())
