"""Times, decisions, reasons, steps and passages in words, for every front end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from intern.core.decisions import Decision, PairFiled, PairMoved, PairReplaced
from intern.core.messages import SILENCES
from intern.core.text.words import stem_set

if TYPE_CHECKING:
    from intern.service.calibration import CalibrationStatus


def minute(moment: datetime) -> str:
    """Format a time, as exact as people want it."""
    return f"{moment:%Y-%m-%d %H:%M}"


def describe_decision(decision: Decision) -> str:
    """Describe a decision."""
    what = str(decision.__struct_config__.tag).replace("_", " ")
    match decision:
        case PairFiled(topic=topic, removed=removed):
            return f"{what} under {topic}" + (f", removing {', '.join(removed)}" if removed else "")
        case PairMoved(topic=topic):
            return f"{what} to {topic}"
        case PairReplaced(by=by):
            return f"{what} by {by}"
        case _:
            return what


_JUDGES = {"backtest": "by a backtest", "vote": "by votes", "deletion": "by deletion", "team": "by the team's words"}


def describe_calibration(stands: CalibrationStatus) -> Iterator[str]:
    """Describe a calibration, a sentence a line."""
    by = ", ".join(f"{stands.judges[judge]} {word}" for judge, word in _JUDGES.items() if stands.judges.get(judge))
    yield f"Judged answers: {stands.judged}{f' ({by})' if by else ''}; {stands.wrong} of them wrong."
    bound, current = stands.max_wrong, stands.current
    if not bound:
        yield "ai.max_wrong is 0: no score decides; answers are given as the checks allow."
    elif current is None:
        yield "Nothing is calibrated: answers are given as the checks allow."
    elif current.score is None:
        yield (
            f"No answers are given since {minute(current.at)} UTC: "
            f"by {current.judged} judged answers, no score keeps to ai.max_wrong = {current.max_wrong:g}."
        )
    else:
        yield (
            f"An answer must reach a score of {current.score:.3f} since {minute(current.at)} UTC: of {current.judged} "
            f"judged answers, {current.answered} did, and {current.wrong} of these were wrong. "
            f"At most {100 * current.max_wrong:g}% of such answers are wrong, with 90% confidence."
        )
    yield from _describe_recalibration(stands)
    if stands.recent:
        yield f"Judged since: {stands.recent} answers that reached it; {stands.recent_wrong} of them wrong."
    if problem := stands.problem:
        yield f"{problem[0].upper()}{problem[1:]}."


def _describe_recalibration(stands: CalibrationStatus) -> Iterator[str]:
    """Describe the result that a calibration would have now, if it differs."""
    bound, current, found = stands.max_wrong, stands.current, stands.found
    if stands.missing:
        yield (
            f"{stands.missing} more judged answers are needed, if all are right: "
            f"{stands.needed} right ones are the least for ai.max_wrong = {bound:g}."
        )
    elif stands.none_keeps and not stands.gives_none:
        yield "By what is judged now, no score keeps to ai.max_wrong: no answers would be given."
    elif found is None and bound and not stands.gives_none:
        if current is not None:
            yield "By what is judged now, no score can be shown to keep to ai.max_wrong; the one in use stays."
        yield f"If no score keeps to it by {stands.enough} judged answers, no answers are given from then on."
    elif found is not None and (current is None or found.score != current.score):
        yield (
            f"By what is judged now, the score would be {found.score:.3f}: "
            f"{found.answered} answers reach it, and {found.wrong} of these were wrong."
        )


def ago(seconds: float) -> str:
    """Format the time since something, as exact as people want it."""
    return f"{format_duration(seconds)} ago"


def format_duration(seconds: float) -> str:
    """Format a duration, as exact as people want it."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"


def explain_silence(reason: str) -> str:
    """Explain why there is no answer; "answered" if there is one."""
    return SILENCES[reason].words if reason in SILENCES else reason.replace("_", " ") or "answered"


def source_label(source_id: str, title: str = "") -> str:
    """Return a source's name for people, without its id if that means nothing to them."""
    kind, _, name = source_id.partition(":")
    match kind:
        case "team":
            return f"team answer in {name.partition('#')[0].removesuffix('.txt')}"
        case "nugget":
            return "summary of a conversation"
        case "fact":
            return "known fact"
        case _:
            return title or name or source_id


class StepSummary(NamedTuple):
    """A step on the way to an answer, in words."""

    name: str
    lines: tuple[str, ...]
    seconds: float | None
    tokens: int
    cost: float


def describe_steps(debug: Mapping[str, Any]) -> list[StepSummary]:
    """Describe the decision of each step of an answer, from its trace."""
    return [_describe_step(name, cast("_Fields", each)) for name, each in debug.items() if isinstance(each, Mapping)]


_Fields = Mapping[str, Any]

_KINDS: Final[Mapping[str, str]] = {
    "answer": "A question that the sources may answer.",
    "question": "A question.",
    "chatter": "No question.",
    "out_of_scope": "A question that is not for the bot.",
    "unclear": "Not clear enough to answer.",
    "not_covered": "A question that no source covers.",
}


def _describe_step(name: str, step: _Fields) -> StepSummary:
    title, say = _STEPS.get(name, (name.replace("_", " "), lambda _: ()))
    lines = [*filter(None, say(step))]
    if error := step.get("error"):
        lines.append(f"It failed: {error}")
    if step.get("unfinished"):
        lines.append("It was given up before its end.")
    return StepSummary(
        title, tuple(lines), step.get("seconds"), int(step.get("tokens", 0)), float(step.get("cost", 0.0))
    )


def _describe_gate(step: _Fields) -> Iterator[str]:
    yield _KINDS.get(str(step.get("kind")), "")
    yield str(step.get("reason", ""))


def _describe_selection(step: _Fields) -> Iterator[str]:
    found, of = step.get("selected_sources_count", 0), step.get("entries_count", 0)
    yield f"{_format_count(found, 'source')} of {of} may hold the answer." if found else f"None of {of} sources fits."
    if step.get("searched") is False:
        yield "The search could not tell, so descriptions decided."
    if likeness := step.get("likeness"):
        yield f"The nearest passage is like the question by {likeness:.2f} of 1."


def _describe_loading(step: _Fields) -> Iterator[str]:
    read, chars = step.get("loaded_sources_count", 0), step.get("shown_chars", 0)
    yield f"{_format_count(read, 'source')} read, {_format_count(chars, 'character')} shown."
    if unreadable := step.get("unreadable_sources_count"):
        yield f"{_format_count(unreadable, 'source')} could not be read."


def _describe_generation(step: _Fields) -> Iterator[str]:
    chars, quotes = step.get("answer_chars", 0), step.get("quotes_count")
    based = "" if quotes is None else f", based on {_format_count(quotes, 'quote')}"
    yield f"{_format_count(chars, 'character')} written{based}." if chars else "No answer was written."
    if strange := step.get("strange_quotes_count"):
        yield f"{_format_count(strange, 'quote')} of the model stood in no passage."
    yield from (f"Not in the sources: {each}" for each in step.get("strange", ()))


def _describe_verification(step: _Fields) -> Iterator[str]:
    by = "By code" if step.get("by") == "code" else "By the model"
    yield f"{by}: the answer {'holds' if step.get('is_good_enough') else 'does not hold'}."
    yield str(step.get("reason", ""))
    yield from (f"Not backed: {each}" for each in step.get("issues", ()))


def _describe_confidence(step: _Fields) -> Iterator[str]:
    bar = step.get("threshold")
    needed = "nothing is calibrated" if bar is None else f"{bar:.2f} is needed"
    yield f"A score of {step.get('score', 0.0):.2f}; {needed}."


_STEPS: Final[Mapping[str, tuple[str, Callable[[_Fields], Iterable[str]]]]] = {
    "gate": ("Is it a question?", _describe_gate),
    "selection": ("Search", _describe_selection),
    "loading": ("Read", _describe_loading),
    "generation": ("Answer", _describe_generation),
    "verification": ("Check", _describe_verification),
    "confidence": ("How sure", _describe_confidence),
}


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


_LINE = 96  # characters of a passage's line


def drop_key_terms(description: str) -> str:
    """Return a description without its list of key terms, which is for searches."""
    return description.partition("Key terms: ")[0].strip()


def excerpt(text: str, asked: frozenset[str]) -> Sequence[str]:
    """Return the two lines that hold most of the words."""
    written = [line for line in drop_key_terms(text).splitlines() if not line.lstrip().startswith("```")]
    lines = [part for line in written for part in wrap(line, _LINE, break_on_hyphens=False)]
    pairs = [lines[n : n + 2] for n in range(max(len(lines) - 1, 1))]
    return max(pairs, key=lambda pair: len(asked & stem_set(" ".join(pair))))


def mark_words(line: str, asked: frozenset[str]) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a line, each with whether it is one of the words."""
    for each in re.split(r"([^\W_]+)", line):
        yield each, bool(asked & stem_set(each))
