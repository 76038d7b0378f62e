"""Traffic is the same for the same seed, points only backward, and includes all kinds of people."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from tests.soak.machine import Sample, growth, slope
from tests.soak.traffic import RECORDED, Line, lines


def _first(folder: Path, n: int = 6000) -> list[Line]:
    return list(islice(lines(Random("seed"), folder), n))


@pytest.mark.rest
@pytest.mark.parametrize("recorded", [True, False])
def test_there_is_always_more_to_say_and_each_reply_is_to_somebody_else_nearby(
    *, recorded: bool, tmp_path: Path
) -> None:
    if recorded and not RECORDED.is_dir():
        pytest.skip("no recorded chat is at hand")
    said = _first(RECORDED if recorded else tmp_path)
    assert len(said) == 6000
    assert said == _first(RECORDED if recorded else tmp_path)
    assert {line.role for line in said} == {"team", "user", "bot"}
    replies = [(line, said[line.replies_to]) for line in said if line.replies_to is not None]
    assert len(replies) > 600
    assert all(line.place == to.place and line.author != to.author for line, to in replies)
    assert all(line.replies_to is None or line.replies_to < number for number, line in enumerate(said))


def test_growth_is_told_from_noise() -> None:
    flat = [Sample(at=n * 2.0, rss=100 + n % 3, files=20 + n % 2, threads=8, cpu=0) for n in range(900)]
    leaking = [each._replace(rss=each.rss + each.at / 360, files=each.files + round(each.at / 100)) for each in flat]
    calm, grown = growth(flat, 300), growth(leaking, 300)
    assert calm is not None
    assert grown is not None
    assert abs(calm.megabytes_an_hour) < 0.1
    assert calm.files == 0
    assert 9.9 < grown.megabytes_an_hour < 10.1
    assert grown.files > 5
    assert growth(flat[:155], 300) is None


def test_a_slope_is_that_of_the_line() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == (2, 0)
    steep, error = slope([(0, 1), (1, 1), (2, 4), (3, 4)])
    assert (steep, error) == pytest.approx((1.2, math.sqrt(0.18)))
