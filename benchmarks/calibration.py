"""Calibration: whether the least score keeps to its bound, how soon drift is noticed, and the figures of real chat.

Histories are simulated: scores are even, and the chance to be wrong falls with them, along one of three lines, or not
at all. The truth is known there. The bot would give no answers if no score keeps to the bound, and all if there are too
few judgements. In the real history of IRC logs, rules answer, and an answer unlike the team's counts as wrong; the
score is calibrated on the first half of the questions, and held against the second.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from statistics import mean, median

import anyio

from benchmarks.figures import Figure
from intern.answering.thresholds import JudgedAnswer, find_threshold, is_bound_unreachable, is_drifting
from tests.eval import backtesting
from tests.eval.chats import EVAL

BOUND = 0.05
HISTORIES = 200
_STEPS = 200
_LINES: tuple[Callable[[float], float], ...] = (
    lambda score: 0.6 * (1 - score) ** 2,
    lambda score: 0.01 + 0.4 * (1 - score),
    lambda score: 0.9 * (1 - score) ** 4,
)
"""The chance to be wrong, by score."""
_FLAT = 0.08
"""The chance to be wrong at each score, if the score is meaningless."""


def measure() -> Iterator[Figure]:
    """Simulate, and replay the real history if it is available."""
    yield from _without_drift()
    yield from _with_drift()
    if not EVAL.is_dir():
        print(f"real chat is not measured: it needs {EVAL}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield from _real(Path(folder))


def _without_drift() -> Iterator[Figure]:
    for answers in (45, 200, 600):
        given = [_given(seed, answers, _LINES[seed % len(_LINES)]) for seed in range(HISTORIES)]
        share = [answered / _oracle(_LINES[seed % len(_LINES)]) for seed, (answered, _) in enumerate(given)]
        name = f"{HISTORIES} histories of {answers} judged answers"
        yield Figure(f"{name}: share that keeps to the bound", _keeping(given), "", least=0.86)
        yield Figure(f"{name}: answered, of an oracle's", mean(share), "", least=0.5 if answers > 200 else 0.0)
        yield Figure(f"{name}: silent, for no score keeps to it", sum(not answered for answered, _ in given), "")
    for answers in (200, 600):
        given = [_given(seed, answers, lambda _: _FLAT) for seed in range(HISTORIES)]
        name = f"{answers} judged answers, a score that tells nothing, {_FLAT:.0%} wrong: share that keeps to the bound"
        yield Figure(name, _keeping(given), "", least=0.86 if answers > 200 else 0.0)
        given = [_given(seed, answers, lambda _: BOUND / 2) for seed in range(HISTORIES)]
        name = f"{answers} judged answers, a score that tells nothing, {BOUND / 2:.1%} wrong: silent for nothing"
        yield Figure(name, sum(not answered for answered, _ in given) / HISTORIES, "")


def _given(seed: int, answers: int, line: Callable[[float], float]) -> tuple[float, float]:
    """Return the shares of questions that get an answer, and of these that are wrong, in one history."""
    least = _least(_history(Random(seed), answers, line), BOUND)
    return (0.0, 0.0) if least == math.inf else _truth(line, least)


def _least(judged: Sequence[JudgedAnswer], bound: float) -> float:
    """Return the least score of answers that are given: 0 for all, infinity for none."""
    found = find_threshold(judged, bound)
    return found.score if found is not None else math.inf if is_bound_unreachable(judged, bound) else 0.0


def _keeping(given: Sequence[tuple[float, float]]) -> float:
    return mean(wrong <= BOUND for _, wrong in given)


def _with_drift() -> Iterator[Figure]:
    for share in (0.1, 0.15, 0.2, 0.3):
        delays: list[int] = []
        for seed in range(HISTORIES // 2):
            random = Random(seed)
            said = [random.random() < BOUND / 2 for _ in range(200)]
            before = len(said)
            while len(said) < before + 1_000 and not is_drifting(said, BOUND):
                said.append(random.random() < share)
            delays.append(len(said) - before)
        yield Figure(f"drift to {share:.0%} wrong: judged answers to the note, median", median(delays), "")
    alarms = 0
    for seed in range(HISTORIES):
        random = Random(seed)
        alarms += is_drifting([random.random() < BOUND for _ in range(200)], BOUND)
    yield Figure("no drift, at the bound: notes after 200 judged answers", alarms / HISTORIES, "", 0.1)


def _real(folder: Path) -> Iterator[Figure]:
    """Return both shares for the later questions, as they are."""
    done = anyio.run(backtesting.measure, folder).done
    judged = [JudgedAnswer(each.score, each.wrong) for each in done.judgements]
    half = len(judged) // 2
    early, late = judged[:half], judged[half:]
    yield Figure("real history: judged answers", len(judged), "")
    yield Figure("real history: wrong, of the later half without a score", mean(each.wrong for each in late), "")
    for bound in (BOUND, 0.2, 0.3, 0.5):
        least = _least(early, bound)
        given = [each.wrong for each in late if each.score >= least]
        how = {0.0: " (too few to tell: all)", math.inf: " (no score keeps to it: none)"}.get(least, "")
        name = f"real history, bound {bound:.0%}{how}"
        yield Figure(f"{name}: answered, of the later half", len(given) / max(len(late), 1), "")
        yield Figure(f"{name}: wrong, of these", mean(given) if given else 0.0, "")


def _history(random: Random, answers: int, line: Callable[[float], float]) -> list[JudgedAnswer]:
    scores = [random.random() for _ in range(answers)]
    return [JudgedAnswer(score, random.random() < line(score)) for score in scores]


def _truth(line: Callable[[float], float], score: float) -> tuple[float, float]:
    """Return the shares of answered and wrong at a least score."""
    steps = [score + (1 - score) * (n + 0.5) / _STEPS for n in range(_STEPS)]
    return 1 - score, mean(map(line, steps))


@cache
def _oracle(line: Callable[[float], float]) -> float:
    """Return the largest share that can be answered within the bound."""
    return max(answered for n in range(101) for answered, wrong in [_truth(line, n / 101)] if wrong <= BOUND)
