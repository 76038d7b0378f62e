from __future__ import annotations

from functools import partial
from itertools import repeat

import pytest
from anyio import Event, create_memory_object_stream, create_task_group, fail_after, wait_all_tasks_blocked

from intern.actors.integrator import integrator
from intern.actors.witness import Witness
from intern.domain import Decision, Filed, Filing, SourceChanged, Topic, TopicName
from intern.errors import KnowledgeError, ModelUnavailableError
from tests.samples import START, pair

pytestmark = pytest.mark.anyio

NO_PAUSES = partial(repeat, 0.0)


class Filer:
    """Files everything; questions in `trouble` fail with what is laid out for them, once each."""

    def __init__(self, gate: Event | None = None, **trouble: list[Exception]) -> None:
        self.filed: list[str] = []
        self._gate = gate
        self._trouble = trouble

    async def file(self, filing: Filing, /) -> Decision:
        if self._gate:
            await self._gate.wait()
        question = filing.pair.question
        if self._trouble.get(question):
            raise self._trouble[question].pop(0)
        self.filed.append(question)
        return Filed(qa_id=filing.pair.qa_id, topic=TopicName("gpu"), at=START)


def filing(question: str, n: int = 1) -> Filing:
    return Filing(pair=pair(question, n=n), choice=Topic(name=TopicName("gpu")))


async def run(filer: Filer, *questions: str) -> list[SourceChanged]:
    filings, inbox = create_memory_object_stream[Filing](10)
    changed, nudged = create_memory_object_stream[SourceChanged](1)
    with fail_after(5), nudged:
        with filings:
            for n, question in enumerate(questions):
                filings.send_nowait(filing(question, n))
        await integrator(inbox, changed, filer=filer, witness=Witness(), pauses=NO_PAUSES)
        return [each async for each in nudged]


async def test_filings_are_carried_out_in_order_and_the_indexer_is_nudged() -> None:
    filer = Filer()
    assert await run(filer, "a", "b", "c") == [SourceChanged()]
    assert filer.filed == ["a", "b", "c"]


async def test_an_absent_model_is_asked_again_so_that_order_is_kept() -> None:
    filer = Filer(a=[ModelUnavailableError("down"), ModelUnavailableError("down")])
    await run(filer, "a", "b")
    assert filer.filed == ["a", "b"]


async def test_a_topic_file_that_cannot_be_written_costs_its_own_pair_only() -> None:
    filer = Filer(a=[KnowledgeError("read-only file system")])
    await run(filer, "a", "b")
    assert filer.filed == ["b"]


async def test_a_slow_integration_is_felt_by_the_classifier() -> None:
    filings, inbox = create_memory_object_stream[Filing](0)
    changed, nudged = create_memory_object_stream[SourceChanged](1)
    gate = Event()
    with fail_after(5), nudged, filings:
        async with create_task_group() as tg:
            tg.start_soon(partial(integrator, inbox, changed, filer=Filer(gate), witness=Witness()))
            await filings.send(filing("a"))
            tg.start_soon(filings.send, filing("b"))
            await wait_all_tasks_blocked()
            assert filings.statistics().tasks_waiting_send == 1
            gate.set()
            await wait_all_tasks_blocked()
            assert filings.statistics().tasks_waiting_send == 0
            tg.cancel_scope.cancel()
