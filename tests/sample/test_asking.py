"""The sixty cases, asked without a model, and of an endpoint that knows the right answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from tests.endpoint_double import endpoint_double, sensible, text_of
from tests.sample.asking import Outcome, ask_each, known_options, sample_settings, table_of, totals_of
from tests.sample.cases import CASES, Case, is_right, plain

pytestmark = pytest.mark.anyio

STEPS = ("fused", "separate") if known_options(steps="fused") else ("separate",)

LEAST_RIGHT_OFFLINE = 8
MOST_WRONG_OFFLINE = 11

_FENCED = re.compile(r"^=== ([^\n]+) ===\n(.*?)\n=== end of \1 ===$", re.DOTALL | re.MULTILINE)
_LABEL = re.compile(r"(S\d): (\S+)")


# On one backend: what differs between them is not what is answered.
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_without_a_model_it_answers_no_worse_than_it_did(tmp_path: Path) -> None:
    outcomes = await asked_all(sample_settings(tmp_path, llm={"provider": "offline"}))

    totals = totals_of(outcomes)
    assert totals["answerable"].right >= LEAST_RIGHT_OFFLINE, table_of(outcomes)
    assert totals["all"].wrong <= MOST_WRONG_OFFLINE, table_of(outcomes)
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


async def asked_all(settings: Any) -> list[Outcome]:
    with fail_after(100):
        outcomes = await ask_each(CASES, settings, print)
    print(table_of(outcomes))
    return outcomes


def oracle(body: dict[str, Any]) -> dict[str, Any]:
    """The reply of a model that quotes the paragraphs with the right answer, where they are shown, and else is silent.

    It fills the fields that a schema has, so that it knows both the prompt that decides and answers and those that do
    one thing each.
    """
    fences: list[tuple[str, str]] = _FENCED.findall(text_of(body, "user"))
    texts = {text for label, text in fences if label in {"question", "message"}}
    case = next(case for case in CASES if case.text in texts)
    reply = sensible(body)
    knows = {
        "is_question": case.addressed,
        "is_answerable": case.addressed,
        "rewrite_query": None,
        "selected_source_ids": case.sources or ("kb:overview.md",),
        "is_good_enough": True,
        "claims": [{"claim": "what was asked", "quote": 1}],
        "verdict": "right",
        **_draft(case, _passages(fences)),
    }
    return {field: knows.get(field, value) for field, value in reply.items()}


def _draft(case: Case, passages: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    for name, (source_id, text) in passages.items():
        paragraphs = text.split("\n\n")
        held = [
            each for each in paragraphs if any(plain(word) in plain(each) for group in case.holds for word in group)
        ]
        answer = "\n\n".join(held)
        if source_id in case.sources and is_right(case, answer):
            line = next(line for line in held[0].splitlines() if len(line) > 20)
            return {
                "quotes": [{"source": name, "line": line[:200]}],
                "kind": "answer",
                "answer": answer,
                "citations": [name],
            }
    return {"quotes": [], "kind": "not_covered" if case.addressed else "chatter", "answer": None, "citations": []}


def _passages(fences: list[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """By the name that a citation has: the id of the source, and what is shown of it."""
    passages: dict[str, tuple[str, str]] = {}
    source_id = ""
    for label, text in fences:
        if aliased := _LABEL.fullmatch(label):
            passages[aliased[1]] = f"kb:{aliased[2]}", text
        elif label == "source id":
            source_id = text
        elif label == "source":
            passages[source_id] = source_id, text
    return passages
