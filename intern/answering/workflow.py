"""From a question to an answer worth posting: gate, select, load, generate, verify.

A model decides at four of the five steps, with typed results; code enforces the bounds. If anything goes wrong, the
caller gets silence with its reason: never half an answer, never an error. The files of a question are fetched before.
If an image cannot be fetched, there is no reply, because the question is not the same without it. A text file that
cannot be fetched is named as unread.
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

from intern.answering import fused, prompts, working
from intern.answering.citing import check_citations, clean_answer, find_quote, get_source_id, has_quote
from intern.answering.confidence import collect_signals, withhold_if_unsure
from intern.answering.nearest import LineRanker
from intern.answering.prompts import AnsweringOptions
from intern.answering.selecting import (
    ChosenSources,
    choose_sources,
    drop_duplicates,
    entry_size,
    excerpt_sources,
    limit_nuggets,
    listed,
)
from intern.core.errors import ChatError, InternError, KnowledgeError, ModelBudgetError, ModelUnavailableError
from intern.core.ids import SourceId
from intern.core.log import get_logger
from intern.core.messages import (
    COULD_NOT_LOOK,
    AnswerResult,
    Attachment,
    Citation,
    Conversation,
    Image,
    RequestContext,
    SilenceReason,
    is_team_source,
)
from intern.core.records import SourceText
from intern.core.tasks import open_task_group
from intern.core.text.passages import remove_headings
from intern.learning.attached_files import FileReader
from intern.models.prompt import Model
from intern.stores.sqlite.judgements import Calibration, JudgementStore

_log = get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Answerer:
    """Answers questions from the knowledge. It keeps no conversation: each call gets all that it needs."""

    model: Model
    knowledge: working.KnowledgeLookup
    options: AnsweringOptions
    nearest: LineRanker | None = None
    judgements: JudgementStore | None = None
    """The store of the calibrated score; without it, no score counts."""
    setup: str = ""
    """The setup that scores belong to: see `working.AnsweringContext`."""

    async def answer(
        self, conversation: Conversation, context: RequestContext, *, addressed: bool = False
    ) -> AnswerResult:
        """Return a verified answer with its citations, or silence with its reason, within `request_timeout_seconds`.

        `addressed` means that the question is for the bot, so source selection starts before the gate is done.
        Raises no `InternError`.
        """
        asked_where = {name: value for name, value in structs.asdict(context).items() if name != "guild_id"}
        log = _log.bind(**asked_where)
        trace = working.Trace(log)
        result = AnswerResult(should_reply=False, reason="timeout")
        failure: dict[str, Any] = {}
        worked_out = fused.answer_fused if self.options.steps == "fused" else _answer_separately
        try:
            # A model call knows no message, so this adds the id to its log lines.
            with bound_contextvars(**asked_where), anyio.move_on_after(self.options.request_timeout_seconds):
                work = working.AnsweringContext(
                    model=self.model,
                    knowledge=self.knowledge,
                    options=self.options,
                    asked=working.prepare_question(conversation, addressed=addressed),
                    nearest=self.nearest,
                    trace=trace,
                    calibration=await self._calibration(),
                    setup=self.setup,
                )
                result = await worked_out(work)
        except InternError as error:
            failure = {"error": str(error)}
            result = AnswerResult(should_reply=False, reason=_failure_reason(error))
        could_not_look = result.reason in COULD_NOT_LOOK
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


async def gate(work: working.AnsweringContext) -> prompts.GateDecision:
    """Decide whether this is a question that the bot should answer."""
    with work.trace.step("gate", prompts.GATE) as fields:
        given = prompts.GateIn(question=work.asked.question, history=work.asked.history, addressed=work.asked.addressed)
        decision = await work.model.ask(prompts.GATE, given, images=work.asked.images)
        fields.update(kind=decision.kind, reason=working.shorten_reply(decision.reason))
        return decision


async def select(work: working.AnsweringContext, query: str) -> ChosenSources:
    """Choose the sources that may hold the answer; an empty index costs no call. `query` may be empty."""
    with work.trace.step("selection", prompts.SELECT) as fields:
        entries = tuple(await work.knowledge.entries())
        index = await anyio.to_thread.run_sync(listed, entries)
        wanted = work.asked.build_query(query)
        learned = await work.knowledge.find_learned(wanted)
        nuggets = limit_nuggets(learned.nuggets, work.options.max_index_chars)
        room = work.options.max_index_chars - sum(map(entry_size, nuggets))
        # If not all descriptions can be shown, the texts of sources tell more. About two passages for each source.
        hits = None if index.fits(room) else await work.knowledge.find_hits(wanted, 2 * index.count_candidates(room))
        best = tuple(dict.fromkeys(hit.source_id for hit in hits or ()))
        # Last, so that the part of the prompt before it, with the index, is the same for every question while it fits.
        shown = (*index.select_entries(wanted, room, best), *nuggets)
        ids: tuple[str, ...] = ()
        if shown:
            given = prompts.SelectIn(
                entries=shown,
                max_sources=work.options.max_sources,
                history=work.asked.history,
                question=work.asked.question,
                query=query,
            )
            ids = (await work.model.ask(prompts.SELECT, given, images=work.asked.images)).selected_source_ids
        selection = structs.replace(choose_sources(ids, shown, work.options.max_sources), facts=learned.facts)
        fields.update(
            selected_sources_count=len(selection.source_ids),
            source_ids=selection.source_ids,
            entries_count=len(entries),
            shown_entries_count=selection.shown,
            unknown_ids_count=selection.unknown,
            nuggets_shown=tuple(nugget.source_id for nugget in nuggets),
            facts=tuple(fact.source_id for fact in selection.facts),
        )
        return selection


async def load(
    work: working.AnsweringContext, selection: ChosenSources, query: str
) -> tuple[tuple[prompts.ShownSource, ...], int]:
    """Read the chosen sources, without repetitions; return them cut, and the number of unreadable ones."""
    with work.trace.step("loading") as fields:
        texts: tuple[SourceText, ...] = ()
        failed = 0
        reading, waiting = selection.source_ids, selection.others
        while reading:
            read = await working.read_sources(work.knowledge, reading)
            failed += len(reading) - len(read)
            texts = drop_duplicates((*texts, *read))
            free = len(selection.source_ids) - len(texts)
            reading, waiting = waiting[:free], waiting[free:]
        sources = {source.source_id: source for source in (*texts, *selection.facts)}
        cut = excerpt_sources(tuple(sources.values()), work.asked.build_query(query), work.options.max_source_chars)
        shown = tuple(working.drop_orders(cut))
        fields.update(
            loaded_sources_count=len(sources),
            unreadable_sources_count=failed,
            shown_chars=sum(len(source.text) for source in shown),
        )
        return shown, failed


async def generate(
    work: working.AnsweringContext, query: str, shown: tuple[prompts.ShownSource, ...]
) -> tuple[working.CheckedDraft, tuple[SourceId, ...]]:
    """Write the answer, and check it against its sources as far as code can; return it, and the ids that it cites."""
    with work.trace.step("generation", prompts.ANSWER) as fields:
        given = prompts.AnswerIn(
            max_answer_chars=work.options.max_answer_chars,
            sources=shown,
            history=work.asked.history,
            question=work.asked.question,
            query=query,
        )
        reply = await work.model.ask(prompts.ANSWER, given, images=work.asked.images)
        source_ids, dropped = check_citations(reply.citations, shown)
        of = set(map(get_source_id, source_ids))
        sources = [source for source in shown if source.source_id in of]
        texts = {source: remove_headings(f"{source.text}\n{source.said or ''}") for source in sources}
        vouching = [source for source in sources if any(has_quote(texts[source], quote) for quote in reply.quotes)]
        is_cited = bool(sources) or not work.options.require_citations
        check = partial(working.check_draft, work, clean_answer(reply.answer), sources, vouching, is_cited=is_cited)
        draft = await anyio.to_thread.run_sync(check)
        fields.update(
            answer_chars=len(draft.text),
            citations=source_ids,
            dropped_citations_count=dropped,
            strange_urls_count=len(draft.urls),
            strange_count=len(draft.strange),
            suspicions_count=len(draft.suspicions) - len(draft.strange),
        )
        work.trace.record_texts("generation", strange_urls=draft.urls, strange=draft.strange)
        return draft, source_ids


async def verify(
    work: working.AnsweringContext,
    draft: working.CheckedDraft,
    source_ids: tuple[SourceId, ...],
    shown: tuple[prompts.ShownSource, ...],
) -> bool:
    """Check with a second call whether the answer is right by its sources, clear, and safe to post.

    The model sees the cited sources, and the team's answers, which may contradict the answer.
    """
    with work.trace.step("verification", prompts.VERIFY) as fields:
        given = prompts.VerifyIn(
            sources=tuple(s for s in shown if not draft.cited or is_team_source(s.source_id) or s in draft.cited),
            history=work.asked.history,
            question=work.asked.question,
            answer=draft.text,
            citations=source_ids,
            suspicions=draft.suspicions,
        )
        verdict = await work.model.ask(prompts.VERIFY, given)
        fix = {"suggested_fix": verdict.suggested_fix} if verdict.suggested_fix else {}
        fields.update(is_good_enough=verdict.is_postable, issues_count=len(verdict.issues), has_fix=bool(fix))
        work.trace.record_texts("verification", reason=verdict.reason, issues=verdict.issues, **fix)
        return verdict.is_postable


async def _answer_separately(work: working.AnsweringContext) -> AnswerResult:
    if not work.asked.question:
        return working.make_silence("not_a_question")
    # Most messages in a channel are no questions; then they cost the gate alone.
    decision, selection = await _gate_and_select(work) if work.asked.looks_like_a_question else (await gate(work), None)
    if reason := refusal(decision):
        return working.make_silence(reason)
    query = (decision.rewrite_query or "").strip()
    selection = selection or await select(work, query)
    if not (selection.source_ids or selection.facts):
        return working.make_silence("no_sources")
    shown, failed = await load(work, selection, query)
    if not shown:
        return working.make_silence("sources_unreadable" if failed else "no_sources")
    draft, source_ids = await generate(work, query, shown)
    if draft.reason or not await verify(work, draft, source_ids, shown):
        return working.make_silence(draft.reason or "rejected")
    citations: list[Citation] = []
    for source_id in source_ids:
        source = next(each for each in draft.cited if each.source_id == get_source_id(source_id))
        quote = await anyio.to_thread.run_sync(find_quote, draft.text, source_id, source)
        citations.append(await working.make_citation(work, source_id, source, quote))
    answer = AnswerResult(should_reply=True, reply_text=draft.text, citations=tuple(citations))
    sign = partial(collect_signals, work.asked.build_query(query), draft, shown, confirmed=True)
    best = sorted(shown, key=lambda each: each not in draft.cited)
    return await withhold_if_unsure(work, answer, await anyio.to_thread.run_sync(sign), best)


def refusal(decision: prompts.GateDecision) -> SilenceReason:
    """Return the gate's reason to refuse a message; empty if it does not refuse."""
    return working.REFUSALS.get(decision.kind, "")


async def _gate_and_select(work: working.AnsweringContext) -> tuple[prompts.GateDecision, ChosenSources | None]:
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
