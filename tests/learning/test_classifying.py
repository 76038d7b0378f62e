from __future__ import annotations

import pytest

from intern.core.errors import ModelReplyError, ModelUnavailableError
from intern.core.flow import SkipChoice, TopicChoice
from intern.core.ids import SourceId, TopicName
from intern.core.knowledge import IndexEntry
from intern.learning.classifying import choose_topic
from intern.learning.prompts import CLASSIFY, ClassifyOut, LearningOptions
from tests.worlds.model import ScriptedModel
from tests.worlds.team import Team


def entry(name: str, description: str) -> IndexEntry:
    return IndexEntry(SourceId(name), description)


def listed(*entries: IndexEntry) -> dict[SourceId, IndexEntry]:
    return {each.source_id: each for each in entries}


def named(topic_name: str) -> ClassifyOut:
    return ClassifyOut(skip=False, topic_name=topic_name)


async def test_the_model_sees_the_topics_and_the_pair(team: Team) -> None:
    model = ScriptedModel()
    model.next(CLASSIFY, named("node-startup"))
    entries = listed(entry("team:billing.txt", "Invoices."))
    choice = await choose_topic(model, team.archived("Why does it stop?", "No disk."), entries, LearningOptions())

    assert choice == TopicChoice(name=TopicName("node-startup"))
    [given] = model.calls(CLASSIFY)
    assert given.index == "team:billing.txt\nInvoices."
    assert "User: Why does it stop?\nTeam: No disk." in given.pair


@pytest.mark.parametrize("label", ["node-startup", "team:node-startup.txt", "Node Startup", "../node_startup"])
async def test_an_existing_topic_is_met_however_the_model_writes_it(team: Team, label: str) -> None:
    model = ScriptedModel()
    model.next(CLASSIFY, named(label))
    choice = await choose_topic(
        model, team.archived(), listed(entry("team:node-startup.txt", "Starting.")), LearningOptions()
    )

    assert choice == TopicChoice(name=TopicName("node-startup"))


async def test_a_skip_comes_with_a_reason(team: Team) -> None:
    model = ScriptedModel()
    model.next(CLASSIFY, ClassifyOut(skip=True, topic_name=""))
    choice = await choose_topic(model, team.archived(), {}, LearningOptions())

    assert isinstance(choice, SkipChoice)
    assert choice.reason


@pytest.mark.parametrize("label", ["", "  ", "..", "установка"])
async def test_a_reply_that_neither_skips_nor_names_a_topic_is_refused(team: Team, label: str) -> None:
    model = ScriptedModel()
    model.next(CLASSIFY, named(label))
    with pytest.raises(ModelReplyError):
        await choose_topic(model, team.archived(), {}, LearningOptions())


@pytest.mark.parametrize(
    "reply",
    [
        ClassifyOut(skip=True, topic_name="spool"),
        ClassifyOut(reason="A greeting, so skip.", skip=False, topic_name="spool"),
        ClassifyOut(reason="The command is given, so keep", skip=True, topic_name=""),
    ],
)
async def test_a_reply_that_contradicts_itself_is_refused(team: Team, reply: ClassifyOut) -> None:
    model = ScriptedModel()
    model.next(CLASSIFY, reply)
    with pytest.raises(ModelReplyError, match="contradicts itself"):
        await choose_topic(model, team.archived(), {}, LearningOptions())


async def test_a_model_that_is_down_reaches_the_caller(team: Team) -> None:
    model = ScriptedModel()
    model.next(CLASSIFY, ModelUnavailableError("down"))
    with pytest.raises(ModelUnavailableError):
        await choose_topic(model, team.archived(), {}, LearningOptions())


async def test_a_long_index_and_a_long_pair_are_cut_to_what_matters(team: Team) -> None:
    model = ScriptedModel()
    model.next(CLASSIFY, named("gpu"))
    entries = [entry(f"team:topic-{n}.txt", f"Questions about subject number {n}. " * 5) for n in range(500)]
    entries.insert(250, entry("team:gpu-drivers.txt", "Nvidia driver versions and crashes of the GPU."))
    pair = team.archived("Which nvidia driver does my GPU need? " + "filler " * 3000, "Version 535. " * 3000)
    options = LearningOptions(max_index_chars=1000, max_pair_chars=2000)
    await choose_topic(model, pair, listed(*entries), options)

    [given] = model.calls(CLASSIFY)
    assert len(given.index) <= 1000
    assert "team:gpu-drivers.txt" in given.index
    assert len(given.pair) <= 2000
    assert "User: Which nvidia driver" in given.pair
    assert "Team: Version 535." in given.pair
