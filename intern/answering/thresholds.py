"""Calibration: find the lowest score whose answers are rarely enough wrong, judging by judged answers. Pure.

The method is Learn then Test with fixed-sequence testing (Angelopoulos, Bates, Candès, Jordan, Lei 2021,
arXiv:2110.01052, sections 2 and 3.2). Thresholds are tested from the strictest down, each at the full level, and the
first that fails ends it. Once enough answers are judged, all of them together are tested first, at a part of the level:
a score without any order would fail at the strictest end by bad luck (section 3.2's fallback). Thus the resulting
threshold lets through too many wrong answers in at most one of ten histories (`DELTA`). The p-value is the binomial
tail of the wrong answers among those at or above the threshold.

It assumes that judged answers and later ones are exchangeable: the same kind of questions, sources and model. It
trusts the judgements. The tested thresholds are scores of judged answers, chosen by rank alone, not by which were
wrong; by Hoeffding (1956), the tail also holds if each answer has its own chance to be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

from msgspec import Struct

DELTA = 0.1
"""The bound holds with a confidence of 1 - DELTA."""
LINKS = 0.5
"""The wrong share up to which links are worth showing: the answer behind them is right as often as not."""
_ALL = 0.02  # of DELTA: the part that the test of all answers takes, once enough answers are judged
_POWER = 2 / 3  # enough: answers half as often wrong as allowed pass that test in this share of cases
_GRID = 50  # tested thresholds, about; in a fixed sequence, more of them cost nothing
_STRICTEST = 0.14  # of the judged answers, at most; with fewer, the strictest test often fails by bad luck
_SHOWN = 60  # points of a curve
_RUN = 1_000  # judged answers to the first false alarm, on average at least
_WORSE = (2.0, 4.0, 8.0)  # times the bound: the drifts to detect


class JudgedAnswer(Struct, frozen=True):
    """The score of an answer, and whether it was judged wrong."""

    score: float
    wrong: bool


class Threshold(Struct, frozen=True, kw_only=True):
    """A least score, and the number of judged answers at or above it, with the wrong ones."""

    score: float
    answered: int
    wrong: int


class ThresholdPoint(Struct, frozen=True, kw_only=True):
    """The answered and wrong shares at a least score: of the judged answers, and of those answered."""

    score: float
    answered: float
    wrong: float


def binomial_tail(wrong: int, of: int, share: float) -> float:
    """Return the probability of at most this many wrong among `of` answers, each wrong with this chance."""
    if share >= 1:
        return float(wrong >= of)
    odds = math.log(share) - math.log1p(-share)
    none = of * math.log1p(-share) + math.lgamma(of + 1)
    parts = (math.exp(none + k * odds - math.lgamma(k + 1) - math.lgamma(of - k + 1)) for k in range(wrong + 1))
    return min(1.0, math.fsum(parts))


@cache
def least_answers(max_wrong: float, wrong: int = 0, level: float = DELTA) -> int:
    """Return the number of answers that can show the bound with this many wrong ones; 45 right ones for 5%."""
    least = wrong + 1
    while binomial_tail(wrong, least, max_wrong) > level:
        least += 1
    return least


@cache
def enough_answers(max_wrong: float) -> int:
    """Return the number of judged answers that decide: answers half as often wrong as allowed mostly pass by then."""
    wrong = 0
    while binomial_tail(wrong, least := least_answers(max_wrong, wrong, _ALL), max_wrong / 2) < _POWER:
        wrong += 1
    return least


def is_bound_unreachable(judged: Sequence[JudgedAnswer], max_wrong: float) -> bool:
    """Whether no threshold was found despite enough judged answers, or all of them show that the bound is exceeded."""
    if len(judged) < least_answers(max_wrong) or find_threshold(judged, max_wrong) is not None:
        return False
    wrong = sum(each.wrong for each in judged)
    return len(judged) >= enough_answers(max_wrong) or 1 - binomial_tail(wrong - 1, len(judged), max_wrong) <= DELTA


def find_threshold(judged: Sequence[JudgedAnswer], max_wrong: float) -> Threshold | None:
    """Return the lowest score for which the bound can be shown; None without one."""
    tested, level = _rank_thresholds(judged), DELTA
    if len(judged) >= enough_answers(max_wrong):
        if binomial_tail(tested[-1].wrong, len(judged), max_wrong) <= _ALL:
            return tested[-1]
        level -= _ALL
    start, forgiven = least_answers(max_wrong, 0, level), 0
    if start > len(judged):
        return None
    while (further := least_answers(max_wrong, forgiven + 1, level)) <= _STRICTEST * len(judged):
        start, forgiven = further, forgiven + 1
    found, step = None, max(1, len(judged) // _GRID)
    for rank in (*range(start, len(judged), step), len(judged)):
        at = tested[rank - 1]
        if binomial_tail(at.wrong, at.answered, max_wrong) > level:
            break
        found = at
    return found


def build_curve(judged: Sequence[JudgedAnswer]) -> tuple[ThresholdPoint, ...]:
    """Return the shares at some thresholds, the strictest first; none without a judged answer."""
    tested = list(dict.fromkeys(_rank_thresholds(judged)))
    step = -(-len(tested) // _SHOWN) or 1
    return tuple(
        ThresholdPoint(score=each.score, answered=each.answered / len(judged), wrong=each.wrong / each.answered)
        for each in (*tested[:-1:step], *tested[-1:])
    )


def is_drifting(wrongs: Iterable[bool], max_wrong: float) -> bool:
    """Whether recent answers, oldest first, are wrong more often than the bound allows.

    A Shiryaev-Roberts e-detector (Shin, Ramdas, Rinaldo 2022, arXiv:2203.03532): as long as the bound holds, false
    alarms are `_RUN` judged answers apart on average, however often it is checked. It forgets good times quickly.
    """
    worse = [min(0.9, max_wrong * times) for times in _WORSE]
    evidence = [0.0] * len(worse)
    for wrong in wrongs:
        factors = [share / max_wrong if wrong else (1 - share) / (1 - max_wrong) for share in worse]
        evidence = [(1 + each) * factor for each, factor in zip(evidence, factors, strict=True)]
    return math.fsum(evidence) / len(evidence) >= _RUN


def _rank_thresholds(judged: Sequence[JudgedAnswer]) -> list[Threshold]:
    """Return for each judged answer, best first, the threshold at its score; equal scores come together."""
    order = sorted(judged, key=lambda each: -each.score)
    ranked: list[Threshold] = []
    wrong = 0
    for rank, each in enumerate(order, 1):
        wrong += each.wrong
        ranked.append(Threshold(score=each.score, answered=rank, wrong=wrong))
    for rank in range(len(ranked) - 2, -1, -1):
        if ranked[rank].score == ranked[rank + 1].score:
            ranked[rank] = ranked[rank + 1]
    return ranked
