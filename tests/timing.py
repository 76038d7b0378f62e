"""The CPU time of a piece of work, for tests that a text cannot keep the process busy."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import process_time


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of the quickest of three runs, without garbage collection.

    A collection of other tests' garbage takes a third of a second, and comes at any time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return min(_run(work) for _ in range(3))
    finally:
        if was_enabled:
            gc.enable()


def _run(work: Callable[[], object]) -> float:
    began = process_time()
    work()
    return process_time() - began
