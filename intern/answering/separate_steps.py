"""The steps of an answer, each with a prompt of its own: gate, select, load, generate, verify.

A model decides at four of the five steps, with typed results; code enforces the bounds.
"""

from __future__ import annotations

import anyio.to_thread
from msgspec import structs

from intern.answering import prompts, steps
from intern.answering.answer_trace import shorten_reply
from intern.answering.citations import check_citations, clean_answer, find_quote, get_source_id
from intern.answering.draft_checks import REFUSALS, check_draft
from intern.answering.prompts import ShownSource
from intern.answering.quotes import has_quote
from intern.answering.source_index import build_source_index, choose_sources, entry_size, excerpt_sources, limit_nuggets
from intern.core.messages import is_team_source
from intern.core.text.passages import remove_headings


async def gate(work: steps.QuestionWork) -> steps.GateResult:
    """Decide whether this is a question that the bot should answer."""
    given = prompts.GateIn(question=work.asked.question, history=work.asked.history, addressed=work.asked.addressed)
    decision = await work.model.ask(prompts.GATE, given, images=work.asked.images)
    return steps.GateResult(
        silence=REFUSALS.get(decision.kind, ""),
        query=(decision.rewrite_query or "").strip(),
        fields={"kind": decision.kind, "reason": shorten_reply(decision.reason)},
    )


async def select(work: steps.QuestionWork) -> steps.SelectedSources:
    """Choose the sources that may hold the answer; an empty index costs no call."""
    entries = tuple(await work.knowledge.entries())
    index = await anyio.to_thread.run_sync(build_source_index, entries)
    wanted = work.asked.build_query(work.query)
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
            query=work.query,
        )
        ids = (await work.model.ask(prompts.SELECT, given, images=work.asked.images)).selected_source_ids
    source_ids, others, unknown = choose_sources(ids, shown, work.options.max_sources)
    return steps.SelectedSources(
        silence="" if source_ids or learned.facts else "no_sources",
        source_ids=source_ids,
        others=others,
        facts=learned.facts,
        fields={
            "selected_sources_count": len(source_ids),
            "source_ids": source_ids,
            "entries_count": len(entries),
            "shown_entries_count": len(shown),
            "unknown_ids_count": unknown,
            "nuggets_shown": tuple(nugget.source_id for nugget in nuggets),
            "facts": tuple(fact.source_id for fact in learned.facts),
        },
    )


async def load(work: steps.QuestionWork, selected: steps.SelectedSources) -> steps.LoadedSources[ShownSource]:
    """Read the chosen sources, and cut them."""
    sources, failed = await steps.read_sources(work, selected)
    query = work.asked.build_query(work.query)
    shown = steps.strip_prompt_injections(
        excerpt_sources(tuple(sources.values()), query, work.options.max_source_chars)
    )
    return steps.LoadedSources(
        silence="" if shown else "sources_unreadable" if failed else "no_sources",
        query=query,
        shown=shown,
        fields={
            "loaded_sources_count": len(sources),
            "unreadable_sources_count": failed,
            "shown_chars": sum(len(source.text) for source in shown),
        },
    )


async def generate(work: steps.QuestionWork, loaded: steps.LoadedSources[ShownSource]) -> steps.CheckedDraft:
    """Write the answer, and check it against its sources as far as code can."""
    given = prompts.AnswerIn(
        max_answer_chars=work.options.max_answer_chars,
        sources=tuple(loaded.shown),
        history=work.asked.history,
        question=work.asked.question,
        query=work.query,
    )
    reply = await work.model.ask(prompts.ANSWER, given, images=work.asked.images)
    return await anyio.to_thread.run_sync(_check_reply, work, reply, loaded)


def _check_reply(
    work: steps.QuestionWork, reply: prompts.AnswerDraft, loaded: steps.LoadedSources[ShownSource]
) -> steps.CheckedDraft:
    source_ids, dropped = check_citations(reply.citations, loaded.shown)
    named = set(map(get_source_id, source_ids))
    sources = {source.source_id: source for source in loaded.shown if source.source_id in named}
    vouching = [
        source
        for source in sources.values()
        if any(has_quote(remove_headings(f"{source.text}\n{source.said or ''}"), quote) for quote in reply.quotes)
    ]
    is_cited = bool(sources) or not work.options.require_citations
    draft = check_draft(work, clean_answer(reply.answer), tuple(sources.values()), vouching, is_cited=is_cited)
    cited = [] if draft.silence else [(each, sources[get_source_id(each)]) for each in source_ids]
    return structs.replace(
        draft,
        citations=tuple(
            steps.DraftCitation(each, source, find_quote(draft.text, each, source)) for each, source in cited
        ),
        fields={
            "answer_chars": len(draft.text),
            "citations": source_ids,
            "dropped_citations_count": dropped,
            "strange_urls_count": len(draft.urls),
            "strange_count": len(draft.strange),
            "suspicions_count": len(draft.suspicions) - len(draft.strange),
        },
        words={"strange_urls": draft.urls, "strange": draft.strange},
    )


async def verify(
    work: steps.QuestionWork, loaded: steps.LoadedSources[ShownSource], draft: steps.CheckedDraft
) -> steps.VerifiedDraft:
    """Check with a second call whether the answer is right by its sources, clear, and safe to post.

    The model sees the cited sources, and the team's answers, which may contradict the answer.
    """
    given = prompts.VerifyIn(
        sources=tuple(s for s in loaded.shown if not draft.cited or is_team_source(s.source_id) or s in draft.cited),
        history=work.asked.history,
        question=work.asked.question,
        answer=draft.text,
        citations=tuple(each.source_id for each in draft.citations),
        suspicions=draft.suspicions,
    )
    verdict = await work.model.ask(prompts.VERIFY, given)
    fix = {"suggested_fix": verdict.suggested_fix} if verdict.suggested_fix else {}
    return steps.VerifiedDraft(
        silence="" if verdict.is_postable else "rejected",
        fields={
            "is_good_enough": verdict.is_postable,
            "issues_count": len(verdict.issues),
            "has_fix": bool(fix),
        },
        words={"reason": verdict.reason, "issues": verdict.issues, **fix},
    )


SEPARATE = steps.StepTable(
    gate=gate,
    select=select,
    load=load,
    generate=generate,
    verify=verify,
    prompts={
        "gate": prompts.GATE,
        "selection": prompts.SELECT,
        "generation": prompts.ANSWER,
        "verification": prompts.VERIFY,
    },
)
"""The steps of `ai.steps = "separate"`."""
