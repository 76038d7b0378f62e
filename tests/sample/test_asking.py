"""The sixty cases, asked without a model, and of an endpoint that knows the right answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio import fail_after

from intern.settings.loading import Settings
from tests.endpoint_double import endpoint_double
from tests.sample.asking import Outcome, ask_each, known_options, line_of, sample_settings, table_of, totals_of
from tests.sample.cases import CASES
from tests.sample.oracle import oracle

pytestmark = pytest.mark.anyio

STEPS = ("fused", "separate") if known_options(steps="fused") else ("separate",)

LEAST_RIGHT_OFFLINE = {"fused": 16, "separate": 8}
MOST_WRONG_OFFLINE = {"fused": 4, "separate": 11}


# On one backend: what differs between them is not what is answered.
@pytest.mark.parametrize("anyio_backend", ["trio"])
@pytest.mark.parametrize("steps", STEPS)
async def test_without_a_model_it_answers_no_worse_than_it_did(tmp_path: Path, steps: str) -> None:
    outcomes = await asked_all(sample_settings(tmp_path, llm={"provider": "offline"}, ai=known_options(steps=steps)))

    totals = totals_of(outcomes)
    assert totals["answerable"].right >= LEAST_RIGHT_OFFLINE[steps], table_of(outcomes)
    assert totals["all"].wrong <= MOST_WRONG_OFFLINE[steps], table_of(outcomes)
    assert totals["all"].failed == totals["all"].calls == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("steps", STEPS)
async def test_a_model_that_answers_rightly_from_what_it_is_shown_is_always_right(tmp_path: Path, steps: str) -> None:
    with endpoint_double(oracle) as endpoint:
        llm = {"base_url": endpoint.base_url, "model": "oracle"}
        outcomes = await asked_all(sample_settings(tmp_path, llm=llm, ai=known_options(steps=steps)))

    totals = totals_of(outcomes)
    assert totals["answerable"].right == totals["answerable"].found >= 28, table_of(outcomes)
    assert totals["answerable"].cited == totals["answerable"].right
    assert (totals["all"].wrong, totals["all"].failed) == (0, 0), table_of(outcomes)
    assert all(outcome.calls == len(outcome.prompts) > 0 for outcome in outcomes if outcome.answer)


async def asked_all(settings: Settings) -> list[Outcome]:
    with fail_after(100):
        outcomes = await ask_each(CASES, settings, lambda outcomes: print(line_of(outcomes[-1])))
    print(table_of(outcomes))
    return outcomes
