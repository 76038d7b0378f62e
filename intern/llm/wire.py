"""HTTP/1.1 to one endpoint over connections that are kept: what a model call needs, and nothing that it does not.

httpx's own connections cost more CPU than all else that a question does: locks, checkpoints and deadlines around each
read. Here the caller bounds a call in time and calls in number. It follows no redirect and knows no proxy. A reply as
almost all are (a head, and a body of the length that it names) is read by itself; whatever else comes, h11 reads.
"""

from __future__ import annotations

import re
import ssl
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.request import getproxies

import anyio
import h11
import httpx
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

_READ = 64 * 1024  # bytes
_LONGEST_IDLE = 30.0  # seconds; routers forget silent connections without a word
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError, OSError)
_GZIP_OR_ZLIB = 47  # zlib's word for: look at the header
_LONGEST_HEAD = 8 * 1024  # bytes; h11 takes twice as much
_END = b"\r\n\r\n"
_HEAD = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2})(?: [\t -~]*)?\r\n((?:[0-9A-Za-z-]+:[\t -~]*\r\n)*)\r\n")
_LENGTH = re.compile(rb"[0-9]{1,15}")
# What says that the body ends elsewhere, or the connection with it.
_ENDS_OTHERWISE = frozenset({b"transfer-encoding", b"connection", b"upgrade"})
_WITHOUT_BODY = frozenset({204, 304})


class Reply(NamedTuple):
    """A reply as it came."""

    status: int
    retry_after: str | None
    body: bytes
    """Longer than what was asked for at most, if there is more of it."""


def has_proxies() -> bool:
    """Whether the environment names a proxy, for any address."""
    return bool(getproxies().keys() & {"http", "https", "all"})


class Wire:
    """Posts to one address, with the same headers each time; `headers` must not name length, host or connection.

    A kept connection that the other side has closed meanwhile is replaced at once, if nothing of a reply has come.
    """

    def __init__(self, url: httpx.URL, headers: dict[str, str]) -> None:
        self._host = url.raw_host.decode("ascii")
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._is_secure = url.scheme == "https"
        self._target = url.raw_path
        own = {"Host": url.netloc.decode("ascii"), "User-Agent": "intern"}
        self._headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in {**own, **headers}.items()]
        self._request(0)  # holds them against the rules, once
        lines = b"".join(b"%b: %b\r\n" % header for header in self._headers)
        self._begins = b"POST %b HTTP/1.1\r\n%bContent-Length: " % (self._target, lines)
        self._idle: list[_Connection] = []
        self._context: ssl.SSLContext | None = None

    async def post(self, body: bytes, at_most: int, sent: Callable[[], object] = lambda: None) -> Reply:
        """Send a body and read the reply, little more than `at_most` bytes of it. Raises httpx's `RequestError`s.

        `sent` is called once all of the request is on its way.
        """
        request = b"%b%d\r\n\r\n%b" % (self._begins, len(body), body)
        while True:
            kept = self._kept()
            connection = kept or await self._connected()
            try:
                reply = await connection.exchange(_Out(request, len(body), self._request, sent), at_most)
            except _SilentError:
                await connection.close()
                if kept is None:
                    raise
            except BaseException:
                await connection.close()
                raise
            else:
                if connection.is_reusable():
                    self._idle.append(connection)
                else:
                    await connection.close()
                return reply

    def _request(self, length: int) -> h11.Request:
        headers = [*self._headers, (b"Content-Length", b"%d" % length)]
        return h11.Request(method=b"POST", target=self._target, headers=headers)

    async def aclose(self) -> None:
        """Close the connections that nobody uses."""
        while self._idle:
            await self._idle.pop().close()

    def _kept(self) -> _Connection | None:
        """The one that was used last: it is the likeliest to be open."""
        oldest = anyio.current_time() - _LONGEST_IDLE
        return self._idle.pop() if self._idle and self._idle[-1].used_at >= oldest else None

    async def _connected(self) -> _Connection:
        await self.aclose()  # those that are left are too old
        try:
            stream: ByteStream = await anyio.connect_tcp(self._host, self._port)
            return _Connection(await self._secured(stream) if self._is_secure else stream)
        except _GONE as error:
            raise httpx.ConnectError(str(error) or type(error).__name__) from error

    async def _secured(self, stream: ByteStream) -> ByteStream:
        if self._context is None:
            self._context = httpx.create_ssl_context()
            self._context.set_alpn_protocols(["http/1.1"])
        try:
            return await TLSStream.wrap(
                stream, server_side=False, hostname=self._host, ssl_context=self._context, standard_compatible=False
            )
        except BaseException:
            await anyio.aclose_forcefully(stream)
            raise


class _Out(NamedTuple):
    """A request on its way out."""

    request: bytes
    length: int
    """Of its body."""
    parsed: Callable[[int], h11.Request]
    """The same for h11, where that reads the reply."""
    sent: Callable[[], object]


class _SilentError(httpx.RemoteProtocolError):
    """The connection ended before anything of a reply had come."""


class Head(NamedTuple):
    """The head of a reply that ends where it says."""

    status: int
    headers: dict[bytes, bytes]
    length: int
    """Of the body."""


def plain_head(said: bytes) -> Head | None:
    """A head that leaves no doubt how its body ends, and that the connection stays; None for any other, good or bad."""
    found = _HEAD.fullmatch(said)
    if found is None:
        return None
    status, lines = int(found[1]), found[2].split(b"\r\n")[:-1]
    parts = [line.partition(b":") for line in lines]
    headers = {name.lower(): value.strip(b" \t") for name, _, value in parts}
    length = headers.get(b"content-length", b"")
    is_doubtful = len(headers) < len(lines) or not headers.keys().isdisjoint(_ENDS_OTHERWISE)
    if is_doubtful or status in _WITHOUT_BODY or not _LENGTH.fullmatch(length):
        return None
    return Head(status, headers, int(length))


class _Connection:
    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._read = bytearray()  # of the reply at hand
        self._is_done = False
        self.used_at = 0.0

    async def exchange(self, out: _Out, at_most: int) -> Reply:
        self._read, self._is_done = bytearray(), False
        is_cut = await self._sent(out.request)
        if not is_cut:
            out.sent()
        reply = None if is_cut else await self._plain_reply(at_most)
        if reply is None:
            reply = await self._any_reply(out.parsed(out.length), out.length, at_most, is_cut=is_cut)
        self.used_at = anyio.current_time()
        return reply

    def is_reusable(self) -> bool:
        """Whether the next request may go over it: what comes unasked would be taken for the next reply."""
        return self._is_done

    async def _plain_reply(self, at_most: int) -> Reply | None:
        """A reply as almost all are; None where that is not sure: what was read by then is for h11."""
        read = self._read
        while (end := read.find(_END)) < 0:
            if len(read) > _LONGEST_HEAD or not await self._reads_on():
                return None
        begins = end + len(_END)
        head = plain_head(bytes(read[:begins]))
        if head is None:
            return None
        while len(read) - begins < min(head.length, at_most + 1):
            if not await self._reads_on():
                return None
        self._is_done = len(read) == begins + head.length
        return _reply_of(head.status, head.headers, bytes(read[begins : begins + head.length]), at_most)

    async def _reads_on(self) -> bool:
        """False where the other side has ended."""
        try:
            self._read += await self._stream.receive(_READ)
        except anyio.EndOfStream:
            if not self._read:
                raise _SilentError("disconnected without a reply") from None
            return False
        except _GONE as error:
            raise (httpx.ReadError if self._read else _SilentError)(_said(error)) from error
        return True

    async def _any_reply(self, request: h11.Request, length: int, at_most: int, *, is_cut: bool) -> Reply:
        """Read on by the book; h11 hears of the request that was sent."""
        http = h11.Connection(h11.CLIENT)
        try:
            http.send(request)
            http.send(h11.Data(data=bytes(length)))  # as many as were sent
            http.send(h11.EndOfMessage())
            if self._read:
                http.receive_data(bytes(self._read))
            head = await self._head(http, is_cut=is_cut)
            read = await self._body(http, at_most)
        except h11.RemoteProtocolError as error:
            raise httpx.RemoteProtocolError(str(error)) from error
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        is_over = http.our_state is h11.DONE and http.their_state is h11.DONE
        self._is_done = is_over and not http.trailing_data[0]
        return _reply_of(head.status_code, dict(head.headers), read, at_most)

    async def close(self) -> None:
        await anyio.aclose_forcefully(self._stream)

    async def _sent(self, data: bytes) -> bool:
        """Whether the other side would not hear all of it; it may have said why."""
        try:
            await self._stream.send(data)
        except _GONE:
            return True
        return False

    async def _head(self, http: h11.Connection, *, is_cut: bool) -> h11.Response:
        while not isinstance(event := await self._event(http), h11.Response):
            if not isinstance(event, h11.InformationalResponse):
                raise _SilentError("the request was cut off" if is_cut else "disconnected without a reply")
        return event

    async def _body(self, http: h11.Connection, at_most: int) -> bytes:
        read = bytearray()
        while isinstance(event := await self._event(http), h11.Data):
            read += event.data
            if len(read) > at_most:
                break
        return bytes(read)

    async def _event(self, http: h11.Connection) -> h11.Event:
        while (event := http.next_event()) is h11.NEED_DATA:
            is_silent = http.their_state is h11.SEND_RESPONSE and not http.trailing_data[0]
            try:
                data = await self._stream.receive(_READ)
            except anyio.EndOfStream:
                data = b""
            except _GONE as error:
                raise (_SilentError if is_silent else httpx.ReadError)(_said(error)) from error
            if is_silent and not data:
                raise _SilentError("disconnected without a reply")
            http.receive_data(data)
        assert not isinstance(event, type), "we ask for no other protocol"
        return event


def _reply_of(status: int, headers: Mapping[bytes, bytes], body: bytes, at_most: int) -> Reply:
    retry_after = headers.get(b"retry-after")
    return Reply(
        status,
        None if retry_after is None else retry_after.decode("latin-1"),
        _plain(body, headers.get(b"content-encoding", b""), at_most),
    )


def _said(error: Exception) -> str:
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__


def _plain(body: bytes, encoding: bytes, at_most: int) -> bytes:
    """A body as it was before somebody packed it, which nobody asked for; little more than `at_most` bytes of it."""
    match encoding.strip().lower():
        case b"" | b"identity":
            return body
        case b"gzip" | b"x-gzip" | b"deflate":
            try:
                return zlib.decompressobj(_GZIP_OR_ZLIB).decompress(body, at_most + 1)
            except zlib.error as error:
                raise httpx.DecodingError(str(error)) from error
        case _:
            raise httpx.DecodingError("it is packed in a way that nobody asked for")
