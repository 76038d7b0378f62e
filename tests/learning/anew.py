"""Regenerations for the tests: an opinionated model, and their results in a comparable form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast
from zlib import crc32

import msgspec
from anyio.lowlevel import checkpoint

from intern.core.captures import TopicBlock
from intern.core.errors import ModelRefusedError, ModelReplyError
from intern.core.ids import QAId
from intern.core.messages import Image
from intern.learning.prompts import (
    CLASSIFY,
    INTEGRATE,
    SPLIT_TOPIC,
    ClassifyIn,
    ClassifyOut,
    IntegrateIn,
    IntegrateOut,
    SplitIn,
    SplitOut,
)
from intern.learning.regenerating import Regeneration, RegenerationResult
from intern.models.prompt import InT, Model, OutT, Prompt
from intern.stores.block_format import parse_topic_file
from intern.stores.source_cache import parse_index
from tests.worlds.disk import KilledError
from tests.worlds.team import Team

KEEP = IntegrateOut(skip=False, remove_ids=())


def by_first_word(given: ClassifyIn) -> ClassifyOut:
    """Choose the first word of the question as the topic."""
    return ClassifyOut(skip=False, topic_name=given.pair.split("User: ")[1].split()[0])


def describe(blocks: Sequence[TopicBlock]) -> str:
    return f"{len(blocks)} blocks"


async def again(team: Team, model: Model | None = None, **options: Any) -> RegenerationResult:
    """Regenerate, one pair at a time unless a test wants more."""
    given: dict[str, Any] = {"options": team.options, "concurrency": 1, **options}
    return await Regeneration(
        model=model or team.model,
        archive=team.archive,
        knowledge=team.knowledge,
        describe=describe,
        clock=team.clock,
        **given,
    ).run()


async def until_killed(team: Team, **options: Any) -> RegenerationResult | None:
    """Regenerate, and return the result; None if the process was killed before its end."""
    done: RegenerationResult | None = None
    try:
        done = await again(team, **options)
    except* KilledError:
        pass
    return done


def outcome(team: Team) -> tuple[dict[str, str], list[object]]:
    """Return all topics, and the decisions in their order, without their times and reasons."""
    topics: dict[str, str] = {name: team.knowledge.read_text(name) for name in team.knowledge.topic_names()}
    return topics, [
        msgspec.structs.replace(each, at=team.clock.now(), reason="") for each in team.knowledge.read_decisions()
    ]


class Opinionated:
    """Decides by its whole prompt, so that the shown texts matter; takes time, and fails now and then."""

    def __init__(self, pace: int, *, seed: int = 0) -> None:
        self._pace = Random(pace)
        self._seed = seed
        self.calls: list[str] = []
        """The prompts, in the order of the replies."""

    async def ask(self, prompt: Prompt[InT, OutT], given: InT, *, images: Sequence[Image] = ()) -> OutT:
        for _ in range(self._pace.randrange(40)):
            await checkpoint()
        self.calls.append(f"{prompt.name} {given}")
        opinion = crc32(f"{self._seed} {prompt.name} {given}".encode())
        if opinion % 17 == 0:
            raise ModelReplyError("junk")
        if opinion % 19 == 0:
            raise ModelRefusedError("not that")
        return cast("OutT", _SAYS[prompt.name](given, opinion // 400))


def _classify(given: ClassifyIn, opinion: int) -> ClassifyOut:
    known = [entry.source_id for entry in parse_index(given.index)]
    if known and opinion % 3:
        return ClassifyOut(skip=False, topic_name=known[opinion % len(known)])
    skip = opinion % 7 == 0
    return ClassifyOut(skip=skip, topic_name="" if skip else f"topic {opinion % 23}")


def _integrate(given: IntegrateIn, opinion: int) -> IntegrateOut:
    ids = [block.qa_id for block in parse_topic_file(f"{given.blocks}\n\n".encode(), file="").blocks]
    skip = opinion % 5 == 0
    return IntegrateOut(skip=skip, remove_ids=() if skip else ids[: opinion % 2])  # type: ignore[arg-type]


def _split(given: SplitIn, opinion: int) -> SplitOut:
    ids = [QAId(line.split()[0]) for line in given.questions.splitlines()]
    return SplitOut(topic_name=f"split {opinion % 5}", move_ids=tuple(ids[opinion % 2 :: 2]))


_SAYS: dict[str, Callable[[Any, int], Any]] = {
    CLASSIFY.name: _classify,
    INTEGRATE.name: _integrate,
    SPLIT_TOPIC.name: _split,
}
