"""Which seeds are played: the chosen ones, the usual ones, or more and more of them for as long as a soak lasts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from time import monotonic, time


def chosen(variable: str, usual: Iterable[int]) -> list[int]:
    """Return the seeds that the environment names, such as 3,17,40-49; else the usual ones."""
    named = os.environ.get(variable)
    if not named:
        return list(usual)
    bounds = [each.partition("-") for each in named.split(",")]
    return [seed for first, _, last in bounds for seed in range(int(first), int(last or first) + 1)]


def further(after: int, variable: str, count: int) -> Iterator[int]:
    """Yield seeds from `after` on, as many as the environment or `count` says; or new ones for half of SOAK_MINUTES."""
    minutes = os.environ.get("SOAK_MINUTES")
    if not minutes:
        yield from range(after, after + int(os.environ.get(variable, str(count))))
        return
    end, seed = monotonic() + float(minutes) * 30, int(time()) * 1000
    while monotonic() < end:
        yield seed
        seed += 1
