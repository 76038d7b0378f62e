"""The runner of the sixty cases, against an endpoint that is always right."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from anyio import fail_after

from tests.model.answers import ask_model, chosen, run_of
from tests.sample.cases import CASES
from tests.sample.oracle import oracle
from tests.worlds.endpoint import endpoint_double


@pytest.mark.rest
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_some_cases_are_asked_of_a_running_server_and_reported(tmp_path: Path) -> None:
    report, said = tmp_path / "report.json", list[str]()
    with endpoint_double(oracle) as endpoint, fail_after(60):
        run = run_of(
            {
                "INTERN_TEST_BASE_URL": endpoint.base_url,
                "INTERN_TEST_CASES": "ram, kafka, thanks",
                "INTERN_TEST_REPORT": str(report),
            }
        )
        (folder := tmp_path / "work").mkdir()
        await ask_model(run, folder, said.append)

    figures = msgspec.json.decode(report.read_bytes())
    assert [(case["name"], case["verdict"]) for case in figures["cases"]] == [
        ("ram", "right"),
        ("kafka", "silent"),
        ("thanks", "silent"),
    ]
    assert figures["totals"]["all"]["right"] == figures["totals"]["answerable, en"]["found"] == 1
    assert [line.split()[:1] for line in said[1:4]] == [["right"], ["silent"], ["silent"]]


def test_every_nth_case_can_be_chosen() -> None:
    assert chosen("10") == CASES[::10]
    assert chosen("") == CASES


def test_a_case_that_does_not_exist_and_a_missing_model_are_refused() -> None:
    with pytest.raises(SystemExit, match="there is no nonsense;"):
        chosen("ram,nonsense")
    with pytest.raises(SystemExit, match="INTERN_TEST_BASE_URL"):
        run_of({})
