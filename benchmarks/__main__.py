"""`python -m benchmarks`: what intern costs, one line a figure, each beside its bar."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from math import isfinite

from benchmarks import answering, archive, capturing, help_cpu, idle_memory, indexing, regenerating, socket_to_batch

BENCHMARKS = (
    help_cpu.measure,
    idle_memory.measure,
    socket_to_batch.measure,
    capturing.measure,
    regenerating.measure,
    answering.measure,
    archive.measure,
    indexing.measure,
)


def main() -> int:
    print(f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {platform.machine()}")
    figures = [figure for measure in BENCHMARKS for figure in measure()]
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        verdict = "" if figure.holds else "   OVER"
        bar = f" bar {figure.bar:g}{verdict}" if isfinite(figure.bar) else ""
        print(f"{figure.name:<{width}}  {figure.value:>8.2f} {figure.unit:<4}{bar}")
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
