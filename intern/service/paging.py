"""Long lists by pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

S = TypeVar("S")
T = TypeVar("T")

ROWS = 50
"""Rows of a list on a page."""


class PagedList(Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a longer list."""

    rows: tuple[T, ...]
    total: int
    offset: int = 0
    size: int = ROWS
    """Rows on a page."""

    def map(self, build: Callable[[T], S]) -> PagedList[S]:
        """Return the page with a value built of each row."""
        rows = tuple(map(build, self.rows))
        return PagedList(rows=rows, total=self.total, offset=self.offset, size=self.size)


def select_page(items: Sequence[T], offset: int, size: int = ROWS) -> PagedList[T]:
    """Return the page of a list that begins at `offset`."""
    return PagedList(rows=tuple(items[offset : offset + size]), total=len(items), offset=offset, size=size)
