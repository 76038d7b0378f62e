"""Times and decisions in words, for every front end."""

from __future__ import annotations

from datetime import datetime

from intern.core.records import Decision, Filed, Moved, Replaced


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


def ago(seconds: float) -> str:
    """Say how long ago something is, as exact as people want it."""
    return f"{long(seconds)} ago"


def long(seconds: float) -> str:
    """Say how long something takes, as exact as people want it."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"
