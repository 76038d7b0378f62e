"""The trace is written from the results of steps, also of those that fail or are cut off."""

from __future__ import annotations

import anyio
import pytest
from structlog.testing import capture_logs

from intern.answering.answer_trace import Trace
from intern.answering.steps import StepResult
from intern.core.errors import ModelUnavailableError
from intern.core.log import get_logger

pytestmark = pytest.mark.anyio


async def give(result: StepResult | Exception) -> StepResult:
    if isinstance(result, Exception):
        raise result
    return result


async def give_nothing() -> StepResult:
    await anyio.sleep_forever()
    raise AssertionError


async def test_fields_come_from_the_result_and_a_models_words_only_into_the_trace() -> None:
    with capture_logs() as logs:
        trace = Trace(get_logger("test"), {})
        await trace.run("gate", give(StepResult(fields={"by": "model", "kind": ""})))
        words = {"answer": "Set token=hunter2hunter2", "quotes": [str(n) for n in range(9)]}
        await trace.run("generation", give(StepResult(fields={"n": 1}, words=words, of_gate={"kind": "answer"})))
    steps = trace.debug()
    assert (steps["gate"]["by"], steps["gate"]["kind"]) == ("model", "answer")
    assert (steps["generation"]["n"], steps["generation"]["quotes"]) == (1, ("0", "1", "2", "3", "4"))
    assert "hunter2" not in str(steps["generation"]["answer"])
    assert trace.fields().keys() == {"gate.by", "gate.kind", "gate.seconds", "generation.n", "generation.seconds"}
    assert "Set" not in str(logs)


async def test_a_step_that_fails_or_is_cut_off_keeps_its_seconds() -> None:
    trace = Trace(get_logger("test"), {})
    with pytest.raises(ModelUnavailableError):
        await trace.run("gate", give(ModelUnavailableError("away")))
    with anyio.move_on_after(0.001):
        await trace.run("selection", give_nothing())
    gate, selection = trace.debug().values()
    assert gate.keys() == {"error", "seconds"}
    assert (selection["unfinished"], selection["seconds"] > 0) == (True, True)
