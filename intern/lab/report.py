"""A backtest as an HTML page, and as a short table. All texts in it come from strangers, so all are escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.resources import files
from operator import attrgetter

from jinja2 import DictLoader, Environment, StrictUndefined
from msgspec import Struct

from intern.lab.outcomes import VERDICTS, BacktestOutcome, BacktestReport
from intern.lab.plot import draw_curve
from intern.service.calibration import simulate_calibration

_EXAMPLES = 10  # of each kind: few people read more


class ExampleGroup(Struct, frozen=True, kw_only=True):
    """A group of example questions."""

    title: str
    about: str
    outcomes: tuple[BacktestOutcome, ...]
    of: int
    """The total number of questions in the group."""


def summary_rows(done: BacktestReport) -> Iterator[tuple[str, int, str]]:
    """Yield the rows of the summary: label, number, and a remark."""
    totals = done.totals
    yield "questions asked", totals.questions, f"the team answered {totals.team_answered} of them"
    remarks = {"agreed": f"words {done.bars.words:g} or vectors {done.bars.vectors:g} and above count as alike"}
    for verdict, word in VERDICTS.items():
        if number := totals.verdicts.get(verdict, 0):
            yield word, number, remarks.get(verdict, "")
        if verdict == "silent":
            for silence in totals.silences:
                yield f"  {silence.reason}", silence.questions, f"the team answered {silence.team_answered}"
    for reason, number in totals.could_not_look.items():
        yield f"  {reason}", number, ""
    if totals.team_was_first:
        yield "answers kept back", totals.team_was_first, "the team was quicker than the pause that the bot waits for"
    for reason, number in done.left_out.items():
        yield f"left out: {reason}", number, ""
    yield "conversations learned", done.learned.conversations, f"in {done.learned.topics} topics"
    yield "tokens of answers", totals.answering.tokens, _format_cost(done, totals.answering.cost)
    yield "tokens of learning", totals.learning.tokens, _format_cost(done, totals.learning.cost)


def format_table(done: BacktestReport) -> str:
    """Return the summary for a terminal."""
    rows = list(summary_rows(done))
    width = max(len(name) for name, _, _ in rows)
    lines = [f"{name:<{width}}  {number:>9}  {remark}".rstrip() for name, number, remark in rows]
    if not done.finished:
        lines.insert(0, f"stopped after {done.totals.questions} of {done.questions} questions")
    return "\n".join(lines)


def choose_examples(done: BacktestReport) -> tuple[ExampleGroup, ...]:
    """Choose the first examples to read: the best, the worst, and missed questions."""

    def build_group(title: str, about: str, outcomes: Sequence[BacktestOutcome]) -> ExampleGroup:
        return ExampleGroup(title=title, about=about, outcomes=tuple(outcomes[:_EXAMPLES]), of=len(outcomes))

    def with_verdict(verdict: str) -> list[BacktestOutcome]:
        return [each for each in done.outcomes if each.verdict == verdict]

    alike = attrgetter("likeness.best")
    missed = [each for each in with_verdict("silent") if each.team is not None and each.reason != "team_answered"]
    wanted = (
        build_group(
            "Best", "Answered like the team; most alike first.", sorted(with_verdict("agreed"), key=alike, reverse=True)
        ),
        build_group(
            "Worst", "Answered unlike the team; least alike first.", sorted(with_verdict("differed"), key=alike)
        ),
        build_group("Not comparable", "The team said too little to be compared.", with_verdict("not_comparable")),
        build_group("Alone", "Answered where the team never did; newest first.", with_verdict("team_silent")[::-1]),
        build_group("Silent", "Stayed silent where the team answered; newest first.", missed[::-1]),
        build_group("Failed", "Could not be looked up; newest first.", with_verdict("could_not_look")[::-1]),
    )
    return tuple(each for each in wanted if each.of)


def render_page(done: BacktestReport) -> bytes:
    """Render the report as one HTML file that loads nothing and runs no script."""
    folder = files("intern.lab") / "templates"
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in ("backtest.html", "backtest.css")}
    made = Environment(
        loader=DictLoader(texts), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style, stands = texts["backtest.css"], simulate_calibration(done.max_wrong, done.judgements)
    page = made.get_template("backtest.html").render(
        done=done,
        rows=list(summary_rows(done)),
        examples=choose_examples(done),
        plot=draw_curve(
            stands.curve,
            judged=stands.judged,
            max_wrong=done.max_wrong,
            score=None if stands.found is None else stands.found.score,
            gives_none=stands.none_keeps,
        ),
        missing=stands.missing,
        verdicts=VERDICTS,
        style=style,
        # Allow only the style sheet, by its hash.
        policy=f"default-src 'none'; style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}';"
        " base-uri 'none'; form-action 'none'",
    )
    return page.encode("utf-8", "replace")  # a message may contain half a surrogate pair


def _format_cost(done: BacktestReport, cost: float) -> str:
    return f"{cost:.4f} {done.currency}" if done.priced else ""
