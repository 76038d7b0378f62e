"""The extractor follows the decisions at its own pace, and no failure ends it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence, Set as AbstractSet
from itertools import repeat

import pytest
from anyio import create_memory_object_stream, create_task_group, current_time, fail_after, wait_all_tasks_blocked

from intern.actors.activity import ActivityReporter
from intern.actors.extractor import ExtractionStep, ExtractionWorker
from intern.actors.loops import DueRecord
from intern.core.errors import KnowledgeError, ModelUnavailableError
from intern.core.flow import DecisionRecorded
from intern.core.ids import ConversationId
from intern.facts.extraction import ExtractionOutcome
from intern.learning.attempts import MOST_ATTEMPTS
from tests.worlds.actors import Attempts
from tests.worlds.clock import leap

pytestmark = pytest.mark.leaps


class Decisions:
    """Decisions about one conversation each; the position is the number of the decision."""

    def __init__(self, *conversations: str) -> None:
        self.conversations = list(conversations)
        self.fails = 0
        self.again: list[str] = []

    async def after(self, position: int | None, /) -> Sequence[ExtractionStep]:
        if self.fails:
            self.fails -= 1
            raise KnowledgeError("the disk sleeps")
        at = position or 0
        return [
            ExtractionStep(conversations=(ConversationId(each),), position=n)
            for n, each in enumerate(self.conversations[at:], at + 1)
        ]

    async def due(self, handed: AbstractSet[Hashable], /) -> DueRecord[ExtractionStep]:
        for each in self.again:
            if each not in handed:
                return DueRecord(record=ExtractionStep(conversations=(ConversationId(each),)), key=each)
        return DueRecord()


class Reader:
    """Remembers the conversations that it was asked to read."""

    def __init__(self) -> None:
        self.read: list[tuple[str, float]] = []
        self.parked: list[str] = []
        self.position = 0
        self.errors: Iterator[Exception] = iter(())

    async def extract(self, conversation_id: ConversationId, /) -> ExtractionOutcome:
        for error in self.errors:
            raise error
        self.read.append((conversation_id, current_time()))
        return "extracted"

    async def park(self, conversation_id: ConversationId, why: str, /) -> None:
        assert "process ended" in why
        self.parked.append(conversation_id)

    async def save_position(self, position: int, /) -> None:
        self.position = position

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.read]


async def run(
    decisions: Decisions,
    reader: Reader,
    *,
    after: int | None = None,
    attempts: Attempts | None = None,
    meanwhile: Callable[[], None] = lambda: None,
    leaps: Sequence[float] = (),
) -> None:
    wakeups, inbox = create_memory_object_stream[DecisionRecorded](1)
    with fail_after(300):
        async with create_task_group() as tg, wakeups:

            async def work() -> None:
                await ExtractionWorker(
                    decisions=decisions.after,
                    after=after,
                    extraction=reader,
                    again=decisions.due,
                    attempts=attempts or Attempts(),
                    events=ActivityReporter(),
                    backoff=lambda: repeat(5.0),
                ).run(inbox)

            tg.start_soon(work)
            await wait_all_tasks_blocked()
            meanwhile()
            wakeups.send_nowait(DecisionRecorded())
            for seconds in leaps:
                await wait_all_tasks_blocked()
                await leap(seconds)


async def test_decisions_are_followed_in_order_and_the_position_is_kept() -> None:
    decisions, reader = Decisions("a", "b"), Reader()
    await run(decisions, reader, meanwhile=lambda: decisions.conversations.append("c"))
    assert (reader.names, reader.position) == (["a", "b", "c"], 3)


async def test_it_begins_where_it_left_off() -> None:
    reader = Reader()
    await run(Decisions("a", "b", "c"), reader, after=2)
    assert reader.names == ["c"]


async def test_what_failed_comes_again_when_its_time_has_come() -> None:
    decisions, reader = Decisions("a"), Reader()
    decisions.again = ["b"]
    await run(decisions, reader)
    assert (reader.names, reader.position) == (["a", "b"], 1)


async def test_an_absent_model_is_waited_for_and_nothing_is_passed_over() -> None:
    reader = Reader()
    reader.errors = iter([ModelUnavailableError("away"), ModelUnavailableError("away"), KnowledgeError("full")])
    begun = current_time()
    await run(Decisions("a", "b"), reader, leaps=[5.01] * 3)
    assert reader.names == ["a", "b"]
    assert reader.read[0][1] - begun >= 15


async def test_decisions_that_cannot_be_read_are_asked_for_again() -> None:
    decisions, reader = Decisions("a"), Reader()
    decisions.fails = 2
    await run(decisions, reader, leaps=[5.01] * 2)
    assert reader.names == ["a"]


async def test_a_conversation_that_ended_the_process_again_and_again_is_parked_and_the_next_one_is_read() -> None:
    reader, attempts = Reader(), Attempts(**{"extract a": MOST_ATTEMPTS})
    await run(Decisions("a", "b"), reader, attempts=attempts)
    assert (reader.parked, reader.names) == (["a"], ["b"])
    assert attempts.open == {}
