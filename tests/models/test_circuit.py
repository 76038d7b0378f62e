"""An endpoint behind its circuit breaker: an endpoint that keeps failing is refused at once, then tried again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import httpx
import pytest
from msgspec import Struct

from intern.answering.prompts import AnsweringOptions
from intern.core.errors import ModelAccessError, ModelUnavailableError
from intern.models.circuit_breaker import FAILURES, HEAD_START
from intern.models.endpoint import EndpointModel
from intern.models.limits import FIRST_PAUSE
from intern.models.options import LlmOptions
from intern.models.prompt import Prompt
from intern.models.templates import PromptTemplates
from intern.models.usage import UsageCounter
from tests.worlds.clock import HandClock

pytestmark = pytest.mark.jumps  # over pauses


class Asked(Struct, frozen=True):
    question: str


class Said(Struct, frozen=True):
    ok: bool


PROMPT = Prompt(name="gate", takes=Asked, gives=Said)


class Endpoint:
    """Answers with a status, and counts how often it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.asked = 0
        self.held: anyio.Event | None = None
        self.writes = False
        self.writes_for = 0.0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        del request
        self.asked += 1
        if self.held is not None:
            await self.held.wait()
        if self.writes or self.writes_for:
            return httpx.Response(200, content=Writing(self.writes_for))
        message = {"message": {"content": json.dumps({"ok": True})}, "finish_reason": "stop"}
        return httpx.Response(self.status, json={"choices": [message]})


class Writing(httpx.AsyncByteStream):
    """A model that writes on and on, or for some seconds until its reply is whole."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        began = anyio.current_time()
        while not 0 < self._seconds <= anyio.current_time() - began:
            yield b'data: {"choices": [{"delta": {"content": "%b"}}]}\n\n' % (b" " if self._seconds else b"and ")
            await anyio.sleep(5)
        yield b'data: {"choices": [{"delta": {"content": "{\\"ok\\": true}"}, "finish_reason": "stop"}]}\n\n'
        yield b"data: [DONE]\n\n"


Opened = Callable[[int], EndpointModel]


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def opened(tmp_path: Path, endpoint: Endpoint) -> Opened:
    (tmp_path / "gate.md.j2").write_text(
        "{% block system %}Say whether.{% endblock %}{% block user %}{{ question }}{% endblock %}"
    )

    def make(max_retries: int) -> EndpointModel:
        options = LlmOptions(base_url="http://model.test/v1", model="m", max_retries=max_retries)
        client = httpx.AsyncClient(transport=httpx.MockTransport(endpoint))
        return EndpointModel(
            options, templates=PromptTemplates(tmp_path), usage=UsageCounter(clock=HandClock()), client=client
        )

    return make


async def failed(model: EndpointModel, times: int) -> None:
    for _ in range(times):
        with pytest.raises(ModelUnavailableError):
            await model.ask(PROMPT, Asked("?"))


async def test_an_endpoint_that_keeps_failing_is_left_alone_and_who_asks_is_told_at_once(
    endpoint: Endpoint, opened: Opened
) -> None:
    endpoint.status = 503
    model = opened(0)
    await failed(model, FAILURES)
    began = anyio.current_time()
    with pytest.raises(ModelUnavailableError, match=r"left alone; it is tried again in 5 s\. The last failure: .* 503"):
        await model.ask(PROMPT, Asked("?"))
    assert (endpoint.asked, anyio.current_time()) == (FAILURES, began)


async def test_retries_stop_when_the_circuit_opens(endpoint: Endpoint, opened: Opened) -> None:
    endpoint.status = 503
    model = opened(10)
    async with anyio.create_task_group() as tg:
        tg.start_soon(failed, model, 1)
        tg.start_soon(failed, model, 1)
    assert endpoint.asked == FAILURES


async def test_it_comes_back_by_itself_with_the_first_probe_that_is_answered(
    endpoint: Endpoint, opened: Opened
) -> None:
    endpoint.status = 503
    model = opened(0)
    await failed(model, FAILURES)
    await anyio.sleep(FIRST_PAUSE)
    await failed(model, 2)
    assert endpoint.asked == FAILURES + 1, "one probe, and then it waits twice as long"
    endpoint.status = 200
    await anyio.sleep(2 * FIRST_PAUSE)
    assert await model.ask(PROMPT, Asked("?")) == Said(ok=True)
    assert await model.ask(PROMPT, Asked("?")) == Said(ok=True)
    assert model.breaker.held is None


async def test_background_work_never_takes_the_probe_from_an_answer(endpoint: Endpoint, opened: Opened) -> None:
    endpoint.status = 503
    model = opened(0)
    await failed(model, FAILURES)
    endpoint.status, endpoint.held = 200, anyio.Event()
    await anyio.sleep(FIRST_PAUSE)
    with pytest.raises(ModelUnavailableError, match="left alone"):
        await model.background().ask(PROMPT, Asked("behind"))
    await anyio.sleep(HEAD_START)
    async with anyio.create_task_group() as tg:
        tg.start_soon(model.background().ask, PROMPT, Asked("behind"))
        await anyio.wait_all_tasks_blocked()
        tg.start_soon(model.ask, PROMPT, Asked("an answer"))
        await anyio.wait_all_tasks_blocked()
        assert endpoint.asked == FAILURES + 2
        endpoint.held.set()


async def test_a_probe_that_is_cancelled_lets_the_next_one_try(endpoint: Endpoint, opened: Opened) -> None:
    endpoint.status = 503
    model = opened(0)
    await failed(model, FAILURES)
    await anyio.sleep(FIRST_PAUSE)
    endpoint.status, endpoint.held = 200, anyio.Event()
    with anyio.move_on_after(1):
        await model.ask(PROMPT, Asked("?"))
    endpoint.held = None
    assert await model.ask(PROMPT, Asked("?")) == Said(ok=True)


@pytest.mark.parametrize(("status", "error"), [(429, ModelUnavailableError), (401, ModelAccessError)])
async def test_an_endpoint_that_says_no_is_there(
    endpoint: Endpoint, opened: Opened, status: int, error: type[Exception]
) -> None:
    endpoint.status = status
    model = opened(0)
    for _ in range(2 * FAILURES):
        with pytest.raises(error):
            await model.ask(PROMPT, Asked("?"))
    assert endpoint.asked == 2 * FAILURES


async def given_up(model: EndpointModel, times: int, after: float) -> None:
    """Give up, as a question does after its time limit."""
    for _ in range(times):
        with anyio.move_on_after(after) as waiting:
            await model.ask(PROMPT, Asked("?"))
        assert waiting.cancelled_caught


async def test_an_endpoint_that_hangs_is_left_alone_though_questions_give_up_before_its_timeout(
    endpoint: Endpoint, opened: Opened
) -> None:
    endpoint.held = anyio.Event()
    model = opened(3)
    await given_up(model, FAILURES, LlmOptions().timeout_seconds)
    began = anyio.current_time()
    with pytest.raises(ModelUnavailableError, match=r"left alone; .* The last failure: .* said nothing for 60 s"):
        await model.ask(PROMPT, Asked("?"))
    assert (endpoint.asked, anyio.current_time()) == (FAILURES, began)
    await anyio.sleep(FIRST_PAUSE)
    await given_up(model, 1, LlmOptions().timeout_seconds)
    assert model.breaker.pause == 2 * FIRST_PAUSE, "a probe that hangs has failed"


async def test_two_calls_of_a_slow_model_fit_into_the_time_of_a_question(endpoint: Endpoint, opened: Opened) -> None:
    endpoint.writes_for = 120
    model = opened(0)
    with anyio.fail_after(AnsweringOptions().request_timeout_seconds):
        assert [(await model.ask(PROMPT, Asked("?"))).ok for _ in range(2)] == [True, True]


async def test_a_model_that_is_still_writing_when_it_is_given_up_is_only_slow(
    endpoint: Endpoint, opened: Opened
) -> None:
    endpoint.writes = True
    model = opened(3)
    await given_up(model, 2 * FAILURES, LlmOptions().timeout_seconds)
    assert endpoint.asked == 2 * FAILURES, "the circuit stayed closed"


async def test_what_is_given_up_soon_says_nothing_of_the_endpoint(endpoint: Endpoint, opened: Opened) -> None:
    endpoint.held = anyio.Event()
    model = opened(0)
    await given_up(model, 2 * FAILURES, 10)
    assert endpoint.asked == 2 * FAILURES
    assert model.breaker.held is None


async def test_an_endpoint_that_is_too_slow_for_some_questions_only_is_not_left_alone(
    endpoint: Endpoint, opened: Opened
) -> None:
    model = opened(0)
    for _ in range(FAILURES):
        endpoint.held = anyio.Event()
        await given_up(model, FAILURES - 1, 60)
        endpoint.held = None
        await model.ask(PROMPT, Asked("?"))
