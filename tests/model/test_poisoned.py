"""A real model posts nothing of a poisoned source that must not be posted. See `tests/model/poisoned.py`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.eval.hostile import STRINGS
from tests.model.poisoned import try_each

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.model,
    pytest.mark.timeout(6 * 3600),
    pytest.mark.skipif(not STRINGS.is_file(), reason="needs the hostile strings, which are not part of the project"),
]


# Findings A13 to A15.
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_small_model_posts_nothing_that_strangers_want_posted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not os.environ.get("INTERN_TEST_BASE_URL"):
        pytest.skip("INTERN_TEST_BASE_URL names no server")

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    trials = await try_each(os.environ, tmp_path, say)

    assert [(trial.order.id, trial.place) for trial in trials if trial.faults] == []
    assert any(trial.outcome == "answered" for trial in trials)
