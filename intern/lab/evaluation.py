"""Evaluation: a file of questions, answered as for members, and judged by the file's expectations.

It measures the effect of a change of prompts, documents or model. Nothing is learned from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec
from msgspec import Struct

from intern.core.errors import ConfigError
from intern.core.knowledge import IndexEntry
from intern.core.messages import LOOKUP_FAILURES, AnswerResult, Conversation, Message, RequestContext, SilenceReason
from intern.core.tasks import run_each
from intern.service.intern import list_steps, tokens_by_prompt

Verdict = Literal[
    "right_source", "wrong_source", "answered", "unwanted", "silent_right", "silent_wrong", "silent", "could_not_look"
]
"""`answered` and `silent`: the file does not give the right result. `unwanted`: silence would have been right."""

VERDICTS: Mapping[Verdict, str] = {
    "right_source": "right source",
    "wrong_source": "wrong source",
    "answered": "answered",
    "unwanted": "answered, but should not",
    "silent_right": "silent, rightly",
    "silent_wrong": "silent, wrongly",
    "silent": "silent",
    "could_not_look": "could not look",
}
"""The verdicts in words, best first."""

_RANK: Mapping[Verdict, int] = {"right_source": 2, "silent_right": 2, "answered": 1, "silent": 1}
"""The order of verdicts; all others rank equally."""

_MOST_FAULTS = 10  # reported at once; a file with more of them is probably not meant for intern
_KINDS = ("kb:", "team:")


class EvaluationQuestion(Struct, frozen=True, kw_only=True):
    """A question and, as far as the file gives it, the right result."""

    id: str
    """The file's own id, else the question itself: a comparison matches questions by it."""
    question: str
    expected_sources: tuple[str, ...] = ()
    """Ids or beginnings of ids; citing one of them is enough."""
    should_reply: bool | None = None


class EvaluationOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of a question."""

    id: str
    question: str
    verdict: Verdict
    expected_sources: tuple[str, ...] = ()
    reason: SilenceReason = ""
    citations: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()
    """The sources shown to the model: if a right one is missing, the answer had no chance."""
    reply_text: str | None = None
    seconds: float = 0.0
    tokens: int = 0
    tokens_by_prompt: dict[str, int] = {}
    cached_tokens: int = 0
    """The prompt tokens that the endpoint reports as cached."""
    error: str = ""
    """The reason why the search or the model failed."""


class EvaluationTotals(Struct, frozen=True, kw_only=True):
    """The totals of an evaluation."""

    questions: int
    verdicts: dict[str, int]
    """The number of outcomes by verdict, without zeros."""
    tokens: int
    tokens_by_prompt: dict[str, int]
    seconds: float
    """The sum over all questions."""
    median_seconds: float
    longest_seconds: float
    cached_tokens: int = 0


class EvaluationChange(Struct, frozen=True, kw_only=True):
    """A question with a different result."""

    id: str
    before: str
    """The verdict, with the reason for silence and failure, or the sources of an answer."""
    after: str
    way: Literal["better", "worse", "other"]


class EvaluationComparison(Struct, frozen=True, kw_only=True):
    """The differences from an older evaluation."""

    changes: tuple[EvaluationChange, ...]
    """Changes for the worse first."""
    added: tuple[str, ...]
    """Questions that the older one lacks."""
    missing: tuple[str, ...]
    """Questions that only the older one has."""
    totals: EvaluationTotals
    """The totals of the older one, for the common questions."""
    totals_now: EvaluationTotals
    """The totals of this one, for the common questions."""


class Evaluation(Struct, frozen=True, kw_only=True):
    """The complete result, which `--json` writes and `--compare` reads."""

    at: datetime
    model: str
    """The name of the model, or "offline"."""
    outcomes: tuple[EvaluationOutcome, ...]
    totals: EvaluationTotals
    unknown_sources: tuple[str, ...] = ()
    """Expected sources that no index lists: probably misspelt."""
    comparison: EvaluationComparison | None = None


Ask = Callable[[Conversation, RequestContext], Awaitable[AnswerResult]]
"""Return an answer, or silence with its reason. Raises no `InternError`."""


# Reading.


class _QuestionRow(Struct, forbid_unknown_fields=True):
    question: str
    expected_sources: list[str] | None = None
    should_reply: bool | None = None
    id: str | int | None = None


def read_questions(file: Path) -> tuple[EvaluationQuestion, ...]:
    """Read the questions of a file, one JSON object a line. Raises ConfigError that names the wrong lines."""
    questions: dict[str, tuple[int, EvaluationQuestion]] = {}
    faults: list[str] = []
    for number, line in enumerate(_read_text(file).split("\n"), start=1):
        try:
            question = _parse_question(line) if line.strip() else None
        except ConfigError as error:
            faults.append(f"{file}, line {number}: {error}")
            continue
        if question and question.id in questions:
            faults.append(f"{file}, line {number}: the same id or question as in line {questions[question.id][0]}")
        elif question:
            questions[question.id] = (number, question)
    if faults:
        more = len(faults) - _MOST_FAULTS
        raise ConfigError("\n".join([*faults[:_MOST_FAULTS], *([f"and {more} lines more"] if more > 0 else [])]))
    if not questions:
        raise ConfigError(f'{file} holds no questions; expected lines like {{"question": "How do I …?"}}')
    return tuple(question for _, question in questions.values())


def read_evaluation(file: Path) -> Evaluation:
    """Read an earlier evaluation. Raises ConfigError."""
    try:
        return msgspec.json.decode(_read_text(file), type=Evaluation)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file} is not what `intern eval --json` writes: {error}") from error


def _read_text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeError as error:
        wrong = error.start if isinstance(error, UnicodeDecodeError) else 0
        line = data[:wrong].count(b"\n") + 1
        raise ConfigError(f"{file}, line {line}: this is no UTF-8, so it cannot be read: {error}") from error


def _parse_question(line: str) -> EvaluationQuestion:
    row = _decode_row(line)
    if not row.question.strip():
        raise ConfigError("the question is empty")
    expected = tuple(row.expected_sources or ())
    for source in expected:
        if not source.startswith(_KINDS):
            raise ConfigError(f"{source[:80]!r} is no source id: they begin with kb: or team:")
    if expected and row.should_reply is False:
        raise ConfigError("it expects sources and, with should_reply, silence")
    return EvaluationQuestion(
        id=row.question if row.id is None else str(row.id),
        question=row.question,
        expected_sources=expected,
        should_reply=True if expected else row.should_reply,
    )


def _decode_row(line: str) -> _QuestionRow:
    try:
        return msgspec.json.decode(line, type=_QuestionRow)
    except msgspec.ValidationError as error:
        # People write lines, and do not know JSON's objects and `$`.
        what = str(error).replace("Object ", "the line ").replace(" - at `$.", " at `")
        raise ConfigError(what[:1].lower() + what[1:]) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"this is no JSON: {error}") from error


# Asking.


async def ask_questions(
    answer: Ask,
    questions: Sequence[EvaluationQuestion],
    *,
    concurrency: int,
    tell: Callable[[EvaluationOutcome], None] = lambda _: None,
) -> tuple[EvaluationOutcome, ...]:
    """Ask all questions, at most `concurrency` at a time; keep their order. `tell` gets each as it ends."""

    async def ask(question: EvaluationQuestion) -> EvaluationOutcome:
        conversation = Conversation((Message(role="user", text=question.question),))
        result = await answer(conversation, RequestContext(platform="eval"))
        outcome = judge_result(question, result)
        tell(outcome)
        return outcome

    return tuple(await run_each(ask, questions, concurrency))


def judge_result(question: EvaluationQuestion, result: AnswerResult) -> EvaluationOutcome:
    """Compare the result of a question with the expected one."""
    debug = result.debug or {}
    tokens = tokens_by_prompt(debug)
    citations = tuple(str(citation.source_id) for citation in result.citations)
    return EvaluationOutcome(
        id=question.id,
        question=question.question,
        verdict=find_verdict(question, result),
        expected_sources=question.expected_sources,
        reason=result.reason,
        citations=citations,
        selected=_find_shown_sources(debug),
        reply_text=result.reply_text,
        seconds=round(float(debug.get("seconds", 0.0)), 3),
        tokens=sum(tokens.values()),
        tokens_by_prompt=tokens,
        cached_tokens=sum(step.get("cached_tokens", 0) for step in list_steps(debug)),
        error=str(debug.get("error", "")) if result.reason in LOOKUP_FAILURES else "",
    )


def find_verdict(question: EvaluationQuestion, result: AnswerResult) -> Verdict:
    """Return the verdict, as far as the file gives the right result."""
    if result.reason in LOOKUP_FAILURES:
        return "could_not_look"
    if not result.should_reply:
        if question.should_reply is None:
            return "silent"
        return "silent_wrong" if question.should_reply else "silent_right"
    if question.should_reply is False:
        return "unwanted"
    if not question.expected_sources:
        return "answered"
    is_right = any(citation.source_id.startswith(question.expected_sources) for citation in result.citations)
    return "right_source" if is_right else "wrong_source"


def find_unknown_sources(questions: Iterable[EvaluationQuestion], entries: Iterable[IndexEntry]) -> tuple[str, ...]:
    """Return expected sources that match no listed id by prefix; of a team answer, only its topic counts."""
    listed = [str(entry.source_id) for entry in entries]
    expected = dict.fromkeys(source for question in questions for source in question.expected_sources)

    def is_known(source: str) -> bool:
        whole = source.partition("#")[0] if source.startswith("team:") else source
        return any(each.startswith(whole) for each in listed)

    return tuple(source for source in expected if not is_known(source))


def sum_outcomes(outcomes: Sequence[EvaluationOutcome]) -> EvaluationTotals:
    """Add up the outcomes."""
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    tokens: Counter[str] = Counter()
    for outcome in outcomes:
        tokens.update(outcome.tokens_by_prompt)
    seconds = [outcome.seconds for outcome in outcomes]
    return EvaluationTotals(
        questions=len(outcomes),
        verdicts={verdict: verdicts[verdict] for verdict in VERDICTS if verdict in verdicts},
        tokens=sum(outcome.tokens for outcome in outcomes),
        tokens_by_prompt=dict(tokens),
        seconds=round(sum(seconds), 3),
        median_seconds=round(median(seconds), 3) if seconds else 0.0,
        longest_seconds=max(seconds, default=0.0),
        cached_tokens=sum(outcome.cached_tokens for outcome in outcomes),
    )


# Comparing.


def compare_outcomes(before: Sequence[EvaluationOutcome], after: Sequence[EvaluationOutcome]) -> EvaluationComparison:
    """Compare two evaluations; questions are matched by id."""
    old, new = ({outcome.id: outcome for outcome in each} for each in (before, after))
    both = [name for name in new if name in old]
    changes = [change for name in both if (change := find_change(old[name], new[name]))]
    order = ("worse", "better", "other")
    return EvaluationComparison(
        changes=tuple(sorted(changes, key=lambda change: order.index(change.way))),
        added=tuple(name for name in new if name not in old),
        missing=tuple(name for name in old if name not in new),
        totals=sum_outcomes([old[name] for name in both]),
        totals_now=sum_outcomes([new[name] for name in both]),
    )


def find_change(before: EvaluationOutcome, after: EvaluationOutcome) -> EvaluationChange | None:
    """Return the change of a question's result; None if verdict, reason and sources are the same."""
    one, other = format_outcome(before), format_outcome(after)
    if one == other:
        return None
    step = _RANK.get(after.verdict, 0) - _RANK.get(before.verdict, 0)
    way: Literal["better", "worse", "other"] = "better" if step > 0 else "worse" if step < 0 else "other"
    return EvaluationChange(id=after.id, before=one, after=other, way=way)


def format_outcome(outcome: EvaluationOutcome) -> str:
    """Return the verdict in words, with the sources of an answer or the reason of a silence."""
    detail = ", ".join(outcome.citations) or outcome.reason
    return VERDICTS[outcome.verdict] + (f" ({detail})" if detail else "")


def _find_shown_sources(debug: Mapping[str, Any]) -> tuple[str, ...]:
    shown = debug.get("loading", {}).get("shown")
    return tuple(map(str, debug.get("selection", {}).get("source_ids", ()) if shown is None else shown))
