"""Replayed answers are judged by the team's own answers first, then by votes; without either, they stay open."""

from __future__ import annotations

from typing import Any

import pytest

from intern.lab.replay_comparison import Verdict, compare_replays, judge_replay
from intern.service.recordings import ReplayedRecording
from intern.stores.tables.feedback import Votes

PORT, RIGHT = "Set `listen` to another port and restart the relay.", "Set `listen` to port 9000 and restart the relay."
WRONG = "Buy more memory for the cluster."


def again(then: str, now: str, **fields: Any) -> ReplayedRecording:
    return ReplayedRecording(
        kind="answer",
        subject="1",
        at="2026-02-01T00:00:00+00:00",
        question="Which port?",
        then=then,
        now=now,
        answered_then=not then.startswith("["),
        answered_now=bool(now) and not now.startswith("["),
        is_same=then == now,
        **fields,
    )


@pytest.mark.parametrize(
    ("replayed", "verdict", "by"),
    [
        (again(PORT, PORT), "same", ""),
        (again(PORT, "", unfit="it had pictures"), "left_out", ""),
        (again(PORT, "", changed=("decide",)), "prompt_changed", ""),
        (again(PORT, WRONG), "changed", ""),
        (again(WRONG, PORT, team=RIGHT), "better", "team"),
        (again("[no_answer]", PORT, team=RIGHT), "better", "team"),
        (again(PORT, WRONG, team=RIGHT), "worse", "team"),
        (again(PORT, "[rejected]", team=RIGHT, votes=Votes(down=3)), "worse", "team"),
        (again(PORT, RIGHT, team=RIGHT), "changed", ""),
        (again(PORT, WRONG, votes=Votes(up=1)), "worse", "votes"),
        (again(PORT, "[no_answer]", votes=Votes(up=1)), "worse", "votes"),
        (again(PORT, RIGHT, votes=Votes(up=1)), "changed", ""),
        (again(PORT, "[no_answer]", votes=Votes(down=1)), "better", "votes"),
        (again(PORT, WRONG, votes=Votes(up=1, down=1)), "changed", ""),
        (again("[no_answer]", PORT, votes=Votes(down=1)), "changed", ""),
    ],
)
def test_a_replayed_answer_is_judged(replayed: ReplayedRecording, verdict: Verdict, by: str) -> None:
    judged = judge_replay(replayed)
    assert (judged.verdict, judged.by) == (verdict, by)


def test_a_judgement_counts_verdicts_and_calls() -> None:
    found = compare_replays([again(PORT, PORT), again(PORT, WRONG, calls=2), again(PORT, PORT, calls=1)])
    assert (found.verdicts, found.calls) == ({"same": 2, "changed": 1}, 3)
