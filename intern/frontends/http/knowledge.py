"""The sections Review and Knowledge: captures that wait for the team, and the bot's knowledge."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, get_args

from aiohttp import web
from anyio.to_thread import run_sync

from intern.core.errors import ConfigError
from intern.core.ids import FactId, MessageId, NuggetId, QAId
from intern.core.knowledge import FactCategory, NuggetStatus
from intern.frontends.http.page_renderer import PageRenderer, form_text, query_offset
from intern.frontends.http.rendering import humanize
from intern.service.facts import FactListing
from intern.service.knowledge_search import EntryKind
from intern.service.sources import SourceStates
from intern.service.status_page import StatusPage
from intern.service.topics import Order

_TEXT = "text-"
"""The beginning of the names of fields with a message's text."""


def routes(shell: PageRenderer, running: StatusPage) -> list[web.RouteDef]:
    """Return the routes of both sections."""
    return [
        each
        for part in (_build_review_routes, _build_parked_routes, _build_topic_routes, _build_source_routes)
        for each in part(shell, running)
    ]


def _build_review_routes(shell: PageRenderer, running: StatusPage) -> list[web.RouteDef]:
    async def waiting(request: web.Request, problem: str = "", status: int = 200) -> web.Response:
        view = await running.captures.list_review_page(query_offset(request))
        groups = [(name, list(captures)) for name, captures in groupby(view.rows, lambda capture: capture.topic)]
        reviews = running.settings.kb.review
        return shell.page(
            request, "review", "Review", status, view=view, groups=groups, reviews=reviews, problem=problem
        )

    async def decide(request: web.Request) -> web.Response:
        form = await request.post()
        action: Any = form_text(form, "action")
        if action not in {"approve", "reject"}:
            raise web.HTTPBadRequest(reason="Say approve or reject")
        qa_ids = tuple(QAId(each) for each in form.getall("qa_id", ()) if isinstance(each, str))
        try:
            done = await running.review(action, qa_ids)
        except ConfigError as error:
            return await waiting(request, f"{error}.", 409)
        raise web.HTTPSeeOther(f"/review?done={action if done == 'done' else done}")

    async def capture(
        request: web.Request, problem: str = "", status: int = 200, typed: Mapping[str, str] | None = None
    ) -> web.Response:
        view = await running.captures.load_capture(QAId(request.match_info["qa_id"]))
        title = "Edit and approve"
        return shell.page(request, "capture", title, status, view=view, problem=problem, typed=typed or {})

    async def edit(request: web.Request) -> web.Response:
        form = await request.post()
        # Browsers send line breaks as CRLF.
        typed = {name: form_text(form, name).replace("\r\n", "\n") for name in form}
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


def _build_parked_routes(shell: PageRenderer, running: StatusPage) -> list[web.RouteDef]:
    async def list_parked(request: web.Request, problem: str = "", status: int = 200) -> web.Response:
        view = await running.captures.list_parked(query_offset(request))
        return shell.page(request, "parked", "Review", status, view=view, problem=problem)

    async def retry(request: web.Request) -> web.Response:
        qa_id = form_text(await request.post(), "qa_id")
        try:
            done = await running.retry(QAId(qa_id))
        except ConfigError as error:
            return await list_parked(request, f"{error}.", 409)
        raise web.HTTPSeeOther(f"/parked?done={done}")

    return [web.get("/parked", list_parked), web.post("/parked", retry)]


def _build_topic_routes(shell: PageRenderer, running: StatusPage) -> list[web.RouteDef]:
    topics = running.topics

    async def overview(request: web.Request) -> web.Response:
        sought, kind = request.query.get("q", "").strip()[:500], _read_choice(request, "kind", get_args(EntryKind))
        shown: dict[str, Any] = {"found": None, "text": sought, "kind": kind}
        if sought:
            shown["found"] = await running.search.find_page(sought, kind or None, query_offset(request))
        else:
            shown["stored"] = await running.figures.count_stored()
            shown["sources"] = (await run_sync(running.sources.list_page)).counts
            shown["latest"] = await run_sync(topics.list_latest_changes)
        return shell.page(request, "knowledge", "Knowledge", **shown)

    async def list_topics(request: web.Request) -> web.Response:
        order: Order = _read_choice(request, "order", get_args(Order), "newest")
        view = await run_sync(topics.list_page, order, query_offset(request))
        return shell.page(request, "topics", "Knowledge", view=view, order=order)

    async def topic(request: web.Request) -> web.Response:
        view = await run_sync(topics.read_page, request.match_info["name"], query_offset(request))
        return shell.page(request, "topic", view.name, view=view)

    async def history(request: web.Request) -> web.Response:
        label = request.match_info["name"]
        view = await run_sync(topics.list_changes, label, query_offset(request))
        return shell.page(request, "history", label, view=view, label=label)

    return [
        web.get("/knowledge", overview),
        web.get("/topics", list_topics),
        web.get("/topics/{name}", topic),
        web.get("/topics/{name}/history", history),
    ]


def _build_source_routes(shell: PageRenderer, running: StatusPage) -> list[web.RouteDef]:
    known, kinds = running.facts, get_args(FactCategory)

    async def facts(request: web.Request) -> web.Response:
        held: FactListing = _read_choice(request, "held", get_args(FactListing), "held")
        category = _read_choice(request, "category", kinds)
        view = await known.list_page(held, category or None, query_offset(request))
        named = [(each, humanize(each)) for each in kinds]
        return shell.page(request, "facts", "Knowledge", view=view, held=held, category=category, categories=named)

    async def fact(request: web.Request, problem: str = "", status: int = 200) -> web.Response:
        view = await known.read_page(FactId(request.match_info["id"]))
        title = view.fact.content
        return shell.page(request, "fact", title, status, view=view, problem=problem)

    async def retire(request: web.Request) -> web.Response:
        why = form_text(await request.post(), "why").strip()
        if not why:
            return await fact(request, "Say why it is not true.", 400)
        fact_id = FactId(request.match_info["id"])
        done = await running.retire((await known.read_page(fact_id)).fact.id, why)
        raise web.HTTPSeeOther(request.rel_url.with_query(done="retire" if done == "done" else done))

    async def nuggets(request: web.Request) -> web.Response:
        status = _read_choice(request, "status", get_args(NuggetStatus))
        view = await known.list_nuggets(status or None, query_offset(request))
        return shell.page(request, "nuggets", "Knowledge", view=view, chosen=status, one=None)

    async def nugget(request: web.Request) -> web.Response:
        one = await known.read_nugget(NuggetId(request.match_info["id"]))
        return shell.page(request, "nuggets", "Knowledge", view=None, one=one)

    async def sources(request: web.Request) -> web.Response:
        state: SourceStates = _read_choice(request, "state", get_args(SourceStates), "all")
        view = await run_sync(running.sources.list_page, state, query_offset(request))
        return shell.page(request, "sources", "Knowledge", view=view, state=state)

    return [
        web.get("/facts", facts),
        web.get("/facts/{id}", fact),
        web.post("/facts/{id}", retire),
        web.get("/nuggets", nuggets),
        web.get("/nuggets/{id}", nugget),
        web.get("/sources", sources),
    ]


def _read_choice(request: web.Request, name: str, known: tuple[Any, ...], otherwise: str = "") -> Any:
    """Return a choice of the query; the default if it is none."""
    wanted = request.query.get(name, otherwise)
    return wanted if wanted in known else otherwise
