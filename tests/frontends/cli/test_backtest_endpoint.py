"""`intern backtest` with a model behind an endpoint: what it took is counted, and an endpoint that goes away costs no
more than the questions that nobody could look at."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from intern.lab import backtest
from intern.lab.outcomes import BacktestReport
from tests.frontends.cli.conftest import Ended, Intern, process
from tests.service.chatting import ALICE, BOB, MAYA, Town
from tests.worlds.endpoint import EndpointDouble, Reply, endpoint_double, prompt_of, refuse, sensible

QUESTION = "Which port does the relay listen on behind the proxy?"
ANSWER = "The relay listens on port 7480 behind the proxy."
INPUT, OUTPUT = 2.0, 8.0  # a million tokens
LEARNING = {"classify", "integrate", "split_topic", "extract", "summarize_source", "summarize_topic"}


def counted(body: dict[str, Any]) -> Reply:
    return Reply(content=sensible(body), usage={"prompt_tokens": 1000, "completion_tokens": 50})


def configured(folder: Path, endpoint: EndpointDouble, **llm: Any) -> None:
    options = {
        "provider": "endpoint",
        "base_url": endpoint.base_url,
        "model": "double",
        "api_key": "sk-double-1188",
        "max_retries": 0,
        **llm,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    (folder / "intern.toml").write_text(
        "\n".join(
            [
                "[embeddings]",
                'provider = "none"',
                "[llm]",
                *lines,
                "[[llm.prices]]",
                'model = "double"',
                f"input = {INPUT}",
                f"output = {OUTPUT}",
            ]
        )
    )


def exported(folder: Path, questions: int) -> Path:
    """A question that the team answers, and others, each asked later in a channel where the team stays away."""
    town = Town()
    asked = town.channel().say(ALICE, QUESTION)
    town.channel().say(MAYA, ANSWER, to=asked)
    for n in range(questions - 1):
        town.channel().say(BOB, f"{QUESTION} I have {n + 2} of them.", after=3600)
    [path] = town.save(folder / "exports")
    return path


def arguments(path: Path) -> list[str]:
    reports = ["--result", "done.json", "--html", "done.html"]
    return ["backtest", str(path), "--team-id", MAYA, "--concurrency", "2", *reports]


def report(folder: Path) -> BacktestReport:
    return msgspec.json.decode((folder / "done.json").read_bytes(), type=BacktestReport)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.rest
def test_what_models_took_is_counted_and_priced_in_both_reports(folder: Path, sources: Path) -> None:
    path = exported(folder, 3)
    with endpoint_double(counted, api_key="sk-double-1188") as endpoint:
        configured(folder, endpoint)
        code, out, err = process(*arguments(path))
    assert (code, err.splitlines()[0]) == (0, "read 4 messages in 1 channels and threads")
    done, page = report(folder), (folder / "done.html").read_text()
    assert (done.finished, done.stopped, done.model, done.priced) == (True, "", "double", True)
    assert [outcome.verdict for outcome in done.outcomes] == ["agreed", "team_silent", "team_silent"]
    assert all("7480" in (outcome.reply or "") for outcome in done.outcomes)
    learning = [request for request in endpoint.requests if request.prompt in LEARNING]
    answering = [request for request in endpoint.requests if request.prompt not in LEARNING]
    for spent, requests in ((done.totals.learning, learning), (done.totals.answering, answering)):
        assert len(requests) > 2
        assert (spent.calls, spent.tokens) == (len(requests), 1050 * len(requests))
        assert spent.cost == pytest.approx(len(requests) * (1000 * INPUT + 50 * OUTPUT) / 1_000_000)
        assert f"{spent.cost:.4f} USD" in out
        assert f"{spent.cost:.4f} USD" in page
        assert str(spent.tokens) in page
    assert sum(outcome.cost for outcome in done.outcomes) == pytest.approx(done.totals.answering.cost)
    assert sum(done.totals.tokens_by_prompt.values()) == done.totals.answering.tokens
    assert files(folder) == {"intern.toml", "exports", "data", "done.json", "done.html"}
    assert sources.parent.parent.name == "data"
    assert files(folder / "data") == {"knowledge-base"}, "nothing is laid down in the operator's own folder"
    assert "sk-double" not in out + err + page + (folder / "done.json").read_text()


def failing(
    intern: Intern, folder: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[int, str], Any], **llm: Any
) -> tuple[Ended, EndpointDouble]:
    """A backtest of six questions that waits for moments only; `answer` gives what a call gets that must fail."""
    path = exported(folder, 6)
    monkeypatch.setattr(backtest, "PAUSES", (0.01, 0.02))
    calls = 0

    def count(body: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        return answer(calls, prompt_of(body)) or counted(body)

    with endpoint_double(count) as endpoint:
        configured(folder, endpoint, **llm)
        return intern(*arguments(path), "--no-documents"), endpoint


def test_an_endpoint_that_is_away_half_way_ends_it_with_a_report_of_what_was_asked(
    intern: Intern, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, _ = failing(intern, folder, monkeypatch, lambda n, _: refuse(503, says="<b>busy</b>") if n > 7 else None)
    done, page = report(folder), (folder / "done.html").read_text()
    assert ended.code == 3
    assert "Traceback" not in ended.err
    assert ended.out.startswith(f"stopped after {done.totals.questions} of 6 questions\n")
    assert ended.err.count("waiting 0.01 s for the model: ") == 1
    last, *written = ended.err.splitlines()[-3:]
    assert last.startswith("gave up waiting for the model: ")
    assert "answered 503" in last
    assert written == ["wrote done.json", "wrote done.html"]
    assert (done.finished, done.stopped) == (False, last.removeprefix("gave up waiting for the model: "))
    looked_at = [outcome for outcome in done.outcomes if outcome.verdict != "could_not_look"]
    failed = [outcome for outcome in done.outcomes if outcome.verdict == "could_not_look"]
    assert len(looked_at) > 1, "what was answered before stays"
    assert 1 <= len(failed) <= 2, "nobody else was asked in vain"
    assert all("answered 503" in outcome.error for outcome in failed)
    assert done.totals.answering.cost > 0
    assert "Stopped before its end" in page
    assert "The model could not be asked any more: " in page
    assert "&lt;b&gt;busy" in page
    assert files(folder) == {"intern.toml", "exports", "done.json", "done.html"}


def test_an_endpoint_that_comes_back_costs_no_question(
    intern: Intern, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [refuse(503), refuse(503)]

    def twice(_: int, prompt: str) -> Any:
        return left.pop() if prompt == "confirm" and left else None

    ended, _ = failing(intern, folder, monkeypatch, twice)
    done = report(folder)
    assert (ended.code, done.finished, done.totals.could_not_look) == (0, True, {})
    assert "for the model: " in ended.err
    assert [outcome.verdict for outcome in done.outcomes] == ["silent", *["team_silent"] * 5]
    told = sum(done.totals.tokens_by_prompt.values())
    assert done.totals.answering.tokens == told + 2 * 1050, "also what the two attempts in vain had paid"


@pytest.mark.rest
@pytest.mark.parametrize(
    ("last_call", "llm", "says"),
    [
        pytest.param(7, {}, "llm.api_key", id="key withdrawn"),
        pytest.param(99, {"daily_token_budget": 14_000}, "llm.daily_token_budget", id="budget spent"),
    ],
)
def test_what_waiting_does_not_mend_is_not_waited_for(
    intern: Intern, folder: Path, monkeypatch: pytest.MonkeyPatch, *, last_call: int, llm: dict[str, Any], says: str
) -> None:
    ended, _ = failing(intern, folder, monkeypatch, lambda n, _: refuse(401) if n > last_call else None, **llm)
    done = report(folder)
    assert (ended.code, done.finished) == (3, False)
    assert says in done.stopped
    assert says in ended.err.splitlines()[-3]
    assert "waiting" not in ended.err.replace("gave up waiting", "")
    assert 1 < done.totals.questions < 6


def test_what_cannot_be_learned_ends_it_before_answers_lack_it(
    intern: Intern, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, endpoint = failing(
        intern, folder, monkeypatch, lambda _, prompt: refuse(503) if prompt in LEARNING else None
    )
    done = report(folder)
    assert (ended.code, done.learned.delayed) == (3, 1)
    assert [outcome.verdict for outcome in done.outcomes] == ["silent"], "only the first question knew all there was"
    assert {request.prompt for request in endpoint.requests} <= LEARNING


def test_a_report_that_cannot_be_written_is_told_after_the_summary_and_the_other_is_written(
    intern: Intern, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = folder / "done.json"
    old.write_text("of last week")

    def full(fd: int, data: bytes) -> int:
        if b'"outcomes"' in bytes(data):
            raise OSError(28, "No space left on device")
        return real(fd, data)

    from os import write as real  # noqa: PLC0415 the one that stands until then

    monkeypatch.setattr("intern.stores.files.os.write", full)
    ended, _ = failing(intern, folder, monkeypatch, lambda _call, _prompt: None)
    assert ended.code == 3
    assert "questions asked" in ended.out
    assert ended.err.splitlines()[-1].startswith(f"intern: {old} could not be written (No space left on device)")
    assert old.read_text() == "of last week"
    assert "</html>" in (folder / "done.html").read_text()
    assert files(folder) == {"intern.toml", "exports", "done.json", "done.html"}


def test_a_pipe_is_written_to_and_not_replaced(intern: Intern, folder: Path) -> None:
    path, pipe = exported(folder, 1), folder / "pipe"
    (folder / "intern.toml").write_text('[llm]\nprovider = "offline"\n[embeddings]\nprovider = "none"\n')
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reading:
        try:
            ended = intern("backtest", str(path), "--team-id", MAYA, "--result", str(pipe))
            assert ended.code == 0
            assert pipe.is_fifo()
            read, _ = reading.communicate(timeout=20)
        finally:
            reading.kill()
    assert msgspec.json.decode(read, type=BacktestReport).finished
