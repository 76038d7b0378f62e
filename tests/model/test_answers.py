"""How right a real model is about the sample documents: sixty cases, by their bars. See `tests/model/answers.py`.

The bars are those of Qwen2.5-Coder-1.5B with 4 bits. A larger model passes them, too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.model.answers import ask_model, is_whole, run_of
from tests.sample.asking import table_of, totals_of

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.timeout(6 * 3600)]

LEAST_FOUND = 28
LEAST_RIGHT = {"always": 13, "unsure": 18}
MOST_WRONG = {"always": 5, "unsure": 10}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_small_model_is_right_often_enough_and_seldom_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not os.environ.get("INTERN_TEST_GGUF") and not os.environ.get("INTERN_TEST_BASE_URL"):
        pytest.skip("neither INTERN_TEST_GGUF nor INTERN_TEST_BASE_URL names a model")

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    run = run_of(os.environ)
    outcomes = await ask_model(run, tmp_path, say)

    totals = totals_of(outcomes)
    assert totals["all"].failed < len(outcomes), table_of(outcomes)
    if run.steps == "fused" and is_whole(outcomes):
        assert totals["answerable"].found >= LEAST_FOUND
        assert totals["answerable"].right >= LEAST_RIGHT[run.verify]
        assert totals["all"].wrong <= MOST_WRONG[run.verify]
