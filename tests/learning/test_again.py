"""Due pairs, and the time of the next check."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given, strategies as st

from intern.core.decisions import PairParked
from intern.core.ids import QAId
from intern.learning.review import find_due_pairs
from intern.stores.qa_ids import make_qa_id
from intern.stores.tables.attempts import Retry
from tests.worlds.samples import START


def qa(n: int) -> QAId:
    return make_qa_id(START + timedelta(minutes=n))


def parked(n: int, at: datetime = START) -> PairParked:
    return PairParked(qa_id=qa(n), at=at, reason="gibberish")


NOW = START + timedelta(hours=2)


def test_what_was_parked_is_due_once_its_time_has_come() -> None:
    retries = {qa(1): Retry(2, NOW), qa(2): Retry(2, NOW + timedelta(seconds=5)), qa(3): Retry(4, None)}
    found = find_due_pairs([parked(n) for n in range(1, 5)], retries, NOW, None)
    assert [each.qa_id for each in found.due] == [qa(1), qa(4)]
    assert found.seconds == 5


def test_where_nothing_waits_nobody_need_look_again() -> None:
    assert find_due_pairs([parked(1)], {qa(1): Retry(4, None)}, NOW, None) == ((), None)


def test_what_the_operator_passes_over_is_not_tried_by_itself() -> None:
    found = find_due_pairs([parked(1), parked(2), parked(3)], {}, NOW, qa(2))
    assert [each.qa_id for each in found.due] == [qa(3)]


@given(st.dictionaries(st.integers(0, 50), st.none() | st.integers(-100, 100)), st.integers(0, 200))
def test_waiting_as_long_as_it_says_misses_nobody_and_wakes_nobody_for_nothing(
    seconds: dict[int, int | None], later: int
) -> None:
    retries = {qa(n): Retry(1, None if s is None else NOW + timedelta(seconds=s)) for n, s in seconds.items()}
    pairs = [parked(n) for n in seconds]
    first = find_due_pairs(pairs, retries, NOW, None)
    assert first.seconds is None or first.seconds > 0
    then = find_due_pairs(pairs, retries, NOW + timedelta(seconds=later), None)
    grown = len(then.due) > len(first.due)
    assert grown == (first.seconds is not None and later >= first.seconds)
