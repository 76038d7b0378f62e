"""Times and decisions in words, for every front end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from intern.core.records import Decision, Filed, Moved, Replaced

if TYPE_CHECKING:
    from intern.service.calibration import Calibrated


def minute(moment: datetime) -> str:
    """Format a time, as exact as people want it."""
    return f"{moment:%Y-%m-%d %H:%M}"


def became(decision: Decision) -> str:
    """Say what was decided."""
    what = str(decision.__struct_config__.tag).replace("_", " ")
    match decision:
        case Filed(topic=topic, removed=removed):
            return f"{what} under {topic}" + (f", removing {', '.join(removed)}" if removed else "")
        case Moved(topic=topic):
            return f"{what} to {topic}"
        case Replaced(by=by):
            return f"{what} by {by}"
        case _:
            return what


_JUDGES = {"backtest": "by a backtest", "vote": "by votes", "deletion": "by deletion", "team": "by the team's words"}


def calibration(stands: Calibrated) -> Iterator[str]:
    """Say how a calibration stands, a sentence a line."""
    by = ", ".join(f"{stands.judges[judge]} {word}" for judge, word in _JUDGES.items() if stands.judges.get(judge))
    yield f"Judged answers: {stands.judged}{f' ({by})' if by else ''}; {stands.wrong} of them wrong."
    bound, current, found = stands.max_wrong, stands.current, stands.found
    if not bound:
        yield "ai.max_wrong is 0: no score decides; answers are given as the checks allow."
    elif current is None:
        yield "Nothing is calibrated: answers are given as the checks allow."
    else:
        yield (
            f"An answer must reach a score of {current.score:.3f} since {minute(current.at)} UTC: of {current.judged} "
            f"judged answers, {current.answered} did, and {current.wrong} of these were wrong. "
            f"At most {100 * current.max_wrong:g}% of such answers are wrong, with 90% confidence."
        )
    if stands.missing:
        yield (
            f"{stands.missing} more judged answers are needed, if all are right: "
            f"{stands.needed} right ones are the least for ai.max_wrong = {bound:g}."
        )
    elif found is not None and (current is None or found.score != current.score):
        yield (
            f"By what is judged now, the score would be {found.score:.3f}: "
            f"{found.answered} answers reach it, and {found.wrong} of these were wrong."
        )
    if stands.recent:
        yield f"Judged since: {stands.recent} answers that reached it; {stands.recent_wrong} of them wrong."
    if problem := stands.problem:
        yield f"{problem[0].upper()}{problem[1:]}."


def ago(seconds: float) -> str:
    """Say how long ago something is, as exact as people want it."""
    return f"{long(seconds)} ago"


def long(seconds: float) -> str:
    """Say how long something takes, as exact as people want it."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"
