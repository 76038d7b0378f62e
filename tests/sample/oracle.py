"""An endpoint that knows the right answers: for `EndpointDouble`. What then goes wrong is not the model's fault."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.sample.cases import CASES, Case, is_right, plain
from tests.worlds.endpoint import sensible, text_of

_FENCED = re.compile(r"^=== ([^\n]+) ===\n(.*?)\n=== end of \1 ===$", re.DOTALL | re.MULTILINE)
_LABEL = re.compile(r"(S\d): ([^\s:]+)(?:: .*)?")


def oracle(body: dict[str, Any]) -> dict[str, Any]:
    """The reply of a model that quotes the paragraphs with the right answer, where they are shown, and else is silent.

    It fills the fields that a schema has, so that it knows both the prompt that decides and answers and those that do
    one thing each.
    """
    fences: list[tuple[str, str]] = _FENCED.findall(text_of(body, "user"))
    texts = {text for label, text in fences if label in {"question", "message"}}
    case = next(case for case in CASES if case.text in texts)
    reply = sensible(body)
    knows: dict[str, Any] = {
        "rewrite_query": None,
        "selected_source_ids": case.sources or ("kb:overview.md",),
        "is_good_enough": True,
        "claims": [{"claim": "what was asked", "quote": 1}],
        "verdict": "answered",
        **_draft(case, _passages(fences)),
    }
    if "kind" not in reply:  # the prompt that only answers has plain quotes
        knows["quotes"] = [quote["line"] for quote in knows["quotes"]]
    if "answer" not in reply:  # the gate
        knows["kind"] = "question" if case.addressed else "chatter"
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
