"""The quality on real chat: the figures of `make eval`, so that a change shows its quality beside its cost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import inf

from benchmarks.figures import Figure
from tests.eval.chats import EVAL
from tests.eval.report import REPORTS


def measure() -> Iterator[Figure]:
    """Return all of them, each with its least value; none if no real chats are available."""
    if not EVAL.is_dir():
        print(f"quality is not measured: there are no real chats in {EVAL}", file=sys.stderr)
        return
    for report in REPORTS:
        for name, value, bar in report():
            yield Figure(name, value, "", least=-inf if bar is None else bar)
