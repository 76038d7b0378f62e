"""The endpoint client against a server on a real socket: the ways in which networks fail."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
import stamina
from msgspec import Meta, Struct, structs

from intern.domain.secret import Secret
from intern.errors import ModelAccessError, ModelReplyCutError, ModelReplyError, ModelUnavailableError
from intern.llm.endpoint import EndpointModel
from intern.llm.options import LlmOptions, StructuredOutput
from intern.llm.prompt import Prompt
from intern.llm.templates import Templates
from intern.llm.usage import Usage
from tests import endpoint_double as doubles
from tests.endpoint_double import EndpointDouble, endpoint_double

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-0123456789"


class GateIn(Struct, frozen=True):
    question: str


class GateOut(Struct, frozen=True):
    is_question: bool
    reason: Annotated[str, Meta(max_length=100)]
    rewrite_query: str | None = None


GATE = Prompt("gate", takes=GateIn, gives=GateOut)
GIVEN = GateIn("Is it open?")


@pytest.fixture(autouse=True)
def no_pauses() -> Iterator[None]:
    with stamina.set_testing(True, attempts=100, cap=True):
        yield


@pytest.fixture
def endpoint() -> Iterator[EndpointDouble]:
    with endpoint_double(api_key=KEY) as endpoint:
        yield endpoint


@pytest.fixture
def templates(tmp_path: Path) -> Templates:
    source = "{% block system %}Judge.{% endblock %}{% block user %}{{ question }}{% endblock %}"
    (tmp_path / "gate.md.j2").write_text(source, encoding="utf-8")
    return Templates(tmp_path)


def model(base_url: str, templates: Templates, usage: Usage | None = None, **changes: Any) -> EndpointModel:
    options = LlmOptions(base_url=base_url, api_key=Secret(KEY), model="small", max_retries=2, timeout_seconds=5)
    return EndpointModel(structs.replace(options, **changes), templates=templates, usage=usage or Usage())


@pytest.mark.parametrize("structured_output", ["json_schema", "function_calling", "json_object"])
async def test_each_way_to_a_typed_reply_works_on_the_wire(
    endpoint: EndpointDouble, templates: Templates, structured_output: StructuredOutput
) -> None:
    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates, structured_output=structured_output) as asked:
            reply = await asked.ask(GATE, GIVEN)

    assert (reply.is_question, reply.rewrite_query) == (True, None)
    (request,) = endpoint.requests
    assert request.user == "Is it open?"
    assert request.prompt == ("" if structured_output == "json_object" else "gate")


async def test_a_busy_and_a_breaking_endpoint_is_asked_again(endpoint: EndpointDouble, templates: Templates) -> None:
    endpoint.next(doubles.refuse(429, retry_after="1"), doubles.drop())

    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates) as asked:
            assert (await asked.ask(GATE, GIVEN)).is_question
    assert len(endpoint.asked("gate")) == 3


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (doubles.cut(), ModelReplyCutError),
        (doubles.junk(), ModelReplyError),
        (doubles.huge(), ModelReplyError),
        ({"is_question": "maybe"}, ModelReplyError),
        (doubles.refuse(404), ModelAccessError),
    ],
    ids=["cut", "junk", "huge", "wrong type", "refused"],
)
async def test_what_is_no_reply_is_not_asked_for_again(
    endpoint: EndpointDouble, templates: Templates, reply: Any, error: type[Exception]
) -> None:
    endpoint.next(reply)

    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates) as asked:
            with pytest.raises(error):
                await asked.ask(GATE, GIVEN)
    assert len(endpoint.requests) == 1


async def test_an_endpoint_that_never_answers_is_given_up(endpoint: EndpointDouble, templates: Templates) -> None:
    endpoint.next(doubles.never(), doubles.never())
    usage = Usage()

    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates, usage, timeout_seconds=0.05, max_retries=1) as asked:
            with pytest.raises(ModelUnavailableError, match="did not answer within"):
                await asked.ask(GATE, GIVEN)
    assert len(endpoint.requests) == 2
    assert usage.of("gate").calls == 2, "it had both, so both are billed"


async def test_a_connection_that_never_stands_costs_nothing_but_time(templates: Templates) -> None:
    usage = Usage()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        base_url = f"https://127.0.0.1:{silent.getsockname()[1]}/v1"  # it never shows a certificate
        with anyio.fail_after(10):
            async with model(base_url, templates, usage, timeout_seconds=0.3, max_retries=0) as asked:
                with pytest.raises(ModelUnavailableError, match="did not answer within"):
                    await asked.ask(GATE, GIVEN)
    assert usage.of("gate").calls == 0


async def test_a_wrong_key_is_refused_and_not_shown(endpoint: EndpointDouble, templates: Templates) -> None:
    wrong = "sk-wrong-0123456789"
    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates, api_key=Secret(wrong)) as asked:
            with pytest.raises(ModelAccessError, match=r"llm\.api_key") as refused:
                await asked.ask(GATE, GIVEN)
    assert wrong not in str(refused.value)


async def test_nobody_at_the_address_is_unavailable(templates: Templates) -> None:
    with socket.socket() as nobody:  # bound and not listening: the port is ours, and refuses
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        with anyio.fail_after(10):
            async with model(address, templates) as asked:
                with pytest.raises(ModelUnavailableError, match="cannot be reached"):
                    await asked.ask(GATE, GIVEN)
