"""Whether replayed answers got better or worse, by the team's answers and by votes.

Similarity is not truth (see `intern.lab.outcomes`): it sorts the examples for reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from intern.lab.outcomes import AgreementThresholds, AnswerSimilarity, measure_shared_words
from intern.service.recordings import ReplayedRecording

Verdict = Literal["same", "better", "worse", "changed", "prompt_changed", "left_out"]

VERDICTS: Mapping[Verdict, str] = {
    "same": "the same answer, to the byte",
    "better": "another answer, and a better one",
    "worse": "another answer, and a worse one",
    "changed": "another answer; nothing tells which is better",
    "prompt_changed": "a prompt is another one by now; without --offline, the model is asked",
    "left_out": "could not be replayed",
}
"""The judgements in words."""


class ReplayJudgement(Struct, frozen=True, kw_only=True):
    """A replayed answer with its judgement."""

    again: ReplayedRecording
    verdict: Verdict
    by: Literal["", "team", "votes"] = ""
    """The reason for better or worse."""


class ReplayComparison(Struct, frozen=True, kw_only=True):
    """All replayed recordings."""

    answers: tuple[ReplayJudgement, ...]
    verdicts: Mapping[str, int]
    calls: int
    """The number of new calls."""


def compare_replays(replayed: Sequence[ReplayedRecording]) -> ReplayComparison:
    """Judge each answer, and count the judgements."""
    judged = tuple(map(judge_replay, replayed))
    counts = Counter(each.verdict for each in judged)
    return ReplayComparison(
        answers=judged,
        verdicts={verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        calls=sum(each.calls for each in replayed),
    )


def judge_replay(again: ReplayedRecording) -> ReplayJudgement:
    """Compare an answer with the recorded one; the team's answer counts more than votes."""
    if again.unfit:
        return ReplayJudgement(again=again, verdict="left_out")
    if not again.now:
        return ReplayJudgement(again=again, verdict="prompt_changed")
    if again.is_same:
        return ReplayJudgement(again=again, verdict="same")
    if gained := _compare_with_team(again):
        return ReplayJudgement(again=again, verdict="better" if gained > 0 else "worse", by="team")
    if gained := _compare_by_votes(again):
        return ReplayJudgement(again=again, verdict="better" if gained > 0 else "worse", by="votes")
    return ReplayJudgement(again=again, verdict="changed")


def _compare_with_team(again: ReplayedRecording) -> int:
    """Return 1 if only the new answer agrees with the team's, -1 if only the old one did, else 0."""
    if again.team is None:
        return 0
    then = again.answered_then and _agree(again.then, again.team)
    now = again.answered_now and _agree(again.now, again.team)
    return now - then


def _compare_by_votes(again: ReplayedRecording) -> int:
    """Return -1 if a helpful answer is gone, 1 if an unhelpful one is gone, else 0."""
    liked = again.votes.up - again.votes.down
    gone = again.answered_then and not (again.answered_now and _agree(again.now, again.then))
    if not gone or not liked:
        return 0
    return -1 if liked > 0 else 1


def _agree(one: str, other: str) -> bool:
    return bool(AnswerSimilarity(words=measure_shared_words(one, other)).agrees(AgreementThresholds()))
