"""CPU time of `intern --help`, which every shell completion and every typo costs."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure

RUNS = 7
INTERN = Path(sys.executable).parent / "intern"


def measure() -> Iterator[Figure]:
    """Measure user and system time of the child, the median of several runs; omit the first, which may compile."""
    yield Figure("intern --help, CPU", median([_cpu() for _ in range(RUNS + 1)][1:]), "s", 0.2)


def _cpu() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([INTERN, "--help"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
