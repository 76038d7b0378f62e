"""Eighteen named servers: answering, learning and failing, each in the words of its profile, over sockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from intern.answering.prompts import GATE, GateIn
from intern.core.errors import ModelPromptTooLongError, ModelUnavailableError
from intern.core.messages import Conversation, Message
from intern.models.circuit_breaker import FAILURES
from intern.models.endpoint import EndpointModel
from intern.models.request_forms import VALUES
from intern.models.templates import PromptTemplates
from intern.models.usage import UsageCounter
from intern.service.doctor import ask_endpoints
from intern.service.model_servers import list_configured
from intern.service.opening import open_intern
from intern.settings.settings import Settings
from tests.model.servers.hosted import HOSTED
from tests.model.servers.local import LOCAL
from tests.model.servers.profile import NamedServer, Profile, Said
from tests.worlds import samples
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import EndpointDouble
from tests.worlds.settings import make_settings

PROFILES = (*HOSTED, *LOCAL)
KEY = "sk-of-nobody"
ASKED = GateIn(question="Which port does the relay listen on?", history="", addressed=True)
PORTS = "# Ports\n\nThe relay listens on port 7480. Set `listen` to change the port.\n"
ANSWER = "Stop the relay, then run `lumen-relay spool purge`. The agents send again what they still hold."
QUESTION = "How do I purge the spool without losing agents?"

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", ["asyncio"]),
    pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name),
]


@dataclass
class Served:
    """A named server that runs."""

    double: EndpointDouble
    server: NamedServer
    settings: Settings
    pauses: list[float | None]
    """The seconds that it named for each pause before a call was made again; None where it named none."""

    @asynccontextmanager
    async def model(self) -> AsyncGenerator[EndpointModel]:
        async with EndpointModel(self.settings.llm, templates=PromptTemplates(), usage=UsageCounter()) as model:
            await model.ask(GATE, ASKED)
            self.double.requests.clear()
            yield model


@pytest.fixture
async def served(profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """The server at its own address, if it has one: the double is then the proxy on the way."""
    server, pauses = NamedServer(profile), list[float | None]()

    def note_pause(error: Any, _: int) -> float:
        pauses.append(error.retry_after)
        return 0.0

    monkeypatch.setattr("intern.models.http.pause_before_retry", note_pause)
    async with EndpointDouble(server, path=profile.path).serving() as double:
        double.pages = dict(profile.pages)
        here = double.base_url.removesuffix(profile.path)
        if profile.host:
            monkeypatch.setenv("http_proxy", here)
            monkeypatch.delenv("no_proxy", raising=False)
        base_url = (f"http://{profile.host}" if profile.host else here) + profile.path + profile.query
        llm = {"base_url": base_url, "model": profile.model, "api_key": KEY}
        (tmp_path / "knowledge-base" / "sources").mkdir(parents=True)
        (tmp_path / "knowledge-base" / "sources" / "ports.md").write_text(PORTS)
        told = {
            "data": {"dir": str(tmp_path)},
            "llm": llm,
            "kb": {"settle_seconds": 0},
            "embeddings": {"provider": "none"},
        }
        with fail_after(20):
            yield Served(double, server, make_settings(**told), pauses)
    assert double.failures == []


def failures(profile: Profile) -> Iterator[Said]:
    """Yield what is tried again: each with the header that names a pause, and each without."""
    for each in (*profile.busy, *profile.away):
        yield each
        yield replace(each, headers={"Retry-After": "2"})
        yield replace(each, headers={})


async def test_it_is_asked_in_the_form_that_it_takes(profile: Profile, served: Served) -> None:
    async with EndpointModel(served.settings.llm, templates=PromptTemplates(), usage=UsageCounter()) as model:
        reply = await model.ask(GATE, ASKED)
        tries = len(served.double.requests)
        await model.ask(GATE, ASKED)
    assert reply.kind == "question"
    assert tries <= 6
    assert {part for part in VALUES if getattr(model.form, part)} == profile.loses
    assert len(served.double.requests) == tries + 1, "a known server costs no call more"
    key = KEY if profile.key_header == "api-key" else f"Bearer {KEY}"
    assert {request.headers.get(profile.key_header) for request in served.double.requests} == {key}


@pytest.mark.rest
async def test_it_answers_from_documents_and_from_what_the_team_said(profile: Profile, served: Served) -> None:
    async with open_intern(served.settings, clock=HandClock()) as intern:
        assert (await intern.index()).changed == ("kb:ports.md",)
        pair = await intern.capture(samples.capture(QUESTION, ANSWER))
        from_document, from_team = [
            await intern.answer(Conversation((Message(role="user", text=text),))) for text in (ASKED.question, QUESTION)
        ]
    assert "port 7480" in (from_document.reply_text or ""), from_document.debug
    assert pair is not None
    assert ANSWER in (from_team.reply_text or ""), from_team.debug


async def test_the_doctor_finds_it_well(profile: Profile, served: Served) -> None:
    findings = await ask_endpoints(served.settings)
    assert [each.what for each in findings if each.level == "todo"] == []
    assert [each.level for each in findings if f"answers as {profile.model}" in each.what] == ["ok"]


async def test_its_models_are_listed(profile: Profile, served: Served) -> None:
    [listed] = await list_configured(served.settings)
    assert {each.id or each.name: each.context for each in listed.models} == profile.offers


async def test_a_reply_that_breaks_off_is_asked_for_again(profile: Profile, served: Served) -> None:
    async with served.model() as model:
        served.double.next(served.server.cut)
        assert (await model.ask(GATE, ASKED)).kind == "question"
        assert model.breaker.held is None
    assert len(served.double.requests) == 2
    assert served.pauses == [None]


async def test_a_server_that_is_busy_or_away_is_asked_again(profile: Profile, served: Served) -> None:
    wanted = list(failures(profile))
    assert any(each.status == 429 for each in wanted)
    async with served.model() as model:
        for each in wanted:
            served.double.next(each.reply)
            assert (await model.ask(GATE, ASKED)).kind == "question", each
        for each in profile.busy:
            for _ in range(FAILURES // 4 + 1):
                served.double.next(*[each.reply] * 4)
                with pytest.raises(ModelUnavailableError):
                    await model.ask(GATE, ASKED)
            assert model.breaker.held is None, "a server that wants fewer requests is not out of order"
    named = [float(each.headers["Retry-After"]) if each.headers else each.waits for each in wanted]
    assert served.pauses[: len(wanted)] == named


async def test_a_prompt_that_is_too_long_is_sent_once_and_is_no_fault_of_the_server(
    profile: Profile, served: Served
) -> None:
    async with served.model() as model:
        form = model.form
        for each in profile.too_long * FAILURES:
            served.double.requests.clear()
            served.double.next(each.reply)
            with pytest.raises(ModelPromptTooLongError, match=r"llm\.max_tokens"):
                await model.ask(GATE, ASKED)
            assert len(served.double.requests) == 1, each
        assert (model.breaker.held, model.form) == (None, form)
    assert served.pauses == []


def test_each_profile_has_its_sources(profile: Profile, anyio_backend: str) -> None:
    assert len(PROFILES) == len({each.name for each in PROFILES}) == 18
    assert all(each.startswith("https://") for each in profile.sources)
    assert len(profile.sources) >= 2
