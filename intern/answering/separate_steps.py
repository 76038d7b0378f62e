"""The steps of an answer, each with a prompt of its own: gate, select, load, generate, verify.

A model decides at four of the five steps, with typed results; code enforces the bounds.
"""

from __future__ import annotations

from functools import partial

import anyio
import anyio.to_thread
from msgspec import structs

from intern.answering import answer_trace, draft_checks, prompts, question_work
from intern.answering.citations import check_citations, clean_answer, get_source_id
from intern.answering.quotes import has_quote
from intern.answering.source_index import (
    ChosenSources,
    build_source_index,
    choose_sources,
    drop_duplicates,
    entry_size,
    excerpt_sources,
    limit_nuggets,
)
from intern.core.ids import SourceId
from intern.core.knowledge import SourceText
from intern.core.messages import (
    SilenceReason,
    is_team_source,
)
from intern.core.text.passages import remove_headings


async def gate(work: question_work.QuestionWork) -> prompts.GateDecision:
    """Decide whether this is a question that the bot should answer."""
    with work.trace.step("gate", prompts.GATE) as fields:
        given = prompts.GateIn(question=work.asked.question, history=work.asked.history, addressed=work.asked.addressed)
        decision = await work.model.ask(prompts.GATE, given, images=work.asked.images)
        fields.update(kind=decision.kind, reason=answer_trace.shorten_reply(decision.reason))
        return decision


async def select(work: question_work.QuestionWork, query: str) -> ChosenSources:
    """Choose the sources that may hold the answer; an empty index costs no call. `query` may be empty."""
    with work.trace.step("selection", prompts.SELECT) as fields:
        entries = tuple(await work.knowledge.entries())
        index = await anyio.to_thread.run_sync(build_source_index, entries)
        wanted = work.asked.build_query(query)
        learned = await work.knowledge.find_distilled(wanted)
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
    work: question_work.QuestionWork, selection: ChosenSources, query: str
) -> tuple[tuple[prompts.ShownSource, ...], int]:
    """Read the chosen sources, without repetitions; return them cut, and the number of unreadable ones."""
    with work.trace.step("loading") as fields:
        texts: tuple[SourceText, ...] = ()
        failed = 0
        reading, waiting = selection.source_ids, selection.others
        while reading:
            read = await question_work.read_sources(work.knowledge, reading)
            failed += len(reading) - len(read)
            texts = drop_duplicates((*texts, *read))
            free = len(selection.source_ids) - len(texts)
            reading, waiting = waiting[:free], waiting[free:]
        sources = {source.source_id: source for source in (*texts, *selection.facts)}
        cut = excerpt_sources(tuple(sources.values()), work.asked.build_query(query), work.options.max_source_chars)
        shown = tuple(question_work.strip_prompt_injections(cut))
        fields.update(
            loaded_sources_count=len(sources),
            unreadable_sources_count=failed,
            shown_chars=sum(len(source.text) for source in shown),
        )
        return shown, failed


async def generate(
    work: question_work.QuestionWork, query: str, shown: tuple[prompts.ShownSource, ...]
) -> tuple[draft_checks.CheckedDraft, tuple[SourceId, ...]]:
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
        check = partial(
            draft_checks.check_draft, work, clean_answer(reply.answer), sources, vouching, is_cited=is_cited
        )
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
    work: question_work.QuestionWork,
    draft: draft_checks.CheckedDraft,
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


def refusal(decision: prompts.GateDecision) -> SilenceReason:
    """Return the gate's reason to refuse a message; empty if it does not refuse."""
    return draft_checks.REFUSALS.get(decision.kind, "")
