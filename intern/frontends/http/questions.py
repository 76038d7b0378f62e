"""The sections Questions and Gaps: what was asked, what became of it, and what could not be answered."""

from __future__ import annotations

import asyncio

from aiohttp import web

from intern.core.ids import MessageId
from intern.frontends.http.shell import Shell, offset, text
from intern.service.running import Running

MAX_QUESTION_CHARS = 6_000


def routes(shell: Shell, running: Running) -> list[web.RouteDef]:
    """Return the routes of both sections."""
    show, asking = shell.shows, asyncio.Lock()

    async def question(request: web.Request) -> web.Response:
        view = await running.answer(MessageId(request.match_info["question_id"]))
        return shell.page(request, "answer", f"Question {view.trace.question_id}", view=view)

    async def ask(request: web.Request) -> web.Response:
        return shell.page(request, "ask", "Ask", view=None)

    async def asked(request: web.Request) -> web.Response:
        question = text(await request.post(), "question").strip()
        if not question or len(question) > MAX_QUESTION_CHARS:
            problem = f"Write a question of at most {MAX_QUESTION_CHARS} characters."
            return shell.page(request, "ask", "Ask", 400, view=None, problem=problem)
        if asking.locked():
            problem = "Another question is in work here; ask again once it is answered."
            return shell.page(request, "ask", "Ask", 429, view=None, problem=problem)
        async with asking:
            return shell.page(request, "ask", "Ask", view=await running.ask(question))

    return [
        web.get("/questions", show("answers", "Questions", lambda r: running.answers(offset(r)))),
        web.get("/questions/{question_id}", question),
        web.get("/gaps", show("unanswered", "Gaps", lambda _: running.unanswered())),
        web.get("/outdated", show("outdated", "Outdated answers", lambda _: running.outdated())),
        web.get("/ask", ask),
        web.post("/ask", asked),
    ]
