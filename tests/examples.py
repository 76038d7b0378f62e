"""The number of Hypothesis's examples for each test: fewer in `make test` than in `make test-all`."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import settings

USUAL = 100
"""Examples of a test without a number of its own, outside of `make test`."""
EACH_TIME = 10
"""Examples of such a test in `make test`."""


def use(*, each_time: bool) -> None:
    """Set the number for all modules that are imported from now on."""
    # Other tests want the processor, too, so a deadline would pass by itself; a hanging test has its own timeout.
    settings.register_profile("beside others", deadline=None, max_examples=EACH_TIME if each_time else USUAL)
    settings.load_profile("beside others")
    if each_time:  # Hypothesis also tries the constants of our code: to find them takes each worker three seconds
        pytest.MonkeyPatch().setattr("hypothesis.internal.conjecture.providers.is_local_module_file", _never)


def _never(_path: str) -> bool:
    return False


def examples(whole: int) -> int:
    """Return the number for a test that has `whole` of them in `make test-all`."""
    return ceil(whole * settings().max_examples / USUAL)
