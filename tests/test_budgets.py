"""The size of intern stays within `budgets.toml`."""

from __future__ import annotations

import pytest

from tests.budgets import TREE, Size, broken, read_budgets, size_of, sizes, table

MODULE = '''"""A text
of two lines."""

from typing import Protocol  # why


class Door(Protocol):
    """A door."""

    def open(self) -> str:
        """Open it."""
        return """as
it is"""
'''


def test_comments_blank_lines_and_docstrings_are_no_code() -> None:
    assert size_of(MODULE) == Size(modules=1, lines=5, imports=1, protocols=1, largest=13)


@pytest.mark.rest
def test_no_room_is_above_its_budget() -> None:
    assert broken(sizes(TREE / "intern"), read_budgets()) == []


def test_each_figure_above_its_budget_is_named() -> None:
    rooms = {"core": Size(1, 11, 1, 2, 501), "lab": Size(1, 31, 1, 0, 10)}
    budgets = {
        "all": {"lines": 10, "modules": 0, "protocols": 1, "largest_module": 500},
        "lab": {"lines": 30},
        "rooms": {"core": 10},
    }
    assert [sentence.partition(":")[0] for sentence in broken(rooms, budgets)] == ["intern"] * 4 + ["lab", "core"]


def test_the_table_has_a_row_for_each_room_and_one_for_all() -> None:
    rows = table({"core": Size(2, 10, 1, 1, 9), "lab": Size(1, 5, 0, 0, 5)}).splitlines()
    assert [row.split() for row in rows[1:]] == [
        ["core", "2", "10", "1", "1", "9"],
        ["lab", "1", "5", "0", "0", "5"],
        ["all", "but", "lab", "2", "10", "1", "1", "9"],
    ]
