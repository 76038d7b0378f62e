"""The sections Questions and Gaps: questions with their outcomes, and questions without an answer."""

from __future__ import annotations

from asyncio import Lock
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web
from anyio import current_time

from intern.core.errors import ConfigError, InternError
from intern.core.ids import ChannelId, MessageId
from intern.core.messages import LOOKUP_FAILURES
from intern.frontends.http.page_renderer import PageRenderer, form_text, query_offset
from intern.frontends.http.rendering import first_words
from intern.service.questions import MAX_ANSWER_CHARS, PAGE, QuestionChannel, QuestionFilter
from intern.service.status_page import StatusPage

MAX_QUESTION_CHARS = 6_000
DAYS: Final = (1, 7, 30)  # of 90, for which questions are kept
GAPS = 20  # on the page, which stays below 60 kB; each has a form
_MOST_WORDS = 100  # characters of a search
_TITLE = 120  # characters of a question
_MOST_PLACES = 100  # channels to choose from


class QuestionQuery:
    """The filters of a list of questions, as its address has them. Invalid ones are left out."""

    def __init__(self, request: web.Request) -> None:
        query = request.query
        self.words = query.get("q", "").strip()[:_MOST_WORDS]
        self.outcome = query.get("outcome", "")[:40]
        self.votes = "down" if query.get("votes") == "down" else ""
        self.place = query.get("channel", "")[:40]
        self.days = next((each for each in DAYS if query.get("days") == str(each)), 0)
        self.offset = query_offset(request)

    def href(self, start: int) -> str:
        """Return the address of the list from another offset on."""
        given = {"q": self.words, "outcome": self.outcome, "votes": self.votes, "channel": self.place}
        given |= {"days": str(self.days or ""), "offset": str(start or "")}
        return f"/questions?{urlencode({name: value for name, value in given.items() if value})}"

    @property
    def is_any(self) -> bool:
        """Whether any filter is set."""
        return self.href(0) != "/questions?"


class _QuestionPages:
    def __init__(self, shell: PageRenderer, running: StatusPage) -> None:
        self._shell, self._running = shell, running
        self._asking = Lock()

    async def list_questions(self, request: web.Request) -> web.Response:
        wanted, answered = QuestionQuery(request), {"answered": True, "silent": False}
        named = wanted.words.rstrip("/").rpartition("/")[2]
        if named.isascii() and named.isdigit() and len(named) > 15:  # a message, or the link to one
            raise web.HTTPSeeOther(f"/questions/{named}")
        asked_for = QuestionFilter(
            answered=answered.get(wanted.outcome),
            reason="" if wanted.outcome in answered else wanted.outcome,
            disliked=bool(wanted.votes),
            place_id=ChannelId(wanted.place) if wanted.place else None,
            since=self._running.clock.now() - timedelta(days=wanted.days) if wanted.days else None,
            words=wanted.words,
        )
        view = await self._running.questions.find(asked_for, offset=wanted.offset)
        last = wanted.offset + len(view.rows)
        more: dict[str, Any] = {
            "places": [
                ("", "All"),
                *((each.id, f"{_label_channel(each)} ({each.questions})") for each in view.places[:_MOST_PLACES]),
            ],
            "days": [(0, "90 days"), *((each, f"{each} days" if each > 1 else "Last day") for each in DAYS)],
            "currency": self._running.settings.llm.currency,
            "newer": wanted.href(max(wanted.offset - PAGE, 0)) if wanted.offset else "",
            "older": wanted.href(last) if last < view.total else "",
        }
        return self._shell.page(request, "questions", "Questions", view=view, wanted=wanted, last=last, **more)

    async def show_question(self, request: web.Request, **more: Any) -> web.Response:
        currency = self._running.settings.llm.currency
        view = await self._running.questions.read_question(MessageId(request.match_info["question_id"]))
        title = first_words(view.record.text, _TITLE) if view.record else ""
        shown: dict[str, Any] = {"view": view, "again": None, "currency": currency} | more
        return self._shell.page(request, "question", title or "Question", **shown)

    async def replay(self, request: web.Request) -> web.Response:
        try:
            found = await self._running.replay(request.match_info["question_id"])
        except InternError as error:
            return await self.show_question(request, problem=f"{error}.")
        return await self.show_question(request, again=found[-1])

    async def gaps(self, request: web.Request, status: int = 200, **typed: str) -> web.Response:
        given = {"question_id": "", "answer": "", "by": ""} | typed
        view = await self._running.questions.gaps(GAPS)
        return self._shell.page(request, "gaps", "Gaps", status, view=view, most=MAX_ANSWER_CHARS, **given)

    async def decide(self, request: web.Request) -> web.Response:
        form = await request.post()
        action, question_id = form_text(form, "action"), MessageId(form_text(form, "question_id"))
        answer, by = form_text(form, "answer"), form_text(form, "by")
        try:
            if action == "answer":
                await self._running.questions.answer_gap(question_id, answer, by)
            elif action == "dismiss":
                await self._running.questions.close_gap(question_id)
            else:
                raise web.HTTPBadRequest(reason="Say answer or dismiss")
        except ConfigError as error:  # the form keeps the typed text
            problem = f"{error}."
            return await self.gaps(request, 409, problem=problem, question_id=question_id, answer=answer, by=by)
        raise web.HTTPSeeOther(f"/gaps?done={action}")

    async def export(self, _: web.Request) -> web.Response:
        body = await self._running.questions.format_gaps()
        named = {"Content-Disposition": 'attachment; filename="gaps.md"'}
        return web.Response(text=body, content_type="text/markdown", charset="utf-8", headers=named)

    async def ask(self, request: web.Request) -> web.Response:
        return self._shell.page(request, "ask", "Ask", view=None)

    async def answer_question(self, request: web.Request) -> web.Response:
        question = form_text(await request.post(), "question").strip()
        if not question or len(question) > MAX_QUESTION_CHARS:
            problem = f"Write a question of at most {MAX_QUESTION_CHARS} characters."
            return self._shell.page(request, "ask", "Ask", 400, view=None, problem=problem)
        if self._asking.locked():
            problem = "Another question is in work here; ask again once it is answered."
            return self._shell.page(request, "ask", "Ask", 429, view=None, problem=problem)
        async with self._asking:
            began, currency = current_time(), self._running.settings.llm.currency
            view = await self._running.ask(question)
            shown: dict[str, Any] = {"question": question, "seconds": current_time() - began, "currency": currency}
            return self._shell.page(request, "ask", "Ask", view=view, failures=LOOKUP_FAILURES, **shown)

    async def list_outdated(self, request: web.Request) -> web.Response:
        view, retracts = await self._running.list_outdated_answers(), self._running.settings.ai.retract
        return self._shell.page(request, "outdated", "Outdated answers", view=view, retracts=retracts)


def _label_channel(place: QuestionChannel) -> str:
    return f"#{place.name}" if place.name else f"threads in {place.id}"


def routes(shell: PageRenderer, running: StatusPage) -> list[web.RouteDef]:
    """Return the routes of both sections."""
    pages = _QuestionPages(shell, running)
    return [
        web.get("/questions", pages.list_questions),
        web.get("/questions/{question_id}", pages.show_question),
        web.post("/questions/{question_id}", pages.replay),
        web.get("/gaps", pages.gaps),
        web.post("/gaps", pages.decide),
        web.get("/gaps.md", pages.export),
        web.get("/outdated", pages.list_outdated),
        web.get("/ask", pages.ask),
        web.post("/ask", pages.answer_question),
    ]
