"""The offline model: rules instead of a model, held to the same types."""

from __future__ import annotations

from collections import Counter

import pytest
from anyio import create_task_group
from anyio.lowlevel import checkpoint
from msgspec import Struct

from intern.core.errors import ModelRefusedError
from intern.models.prompt import OfflineModel, Prompt
from tests.worlds.actors import running


class Given(Struct, frozen=True):
    word: str


class Reply(Struct, frozen=True):
    word: str


SHOUT = Prompt("shout", takes=Given, gives=Reply)


async def test_a_prompt_is_answered_by_its_rule() -> None:
    model = OfflineModel({"shout": lambda given: Reply(given.word.upper())})

    assert await model.ask(SHOUT, Given("hey")) == Reply("HEY")


async def test_a_rule_may_wait() -> None:
    async def shout(given: Given) -> Reply:
        await checkpoint()
        return Reply(given.word.upper())

    assert await OfflineModel({"shout": shout}).ask(SHOUT, Given("hey")) == Reply("HEY")


async def test_a_prompt_without_a_rule_is_refused_and_told_what_to_set() -> None:
    with pytest.raises(ModelRefusedError, match=r"shout cannot be done.*llm\.base_url"):
        await OfflineModel({}).ask(SHOUT, Given("hey"))


async def test_a_rule_that_gives_the_wrong_type_is_a_bug() -> None:
    with pytest.raises(TypeError, match="the rule of shout gave a str"):
        await OfflineModel({"shout": lambda given: "HEY"}).ask(SHOUT, Given("hey"))


async def test_between_two_rules_of_a_burst_everybody_else_gets_a_turn() -> None:
    turns, seen = 0, list[int]()

    def rule(given: Given) -> Reply:
        seen.append(turns)
        return Reply(given.word)

    async def bystand() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    model = OfflineModel({"shout": rule})
    async with running(bystand), create_task_group() as burst:
        for _ in range(8):
            burst.start_soon(model.ask, SHOUT, Given("hey"))
    assert len(seen) == 8
    assert max(Counter(seen).values()) <= 2  # before and after the bystander, whom trio takes in any order
