"""From a question to an answer worth posting, or to silence with its reason.

If anything goes wrong, the caller gets silence: never half an answer, never an error. The files of a question are
fetched before. If an image cannot be fetched, there is no reply, because the question is not the same without it. A
text file that cannot be fetched is named as unread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import anyio
import anyio.to_thread
from msgspec import structs
from structlog.contextvars import bound_contextvars

from intern.answering import steps
from intern.answering.answer_trace import ResultT, Trace
from intern.answering.confidence import weigh_answer
from intern.answering.fused_steps import FUSED
from intern.answering.line_ranking import LineRanker
from intern.answering.prepared_question import prepare_question
from intern.answering.prompts import AnsweringOptions
from intern.answering.separate_steps import SEPARATE
from intern.core.errors import ChatError, InternError, KnowledgeError, ModelBudgetError, ModelUnavailableError
from intern.core.log import get_logger
from intern.core.messages import (
    LOOKUP_FAILURES,
    AnswerResult,
    Attachment,
    Citation,
    Conversation,
    Image,
    RequestContext,
    SilenceReason,
    is_team_source,
)
from intern.core.tasks import open_task_group
from intern.learning.attached_files import FileReader
from intern.models.prompt import Model
from intern.stores.tables.judgements import Calibration, JudgementStore

_log = get_logger(__name__)


@dataclass(frozen=True)
class Answerer:
    """Answers questions from the knowledge. It keeps no conversation: each call gets all that it needs."""

    model: Model
    knowledge: steps.KnowledgeLookup
    options: AnsweringOptions
    nearest: LineRanker | None = None
    judgements: JudgementStore | None = None
    """The store of the calibrated score; without it, no score counts."""
    setup: str = ""
    """The setup that scores belong to: see `QuestionWork`."""

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        """Return a verified answer with its citations, or silence with its reason, within `request_timeout_seconds`.

        `addressed` means that the question is for the bot, so source selection starts before the gate is done.
        Raises no `InternError`.
        """
        asked_where = {name: value for name, value in structs.asdict(context).items() if name != "guild_id"}
        log = _log.bind(**asked_where)
        table = _TABLES[self.options.steps]
        trace = Trace(log, table.prompts)
        result = AnswerResult(should_reply=False, reason="timeout")
        failure: dict[str, Any] = {}
        try:
            # A model call knows no message, so this adds the id to its log lines.
            with bound_contextvars(**asked_where), anyio.move_on_after(self.options.request_timeout_seconds):
                work = steps.QuestionWork(
                    model=self.model,
                    knowledge=self.knowledge,
                    options=self.options,
                    asked=prepare_question(conversation, addressed=addressed),
                    nearest=self.nearest,
                    calibration=await self._calibration(),
                    setup=self.setup,
                )
                result = await _run_steps(work, table, trace)
        except NoAnswerError as error:
            result = AnswerResult(should_reply=False, reason=error.reason)
        except InternError as error:
            failure = {"error": str(error)}
            result = AnswerResult(should_reply=False, reason=_failure_reason(error))
        could_not_look = result.reason in LOOKUP_FAILURES
        (log.warning if could_not_look else log.info)(
            "ai_request",
            result="answered" if result.should_reply else "error" if could_not_look else "skipped",
            reason=result.reason,
            seconds=trace.seconds,
            **trace.fields(),
            **failure,
        )
        return structs.replace(result, debug={**trace.debug(), **failure, "seconds": trace.seconds})

    async def _calibration(self) -> Calibration | None:
        """Return the calibration for these models and steps; it may change while the bot runs."""
        if self.judgements is None or not self.options.max_wrong:
            return None
        found = await self.judgements.calibration()
        return found if found is not None and found.applies_to(self.setup, self.options.max_wrong) else None


_TABLES: Mapping[str, steps.StepTable[Any]] = {"fused": FUSED, "separate": SEPARATE}


class NoAnswerError(Exception):
    """A step has a reason for silence."""

    def __init__(self, reason: SilenceReason) -> None:
        super().__init__(reason)
        self.reason: SilenceReason = reason


async def _run_steps(work: steps.QuestionWork, table: steps.StepTable[steps.ShownT], trace: Trace) -> AnswerResult:
    """Return an answer, or sources to look at instead. Raises `NoAnswerError` and `InternError`."""
    if not work.asked.question:
        raise NoAnswerError("not_a_question")
    # Most messages in a channel are no questions; these cost the gate alone. In others, it will likely say yes.
    if "gate" in table.prompts and work.asked.looks_like_a_question:
        gate, selected = await _gate_and_select(work, table, trace)
        work = replace(work, query=gate.query)
    else:
        gate = await _run(trace, "gate", table.gate(work))
        work = replace(work, query=gate.query)
        selected = await _run(trace, "selection", table.select(work))
    loaded = await _run(trace, "loading", table.load(work, selected))
    draft = await _run(trace, "generation", table.generate(work, loaded))
    verified = await _run(trace, "verification", table.verify(work, loaded, draft))
    weighing = anyio.to_thread.run_sync(weigh_answer, work, selected, loaded, draft, verified)
    confidence = await trace.run("confidence", weighing)
    cited = confidence.links if confidence.silence else draft.citations
    return AnswerResult(
        should_reply=not confidence.silence,
        reply_text=None if confidence.silence else draft.passage or draft.text,
        citations=tuple([await _make_citation(work, each) for each in cited]),
        reason=confidence.silence,
    )


async def _run(trace: Trace, name: str, step: Awaitable[ResultT]) -> ResultT:
    result = await trace.run(name, step)
    if result.silence:
        raise NoAnswerError(result.silence)
    return result


async def _gate_and_select(
    work: steps.QuestionWork, table: steps.StepTable[steps.ShownT], trace: Trace
) -> tuple[steps.GateResult, steps.SelectedSources]:
    """Run gate and selection in parallel; the gate's no or error cancels the selection, and counts more than its."""
    found: list[steps.SelectedSources | Exception] = []

    async def select_early() -> None:
        try:
            found.append(await _run(trace, "selection", table.select(work)))
        except Exception as error:  # noqa: BLE001 a bug, too: it is raised below, unless the gate says no
            found.append(error)

    try:
        async with open_task_group() as tasks:
            tasks.start_soon(select_early)
            gate = await _run(trace, "gate", table.gate(work))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None  # the gate's, by itself
    if isinstance(found[0], Exception):
        raise found[0]
    return gate, found[0]


async def _make_citation(work: steps.QuestionWork, cited: steps.DraftCitation) -> Citation:
    """Cite a source, or one team answer of it. A link that cannot be found is logged, and does not fail the answer."""
    source_id, source, quote = cited
    url = source.address
    if is_team_source(source_id) and "#" in source_id:  # the address of a page may contain one, too
        try:
            url = await work.knowledge.citation_link(source_id)
        except KnowledgeError as error:
            _log.warning("citation_link_failed", source_id=source_id, error=str(error))
            url = None
    return Citation(source_id=source_id, title=source.title, url=url, quote=quote)


def _failure_reason(error: InternError) -> SilenceReason:
    if isinstance(error, ModelBudgetError):
        return "over_budget"
    if isinstance(error, ModelUnavailableError):
        return "model_unavailable"
    # Any error but the model's and the stores' (a broken template, say) came before the call of the model.
    return "knowledge_failed" if isinstance(error, KnowledgeError) else "model_failed"


# Endpoints accept few; the newest are the most relevant to the question.
MOST_IMAGES = 4
_SECONDS = 30.0


class QuestionAnswerer(Protocol):
    """Answers questions."""

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        """Return an answer, or silence with its reason. Raises no `InternError`."""
        ...


class AttachmentAwareAnswerer:
    """Answers questions with their text files, and with their images unless `sees` is false."""

    def __init__(self, answers: QuestionAnswerer, files: FileReader, *, sees: bool) -> None:
        self._answers = answers
        self._files = files
        self._sees = sees

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        """Answer as `QuestionAnswerer.answer` does; `images_unavailable` if an image cannot be fetched."""
        conversation = await self._read_files(conversation)
        if self._sees:
            try:
                conversation = await self._fetch_images(conversation)
            except ChatError as error:
                _log.warning("question_image_failed", message_id=context.message_id, reason=str(error))
                return AnswerResult(should_reply=False, reason="images_unavailable", debug={"error": str(error)})
        return await self._answers.answer(conversation, context, addressed=addressed)

    async def _read_files(self, conversation: Conversation) -> Conversation:
        """Return it with the digests of the question's files; linked ones are at the end of the attachments."""
        messages, place = list(conversation.messages), conversation.asked
        chosen = [self._files.choose(m.author_id, m.at, m.text, m.attachments) for m in messages[place]]
        read = await self._files.read_each([file for files in chosen for file in files])
        for n, files in enumerate(chosen, place.start):
            known = {each.id: read.get(each.id, each) for each in (*messages[n].attachments, *files)}
            if files:
                messages[n] = structs.replace(messages[n], attachments=tuple(known.values()))
        return Conversation(tuple(messages))

    async def _fetch_images(self, conversation: Conversation) -> Conversation:
        question = [*enumerate(conversation.messages)][conversation.asked]
        wanted = [(n, each) for n, said in question for each in said.attachments if each.is_image][-MOST_IMAGES:]
        images: list[Image | ChatError] = [ChatError(f"an image was not there within {_SECONDS:g} s")] * len(wanted)

        async def fetch_image(n: int, attachment: Attachment) -> None:
            try:
                images[n] = await self._files.host.fetch_image(attachment)
            except ChatError as error:  # a value here, or the group would wrap it
                images[n] = error

        with anyio.move_on_after(_SECONDS):
            async with open_task_group() as tg:
                for n, (_, attachment) in enumerate(wanted):
                    tg.start_soon(fetch_image, n, attachment)
        messages = list(conversation.messages)
        for (n, _), image in zip(wanted, images, strict=True):
            if isinstance(image, ChatError):
                raise image
            messages[n] = structs.replace(messages[n], images=(*messages[n].images, image))
        return Conversation(tuple(messages))
