"""The log has the events that the specs name, with their fields, and one id runs through them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from intern.core.captures import CapturedPair
from intern.core.clock import Clock
from intern.core.decisions import PairFiled, PairParked
from intern.core.errors import ModelReplyError
from intern.core.flow import Reply
from intern.core.log import bind_trace_id, configure_logging
from intern.core.messages import AnswerResult, Image
from intern.learning.prompts import CLASSIFY, INTEGRATE
from intern.models.prompt import InT, OfflineModel, OutT, Prompt
from intern.models.usage import UsageCounter
from intern.runtime.bot import open_sandbox
from intern.service.models import Models, collect_offline_rules
from intern.service.opening import open_intern
from intern.settings.settings import Settings
from intern.sources.refresh import RefreshReport
from tests.worlds.bot import Watching, settings_in
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import endpoint_double

SPECIFIED = {
    # specs/team-knowledge-capture.md, "Observability"
    "qa_pair_captured": {"qa_id", "conversation_id"},
    "topic_classified": {"qa_id", "skip"},
    "topic_file_updated": {"qa_id", "topic_name"},
    "regeneration_started": set[str](),
    "regeneration_completed": {"pairs"},
    "llm_classification_failed": {"qa_id", "reason"},
    "llm_integration_failed": {"qa_id", "reason"},
    # specs/ai-response.md, "Observability"; `gate.kind` says what its `gate.is_question` and `gate.is_answerable` do.
    # Only `ai.steps = "separate"` has a `gate.reason` (tests/answering/test_answerer.py).
    "ai_request": {
        *("platform", "channel_id", "thread_id", "message_id"),
        *("gate.kind", "gate.seconds"),
        *("selection.selected_sources_count", "loading.loaded_sources_count"),
        *("verification.is_good_enough", "verification.issues_count"),
    },
}


@pytest.fixture
def log() -> Generator[io.StringIO]:
    """All lines, as an operator who asks for everything gets them."""
    root, stream = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    configure_logging(log_format="json", level="debug", stream=stream)
    yield stream
    root.handlers[:], root.level = before


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


class Failing:
    """Rules, but for a prompt that a test can make fail."""

    def __init__(self) -> None:
        self._rules = OfflineModel(collect_offline_rules())
        self.next = ""

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        if prompt.name == self.next:
            self.next = ""
            raise ModelReplyError("gibberish")
        return await self._rules.ask(prompt, given, images=images)


@pytest.mark.rest
async def test_each_event_of_the_specs_is_told_by_its_deed(tmp_path: Path, log: io.StringIO) -> None:
    model, seen, sandbox = Failing(), Watching(), Sandbox(HandClock(), team={"mira"})
    settings = settings_in(tmp_path)

    @asynccontextmanager
    async def models(settings: Settings, usage: UsageCounter, clock: Clock) -> AsyncGenerator[Models]:
        del settings, usage, clock
        yield Models(model, model)

    async def teach(number: int) -> None:
        asked = sandbox.say(f"bob{number}", f"How do I reset the spool of my printer number {number}?")
        sandbox.say("mira", f"Hold the blue key of the spool for {number} seconds.", reply_to=asked.id)
        await seen.one_of(CapturedPair, after=number - 1)

    async with open_sandbox(settings, sandbox, events=seen, clock=HandClock(), models=models):
        await seen.one_of(RefreshReport)
        sandbox.say("bob", "@intern which port does the relay listen on?")
        await seen.one_of(AnswerResult)
        await teach(1)
        await seen.one_of(PairFiled)
        model.next = CLASSIFY.name
        await teach(2)
        await seen.one_of(PairParked)
        model.next = INTEGRATE.name
        await teach(3)
        await seen.one_of(PairParked, after=1)
    async with open_intern(settings) as intern:
        await intern.regenerate()
    told = {line["event"]: line for line in lines(log)}
    assert told.keys() >= SPECIFIED.keys()
    assert not {event: missing for event, fields in SPECIFIED.items() if (missing := fields - told[event].keys())}
    assert told["llm_integration_failed"]["qa_id"] == seen.all_of(PairParked)[1].qa_id
    # Ids rather than text.
    assert not [word for word in ("blue key", "reset the spool", "relay listen") if word in log.getvalue()]


@pytest.mark.rest
async def test_one_id_runs_from_the_message_to_the_reply_through_every_call_of_the_model(
    tmp_path: Path, log: io.StringIO
) -> None:
    seen, sandbox = Watching(), Sandbox(HandClock(), team={"mira"})
    with endpoint_double() as endpoint:
        settings = settings_in(tmp_path, llm={"base_url": endpoint.base_url, "model": "m"})
        async with open_sandbox(settings, sandbox, events=seen, clock=HandClock()):
            await seen.one_of(RefreshReport)
            asked = sandbox.say("bob", "@intern which port does the relay listen on?")
            other = sandbox.say("ann", "@intern and how is its config file named?")
            await seen.one_of(AnswerResult, after=1)
            await seen.one_of(Reply, after=1)
            taught = sandbox.say("mira", "It is relay.toml.", reply_to=other.id)
            await seen.one_of(CapturedPair)
            await seen.one_of(PairFiled)
    for question in (asked, other):
        events = [line["event"] for line in lines(log) if line.get("trace_id") == question.id]
        assert events[0] == "batch_taken"
        assert {"model_replied", "ai_step", "ai_request", "reply_posted"} <= set(events)
    [captured] = [line for line in lines(log) if line["event"] == "qa_pair_captured"]
    assert captured["trace_id"] == taught.id
    calls = [line for line in lines(log) if line["event"] == "model_replied"]
    assert {"decide", "confirm", "classify"} <= {line["prompt"] for line in calls}
    about = {line["prompt"]: line for line in calls}
    assert about["classify"]["qa_id"] == captured["qa_id"]
    assert all("trace_id" in line for line in calls if line["prompt"] in {"decide", "confirm"})


async def test_an_id_is_left_where_its_work_ends(log: io.StringIO) -> None:
    with bind_trace_id("1"), bind_trace_id("2"):
        logging.getLogger("httpx").warning("inside")
    logging.getLogger("httpx").warning("outside")
    inside, outside = lines(log)
    assert inside["trace_id"] == "2"
    assert "trace_id" not in outside
