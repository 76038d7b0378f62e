"""What is worked out for each item of a list that changes little from call to call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembering(Generic[K, V]):
    """A function of single items that is asked for whole lists, and remembers the items of the last one.

    A cache by number keeps what was long ago, and is of no use to a list that is longer than it. Threads may share it.
    """

    def __init__(self, of: Callable[[K], V]) -> None:
        self._of = of
        self._last: dict[K, V] = {}

    def __call__(self, items: Iterable[K]) -> list[V]:
        """What the function says of each item, in their order."""
        asked, last = list(items), self._last
        now = {item: last[item] if item in last else self._of(item) for item in dict.fromkeys(asked)}
        self._last = now
        return [now[item] for item in asked]
