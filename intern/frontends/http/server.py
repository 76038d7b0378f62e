"""The status page's web server, in the bot's own process. asyncio only, as aiohttp is.

Every request goes through the same gate; every reply carries the same headers. Pages work without scripts; one of our
own refreshes figures and filters lists. A page that fails costs the bot nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from errno import EADDRNOTAVAIL, errorcode
from platform import python_version
from socket import gaierror
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from anyio.to_thread import run_sync

from intern import __version__
from intern.core.errors import ConfigError, InternError
from intern.core.ids import parse_position
from intern.core.log import get_logger
from intern.frontends.http import knowledge, questions
from intern.frontends.http.access import SESSION_SECONDS, AccessGuard
from intern.frontends.http.metrics import Metrics
from intern.frontends.http.page_renderer import (
    HEADERS,
    PAGES,
    STATIC,
    Handler,
    PageRenderer,
    form_text,
    remote_address,
    static_route,
)
from intern.frontends.http.rendering import PageTemplates
from intern.runtime.resources import FrontEndHooks
from intern.service import PageOptions, Settings
from intern.service.calibration import check_calibration
from intern.service.embedding import embedding_model
from intern.service.figures import PERIODS
from intern.service.hosting_state import HostingState
from intern.service.metrics import CALLED
from intern.service.status_page import StatusPage

MAX_FORM_BYTES = 64 * 1024
_CLOSE_SECONDS = 1.0  # for requests in work, once the bot has ended

_log = get_logger(__name__)

_DAYS = 14  # in the table of costs
_GAPS = 5  # on the front page
_MOST_WANTED = 2_000  # characters of an address that a login leads back to

_OPEN: Final = frozenset({"/healthz", "/readyz", "/login", *(f"/static/{name}" for name in STATIC)})
"""Paths that need no token."""


@asynccontextmanager
async def serve_pages(
    options: PageOptions, running: StatusPage | HostingState, *, metrics: Metrics | None = None
) -> AsyncGenerator[str]:
    """Serve the page until the block is left; yield its address. Raises ConfigError if the port is not free."""
    pages = _PageServer(options, running, metrics).build_application()
    runner = web.AppRunner(pages, access_log=None, handle_signals=False, shutdown_timeout=_CLOSE_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, options.host, options.port).start()
        except OSError as error:
            raise _serving_error(options, error) from error
        address = _page_address(options, runner)
        _log.info("page_served", address=address)
        yield address
    finally:
        await runner.cleanup()


def _serving_error(options: PageOptions, error: OSError) -> ConfigError:
    # asyncio's own message would name host and port once more.
    number = error.errno or 0
    reason = os.strerror(number) if number in errorcode else error.strerror or str(error)
    nowhere = isinstance(error, gaierror) or number == EADDRNOTAVAIL
    name = "page.host" if nowhere else "page.port"
    return ConfigError(
        f"{name}: the status page cannot be served at {options.host}:{options.port} ({reason.lower()});"
        f" choose another {name}, or set page.enabled = false"
    )


def _page_address(options: PageOptions, runner: web.AppRunner) -> str:
    port = runner.addresses[0][1]
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{port}/"


class _PageServer:
    """The routes that belong to no section, and the access check before all routes."""

    def __init__(self, options: PageOptions, running: StatusPage | HostingState, metrics: Metrics | None) -> None:
        self._running, self._metrics = running, metrics
        self._gate = AccessGuard(options, now=asyncio.get_running_loop().time)
        # Browsers share cookies between ports, and several bots may have a page each.
        self._shell = PageRenderer(
            self._gate,
            PageTemplates(running.clock.now),
            f"intern_{options.port}",
            PAGES if isinstance(running, StatusPage) else (),
        )

    def build_application(self) -> web.Application:
        """Return all routes, behind the gate."""
        shell, running = self._shell, self._running
        app = web.Application(middlewares=[self._add_headers, self._check_access], client_max_size=MAX_FORM_BYTES)
        app.add_routes(
            [
                *(
                    _section_routes(shell, running)
                    if isinstance(running, StatusPage)
                    else _community_routes(shell, running)
                ),
                web.get("/healthz", self._show_health),
                web.get("/readyz", self._show_health),
                web.get("/metrics", self._show_metrics),
                web.get("/login", self._show_login),
                web.post("/login", self._log_in),
                web.post("/logout", self._log_out),
                *map(static_route, STATIC),
            ]
        )
        return app

    # The gate.

    @web.middleware
    async def _add_headers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Give every reply the same headers, errors included."""
        try:
            response = await handler(request)
        except web.HTTPException as refusal:
            if refusal.status < 400:
                refusal.headers.update(HEADERS)
                raise
            response = self._shell.problem_page(request, refusal.status, f"{refusal.reason}.")
        except InternError as error:
            response = self._shell.problem_page(request, 404 if isinstance(error, ConfigError) else 503, f"{error}.")
        except Exception:  # noqa: BLE001 a page must not end the bot
            _log.exception("page_failed", path=request.path[:200])
            response = self._shell.problem_page(request, 500, "This page failed; the log says more.")
        response.headers.update(HEADERS)
        return response

    @web.middleware
    async def _check_access(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse strange hosts, requests without the token, and forms of other sites."""
        shell = self._shell
        if not self._gate.is_allowed_host(request.host):
            raise web.HTTPMisdirectedRequest(reason="This page is served under names of its own machine only")
        if request.path not in _OPEN and not shell.may_see(request):
            if shell.bearer_token(request) is not None and self._gate.is_locked_out(remote_address(request)):
                raise web.HTTPTooManyRequests(reason="Too many wrong tokens; wait a minute")
            if request.method in {"GET", "HEAD"} and request.path != "/metrics":
                raise web.HTTPSeeOther(_login_address(request))
            raise web.HTTPUnauthorized(reason="Log in first, or send the token")
        if request.method == "POST":
            form = await request.post()
            token = form.get("form_token", "")
            session = shell.session(request)
            if not isinstance(token, str) or not self._gate.is_own_form(session, token, request.headers):
                raise web.HTTPForbidden(reason="This form is too old, or not ours; load the page again")
        if request.path not in _OPEN:
            await self._running.renew()
        return await handler(request)

    # The views.

    async def _show_health(self, request: web.Request) -> web.Response:
        ready_counts = request.path == "/readyz" or "ready" in request.query
        # This reply itself shows that the event loop runs.
        # Liveness must not touch the disk: a slow disk is no reason to kill the process.
        health = await self._running.checks.health() if ready_counts else self._running.checks.latest_health()
        told: dict[str, object] = {
            "live": True,
            "ready": health.ready,
            # Without the details: these may name paths, and anyone may ask.
            "checks": {check.name: check.ok for check in health.checks},
            "notes": health.notes,
        }
        if not ready_counts:  # so that old results are recognised
            ago = health.looked_seconds_ago
            told["looked_seconds_ago"] = None if ago is None else round(ago, 1)
        status = 200 if health.ready or not ready_counts else 503
        return web.Response(status=status, body=msgspec.json.encode(told), content_type="application/json")

    async def _show_metrics(self, _: web.Request) -> web.Response:
        if self._metrics is None:
            raise web.HTTPNotFound
        body, kind = await run_sync(self._metrics.text, await self._running.gauges())
        return web.Response(body=body, headers={"Content-Type": kind})

    # Login and logout.

    async def _show_login(self, request: web.Request) -> web.Response:
        wanted = _own_path(request.query.get("next", ""))
        if self._shell.may_see(request):
            raise web.HTTPSeeOther(wanted)
        return self._shell.page(request, "login", "Log in", wanted=wanted)

    async def _log_in(self, request: web.Request) -> web.Response:
        form = await request.post()
        wanted = _own_path(form_text(form, "next"))
        session = self._gate.log_in(form_text(form, "token").strip(), remote_address(request))
        if session is None:
            weary = self._gate.is_locked_out(remote_address(request))
            _log.warning("page_login_refused", remote=request.remote)
            problem = "Too many wrong tokens; wait a minute." if weary else "That is not the token."
            status = 429 if weary else 401
            return self._shell.page(request, "login", "Log in", status, problem=problem, wanted=wanted)
        response = web.Response(status=303, headers={"Location": wanted})
        secure, lasts, name = _is_encrypted(request), int(SESSION_SECONDS), self._shell.cookie
        response.set_cookie(name, session, max_age=lasts, httponly=True, samesite="Strict", secure=secure)
        return response

    async def _log_out(self, request: web.Request) -> web.Response:
        self._gate.log_out(self._shell.session(request))
        response = web.Response(status=303, headers={"Location": "/"})
        response.del_cookie(self._shell.cookie, secure=_is_encrypted(request))
        return response


def _section_routes(shell: PageRenderer, running: StatusPage) -> Iterable[web.RouteDef]:
    async def home(request: web.Request) -> web.Response:
        addresses = {f"/?days={days}" if days != PERIODS[0] else "/": days for days in PERIODS}
        wanted = request.query.get("days", "")
        here, days = next((each for each in addresses.items() if str(each[1]) == wanted), ("/", PERIODS[0]))
        gaps, health = await running.questions.gaps(_GAPS), await running.checks.health()
        shown: dict[str, Any] = {
            "checks": [
                check for check in sorted(health.checks, key=lambda check: check.ok) if not check.ok or check.note
            ],
            "needs": await running.figures.count_needs(gaps.total),
            "figures": await running.figures.read_period(days),
            "gaps": gaps.groups,
            "periods": [(address, f"{each} days") for address, each in addresses.items()],
            "period": here,
        }
        return shell.page(request, "home", "Home", **shown)

    async def system(request: web.Request) -> web.Response:
        rest, usage = running.checkpoints.count_unfinished(), await running.figures.read_usage(_DAYS)
        llm, spent, sources = running.settings.llm, await running.read_spent(), await run_sync(running.sources.list_all)
        shown: dict[str, Any] = {
            "began": running.began,
            "health": await running.checks.health(),
            "last_message_at": running.overheard.last_message_at,
            "unhandled": rest,
            "oldest_at": None if rest.oldest is None else parse_position(rest.oldest).time,
            "streams": running.fill.read_fills(),
            "options": llm,
            "tokens": spent.tokens,
            "cost": spent.cost if spent.cost or running.settings.priced else None,
            "usage": usage,
            "days": _DAYS,
            "versions": {
                "intern": __version__,
                "Python": python_version(),
                "model": "offline rules" if llm.kind == "offline" else llm.model,
                "embeddings": await run_sync(embedding_model, running.settings) or "none: search compares words",
            },
            "stored": await running.figures.count_stored(),
            "left_out": [source for source in sources if source.state == "skipped"],
            "calibration": await check_calibration(running.stores.db, running.settings),
        }
        return shell.page(request, "system", "System", **shown)

    yield web.get("/", home)
    yield web.get("/system", system)
    yield from questions.routes(shell, running)
    yield from knowledge.routes(shell, running)


def _community_routes(shell: PageRenderer, hosted: HostingState) -> Iterable[web.RouteDef]:
    async def communities(request: web.Request) -> web.Response:
        listed = await hosted.list_communities()
        shown: dict[str, Any] = {
            "version": __version__,
            "began": hosted.began,
            "health": await hosted.checks.health(),
            "last_message_at": hosted.last_message_at,
            "shards": sorted(hosted.shards()),
            "shard_count": hosted.shard_count(),
            "communities": listed,
            "numbers": Counter(each.known.state for each in listed) + Counter(each.work for each in listed),
        }
        return shell.page(request, "hosted", "Communities", **shown)

    yield web.get("/", communities)


def _login_address(request: web.Request) -> str:
    """Return the address of the login, which leads back to the requested page."""
    wanted = _own_path(request.path_qs)
    return "/login" if wanted == "/" else f"/login?{urlencode({'next': wanted})}"


def _own_path(wanted: str) -> str:
    """Return a path of this page; `/` for the address of any other."""
    # Browsers read "//host", "/\\host" and "/<tab>/host" as the address of a stranger.
    is_own = wanted.startswith("/") and wanted[1:2] not in {"/", "\\"} and wanted.isascii() and wanted.isprintable()
    return wanted if is_own and len(wanted) < _MOST_WANTED else "/"


def _is_encrypted(request: web.Request) -> bool:
    """Return whether a browser speaks HTTPS with us or a proxy. Anyone can claim it: it only restricts a cookie."""
    said, _, _ = request.headers.get("X-Forwarded-Proto", "").partition(",")
    return request.secure or said.strip().lower() == "https"


def create_metrics(settings: Settings) -> Metrics:
    """Make the counters of a bot with these settings."""
    return Metrics(prompts=CALLED, version=__version__, currency=settings.llm.currency)


def create_page_service(settings: Settings, tell: Callable[[str], object] = lambda _: None) -> FrontEndHooks:
    """Return the page that the settings ask for; `tell` gets its address."""
    metrics = create_metrics(settings)

    @asynccontextmanager
    async def serve_beside(running: StatusPage | HostingState) -> AsyncGenerator[None]:
        async with serve_pages(settings.page, running, metrics=metrics) as address:
            tell(address)
            yield

    return FrontEndHooks(metrics, serve_beside)
