"""The work on one question: bounded question and history, the inputs and trace of its steps, and the reply cache.

The cache is exact: the same request gets the same reply without a call. The request contains everything that determines
a reply: prompt, examples and settings, the question, every passage, model and temperature. A change of any of these
makes another request. Questions with a history or with images are always sent to the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from msgspec import Struct, structs

from intern.answering.addresses import find_strange_urls
from intern.answering.answer_trace import Trace
from intern.answering.grounding import check_grounding, is_unfounded
from intern.answering.line_ranking import LineRanker
from intern.answering.prepared_question import PreparedQuestion
from intern.answering.prompts import AnsweringOptions, ShownPassage, ShownSource
from intern.core.errors import KnowledgeError
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry, LearnedMatches, SourceText
from intern.core.log import get_logger
from intern.core.messages import AnswerResult, Citation, SilenceReason, is_team_source
from intern.core.search_documents import PassageHit
from intern.core.text.orders import has_prompt_injection, remove_prompt_injection
from intern.core.text.passages import remove_headings
from intern.models.prompt import Model
from intern.stores.tables.judgements import Calibration

_log = get_logger(__name__)

ShownT = TypeVar("ShownT", bound=ShownSource)
FromSourceT = TypeVar("FromSourceT", bound=ShownSource | PassageHit)


class KnowledgeLookup(Protocol):
    """The knowledge that steps look up. Each method raises the `KnowledgeError` family."""

    async def entries(self) -> Sequence[IndexEntry]:
        """Return the index, in its own order."""
        ...

    async def load_each(self, source_ids: Sequence[SourceId], /) -> Sequence[SourceText | KnowledgeError]:
        """Return whole sources of the index, or the errors of reading them; one for each id, in their order."""
        ...

    async def find_hits(self, query: str, limit: int, /) -> Sequence[PassageHit] | None:
        """Return the best passages, best first, several of a source; None if the search fails. Raises nothing."""
        ...

    async def find_learned(self, query: str, /) -> LearnedMatches:
        """Return the nuggets and facts that fit a question; none if the search fails. Raises nothing."""
        ...

    async def citation_link(self, source_id: SourceId, /) -> str | None:
        """Return the jump link of a team answer (`team:<topic>.txt#<qa id>`); None if there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweringContext:
    """One question, and everything that its steps need."""

    model: Model
    knowledge: KnowledgeLookup
    options: AnsweringOptions
    asked: PreparedQuestion
    nearest: LineRanker | None
    """Finds the lines to point a model at; None where rules answer, which need no pointer."""
    trace: Trace
    calibration: Calibration | None = None
    """The score that an answer must reach; None without a calibration."""
    setup: str = ""
    """The setup that a score belongs to: scores of other models or steps cannot be compared."""


class CheckedDraft(Struct, frozen=True, kw_only=True):
    """An answer, checked against its cited sources. With a `reason`, it must not be posted."""

    reason: SilenceReason
    text: str = ""
    cited: tuple[ShownSource, ...] = ()
    urls: tuple[str, ...] = ()
    """Addresses that no cited source contains."""
    strange: tuple[str, ...] = ()
    """Commands and versions that no cited source contains."""
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


def check_draft(
    work: AnsweringContext, text: str, cited: Sequence[ShownSource], vouching: Sequence[ShownSource], *, is_cited: bool
) -> CheckedDraft:
    """Check an answer as far as code can. It may take a while, because answers and sources are untrusted text.

    `vouching` are the sources of the found quotes: an answer may take links, commands and numbers from these.
    """
    texts = [remove_headings(source.trusted_text) for source in vouching]
    conversation = (work.asked.question, work.asked.history)
    urls = find_strange_urls(text, texts, [source.url for source in vouching if source.url])
    held = check_grounding(text, texts, conversation)
    shown = [f"{source.text}\n{source.said or ''}" for source in vouching or cited]
    is_own = bool(shown) and is_unfounded(text, shown, conversation)
    reason: SilenceReason = ""
    if not text:
        reason = "no_answer"
    elif len(text) > work.options.max_answer_chars:
        reason = "too_long"
    elif not is_cited:
        reason = "no_citations"
    elif urls or is_own or has_prompt_injection(text) or (work.options.strict_grounding and held.strange):
        reason = "ungrounded"
    return CheckedDraft(
        reason=reason,
        text=text,
        cited=tuple(cited),
        urls=tuple(urls),
        strange=held.strange,
        suspicions=(*held.strange, *held.suspicions),
    )


def first_per_source(items: Iterable[FromSourceT]) -> list[FromSourceT]:
    """Return the first item of each source, in their order."""
    firsts: dict[str, FromSourceT] = {}
    for item in items:
        firsts.setdefault(item.source_id, item)
    return [*firsts.values()]


def has_strange_parts(text: str, texts: Sequence[str]) -> bool:
    """Return whether a text contains an address, a command or a version that none of these texts contains."""
    return bool(find_strange_urls(text, texts, ()) or check_grounding(text, texts, ()).strange)


async def read_sources(knowledge: KnowledgeLookup, source_ids: Sequence[SourceId]) -> list[SourceText]:
    """Read the sources that can be read; log the others."""
    reads = await knowledge.load_each(source_ids) if source_ids else ()
    for source_id, read in zip(source_ids, reads, strict=True):
        if not isinstance(read, SourceText):
            _log.warning("source_unreadable", source_id=source_id, error=str(read))
    return [read for read in reads if isinstance(read, SourceText)]


def drop_orders(shown: Sequence[ShownT]) -> list[ShownT]:
    """Return the passages that give no orders to a model; log the sources of the others."""
    kept = [
        structs.replace(
            each, text=remove_prompt_injection(each.text), said=each.said and remove_prompt_injection(each.said)
        )
        for each in shown
        if not has_prompt_injection(each.source_id)
    ]
    if kept != [*shown]:
        _log.warning("orders_left_out", source_ids=[each.source_id for each in shown if each not in kept])
    return [each for each in kept if each.text.strip()]


async def make_citation(
    work: AnsweringContext, source_id: SourceId, source: ShownSource, quote: str | None
) -> Citation:
    """Cite a source, or one team answer of it. A link that cannot be found is logged, and does not fail the answer."""
    url = source.address
    if is_team_source(source_id) and "#" in source_id:  # the address of a page may contain one, too
        try:
            url = await work.knowledge.citation_link(source_id)
        except KnowledgeError as error:
            _log.warning("citation_link_failed", source_id=source_id, error=str(error))
            url = None
    return Citation(source_id=source_id, title=source.title, url=url, quote=quote)


REFUSALS: Mapping[str, SilenceReason] = {
    "chatter": "not_a_question",
    "out_of_scope": "not_answerable",
    "unclear": "not_answerable",
    "not_covered": "no_answer",
}
"""The reasons for silence by a model's kind of a message."""


def make_silence(reason: SilenceReason) -> AnswerResult:
    """Make a result without an answer, with the reason."""
    return AnswerResult(should_reply=False, reason=reason)
