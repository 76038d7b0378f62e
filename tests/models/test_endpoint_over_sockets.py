"""The endpoint client against a server on a real socket: the ways in which networks fail."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import anyio
import msgspec
import pytest
import trustme
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener
from msgspec import Meta, Struct, structs

from intern.core.errors import ModelAccessError, ModelError, ModelReplyCutError, ModelReplyError, ModelUnavailableError
from intern.core.text.secret_values import Secret
from intern.models.endpoint import EndpointModel
from intern.models.options import LlmOptions, StructuredOutput
from intern.models.prompt import Prompt
from intern.models.templates import PromptTemplates
from intern.models.usage import UsageCounter
from tests.worlds import endpoint as doubles
from tests.worlds.clock import all_quiet, leap, leaping
from tests.worlds.endpoint import EndpointDouble, endpoint_double, retried_at_once
from tests.worlds.model import calls_of

SILENCE = 10.0
"""Seconds of an endpoint's silence. The clock leaps over them; a busy machine has them for all else."""
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
    with retried_at_once():
        yield


@pytest.fixture
def endpoint() -> Iterator[EndpointDouble]:
    with endpoint_double(api_key=KEY) as endpoint:
        yield endpoint


@pytest.fixture
def templates(tmp_path: Path) -> PromptTemplates:
    source = "{% block system %}Judge.{% endblock %}{% block user %}{{ question }}{% endblock %}"
    (tmp_path / "gate.md.j2").write_text(source, encoding="utf-8")
    return PromptTemplates(tmp_path)


def model(
    base_url: str, templates: PromptTemplates, usage: UsageCounter | None = None, **changes: Any
) -> EndpointModel:
    options = LlmOptions(base_url=base_url, api_key=Secret(KEY), model="small", max_retries=2, timeout_seconds=5)
    return EndpointModel(structs.replace(options, **changes), templates=templates, usage=usage or UsageCounter())


@pytest.mark.parametrize("structured_output", ["json_schema", "function_calling", "json_object"])
async def test_each_way_to_a_typed_reply_works_on_the_wire(
    endpoint: EndpointDouble, templates: PromptTemplates, structured_output: StructuredOutput
) -> None:
    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates, structured_output=structured_output) as asked:
            reply = await asked.ask(GATE, GIVEN)

    assert (reply.is_question, reply.rewrite_query) == (True, None)
    (request,) = endpoint.requests
    assert request.user == "Is it open?"
    assert request.prompt == ("" if structured_output == "json_object" else "gate")


async def test_a_busy_and_a_breaking_endpoint_is_asked_again(
    endpoint: EndpointDouble, templates: PromptTemplates
) -> None:
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
        (doubles.refuse(404), ModelAccessError),
    ],
    ids=["cut", "junk", "huge", "refused"],
)
async def test_what_is_no_reply_is_not_asked_for_again(
    endpoint: EndpointDouble, templates: PromptTemplates, reply: Any, error: type[Exception]
) -> None:
    endpoint.next(reply)

    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates) as asked:
            with pytest.raises(error):
                await asked.ask(GATE, GIVEN)
    assert len(endpoint.requests) == 1


# Finding B9.
@pytest.mark.parametrize("anyio_backend", [leaping("asyncio"), leaping("trio")], ids=["asyncio", "trio"])
async def test_an_endpoint_that_never_answers_is_given_up(endpoint: EndpointDouble, templates: PromptTemplates) -> None:
    endpoint.next(doubles.never(), doubles.never())
    usage = UsageCounter()

    async def ask(asked: EndpointModel) -> None:
        with pytest.raises(ModelUnavailableError, match="said nothing for"):
            await asked.ask(GATE, GIVEN)

    with anyio.fail_after(4 * SILENCE):
        async with (
            model(endpoint.base_url, templates, usage, timeout_seconds=SILENCE, max_retries=1) as asked,
            anyio.create_task_group() as tg,
        ):
            tg.start_soon(ask, asked)
            for attempt in (1, 2):
                while len(endpoint.requests) < attempt:  # noqa: ASYNC110 it serves on a thread of its own
                    await anyio.sleep(0.001)
                await all_quiet()  # all of the request is sent, and its reply is awaited
                await leap(SILENCE)
    assert len(endpoint.requests) == 2
    assert calls_of(usage, "gate").calls == 2, "it had both, so both are billed"


async def test_a_connection_that_never_stands_costs_nothing_but_time(templates: PromptTemplates) -> None:
    usage = UsageCounter()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        base_url = f"https://127.0.0.1:{silent.getsockname()[1]}/v1"  # it never shows a certificate
        with anyio.fail_after(10):
            async with model(base_url, templates, usage, timeout_seconds=0.3, max_retries=0) as asked:
                with pytest.raises(ModelUnavailableError, match="said nothing for"):
                    await asked.ask(GATE, GIVEN)
    assert calls_of(usage, "gate").calls == 0


async def test_a_wrong_key_is_refused_and_not_shown(endpoint: EndpointDouble, templates: PromptTemplates) -> None:
    wrong = "sk-wrong-0123456789"
    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates, api_key=Secret(wrong)) as asked:
            with pytest.raises(ModelAccessError, match=r"llm\.api_key") as refused:
                await asked.ask(GATE, GIVEN)
    assert wrong not in str(refused.value)


async def test_nobody_at_the_address_is_unavailable(templates: PromptTemplates) -> None:
    with socket.socket() as nobody:  # bound and not listening: the port is ours, and refuses
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        with anyio.fail_after(10):
            async with model(address, templates) as asked:
                with pytest.raises(ModelUnavailableError, match="cannot be reached"):
                    await asked.ask(GATE, GIVEN)


# --- A server that says byte for byte what a test wants ---

HANG_UP = b"hang up"
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
YES = b'{"choices": [{"message": {"content": "{\\"is_question\\": true, \\"reason\\": \\"\\"}"}}]}'


def reply(body: bytes = YES, headers: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


class Server:
    """Each connection says its script: what it says to each request, in pieces, or `HANG_UP`, which ends it."""

    def __init__(self, *scripts: list[list[bytes]], pause: float = 0.0) -> None:
        self._scripts = list(scripts)
        self._pause = pause
        self.connections = 0
        self.port = 0
        self.requests: list[bytes] = []

    async def serve(self, stream: ByteStream) -> None:
        script = self._scripts[self.connections]
        self.connections += 1
        async with stream:
            for pieces in script:
                if not await self._heard(stream):
                    return
                for said in pieces:
                    if said == HANG_UP:
                        return
                    await stream.send(said)
                    await anyio.sleep(self._pause)
            await self._heard(stream)

    async def _heard(self, stream: ByteStream) -> bool:
        heard = b""
        while b"\r\n\r\n" not in heard:
            try:
                heard += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return False
        head, _, body = heard.partition(b"\r\n\r\n")
        found = LENGTH.search(head)
        while found and len(body) < int(found[1]):
            body += await stream.receive()
        self.requests.append(head + b"\r\n\r\n" + body)
        return True


@asynccontextmanager
async def talking_to(
    server: Server, templates: PromptTemplates, secured: ssl.SSLContext | None = None, **changes: Any
) -> AsyncGenerator[EndpointModel]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as plain, anyio.create_task_group() as tg:
        listener = TLSListener(plain, secured, standard_compatible=False) if secured else plain
        tg.start_soon(listener.serve, server.serve)
        server.port = plain.extra(SocketAttribute.local_port)
        base_url = f"{'https' if secured else 'http'}://127.0.0.1:{server.port}/v1"
        with anyio.fail_after(10):
            async with model(base_url, templates, **changes) as asked:
                yield asked
            tg.cancel_scope.cancel()


def certified(authority: trustme.CA, host: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)  # pyright: ignore[reportUnknownMemberType] of pyOpenSSL's context
    return context


@pytest.mark.parametrize(("host", "known"), [("127.0.0.1", False), ("127.0.0.2", True), ("127.0.0.1", True)])
async def test_only_a_trusted_certificate_of_this_host_gets_the_key(
    tmp_path: Path, templates: PromptTemplates, monkeypatch: pytest.MonkeyPatch, host: str, *, known: bool
) -> None:
    authority = trustme.CA()
    (authority if known else trustme.CA()).cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    server = Server([[reply()]])
    async with talking_to(server, templates, certified(authority, host), max_retries=0) as asked:
        if known and host == "127.0.0.1":
            assert (await asked.ask(GATE, GIVEN)).is_question
        else:
            with pytest.raises(ModelUnavailableError, match="certificate verify failed"):
                await asked.ask(GATE, GIVEN)
    assert len(server.requests) == (known and host == "127.0.0.1")


async def test_calls_go_one_after_the_other_over_one_connection(templates: PromptTemplates) -> None:
    server = Server([[reply()], [reply()]])
    async with talking_to(server, templates) as asked:
        for _ in range(2):
            assert (await asked.ask(GATE, GIVEN)).is_question
    assert server.connections == 1


async def test_a_kept_connection_that_has_ended_is_replaced_at_once(templates: PromptTemplates) -> None:
    server = Server([[reply()], [HANG_UP]], [[reply()]])
    async with talking_to(server, templates, max_retries=0) as asked:
        for _ in range(2):
            assert (await asked.ask(GATE, GIVEN)).is_question
    assert server.connections == 2


async def test_a_new_connection_that_ends_unanswered_is_a_failed_attempt(templates: PromptTemplates) -> None:
    server = Server([[HANG_UP]], [[reply()]])
    async with talking_to(server, templates, max_retries=0) as asked:
        with pytest.raises(ModelUnavailableError):
            await asked.ask(GATE, GIVEN)
    assert server.connections == 1


@pytest.mark.parametrize(
    "said",
    [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"HTTP/1.1 101 Up\r\n\r\n"],
    ids=["another protocol", "half a reply", "an upgrade"],
)
async def test_a_reply_that_is_no_whole_http_is_unavailable(templates: PromptTemplates, said: bytes) -> None:
    async with talking_to(Server([[said, HANG_UP]]), templates, max_retries=0) as asked:
        with pytest.raises(ModelError):
            await asked.ask(GATE, GIVEN)


def stream(*pieces: bytes) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)]


def pieces(*texts: str) -> list[bytes]:
    return [b'data: {"choices": [{"delta": {"content": %b}}]}\n\n' % msgspec.json.encode(text) for text in texts]


@pytest.mark.rest
async def test_a_slow_model_is_not_cut_off_while_it_writes(templates: PromptTemplates) -> None:
    written = pieces(*'{"is_question": true, "reason": "slow"}')
    server = Server([stream(*written, b"data: [DONE]\n\n")], pause=0.03)
    async with talking_to(server, templates, timeout_seconds=1.0, max_retries=0) as asked:
        began = anyio.current_time()
        assert (await asked.ask(GATE, GIVEN)).reason == "slow"
        assert anyio.current_time() - began > 1.0, "it took longer than one silence may"


async def test_streamed_calls_go_over_one_connection(endpoint: EndpointDouble, templates: PromptTemplates) -> None:
    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates) as asked:
            for _ in range(3):
                assert (await asked.ask(GATE, GIVEN)).is_question
    assert all(request.body["stream"] for request in endpoint.requests)
    assert len(endpoint.connections) == 1


@pytest.mark.parametrize("end", [b"0\r\n\r\n", HANG_UP], ids=["ended", "broken"])
async def test_a_stream_is_taken_however_its_response_ends_after_the_last_event(
    templates: PromptTemplates, end: bytes
) -> None:
    said = stream(*pieces('{"is_question": true, "reason": ""}'), b"data: [DONE]\n\n")
    server = Server([[*said, end], [reply()]], [[reply()]], pause=0.01)
    async with talking_to(server, templates, max_retries=0) as asked:
        for _ in range(2):
            assert (await asked.ask(GATE, GIVEN)).is_question
    assert server.connections == (2 if end == HANG_UP else 1)
    assert len(server.requests) == 2, "a broken end costs no second call"


async def test_a_stream_that_cannot_be_read_is_asked_for_whole_from_then_on(
    endpoint: EndpointDouble, templates: PromptTemplates
) -> None:
    endpoint.next(doubles.Reply(body=b'data: {"choices": 7}\n\ndata: [DONE]\n\n'))
    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates) as asked:
            for _ in range(2):
                assert (await asked.ask(GATE, GIVEN)).is_question
    assert ["stream" in request.body for request in endpoint.requests] == [True, False, False]


async def test_an_unreadable_stream_of_a_known_form_costs_one_call_more(
    endpoint: EndpointDouble, templates: PromptTemplates
) -> None:
    unreadable = doubles.Reply(body=b'data: {"choices": 7}\n\ndata: [DONE]\n\n')
    endpoint.next(doubles.refuse(400, says="temperature is not supported"))
    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates) as asked:
            await asked.ask(GATE, GIVEN)
            endpoint.next(unreadable)
            await asked.ask(GATE, GIVEN)
    sent = [request.body.keys() & {"stream", "temperature"} for request in endpoint.requests]
    assert sent == [{"stream", "temperature"}, {"stream"}, {"stream"}, set()]


async def test_a_stream_that_can_never_be_read_is_an_error(
    endpoint: EndpointDouble, templates: PromptTemplates
) -> None:
    endpoint.next(*[doubles.Reply(body=b"data: {\n\ndata: [DONE]\n\n")] * 3)
    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates) as asked:
            with pytest.raises(ModelReplyError, match="no JSON object of the API"):
                await asked.ask(GATE, GIVEN)
    assert len(endpoint.requests) == 2


async def test_a_server_that_keeps_silent_after_the_last_event_is_not_waited_for(templates: PromptTemplates) -> None:
    server = Server([stream(*pieces('{"is_question": true, "reason": ""}'), b"data: [DONE]\n\n")])
    async with talking_to(server, templates, timeout_seconds=60, max_retries=0) as asked:
        assert (await asked.ask(GATE, GIVEN)).is_question


@pytest.mark.rest
@pytest.mark.parametrize("end", [b"0\r\n\r\n", HANG_UP], ids=["ended", "broken"])
@pytest.mark.parametrize("said", [pieces('{"is_question":'), [b": waiting\n\n", b"data: [DONE]\n\n"]])
async def test_a_stream_that_ends_before_the_reply_is_asked_for_again(
    templates: PromptTemplates, said: list[bytes], end: bytes
) -> None:
    server = Server([[*stream(*said), end], [reply()]], [[reply()]])
    async with talking_to(server, templates, max_retries=1) as asked:
        assert (await asked.ask(GATE, GIVEN)).is_question
    assert len(server.requests) == 2


async def test_an_error_within_a_stream_is_judged_by_its_status(templates: PromptTemplates) -> None:
    said = b'data: {"error": {"code": 401, "message": "no"}}\n\n'
    async with talking_to(Server([stream(said, b"data: [DONE]\n\n")]), templates) as asked:
        with pytest.raises(ModelAccessError, match=r"llm\.api_key"):
            await asked.ask(GATE, GIVEN)


async def test_an_endpoint_that_refuses_streaming_is_asked_without_it_from_then_on(
    endpoint: EndpointDouble, templates: PromptTemplates
) -> None:
    endpoint.next(
        doubles.refuse(400, says="Unrecognized request argument supplied: stream_options"),
        doubles.refuse(422, says="stream is not supported with response_format"),
    )
    with anyio.fail_after(10):
        async with model(endpoint.base_url, templates) as asked:
            for _ in range(2):
                assert (await asked.ask(GATE, GIVEN)).is_question
    sent = [request.body.keys() & {"stream", "stream_options"} for request in endpoint.requests]
    assert sent == [{"stream", "stream_options"}, {"stream"}, set(), set()]


@pytest.mark.rest
async def test_a_proxy_that_the_environment_names_is_used(
    templates: PromptTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server([[reply()]])
    async with talking_to(server, templates):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
        async with model("http://model.test/v1", templates) as asked:
            assert (await asked.ask(GATE, GIVEN)).is_question
    assert server.requests[0].startswith(b"POST http://model.test/v1/chat/completions HTTP/1.1")
