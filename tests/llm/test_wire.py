"""The connections to an endpoint, against a server that says what a test wants, byte for byte."""

from __future__ import annotations

import gzip
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import h11
import httpx
import pytest
import trustme
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener
from hypothesis import given, settings, strategies as st
from msgspec import Struct

from intern.llm.endpoint import EndpointModel
from intern.llm.options import LlmOptions
from intern.llm.prompt import Prompt
from intern.llm.templates import Templates
from intern.llm.usage import Usage
from intern.llm.wire import Reply, Wire, plain_head

pytestmark = pytest.mark.anyio

HANG_UP = b"hang up"
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def reply(body: bytes = b"{}", *, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


class Server:
    """Each connection says its script: a reply to each request, or `HANG_UP`, which ends the connection at once."""

    def __init__(self, *scripts: list[bytes]) -> None:
        self._scripts = list(scripts)
        self.connections = 0
        self.port = 0
        self.requests: list[bytes] = []

    async def serve(self, stream: ByteStream) -> None:
        script = self._scripts[self.connections]
        self.connections += 1
        async with stream:
            for said in script:
                if said == HANG_UP:
                    return
                if not await self._heard(stream):
                    return
                await stream.send(said.removesuffix(HANG_UP))
                if said.endswith(HANG_UP):
                    return
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
    server: Server, path: str = "/v1/chat?key=1", secured: ssl.SSLContext | None = None
) -> AsyncGenerator[Wire]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as plain, anyio.create_task_group() as tg:
        listener = TLSListener(plain, secured, standard_compatible=False) if secured else plain
        tg.start_soon(listener.serve, server.serve)
        server.port = port = plain.extra(SocketAttribute.local_port)
        scheme = "https" if secured else "http"
        wire = Wire(httpx.URL(f"{scheme}://127.0.0.1:{port}{path}"), {"Authorization": "Bearer key"})
        with anyio.fail_after(10):
            try:
                yield wire
            finally:
                await wire.aclose()
                tg.cancel_scope.cancel()


async def test_requests_go_one_after_the_other_over_one_connection() -> None:
    server = Server([reply(b"one"), reply(b"two", status="503 Busy", headers="Retry-After: 7\r\n")])
    async with talking_to(server) as wire:
        assert await wire.post(b"first", 100) == Reply(200, None, b"one")
        assert await wire.post(b"second", 100) == Reply(503, "7", b"two")
    assert server.connections == 1
    assert [request.rpartition(b"\r\n\r\n")[2] for request in server.requests] == [b"first", b"second"]
    assert server.requests[0].startswith(b"POST /v1/chat?key=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Authorization: Bearer key\r\n" in server.requests[0]


def certified(authority: trustme.CA, host: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)  # pyright: ignore[reportUnknownMemberType] of pyOpenSSL's context
    return context


async def test_a_certificate_of_a_known_authority_is_trusted_and_the_connection_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    server = Server([reply(b"one"), reply(b"two" * 100_000)])
    async with talking_to(server, secured=certified(authority, "127.0.0.1")) as wire:
        assert (await wire.post(b"first" * 100_000, 100)).body == b"one"
        assert (await wire.post(b"second", 1_000_000)).body == b"two" * 100_000
    assert server.connections == 1
    assert server.requests[0].endswith(b"first" * 100_000)


@pytest.mark.parametrize(("host", "known"), [("127.0.0.1", False), ("127.0.0.2", True), ("example.com", True)])
async def test_a_strange_or_foreign_certificate_ends_the_call_before_the_key_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, *, known: bool
) -> None:
    authority = trustme.CA()
    (authority if known else trustme.CA()).cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    server = Server([reply()])
    async with talking_to(server, secured=certified(authority, host)) as wire:
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await wire.post(b"", 100)
    assert not server.requests


async def test_requests_at_once_have_a_connection_each() -> None:
    server = Server([reply()], [reply()])
    async with talking_to(server) as wire, anyio.create_task_group() as tg:
        tg.start_soon(wire.post, b"", 100)
        tg.start_soon(wire.post, b"", 100)
    assert server.connections == 2


@pytest.mark.parametrize(
    "first",
    [[reply() + HANG_UP], [reply(headers="Connection: close\r\n") + HANG_UP], [reply(), HANG_UP]],
    ids=["closed since", "closed as announced", "closed with the request under way"],
)
async def test_a_connection_that_has_ended_is_replaced_at_once(first: list[bytes]) -> None:
    server = Server(first, [reply(b"again")])
    async with talking_to(server) as wire:
        await wire.post(b"one", 100)
        assert (await wire.post(b"two", 100)).body == b"again"
    assert server.connections == 2


async def test_a_new_connection_that_ends_without_a_reply_is_an_error() -> None:
    server = Server([HANG_UP])
    async with talking_to(server) as wire:
        with pytest.raises(httpx.RequestError):
            await wire.post(b"one", 100)
    assert server.connections == 1


async def test_a_reply_that_breaks_off_is_an_error_and_not_asked_for_again() -> None:
    server = Server([reply(), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf" + HANG_UP])
    async with talking_to(server) as wire:
        await wire.post(b"one", 100)
        with pytest.raises(httpx.RemoteProtocolError):
            await wire.post(b"two", 100)
    assert server.connections == 1


@pytest.mark.parametrize(
    "said",
    [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", b"HTTP/1.1 101 Switching\r\n\r\n"],
    ids=["another protocol", "a bad length", "an upgrade"],
)
async def test_what_is_no_http_is_an_error(said: bytes) -> None:
    async with talking_to(Server([said + HANG_UP])) as wire:
        with pytest.raises(httpx.RemoteProtocolError):
            await wire.post(b"one", 100)


async def test_news_before_the_reply_are_passed_over_and_pieces_are_joined() -> None:
    pieces = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\non\r\n1\r\ne\r\n0\r\n\r\n"
    server = Server([b"HTTP/1.1 102 Processing\r\n\r\n" + pieces, reply(b"two")])
    async with talking_to(server) as wire:
        assert (await wire.post(b"", 100)).body == b"one"
        assert (await wire.post(b"", 100)).body == b"two"
    assert server.connections == 1


async def test_no_more_is_read_than_was_asked_for_and_the_rest_is_no_reply_to_the_next() -> None:
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + 200 * b"x"
    async with talking_to(Server([endless], [reply(b"two")])) as wire:
        assert 100 < len((await wire.post(b"", 100)).body) <= 200
        assert (await wire.post(b"", 100)).body == b"two"


async def test_what_comes_unasked_is_no_reply_to_the_next_request() -> None:
    async with talking_to(Server([reply(b"one") + reply(b"forged")], [reply(b"two")])) as wire:
        assert (await wire.post(b"", 100)).body == b"one"
        assert (await wire.post(b"", 100)).body == b"two"


async def test_a_reply_that_is_packed_against_our_wish_grows_no_further_than_asked() -> None:
    bomb = gzip.compress(1_000_000 * b"x")
    packed = [reply(gzip.compress(b"one"), headers="Content-Encoding: gzip\r\n")]
    packed += [reply(bomb, headers="Content-Encoding: GZIP\r\n"), reply(b"junk", headers="Content-Encoding: gzip\r\n")]
    async with talking_to(Server(packed, [reply(b"junk", headers="Content-Encoding: br\r\n")])) as wire:
        assert (await wire.post(b"", 100)).body == b"one"
        assert len((await wire.post(b"", 5000)).body) == 5001
        for _ in range(2):
            with pytest.raises(httpx.DecodingError):
                await wire.post(b"", 100)


async def test_a_call_that_is_given_up_takes_its_connection_with_it() -> None:
    server = Server([reply(), b""], [reply(b"two")])
    async with talking_to(server) as wire:
        await wire.post(b"one", 100)
        with anyio.move_on_after(0.05) as given_up:
            await wire.post(b"two", 100)
        assert given_up.cancelled_caught
        assert (await wire.post(b"three", 100)).body == b"two"
    assert server.connections == 2


LINES = (
    "Content-Length: 3",
    "Content-Length: 4",
    "content-length:3",
    "Content-Length: +3",
    "Content-Length: 3, 3",
    "Content-Length:",
    "Transfer-Encoding: chunked",
    "Connection: close",
    "Connection: keep-alive",
    "Retry-After: 7",
    "Content-Type : text/plain",
    ": 3",
    " folded",
    "Server: caf\u00e9",
    "Date:\t1 ",
    "Upgrade: h2c",
    "X-\0: 1",
)


@given(
    st.sampled_from(["1.1", "1.1", "1.0"]),
    st.sampled_from(
        [
            "200 OK",
            "200 OK",
            "200 OK",
            "200",
            "200 ",
            "503 Busy",
            "204 No",
            "304 Not",
            "101 Up",
            "102 Wait",
            "20 OK",
            "2000 OK",
        ]
    ),
    st.permutations(LINES).map(lambda lines: lines[:2]),
)
@settings(max_examples=400)
def test_a_plain_head_says_what_h11_reads_in_it(version: str, status: str, lines: list[str]) -> None:
    said = "\r\n".join([f"HTTP/{version} {status}", LINES[0], *lines, "", ""]).encode("latin-1")
    if (head := plain_head(said)) is None:
        return
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method=b"POST", target=b"/", headers=[(b"Host", b"x"), (b"Content-Length", b"0")]))
    http.send(h11.EndOfMessage())
    http.receive_data(said + head.length * b"x")
    read = http.next_event()
    assert isinstance(read, h11.Response)
    assert (read.status_code, dict(read.headers)) == (head.status, head.headers)
    assert [type(http.next_event()) for _ in range(2 if head.length else 1)][-1] is h11.EndOfMessage
    assert http.their_state is h11.DONE
    assert not http.trailing_data[0]


def test_almost_all_heads_are_plain_ones() -> None:
    assert plain_head(reply(b"one", headers="Date: today\r\nX-Request-Id: 1\r\n")[:-3]) is not None


class AskIn(Struct, frozen=True):
    question: str


class AskOut(Struct, frozen=True):
    answer: str


async def test_a_proxy_that_the_environment_names_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ask.md.j2").write_text("{% block system %}{% endblock %}{% block user %}{{ question }}{% endblock %}")
    server = Server([reply(b'{"choices": [{"message": {"content": "{\\"answer\\": \\"yes\\"}"}}]}')])
    async with talking_to(server):
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
        options = LlmOptions(base_url="http://model.test/v1", model="small", max_retries=0)
        async with EndpointModel(options, templates=Templates(tmp_path), usage=Usage()) as model:
            assert (await model.ask(Prompt("ask", takes=AskIn, gives=AskOut), AskIn("why?"))).answer == "yes"
    assert server.requests[0].startswith(b"POST http://model.test/v1/chat/completions HTTP/1.1")


@given(st.binary(max_size=200))
def test_nothing_that_a_server_says_is_more_than_an_error_or_a_reply(said: bytes) -> None:
    async def ask() -> None:
        async with talking_to(Server([said + HANG_UP])) as wire:
            with suppress(httpx.RequestError):
                assert isinstance(await wire.post(b"{}", 100), Reply)

    anyio.run(ask)
