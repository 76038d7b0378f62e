"""The report of a backtest: a page without scripts, even from hostile texts, and a table that fits a terminal."""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256

from intern.core.ids import MessageId
from intern.lab.outcomes import (
    NOTES,
    AgreementThresholds,
    BacktestLearning,
    BacktestOutcome,
    BacktestReport,
    sum_backtest_outcomes,
)
from intern.lab.report import choose_examples, format_table, render_page
from intern.models.usage import UsageMeter

AT = datetime(2025, 2, 1, 12, tzinfo=UTC)
TEAM = {"team": "theirs", "team_after_seconds": 1.0, "team_link": "https://discord.com/"}
HOSTILE = "</dd></style><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7*7 }} \udc80 \u202e"


def outcome(number: int, **more: object) -> BacktestOutcome:
    given = {"message_id": MessageId(str(number)), "asked_at": AT, "question": f"question {number}", **more}
    given.setdefault("link", f"https://discord.com/channels/5/100/{number}")
    given.setdefault("verdict", "silent")
    return BacktestOutcome(**given)  # type: ignore[arg-type]


def backtest(*outcomes: BacktestOutcome, finished: bool = True) -> BacktestReport:
    meter = UsageMeter()
    meter.add_counts(UsageMeter(1, 100, 20, 0.5))
    return BacktestReport(
        version=1,
        finished=finished,
        made_at=AT,
        seconds=1.0,
        model="m",
        learning_model="m",
        embeddings=None,
        currency="USD",
        priced=True,
        files=("a.json",),
        refused=(HOSTILE,),
        channels=1,
        messages=10,
        team_replies=3,
        since=None,
        until=None,
        documents=None,
        questions=9,
        left_out={HOSTILE: 2},
        bars=AgreementThresholds(),
        notes=NOTES,
        totals=sum_backtest_outcomes(outcomes, meter),
        learned=BacktestLearning(conversations=2, topics=1, delayed=0, untold=0),
        outcomes=outcomes,
    )


def answered(number: int, likeness: float, verdict: str = "agreed") -> BacktestOutcome:
    return outcome(
        number,
        verdict=verdict,
        reply="ours",
        team="theirs",
        team_after_seconds=60.0,
        team_link="https://discord.com/",
        likeness_words=likeness,
    )


def test_nothing_that_people_wrote_becomes_markup_or_is_run() -> None:
    hostile = outcome(
        1,
        question=HOSTILE,
        verdict="differed",
        reply=HOSTILE,
        team=HOSTILE,
        team_after_seconds=1.0,
        team_link="https://discord.com/",
        citations=(HOSTILE,),
        likeness_words=0.1,
    )
    page = render_page(backtest(hostile)).decode()
    assert "<script" not in page
    assert "<img" not in page
    assert "49" not in page
    assert page.count("&lt;script&gt;alert(1)") == 6
    assert page.count("</style>") == 1


def test_the_policy_lets_only_its_own_style_through() -> None:
    page = render_page(backtest()).decode()
    [style] = re.findall(r"<style>(.*)</style>", page, re.DOTALL)
    digest = b64encode(sha256(style.encode()).digest()).decode()
    policy = f"default-src &#39;none&#39;; style-src &#39;sha256-{digest}&#39;; base-uri &#39;none&#39;"
    assert policy in page.replace("&#43;", "+")
    assert "prefers-color-scheme: dark" in style
    assert "style=" not in page


def test_examples_are_the_best_the_worst_and_the_missed() -> None:
    done = backtest(
        answered(1, 0.5),
        answered(2, 0.9),
        answered(3, 0.3, "differed"),
        answered(4, 0.1, "differed"),
        outcome(5, reason="no_sources", **TEAM),
        outcome(6, reason="no_sources"),
        outcome(7, reason="team_answered", **TEAM),
    )
    groups = {group.title: [each.message_id for each in group.outcomes] for group in choose_examples(done)}
    assert groups == {"Best": ["2", "1"], "Worst": ["4", "3"], "Silent": ["5"]}
    page = render_page(done).decode()
    assert '<a href="https://discord.com/channels/5/100/5" rel="noreferrer">' in page


def test_what_was_stopped_says_so_first() -> None:
    done = backtest(answered(1, 0.5), finished=False)
    assert format_table(done).startswith("stopped after 1 of 9 questions\n")
    assert "Stopped before its end: 1 of 9 questions" in render_page(done).decode()
    assert "topped" not in format_table(backtest())


def test_the_table_counts_silences_by_reason_with_what_the_team_did() -> None:
    table = format_table(
        backtest(outcome(1, reason="no_sources", **TEAM), outcome(2, reason="no_sources"), answered(3, 0.5))
    )
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert "questions asked 3 the team answered 2 of them" in lines
    assert "answered, like the team 1 words 0.4 or vectors 0.5 and above count as alike" in lines
    assert "no_sources 2 the team answered 1" in lines
    assert "tokens of learning 120 0.5000 USD" in lines
