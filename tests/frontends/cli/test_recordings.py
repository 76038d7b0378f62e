"""`intern why` and `intern replay`, over what a bot at work has recorded."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import anyio
import pytest
from anyio import fail_after

from intern.answering.prompts import CONFIRM
from intern.core.flow import Reply
from intern.core.messages import AnswerResult
from intern.models.templates import PromptTemplates
from intern.runtime.bot import open_sandbox
from intern.sources.refresh import RefreshReport
from tests.frontends.cli.conftest import Intern
from tests.worlds.bot import Watching, settings_in
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import EndpointDouble, endpoint_double, refuse


@pytest.fixture
def endpoint() -> Generator[EndpointDouble]:
    with endpoint_double() as double:
        yield double


@pytest.fixture
def asked(intern: Intern, endpoint: EndpointDouble) -> tuple[str, str]:
    """The ids of a question that was answered, and of a remark; `intern.toml` names their folder."""
    settings = settings_in(Path("data"), llm={"base_url": endpoint.base_url, "model": "m", "max_retries": 0})
    text = f'[data]\ndir = "data"\n[llm]\nbase_url = "{endpoint.base_url}"\nmodel = "m"\nmax_retries = 0\n'
    Path("intern.toml").write_text(text)
    sandbox, seen = Sandbox(HandClock(), team={"mira"}), Watching()
    place, other = sandbox.add_channel("help"), sandbox.add_channel("talk")

    async def work() -> tuple[str, str]:
        with fail_after(30):
            async with open_sandbox(settings, sandbox, events=seen, clock=HandClock()):
                await seen.one_of(RefreshReport)
                question = sandbox.say("bob", "@intern which port does the relay listen on?\x1b[31m", channel_id=place)
                await seen.one_of(Reply)
                remark = sandbox.say("ann", "lol who else is up", channel_id=other)
                await seen.one_of(AnswerResult, after=1)
        return question.id, remark.id

    return anyio.run(work)


def stricter() -> str:
    """Write other instructions for the check, and return their folder."""
    Path("mine").mkdir()
    text = PromptTemplates().read_source(CONFIRM).replace("{% block system %}", "{% block system %}\nBe strict.")
    (Path("mine") / "confirm.md.j2").write_text(text)
    return "mine"


def test_why_lists_the_newest_and_shows_one_by_its_message_or_link(intern: Intern, asked: tuple[str, str]) -> None:
    code, out, err = intern("why")
    assert (code, err) == (0, "")
    newest, older, *_ = out.splitlines()
    assert (newest.split()[2:5], older.split()[2:5]) == (
        ["answer", asked[1], "not_a_question"],
        ["answer", asked[0], "answered"],
    )
    code, out, err = intern("why", f"https://discord.com/channels/1/2/{asked[0]}")
    assert (code, err) == (0, "")
    for said in (
        "heard, as a question",
        "kb:ports.md",
        "with the prompt decide",
        "with the prompt confirm",
        "answered:",
    ):
        assert said in out
    assert "\x1b" not in out
    assert "You are the support bot" not in out
    assert "You are the support bot" in intern("why", asked[0], "--full").out
    (told,) = json.loads(intern("why", asked[0], "--json").out)
    assert told["said"][0]["model"] == "m"
    assert told["hits"][0]["source_id"] == "kb:ports.md"
    assert "not taken for a question" in intern("why", asked[1]).out


def test_what_is_not_recorded_is_said_in_a_line(intern: Intern, asked: tuple[str, str]) -> None:
    for command in (("why", "12"), ("replay", "12", "--offline"), ("replay", "--since", "2030-01-01", "--offline")):
        code, out, err = intern(*command)
        assert (code, out, err.count("\n")) == (2, "", 1)
    for wrong in ([], ["12", "--since", "2026-01-01"], ["12", "--model", "n", "--offline"]):
        assert intern("replay", *wrong).code == 2


@pytest.mark.rest
def test_a_replay_makes_no_call_where_nothing_changed(
    intern: Intern, asked: tuple[str, str], endpoint: EndpointDouble
) -> None:
    calls = len(endpoint.requests)
    code, out, _ = intern("replay", "--since", "2026-01-01")
    assert (code, out) == (0, "2  the same answer, to the byte\nmodel calls made anew: 0\n")
    assert len(endpoint.requests) == calls


def test_a_replay_with_other_templates_lists_or_asks_what_they_change(
    intern: Intern, asked: tuple[str, str], endpoint: EndpointDouble
) -> None:
    mine = stricter()
    code, out, _ = intern("replay", "--since", "2026-01-01", "--prompts", mine, "--offline")
    assert code == 1
    assert out.startswith(f"prompt_changed   {asked[0]}")
    assert "changed: confirm" in out
    endpoint.next({"asked": "x", "told": "y", "verdict": "unsupported", "claims": []}, prompt="confirm")
    code, out, _ = intern("replay", asked[0], "--prompts", mine)
    assert code == 1
    assert "now: [rejected]" in out
    assert "model calls made anew: 1" in out
    assert "Be strict." in endpoint.asked("confirm")[-1].system


@pytest.mark.rest
def test_a_replay_with_another_model_asks_it_everything(
    intern: Intern, asked: tuple[str, str], endpoint: EndpointDouble
) -> None:
    code, out, _ = intern("replay", asked[0], "--model", "n", "--json")
    assert code == 0
    assert json.loads(out)["calls"] == 2
    assert [request.body["model"] for request in endpoint.requests[-2:]] == ["n", "n"]


def test_a_replay_without_the_model_ends_with_3(
    intern: Intern, asked: tuple[str, str], endpoint: EndpointDouble
) -> None:
    endpoint.next(refuse(503, says="busy"), prompt="confirm")
    code, out, err = intern("replay", asked[0], "--prompts", stricter())
    assert code == 3
    assert "it could not look (model_" in out + err
