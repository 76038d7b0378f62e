"""The endpoint client: what it sends, what it tries again, and what it says when it fails."""

from __future__ import annotations

import json
import re
import traceback
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import anyio
import httpx
import pytest
from anyio import wait_all_tasks_blocked
from hypothesis import given, strategies as st
from msgspec import Meta, Struct, structs

from intern.core.errors import (
    ConfigError,
    ModelAccessError,
    ModelBudgetError,
    ModelError,
    ModelPromptTooLongError,
    ModelRefusedError,
    ModelReplyCutError,
    ModelReplyError,
    ModelSchemaError,
    ModelUnavailableError,
)
from intern.core.messages import Image
from intern.core.text.secret_values import Secret
from intern.models.endpoint import EndpointModel
from intern.models.endpoint_failures import parse_retry_after
from intern.models.http import EndpointUnavailableError, pause_before_retry
from intern.models.options import LlmOptions, StructuredOutput
from intern.models.pricing import ModelPrice
from intern.models.prompt import Prompt
from intern.models.templates import PromptTemplates
from intern.models.usage import UsageCounter, measure_usage
from intern.service.model_servers import list_models
from tests.worlds.actors import finishing, running
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import faults_of, retried_at_once, schema_of
from tests.worlds.model import calls_of

KEY = "sk-very-secret-0123456789"


class AskIn(Struct, frozen=True):
    question: str


class AskOut(Struct, frozen=True):
    answer: Annotated[str, Meta(max_length=40)]
    sure: bool = False


ASK = Prompt("ask", takes=AskIn, gives=AskOut)
GIVEN = AskIn("why?")
OPTIONS = LlmOptions(base_url="http://model.test/v1/", api_key=Secret(KEY), model="small", max_retries=3)
FIELDS = {"model", "messages", "max_tokens", "temperature", "stream", "stream_options"}
PNG = Image(media_type="image/png", data=b"\x89PNG")


@pytest.fixture
def templates(tmp_path: Path) -> PromptTemplates:
    source = "{% block system %}Reply.{% endblock %}{% block user %}{{ question }}{% endblock %}"
    (tmp_path / "ask.md.j2").write_text(source, encoding="utf-8")
    return PromptTemplates(tmp_path)


Planned = httpx.Response | Exception | Callable[[], Awaitable[httpx.Response]]


class Endpoint:
    """Answers by plan, then with a good reply, and keeps what it was sent."""

    def __init__(self) -> None:
        self.planned: list[Any] = []
        self.requests: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        reply: Planned = self.planned.pop(0) if self.planned else good()
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, httpx.Response) else await reply()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]


def good(content: str | None = '{"answer": "because", "sure": true}', **changes: Any) -> httpx.Response:
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop", **changes}
    return httpx.Response(200, json={"choices": [choice], "usage": {"prompt_tokens": 70, "completion_tokens": 7}})


def failing(status: int, says: str = "out of order", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": says}}, headers=headers)


async def forever() -> httpx.Response:
    await anyio.sleep_forever()
    raise AssertionError


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


Make = Callable[..., EndpointModel]


@pytest.fixture
async def make(endpoint: Endpoint, templates: PromptTemplates) -> AsyncIterator[Make]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(endpoint)) as client:

        def make(usage: UsageCounter | None = None, **changes: Any) -> EndpointModel:
            options = structs.replace(OPTIONS, **changes)
            return EndpointModel(
                options, templates=templates, usage=usage or UsageCounter(clock=HandClock()), client=client
            )

        yield make


@pytest.fixture
def no_pauses() -> Iterator[None]:
    with retried_at_once():
        yield


def said_by(error: BaseException) -> str:
    """Return all texts of an error that a log could show, its causes included."""
    return "".join(traceback.format_exception(error)) + repr(error)


# --- What is sent ---


async def test_a_page_is_read_again_where_the_kept_connection_was_closed(make: Make, endpoint: Endpoint) -> None:
    endpoint.planned = [httpx.RemoteProtocolError("closed"), httpx.Response(200, content=b"{}"), httpx.Response(404)]
    assert [await make().fetch_page("/v1/models"), await make().fetch_page("/v1/models")] == [b"{}", b""]
    endpoint.planned = [httpx.ConnectError("away"), httpx.ConnectError("away")]
    with pytest.raises(ModelUnavailableError, match="/v1/models cannot be read: away"):
        await make().fetch_page("/v1/models")


async def test_a_page_of_azure_is_asked_for_with_its_version_which_no_error_shows(
    make: Make, endpoint: Endpoint
) -> None:
    address = "https://mine.openai.azure.com/openai/deployments/small?api-version=2024-10-21"
    endpoint.planned = [
        httpx.Response(200, json={"data": [{"id": "gpt-small"}]}),
        *[httpx.ConnectError("away")] * 2,
    ]
    [listed] = (await list_models(make(base_url=address))).models
    assert listed.id == "gpt-small"
    assert str(endpoint.requests[0].url) == "https://mine.openai.azure.com/openai/models?api-version=2024-10-21"
    with pytest.raises(ModelUnavailableError) as unread:
        await make(base_url=address).fetch_page("/openai/models")
    assert "api-version" not in str(unread.value)


async def test_a_prompt_becomes_one_request_with_a_strict_schema(endpoint: Endpoint, make: Make) -> None:
    assert await make().ask(ASK, GIVEN) == AskOut("because", sure=True)

    (request,) = endpoint.requests
    assert str(request.url) == "http://model.test/v1/chat/completions"
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    (body,) = endpoint.bodies
    assert body.keys() == {*FIELDS, "response_format"}
    assert body["messages"] == [{"role": "system", "content": "Reply."}, {"role": "user", "content": "why?"}]
    assert body["response_format"]["json_schema"]["name"] == "ask"
    assert faults_of(body) == []
    assert body["temperature"] == 0


@pytest.mark.parametrize("output", ["json_schema", "json_object", "function_calling"])
async def test_examples_are_turns_in_the_form_that_is_asked_for(
    endpoint: Endpoint, make: Make, tmp_path: Path, output: StructuredOutput
) -> None:
    template = (tmp_path / "ask.md.j2").read_text(encoding="utf-8")
    turns = '--- user ---\nand you?\n--- assistant ---\n{"answer": "yes"}\n'
    (tmp_path / "ask.md.j2").write_text(f"{template}{{% block examples %}}\n{turns}{{% endblock %}}", encoding="utf-8")

    await make(structured_output=output).ask(ASK, GIVEN)

    _, asked, replied, *result, last = endpoint.bodies[0]["messages"]
    assert (asked, last) == ({"role": "user", "content": "and you?"}, {"role": "user", "content": "why?"})
    if output == "function_calling":
        (call,) = replied["tool_calls"]
        assert call["function"] == {"name": "ask", "arguments": '{"answer": "yes"}'}
        assert [each["tool_call_id"] for each in result] == [call["id"]]
    else:
        assert replied == {"role": "assistant", "content": '{"answer": "yes"}'}
        assert not result


async def test_function_calling_forces_the_one_function_and_reads_its_arguments(endpoint: Endpoint, make: Make) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "ask", "arguments": '{"answer": "called"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    endpoint.planned = [good(message=message, finish_reason=reason) for reason in ("tool_calls", "stop")]
    model = make(structured_output="function_calling")

    assert await model.ask(ASK, GIVEN) == await model.ask(ASK, GIVEN) == AskOut("called")

    body = endpoint.bodies[0]
    assert body.keys() == {*FIELDS, "tools", "tool_choice"}
    assert body["tool_choice"] == "required"


@pytest.mark.parametrize("content", [' {"answer": "plain"}', '```json\n{"answer": "plain"}\n```'])
async def test_arguments_that_come_as_plain_text_are_taken_where_nothing_was_called(
    endpoint: Endpoint, make: Make, content: str
) -> None:
    endpoint.planned = [good(content)]

    assert await make(structured_output="function_calling").ask(ASK, GIVEN) == AskOut("plain")


def of_llama_cpp() -> httpx.Response:
    choice = {"message": {"content": '{"answer": "because"}'}, "finish_reason": "stop"}
    return httpx.Response(200, json={"choices": [choice], "timings": {"cache_n": 0}})


@pytest.mark.parametrize("structured_output", ["json_schema", "function_calling", "json_object"])
async def test_llama_cpp_is_offered_what_was_shown_as_an_enum(
    endpoint: Endpoint, make: Make, structured_output: StructuredOutput
) -> None:
    endpoint.planned = [of_llama_cpp()]
    offering = Prompt(
        "ask", takes=AskIn, gives=AskOut, offers=lambda asked: {"answer": [asked.question, "half \ud83d"]}
    )
    model = make(structured_output=structured_output)
    for _ in range(2):
        await model.ask(offering, AskIn("because"))

    offered = [schema_of(body)["properties"]["answer"].get("enum") for body in endpoint.bodies]
    # In words alone an enum would only repeat the prompt; others compile each new schema, which takes time.
    assert offered == [None, None if structured_output == "json_object" else ["because", "half ?"]]


async def test_an_offer_binds_the_schema_and_not_the_decoding(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [of_llama_cpp()]
    offering = Prompt("ask", takes=AskIn, gives=AskOut, offers=lambda _: {"answer": ["why not"]})
    model = make()

    assert (await model.ask(offering, GIVEN)).answer == (await model.ask(offering, GIVEN)).answer == "because"


@pytest.mark.parametrize(
    "content",
    ['{"answer": "plain"}', '```json\n{"answer": "plain"}\n```', '\n```\n{"answer": "plain"}```\n'],
)
async def test_json_object_says_the_schema_in_words_and_takes_a_code_block(
    endpoint: Endpoint, make: Make, content: str
) -> None:
    endpoint.planned = [good(content)]

    assert await make(structured_output="json_object").ask(ASK, GIVEN) == AskOut("plain")

    (body,) = endpoint.bodies
    assert body["response_format"] == {"type": "json_object"}
    assert '"additionalProperties":false' in body["messages"][0]["content"]


async def test_pictures_go_as_data_where_the_model_can_look_at_them(endpoint: Endpoint, make: Make) -> None:
    page = Image(media_type="text/html", data=b"<b>")
    await make(images=True).ask(ASK, GIVEN, images=[PNG, page])
    await make(images=False).ask(ASK, GIVEN, images=[PNG])

    text, picture = endpoint.bodies[0]["messages"][1]["content"]
    assert text == {"type": "text", "text": "why?"}
    kind, _, data = picture["image_url"]["url"].partition(";base64,")
    assert (kind, b64decode(data)) == ("data:image/png", PNG.data)
    assert endpoint.bodies[1]["messages"][1]["content"] == "why?"


async def test_text_that_no_json_can_carry_is_sent_readably(endpoint: Endpoint, make: Make) -> None:
    await make().ask(ASK, AskIn("half a \ud83d smile\x00"))

    assert endpoint.bodies[0]["messages"][1]["content"] == "half a ? smile\x00"


async def test_without_a_key_no_authorization_is_sent(endpoint: Endpoint, make: Make) -> None:
    await make(api_key=Secret()).ask(ASK, GIVEN)

    assert "Authorization" not in endpoint.requests[0].headers


async def test_azure_gets_its_header_for_keys_and_headers_of_ones_own_are_sent(endpoint: Endpoint, make: Make) -> None:
    address = "https://mine.openai.azure.com/openai/deployments/small?api-version=2024-10-21"
    await make(base_url=address, headers={"X-Team": Secret("support"), "accept": Secret("*/*")}).ask(ASK, GIVEN)

    (request,) = endpoint.requests
    assert str(request.url) == address.replace("?", "/chat/completions?")
    assert (request.headers["api-key"], request.headers["X-Team"]) == (KEY, "support")
    assert request.headers.get_list("accept") == ["*/*"]
    assert "Authorization" not in request.headers


async def test_an_address_may_carry_a_query(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [failing(404)]
    with pytest.raises(ModelAccessError) as refused:
        await make(base_url="https://model.test/v1?api-version=1").ask(ASK, GIVEN)

    assert str(endpoint.requests[0].url) == "https://model.test/v1/chat/completions?api-version=1"
    assert "api-version" not in str(refused.value)


# --- What is tried again ---

PASSING: list[Any] = [
    *(failing(status) for status in (408, 409, 429, 500, 502, 503, 529)),
    httpx.ConnectError("no route"),
    httpx.ReadError(""),
    httpx.RemoteProtocolError("peer closed connection"),
    httpx.ReadTimeout("slow"),
]


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("failure", PASSING, ids=repr)
async def test_a_failure_that_may_pass_is_tried_again(endpoint: Endpoint, make: Make, failure: Any) -> None:
    endpoint.planned = [failure, failure]

    assert (await make().ask(ASK, GIVEN)).answer == "because"
    assert len(endpoint.requests) == 3


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("max_retries", [0, 2])
async def test_attempts_are_bounded_and_the_last_failure_tells_why(
    endpoint: Endpoint, make: Make, max_retries: int
) -> None:
    endpoint.planned = [failing(503, says=f"busy\n{n}") for n in range(9)]

    with pytest.raises(
        ModelUnavailableError, match=rf"^ask: http://model\.test/v1 answered 503: .*busy\\n{max_retries}"
    ):
        await make(max_retries=max_retries).ask(ASK, GIVEN)
    assert len(endpoint.requests) == max_retries + 1


@pytest.mark.usefixtures("no_pauses")
async def test_an_endpoint_that_never_answers_costs_the_timeout_and_says_so(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [forever, forever]

    with pytest.raises(ModelUnavailableError, match=r"after 0\.1 s, 10 times llm\.timeout_seconds"):
        await make(timeout_seconds=0.01, max_retries=1).ask(ASK, GIVEN)
    assert len(endpoint.requests) == 2


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("status", [302, 400, 401, 402, 403, 404, 413, 422])
async def test_a_refusal_is_not_tried_again_but_in_the_smallest_form(
    endpoint: Endpoint, make: Make, status: int
) -> None:
    endpoint.planned = [failing(status, Location="http://elsewhere.test/") for _ in range(3)]

    with pytest.raises(ModelError, match=str(status)):
        await make().ask(ASK, GIVEN)
    assert len(endpoint.requests) == (2 if status in {400, 422} else 1)
    if status == 400:
        assert endpoint.bodies[-1].keys() == {"model", "messages"}
        assert [each["role"] for each in endpoint.bodies[-1]["messages"]] == ["user"]


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    ("status", "error"),
    [(status, ModelAccessError) for status in (302, 401, 402, 403, 404, 405)]
    + [(status, ModelRefusedError) for status in (400, 413, 422)],
)
async def test_a_refusal_of_this_request_is_told_from_one_of_any_request(
    endpoint: Endpoint, make: Make, status: int, error: type[ModelError]
) -> None:
    endpoint.planned = [failing(status)] * 2

    with pytest.raises(ModelError) as refused:
        await make().ask(ASK, GIVEN)
    # Followers wait where the model is unavailable, and pass over what it refuses.
    assert isinstance(refused.value, error)
    assert isinstance(refused.value, ModelUnavailableError) == (error is ModelAccessError)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    ("status", "names"), [(401, "llm.api_key"), (403, "llm.api_key"), (404, "llm.model and llm.base_url")]
)
async def test_a_refusal_names_the_setting_to_look_at(endpoint: Endpoint, make: Make, status: int, names: str) -> None:
    endpoint.planned = [failing(status)]

    with pytest.raises(ModelAccessError, match=names):
        await make().ask(ASK, GIVEN)


# Finding A8.
@pytest.mark.parametrize(("key", "shown"), [("k", "ask k: look at token ollama"), (KEY, "[secret] ollama")])
async def test_a_plain_word_as_a_key_takes_nothing_out_of_what_the_endpoint_says(
    endpoint: Endpoint, make: Make, key: str, shown: str
) -> None:
    endpoint.planned = [failing(400, says=shown.replace("[secret]", key))] * 9

    with pytest.raises(ModelError, match=re.escape(shown)):
        await make(api_key=Secret(key)).ask(ASK, GIVEN)


async def test_a_prompt_that_is_too_long_tells_which_how_long_and_what_to_lower(endpoint: Endpoint, make: Make) -> None:
    refusal = {"code": 400, "message": "request (9018 tokens) exceeds the available context size (4096 tokens)"}
    counts = {"type": "exceed_context_size_error", "n_prompt_tokens": 9018, "n_ctx": 4096}
    endpoint.planned = [httpx.Response(400, json={"error": {**refusal, **counts}})]
    bounded = replace(ASK, bounded_by=("ai.max_source_chars",))

    with pytest.raises(ModelPromptTooLongError, match=r"^ask: http://model\.test/v1 answered 400: ") as refused:
        await make().ask(bounded, GIVEN)
    assert str(refused.value).endswith(
        "the prompt is too long (9018 tokens, and the model takes 4096): "
        "lower ai.max_source_chars or llm.max_tokens, or serve more context"
    )
    assert len(endpoint.requests) == 1


async def test_an_endpoint_that_counts_no_tokens_gets_an_estimate(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [failing(413, says="prompt is too long: 9018 tokens > 4096 maximum")]

    with pytest.raises(ModelPromptTooLongError, match=r"\(about 10\d\d tokens\): lower llm\.max_tokens"):
        await make().ask(ASK, AskIn("x" * 3600))


async def test_a_server_that_takes_no_form_at_all_is_an_error_in_one_line(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [failing(400, says="Invalid schema for response_format 'ask'") for _ in range(9)]

    with pytest.raises(ModelSchemaError, match=r"^ask: http://model\.test/v1 answered 400: .*run `intern doctor`$"):
        await make().ask(ASK, GIVEN)
    assert len(endpoint.requests) <= 6


@pytest.mark.parametrize("setting", ["json_schema", "function_calling"])
async def test_a_setting_that_the_server_refuses_is_kept_to_and_named(
    endpoint: Endpoint, make: Make, setting: StructuredOutput
) -> None:
    endpoint.planned = [failing(400, says="response_format and tools are not supported") for _ in range(2)]
    model = make(structured_output=setting)

    for _ in range(2):
        with pytest.raises(ModelSchemaError, match=r'llm\.structured_output = ".*may work.*"auto"'):
            await model.ask(ASK, GIVEN)
    assert len(endpoint.requests) == 1, "it is not asked again and again"


@pytest.mark.parametrize(
    ("says", "field"),
    [
        ("Invalid schema for response_format 'ask': 'maxLength' is not permitted.", "maxLength"),
        ("Unsupported property: maxLength", "maxLength"),
        ("Unsupported value: 'temperature' does not support 0 with this model.", "temperature"),
    ],
)
async def test_what_an_endpoint_refuses_is_left_out_from_then_on(
    endpoint: Endpoint, make: Make, says: str, field: str
) -> None:
    endpoint.planned = [failing(400, says=says)]
    model = make()

    for _ in range(2):
        assert (await model.ask(ASK, GIVEN)).sure
    endpoint.planned = [good(json.dumps({"answer": "x" * 41, "sure": True})) for _ in range(2)]
    with pytest.raises(ModelReplyError, match="does not fit"):
        await model.ask(ASK, GIVEN)

    assert [field in json.dumps(body) for body in endpoint.bodies] == [True, *[False] * 4]
    others = {"maxLength", "temperature", "stream_options"} - {field}
    assert all(other in json.dumps(body) for body in endpoint.bodies for other in others)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
async def test_no_error_holds_the_key_or_much_of_what_the_endpoint_wrote(
    endpoint: Endpoint, make: Make, status: int
) -> None:
    endpoint.planned = [failing(status, says=f"\x1b[31m{KEY} is wrong " + "x" * 10_000)] * 9

    with pytest.raises(ModelError) as failed:
        await make().ask(ASK, GIVEN)
    assert KEY not in said_by(failed.value)
    assert len(str(failed.value)) < 400
    assert str(failed.value).isprintable()


@pytest.mark.usefixtures("no_pauses")
async def test_a_connection_error_that_repeats_the_key_is_scrubbed(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [httpx.ConnectError(f"bad header {KEY}")] * 9

    with pytest.raises(ModelUnavailableError) as failed:
        await make().ask(ASK, GIVEN)
    assert KEY not in str(failed.value)


def test_a_retry_after_is_honoured_in_seconds_and_as_a_date_within_bounds() -> None:
    now = datetime(2026, 2, 1, 3, 10, 56, tzinfo=UTC)

    assert parse_retry_after(None, now) is None
    assert parse_retry_after("7", now) == 7
    assert parse_retry_after(" 1.5 ", now) == 1.5
    assert parse_retry_after(format_datetime(now + timedelta(seconds=9), usegmt=True), now) == 9
    assert parse_retry_after("Sun, 01 Feb 2026 03:11:06 -0000", now) == 10
    assert parse_retry_after("0", now) == parse_retry_after("Thu, 01 Jan 1970 00:00:00 GMT", now) == 0.5
    assert parse_retry_after("86400", now) == parse_retry_after("Fri, 31 Dec 9999 23:59:59 GMT", now) == 60
    assert (
        parse_retry_after("-1", now)
        is parse_retry_after("soon", now)
        is parse_retry_after("", now)
        is parse_retry_after("nan", now)
        is None
    )


@given(st.text())
def test_no_retry_after_header_breaks_the_client(header: str) -> None:
    pause = parse_retry_after(header, datetime.now(UTC))

    assert pause is None or 0.5 <= pause <= 60


def test_the_pause_is_the_endpoints_own_or_ours() -> None:
    assert pause_before_retry(EndpointUnavailableError("busy", 7.0), 3) == 7.0
    ours = [pause_before_retry(EndpointUnavailableError("busy"), tried) for tried in range(100)]
    assert 0.5 <= ours[0] <= 1.5
    assert 2.0 <= ours[2] <= 3.0
    assert ours[10:] == [20.0] * 90


@pytest.mark.jumps
async def test_pauses_grow_and_a_retry_after_is_waited_out(endpoint: Endpoint, make: Make) -> None:
    times: list[float] = []

    async def busy() -> httpx.Response:
        times.append(anyio.current_time())
        return failing(503)

    async def busy_for_17() -> httpx.Response:
        times.append(anyio.current_time())
        return failing(429, **{"Retry-After": "17"})

    endpoint.planned = [busy, busy, busy_for_17, busy]
    with pytest.raises(ModelUnavailableError):
        await make(max_retries=3).ask(ASK, GIVEN)

    first, second, third = (later - earlier for earlier, later in pairwise(times))
    assert 0.5 <= first <= 1.5
    assert 1.0 <= second <= 2.0
    assert third == pytest.approx(17)


@pytest.mark.jumps
async def test_a_call_that_waits_to_try_again_holds_no_slot(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [failing(429, **{"Retry-After": "30"})]
    model = make(max_in_flight=1)
    begun = anyio.current_time()
    async with finishing(model.ask, ASK, GIVEN):
        await wait_all_tasks_blocked()
        await model.ask(ASK, GIVEN)
        assert anyio.current_time() == pytest.approx(begun)
    assert anyio.current_time() == pytest.approx(begun + 30)


# --- What is no reply ---


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (good('{"answer": "becau', finish_reason="length"), ModelReplyCutError),
        (good('{"answer": "because"}', finish_reason="length"), ModelReplyCutError),
        (good(finish_reason="content_filter"), ModelRefusedError),
        (good(message={"content": None, "refusal": "I will not."}), ModelRefusedError),
        (httpx.Response(200, json={"choices": []}), ModelReplyError),
        (httpx.Response(200, json={"choices": [{"message": "hi"}]}), ModelReplyError),
        (httpx.Response(200, json=["because"]), ModelReplyError),
        (httpx.Response(200, text="<html>"), ModelReplyError),
        (httpx.Response(200, content=b""), ModelReplyError),
        (httpx.Response(200, content=b'{"choices": "\xff\xfe"}'), ModelReplyError),
        (httpx.Response(200, content=b"[" * 100_000), ModelReplyError),
        (httpx.Response(200, content=b" " * (4 * 1024 * 1024 + 1)), ModelReplyError),
        (httpx.Response(204), ModelAccessError),
    ],
)
@pytest.mark.usefixtures("no_pauses")
async def test_what_is_no_whole_reply_is_an_error_and_not_tried_again(
    endpoint: Endpoint, make: Make, reply: httpx.Response, error: type[ModelError]
) -> None:
    endpoint.planned = [reply]

    with pytest.raises(ModelError) as failed:
        await make().ask(ASK, GIVEN)
    assert type(failed.value) is error
    assert len(str(failed.value)) < 400
    assert len(endpoint.requests) == 1


UNFIT = [
    *("because", "", None, "null", '{"answer": 1}', '{"sure": true}'),
    *('{"answer": "' + "x" * 41 + '"}', '{"answer": "\\ud800 alone"}', '{"x": ' + "[" * 100_000),
]


@pytest.mark.parametrize("content", UNFIT)
async def test_a_reply_that_does_not_fit_is_asked_for_once_more_with_what_is_wrong(
    endpoint: Endpoint, make: Make, content: str | None
) -> None:
    endpoint.planned = [good(content), good(), good(content), good(content)]
    model = make()

    assert (await model.ask(ASK, GIVEN)).answer == "because"
    asked = [body["messages"][-1]["content"] for body in endpoint.bodies]
    assert asked[0] == "why?"
    assert asked[1].startswith("why?\n\n")
    assert content is None or len(content) < 9 or content not in asked[1], "a reply may tell of people"
    with pytest.raises(ModelReplyError, match=r"does not fit AskOut|is empty") as failed:
        await model.ask(ASK, GIVEN)
    assert len(str(failed.value)) < 400
    assert len(endpoint.requests) == 4


@pytest.mark.usefixtures("no_pauses")
async def test_an_error_inside_a_reply_counts_as_the_status_that_it_names(endpoint: Endpoint, make: Make) -> None:
    busy = {"error": {"code": 429, "message": "rate-limited upstream"}}
    in_choice = {"choices": [{"finish_reason": "error", "error": {"code": "502"}, "message": {"content": ""}}]}
    bare = {"choices": [{"finish_reason": "error", "message": {"content": "half"}}]}
    endpoint.planned = [httpx.Response(200, json=each) for each in (busy, in_choice, bare)]

    assert (await make().ask(ASK, GIVEN)).answer == "because"
    assert len(endpoint.requests) == 4


@pytest.mark.usefixtures("no_pauses")
async def test_a_prompt_that_is_too_long_costs_one_attempt_whatever_the_status(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [failing(500, says="Context size has been exceeded.")]

    with pytest.raises(ModelPromptTooLongError):
        await make().ask(ASK, GIVEN)
    assert len(endpoint.requests) == 1


@pytest.mark.usefixtures("no_pauses")
async def test_an_account_without_credit_is_not_asked_again(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [failing(429, says="You exceeded your current quota, please check your plan and billing")]

    with pytest.raises(ModelAccessError, match=r"the account of llm\.api_key has no credit left"):
        await make().ask(ASK, GIVEN)
    assert len(endpoint.requests) == 1


async def test_thoughts_have_room_of_their_own_and_are_counted(endpoint: Endpoint, make: Make) -> None:
    choice = {"message": {"content": '{"answer": "because"}'}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 70, "completion_tokens": 7, "total_tokens": 177}
    endpoint.planned = [httpx.Response(200, json={"choices": [choice], "usage": usage})]
    counts = UsageCounter(clock=HandClock())
    await make(counts, max_tokens=400, reasoning_tokens=600, reasoning_effort="low").ask(ASK, GIVEN)

    assert (endpoint.bodies[0]["max_tokens"], endpoint.bodies[0]["reasoning_effort"]) == (1000, "low")
    assert calls_of(counts, "ask").completion_tokens == 107


async def test_a_cut_off_reply_with_thoughts_names_the_room_for_them(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [good(message={"content": "", "reasoning": "hm" * 99}, finish_reason="length")]

    with pytest.raises(ModelReplyCutError, match=r"llm\.reasoning_tokens"):
        await make().ask(ASK, GIVEN)


async def test_a_function_that_was_not_called_is_no_reply(endpoint: Endpoint, make: Make) -> None:
    other = {"function": {"name": "other", "arguments": '{"answer": "x"}'}}
    endpoint.planned = [good(message={"tool_calls": [other]}, finish_reason="tool_calls") for _ in range(2)]

    with pytest.raises(ModelReplyError, match="did not call the function ask"):
        await make(structured_output="function_calling").ask(ASK, GIVEN)


# --- Counting, limits, cancelling ---


async def test_tokens_are_counted_by_prompt_also_for_replies_that_do_not_fit(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [good(), good("junk"), good("junk"), good("cut", finish_reason="length")]
    usage = UsageCounter(clock=HandClock())
    model = make(usage)

    with measure_usage() as meter:
        await model.ask(ASK, GIVEN)
        for _ in range(2):
            with pytest.raises(ModelReplyError):
                await model.ask(ASK, GIVEN)

    assert (
        calls_of(usage, "ask").calls,
        calls_of(usage, "ask").prompt_tokens,
        calls_of(usage, "ask").completion_tokens,
    ) == (4, 280, 28)
    assert (meter.calls, meter.tokens) == (4, 308)


@pytest.mark.parametrize("counted", [None, "many", {"prompt_tokens": None}, {"prompt_tokens": "70"}, []])
async def test_tokens_are_estimated_where_the_endpoint_does_not_count(
    endpoint: Endpoint, make: Make, counted: Any
) -> None:
    choice = {"message": {"content": '{"answer": "because"}'}, "finish_reason": "stop"}
    endpoint.planned = [httpx.Response(200, json={"choices": [choice], "usage": counted})]
    usage = UsageCounter(clock=HandClock())

    assert await make(usage).ask(ASK, AskIn("x" * 3600)) == AskOut("because")
    assert 1000 < calls_of(usage, "ask").prompt_tokens < 1200
    assert calls_of(usage, "ask").completion_tokens == 6


@pytest.mark.parametrize(
    ("usage", "beside", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": None}}, {}, 64),
        ({"prompt_cache_hit_tokens": 32, "prompt_cache_miss_tokens": 38}, {}, 32),
        ({"prompt_tokens_details": None}, {"timings": {"cache_n": 16, "prompt_ms": 0.5}}, 16),
        ({"prompt_tokens_details": {"cached_tokens": 900}}, {}, 70),
        ({}, {"timings": "fast"}, 0),
        ({}, {}, 0),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_tokens_from_the_cache_are_counted_as_the_endpoint_tells_them(
    endpoint: Endpoint, make: Make, usage: Any, beside: Any, cached: int, *, is_streamed: bool
) -> None:
    message = {"content": '{"answer": "yes"}'}
    counted = {"prompt_tokens": 70, "completion_tokens": 7, **usage}
    choice = {"message": message, "delta": message, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "usage": counted, **beside})
    endpoint.planned = [httpx.Response(200, text=f"data: {body}\n\n" if is_streamed else body)]
    counts = UsageCounter(clock=HandClock())

    await make(counts).ask(ASK, GIVEN)

    assert calls_of(counts, "ask").cached_tokens == cached


async def test_a_mad_token_count_cannot_eat_the_budget_for_ever(endpoint: Endpoint, make: Make) -> None:
    choice = {"message": {"content": '{"answer": "because"}'}, "finish_reason": "stop"}
    counted = {"prompt_tokens": 2**62, "completion_tokens": -5}
    endpoint.planned = [httpx.Response(200, json={"choices": [choice], "usage": counted})]
    usage = UsageCounter(clock=HandClock())
    await make(usage).ask(ASK, GIVEN)

    assert calls_of(usage, "ask").tokens == 10_000_000


@pytest.mark.usefixtures("no_pauses")
async def test_an_attempt_that_ran_out_of_time_costs_its_prompt_for_it_is_billed(
    endpoint: Endpoint, make: Make
) -> None:
    endpoint.planned = [forever, forever]
    usage = UsageCounter(clock=HandClock())
    price = ModelPrice(model="small", input=1_000_000, output=5)
    await make(usage, timeout_seconds=0.05, max_retries=2, prices=(price,)).ask(ASK, AskIn("x" * 3600))
    counted = calls_of(usage, "ask")
    assert counted.calls == 3
    assert 2000 < counted.prompt_tokens - 70 < 2400
    assert counted.completion_tokens == 7
    assert counted.cost == pytest.approx(counted.prompt_tokens, rel=0.01)


async def test_a_call_that_nobody_waits_for_any_more_costs_its_prompt(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [forever]
    usage = UsageCounter(clock=HandClock())
    with measure_usage() as meter:
        async with running(make(usage).ask, ASK, AskIn("x" * 3600)):
            await wait_all_tasks_blocked()
    assert 1000 < calls_of(usage, "ask").prompt_tokens < 1200
    assert meter.tokens == calls_of(usage, "ask").tokens
    assert usage.held.tokens == 0


@pytest.mark.parametrize(
    "reply", [httpx.Response(200, content=b"<html>hello</html>"), httpx.Response(200, json={"choices": []})]
)
async def test_a_reply_that_nobody_can_read_costs_its_prompt(
    endpoint: Endpoint, make: Make, reply: httpx.Response
) -> None:
    endpoint.planned = [reply]
    usage = UsageCounter(clock=HandClock())
    with pytest.raises(ModelReplyError):
        await make(usage).ask(ASK, AskIn("x" * 3600))
    assert 1000 < calls_of(usage, "ask").prompt_tokens < 1200


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("failure", [httpx.ConnectError("nobody there"), failing(503), failing(429), failing(401)])
async def test_an_attempt_that_nobody_worked_on_costs_nothing(
    endpoint: Endpoint, make: Make, failure: httpx.ConnectError | httpx.Response
) -> None:
    endpoint.planned = [failure]
    usage = UsageCounter(clock=HandClock())
    with pytest.raises(ModelError):
        await make(usage, max_retries=0).ask(ASK, GIVEN)
    assert calls_of(usage, "ask").calls == 0


@pytest.mark.usefixtures("no_pauses")
async def test_retries_end_where_what_they_cost_leaves_no_room(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [forever] * 9
    model = make(timeout_seconds=0.005, max_retries=9, max_tokens=400, daily_token_budget=3000)
    with pytest.raises(ModelBudgetError, match="ask may take"):
        await model.ask(ASK, AskIn("x" * 3600))
    assert len(endpoint.requests) == 2


async def test_a_call_beyond_the_budget_is_not_made(endpoint: Endpoint, make: Make) -> None:
    model = make(daily_token_budget=1000, max_tokens=400)
    await model.ask(ASK, GIVEN)

    with pytest.raises(ModelBudgetError, match=r"^ask may take \d+ tokens"):
        await model.background().ask(ASK, AskIn("x" * 1200))
    await model.ask(ASK, AskIn("x" * 1200))

    assert len(endpoint.requests) == 2


async def test_background_calls_leave_half_of_the_slots_to_answers(endpoint: Endpoint, make: Make) -> None:
    release = anyio.Event()

    async def held() -> httpx.Response:
        await release.wait()
        return good()

    endpoint.planned = [held] * 10
    model = make(max_in_flight=4)
    async with anyio.create_task_group() as tg:
        for _ in range(5):
            tg.start_soon(model.background().ask, ASK, GIVEN)
        await wait_all_tasks_blocked()
        assert len(endpoint.requests) == 2
        for _ in range(3):
            tg.start_soon(model.ask, ASK, GIVEN)
        await wait_all_tasks_blocked()
        assert len(endpoint.requests) == 4
        release.set()
    assert len(endpoint.requests) == 8


async def test_a_cancelled_call_is_not_tried_again_and_frees_its_slot(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [forever]
    model = make(max_in_flight=1, daily_token_budget=6000)
    async with running(model.ask, ASK, GIVEN):
        await wait_all_tasks_blocked()
    assert len(endpoint.requests) == 1
    assert (await model.ask(ASK, GIVEN)).answer == "because"


async def test_a_deadline_of_the_caller_is_the_callers_and_no_model_error(endpoint: Endpoint, make: Make) -> None:
    endpoint.planned = [forever]

    with pytest.raises(TimeoutError), anyio.fail_after(0.01):
        await make().ask(ASK, GIVEN)


async def test_a_lent_client_stays_open(endpoint: Endpoint, make: Make) -> None:
    async with make() as model:
        await model.ask(ASK, GIVEN)
    async with make() as model:
        await model.ask(ASK, GIVEN)


# --- What an operator can get wrong ---


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base_url": ""}, "llm.kb.base_url must be an address like"),
        ({"base_url": "model.test/v1"}, "llm.kb.base_url must be"),
        ({"base_url": "ftp://model.test"}, "llm.kb.base_url must be"),
        ({"base_url": "http://[bad"}, "llm.kb.base_url must be"),
        ({"base_url": f"http://me:{KEY}@model.test"}, "without a password in it"),
        ({"model": ""}, "llm.kb.model is missing"),
        ({"api_key": Secret(KEY + " x")}, "llm.kb.api_key holds characters"),
        ({"api_key": Secret(KEY + "\nX: y")}, "llm.kb.api_key holds characters"),
        ({"api_key": Secret(KEY + "é")}, "llm.kb.api_key holds characters"),
        ({"headers": {"X-Team\n": Secret(KEY)}}, "llm.kb.headers"),
        ({"headers": {"X-Team": Secret(KEY + "\r\n")}}, "llm.kb.headers"),
    ],
)
def test_a_wrong_setting_is_named_and_no_key_is_shown(
    templates: PromptTemplates, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")) as wrong:
        EndpointModel(structs.replace(OPTIONS, **changes), templates=templates, usage=UsageCounter(), section="llm.kb")
    assert KEY not in said_by(wrong.value)


async def test_a_broken_template_is_the_operators_to_mend(tmp_path: Path, make: Make) -> None:
    (tmp_path / "ask.md.j2").write_text("{% block system %}{% endblock %}{% block user %}{{ x }}{% endblock %}")

    with pytest.raises(ConfigError, match=r"ask\.md\.j2, line 1"):
        await make().ask(ASK, GIVEN)


def test_options_print_no_key_and_settle_the_provider() -> None:
    assert KEY not in repr(OPTIONS)
    assert OPTIONS.kind == "endpoint"
    assert LlmOptions().kind == "offline"
    assert structs.replace(OPTIONS, provider="offline").kind == "offline"
