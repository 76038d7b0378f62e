"""The status page's web server, in the bot's own process. asyncio only, for aiohttp is.

Every request goes through the same gate; every reply carries the same headers. Pages need no scripts, and none would
run. A page that fails costs the bot nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from errno import EADDRNOTAVAIL, errorcode
from importlib.resources import files
from socket import gaierror
from typing import Any, Final, Literal, TypeVar, cast

import msgspec
from aiohttp import web
from anyio.to_thread import run_sync

from intern import __version__
from intern.core.errors import ConfigError, InternError
from intern.core.ids import FactId, MessageId, QAId
from intern.core.log import get_logger
from intern.frontends.http.guarding import SESSION_SECONDS, Gate
from intern.frontends.http.metrics import Metrics
from intern.frontends.http.rendering import Templates
from intern.runtime.parts import Beside
from intern.service import PageOptions, Settings
from intern.service.monitoring import CALLED
from intern.service.running import Done, Running

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

MAX_FORM_BYTES = 64 * 1024
MAX_QUESTION_CHARS = 6_000
_CLOSE_SECONDS = 1.0  # for requests in work, once the bot has ended

_log = get_logger(__name__)

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

PAGES: Final = (
    ("/", "Overview"),
    ("/unanswered", "Unanswered"),
    ("/answers", "Answers"),
    ("/outdated", "Outdated"),
    ("/calibration", "Calibration"),
    ("/review", "Review"),
    ("/parked", "Parked"),
    ("/topics", "Topics"),
    ("/facts", "Facts"),
    ("/sources", "Sources"),
    ("/ask", "Ask"),
)

_OPEN: Final = frozenset({"/healthz", "/readyz", "/login", "/static/style.css", "/static/icon.svg"})
"""Paths that need no token."""

_BEARS: Final = web.RequestKey("bears_the_token", bool)

_SAID: Final[Mapping[str, str]] = {
    "approve": "Approved: it is filed next.",
    "reject": "Rejected: nothing is learned from it.",
    "waiting": "Noted. It takes a while; look again in a moment.",
    "done": "Done.",
    "parked": "It was tried and is parked again.",
}


@asynccontextmanager
async def serving(options: PageOptions, running: Running, *, metrics: Metrics | None = None) -> AsyncGenerator[str]:
    """Serve the page until the block is left; give its address. Raises ConfigError where the port is not free."""
    pages = _Pages(options, running, metrics).application()
    runner = web.AppRunner(pages, access_log=None, handle_signals=False, shutdown_timeout=_CLOSE_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, options.host, options.port).start()
        except OSError as error:
            raise _not_served(options, error) from error
        address = _address(options, runner)
        _log.info("page_served", address=address)
        yield address
    finally:
        await runner.cleanup()


def _not_served(options: PageOptions, error: OSError) -> ConfigError:
    # asyncio's own words would name host and port once more.
    number = error.errno or 0
    reason = os.strerror(number) if number in errorcode else error.strerror or str(error)
    nowhere = isinstance(error, gaierror) or number == EADDRNOTAVAIL
    name = "page.host" if nowhere else "page.port"
    return ConfigError(
        f"{name}: the status page cannot be served at {options.host}:{options.port} ({reason.lower()});"
        f" choose another {name}, or set page.enabled = false"
    )


def _address(options: PageOptions, runner: web.AppRunner) -> str:
    port = runner.addresses[0][1]
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{host}:{port}/"


class _Pages:
    """The routes."""

    def __init__(self, options: PageOptions, running: Running, metrics: Metrics | None) -> None:
        self._running, self._metrics = running, metrics
        self._templates = Templates(running.clock.now)
        self._gate = Gate(options, now=asyncio.get_running_loop().time)
        # Cookies are not told apart by port, and several bots may have a page each.
        self._cookie = f"intern_{options.port}"
        self._asking = asyncio.Lock()

    def application(self) -> web.Application:
        """Return all routes, behind the gate."""
        running, show = self._running, self._shows
        app = web.Application(middlewares=[self._headed, self._guarded], client_max_size=MAX_FORM_BYTES)
        app.add_routes(
            [
                web.get("/", show("overview", "Overview", lambda _: running.overview())),
                web.get("/healthz", self._health),
                web.get("/readyz", self._health),
                web.get("/metrics", self._tell_metrics),
                web.get("/unanswered", show("unanswered", "Unanswered questions", lambda _: running.unanswered())),
                web.get("/answers", show("answers", "Answers and silences", lambda r: running.answers(_offset(r)))),
                web.get("/answers/{question_id}", self._answer),
                web.get("/outdated", show("outdated", "Outdated answers", lambda _: running.outdated())),
                web.get("/calibration", show("calibration", "How sure it must be", lambda _: running.calibration())),
                web.get("/review", self._undecided),
                web.post("/review", self._decide),
                web.get("/parked", self._undecided),
                web.post("/parked", self._retry),
                web.get("/topics", show("topics", "Topics", lambda _: running.topics())),
                web.get("/topics/{name}", self._topic),
                web.get("/facts", show("facts", "Facts", lambda r: running.facts(_offset(r)))),
                web.get("/facts/{id}", show("fact", "A fact", lambda r: running.fact(FactId(r.match_info["id"])))),
                web.get("/nuggets", show("nuggets", "Nuggets", lambda r: running.nuggets(_offset(r)))),
                web.get("/sources", show("sources", "Sources", lambda _: running.sources())),
                web.get("/ask", self._ask),
                web.post("/ask", self._asked),
                web.get("/login", self._login),
                web.post("/login", self._logged_in),
                web.post("/logout", self._logged_out),
                web.get("/static/style.css", _static("style.css", "text/css")),
                web.get("/static/icon.svg", _static("icon.svg", "image/svg+xml")),
            ]
        )
        return app

    # The gate.

    @web.middleware
    async def _headed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Give every reply the same headers, errors included."""
        try:
            response = await handler(request)
        except web.HTTPException as refusal:
            if refusal.status < 400:
                refusal.headers.update(HEADERS)
                raise
            response = self._problem(request, refusal.status, f"{refusal.reason}.")
        except InternError as error:
            response = self._problem(request, 404 if isinstance(error, ConfigError) else 503, f"{error}.")
        except Exception:  # noqa: BLE001 a page must not end the bot
            _log.exception("page_failed", path=request.path[:200])
            response = self._problem(request, 500, "This page failed; the log says more.")
        response.headers.update(HEADERS)
        return response

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse strange hosts, requests without the token, and forms of other sites."""
        if not self._gate.lets_host(request.host):
            raise web.HTTPMisdirectedRequest(reason="This page is served under names of its own machine only")
        if request.path not in _OPEN and not self._is_known(request):
            if self._bearer(request) is not None and self._gate.is_weary(_remote(request)):
                raise web.HTTPTooManyRequests(reason="Too many wrong tokens; wait a minute")
            if request.method in {"GET", "HEAD"} and request.path != "/metrics":
                raise web.HTTPSeeOther("/login")
            raise web.HTTPUnauthorized(reason="Log in first, or send the token")
        if request.method == "POST":
            form = await request.post()
            token = form.get("form_token", "")
            if not isinstance(token, str) or not self._gate.is_own_form(self._session(request), token, request.headers):
                raise web.HTTPForbidden(reason="This form is too old, or not ours; load the page again")
        return await handler(request)

    def _session(self, request: web.Request) -> str:
        return request.cookies.get(self._cookie, "")

    def _is_known(self, request: web.Request) -> bool:
        if not self._gate.asks_for_token or self._gate.knows(self._session(request)):
            return True
        if _BEARS not in request:  # a wrong token counts once a request, however often that is asked
            token = self._bearer(request)
            request[_BEARS] = token is not None and self._gate.takes(token, _remote(request))
        return request[_BEARS]

    def _bearer(self, request: web.Request) -> str | None:
        """Return the token that a program shows. It may only look."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return token.strip() if request.method in {"GET", "HEAD"} and scheme.lower() == "bearer" else None

    # What is shown.

    async def _health(self, request: web.Request) -> web.Response:
        ready_counts = request.path == "/readyz" or "ready" in request.query
        # That this is said at all shows that the loop turns.
        # Liveness must not touch the disk: a slow disk is no reason to be killed.
        health = await self._running.checks.health() if ready_counts else self._running.checks.known()
        told: dict[str, object] = {
            "live": True,
            "ready": health.ready,
            # Without the details: these may name paths, and anybody may ask.
            "checks": {check.name: check.ok for check in health.checks},
            "notes": health.notes,
        }
        if not ready_counts:  # so that old results are recognised
            ago = health.looked_seconds_ago
            told["looked_seconds_ago"] = None if ago is None else round(ago, 1)
        status = 200 if health.ready or not ready_counts else 503
        return web.Response(status=status, body=msgspec.json.encode(told), content_type="application/json")

    async def _tell_metrics(self, _: web.Request) -> web.Response:
        if self._metrics is None:
            raise web.HTTPNotFound
        body, kind = await run_sync(self._metrics.text, await self._running.gauges())
        return web.Response(body=body, headers={"Content-Type": kind})

    def _shows(self, name: str, title: str, read: Callable[[web.Request], Awaitable[object]]) -> Handler:
        """Return the handler of a page that only shows a view."""

        async def show(request: web.Request) -> web.Response:
            return self._page(request, name, title, view=await read(request))

        return show

    async def _answer(self, request: web.Request) -> web.Response:
        view = await self._running.answer(MessageId(request.match_info["question_id"]))
        return self._page(request, "answer", f"Question {view.trace.question_id}", view=view)

    async def _undecided(self, request: web.Request, problem: str = "", status: int = 200) -> web.Response:
        name, done = request.path[1:], _SAID.get(request.query.get("done", ""), "")
        view = await (self._running.waiting() if name == "review" else self._running.parked())
        return self._page(request, name, name.capitalize(), status, view=view, done=done, problem=problem)

    async def _decide(self, request: web.Request) -> web.Response:
        form = await request.post()
        action, qa_id = _text(form, "action"), _text(form, "qa_id")
        if action not in {"approve", "reject"}:
            raise web.HTTPBadRequest(reason="Say approve or reject")
        try:
            done = await self._running.review(cast("Literal['approve', 'reject']", action), QAId(qa_id))
        except ConfigError as error:
            return await self._undecided(request, f"{error}.", 409)
        raise web.HTTPSeeOther(f"/review?done={action if done == 'done' else done}")

    async def _retry(self, request: web.Request) -> web.Response:
        qa_id = _text(await request.post(), "qa_id")
        try:
            done: Done = await self._running.retry(QAId(qa_id))
        except ConfigError as error:
            return await self._undecided(request, f"{error}.", 409)
        raise web.HTTPSeeOther(f"/parked?done={done}")

    async def _topic(self, request: web.Request) -> web.Response:
        view = await self._running.topic(request.match_info["name"])
        return self._page(request, "topic", f"Topic {view.topic.name}", view=view)

    async def _ask(self, request: web.Request) -> web.Response:
        return self._page(request, "ask", "Ask", view=None, problem="")

    async def _asked(self, request: web.Request) -> web.Response:
        question = _text(await request.post(), "question").strip()
        if not question or len(question) > MAX_QUESTION_CHARS:
            problem = f"Write a question of at most {MAX_QUESTION_CHARS} characters."
            return self._page(request, "ask", "Ask", 400, view=None, problem=problem)
        if self._asking.locked():
            problem = "Another question is in work here; ask again once it is answered."
            return self._page(request, "ask", "Ask", 429, view=None, problem=problem)
        async with self._asking:
            return self._page(request, "ask", "Ask", view=await self._running.ask(question), problem="")

    # Coming and going.

    async def _login(self, request: web.Request) -> web.Response:
        if self._is_known(request):
            raise web.HTTPSeeOther("/")
        return self._page(request, "login", "Log in", problem="")

    async def _logged_in(self, request: web.Request) -> web.Response:
        session = self._gate.log_in(_text(await request.post(), "token").strip(), _remote(request))
        if session is None:
            weary = self._gate.is_weary(_remote(request))
            _log.warning("page_login_refused", remote=request.remote)
            problem = "Too many wrong tokens; wait a minute." if weary else "That is not the token."
            return self._page(request, "login", "Log in", 429 if weary else 401, problem=problem)
        response = web.Response(status=303, headers={"Location": "/"})
        secure, lasts = _came_encrypted(request), int(SESSION_SECONDS)
        response.set_cookie(self._cookie, session, max_age=lasts, httponly=True, samesite="Strict", secure=secure)
        return response

    async def _logged_out(self, request: web.Request) -> web.Response:
        self._gate.log_out(self._session(request))
        response = web.Response(status=303, headers={"Location": "/"})
        response.del_cookie(self._cookie, secure=_came_encrypted(request))
        return response

    # Pages.

    def _page(self, request: web.Request, name: str, title: str, status: int = 200, **values: Any) -> web.Response:
        known = self._is_known(request)
        body = self._templates.render(
            name,
            title=title,
            here=f"/{request.path.split('/')[1]}",
            nav=PAGES if known else (),
            leaves=known and self._gate.asks_for_token,
            form_token=self._gate.form_token(self._session(request)),
            **values,
        )
        return web.Response(status=status, body=body, content_type="text/html", charset="utf-8")

    def _problem(self, request: web.Request, status: int, problem: str) -> web.Response:
        if not self._gate.lets_host(request.host):
            return web.Response(status=status, text=f"{problem}\n")
        return self._page(request, "problem", "That did not work", status, problem=problem)


def _remote(request: web.Request) -> str:
    # A proxy's headers are ignored: any client could send them, and go on guessing.
    return request.remote or ""


def _came_encrypted(request: web.Request) -> bool:
    """Whether a browser speaks HTTPS with us or with a proxy. Anybody may say so: it only makes a cookie stricter."""
    said, _, _ = request.headers.get("X-Forwarded-Proto", "").partition(",")
    return request.secure or said.strip().lower() == "https"


def _offset(request: web.Request) -> int:
    shown = request.query.get("offset", "0")
    return int(shown) if shown.isascii() and shown.isdigit() and len(shown) < 10 else 0


def _text(form: Mapping[str, Any], name: str) -> str:
    value = form.get(name, "")
    return value if isinstance(value, str) else ""


def _static(name: str, kind: str) -> Handler:
    body = (files("intern.frontends.http") / "static" / name).read_bytes()

    async def give(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=kind, charset="utf-8")

    return give


def metrics_of(settings: Settings) -> Metrics:
    """Make the counters of a bot with these settings."""
    return Metrics(prompts=CALLED, version=__version__, currency=settings.llm.currency)


def page_beside(settings: Settings) -> Beside:
    """Return the page that the settings ask for."""
    metrics = metrics_of(settings)

    @asynccontextmanager
    async def served(running: Running) -> AsyncGenerator[None]:
        async with serving(settings.page, running, metrics=metrics):
            yield

    return Beside(metrics, served)
