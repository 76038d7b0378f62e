"""Results for a list are kept for the next one, and no longer."""

from __future__ import annotations

from hypothesis import given, strategies as st

from intern.core.text.words import LastBatchCache


class Squares:
    """A function that keeps count of what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, number: int) -> int:
        self.asked.append(number)
        return number * number


@given(st.lists(st.lists(st.integers(0, 9))))
def test_each_item_of_a_list_is_told_of_and_worked_out_only_where_the_last_list_did_not_hold_it(
    lists: list[list[int]],
) -> None:
    square = Squares()
    of_each = LastBatchCache(square)
    before: set[int] = set()
    for items in lists:
        square.asked.clear()
        assert of_each(iter(items)) == [item * item for item in items]
        assert sorted(square.asked) == sorted(set(items) - before)
        before = set(items)
