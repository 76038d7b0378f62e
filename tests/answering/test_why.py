"""One line on why an answer was given, from traces whole and broken."""

from __future__ import annotations

from typing import Any

import pytest

from intern.answering.why_line import why_line

TEAM = "team:backups.txt#qa_20260304_101500"


def trace(citations: object, verification: object = None, **generation: object) -> dict[str, Any]:
    return {"generation": {"citations": citations, **generation}, "verification": verification}


@pytest.mark.parametrize(
    ("debug", "line"),
    [
        (
            trace(
                ["kb:guides/backup.md", TEAM],
                {"is_good_enough": True, "by": "model"},
                quotes_count=2,
                strange_count=0,
                strange_urls_count=0,
            ),
            (
                "From docs `guides/backup.md` and a team answer of 2026-03-04; "
                "2 quotes checked word for word, commands and links checked, confirmed by a second look."
            ),
        ),
        (
            trace(["kb:a.md", "kb:b.md"], {"is_good_enough": True, "by": "code"}, quotes_count=1),
            (
                "From docs `a.md` and `b.md`; 1 quote checked word for word, links checked, "
                "found safe without a second look."
            ),
        ),
        (
            trace(["kb:a.md"], quotes_count=1, suspicions_count=0),
            "From docs `a.md`; 1 quote checked word for word, commands and links checked.",
        ),
        (
            trace(["kb:a.md"], {"is_good_enough": True}, strange_urls_count=0, strange_count=2),
            "From docs `a.md`; links checked, 2 commands or versions not found in them, confirmed by a second look.",
        ),
        (
            trace(["team:a.txt", TEAM, "nugget:1", "nugget:2", "fact:3"]),
            "From 2 team answers of 2026-03-04, a conversation and a fact from conversations.",
        ),
        (
            trace([f"kb:{n}.md" for n in range(6)]),
            "From docs `0.md`, `1.md`, `2.md`, `3.md` and 2 more.",
        ),
        (
            trace(["kb:https://a.example/x", "kb:http://b.example"]),
            "From the pages `a.example/x` and `b.example`.",
        ),
    ],
)
def test_the_line_names_sources_and_checks(debug: dict[str, Any], line: str) -> None:
    assert why_line(debug) == line


@pytest.mark.parametrize(
    "debug",
    [
        {},
        {"cut": True},
        {"generation": "x", "verification": 3},
        {"gate": {"kind": "question"}, "verification": {"is_good_enough": True}},
        trace(None),
        trace("kb:a.md"),
        trace([1, None, ""]),
    ],
)
def test_a_trace_without_sources_gives_no_line(debug: dict[str, Any]) -> None:
    assert why_line(debug) == ""


@pytest.mark.parametrize(
    "debug",
    [
        trace(["kb:a.md"], "cut", quotes_count="many", strange_count=None, strange_urls_count=True),
        trace(["kb:a.md"], {"is_good_enough": "yes"}, quotes_count=0),
        trace(["kb:a.md"], {"unfinished": True, "by": "model"}),
    ],
)
def test_no_check_is_claimed_that_the_trace_does_not_show(debug: dict[str, Any]) -> None:
    assert why_line(debug) == "From docs `a.md`."


def test_a_file_name_is_one_line_without_markup() -> None:
    assert why_line(trace(["kb:a`**\n<@5> [x](y).md"])) == "From docs `a @5 x(y).md`."
    assert why_line(trace(["kb:a`**\n<@5> [x](https://evil.example).md"])) == "From docs `…`."
