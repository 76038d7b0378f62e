"""Samples from the kernel and the process itself, and the judgement whether anything grows in them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import linear_regression, mean, median
from typing import NamedTuple

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

TEACHING = 1 / 6  # of a life that is judged: what is known takes memory, and shall
WARM_UP = 0.3  # of a life: what was taught last is still being filed for some minutes, and caches fill
MOST_MEGABYTES_AN_HOUR = 1.0
MOST_ERROR = MOST_MEGABYTES_AN_HOUR / 2  # a standard error: with more, chance alone makes a leak now and then
JUDGED_FROM = 60.0  # minutes after warm-up: over half of that, the error was 1.4 MB an hour
MOST_MORE = 5  # files, threads or tasks: pools breathe
_FEWEST = 9  # samples, each third of which has a median


class Sample(NamedTuple):
    """A process at one moment."""

    at: float  # seconds
    rss: float  # megabytes
    files: int
    threads: int
    cpu: float  # seconds so far
    tasks: int | None = None
    """The tasks of its event loop; None if no one asked it just then."""


def sample(pid: int, at: float) -> Sample | None:
    """Take a sample; None if the process is gone."""
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


def slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit a line to three points or more by least squares; return its slope and the standard error.

    The error follows from the distance of the points from the line.
    """
    xs, ys = zip(*points, strict=True)
    line = linear_regression(xs, ys)
    off = sum((y - line.intercept - line.slope * x) ** 2 for x, y in points) / (len(points) - 2)
    middle = mean(xs)
    return line.slope, math.sqrt(off / sum((x - middle) ** 2 for x in xs))


class Growth(NamedTuple):
    """The growth in the life of a process; of memory, after its warm-up."""

    megabytes_an_hour: float
    error: float
    """One standard deviation of it."""
    files: float
    threads: float
    tasks: float | None
    """None where it was hardly asked."""
    minutes: float

    def __str__(self) -> str:
        tasks = "tasks not known" if self.tasks is None else f"{self.tasks:+.0f} tasks"
        return (
            f"{self.megabytes_an_hour:+.2f} (±{self.error:.2f}) MB an hour in {self.minutes:.0f} min after warm-up,"
            f" {self.files:+.0f} files, {self.threads:+.0f} threads, {tasks}"
        )


def growth(samples: Sequence[Sample], warm_up: float) -> Growth | None:
    """Return the growth: by least squares for memory, else from the medians of the last and the first third of a life.

    None where the life was hardly longer than its warm-up.
    """
    warm = [each for each in samples if each.at >= warm_up]
    if len(warm) < _FEWEST:
        return None
    third = len(samples) // 3
    first, last = samples[:third], samples[-third:]
    megabytes, error = slope([(each.at / 3600, each.rss) for each in warm])
    return Growth(
        megabytes_an_hour=megabytes,
        error=error,
        files=median(each.files for each in last) - median(each.files for each in first),
        threads=median(each.threads for each in last) - median(each.threads for each in first),
        tasks=_more_tasks(first, last),
        minutes=(warm[-1].at - warm[0].at) / 60,
    )


def _more_tasks(first: Sequence[Sample], last: Sequence[Sample]) -> float | None:
    before, after = ([each.tasks for each in part if each.tasks is not None] for part in (first, last))
    return median(after) - median(before) if min(len(before), len(after)) >= _FEWEST / 3 else None


def can_be_judged(grown: Growth | None) -> bool:
    """Return whether it was looked at for long enough, and breathed little enough, to tell a leak from breathing."""
    return grown is not None and grown.minutes >= JUDGED_FROM and grown.error <= MOST_ERROR


def minutes_to_judge() -> float:
    """Return the length of a life for that, and three minutes more, since rests are more than one minute apart."""
    return JUDGED_FROM / (1 - WARM_UP) + 3


def leaks(grown: Growth) -> Iterator[str]:
    """Return the leaks in a life that can be judged."""
    if grown.megabytes_an_hour > MOST_MEGABYTES_AN_HOUR:
        yield f"memory grows: {grown}"
    if grown.files > MOST_MORE:
        yield f"files leak: {grown}"
    if grown.threads > MOST_MORE:
        yield f"threads leak: {grown}"
    if grown.tasks is None:
        yield f"how many tasks it has could not be read: {grown}"
    elif grown.tasks > MOST_MORE:
        yield f"tasks leak: {grown}"
