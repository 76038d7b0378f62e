"""`intern calibrate` says how many judged answers are missing, sets a score, or says that no answers are given."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from intern.core.ids import MessageId
from intern.service.calibration import describe_setup, make_backtest_judgement
from intern.service.opening import open_intern
from intern.settings.loading import load_settings
from tests.frontends.cli.conftest import Intern

pytestmark = pytest.mark.usefixtures("made")


def judge(right: int, wrong: int = 0) -> None:
    """Have a backtest judge answers that are all as sure."""

    async def work() -> None:
        settings = load_settings(Path("intern.toml"), environ={})
        async with open_intern(settings) as intern:
            setup, at = describe_setup(settings), datetime(2026, 1, 1, tzinfo=UTC)
            judged = [
                make_backtest_judgement(MessageId(str(n)), setup=setup, score=0.6, wrong=n < wrong, at=at)
                for n in range(right + wrong)
            ]
            await (await intern.acquire_writer()).stores.judgements.add(judged)

    Path("intern.toml").write_text('[data]\ndir = "data"\n[embeddings]\nprovider = "none"\n')
    anyio.run(work)


def test_with_too_few_judged_answers_it_says_how_many_are_missing_and_sets_nothing(intern: Intern) -> None:
    judge(40)
    for options in (["--dry-run"], []):
        code, out, err = intern("calibrate", *options)
        assert (code, err) == (0, "")
        assert out.splitlines() == [
            "Judged answers: 40 (40 by a backtest); 0 of them wrong.",
            "Nothing is calibrated: answers are given as the checks allow.",
            "5 more judged answers are needed, if all are right: 45 right ones are the least for ai.max_wrong = 0.05.",
        ]


def test_a_dry_run_says_the_score_that_it_would_set_and_sets_none(intern: Intern) -> None:
    judge(60)
    code, out, _ = intern("calibrate", "--dry-run")
    assert code == 0
    assert "By what is judged now, the score would be 0.600: 60 answers reach it, and 0 of these were wrong." in out
    assert json.loads(intern("calibrate", "--dry-run", "--json").out)["current"] is None
    assert "An answer must reach a score of 0.600 since" in intern("calibrate").out
    assert json.loads(intern("calibrate", "--json").out)["current"]["score"] == 0.6


def test_where_no_score_keeps_to_the_bound_it_says_so_and_what_to_do_and_so_does_the_status(intern: Intern) -> None:
    judge(30, 20)
    told = "no answers are given: 20 of 50 judged answers were wrong, and no score keeps to ai.max_wrong = 0.05"
    assert "no answers would be given" in intern("calibrate", "--dry-run").out
    assert told not in intern("status").out
    out = intern("calibrate").out
    assert f"N{told[1:]}; " in out
    assert "raise ai.max_wrong (0: no bound)" in out
    assert told in intern("status").out
