"""The judgement of samples: it finds growth, ignores breathing, and does not judge too short a life."""

from __future__ import annotations

import os

import pytest

from tests.soak.__main__ import plan_of
from tests.soak.machine import (
    JUDGED_FROM,
    MOST_ERROR,
    WARM_UP,
    Growth,
    Sample,
    can_be_judged,
    growth,
    leaks,
    minutes_to_judge,
    sample,
)

HOUR = 3600.0
REST_EVERY = 80  # seconds


def life(minutes: float, **grown: float) -> list[Sample]:
    """Return the samples of a life that breathes, and grows by that much an hour."""

    def at(seconds: float) -> Sample:
        more = {name: each * seconds / HOUR for name, each in grown.items()}
        breath = round(seconds / REST_EVERY) % 3
        return Sample(
            at=seconds,
            rss=90 + breath / 10 + more.get("rss", 0.0),
            files=20 + breath + round(more.get("files", 0.0)),
            threads=8 + breath + round(more.get("threads", 0.0)),
            cpu=seconds / 5,
            tasks=40 + breath + round(more.get("tasks", 0.0)),
        )

    return [at(seconds) for seconds in range(REST_EVERY, round(minutes * 60), REST_EVERY)]


def grown_in(samples: list[Sample]) -> Growth:
    grown = growth(samples, warm_up=samples[-1].at * WARM_UP)
    assert grown is not None
    return grown


def test_breathing_is_no_leak() -> None:
    grown = grown_in(life(100))
    assert can_be_judged(grown)
    assert list(leaks(grown)) == []


@pytest.mark.parametrize(
    ("what", "says"),
    [("rss", "memory grows"), ("files", "files leak"), ("threads", "threads leak"), ("tasks", "tasks leak")],
)
def test_what_grows_is_found_and_nothing_else(what: str, says: str) -> None:
    found = list(leaks(grown_in(life(100, **{what: 40.0}))))
    assert len(found) == 1
    assert says in found[0]


def test_memory_may_grow_by_less_than_a_megabyte_an_hour() -> None:
    assert list(leaks(grown_in(life(100, rss=0.9)))) == []
    assert "+1.1" in next(leaks(grown_in(life(100, rss=1.1))))


def test_a_life_that_breathes_so_much_that_its_slope_says_nothing_is_not_judged() -> None:
    calm = life(100)
    deep = [each._replace(rss=each.rss + 12 * (n % 7 == 0)) for n, each in enumerate(calm)]
    assert can_be_judged(grown_in(calm))
    assert grown_in(deep).error > MOST_ERROR
    assert not can_be_judged(grown_in(deep))


def test_a_life_of_which_nobody_read_the_tasks_is_not_well() -> None:
    (found,) = leaks(grown_in([each._replace(tasks=None) for each in life(100)]))
    assert "could not be read" in found


def test_what_is_asked_for_by_itself_is_long_enough_to_be_judged_and_five_minutes_less_than_needed_are_not() -> None:
    asked = plan_of({"SOAK_KILLS": "0"})
    assert asked.kill_every == 0
    assert can_be_judged(grown_in(life(asked.seconds / 60)))
    assert can_be_judged(grown_in(life(minutes_to_judge())))
    assert not can_be_judged(grown_in(life(minutes_to_judge() - 5)))
    assert growth(life(0.1), warm_up=2) is None
    assert not can_be_judged(None)
    assert JUDGED_FROM < minutes_to_judge() < asked.seconds / 60
    assert plan_of({"SOAK_KILLS": "0", "SOAK_MINUTES": "1"}).seconds == 60
    assert plan_of({}).seconds == 600


def test_a_process_is_sampled_as_long_as_it_lives() -> None:
    seen = sample(os.getpid(), at=1.0)
    assert seen is not None
    assert seen.rss > 10
    assert min(seen.files, seen.threads) >= 1
    assert seen.tasks is None
    assert sample(2**22 + 1, at=1.0) is None
