"""A result keeps its promises with any reply of a model."""

from __future__ import annotations

from typing import Any, get_args

import anyio
import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from intern.answering.addresses import find_urls
from intern.answering.answerer import Answerer
from intern.answering.prompts import (
    ANSWER,
    CONFIRM,
    DECIDE,
    GATE,
    SELECT,
    VERIFY,
    Alias,
    AnswerDecision,
    AnswerDraft,
    AnsweringOptions,
    Claim,
    Confirmation,
    GateDecision,
    Quote,
    Selection,
    Verification,
)
from intern.answering.quotes import has_quote
from intern.core.messages import AnswerResult, Conversation, Message, RequestContext, SilenceReason
from intern.models.prompt import Prompt
from tests.answering.shelf import Shelf
from tests.examples import examples
from tests.worlds.model import ScriptedModel

PROMPTS: tuple[Prompt[Any, Any], ...] = (GATE, SELECT, ANSWER, VERIFY)
SOURCES = {
    "kb:keys.md": "# Keys\n\nRotate with `relay keys rotate`. See https://docs.example/keys.",
    "kb:ports.md": "# Ports\n\nIt listens on 7480, since v1.2.",
    "kb:empty.md": " \n",
    "team:keys.txt": "--- QA ---\nid: qa_1\ntimestamp: 2026-02-01T03:10:56.228000Z\nUser: how?\nTeam: use it",
}
IDS = st.lists(
    st.sampled_from([*SOURCES, *SOURCES, "team:keys.txt#qa_1", "kb:../x", "kb:keys.md#qa_1", " kb:ports.md ", ""]),
    min_size=1,
)
WORDS = st.sampled_from(
    [
        "Run `relay keys rotate`.",
        "`rm -rf /`",
        "https://docs.example/keys",
        "https://e.example",
        "v1.2",
        "v9",
        "null",
        "",
        "7",
    ]
)
LED = st.tuples(st.sampled_from([("kb:keys.md",), ()]), IDS).map(lambda parts: (*parts[0], *parts[1]))
MOSTLY = st.sampled_from([True] * 7 + [False])
PLANS = st.fixed_dictionaries(
    {
        "gate": st.builds(
            GateDecision,
            kind=st.sampled_from(["question"] * 7 + ["chatter", "out_of_scope", "unclear"]),
            rewrite_query=st.sampled_from([None, "", "keys"]),
        ),
        "select": st.builds(Selection, selected_source_ids=LED),
        "answer": st.builds(AnswerDraft, answer=st.lists(WORDS, min_size=1, max_size=3).map(" ".join), citations=LED),
        "verify": st.builds(Verification, is_good_enough=MOSTLY),
    }
)
OPTIONS = st.builds(
    AnsweringOptions,
    steps=st.just("separate"),
    max_sources=st.integers(1, 4),
    max_answer_chars=st.sampled_from([1, 24, 25, 3000, 3000, 3000]),
    require_citations=st.booleans(),
    strict_grounding=st.booleans(),
)
TEXTS = st.sampled_from(["How do I rotate keys?", "it fails", "keys: how?", "7480 is the port", "thanks!", ""])
ALIASES = st.sampled_from(get_args(Alias))
TRUE = ["Rotate with `relay keys rotate`.", "It listens on 7480, since v1.2."]
LINES = st.sampled_from([*TRUE * 4, "Team: use it", "the", "Rotate it daily."])
DECISIONS = st.builds(
    AnswerDecision,
    quotes=st.lists(st.builds(Quote, source=ALIASES, line=LINES), min_size=1, max_size=3).map(tuple),
    kind=st.sampled_from(["answer"] * 6 + ["chatter", "out_of_scope", "unclear", "not_covered"]),
    answer=st.lists(WORDS, min_size=1, max_size=2).map(" ".join),
    citations=st.lists(ALIASES, max_size=2).map(tuple),
)
CONFIRMATIONS = st.builds(
    Confirmation,
    claims=st.sampled_from([*[(Claim(claim="it", quote=1),)] * 6, (Claim(claim="it", quote=3),), ()]),
    asked=st.just("what"),
    told=st.just("that"),
    verdict=st.sampled_from(["answered"] * 8 + ["unsupported", "not_answered"]),
)
FUSED = st.builds(
    AnsweringOptions,
    max_answer_chars=st.sampled_from([1, 24, 25, 3000, 3000, 3000]),
    max_passage_chars=st.sampled_from([200, 5000]),
    strict_grounding=st.booleans(),
    verify=st.sampled_from(["always", "unsure"]),
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=examples(100), deadline=None)
@given(plan=PLANS, options=OPTIONS, text=TEXTS)
def test_a_result_keeps_its_promises(backend: str, plan: dict[str, Any], options: AnsweringOptions, text: str) -> None:
    model, shelf = ScriptedModel(), Shelf(SOURCES)
    for prompt in PROMPTS:
        model.always(prompt, plan[prompt.name])

    async def ask() -> AnswerResult:
        with anyio.fail_after(10):
            conversation = Conversation((Message(role="user", text=text),))
            return await Answerer(model, shelf, options).answer(conversation, RequestContext())

    result = anyio.run(ask, backend=backend)
    check(result, options)
    assert len(shelf.loaded) == len({*shelf.loaded}) <= options.max_sources
    assert {*shelf.loaded} <= SOURCES.keys()
    if not result.should_reply:
        return
    assert plan["gate"].kind == "question"
    assert plan["verify"].is_good_enough
    assert len(model.calls(VERIFY)) == 1
    assert result.citations or not options.require_citations
    assert {citation.source_id.partition("#")[0] for citation in result.citations} <= {*shelf.loaded}


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=examples(100), deadline=None)
@given(replies=st.tuples(DECISIONS, CONFIRMATIONS), options=FUSED, asked=st.tuples(TEXTS, st.booleans()))
def test_a_result_of_two_calls_keeps_its_promises(
    backend: str, replies: tuple[AnswerDecision, Confirmation], options: AnsweringOptions, asked: tuple[str, bool]
) -> None:
    (decision, confirmation), (text, addressed) = replies, asked
    model, shelf = ScriptedModel(), Shelf(SOURCES)
    model.always(DECIDE, decision)
    model.always(CONFIRM, confirmation)

    async def ask() -> AnswerResult:
        with anyio.fail_after(10):
            conversation = Conversation((Message(role="user", text=text),))
            return await Answerer(model, shelf, options).answer(conversation, RequestContext(), addressed=addressed)

    result = anyio.run(ask, backend=backend)
    check(result, options)
    assert len(model.calls(DECIDE)) == int(bool(text) and (addressed or text != "thanks!"))
    if not result.should_reply:
        return
    assert decision.kind == "answer"
    assert confirmation.is_postable if model.calls(CONFIRM) else options.verify == "unsure"
    quoted = [each for each in result.citations if each.quote]
    assert quoted
    assert all(has_quote(SOURCES[each.source_id.partition("#")[0]], each.quote or "") for each in quoted)


def check(result: AnswerResult, options: AnsweringOptions) -> None:
    """Check the promises that hold for every answer."""
    assert msgspec.json.decode(msgspec.json.encode(result), type=AnswerResult).reason == result.reason
    assert result.reason in get_args(SilenceReason)
    assert result.should_reply == (result.reason == "") == bool(result.reply_text)
    assert result.debug is not None
    assert result.debug["seconds"] >= 0
    if not result.should_reply:
        assert result.citations == ()
        return
    said = result.reply_text or ""
    assert len(said) <= options.max_answer_chars
    sources = {citation.source_id.partition("#")[0] for citation in result.citations}
    assert sources <= SOURCES.keys()
    assert "https://e.example" not in [*find_urls(said)]
    if options.strict_grounding:
        assert "rm -rf" not in said
        assert "v9" not in said
        assert "v1.2" not in said or "kb:ports.md" in sources
