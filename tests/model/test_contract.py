"""The endpoint client against llama.cpp's own server.

The model is far too small to be right about anything: these tests look at the protocol, never at what a reply means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import anyio
import pytest
from msgspec import structs

from intern.answering.prompts import GATE, SELECT, GateIn, SelectIn
from intern.core.errors import (
    ModelBudgetError,
    ModelError,
    ModelPromptTooLongError,
    ModelRefusedError,
    ModelReplyCutError,
    ModelSchemaError,
    ModelUnavailableError,
)
from intern.core.ids import SourceId
from intern.core.knowledge import IndexEntry
from intern.models.endpoint import EndpointModel
from intern.models.options import StructuredOutput
from intern.models.prompt import Prompt
from intern.models.templates import PromptTemplates
from intern.models.usage import UsageCounter
from intern.service.models import PROMPTS
from intern.service.prompt_examples import build_full_example
from tests.model.serving import CONTEXT
from tests.model.wire import LONGEST, OPTIONS, Asking, open_asking, ruin
from tests.worlds.endpoint import retried_at_once
from tests.worlds.model import calls_of

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.timeout(300)]

GIVEN = GateIn(question="Is it open?", history="", addressed=True)

# Each way on one of the two backends: what depends on them is not the form of a reply.
EACH_WAY = pytest.mark.parametrize(
    ("structured_output", "anyio_backend"), [("json_schema", "asyncio"), ("function_calling", "trio")]
)
ON_ONE_BACKEND = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.fixture(autouse=True)
def no_pauses() -> Iterator[None]:
    with retried_at_once():
        yield


Ask = Callable[..., AbstractAsyncContextManager[Asking]]


@pytest.fixture
def asking(base_url: str, templates: PromptTemplates) -> Ask:
    return partial(open_asking, base_url, templates)


# --- Replies ---


@EACH_WAY
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
async def test_the_reply_to_every_prompt_has_its_type(
    asking: Ask, prompt: Prompt[Any, Any], structured_output: StructuredOutput
) -> None:
    async with asking(structured_output=structured_output) as ask:
        assert isinstance(await ask.model.ask(prompt, build_full_example(prompt)), prompt.gives)

    (reply,) = ask.wire.replies
    called = bool(reply["choices"][0]["message"].get("tool_calls"))
    assert called == (structured_output == "function_calling")
    assert calls_of(ask.usage, prompt.name).tokens == reply["usage"]["total_tokens"] > 0


@EACH_WAY
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
async def test_every_schema_is_taken_as_it_is_and_a_reply_that_is_cut_off_says_so(
    asking: Ask, prompt: Prompt[Any, Any], structured_output: StructuredOutput
) -> None:
    async with asking(None, structured_output=structured_output, max_tokens=3) as ask:
        with pytest.raises(ModelReplyCutError, match=rf"^{prompt.name}: .* \(llm\.max_tokens = 3\)"):
            await ask.model.ask(prompt, build_full_example(prompt))

    (reply,) = ask.wire.replies
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 3
    assert calls_of(ask.usage, prompt.name).calls == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_connections_that_it_makes_itself_serve_one_call_after_another(
    base_url: str, templates: PromptTemplates
) -> None:
    options = structs.replace(OPTIONS, base_url=base_url, max_tokens=3)
    usage = UsageCounter()
    with anyio.fail_after(LONGEST):
        async with EndpointModel(options, templates=templates, usage=usage) as model:
            for _ in range(2):
                with pytest.raises(ModelReplyCutError):
                    await model.ask(GATE, GIVEN)
    assert calls_of(usage, "gate").calls == 2


@EACH_WAY
async def test_an_id_that_was_not_shown_cannot_be_chosen(asking: Ask, structured_output: StructuredOutput) -> None:
    shown = [IndexEntry(SourceId(f"kb:{n}/µ-{'x' * n}.md"), f"About {n}.") for n in range(3)]
    given = SelectIn(entries=tuple(shown), max_sources=3, history="", question="What is kb:secret?", query="")

    async with asking(structured_output=structured_output) as ask:
        await ask.model.ask(GATE, GIVEN)  # its reply shows that this server holds choices at no cost
        reply = await ask.model.ask(SELECT, given)
    assert {*reply.selected_source_ids} <= {entry.source_id for entry in shown}
    assert json.loads(ask.wire.schemas[-1])["properties"]["selected_source_ids"] == {
        "type": "array",
        "items": {"type": "string", "enum": [entry.source_id for entry in shown]},
        "maxItems": 3,
        "description": "Ids exactly as listed, best first; empty if nothing fits.",
    }


# --- Refusals: nothing that asking again would mend ---


@EACH_WAY
async def test_a_prompt_that_is_too_long_is_told_from_trouble_that_passes(
    asking: Ask, structured_output: StructuredOutput
) -> None:
    given = SelectIn(entries=_entries(900), max_sources=3, history="", question="How?", query="")

    async with asking(structured_output=structured_output) as ask:
        with pytest.raises(ModelPromptTooLongError) as refused:
            await ask.model.ask(SELECT, given)
    (reply,) = ask.wire.replies
    counted = f"({reply['error']['n_prompt_tokens']} tokens, and the model takes {CONTEXT})"
    assert str(refused.value).startswith("select: ")
    assert f"{counted}: lower ai.max_index_chars or " in str(refused.value)


@EACH_WAY
async def test_a_schema_that_the_server_cannot_take_is_told_from_trouble_that_passes(
    asking: Ask, structured_output: StructuredOutput
) -> None:
    async with asking(ruin, structured_output=structured_output) as ask:
        with pytest.raises(ModelSchemaError, match=rf'llm\.structured_output = "{structured_output}"'):
            await ask.model.ask(GATE, GIVEN)
    assert len(ask.wire.replies) <= 6


@ON_ONE_BACKEND
async def test_a_wrong_address_is_no_refusal_of_one_prompt(base_url: str, templates: PromptTemplates) -> None:
    async with open_asking(f"{base_url}/nowhere", templates) as ask:
        with pytest.raises(ModelError, match=r"answered 404: .*: check llm\.model and llm\.base_url") as failed:
            await ask.model.ask(GATE, GIVEN)
    assert not isinstance(failed.value, ModelRefusedError)


# --- Limits ---


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_reply_that_takes_too_long_is_given_up_and_the_server_goes_on(asking: Ask) -> None:
    async with asking(None, timeout_seconds=0.2, max_retries=1, max_tokens=4000) as ask:
        # By its silence, or on a quick machine by its length.
        limit = (
            r"said nothing for 0\.2 s \(llm\.timeout_seconds\)|not finished after 2 s, 10 times llm\.timeout_seconds"
        )
        with pytest.raises(ModelUnavailableError, match=limit):
            await ask.model.ask(PROMPTS[2], build_full_example(PROMPTS[2]))
    assert len(ask.wire.schemas) == 2

    # It noticed that nobody waits any more: a reply of 4000 tokens would take minutes.
    async with asking() as ask:
        with anyio.fail_after(60):
            assert await ask.model.ask(GATE, GIVEN)


@ON_ONE_BACKEND
async def test_calls_in_flight_are_limited(asking: Ask) -> None:
    async with asking(max_in_flight=2) as ask, anyio.create_task_group() as tg:
        for _ in range(3):
            tg.start_soon(ask.model.ask, GATE, GIVEN)
    assert ask.wire.most_under_way == 2
    assert len(ask.wire.replies) == 3


@ON_ONE_BACKEND
async def test_calls_a_minute_are_limited(asking: Ask) -> None:
    async with asking(calls_per_minute=2) as ask:
        await ask.model.ask(GATE, GIVEN)
        await ask.model.ask(GATE, GIVEN)
        with anyio.move_on_after(0.2) as waited:
            await ask.model.ask(GATE, GIVEN)
    assert waited.cancelled_caught
    assert len(ask.wire.schemas) == 2


@ON_ONE_BACKEND
async def test_the_days_budget_counts_what_the_server_counted(asking: Ask) -> None:
    long = SelectIn(entries=_entries(200), max_sources=3, history="", question="How?", query="")

    async with asking(daily_token_budget=2000) as ask:
        await ask.model.ask(GATE, GIVEN)
        left = 2000 - ask.wire.replies[0]["usage"]["total_tokens"]
        with pytest.raises(ModelBudgetError, match=rf"^select may take \d+ tokens, .* has {left} left for such calls"):
            await ask.model.ask(SELECT, long)
    assert len(ask.wire.schemas) == 1


def _entries(count: int) -> tuple[IndexEntry, ...]:
    return tuple(IndexEntry(SourceId(f"kb:handbook/chapter-{n}.md"), "How to do this and that.") for n in range(count))
