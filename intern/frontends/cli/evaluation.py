"""`intern eval`: a file of questions, asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from intern.core.knowledge import IndexEntry
from intern.core.text.words import collapse_whitespace, truncate_text
from intern.frontends.cli.options import ask_folder, read_folder_settings
from intern.frontends.cli.output import say, show, show_result

if TYPE_CHECKING:
    from intern.lab.evaluation import Evaluation, EvaluationComparison, EvaluationOutcome, EvaluationTotals
    from intern.service.intern import Intern
from intern.frontends.cli.backtest import AT_A_TIME, progress_reporter

_READ = click.Path(exists=True, dir_okay=False, path_type=Path)
_MOST_UNKNOWN = 5  # expected sources that are named one by one


@click.command("eval")
@click.argument("file", metavar="QUESTIONS.JSONL", type=_READ)
@click.option("--json", "as_json", is_flag=True, help="The whole result as one JSON object on stdout, to be kept.")
@click.option("--compare", type=_READ, metavar="OLD.JSON", help="Also say what is different from this earlier result.")
@click.option("--concurrency", type=click.IntRange(min=1), help="Questions at the same time; else 4, offline 1.")
def eval(*, file: Path, as_json: bool, compare: Path | None, concurrency: int | None) -> None:  # noqa: A001 it is the name of the command
    """Ask a file of questions, and say how well they were answered.

    One JSON object a line: {"question": "How do I …?", "expected_sources": ["kb:guides/", "team:keys.txt"],
    "should_reply": true, "id": "q1"}. All but the question may be left out. An expected source may be the beginning of
    an id; to cite one of them is right.

    Exit code 0: done, with any result. 2: the file is wrong. 3: some questions could not be looked up.
    """
    settings = read_folder_settings()
    from intern.lab import evaluation

    questions = evaluation.read_questions(file)
    older = evaluation.read_evaluation(compare) if compare else None
    offline = settings.llm.kind == "offline"
    at_once = concurrency or (1 if offline else AT_A_TIME)

    async def work(intern: Intern) -> tuple[tuple[IndexEntry, ...], tuple[EvaluationOutcome, ...]]:
        entries, told = await intern.entries(), progress_reporter(len(questions))
        return entries, await evaluation.ask_questions(intern.answer, questions, concurrency=at_once, tell=told)

    entries, outcomes = ask_folder(work, settings)
    unknown = evaluation.find_unknown_sources(questions, entries)
    done = evaluation.Evaluation(
        at=datetime.now(UTC),
        model="offline" if offline else settings.llm.model,
        outcomes=outcomes,
        totals=evaluation.sum_outcomes(outcomes),
        unknown_sources=unknown,
        comparison=evaluation.compare_outcomes(older.outcomes, outcomes) if older else None,
    )
    show_result(done, lambda done: show("\n".join(_evaluation_lines(done))), as_json=as_json)
    if not entries:
        say(f"nothing is indexed yet: put documents into {settings.paths.sources}, then run: intern index")
    elif unknown:
        named = ", ".join(unknown[:_MOST_UNKNOWN]) + (", …" if len(unknown) > _MOST_UNKNOWN else "")
        say(f"expected sources that no index lists: {len(unknown)} ({named})")
    sys.exit(3 if any(outcome.verdict == "could_not_look" for outcome in outcomes) else 0)


def _evaluation_lines(done: Evaluation) -> Iterator[str]:
    from intern.lab.evaluation import VERDICTS

    width = max(map(len, VERDICTS.values()))
    for outcome in done.outcomes:
        said = f"{VERDICTS[outcome.verdict]:{width}}  {outcome.tokens:6} tokens  {outcome.seconds:6.2f} s  "
        yield said + _outcome_title(outcome) + _outcome_detail(outcome)
    yield ""
    yield from _totals_lines(done.totals)
    if done.comparison:
        yield ""
        yield from _comparison_lines(done.comparison)


def _outcome_title(outcome: EvaluationOutcome) -> str:
    question = _shorten_to_line(outcome.question, 60)
    return question if outcome.id == outcome.question else f"{_shorten_to_line(outcome.id, 30)}: {question}"


def _outcome_detail(outcome: EvaluationOutcome) -> str:
    if outcome.verdict == "could_not_look":
        return (
            f"  [{outcome.reason}: {_shorten_to_line(outcome.error, 200)}]"
            if outcome.error
            else f"  [{outcome.reason}]"
        )
    if outcome.verdict == "silent_wrong" and outcome.expected_sources:
        found = any(source.startswith(outcome.expected_sources) for source in outcome.selected)
        return f"  [{outcome.reason}; the right source was {'read' if found else 'not read'}]"
    if outcome.verdict == "wrong_source":
        return f"  [{', '.join(outcome.citations) or 'none'}, not {', '.join(outcome.expected_sources)}]"
    return f"  [{outcome.reason or ', '.join(outcome.citations) or 'no source'}]"


def _totals_lines(totals: EvaluationTotals) -> Iterator[str]:
    from intern.lab.evaluation import VERDICTS

    counts = ", ".join(f"{totals.verdicts[each]} {word}" for each, word in VERDICTS.items() if each in totals.verdicts)
    yield f"{totals.questions} questions: {counts}"
    prompts = ", ".join(f"{prompt} {spent}" for prompt, spent in totals.tokens_by_prompt.items())
    each = totals.tokens // max(totals.questions, 1)
    yield f"tokens: {totals.tokens}, {each} a question" + (f" ({prompts})" if prompts else "")
    if totals.cached_tokens:
        yield f"of these, from the endpoint's cache: {totals.cached_tokens}"
    yield f"seconds a question: {totals.median_seconds:.2f} (median), {totals.longest_seconds:.2f} at most"


def _comparison_lines(comparison: EvaluationComparison) -> Iterator[str]:
    from intern.lab.evaluation import VERDICTS

    for change in comparison.changes:
        yield f"{change.way:6}  {_shorten_to_line(change.id, 60)}: {change.before} → {change.after}"
    before, now = comparison.totals, comparison.totals_now
    yield f"of the {now.questions} questions that both asked, {len(comparison.changes)} went differently"
    for verdict, word in VERDICTS.items():
        old, new = before.verdicts.get(verdict, 0), now.verdicts.get(verdict, 0)
        if old != new:
            yield f"{word}: {old} → {new}"
    yield f"tokens: {before.tokens} → {now.tokens}"
    yield f"seconds a question (median): {before.median_seconds:.2f} → {now.median_seconds:.2f}"
    if comparison.added or comparison.missing:
        yield f"asked only now: {len(comparison.added)}; only then: {len(comparison.missing)}"


def _shorten_to_line(text: str, longest: int) -> str:
    return truncate_text(collapse_whitespace(text), longest)
