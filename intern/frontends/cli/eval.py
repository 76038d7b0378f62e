"""`intern eval`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from intern.frontends.cli.options import say, settings_of, show, show_json
from intern.frontends.cli.progress import Asking

if TYPE_CHECKING:
    from intern.lab.evaluation import Comparison, Evaluation, Outcome, Totals

_MOST_UNKNOWN = 5  # expected sources that are named one by one
_AT_A_TIME = 4  # questions; an endpoint's own limits hold, too


@click.command("eval")
@click.argument("file", metavar="QUESTIONS.JSONL", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The whole result as one JSON object on stdout, to be kept.")
@click.option(
    "--compare",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="OLD.JSON",
    help="Also say what is different from this earlier result.",
)
@click.option("--concurrency", type=click.IntRange(min=1), help="Questions at the same time; else 4, offline 1.")
@click.pass_context
def command(ctx: click.Context, *, file: Path, as_json: bool, compare: Path | None, concurrency: int | None) -> None:
    """Ask a file of questions, and say how well they were answered.

    One JSON object a line: {"question": "How do I …?", "expected_sources": ["kb:guides/", "team:keys.txt"],
    "should_reply": true, "id": "q1"}. All but the question may be left out. An expected source may be the beginning of
    an id; to cite one of them is right.

    Exit code 0: done, with any result. 2: the file is wrong. 3: some questions could not be looked up.
    """
    settings = settings_of(ctx, tells_itself=True, needs_folder=True)
    from intern.lab.evaluation import (
        Evaluation,
        compared,
        outcomes_of,
        read_evaluation,
        read_questions,
        totals_of,
        unknown_sources,
    )
    from intern.service.intern import open_intern

    questions = read_questions(file)
    older = read_evaluation(compare) if compare else None
    offline = settings.llm.kind == "offline"

    async def work() -> int:
        asked = Asking(len(questions))
        async with open_intern(settings) as intern:
            entries = await intern.entries()
            unknown = unknown_sources(questions, entries)
            outcomes = await outcomes_of(
                intern,
                questions,
                concurrency=concurrency or (1 if offline else _AT_A_TIME),
                tell=lambda outcome: asked.one(outcome.tokens),
            )
        done = Evaluation(
            at=datetime.now(UTC),
            model="offline" if offline else settings.llm.model,
            outcomes=outcomes,
            totals=totals_of(outcomes),
            unknown_sources=unknown,
            comparison=compared(older.outcomes, outcomes) if older else None,
        )
        if as_json:
            show_json(done)
        else:
            show("\n".join(_lines_of(done)))
        if not entries:
            say(f"nothing is indexed yet: put documents into {settings.paths.sources}, then run: intern index")
        elif unknown:
            named = ", ".join(unknown[:_MOST_UNKNOWN]) + (", …" if len(unknown) > _MOST_UNKNOWN else "")
            say(f"expected sources that no index lists: {len(unknown)} ({named})")
        return 3 if any(outcome.verdict == "could_not_look" for outcome in outcomes) else 0

    sys.exit(anyio.run(work))


def _lines_of(done: Evaluation) -> Iterator[str]:
    from intern.lab.evaluation import VERDICTS

    width = max(map(len, VERDICTS.values()))
    for outcome in done.outcomes:
        said = f"{VERDICTS[outcome.verdict]:{width}}  {outcome.tokens:6} tokens  {outcome.seconds:6.2f} s  "
        yield said + _name_of(outcome) + _detail_of(outcome)
    yield ""
    yield from _totals_told(done.totals)
    if done.comparison:
        yield ""
        yield from _comparison_told(done.comparison)


def _name_of(outcome: Outcome) -> str:
    question = _on_a_line(outcome.question, 60)
    return question if outcome.id == outcome.question else f"{_on_a_line(outcome.id, 30)}: {question}"


def _detail_of(outcome: Outcome) -> str:
    if outcome.verdict == "could_not_look":
        return f"  [{outcome.reason}: {_on_a_line(outcome.error, 200)}]" if outcome.error else f"  [{outcome.reason}]"
    if outcome.verdict == "silent_wrong" and outcome.expected_sources:
        found = any(source.startswith(outcome.expected_sources) for source in outcome.selected)
        return f"  [{outcome.reason}; the right source was {'read' if found else 'not read'}]"
    if outcome.verdict == "wrong_source":
        return f"  [{', '.join(outcome.citations) or 'none'}, not {', '.join(outcome.expected_sources)}]"
    return f"  [{outcome.reason or ', '.join(outcome.citations) or 'no source'}]"


def _totals_told(totals: Totals) -> Iterator[str]:
    from intern.lab.evaluation import VERDICTS

    counts = ", ".join(f"{totals.verdicts[each]} {word}" for each, word in VERDICTS.items() if each in totals.verdicts)
    yield f"{totals.questions} questions: {counts}"
    prompts = ", ".join(f"{prompt} {spent}" for prompt, spent in totals.tokens_by_prompt.items())
    each = totals.tokens // max(totals.questions, 1)
    yield f"tokens: {totals.tokens}, {each} a question" + (f" ({prompts})" if prompts else "")
    if totals.cached_tokens:
        yield f"of these, from the endpoint's cache: {totals.cached_tokens}"
    yield f"seconds a question: {totals.median_seconds:.2f} (median), {totals.longest_seconds:.2f} at most"


def _comparison_told(comparison: Comparison) -> Iterator[str]:
    from intern.lab.evaluation import VERDICTS

    for change in comparison.changes:
        yield f"{change.way:6}  {_on_a_line(change.id, 60)}: {change.before} → {change.after}"
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


def _on_a_line(text: str, longest: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"
