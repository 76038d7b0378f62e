"""A small real conversation, captured and answered by the model that `INTERN_TEST_GGUF` names: to look at.

What a model makes of it is for people to judge; only what holds for every model is asserted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from intern.core.errors import ModelError
from intern.core.messages import Conversation, Message
from intern.service.intern import Intern
from intern.service.opening import open_intern
from tests.model.serving import serving
from tests.worlds import samples
from tests.worlds.settings import make_settings

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.timeout(1800)]

PORTS = "# Ports\n\nThe relay listens on port 7480. Set `listen` in `relay.toml` to change the port.\n"
TAUGHT = (
    "How do I purge the spool without losing agents?",
    "Stop the relay, then run `lumen-relay spool purge`. The agents send again what they still hold.",
)
QUESTIONS = (
    "Can I empty the spool of the relay and keep my agents?",
    "Which port does the relay listen on?",
    "What does a licence for the relay cost?",
    "thanks, that helped",
)

Say = Callable[[str], None]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_conversation_is_captured_and_answered(
    better_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(line: str) -> None:
        with capsys.disabled():
            print(line)

    (sources := tmp_path / "knowledge-base" / "sources").mkdir(parents=True)
    (sources / "ports.md").write_text(PORTS)
    with serving(better_model, template=None, log=tmp_path / "log.txt", threads=os.cpu_count() or 1) as base_url:
        overrides: dict[str, dict[str, object]] = {
            "data": {"dir": str(tmp_path)},
            "kb": {"settle_seconds": 0},
            "ai": {"request_timeout_seconds": 600},
            "llm": {
                "base_url": base_url,
                "model": better_model.stem,
                "max_tokens": 600,
                "timeout_seconds": 300,
                "max_in_flight": 1,
            },
        }
        async with open_intern(make_settings(**overrides)) as intern:
            say(f"\n\n{better_model.name}")
            await _learn(intern, say)
            for question in QUESTIONS:
                await _ask(intern, question, say)


async def _learn(intern: Intern, say: Say) -> None:
    question, answer = TAUGHT
    say(f"\nmember: {question}\n  team: {answer}")
    with anyio.fail_after(600):
        try:
            captured = await intern.capture(samples.capture(question, answer))
            assert captured is not None
            say(f"captured as {captured.qa_id}")
        except ModelError as error:
            say(f"captured, and not filed: {error}")
        refreshed = await intern.index()
    say(f"indexed: {refreshed}")
    for entry in await intern.entries():
        say(f"  {entry.source_id}: {entry.description}")


async def _ask(intern: Intern, question: str, say: Say) -> None:
    say(f"\nmember: {question}")
    result = await intern.answer(Conversation((Message(role="user", text=question),)), addressed=True)
    if result.should_reply:
        say(f"intern: {result.reply_text}")
    else:
        say(f"intern says nothing: {result.reason} {(result.debug or {}).get('error', '')}")
    for citation in result.citations:
        say(f"  source: {citation.source_id}")
    assert not result.should_reply or result.citations
