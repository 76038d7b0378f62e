"""From a question to an answer worth posting, or to silence with its reason.

If anything goes wrong, the caller gets silence: never half an answer, never an error. The files of a question are
fetched before. If an image cannot be fetched, there is no reply, because the question is not the same without it. A
text file that cannot be fetched is named as unread.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread
from msgspec import structs
from structlog.contextvars import bound_contextvars

from intern.answering import answer_trace, fused_steps, prepared_question, prompts
from intern.answering.citations import find_quote, get_source_id
from intern.answering.confidence import collect_signals, withhold_if_unsure
from intern.answering.draft_checks import make_silence
from intern.answering.line_ranking import LineRanker
from intern.answering.prompts import AnsweringOptions
from intern.answering.question_work import KnowledgeLookup, QuestionWork, make_citation
from intern.answering.separate_steps import gate, generate, load, refusal, select, verify
from intern.answering.source_index import (
    ChosenSources,
)
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
)
from intern.core.tasks import open_task_group
from intern.learning.attached_files import FileReader
from intern.models.prompt import Model
from intern.stores.tables.judgements import Calibration, JudgementStore

_log = get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Answerer:
    """Answers questions from the knowledge. It keeps no conversation: each call gets all that it needs."""

    model: Model
    knowledge: KnowledgeLookup
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
        trace = answer_trace.Trace(log)
        result = AnswerResult(should_reply=False, reason="timeout")
        failure: dict[str, Any] = {}
        worked_out = fused_steps.answer_fused if self.options.steps == "fused" else _answer_separately
        try:
            # A model call knows no message, so this adds the id to its log lines.
            with bound_contextvars(**asked_where), anyio.move_on_after(self.options.request_timeout_seconds):
                work = QuestionWork(
                    model=self.model,
                    knowledge=self.knowledge,
                    options=self.options,
                    asked=prepared_question.prepare_question(conversation, addressed=addressed),
                    nearest=self.nearest,
                    trace=trace,
                    calibration=await self._calibration(),
                    setup=self.setup,
                )
                result = await worked_out(work)
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


async def _answer_separately(work: QuestionWork) -> AnswerResult:
    if not work.asked.question:
        return make_silence("not_a_question")
    # Most messages in a channel are no questions; then they cost the gate alone.
    decision, selection = await _gate_and_select(work) if work.asked.looks_like_a_question else (await gate(work), None)
    if reason := refusal(decision):
        return make_silence(reason)
    query = (decision.rewrite_query or "").strip()
    selection = selection or await select(work, query)
    if not (selection.source_ids or selection.facts):
        return make_silence("no_sources")
    shown, failed = await load(work, selection, query)
    if not shown:
        return make_silence("sources_unreadable" if failed else "no_sources")
    draft, source_ids = await generate(work, query, shown)
    if draft.reason or not await verify(work, draft, source_ids, shown):
        return make_silence(draft.reason or "rejected")
    citations: list[Citation] = []
    for source_id in source_ids:
        source = next(each for each in draft.cited if each.source_id == get_source_id(source_id))
        quote = await anyio.to_thread.run_sync(find_quote, draft.text, source_id, source)
        citations.append(await make_citation(work, source_id, source, quote))
    answer = AnswerResult(should_reply=True, reply_text=draft.text, citations=tuple(citations))
    sign = partial(collect_signals, work.asked.build_query(query), draft, shown, confirmed=True)
    best = sorted(shown, key=lambda each: each not in draft.cited)
    return await withhold_if_unsure(work, answer, await anyio.to_thread.run_sync(sign), best)


async def _gate_and_select(work: QuestionWork) -> tuple[prompts.GateDecision, ChosenSources | None]:
    """Run gate and selection in parallel if the gate will likely say yes; cancel the selection if it does not."""
    decided: list[prompts.GateDecision | Exception] = []
    found: list[ChosenSources | Exception] = []

    async def guess() -> None:
        found.append(await _catch_error(select(work, "")))

    async with open_task_group() as tg:
        tg.start_soon(guess)
        decided.append(await _catch_error(gate(work)))
        if isinstance(decided[0], Exception) or refusal(decided[0]):
            tg.cancel_scope.cancel()
    decision = _raise_or_return(decided[0])
    return decision, None if refusal(decision) else _raise_or_return(found[0])


async def _catch_error(call: Awaitable[T]) -> T | Exception:
    """Return a call's value or error: as a value, an error leaves a task group without an exception group."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 a bug, too: it is raised by who takes it
        return error


def _raise_or_return(held: T | Exception) -> T:
    if isinstance(held, Exception):
        raise held
    return held


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
