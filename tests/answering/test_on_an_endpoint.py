"""Answering over a real client: the failures, log lines and costs of single calls."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from types import FunctionType
from typing import Any

import anyio
import httpx
import pytest
from anyio import fail_after
from msgspec import structs

from intern.answering.answerer import Answerer
from intern.answering.prompts import AnsweringOptions
from intern.core.ids import ChannelId, MessageId
from intern.core.log import configure_logging, get_logger
from intern.core.messages import LOOKUP_FAILURES, AnswerResult, Conversation, Message, RequestContext, SilenceReason
from intern.models.endpoint import EndpointModel
from intern.models.options import LlmOptions
from intern.models.templates import PromptTemplates
from intern.models.usage import UsageCounter
from tests.answering.shelf import Shelf
from tests.worlds.endpoint import prompt_of, retried_at_once, text_of

pytestmark = pytest.mark.anyio

CONTEXT = RequestContext(channel_id=ChannelId("200"), thread_id=ChannelId("250"), message_id=MessageId("300"))
REPLIES: dict[str, dict[str, Any]] = {
    "gate": {"reason": "it asks", "kind": "question", "rewrite_query": None},
    "select": {"selected_source_ids": ["kb:keys.md"]},
    "answer": {
        "quotes": ["Rotate with `relay keys rotate`."],
        "answer": "Run `relay keys rotate`.",
        "citations": ["kb:keys.md"],
    },
    "verify": {"reason": "it stands there", "issues": [], "is_good_enough": True, "suggested_fix": None},
}
TOKENS = {"gate": (100, 10), "select": (200, 20), "answer": (300, 30), "verify": (400, 40)}
STEPS = {"gate": "gate", "selection": "select", "generation": "answer", "verification": "verify"}


class Endpoint:
    """The server: gives the replies above, or the reply that a test wants for a prompt."""

    def __init__(self, **instead: Any) -> None:
        self._instead = instead
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        prompt = prompt_of(body) or "gate"  # the smallest form names none, and comes only after the first refusal
        self.asked[prompt] += 1
        self.bodies.append(body)
        said: Any = self._instead.get(prompt, REPLIES[prompt])
        if isinstance(said, FunctionType):
            said = await said()
        if isinstance(said, httpx.Response):
            return said
        content = said if isinstance(said, str) else json.dumps(said)
        prompt_tokens, completion_tokens = TOKENS[prompt]
        choice = {"message": {"content": content}, "finish_reason": "stop"}
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        return httpx.Response(200, json={"choices": [choice], "usage": usage})


async def answered(
    endpoint: Endpoint, *questions: str, ai: AnsweringOptions | None = None, **llm: Any
) -> list[AnswerResult]:
    options = structs.replace(LlmOptions(base_url="http://model.test/v1", model="small", max_retries=0), **llm)
    shelf = Shelf({"kb:keys.md": "# Keys\n\nRotate with `relay keys rotate`.", "kb:port.md": "# Ports"})
    results: list[AnswerResult] = []
    async with httpx.AsyncClient(transport=httpx.MockTransport(endpoint)) as client:
        model = EndpointModel(options, templates=PromptTemplates(), usage=UsageCounter(), client=client)
        answerer = Answerer(model, shelf, ai or AnsweringOptions(steps="separate"))
        with fail_after(5):
            for question in questions or ("How do I rotate keys?",):
                conversation = Conversation((Message(role="user", text=question),))
                results.append(await answerer.answer(conversation, CONTEXT))
    return results


def refusing(status: int) -> Callable[[], Any]:
    async def refuse() -> httpx.Response:
        return httpx.Response(status, json={"error": {"message": "no"}})

    return refuse


# Failures.


@pytest.mark.parametrize("prompt", REPLIES)
async def test_a_call_that_takes_longer_than_it_may_ends_in_silence(prompt: str) -> None:
    async def never() -> None:
        await anyio.sleep_forever()

    [result] = await answered(Endpoint(**{prompt: never}), timeout_seconds=0.05)
    assert (result.should_reply, result.reply_text, result.reason) == (False, None, "model_unavailable")
    assert result.debug is not None
    assert "llm.timeout_seconds" in result.debug["error"]


@pytest.mark.rest
@pytest.mark.parametrize("prompt", REPLIES)
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("I think so.", "model_failed"),
        ("{}", "model_failed"),
        ("null", "model_failed"),
        ("", "model_failed"),
        (refusing(400), "model_failed"),
        (refusing(422), "model_failed"),
        (refusing(401), "model_unavailable"),
    ],
    ids=["prose", "fields missing", "null", "nothing", "400", "422", "401"],
)
async def test_what_a_retry_cannot_mend_is_asked_for_once_more_at_most(
    prompt: str, said: Any, reason: SilenceReason
) -> None:
    endpoint = Endpoint(**{prompt: said})
    [result] = await answered(endpoint, max_retries=3)
    assert (result.should_reply, result.reason) == (False, reason)
    assert reason in LOOKUP_FAILURES
    is_refused_later = callable(said) and prompt != "gate"  # by then a form was answered
    assert endpoint.asked[prompt] == (1 if reason == "model_unavailable" or is_refused_later else 2)


@pytest.mark.parametrize("prompt", REPLIES)
async def test_what_may_pass_is_tried_again_so_often_and_no_more(prompt: str) -> None:
    endpoint = Endpoint(**{prompt: refusing(503)})
    with retried_at_once():
        [result] = await answered(endpoint, max_retries=2)
    assert result.reason == "model_unavailable"
    assert endpoint.asked[prompt] == 3


# Replies that can be read, but must not be posted.


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"kind": "question"}, ""),
        ({"kind": "question", "rewrite_query": "", "reason": "", "more": 1}, ""),
        ({"kind": "question", "rewrite_query": "x" * 1000, "reason": "x" * 300}, ""),
        ({"kind": "question", "rewrite_query": "x" * 1001}, "model_failed"),
        ({"kind": "question", "reason": "x" * 301}, "model_failed"),
        ({"kind": "out_of_scope", "reason": "out of scope"}, "not_answerable"),
        ({"kind": "unclear"}, "not_answerable"),
        ({"kind": "chatter"}, "not_a_question"),
        ({"kind": "yes"}, "model_failed"),
        ({"kind": True}, "model_failed"),
        ({"reason": "it asks"}, "model_failed"),
    ],
)
async def test_the_gate_s_reply_decides_or_is_none(said: dict[str, Any], reason: SilenceReason) -> None:
    endpoint = Endpoint(gate=said)
    [result] = await answered(endpoint)
    assert (result.should_reply, result.reason) == (reason == "", reason)
    assert ("answer" in endpoint.asked) == result.should_reply


@pytest.mark.parametrize(
    ("said", "reason", "loaded"),
    [
        ({"selected_source_ids": ["kb:keys.md", "kb:port.md"]}, "", ["kb:keys.md"]),
        ({"selected_source_ids": [" kb:keys.md\n"]}, "", ["kb:keys.md"]),
        ({"selected_source_ids": []}, "no_sources", None),
        ({"selected_source_ids": ["kb:"] * 51}, "model_failed", None),
        ({"selected_source_ids": "kb:keys.md"}, "model_failed", None),
    ],
)
async def test_the_selection_is_bounded_and_held_to_its_type(
    said: dict[str, Any], reason: SilenceReason, loaded: list[str] | None
) -> None:
    [result] = await answered(Endpoint(select=said), ai=AnsweringOptions(steps="separate", max_sources=1))
    assert (result.should_reply, result.reason) == (reason == "", reason)
    if loaded is not None:
        assert result.debug is not None
        assert result.debug["selection"]["source_ids"] == tuple(loaded)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"quotes": ["Rotate with `relay keys rotate`."] * 5, "citations": ["kb:keys.md"] * 20}, ""),
        ({"quotes": ["x" * 301]}, "model_failed"),
        ({"citations": ["kb:keys.md"] * 21}, "model_failed"),
        ({"answer": "x" * 20_001}, "model_failed"),
    ],
)
async def test_a_draft_that_has_run_wild_is_none(more: dict[str, Any], reason: SilenceReason) -> None:
    [result] = await answered(Endpoint(answer={**REPLIES["answer"], **more}))
    assert (result.should_reply, result.reason) == (reason == "", reason)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"is_good_enough": True}, ""),
        ({"is_good_enough": False, "issues": ["wrong"], "suggested_fix": "Run `relay keys burn`."}, "rejected"),
        ({"is_good_enough": True, "issues": ["", " "]}, ""),
        ({"is_good_enough": True, "issues": ["it names an option that no source has"]}, "rejected"),
        ({"is_good_enough": True, "issues": ["wrong"] * 11}, "model_failed"),
        ({"is_good_enough": True, "reason": "x" * 301}, "model_failed"),
        ({"is_good_enough": "true"}, "model_failed"),
        ({"is_good_enough": None}, "model_failed"),
        ({"issues": []}, "model_failed"),
    ],
)
async def test_only_a_plain_yes_of_the_verifier_lets_an_answer_out(said: dict[str, Any], reason: SilenceReason) -> None:
    [result] = await answered(Endpoint(verify=said))
    assert (result.should_reply, result.reason) == (reason == "", reason)
    assert (result.reply_text or REPLIES["answer"]["answer"]) == REPLIES["answer"]["answer"]


async def test_nothing_of_one_question_is_in_the_next() -> None:
    endpoint = Endpoint()
    await answered(endpoint, "How do I rotate zebras?", "How do I rotate keys?")
    first, second = endpoint.bodies[:4], endpoint.bodies[4:]
    assert ["zebras" in text_of(body, "user") for body in first] == [True] * 4
    assert len(second) == 4
    assert "zebras" not in json.dumps(second)


# Reports.


async def test_each_step_tells_the_tokens_that_its_call_cost() -> None:
    [result] = await answered(Endpoint())
    assert result.debug is not None
    assert {step: result.debug[step]["tokens"] for step in STEPS} == {
        step: sum(TOKENS[prompt]) for step, prompt in STEPS.items()
    }
    assert "tokens" not in result.debug["loading"]


async def test_a_call_that_failed_is_told_in_its_step() -> None:
    [result] = await answered(Endpoint(answer="prose"))
    assert result.debug is not None
    assert result.debug["generation"]["tokens"] == 2 * sum(TOKENS["answer"]), "it was asked for once more"
    assert result.debug["generation"]["error"] == result.debug["error"]
    assert "verification" not in result.debug


async def test_every_call_is_logged_with_its_time_and_the_message_that_it_is_for() -> None:
    stream = io.StringIO()
    configure_logging(log_format="json", level="debug", stream=stream)
    await answered(Endpoint())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    calls = [line for line in lines if line["event"] == "model_replied"]
    assert sorted(line["prompt"] for line in calls) == sorted(REPLIES)
    assert all(line["seconds"] >= 0 for line in calls)
    where = {"platform": "discord", "channel_id": "200", "thread_id": "250", "message_id": "300"}
    assert [{key: line[key] for key in where} for line in calls] == [where] * 4
    steps = [line for line in lines if line["event"] == "ai_step"]
    assert sorted(line["step"] for line in steps) == sorted([*STEPS, "loading", "confidence"])
    assert all(line[f"{line['step']}.seconds"] >= 0 and line["message_id"] == "300" for line in steps)
    [whole] = [line for line in lines if line["event"] == "ai_request"]
    fields = {
        **where,
        "result": "answered",
        "gate.kind": "question",
        "gate.reason": "it asks",
        "selection.selected_sources_count": 1,
        "loading.loaded_sources_count": 1,
        "verification.is_good_enough": True,
        "verification.issues_count": 0,
        "generation.tokens": 330,
    }
    assert {key: whole[key] for key in fields} == fields
    # The log must not contain people's words or answers.
    assert "rotate keys" not in stream.getvalue()


async def test_a_line_that_has_nothing_to_do_with_a_question_carries_none() -> None:
    await answered(Endpoint())
    stream = io.StringIO()
    configure_logging(log_format="json", level="debug", stream=stream)
    get_logger("intern.test").info("later")
    assert "message_id" not in stream.getvalue()
