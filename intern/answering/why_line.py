"""The line that says why an answer was given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from intern.chat.phrases import Phrases, get_phrases
from intern.chat.reply_text import clean_name, plain_line
from intern.core.messages import is_distilled, is_team_source

_MOST_NAMED = 4
_QA_DATE = re.compile(r"#qa_(\d{4})(\d\d)(\d\d)_")


def why_line(debug: Mapping[str, Any], words: Phrases | None = None) -> str:
    """Explain in one line how an answer was made and checked, by its trace; empty if the trace has no sources.

    Missing steps and fields are left out, so the line never claims a check that the trace does not show.
    """
    generation, verification = _get_step(debug, "generation"), _get_step(debug, "verification")
    words = words or get_phrases()
    sources = _format_sources(_read_texts(generation.get("citations")), words)
    if not sources:
        return ""
    checks = words.comma.join(_list_checks(generation, verification, words))
    form = words.made_and_checked if checks else words.made_from
    return form.format(sources=sources, checks=checks)


def _format_sources(source_ids: Sequence[str], words: Phrases) -> str:
    team = [each for each in source_ids if is_team_source(each)]
    days = sorted({"-".join(date.groups()) for each in team if (date := _QA_DATE.search(each))})
    learned = {"nugget": words.conversation, "fact": words.fact}
    others = dict.fromkeys(learned[kind] for each in source_ids if (kind := each.partition(":")[0]) in learned)
    unsaid = (each for each in source_ids if not (is_team_source(each) or is_distilled(each)))
    names = [each.partition(":")[2] or each for each in unsaid]
    pages = [plain_line(name) for name in names if re.match(r"https?://", name)]
    documents = [clean_name(name) for name in names if not re.match(r"https?://", name)]
    parts = [
        *_format_list(words.docs, documents, words),
        *_format_list(words.page if len(pages) == 1 else words.pages, pages, words),
        *_format_team_answers(len(team), days, words),
        *others,
    ]
    return _join_parts(parts, words)


def _format_team_answers(count: int, days: Sequence[str], words: Phrases) -> list[str]:
    answers = words.team_answer if count == 1 else words.team_answers.format(count=count)
    dated = (
        words.of_days.format(answers=answers, days=_join_parts(_shorten_list(days, words), words)) if days else answers
    )
    return [dated] if count else []


def _format_list(form: str, names: Sequence[str], words: Phrases) -> list[str]:
    shown = _shorten_list([f"`{name}`" for name in names], words)
    return [form.format(names=_join_parts(shown, words))] if names else []


def _shorten_list(names: Sequence[str], words: Phrases) -> list[str]:
    rest = len(names) - _MOST_NAMED
    return [*names[:_MOST_NAMED], *([words.more.format(count=rest)] if rest > 0 else [])]


def _list_checks(generation: Mapping[str, object], verification: Mapping[str, object], words: Phrases) -> list[str]:
    checks: list[str] = []
    quotes = _read_number(generation.get("quotes_count"))
    if quotes:
        checks.append(words.quote_checked if quotes == 1 else words.quotes_checked.format(count=quotes))
    strange = _read_number(generation.get("strange_count"))
    suspicions = _read_number(generation.get("suspicions_count")) if strange is None else strange
    if suspicions == 0:
        checks.append(words.all_checked)
    elif quotes or _read_number(generation.get("strange_urls_count")) == 0:
        # With `ai.strict_grounding` off, an answer may contain commands that no source has.
        checks += [words.links_checked, *([words.unfounded.format(count=strange)] if strange else [])]
    if verification.get("is_good_enough") is True:
        by_code = verification.get("by") == "code"
        checks.append(words.found_safe if by_code else words.confirmed)
    return checks


def _get_step(debug: Mapping[str, Any], name: str) -> Mapping[str, object]:
    step = debug.get(name)
    return cast("Mapping[str, object]", step) if isinstance(step, Mapping) else {}


def _read_texts(value: object) -> list[str]:
    if not isinstance(value, list | tuple):
        return []
    return list(dict.fromkeys(each for each in cast("Sequence[object]", value) if isinstance(each, str) and each))


def _read_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _join_parts(parts: Sequence[str], words: Phrases) -> str:
    return words.and_.join([*([words.comma.join(parts[:-1])] if parts[1:] else []), *parts[-1:]])
