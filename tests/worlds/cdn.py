"""Discord's file host on a real socket, for tests: it serves, expires, redirects, stalls, lies and never ends.

`with cdn_double() as cdn:` runs it on a thread of its own, so tests on asyncio and on trio use it alike.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import web

from intern.core.messages import Attachment


@dataclass(frozen=True, kw_only=True)
class Served:
    """The content of a path, and the faults of serving it."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    endless: bool = False
    """Send zeros without end, without a length."""
    stalls: bool = False
    """Send nothing until the double closes."""
    breaks: bool = False
    """Break the connection in the middle of the body."""


class CdnDouble:
    """The host. Its content may be changed, and its requests read, from any thread."""

    def __init__(self) -> None:
        self.host = ""
        self.files: dict[str, Served] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.sent = 0
        """The number of bytes of endless bodies."""
        self.was_asked = threading.Event()
        self.closing = asyncio.Event()

    def attachment(
        self, name: str, served: Served | bytes | None = None, *, content_type: str = "image/png", size: int = 1000
    ) -> Attachment:
        """Return a file as a message names it; None leaves the present content as it is."""
        if served is not None:
            self.files[f"/{name}"] = served if isinstance(served, Served) else Served(body=served)
        return Attachment(
            id=str(sum(map(ord, name))),
            filename=name,
            url=f"{self.host}/{name}?ex=1&hm=secret",
            size=size,
            content_type=content_type,
        )

    async def serve(self, http: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.asked.append(http.path)
        self.headers.append(dict(http.headers))
        self.was_asked.set()
        served = self.files.get(http.path, Served(status=404))
        if served.stalls:
            await self.closing.wait()
        if served.endless:
            return await self._endless(http)
        if served.breaks:
            length = {"Content-Length": str(len(served.body))}
            half = web.StreamResponse(status=served.status, headers={**served.headers, **length})
            await half.prepare(http)
            await half.write(served.body[: len(served.body) // 2])
            assert http.transport is not None
            http.transport.abort()
            return half
        return web.Response(status=served.status, body=served.body, headers=dict(served.headers))

    async def _endless(self, http: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "image/png"})
        await stream.prepare(http)
        with suppress(ConnectionError):
            while not self.closing.is_set():
                await stream.write(bytes(65_536))
                self.sent += 65_536
        return stream


@contextmanager
def cdn_double() -> Generator[CdnDouble]:
    """Run the double on a thread of its own, until the block ends."""
    up = threading.Event()
    shared: list[tuple[CdnDouble, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        double, leave = CdnDouble(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/{path:.*}", double.serve)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            double.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
            shared.append((double, asyncio.get_running_loop(), leave))
            up.set()
            await leave.wait()
        finally:
            double.closing.set()
            await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="cdn double", daemon=True)
    thread.start()
    assert up.wait(10), "the CDN double did not come up"
    double, loop, leave = shared[0]
    try:
        yield double
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join(10)
        assert not thread.is_alive(), "the CDN double did not close"
