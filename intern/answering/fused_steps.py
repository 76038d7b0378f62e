"""From a question to an answer in two calls: the search chooses, one call decides and answers, one checks.

The five steps of the specification remain, each with its result: the gate and the generation share a reply, and the
search does the selection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice

import anyio.to_thread
from msgspec import structs

from intern.answering import prompts, steps
from intern.answering.addresses import find_strange_urls
from intern.answering.citations import clean_answer
from intern.answering.closest_passage import MOST_QUOTED, find_closest, format_quoted_passage
from intern.answering.draft_checks import REFUSALS, check_draft
from intern.answering.grounding import check_grounding
from intern.answering.passages import select_passages
from intern.answering.question_text import find_unknown_names, without_mentions
from intern.answering.quotes import MAX_QUOTE, excerpt_around, find_nearest_sentence, find_quoted_line, has_quote
from intern.answering.source_index import build_source_index
from intern.answering.triage import WORTH_A_CALL, is_chatter, score_message
from intern.core.ids import SourceId
from intern.core.knowledge import SourceText
from intern.core.messages import SilenceReason, is_team_source
from intern.core.search_documents import PassageHit
from intern.core.text.passages import select_best_passages
from intern.core.text.words import stem_words

_RANKED = 24  # passages that the search proposes; some may be copies, too long, or unreadable
_BEFORE_DISTILLED = 3
_FEW_WORDS = 6  # of a question that may depend on earlier messages
_SURE = 0.8  # the least share of an answer's words in the question and the cited passages
_SPEAKER = re.compile(r"^(?:Team|User): ")
_OF_BOT = re.compile(r"^bot: ", re.MULTILINE)
_POINTED_AT = 2  # lines that the prompt points to
_POINTED_CHARS = 160
_MOST_NAMES = 3
_MOST_EVIDENCE = 350  # characters of a passage that the check is shown


async def gate(work: steps.QuestionWork) -> steps.GateResult:
    """Refuse chatter that is not addressed to the bot; later steps decide on other messages."""
    if not work.asked.addressed and is_chatter(work.asked.question):
        return steps.GateResult(silence="not_a_question", fields={"by": "code", "kind": "chatter"})
    return steps.GateResult(fields={"by": "model", "kind": ""})


async def select(work: steps.QuestionWork) -> steps.SelectedSources:
    """Choose the sources whose passages fit best; if the search cannot tell or finds none, by their descriptions.

    Refuse an unaddressed message that is not near to any source.
    """
    asked, query = work.asked, _build_query(work)
    entries = tuple(await work.knowledge.entries())
    hits = await work.knowledge.find_hits(query, _RANKED) if entries else ()
    by_text = hits is not None
    # A member who addresses the bot gets a reply: a model tells an unanswerable question from thanks.
    if hits is None or (asked.addressed and not hits):
        index = await anyio.to_thread.run_sync(build_source_index, entries)
        ranked = islice(index.rank_entries(query), prompts.MOST_SHOWN)
        hits = [PassageHit(source_id=index.entries[n].source_id) for n in ranked]
    learned = await work.knowledge.find_distilled(query)
    best = learned.nuggets[:1]
    # At equal score, the team's words come before documents.
    order = sorted(hits, key=lambda hit: (-round(hit.score, 2), not is_team_source(hit.source_id)))
    # Nuggets and facts are worth a place behind the first few.
    distilled = [PassageHit(source_id=each.source_id) for each in best]
    distilled += [PassageHit(source_id=fact.source_id) for fact in learned.facts]
    near = (*order[:_BEFORE_DISTILLED], *distilled, *order[_BEFORE_DISTILLED:])
    # A short index is shown whole if its texts are short enough, too.
    few = entries if len(entries) <= prompts.MOST_SHOWN else ()
    facts = {fact.source_id for fact in learned.facts}
    found = dict.fromkeys(hit.source_id for hit in near)
    named = dict.fromkeys((*found, *(entry.source_id for entry in few)))
    firsts = steps.first_per_source(hits)
    likenesses = tuple(hit.likeness for hit in firsts if hit.likeness is not None)
    silence: SilenceReason = ""
    of_gate: Mapping[str, object] = {}
    # Other messages may be about more than the passages.
    is_plain = not (asked.addressed or asked.images or asked.telling or asked.begun or _OF_BOT.search(asked.history))
    if is_plain and by_text and hits and not facts:
        told = [PassageHit(source_id=each.source_id, text=each.description, likeness=learned.likeness) for each in best]
        score = score_message(asked.question, query, (*told, *firsts))
        if score is not None and score < WORTH_A_CALL:
            asks = asked.looks_like_a_question
            silence = "no_sources" if asks else "not_a_question"
            of_gate = {"by": "code", "kind": "not_covered" if asks else "chatter", "score": round(score, 3)}
    return steps.SelectedSources(
        silence=silence,
        source_ids=tuple(each for each in named if each not in facts),
        facts=learned.facts,
        hits=near,
        is_all=bool(few),
        likenesses=likenesses,
        fields={
            "selected_sources_count": len(near),
            "source_ids": tuple(found),
            "entries_count": len(entries),
            "searched": by_text,
            "likeness": max(likenesses, default=None),
            "facts": tuple(fact.source_id for fact in learned.facts),
        },
        of_gate=of_gate,
    )


def _build_query(work: steps.QuestionWork) -> str:
    """Return the search text: a short question is joined with the last message of its asker."""
    question = work.asked.build_query()
    if not work.asked.history or len(stem_words(question)) > _FEW_WORDS:
        return question
    lines = [line for line in work.asked.history.split("\n") if line.startswith("asker: ")]
    return "\n".join([*(line.removeprefix("asker: ")[:300] for line in lines[-1:]), question])


async def load(work: steps.QuestionWork, selected: steps.SelectedSources) -> steps.LoadedSources[prompts.ShownPassage]:
    """Read the sources as they are now, and cut passages."""
    sources, failed = await steps.read_sources(work, selected)
    return await anyio.to_thread.run_sync(_choose_passages, work, selected, sources, failed)


def _choose_passages(
    work: steps.QuestionWork, selected: steps.SelectedSources, sources: Mapping[SourceId, SourceText], failed: int
) -> steps.LoadedSources[prompts.ShownPassage]:
    query, room = _build_query(work), work.options.max_passage_chars
    whole = selected.is_all and not failed
    shown = steps.strip_prompt_injections(select_passages(selected.hits, sources, query, room, whole=whole))
    most = min(MOST_QUOTED, work.options.max_answer_chars)
    return steps.LoadedSources(
        silence="" if shown else "sources_unreadable" if failed else "no_sources",
        query=query,
        shown=shown,
        closest=find_closest(work.asked.build_query(), selected.hits, shown, sources, most),
        fields={
            "loaded_sources_count": len(selected.source_ids) - failed,
            "unreadable_sources_count": failed,
            "shown_chars": sum(len(passage.text) for passage in shown),
            "shown": tuple(passage.source_id for passage in shown),
        },
    )


async def generate(work: steps.QuestionWork, loaded: steps.LoadedSources[prompts.ShownPassage]) -> steps.CheckedDraft:
    """Decide and answer in one call, and check both against the passages as far as code can."""
    # Small models quote the first line unless the prompt points at the nearest lines.
    question = without_mentions(loaded.query)
    ranked = [] if work.nearest is None else await work.nearest.rank_lines(question, loaded.shown)
    near = [each for each in ranked if each.rank > 0][:_POINTED_AT]
    given = prompts.DecideIn(
        passages=tuple(loaded.shown),
        history=work.asked.history,
        question=work.asked.question,
        nearest=tuple(f"{each.passage.alias}: {each.text[:_POINTED_CHARS]}" for each in near),
        closest=loaded.closest,
        addressed=work.asked.addressed,
    )
    decision = await work.model.ask(prompts.DECIDE, given, images=work.asked.images)
    return await anyio.to_thread.run_sync(_check_decision, work, decision, loaded)


def _check_decision(
    work: steps.QuestionWork, decision: prompts.AnswerDecision, loaded: steps.LoadedSources[prompts.ShownPassage]
) -> steps.CheckedDraft:
    """Check a decision as far as code can. A passage that is read on vouches for itself."""
    shown, closest = loaded.shown, loaded.closest
    quotes = tuple(_match_quotes(decision, shown))
    draft = steps.CheckedDraft(silence=REFUSALS.get(decision.kind, ""))
    if decision.kind == "answer":
        named = set(decision.citations)
        of_quotes = {passage.alias for passage, _ in quotes}
        cited = tuple(passage for passage in shown if passage.alias in of_quotes or passage.alias in named)
        vouching = [passage for passage in cited if passage.alias in of_quotes]
        text = clean_answer(decision.answer)
        by_rules = closest if work.nearest is None else None
        if by_rules is not None and decision.answer == by_rules.text:
            vouching = [structs.replace(by_rules.passage, text=by_rules.text)]
        lines = {passage.source_id: line for passage, line in reversed(quotes)}
        draft = structs.replace(
            check_draft(work, text, cited, vouching, is_cited=bool(quotes)),
            citations=tuple(
                steps.DraftCitation(SourceId(each.source_id), each, lines.get(each.source_id))
                for each in steps.first_per_source(cited)
            ),
            quoted=len(quotes) / max(len(decision.quotes), 1),
            unnamed=tuple(find_unknown_names(work.asked.said, shown)[:_MOST_NAMES]),
            is_near=closest is not None
            and closest.surplus >= 0
            and any(passage == closest.passage and has_quote(closest.text, line) for passage, line in quotes),
            passage=format_quoted_passage(by_rules) if by_rules is not None and text == by_rules.text else "",
        )
    return structs.replace(
        draft,
        quotes=quotes,
        fields={
            "answer_chars": len(draft.text),
            "citations": tuple(passage.source_id for passage in draft.cited),
            "quotes_count": len(quotes),
            "strange_quotes_count": len(decision.quotes) - len(quotes),
            "strange_count": len(draft.urls) + len(draft.strange),
            "suspicions_count": len(draft.suspicions),
            "unnamed_count": len(draft.unnamed),
        },
        words={
            "answer": decision.answer or "",
            "quotes": [quote.line for quote in decision.quotes],
            "strange": (*draft.urls, *draft.strange),
        },
        of_gate={"kind": decision.kind},
    )


def _match_quotes(
    decision: prompts.AnswerDecision, shown: Sequence[prompts.ShownPassage]
) -> list[tuple[prompts.ShownPassage, str]]:
    """Return the quoted sentences that were shown, each with its passage, even if the model gave another's alias.

    A sentence is returned without its speaker; the line that it is in may be a long paragraph.
    """
    found: list[tuple[prompts.ShownPassage, str]] = []
    for quote in decision.quotes:
        for passage in sorted(shown, key=lambda each: each.alias != quote.source):
            if (line := find_quoted_line(passage.text, quote.line)) is not None:
                said = _SPEAKER.sub("", line)
                found.append((passage, find_nearest_sentence(quote.line, said) or said[:MAX_QUOTE]))
                break
    return found


async def verify(
    work: steps.QuestionWork, _: steps.LoadedSources[prompts.ShownPassage], draft: steps.CheckedDraft
) -> steps.VerifiedDraft:
    """Check the answer: does it answer the question, and does a quoted passage support each claim?"""
    if work.options.verify == "unsure" and _is_sure(work, draft):
        return steps.VerifiedDraft(by_model=False, fields={"by": "code", "is_good_enough": True, "issues_count": 0})
    given = prompts.ConfirmIn(
        quotes=tuple(_collect_evidence(draft)),
        question=work.asked.question,
        history=work.asked.history,
        answer=draft.text,
        suspicions=draft.suspicions,
        unnamed=draft.unnamed,
    )
    verdict: prompts.Confirmation = await work.model.ask(prompts.CONFIRM, given)
    holds, unquoted = verdict.is_postable(len(given.quotes)), verdict.list_unsupported(len(given.quotes))
    return steps.VerifiedDraft(
        silence="" if holds else "rejected",
        fields={
            "by": "model",
            "is_good_enough": holds,
            "verdict": verdict.verdict,
            "claims_count": len(verdict.claims),
            "issues_count": len(unquoted),
        },
        words={"asked": verdict.asked, "told": verdict.told, "issues": unquoted},
    )


def _collect_evidence(draft: steps.CheckedDraft) -> list[prompts.Evidence]:
    """Return the quoted passages, each once, cut to the surroundings of the quoted lines.

    Then come passages that are cited without a quote, cut to the parts that fit the answer.
    """
    quoted: dict[str, list[str]] = {}
    for passage, line in draft.quotes:
        quoted.setdefault(passage.text, []).append(line)
    cut = [excerpt_around(text, lines, _MOST_EVIDENCE) for text, lines in quoted.items()]
    others = dict.fromkeys(each.text for each in draft.cited if each.text not in quoted)
    cut += [select_best_passages(text, draft.text, _MOST_EVIDENCE) for text in others]
    return [prompts.Evidence(number=number, text=text) for number, text in enumerate(cut, 1)]


def _is_sure(work: steps.QuestionWork, draft: steps.CheckedDraft) -> bool:
    """Return whether code alone is sure: near to the question, nothing suspicious, few words of its own."""
    if draft.suspicions or draft.unnamed or not draft.is_near:
        return False
    # Readers follow a command or an address, so the very line with it must be quoted.
    lines = [line for _, line in draft.quotes]
    if find_strange_urls(draft.text, lines, ()) or check_grounding(draft.text, lines, ()).strange:
        return False
    said = set(stem_words(draft.text))
    quoted = set(stem_words("\n".join((*(passage.text for passage, _ in draft.quotes), work.asked.question))))
    return bool(said) and len(said & quoted) >= _SURE * len(said)


FUSED = steps.StepTable(
    gate=gate,
    select=select,
    load=load,
    generate=generate,
    verify=verify,
    prompts={"generation": prompts.DECIDE, "verification": prompts.CONFIRM},
)
"""The steps of `ai.steps = "fused"`."""
