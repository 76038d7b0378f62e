"""Web sites on a real socket, for tests: all names lead to it, and it serves the pages of the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from intern.sources.addresses import DialPolicy, GuardedBackend
from intern.sources.fetching import PageFetcher
from intern.sources.options import WebOptions

ADDRESS = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Served:
    """One answer."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    stalls: bool = False
    endless: bool = False


@dataclass(frozen=True)
class Asked:
    path: str
    headers: Mapping[str, str]


def page(text: str, title: str = "A page", **headers: str) -> Served:
    body = f"<html><head><title>{title}</title></head><body><main><p>{text}</p></main></body></html>"
    return Served(body=body.encode(), headers={name.replace("_", "-"): value for name, value in headers.items()})


def redirect(to: str, status: int = 302) -> Served:
    return Served(status=status, headers={"Location": to})


class SiteDouble:
    """The sites. Pages may be added, and records read, from any thread. Keys are `path` or `host/path`."""

    def __init__(self) -> None:
        self.pages: dict[str, Served] = {}
        self.requests: list[Asked] = []
        self.port = 0
        self.closing = asyncio.Event()

    def url(self, path: str, host: str = "docs.example.org") -> str:
        return f"http://{host}:{self.port}{path}"

    @property
    def asked(self) -> list[str]:
        """Return the requested paths, without robots.txt."""
        return [request.path for request in self.requests if request.path != "/robots.txt"]

    @property
    def policy(self) -> DialPolicy:
        return DialPolicy(also=[(ADDRESS, self.port)])

    def fetcher(self, **options: object) -> PageFetcher:
        async def resolve(host: str, port: int) -> Sequence[str]:
            del host, port
            return [ADDRESS]

        made = WebOptions(**{"pause_seconds": 0.0, "timeout_seconds": 5.0, **options})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        return PageFetcher(made, policy=self.policy, backend=GuardedBackend(self.policy, resolve=resolve))

    async def serve(self, http: web.Request) -> web.StreamResponse:
        self.requests.append(Asked(http.path_qs, dict(http.headers)))
        host = http.host.partition(":")[0]
        served = self.pages.get(f"{host}{http.path_qs}", self.pages.get(http.path_qs, Served(status=404)))
        headers = {"Content-Type": "text/html; charset=utf-8", **served.headers}
        etag = headers.get("ETag")
        dated = headers.get("Last-Modified")
        if served.status == 200 and (
            (etag and http.headers.get("If-None-Match") == etag)
            or (dated and http.headers.get("If-Modified-Since") == dated)
        ):
            return web.Response(status=304)
        if served.stalls:
            await self.closing.wait()
        if not served.endless:
            return web.Response(status=served.status, body=served.body, headers=headers)
        endless = web.StreamResponse(status=served.status, headers=headers)
        await endless.prepare(http)
        while not self.closing.is_set():
            try:
                await endless.write(b"x" * 65_536)
            except ConnectionError:
                break
        return endless


@contextmanager
def site_double() -> Generator[SiteDouble]:
    """Run the double on a thread of its own, until the block ends."""
    double = SiteDouble()
    up = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", double.serve)
        runner = web.AppRunner(app, shutdown_timeout=1, auto_decompress=False)
        await runner.setup()
        site = web.TCPSite(runner, ADDRESS, 0)
        await site.start()
        double.port = runner.addresses[0][1]
        loops.append(asyncio.get_running_loop())
        up.set()
        await double.closing.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="site double", daemon=True)
    thread.start()
    assert up.wait(10), "the site double did not come up"
    try:
        yield double
    finally:
        loops[0].call_soon_threadsafe(double.closing.set)
        thread.join(10)
        assert not thread.is_alive(), "the site double did not close"
