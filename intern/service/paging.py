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


def cut_page(items: Sequence[S], offset: int, build: Callable[[S], T], size: int = ROWS) -> PagedList[T]:
    """Return the page of a list that begins at `offset`, and `build` only its rows."""
    rows = tuple(map(build, items[offset : offset + size]))
    return PagedList(rows=rows, total=len(items), offset=offset, size=size)
