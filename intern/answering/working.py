"""One question at work: what its steps are given, and what is kept of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from anyio import to_thread

from intern.answering.nearest import Nearest
from intern.answering.options import AnsweringOptions
from intern.answering.question import Asked
from intern.answering.selecting import Index, listed, ready
from intern.answering.trace import Trace
from intern.domain import AIResult, Hit, IndexEntry, Learned, SilenceReason, SourceId, SourceText
from intern.errors import KnowledgeError
from intern.llm.prompt import Model
from intern.observe.log import get_logger
from intern.text.masking import masked_start

_log = get_logger(__name__)

_MOST_CHARS = 300  # of what a model says, in `debug`; of that, the log has the gate's reason alone


class Knowledge(Protocol):
    """What can be looked up. Each raises the `KnowledgeError` family."""

    async def entries(self) -> Sequence[IndexEntry]:
        """The index, in its own order."""
        ...

    async def load_each(self, source_ids: Sequence[SourceId], /) -> Sequence[SourceText | KnowledgeError]:
        """Sources of the index, whole, or why they could not be read; as many as were asked for, in their order."""
        ...

    async def best(self, query: str, limit: int, /) -> Sequence[SourceId] | None:
        """The sources whose text fits best, best first; None where that cannot be told. Raises nothing."""
        ...

    async def hits(self, query: str, limit: int, /) -> Sequence[Hit] | None:
        """The passages that fit best, one of a source, best first; None where `best` gives None. Raises nothing."""
        ...

    async def learned(self, query: str, /) -> Learned:
        """The nuggets and facts that fit a question; none where nobody can tell. Raises nothing."""
        ...

    async def citation_link(self, source_id: SourceId, /) -> str | None:
        """The jump link of a team answer (`team:<topic>.txt#<qa id>`); None where there is none."""
        ...


class Told:
    """What models said at the steps, for `debug`. The log has none of it: they may repeat what people wrote."""

    def __init__(self) -> None:
        self._texts: dict[str, dict[str, Any]] = {}

    def add(self, step: str, **texts: str | Sequence[str]) -> None:
        """A text, or the first few of several, each as far as `debug` bears and without secrets."""
        self._texts.setdefault(step, {}).update(
            (name, start_of(said) if isinstance(said, str) else tuple(map(start_of, said[:5])))
            for name, said in texts.items()
        )

    def beside(self, steps: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The steps' fields, with what was said at each."""
        return {step: {**fields, **self._texts.get(step, {})} for step, fields in steps.items()}


def start_of(text: str) -> str:
    """As much of what a model said as is kept, without secrets."""
    return masked_start(text, _MOST_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One question, and all that its steps need."""

    model: Model
    knowledge: Knowledge
    options: AnsweringOptions
    asked: Asked
    nearest: Nearest | None
    """Points a model at pieces of the passages; None where rules answer, which do so by themselves."""
    trace: Trace
    told: Told


async def index_of(entries: tuple[IndexEntry, ...]) -> Index:
    """The index of these entries; one that takes a while to make is made in a thread."""
    return listed(entries) if ready(entries) else await to_thread.run_sync(listed, entries)


async def read_each(knowledge: Knowledge, source_ids: Sequence[SourceId]) -> list[SourceText]:
    """The sources that can be read; each other is logged."""
    reads = await knowledge.load_each(source_ids) if source_ids else ()
    for source_id, read in zip(source_ids, reads, strict=True):
        if not isinstance(read, SourceText):
            _log.warning("source_unreadable", source_id=source_id, error=str(read))
    return [read for read in reads if isinstance(read, SourceText)]


async def answer_link(knowledge: Knowledge, source_id: SourceId) -> str | None:
    """The link to a team answer; None where there is none. One that cannot be told is logged: the answer stands."""
    try:
        return await knowledge.citation_link(source_id)
    except KnowledgeError as error:
        _log.warning("citation_link_failed", source_id=source_id, error=str(error))
        return None


def silence(reason: SilenceReason) -> AIResult:
    """No reply, and why."""
    return AIResult(should_reply=False, reason=reason)
