"""The sections Review and Knowledge: what waits for the team, and what the bot knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, cast

from aiohttp import web

from intern.core.errors import ConfigError
from intern.core.ids import FactId, QAId
from intern.frontends.http.shell import Shell, offset, text
from intern.service.running import Done, Running

_SAID: Final[Mapping[str, str]] = {
    "approve": "Approved: it is filed next.",
    "reject": "Rejected: nothing is learned from it.",
    "waiting": "Noted. It takes a while; look again in a moment.",
    "done": "Done.",
    "parked": "It was tried and is parked again.",
}


def routes(shell: Shell, running: Running) -> list[web.RouteDef]:
    """Return the routes of both sections."""
    show = shell.shows

    async def undecided(request: web.Request, problem: str = "", status: int = 200) -> web.Response:
        name, done = request.path[1:], _SAID.get(request.query.get("done", ""), "")
        view = await (running.waiting() if name == "review" else running.parked())
        return shell.page(request, name, name.capitalize(), status, view=view, done=done, problem=problem)

    async def show_undecided(request: web.Request) -> web.Response:
        return await undecided(request)

    async def decide(request: web.Request) -> web.Response:
        form = await request.post()
        action, qa_id = text(form, "action"), text(form, "qa_id")
        if action not in {"approve", "reject"}:
            raise web.HTTPBadRequest(reason="Say approve or reject")
        try:
            done = await running.review(cast("Literal['approve', 'reject']", action), QAId(qa_id))
        except ConfigError as error:
            return await undecided(request, f"{error}.", 409)
        raise web.HTTPSeeOther(f"/review?done={action if done == 'done' else done}")

    async def retry(request: web.Request) -> web.Response:
        qa_id = text(await request.post(), "qa_id")
        try:
            done: Done = await running.retry(QAId(qa_id))
        except ConfigError as error:
            return await undecided(request, f"{error}.", 409)
        raise web.HTTPSeeOther(f"/parked?done={done}")

    async def topic(request: web.Request) -> web.Response:
        view = await running.topic(request.match_info["name"])
        return shell.page(request, "topic", f"Topic {view.topic.name}", view=view)

    return [
        web.get("/review", show_undecided),
        web.post("/review", decide),
        web.get("/parked", show_undecided),
        web.post("/parked", retry),
        web.get("/knowledge", show("topics", "Knowledge", lambda _: running.topics())),
        web.get("/topics/{name}", topic),
        web.get("/facts", show("facts", "Facts", lambda r: running.facts(offset(r)))),
        web.get("/facts/{id}", show("fact", "A fact", lambda r: running.fact(FactId(r.match_info["id"])))),
        web.get("/nuggets", show("nuggets", "Nuggets", lambda r: running.nuggets(offset(r)))),
        web.get("/sources", show("sources", "Sources", lambda _: running.sources())),
    ]
