"""What the kernel tells of a process, and what a row of such samples says: does anything grow?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Sample(NamedTuple):
    """A process at one moment."""

    at: float  # seconds
    rss: float  # megabytes
    files: int
    threads: int
    cpu: float  # seconds so far


def sample(pid: int, at: float) -> Sample | None:
    """None where the process is gone."""
    folder = Path("/proc") / str(pid)
    try:
        # Behind the name, which may hold anything, from field 3 on.
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        files = len(list((folder / "fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Sample(
        at=at,
        rss=int(fields[21]) * _PAGE / 1e6,
        files=files,
        threads=int(fields[17]),
        cpu=(int(fields[11]) + int(fields[12])) * _TICK,
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """By least squares: how much is gained for each unit of the first."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


class Growth(NamedTuple):
    """What became more in the life of a process, its warm-up left out."""

    megabytes_an_hour: float
    files: float
    threads: float
    minutes: float


def growth(samples: Sequence[Sample], warm_up: float) -> Growth | None:
    """By least squares for memory; for files and threads, the medians of the last third and of the first.

    None where the life was hardly longer than its warm-up.
    """
    warm = [each for each in samples if each.at - samples[0].at >= warm_up]
    third = len(warm) // 3
    if third < 3:
        return None
    first, last = warm[:third], warm[-third:]
    return Growth(
        megabytes_an_hour=slope([(each.at / 3600, each.rss) for each in warm]),
        files=median(each.files for each in last) - median(each.files for each in first),
        threads=median(each.threads for each in last) - median(each.threads for each in first),
        minutes=(warm[-1].at - warm[0].at) / 60,
    )
