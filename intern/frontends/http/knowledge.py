"""The sections Review and Knowledge: what waits for the team, and what the bot knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, cast, get_args

from aiohttp import web

from intern.core.errors import ConfigError
from intern.core.ids import FactId, MessageId, NuggetId, QAId
from intern.core.records import FactCategory, NuggetStatus
from intern.frontends.http.rendering import spoken
from intern.frontends.http.shell import Shell, offset, text
from intern.service.browsing import Held, Kind, Order, SourceStates
from intern.service.running import Running

_SAID: Final[Mapping[str, str]] = {
    "approve": "Approved: it is filed next.",
    "reject": "Rejected: nothing is learned from it.",
    "waiting": "Noted. It takes a while; look again in a moment.",
    "done": "Done.",
    "parked": "It was tried and could not be filed again.",
    "retire": "Retired: answers use it no more.",
}
_TEXT = "text-"
"""What the name of a field with a message's text begins with."""


def routes(shell: Shell, running: Running) -> list[web.RouteDef]:
    """Return the routes of both sections."""
    return [each for part in (_review, _parked, _topics, _sources) for each in part(shell, running)]


def _review(shell: Shell, running: Running) -> list[web.RouteDef]:
    reviewing = running.reviewing

    async def waiting(request: web.Request, problem: str = "", status: int = 200) -> web.Response:
        view = await reviewing.waiting(offset(request))
        return shell.page(request, "review", "Review", status, view=view, done=_done(request), problem=problem)

    async def decide(request: web.Request) -> web.Response:
        form = await request.post()
        action = text(form, "action")
        if action not in {"approve", "reject"}:
            raise web.HTTPBadRequest(reason="Say approve or reject")
        qa_ids = tuple(QAId(each) for each in form.getall("qa_id", ()) if isinstance(each, str))
        try:
            done = await running.review(cast("Literal['approve', 'reject']", action), qa_ids)
        except ConfigError as error:
            return await waiting(request, f"{error}.", 409)
        raise web.HTTPSeeOther(f"/review?done={action if done == 'done' else done}")

    async def capture(
        request: web.Request, problem: str = "", status: int = 200, typed: Mapping[str, str] | None = None
    ) -> web.Response:
        view = await reviewing.capture(QAId(request.match_info["qa_id"]))
        title = "Edit and approve"
        return shell.page(request, "capture", title, status, view=view, problem=problem, typed=typed or {})

    async def edit(request: web.Request) -> web.Response:
        form = await request.post()
        # Browsers send line breaks as CRLF.
        typed = {name: text(form, name).replace("\r\n", "\n") for name in form}
        texts = {MessageId(name.removeprefix(_TEXT)): typed[name] for name in typed if name.startswith(_TEXT)}
        qa_ids = (QAId(request.match_info["qa_id"]),)
        try:
            done = await running.review("approve", qa_ids, topic=typed.get("topic", "").strip(), edited=texts)
        except ConfigError as error:
            return await capture(request, f"{error}.", 409, typed)
        raise web.HTTPSeeOther(f"/review?done={'approve' if done == 'done' else done}")

    return [
        web.get("/review", waiting),
        web.post("/review", decide),
        web.get("/review/{qa_id}", capture),
        web.post("/review/{qa_id}", edit),
    ]


def _parked(shell: Shell, running: Running) -> list[web.RouteDef]:
    async def parked(request: web.Request, problem: str = "", status: int = 200) -> web.Response:
        view = await running.reviewing.parked(offset(request))
        return shell.page(request, "parked", "Review", status, view=view, done=_done(request), problem=problem)

    async def retry(request: web.Request) -> web.Response:
        qa_id = text(await request.post(), "qa_id")
        try:
            done = await running.retry(QAId(qa_id))
        except ConfigError as error:
            return await parked(request, f"{error}.", 409)
        raise web.HTTPSeeOther(f"/parked?done={done}")

    return [web.get("/parked", parked), web.post("/parked", retry)]


def _topics(shell: Shell, running: Running) -> list[web.RouteDef]:
    browsing = running.browsing

    async def overview(request: web.Request) -> web.Response:
        sought, kind = request.query.get("q", "").strip()[:500], _chosen(request, "kind", get_args(Kind))
        found = await browsing.search(sought, cast("Kind | None", kind or None), offset(request)) if sought else None
        view = None if found else await browsing.counts()
        return shell.page(request, "knowledge", "Knowledge", view=view, found=found, text=sought, kind=kind)

    async def topics(request: web.Request) -> web.Response:
        order = cast("Order", _chosen(request, "order", get_args(Order), "newest"))
        view = await browsing.topics(order, offset(request))
        return shell.page(request, "topics", "Knowledge", view=view, order=order)

    async def topic(request: web.Request) -> web.Response:
        view = await browsing.topic(request.match_info["name"], offset(request))
        return shell.page(request, "topic", view.name, view=view)

    async def history(request: web.Request) -> web.Response:
        label = request.match_info["name"]
        view = await browsing.history(label, offset(request))
        return shell.page(request, "history", label, view=view, label=label)

    return [
        web.get("/knowledge", overview),
        web.get("/topics", topics),
        web.get("/topics/{name}", topic),
        web.get("/topics/{name}/history", history),
    ]


def _sources(shell: Shell, running: Running) -> list[web.RouteDef]:
    browsing, kinds = running.browsing, get_args(FactCategory)

    async def facts(request: web.Request) -> web.Response:
        held, category = _chosen(request, "held", get_args(Held), "held"), _chosen(request, "category", kinds)
        wanted = cast("FactCategory | None", category or None)
        view = await browsing.facts(cast("Held", held), wanted, offset(request))
        named = [(each, spoken(each)) for each in kinds]
        return shell.page(request, "facts", "Knowledge", view=view, held=held, category=category, categories=named)

    async def fact(request: web.Request, problem: str = "", status: int = 200) -> web.Response:
        view = await browsing.fact(FactId(request.match_info["id"]))
        title = view.fact.content
        return shell.page(request, "fact", title, status, view=view, done=_done(request), problem=problem)

    async def retire(request: web.Request) -> web.Response:
        why = text(await request.post(), "why").strip()
        if not why:
            return await fact(request, "Say why it is not true.", 400)
        fact_id = FactId(request.match_info["id"])
        done = await running.retire((await browsing.fact(fact_id)).fact.id, why)
        raise web.HTTPSeeOther(request.rel_url.with_query(done="retire" if done == "done" else done))

    async def nuggets(request: web.Request) -> web.Response:
        status = _chosen(request, "status", get_args(NuggetStatus))
        view = await browsing.nuggets(cast("NuggetStatus | None", status or None), offset(request))
        return shell.page(request, "nuggets", "Knowledge", view=view, chosen=status, one=None)

    async def nugget(request: web.Request) -> web.Response:
        one = await browsing.nugget(NuggetId(request.match_info["id"]))
        return shell.page(request, "nuggets", "Knowledge", view=None, one=one)

    async def sources(request: web.Request) -> web.Response:
        state = cast("SourceStates", _chosen(request, "state", get_args(SourceStates), "all"))
        view = await browsing.sources(state, offset(request))
        return shell.page(request, "sources", "Knowledge", view=view, state=state)

    return [
        web.get("/facts", facts),
        web.get("/facts/{id}", fact),
        web.post("/facts/{id}", retire),
        web.get("/nuggets", nuggets),
        web.get("/nuggets/{id}", nugget),
        web.get("/sources", sources),
    ]


def _done(request: web.Request) -> str:
    return _SAID.get(request.query.get("done", ""), "")


def _chosen(request: web.Request, name: str, known: tuple[str, ...], otherwise: str = "") -> str:
    """Return a choice of the query; the default where it is none."""
    wanted = request.query.get(name, otherwise)
    return wanted if wanted in known else otherwise
