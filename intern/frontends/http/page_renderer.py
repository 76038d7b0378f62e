"""The frame of all pages: navigation, headers, the gate's forms, and one way to render a page.

Each section has a module with a function `routes(shell, running)`; `server.py` puts them together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from aiohttp import web

from intern.frontends.http.access import AccessGuard
from intern.frontends.http.rendering import PageTemplates

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

PAGES: Final = (
    ("/", "Home"),
    ("/questions", "Questions"),
    ("/gaps", "Gaps"),
    ("/review", "Review"),
    ("/knowledge", "Knowledge"),
    ("/system", "System"),
)

SECTION_OF: Final = {
    "/ask": "/questions",
    "/outdated": "/questions",
    "/parked": "/review",
    "/topics": "/knowledge",
    "/facts": "/knowledge",
    "/nuggets": "/knowledge",
    "/sources": "/knowledge",
}
"""The section of a page, by the first part of its path, if the two differ."""

STATIC: Final = {"style.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}

_DONE: Final[Mapping[str, str]] = {
    "answer": "Captured in the team's name. It is filed next; then questions like this are answered from it.",
    "dismiss": "Dismissed. The gap comes back when the question is asked again.",
    "approve": "Approved: it is filed next.",
    "reject": "Rejected: nothing is learned from it.",
    "waiting": "Noted. It takes a while; look again in a moment.",
    "done": "Done.",
    "parked": "It was tried and could not be filed again.",
    "retire": "Retired: answers use it no more.",
}
"""The message after a form, by `done` in the address that it leads to."""

_BEARS: Final = web.RequestKey("bears_the_token", bool)


class PageRenderer:
    """Renders pages, and knows the session of a request."""

    def __init__(
        self, gate: AccessGuard, templates: PageTemplates, cookie: str, pages: Sequence[tuple[str, str]] = PAGES
    ) -> None:
        self.gate, self.cookie, self._pages = gate, cookie, pages
        self._templates = templates

    def page(self, request: web.Request, name: str, title: str, status: int = 200, **values: Any) -> web.Response:
        """Render a template. A `problem` in `values` is shown above its content."""
        known, path = self.may_see(request), f"/{request.path.split('/')[1]}"
        body = self._templates.render(
            name,
            title=title,
            here=SECTION_OF.get(path, path),
            nav=self._pages if known else (),
            leaves=known and self.gate.asks_for_token,
            form_token=self.gate.form_token(self.session(request)),
            done=_DONE.get(request.query.get("done", ""), ""),
            **{"problem": "", **values},
        )
        return web.Response(status=status, body=body, content_type="text/html", charset="utf-8")

    def problem_page(self, request: web.Request, status: int, problem: str) -> web.Response:
        """Return a page about a problem. A request with a stranger's host name gets plain text."""
        if not self.gate.is_allowed_host(request.host):
            return web.Response(status=status, text=f"{problem}\n")
        return self.page(request, "problem", "That did not work", status, problem=problem)

    def session(self, request: web.Request) -> str:
        """Return the session of a request's cookie, or an empty text."""
        return request.cookies.get(self.cookie, "")

    def may_see(self, request: web.Request) -> bool:
        """Return whether a request may see pages."""
        if not self.gate.asks_for_token or self.gate.has_session(self.session(request)):
            return True
        if _BEARS not in request:  # a wrong token counts once a request, however often this is called
            token = self.bearer_token(request)
            request[_BEARS] = token is not None and self.gate.accepts_token(token, remote_address(request))
        return request[_BEARS]

    def bearer_token(self, request: web.Request) -> str | None:
        """Return the token that a program sends. It only allows viewing."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return token.strip() if request.method in {"GET", "HEAD"} and scheme.lower() == "bearer" else None


def remote_address(request: web.Request) -> str:
    """Return the address of the sender. Headers of a proxy are ignored: any client could send them and guess on."""
    return request.remote or ""


def query_offset(request: web.Request) -> int:
    """Return the `offset` of the query, 0 if it is none."""
    shown = request.query.get("offset", "0")
    return int(shown) if shown.isascii() and shown.isdigit() and len(shown) < 10 else 0


def form_text(form: Mapping[str, Any], name: str) -> str:
    """Return a text field of a form; empty if it is missing, or a file."""
    value = form.get(name, "")
    return value if isinstance(value, str) else ""


def static_route(name: str) -> web.RouteDef:
    """Return the route of a static file."""
    body = (files("intern.frontends.http") / "static" / name).read_bytes()

    async def give(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type=STATIC[name], charset="utf-8")

    return web.get(f"/static/{name}", give)
