"""The endpoint double by itself: what other tests rely on when they make no plan."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from intern.answering.prompts import ANSWER, GATE, SELECT, VERIFY, AnswerIn, GateIn, SelectIn, ShownSource, VerifyIn
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry
from intern.learning.prompts import CLASSIFY, INTEGRATE, ClassifyIn, IntegrateIn
from intern.models.endpoint import EndpointModel
from intern.models.options import LlmOptions
from intern.models.templates import PromptTemplates
from intern.models.usage import UsageCounter
from intern.sources.descriptions import SUMMARIZE_SOURCE, SUMMARIZE_TOPIC, SummarizeIn
from tests.worlds.endpoint import EndpointDouble, endpoint_double

QUESTION = "How do I restart a node that is stuck after an upgrade?"
PAIR = "User: my node is stuck after the upgrade\nTeam: Run `nodectl reset` and restart it twice."
ENTRIES = (
    IndexEntry(SourceId("kb:billing.md"), "Invoices, refunds and prices."),
    IndexEntry(SourceId("kb:nodes.md"), "How to install, upgrade and restart a node; what to do when it is stuck."),
)
SOURCES = (
    ShownSource(source_id="kb:billing.md", title="Billing", text="# Billing\n\nInvoices come monthly."),
    ShownSource(source_id="team:nodes.txt#qa_20260201T031056Z", title="Nodes", text=PAIR),
)


@pytest.fixture
def endpoint() -> Iterator[EndpointDouble]:
    with endpoint_double() as endpoint:
        yield endpoint


@pytest.fixture
async def model(endpoint: EndpointDouble) -> AsyncIterator[EndpointModel]:
    options = LlmOptions(base_url=endpoint.base_url, model="small")
    async with EndpointModel(options, templates=PromptTemplates(), usage=UsageCounter()) as model:
        yield model


async def test_without_a_plan_it_answers_as_a_plain_but_honest_model_would(model: EndpointModel) -> None:
    gate = await model.ask(GATE, GateIn(question=QUESTION, history="", addressed=False))
    chat = await model.ask(GATE, GateIn(question="good morning", history="", addressed=False))
    assert (gate.kind, chat.kind) == ("question", "chatter")

    wanted = SelectIn(entries=ENTRIES, max_sources=5, history="", question=QUESTION, query="")
    assert (await model.ask(SELECT, wanted)).selected_source_ids == ("kb:nodes.md",)
    other = SelectIn(entries=ENTRIES, max_sources=5, history="", question="Who won the match?", query="")
    assert (await model.ask(SELECT, other)).selected_source_ids == ()

    given = AnswerIn(max_answer_chars=3000, sources=SOURCES, history="", question=QUESTION, query="")
    draft = await model.ask(ANSWER, given)
    assert draft.answer == "Run `nodectl reset` and restart it twice."
    assert draft.citations == ("team:nodes.txt#qa_20260201T031056Z",)

    made = VerifyIn(sources=SOURCES, history="", question=QUESTION, answer="x", citations=draft.citations)
    assert (await model.ask(VERIFY, made)).is_good_enough


async def test_without_a_plan_it_files_and_describes(model: EndpointModel) -> None:
    new = await model.ask(CLASSIFY, ClassifyIn(index="", pair=PAIR))
    assert (new.skip, new.topic_name) == (False, "stuck-upgrade")

    index = "team:wallets.txt\nRecovery of wallets.\n\nteam:nodes.txt\nNodes that are stuck after an upgrade."
    assert (await model.ask(CLASSIFY, ClassifyIn(index=index, pair=PAIR))).topic_name == "nodes"

    added = await model.ask(INTEGRATE, IntegrateIn(topic="nodes", blocks="", pair=PAIR))
    assert (added.skip, added.remove_ids) == (False, ())
    for prompt in (SUMMARIZE_SOURCE, SUMMARIZE_TOPIC):
        assert "nodectl" in (await model.ask(prompt, SummarizeIn(source_id="kb:x", text=PAIR))).description


async def test_a_request_outside_of_the_standard_is_refused(endpoint: EndpointDouble) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    body: dict[str, Any] = {"messages": [], "response_format": wanted, "top_k": 1}

    async with httpx.AsyncClient() as client:
        refused = await client.post(f"{endpoint.base_url}/chat/completions", json=body)

    assert refused.status_code == 400
    for fault in ("unknown field top_k", "schema allows additional", "does not require all", "schema.a has no type"):
        assert fault in refused.text


async def test_a_mistake_in_a_tests_own_answer_fails_that_test() -> None:
    def wrong(body: dict[str, Any]) -> Any:
        raise LookupError("not planned")

    async with httpx.AsyncClient() as client:
        with pytest.raises(LookupError, match="not planned"), endpoint_double(wrong) as endpoint:
            await client.post(f"{endpoint.base_url}/chat/completions", json={"messages": []})
