"""From a question to an answer in two calls: the search chooses, one call decides and answers, one checks.

The five steps of the specification remain, each with its result: the gate and the generation share a reply, and the
search does the selection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

import anyio.to_thread
from msgspec import Struct, structs

from intern.answering import draft_checks, prompts, question_work
from intern.answering.citations import clean_answer, get_source_id
from intern.answering.closest_passage import MOST_QUOTED, find_closest, format_quoted_passage
from intern.answering.confidence import collect_signals, withhold_if_unsure
from intern.answering.draft_checks import REFUSALS, CheckedDraft, check_draft, make_silence
from intern.answering.passages import order_hits, select_passages, select_whole_sources
from intern.answering.question_text import find_unknown_names, without_mentions
from intern.answering.question_work import QuestionWork, first_per_source, make_citation, read_sources
from intern.answering.quotes import MAX_QUOTE, excerpt_around, find_nearest_sentence, find_quoted_line, has_quote
from intern.answering.source_index import build_source_index, drop_duplicates
from intern.answering.triage import WORTH_A_CALL, is_chatter, score_message
from intern.core.ids import SourceId
from intern.core.knowledge import SourceText
from intern.core.log import get_logger
from intern.core.messages import AnswerResult
from intern.core.search_documents import PassageHit
from intern.core.text.passages import select_best_passages
from intern.core.text.patterns import regex
from intern.core.text.words import stem_words

_log = get_logger(__name__)

_RANKED = 24  # passages that the search proposes; some may be copies, too long, or unreadable
_BEFORE_DISTILLED = 3
_FEW_WORDS = 6  # of a question that may depend on earlier messages
_SURE = 0.8  # the least share of an answer's words in the question and the cited passages
_SPEAKER = regex(r"^(?:Team|User): ")
_OF_BOT = regex(r"^bot: ", re.MULTILINE)
_POINTED_AT = 2  # lines that the prompt points to
_POINTED_CHARS = 160
_MOST_NAMES = 3
_MOST_EVIDENCE = 350  # characters of a passage that the check is shown


class ProposedSources(Struct, frozen=True, kw_only=True):
    """The sources that the search proposes."""

    hits: tuple[PassageHit, ...]
    """The hits, best first."""
    others: tuple[SourceId, ...] = ()
    """The rest of a short index, which is shown whole if its texts are short enough, too."""
    is_all: bool = False
    """Whether these are all existing sources."""
    facts: tuple[SourceText, ...] = ()
    """Facts that fit, loaded already."""
    likenesses: tuple[float, ...] = ()
    """The similarity of the question and each found source, as far as they were compared."""
    worth: float | None = None
    """The score by `triage.score_message`; None where a model is asked in any case."""


async def answer_fused(work: QuestionWork) -> AnswerResult:
    """Answer a question, or return silence with its reason. Raises `InternError`."""
    if not work.asked.question or not may_be_question(work):
        return make_silence("not_a_question")
    selected = await select(work)
    if selected.worth is not None and selected.worth < WORTH_A_CALL:
        return ignore_message(work, selected.worth)
    shown, failed, closest = await load(work, selected)
    if not shown:
        return make_silence("sources_unreadable" if failed else "no_sources")
    draft = await generate(work, shown, closest)
    if draft.reason or not await verify(work, draft):
        return make_silence(draft.reason or "rejected")
    quotes = {passage.source_id: line for passage, line in reversed(draft.quotes)}
    cited = first_per_source(draft.cited)
    citations = [await make_citation(work, SourceId(id_ := each.source_id), each, quotes.get(id_)) for each in cited]
    by_rules = work.nearest is None
    text = format_quoted_passage(closest) if by_rules and closest and draft.text == closest.text else draft.text
    answer = AnswerResult(should_reply=True, reply_text=text, citations=tuple(citations))
    confirmed = work.trace.steps["verification"]["by"] == "model"
    sign = partial(collect_signals, build_query(work), draft, shown, selected.likenesses, confirmed=confirmed)
    return await withhold_if_unsure(
        work, answer, await anyio.to_thread.run_sync(sign), _order_passages(draft, selected, shown)
    )


def _order_passages(
    draft: CheckedDraft, selected: ProposedSources, shown: Sequence[prompts.ShownPassage]
) -> list[prompts.ShownSource]:
    """Order passages: first those that the answer cites, then by the search's ranking of their sources."""
    places = {hit.source_id: place for place, hit in enumerate(first_per_source(selected.hits))}
    others = [each for each in shown if each not in draft.cited]
    return [*draft.cited, *sorted(others, key=lambda each: places.get(get_source_id(each.source_id), len(places)))]


def may_be_question(work: QuestionWork) -> bool:
    """Return whether a message may be a question; one that is addressed to the bot always may be."""
    with work.trace.step("gate") as fields:
        chatter = not work.asked.addressed and is_chatter(work.asked.question)
        fields.update(by="code" if chatter else "model", kind="chatter" if chatter else "")
        return not chatter


def ignore_message(work: QuestionWork, score: float) -> AnswerResult:
    """Return silence for an unaddressed message that is not near to any source. The trace has the score."""
    asks = work.asked.looks_like_a_question
    work.trace.steps["gate"].update(by="code", kind="not_covered" if asks else "chatter", score=round(score, 3))
    return make_silence("no_sources" if asks else "not_a_question")


async def select(work: QuestionWork) -> ProposedSources:
    """Choose the sources whose passages fit best; if the search cannot tell or finds none, by their descriptions."""
    with work.trace.step("selection") as fields:
        entries = tuple(await work.knowledge.entries())
        query = build_query(work)
        hits = await work.knowledge.find_hits(query, _RANKED) if entries else ()
        by_text = hits is not None
        # A member who addresses the bot gets a reply: a model tells an unanswerable question from thanks.
        if hits is None or (work.asked.addressed and not hits):
            index = await anyio.to_thread.run_sync(build_source_index, entries)
            hits = [
                PassageHit(source_id=index.entries[n].source_id)
                for n in islice(index.rank_entries(query), prompts.MOST_SHOWN)
            ]
        learned = await work.knowledge.find_distilled(query)
        best = learned.nuggets[:1]
        order = order_hits(hits)
        # Nuggets and facts are worth a place behind the first few.
        distilled = [each.source_id for each in best] + [each.source_id for each in learned.facts]
        near = (
            *order[:_BEFORE_DISTILLED],
            *(PassageHit(source_id=each) for each in distilled),
            *order[_BEFORE_DISTILLED:],
        )
        known = {hit.source_id for hit in near}
        few = entries if len(entries) <= prompts.MOST_SHOWN else ()
        told = [PassageHit(source_id=each.source_id, text=each.description, likeness=learned.likeness) for each in best]
        judged = by_text and bool(hits) and not learned.facts and can_be_ignored(work)
        firsts = first_per_source(hits)
        selected = ProposedSources(
            hits=near,
            others=tuple(entry.source_id for entry in few if entry.source_id not in known),
            is_all=bool(few),
            facts=learned.facts,
            likenesses=tuple(hit.likeness for hit in firsts if hit.likeness is not None),
            worth=score_message(work.asked.question, query, (*told, *firsts)) if judged else None,
        )
        fields.update(
            selected_sources_count=len(selected.hits),
            source_ids=tuple(dict.fromkeys(hit.source_id for hit in selected.hits)),
            entries_count=len(entries),
            searched=by_text,
            likeness=max(selected.likenesses, default=None),
            facts=tuple(fact.source_id for fact in selected.facts),
        )
        return selected


def can_be_ignored(work: QuestionWork) -> bool:
    """Return whether the score may decide: not if addressed, with a picture or a file, or after the bot spoke."""
    asked = work.asked
    return not (asked.addressed or asked.images or asked.telling or asked.begun or _OF_BOT.search(asked.history))


def build_query(work: QuestionWork) -> str:
    """Return the search text: a short question is joined with the last message of its asker."""
    question = work.asked.build_query()
    if not work.asked.history or len(stem_words(question)) > _FEW_WORDS:
        return question
    lines = [line for line in work.asked.history.split("\n") if line.startswith("asker: ")]
    return "\n".join([*(line.removeprefix("asker: ")[:300] for line in lines[-1:]), question])


async def load(
    work: QuestionWork, selected: ProposedSources
) -> tuple[Sequence[prompts.ShownPassage], int, prompts.ClosestPassage | None]:
    """Read the sources as they are now and cut passages; return these, the number of unreadable sources, and the best.

    The best passage is the one to quote without a model.
    """
    with work.trace.step("loading") as fields:
        facts = {fact.source_id for fact in selected.facts}
        named = dict.fromkeys([*(hit.source_id for hit in selected.hits), *selected.others])
        ids = [each for each in named if each not in facts]
        sources = await read_sources(work.knowledge, ids)
        texts = {each.source_id: each for each in drop_duplicates((*sources, *selected.facts))}
        shown = question_work.strip_prompt_injections(
            await anyio.to_thread.run_sync(_choose_passages, work, selected, sources, texts)
        )
        most = min(MOST_QUOTED, work.options.max_answer_chars)
        closest = await anyio.to_thread.run_sync(
            find_closest, work.asked.build_query(), selected.hits, shown, texts, most
        )
        fields.update(
            loaded_sources_count=len(sources),
            unreadable_sources_count=len(ids) - len(sources),
            shown_chars=sum(len(passage.text) for passage in shown),
            shown=tuple(passage.source_id for passage in shown),
        )
        return shown, len(ids) - len(sources), closest


def _choose_passages(
    work: QuestionWork,
    selected: ProposedSources,
    sources: Sequence[SourceText],
    texts: Mapping[SourceId, SourceText],
) -> tuple[prompts.ShownPassage, ...]:
    room = work.options.max_passage_chars
    read_all = len(sources) + len(selected.facts) == len({*(hit.source_id for hit in selected.hits), *selected.others})
    if (
        selected.is_all
        and read_all
        and (all_of_it := select_whole_sources(selected.hits, texts, build_query(work), room))
    ):
        return all_of_it
    return select_passages(selected.hits, texts, build_query(work), room)


async def generate(
    work: QuestionWork, shown: Sequence[prompts.ShownPassage], closest: prompts.ClosestPassage | None
) -> CheckedDraft:
    """Decide and answer in one call, and check both against the passages as far as code can."""
    with work.trace.step("generation", prompts.DECIDE) as fields:
        # Small models quote the first line unless the prompt points at the nearest lines.
        found = (
            await work.nearest.rank_lines(without_mentions(build_query(work)), shown)
            if work.nearest is not None
            else []
        )
        near = [each for each in found if each.rank > 0][:_POINTED_AT]
        given = prompts.DecideIn(
            passages=tuple(shown),
            history=work.asked.history,
            question=work.asked.question,
            nearest=tuple(f"{each.passage.alias}: {each.text[:_POINTED_CHARS]}" for each in near),
            closest=closest,
            addressed=work.asked.addressed,
        )
        decision = await work.model.ask(prompts.DECIDE, given, images=work.asked.images)
        work.trace.steps["gate"].update(kind=decision.kind)
        draft = await anyio.to_thread.run_sync(check_decision, work, decision, shown, closest)
        draft = structs.replace(draft, is_near=_is_near(draft, closest))
        fields.update(
            answer_chars=len(draft.text),
            citations=tuple(passage.source_id for passage in draft.cited),
            quotes_count=len(draft.quotes),
            strange_quotes_count=len(decision.quotes) - len(draft.quotes),
            strange_count=len(draft.urls) + len(draft.strange),
            suspicions_count=len(draft.suspicions),
            unnamed_count=len(draft.unnamed),
        )
        quotes = [quote.line for quote in decision.quotes]
        work.trace.record_texts(
            "generation", answer=decision.answer or "", quotes=quotes, strange=(*draft.urls, *draft.strange)
        )
        return draft


def _is_near(draft: CheckedDraft, closest: prompts.ClosestPassage | None) -> bool:
    if closest is None or closest.surplus < 0:
        return False
    return any(passage == closest.passage and has_quote(closest.text, line) for passage, line in draft.quotes)


def check_decision(
    work: QuestionWork,
    decision: prompts.AnswerDecision,
    shown: Sequence[prompts.ShownPassage],
    closest: prompts.ClosestPassage | None = None,
) -> CheckedDraft:
    """Check a decision as far as code can. A passage that is read on vouches for itself."""
    quotes = tuple(_match_quotes(decision, shown))
    if decision.kind != "answer":
        return CheckedDraft(reason=REFUSALS[decision.kind], quotes=quotes)
    named = set(decision.citations)
    of_quotes = {passage.alias for passage, _ in quotes}
    cited = tuple(passage for passage in shown if passage.alias in of_quotes or passage.alias in named)
    vouching = [passage for passage in cited if passage.alias in of_quotes]
    if work.nearest is None and closest is not None and decision.answer == closest.text:
        vouching = [structs.replace(closest.passage, text=closest.text)]
    check = check_draft(work, clean_answer(decision.answer), cited, vouching, is_cited=bool(quotes))
    quoted = len(quotes) / max(len(decision.quotes), 1)
    strange = tuple(find_unknown_names(work.asked.said, shown)[:_MOST_NAMES])
    return structs.replace(check, quotes=quotes, quoted=quoted, unnamed=strange)


def _match_quotes(
    decision: prompts.AnswerDecision, shown: Sequence[prompts.ShownPassage]
) -> list[tuple[prompts.ShownPassage, str]]:
    """Return the quoted sentences that were shown, each with its passage, even if the model gave another's alias."""
    found: list[tuple[prompts.ShownPassage, str]] = []
    for quote in decision.quotes:
        order = sorted(shown, key=lambda passage: passage.alias != quote.source)
        lines = ((passage, find_quoted_line(passage.text, quote.line)) for passage in order)
        found += [(passage, _extract_sentence(line, quote.line)) for passage, line in lines if line is not None][:1]
    return found


def _extract_sentence(line: str, quote: str) -> str:
    """Return the quoted sentence of a line, without the speaker. A line may be a long paragraph."""
    said = _SPEAKER.sub("", line)
    return find_nearest_sentence(quote, said) or said[:MAX_QUOTE]


async def verify(work: QuestionWork, draft: CheckedDraft) -> bool:
    """Check the answer: does it answer the question, and does a quoted passage support each claim?"""
    with work.trace.step("verification", prompts.CONFIRM) as fields:
        if work.options.verify == "unsure" and is_sure(work, draft):
            fields.update(by="code", is_good_enough=True, issues_count=0)
            return True
        given = prompts.ConfirmIn(
            quotes=tuple(collect_evidence(draft)),
            question=work.asked.question,
            history=work.asked.history,
            answer=draft.text,
            suspicions=draft.suspicions,
            unnamed=draft.unnamed,
        )
        verdict: prompts.Confirmation = await work.model.ask(prompts.CONFIRM, given)
        holds, unquoted = verdict.is_postable(len(given.quotes)), verdict.list_unsupported(len(given.quotes))
        fields.update(
            by="model",
            is_good_enough=holds,
            verdict=verdict.verdict,
            claims_count=len(verdict.claims),
            issues_count=len(unquoted),
        )
        work.trace.record_texts("verification", asked=verdict.asked, told=verdict.told, issues=unquoted)
        return holds


def collect_evidence(draft: CheckedDraft) -> list[prompts.Evidence]:
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


def is_sure(work: QuestionWork, draft: CheckedDraft) -> bool:
    """Return whether code alone is sure: near to the question, nothing suspicious, few words of its own."""
    if draft.suspicions or draft.unnamed or not draft.is_near:
        return False
    # Readers follow a command or an address, so the very line with it must be quoted.
    if draft_checks.has_strange_parts(draft.text, [line for _, line in draft.quotes]):
        return False
    said = set(stem_words(draft.text))
    quoted = set(stem_words("\n".join((*(passage.text for passage, _ in draft.quotes), work.asked.question))))
    return bool(said) and len(said & quoted) >= _SURE * len(said)
