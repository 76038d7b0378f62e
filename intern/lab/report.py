"""A backtest as a page to be read, and as a short table. All texts in it are strangers', so all of them are escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.resources import files
from operator import attrgetter

from jinja2 import DictLoader, Environment, StrictUndefined
from msgspec import Struct

from intern.lab.outcomes import VERDICTS, Backtest, Outcome
from intern.lab.plot import plot_of
from intern.service.calibration import stands_of

_EXAMPLES = 10  # of each kind: few people read more


class Examples(Struct, frozen=True, kw_only=True):
    """Some of the questions, to be read."""

    title: str
    about: str
    outcomes: tuple[Outcome, ...]
    of: int
    """How many there are in all."""


def rows_of(done: Backtest) -> Iterator[tuple[str, int, str]]:
    """Yield the rows of the summary: what, how many, and a remark."""
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
    yield "tokens of answers", totals.answering.tokens, _cost(done, totals.answering.cost)
    yield "tokens of learning", totals.learning.tokens, _cost(done, totals.learning.cost)


def table_of(done: Backtest) -> str:
    """Return the summary for a terminal."""
    rows = list(rows_of(done))
    width = max(len(name) for name, _, _ in rows)
    lines = [f"{name:<{width}}  {number:>9}  {remark}".rstrip() for name, number, remark in rows]
    if not done.finished:
        lines.insert(0, f"stopped after {done.totals.questions} of {done.questions} questions")
    return "\n".join(lines)


def examples_of(done: Backtest) -> tuple[Examples, ...]:
    """Choose what to read first: the best, the worst, and missed questions."""

    def some(title: str, about: str, outcomes: Sequence[Outcome]) -> Examples:
        return Examples(title=title, about=about, outcomes=tuple(outcomes[:_EXAMPLES]), of=len(outcomes))

    def of(verdict: str) -> list[Outcome]:
        return [each for each in done.outcomes if each.verdict == verdict]

    alike = attrgetter("likeness.best")
    missed = [each for each in of("silent") if each.team is not None and each.reason != "team_answered"]
    wanted = (
        some("Best", "Answered like the team; most alike first.", sorted(of("agreed"), key=alike, reverse=True)),
        some("Worst", "Answered unlike the team; least alike first.", sorted(of("differed"), key=alike)),
        some("Not comparable", "The team said too little to be compared.", of("not_comparable")),
        some("Alone", "Answered where the team never did; newest first.", of("team_silent")[::-1]),
        some("Silent", "Stayed silent where the team answered; newest first.", missed[::-1]),
        some("Failed", "Could not be looked up; newest first.", of("could_not_look")[::-1]),
    )
    return tuple(each for each in wanted if each.of)


def page_of(done: Backtest) -> bytes:
    """Render the report as one HTML file that loads nothing and runs nothing."""
    folder = files("intern.lab") / "templates"
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in ("backtest.html", "backtest.css")}
    made = Environment(
        loader=DictLoader(texts), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style, stands = texts["backtest.css"], stands_of(done.max_wrong, done.judgements)
    page = made.get_template("backtest.html").render(
        done=done,
        rows=list(rows_of(done)),
        examples=examples_of(done),
        plot=plot_of(
            stands.curve,
            judged=stands.judged,
            max_wrong=done.max_wrong,
            score=None if stands.found is None else stands.found.score,
            gives_none=stands.none_keeps,
        ),
        missing=stands.missing,
        verdicts=VERDICTS,
        style=style,
        # The one style sheet, known by its hash; else nothing at all.
        policy=f"default-src 'none'; style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}';"
        " base-uri 'none'; form-action 'none'",
    )
    return page.encode("utf-8", "replace")  # a message may hold half a character


def _cost(done: Backtest, cost: float) -> str:
    return f"{cost:.4f} {done.currency}" if done.priced else ""
