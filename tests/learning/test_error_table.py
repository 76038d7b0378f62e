"""The rows of the team knowledge specification's error table that concern filing, each for a pair in the archive."""

from __future__ import annotations

from typing import Any

import pytest
from anyio import fail_after
from structlog.testing import capture_logs
from structlog.typing import EventDict

from intern.core.captures import CapturedPair
from intern.core.decisions import PairDecision, PairParked, PairSkipped
from intern.core.errors import (
    KnowledgeError,
    ModelBudgetTooSmallError,
    ModelError,
    ModelPromptTooLongError,
    ModelRefusedError,
    ModelReplyCutError,
    ModelReplyError,
    ModelSchemaError,
    ModelUnavailableError,
)
from intern.core.flow import SkipChoice, TopicChoice
from intern.learning.classifying import choose_topic
from intern.learning.filing import attempt_filing
from intern.learning.prompts import CLASSIFY, INTEGRATE, ClassifyOut, LearningOptions
from intern.models.prompt import Prompt
from tests.worlds.actors import Attempts
from tests.worlds.team import Team


async def filed(team: Team, pair: CapturedPair) -> tuple[PairDecision, list[EventDict]]:
    async def choose(pair: CapturedPair) -> TopicChoice | SkipChoice:
        return await choose_topic(team.model, pair, {}, LearningOptions())

    with capture_logs() as logs, fail_after(5):
        return await attempt_filing(pair, filer=team.filer, choose=choose, attempts=Attempts()), logs


def is_archived_and_in_no_topic(team: Team, pair: CapturedPair) -> bool:
    return team.archive.get(pair.qa_id) == pair and team.knowledge.find_topic(pair.qa_id) is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModelReplyError("gibberish"), "the model's reply did not fit classify; the log says how"),
        (ModelRefusedError("no"), "the model refused classify; the log holds its words"),
        (
            ModelReplyCutError("as it said:"),
            "the model's reply to classify was cut off by length; the log says which setting bounds it",
        ),
        (
            ModelPromptTooLongError("lower kb.x"),
            "the prompt of classify does not fit into what the model takes; the log says what to lower",
        ),
        (
            ModelBudgetTooSmallError("raise llm.daily_token_budget"),
            "a call of classify fits into no day's budget; the log says what to raise",
        ),
        (
            ModelSchemaError("HTTP 400"),
            "the model cannot hold its reply to the form of classify; the log says what to set",
        ),
    ],
)
async def test_a_call_for_the_topic_that_fails_is_logged_and_the_pair_is_in_no_topic(
    team: Team, error: ModelError, reason: str
) -> None:
    pair = team.archived()
    team.model.next(CLASSIFY, error)
    decision, logs = await filed(team, pair)
    assert isinstance(decision, PairParked)
    assert decision.reason == reason
    assert [(log["event"], log["log_level"]) for log in logs] == [("llm_classification_failed", "warning")]
    assert logs[0]["reason"] == str(error)
    assert is_archived_and_in_no_topic(team, pair)


async def test_a_call_for_the_integration_that_fails_is_logged_and_the_topic_stays(team: Team) -> None:
    old = await team.placed("nodes", team.archived("Old?", "x", after=-1))
    pair = team.archived("New?", "x")
    team.model.next(CLASSIFY, ClassifyOut(skip=False, topic_name="nodes"))
    team.model.next(INTEGRATE, ModelReplyError("gibberish"))
    decision, logs = await filed(team, pair)
    assert isinstance(decision, PairParked)
    assert "llm_integration_failed" in {log["event"] for log in logs if log["log_level"] == "warning"}
    assert [block.qa_id for block in team.knowledge.read_topic(team.knowledge.topic_names()[0])] == [old.qa_id]
    assert is_archived_and_in_no_topic(team, pair)


async def test_an_absent_model_leaves_the_pair_for_later(team: Team) -> None:
    pair = team.archived()
    team.model.next(CLASSIFY, ModelUnavailableError("down"))
    with pytest.raises(ModelUnavailableError):
        await filed(team, pair)
    assert team.knowledge.last_decision(pair.qa_id) is None
    assert is_archived_and_in_no_topic(team, pair)


async def test_a_disk_that_is_full_is_told_and_leaves_nothing_half_written(team: Team) -> None:
    pair = team.archived(answer="Like this. " * 2000)
    await team.db.run("pragma max_page_count = 1")  # no page more than there are
    team.model.next(CLASSIFY, ClassifyOut(skip=False, topic_name="nodes"))
    with pytest.raises(KnowledgeError, match="no space is left"):
        await filed(team, pair)
    assert is_archived_and_in_no_topic(team, pair)
    assert team.knowledge.last_decision(pair.qa_id) is None
    team.open()
    assert team.knowledge.read_decisions() == []
    assert team.knowledge.topic_names() == ()


async def test_what_the_classifier_skips_is_logged_and_stays_in_the_archive(team: Team) -> None:
    pair = team.archived()
    team.model.next(CLASSIFY, ClassifyOut(skip=True, topic_name=""))
    decision, logs = await filed(team, pair)
    assert isinstance(decision, PairSkipped)
    assert [(log["event"], log["skip"]) for log in logs] == [("topic_classified", True)]
    assert is_archived_and_in_no_topic(team, pair)


@pytest.mark.parametrize("step", [CLASSIFY, INTEGRATE])
@pytest.mark.parametrize("kind", [ModelReplyError, ModelRefusedError])
async def test_no_word_that_a_model_quoted_is_kept_among_the_decisions(
    team: Team, step: Prompt[Any, Any], kind: type[ModelError]
) -> None:
    await team.placed("nodes", team.archived("Old?", "x", after=-1))
    team.model.always(CLASSIFY, ClassifyOut(skip=False, topic_name="nodes"))
    team.model.next(step, kind("I cannot help with 'How do I feed my quokka?'"))
    decision, _ = await filed(team, team.archived("How do I feed my quokka?", "x"))
    assert isinstance(decision, PairParked)
    assert step.name in decision.reason
    assert "quokka" not in repr(team.knowledge.read_decisions())


@pytest.mark.parametrize("name", ["", "  ", "../..", "...", "установка"])
async def test_a_topic_without_a_name_is_a_warning_and_the_pair_is_in_no_topic(team: Team, name: str) -> None:
    pair = team.archived()
    team.model.next(CLASSIFY, ClassifyOut(skip=False, topic_name=name))
    decision, logs = await filed(team, pair)
    assert isinstance(decision, PairParked)
    assert [log["log_level"] for log in logs] == ["warning"]
    assert is_archived_and_in_no_topic(team, pair)


SAME = [
    "node startup",
    "Node_Startup",
    " NODE  STARTUP ",
    "../node-startup",
    "node.startup.txt",
    "team:node-startup.txt",
]


async def test_whatever_a_model_calls_a_topic_it_is_a_slug(team: Team) -> None:
    labels = [*SAME, "x" * 300, "/etc/passwd", "C:\\Windows\\con", ".hidden", "a/../../b", "nul\0.txt"]
    team.model.always(INTEGRATE, ModelReplyError("nothing is integrated here"))
    for n, label in enumerate(labels):
        team.model.next(CLASSIFY, ClassifyOut(skip=False, topic_name=label))
        await filed(team, team.archived(f"Question {n}?", "x"))
    assert set(team.knowledge.topic_names()) == {
        "node-startup",
        "x" * 64,
        "etc-passwd",
        "c-windows-con",
        "hidden",
        "a-b",
        "nul-topic",
    }
