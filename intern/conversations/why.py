"""Why an answer was given, in one line: from what it was made, and how it was checked. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from intern.conversations.posting import plain_line

_MOST_NAMED = 4
_QA_DATE = re.compile(r"#qa_(\d{4})(\d\d)(\d\d)_")


def why_line(debug: Mapping[str, Any]) -> str:
    """Say what an answer was made from and how it was checked, by its trace; empty where the trace holds no sources.

    Missing steps and fields are left out, so the line never claims a check that the trace does not show.
    """
    generation, verification = _step(debug, "generation"), _step(debug, "verification")
    sources = _named(_texts(generation.get("citations")))
    if not sources:
        return ""
    checks = _checks(generation, verification)
    return f"From {sources}" + (f"; {_joined(checks, last=', ')}." if checks else ".")


def _named(source_ids: Sequence[str]) -> str:
    documents: list[str] = []
    pages: list[str] = []
    dates: list[str] = []
    others: list[str] = []
    team = 0
    for source_id in source_ids:
        kind, _, name = source_id.partition(":")
        if kind == "team":
            team += 1
            if date := _QA_DATE.search(source_id):
                dates.append("-".join(date.groups()))
        elif kind in {"nugget", "fact"}:
            others.append("a conversation" if kind == "nugget" else "a fact from conversations")
        elif re.match(r"https?://", name):
            pages.append(_code(name))
        else:
            documents.append(_code(name or source_id))
    parts = [
        *_list("docs", documents),
        *_list("the page" if len(pages) == 1 else "the pages", pages),
        *_team_answers(team, dates),
        *dict.fromkeys(others),
    ]
    return _joined(parts)


def _team_answers(count: int, dates: Sequence[str]) -> list[str]:
    days = sorted(set(dates))
    of = f" of {_joined(_few(days))}" if days else ""
    return [] if not count else [f"a team answer{of}" if count == 1 else f"{count} team answers{of}"]


def _list(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what} {_joined(_few(names))}"] if names else []


def _few(names: Sequence[str]) -> list[str]:
    rest = len(names) - _MOST_NAMED
    return [*names[:_MOST_NAMED], *([f"{rest} more"] if rest > 0 else [])]


def _checks(generation: Mapping[str, object], verification: Mapping[str, object]) -> list[str]:
    checks: list[str] = []
    quotes = _number(generation.get("quotes_count"))
    if quotes:
        checks.append("1 quote checked word for word" if quotes == 1 else f"{quotes} quotes checked word for word")
    strange = _number(generation.get("strange_count"))
    suspicions = _number(generation.get("suspicions_count")) if strange is None else strange
    if suspicions == 0:
        checks.append("commands and links checked")
    elif quotes or _number(generation.get("strange_urls_count")) == 0:
        # With `ai.strict_grounding` off, an answer may hold commands that no source does.
        unfounded = f", {strange} commands or versions not found in them" if strange else ""
        checks.append(f"links checked{unfounded}")
    if verification.get("is_good_enough") is True:
        by_code = verification.get("by") == "code"
        checks.append("found safe without a second look" if by_code else "confirmed by a second look")
    return checks


def _step(debug: Mapping[str, Any], name: str) -> Mapping[str, object]:
    step = debug.get(name)
    return cast("Mapping[str, object]", step) if isinstance(step, Mapping) else {}


def _texts(value: object) -> list[str]:
    if not isinstance(value, list | tuple):
        return []
    return list(dict.fromkeys(each for each in cast("Sequence[object]", value) if isinstance(each, str) and each))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _code(name: str) -> str:
    return f"`{plain_line(name)}`"


def _joined(parts: Sequence[str], last: str = " and ") -> str:
    return last.join([*([", ".join(parts[:-1])] if parts[1:] else []), *parts[-1:]])
