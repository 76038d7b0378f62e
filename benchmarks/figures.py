"""A measured figure and the bar it is held to."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """`value` should be at most `bar`."""

    name: str
    value: float
    unit: str
    bar: float

    @property
    def holds(self) -> bool:
        """Whether the bar is kept."""
        return self.value <= self.bar
