"""The work on one question: the model, the knowledge, the options and the trace that its steps share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from msgspec import structs

from intern.answering.answer_trace import Trace
from intern.answering.line_ranking import LineRanker
from intern.answering.prepared_question import PreparedQuestion
from intern.answering.prompts import AnsweringOptions, ShownSource
from intern.core.errors import KnowledgeError
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry, LearnedMatches, SourceText
from intern.core.log import get_logger
from intern.core.messages import Citation, is_team_source
from intern.core.search_documents import PassageHit
from intern.core.text.orders import has_prompt_injection, remove_prompt_injection
from intern.models.prompt import Model
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
    nearest: LineRanker | None
    """Finds the lines to point a model at; None where rules answer, which need no pointer."""
    trace: Trace
    calibration: Calibration | None = None
    """The score that an answer must reach; None without a calibration."""
    setup: str = ""
    """The setup that a score belongs to: scores of other models or steps cannot be compared."""


def first_per_source(items: Iterable[FromSourceT]) -> list[FromSourceT]:
    """Return the first item of each source, in their order."""
    firsts: dict[str, FromSourceT] = {}
    for item in items:
        firsts.setdefault(item.source_id, item)
    return [*firsts.values()]


async def read_sources(knowledge: KnowledgeLookup, source_ids: Sequence[SourceId]) -> list[SourceText]:
    """Read the sources that can be read; log the others."""
    reads = await knowledge.load_each(source_ids) if source_ids else ()
    for source_id, read in zip(source_ids, reads, strict=True):
        if not isinstance(read, SourceText):
            _log.warning("source_unreadable", source_id=source_id, error=str(read))
    return [read for read in reads if isinstance(read, SourceText)]


def strip_prompt_injections(shown: Sequence[ShownT]) -> list[ShownT]:
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
    return [each for each in kept if each.text.strip()]


async def make_citation(work: QuestionWork, source_id: SourceId, source: ShownSource, quote: str | None) -> Citation:
    """Cite a source, or one team answer of it. A link that cannot be found is logged, and does not fail the answer."""
    url = source.address
    if is_team_source(source_id) and "#" in source_id:  # the address of a page may contain one, too
        try:
            url = await work.knowledge.citation_link(source_id)
        except KnowledgeError as error:
            _log.warning("citation_link_failed", source_id=source_id, error=str(error))
            url = None
    return Citation(source_id=source_id, title=source.title, url=url, quote=quote)
