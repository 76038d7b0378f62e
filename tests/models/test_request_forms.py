"""The law of forms: any server that takes the smallest request, or that with what it demands, is answered."""

from __future__ import annotations

import json
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from aiohttp import web
from anyio import fail_after
from msgspec import Meta, Struct, structs

from intern.core.errors import ModelRefusedError
from intern.models.endpoint import EndpointModel
from intern.models.options import LlmOptions
from intern.models.prompt import Prompt
from intern.models.request_forms import VALUES, RequestForm
from intern.models.templates import PromptTemplates
from intern.models.usage import UsageCounter
from tests.models.server_words import DEMANDS, SHAPES, WORDINGS, Shape, Wording, mute

SERVERS = int(os.environ.get("INTERN_FORM_SERVERS", "200"))


class AskIn(Struct, frozen=True):
    question: str


class AskOut(Struct, frozen=True):
    answer: Annotated[str, Meta(max_length=40)]


ASK, GIVEN, ANSWER = Prompt("ask", takes=AskIn, gives=AskOut), AskIn("why?"), AskOut("because")

PLACES = {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_completion_tokens",
    "temperature": "temperature",
    "system": "messages.0.role",
    "developer": "messages.0.role",
    "turns": "messages.1.role",
    "stream": "stream",
    "stream_options": "stream_options",
    "json_schema": "response_format",
    "strict": "response_format.json_schema.strict",
    "maxLength": "response_format.json_schema.schema.maxLength",
    "tools": "tools",
    "json_object": "response_format",
    "reasoning_effort": "reasoning_effort",
}
"""The fields and values that servers refuse, and the place of each in a request."""

REFUSED_VALUES = {
    ("limit", "max_tokens"): "max_tokens",
    ("limit", "max_completion_tokens"): "max_completion_tokens",
    ("temperature", True): "temperature",
    ("system", "system"): "system",
    ("system", "developer"): "developer",
    ("examples", "turns"): "turns",
    ("stream", True): "stream",
    ("counting", True): "stream_options",
    ("output", "json_schema"): "json_schema",
    ("output", "function_calling"): "tools",
    ("output", "json_object"): "json_object",
    ("strict", True): "strict",
    ("bounds", True): "maxLength",
    ("effort", True): "reasoning_effort",
}
"""The name in PLACES of each value of a part, but for its last one."""


def contained_in(body: dict[str, Any]) -> list[str]:
    """Return the keys of PLACES that a request contains."""
    wanted = body.get("response_format", {"type": ""})
    roles = {each["role"] for each in body["messages"]}
    has = {name: name in body for name in PLACES} | {role: role in roles for role in ("system", "developer")}
    has["turns"] = "assistant" in roles
    has["json_schema"], has["json_object"] = wanted["type"] == "json_schema", wanted["type"] == "json_object"
    has["strict"] = "strict" in wanted.get("json_schema", {})
    has["maxLength"] = "maxLength" in json.dumps([wanted, body.get("tools")])
    return [name for name, is_there in has.items() if is_there]


@dataclass
class Server:
    refuses: frozenset[str] = frozenset()
    demands: frozenset[str] = frozenset()
    is_thorough: bool = False
    """It names all that it refuses at once."""
    shape: Shape = mute
    wording: Wording = WORDINGS["stop"]
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def refusals(self, body: dict[str, Any]) -> list[str]:
        return [name for name in contained_in(body) if name in self.refuses]

    def lacking(self, body: dict[str, Any]) -> list[str]:
        lacks_limit = "limit" in self.demands and not {"max_tokens", "max_completion_tokens"} & body.keys()
        lacks_stream = "stream" in self.demands and not body.get("stream")
        lacks_more = self.demands - {"limit", "stream"}
        return [*(["max_tokens"] if lacks_limit else []), *(["stream"] if lacks_stream else []), *lacks_more]

    def answer(self, body: dict[str, Any]) -> web.Response:
        self.bodies.append(body)
        if refused := self.refusals(body):
            named = list(dict.fromkeys(PLACES[name] for name in (refused if self.is_thorough else refused[:1])))
            status, said = self.shape(named)
            return web.Response(status=status, body=said)
        if lacking := self.lacking(body):
            demand = mute if self.shape is mute and not self.demands & {"limit", "stream"} else None
            status, said = (demand or DEMANDS[len(self.bodies) % len(DEMANDS)])(lacking)
            return web.Response(status=status, body=said)
        message, finish = self.wording('{"answer": "because"}')
        choice = {"index": 0, "message": message, "finish_reason": finish}
        if not body.get("stream"):
            return web.json_response({"choices": [choice]})
        pieces: list[dict[str, Any]] = [
            {"index": 0, "delta": message, "finish_reason": None},
            {"delta": {}, "finish_reason": finish},
        ]
        events = "".join(f"data: {json.dumps({'choices': [piece]})}\n\n" for piece in pieces)
        return web.Response(text=f"{events}data: [DONE]\n\n", content_type="text/event-stream")


@pytest.fixture
def templates(tmp_path: Path) -> PromptTemplates:
    turns = '--- user ---\nand you?\n--- assistant ---\n{"answer": "yes"}\n'
    source = "{% block system %}Reply.{% endblock %}{% block user %}{{ question }}{% endblock %}"
    (tmp_path / "ask.md.j2").write_text(f"{source}{{% block examples %}}\n{turns}{{% endblock %}}", encoding="utf-8")
    return PromptTemplates(tmp_path)


@pytest.fixture
async def served() -> AsyncIterator[tuple[str, dict[str, Server]]]:
    servers: dict[str, Server] = {}

    async def answer(request: web.Request) -> web.Response:
        return servers[request.match_info["name"]].answer(await request.json())

    app = web.Application()
    app.router.add_post("/{name}/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield f"http://127.0.0.1:{port}", servers
    await runner.cleanup()


def random_server(seed: int) -> Server:
    draw = random.Random(seed)
    refuses = frozenset(name for name in PLACES if draw.random() < draw.choice([0.1, 0.3, 0.6]))
    demands = frozenset(part for part in ("limit", "stream") if draw.random() < 0.15)
    if "limit" in demands and {"max_tokens", "max_completion_tokens"} <= refuses:
        refuses -= {draw.choice(["max_tokens", "max_completion_tokens"])}
    if "stream" in demands:
        refuses -= {"stream"}
    wording = draw.choice(list(WORDINGS.values()))
    return Server(refuses, demands, draw.random() < 0.5, draw.choice(SHAPES), wording)


def lost_needlessly(form: RequestForm, server: Server) -> list[tuple[str, Any]]:
    """Return the values that a form has skipped although the server takes them."""
    passed = [(part, value) for part in VALUES for value in VALUES[part][: getattr(form, part)] if part != "choices"]
    return [each for each in passed if REFUSED_VALUES[each] not in server.refuses]


OPTIONS = LlmOptions(model="m", reasoning_effort="low", max_retries=0)


@asynccontextmanager
async def open_model(address: str, name: object, templates: PromptTemplates) -> AsyncGenerator[EndpointModel]:
    """Ask one of the servers, for half a minute at most."""
    options = structs.replace(OPTIONS, base_url=f"{address}/{name}")
    with fail_after(30):
        async with EndpointModel(options, templates=templates, usage=UsageCounter()) as model:
            yield model


async def check_known(model: EndpointModel, server: Server) -> None:
    """Check that a known server costs no further call. The narrowed form may come after the smallest."""
    for _ in range(2):
        assert await model.ask(ASK, GIVEN) == ANSWER
    settled = len(server.bodies)
    assert await model.ask(ASK, GIVEN) == ANSWER
    assert len(server.bodies) == settled + 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_each_server_that_takes_the_smallest_form_is_answered_within_six_tries(
    served: tuple[str, dict[str, Server]], templates: PromptTemplates
) -> None:
    address, servers = served
    narrowed = 0
    for seed in range(SERVERS):
        servers[str(seed)] = server = random_server(seed)
        async with open_model(address, seed, templates) as model:
            assert await model.ask(ASK, GIVEN) == ANSWER, (seed, server)
            tries = len(server.bodies)
            assert tries <= 6, (seed, server)
            assert await model.ask(ASK, GIVEN) == ANSWER, (seed, server)
            again = len(server.bodies) - tries
            assert again <= 2, (seed, server)
            known = len(server.bodies)
            assert await model.ask(ASK, GIVEN) == ANSWER
            assert len(server.bodies) == known + 1, "a known server costs no call more"
            # After four refusals the smallest form is answered first, and the narrowed one right after it.
            if tries <= 5 and again == 1:
                assert lost_needlessly(model.form, server) == [], (seed, server, model.form)
                narrowed += 1
    assert narrowed > SERVERS / 4


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_parts_that_are_refused_one_after_the_other_are_left_out_one_by_one(
    served: tuple[str, dict[str, Server]], templates: PromptTemplates
) -> None:
    address, servers = served
    servers["one"] = server = Server(frozenset({"temperature", "stream_options", "reasoning_effort"}), shape=SHAPES[0])
    async with open_model(address, "one", templates) as model:
        assert await model.ask(ASK, GIVEN) == ANSWER
        assert [len(server.refusals(body)) for body in server.bodies] == [3, 2, 1, 0]
        assert lost_needlessly(model.form, server) == []


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_that_was_changed_is_searched_anew_within_six_tries(
    served: tuple[str, dict[str, Server]], templates: PromptTemplates
) -> None:
    """It may take now what it did not take before: with at most four refusals, no part is lost that it takes."""
    address, servers = served
    narrowed = 0
    for seed in range(SERVERS):
        servers[str(seed)] = random_server(seed)
        async with open_model(address, seed, templates) as model:
            for _ in range(3):  # the narrowed form may come after the smallest
                assert await model.ask(ASK, GIVEN) == ANSWER
            known = model.form
            servers[str(seed)] = server = random_server(seed + SERVERS)
            assert await model.ask(ASK, GIVEN) == ANSWER, (seed, server, known)
            tries = len(server.bodies)
            assert tries <= 6, (seed, server, known)
            if model.form != known and 1 < tries <= 4:
                assert lost_needlessly(model.form, server) == [], (seed, server, known, model.form)
                narrowed += 1
            await check_known(model, server)
    assert narrowed > SERVERS / 20


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_known_form_that_is_refused_without_a_reason_is_searched_anew(
    served: tuple[str, dict[str, Server]], templates: PromptTemplates
) -> None:
    address, servers = served
    for seed in range(SERVERS):
        servers[str(seed)] = random_server(seed)
        async with open_model(address, seed, templates) as model:
            for _ in range(3):
                assert await model.ask(ASK, GIVEN) == ANSWER
            servers[str(seed)] = server = random_server(seed + SERVERS)
            server.shape, server.demands = mute, frozenset()
            assert await model.ask(ASK, GIVEN) == ANSWER, (seed, server)
            assert len(server.bodies) <= 6, (seed, server)
            await check_known(model, server)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("refuses", [(), ("temperature",), tuple(PLACES)], ids=["nothing", "one part", "all parts"])
@pytest.mark.parametrize("is_smallest_taken", [True, False], ids=["smallest taken", "none taken"])
async def test_one_prompt_that_is_refused_without_a_reason_costs_no_part(
    served: tuple[str, dict[str, Server]],
    templates: PromptTemplates,
    refuses: tuple[str, ...],
    *,
    is_smallest_taken: bool,
) -> None:
    address, servers = served
    servers["one"] = server = Server(frozenset(refuses), shape=SHAPES[0], is_thorough=True)
    async with open_model(address, "one", templates) as model:
        for _ in range(6):
            assert await model.ask(ASK, GIVEN) == ANSWER
        known, calls = model.form, len(server.bodies)
        server.refuses = frozenset(PLACES)
        server.demands = frozenset() if is_smallest_taken else frozenset({"nothing that there is"})
        server.shape = mute
        if is_smallest_taken:
            assert await model.ask(ASK, GIVEN) == ANSWER
        else:
            with pytest.raises(ModelRefusedError):
                await model.ask(ASK, GIVEN)
        assert len(server.bodies) - calls <= 3
        server.refuses, server.demands, server.shape = frozenset(refuses), frozenset(), SHAPES[0]
        calls = len(server.bodies)
        assert await model.ask(ASK, GIVEN) == ANSWER
        assert (model.form, len(server.bodies)) == (known, calls + 1)
