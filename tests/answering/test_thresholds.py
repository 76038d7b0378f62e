"""Calibration: the least score keeps to the bound in nine of ten histories, and few judged answers change nothing."""

from __future__ import annotations

from random import Random

import pytest

from intern.answering.thresholds import (
    JudgedAnswer,
    binomial_tail,
    build_curve,
    enough_answers,
    find_threshold,
    is_bound_unreachable,
    is_drifting,
    least_answers,
)

BOUND = 0.05


def history(seed: int, answers: int) -> list[JudgedAnswer]:
    """Return answers with even scores; the chance to be wrong falls from .6 to 0 with the score."""
    random = Random(seed)
    scores = [random.random() for _ in range(answers)]
    return [JudgedAnswer(score, random.random() < 0.6 * (1 - score) ** 2) for score in scores]


def wrong_share(score: float) -> float:
    """Return the wrong share of all answers of such a history at or above a score."""
    return 0.2 * (1 - score) ** 2


def test_45_right_answers_in_a_row_are_the_least_for_five_percent() -> None:
    assert (least_answers(BOUND), least_answers(0.1), least_answers(BOUND, 1)) == (45, 22, 77)
    assert binomial_tail(1, 3, 0.5) == pytest.approx(0.5)
    assert find_threshold([JudgedAnswer(0.5, wrong=False)] * 44, BOUND) is None
    found = find_threshold([JudgedAnswer(0.5, wrong=False)] * 45, BOUND)
    assert found is not None
    assert (found.score, found.answered, found.wrong) == (0.5, 45, 0)


def test_the_least_score_keeps_to_the_bound_in_nine_of_ten_histories() -> None:
    found = [find_threshold(history(seed, 600), BOUND) for seed in range(60)]
    assert sum(each is None or wrong_share(each.score) <= BOUND for each in found) >= 0.86 * len(found)
    # An oracle answers half of the questions.
    assert sum(0 if each is None else 1 - each.score for each in found) / len(found) >= 0.5 * 0.5


def test_no_answer_is_given_only_once_enough_is_judged_and_no_score_keeps_to_the_bound() -> None:
    def judged(answers: int, wrong: int) -> list[JudgedAnswer]:
        return [JudgedAnswer(0.5, wrong=n < wrong) for n in range(answers)]

    enough = enough_answers(BOUND)
    assert not is_bound_unreachable(judged(44, 44), BOUND)  # too few
    assert not is_bound_unreachable(judged(100, 4), BOUND)  # perhaps within the bound
    assert is_bound_unreachable(judged(100, 10), BOUND)  # beyond it
    assert is_bound_unreachable(judged(enough, enough // 20), BOUND)
    assert not is_bound_unreachable(judged(enough, enough // 40), BOUND)
    # Even with a random score, too much is wrong in at most one of ten histories.
    random = Random(7)
    flat = [[JudgedAnswer(random.random(), random.random() < 0.07) for _ in range(600)] for _ in range(40)]
    assert sum(is_bound_unreachable(each, BOUND) for each in flat) >= 0.86 * len(flat)


def test_equal_scores_are_let_through_together() -> None:
    judged = [
        *[JudgedAnswer(0.9, wrong=False)] * 50,
        *[JudgedAnswer(0.4, wrong=False)] * 20,
        *[JudgedAnswer(0.4, wrong=True)] * 20,
    ]
    found = find_threshold(judged, BOUND)
    assert found is not None
    assert (found.score, found.answered) == (0.9, 50)
    assert find_threshold([JudgedAnswer(0.5, wrong=n < 9) for n in range(90)], BOUND) is None


def test_a_curve_goes_from_the_strictest_score_to_all_answers() -> None:
    points = build_curve([JudgedAnswer(n / 200, wrong=n < 50) for n in range(200)])
    assert points[-1].answered == 1
    assert points[-1].wrong == 0.25
    assert points[0].wrong == 0
    assert [point.score for point in points] == sorted((point.score for point in points), reverse=True)
    assert len(points) <= 61
    assert build_curve([]) == ()


def test_drift_is_noticed_soon_and_seldom_without_any() -> None:
    alarms, delays = 0, list[int]()
    for seed in range(40):
        random = Random(seed)
        good = [random.random() < 0.03 for _ in range(200)]
        alarms += is_drifting(good, BOUND)
        worse = [random.random() < 0.2 for _ in range(200)]
        delays.append(next((n for n in range(5, 205, 5) if is_drifting([*good, *worse[:n]], BOUND)), 999))
    assert alarms <= 2
    assert sorted(delays)[20] <= 60
    assert max(delays) <= 200
