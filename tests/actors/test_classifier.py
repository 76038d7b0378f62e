from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat

import pytest
from anyio import create_memory_object_stream, create_task_group, fail_after, wait_all_tasks_blocked

from intern.actors.classifier import classifier
from intern.actors.witness import Witness
from intern.domain import Archived, CapturedPair, Failed, Filing, QAId, Skip, Topic, TopicName
from intern.errors import ModelReplyError, ModelUnavailableError
from tests.samples import pair

pytestmark = pytest.mark.anyio

NO_PAUSES = partial(repeat, 0.0)


class Pairs:
    """An archive in memory."""

    def __init__(self, *pairs: CapturedPair) -> None:
        self.held = list(pairs)

    async def after(self, position: QAId | None, /) -> Sequence[CapturedPair]:
        return [each for each in self.held if position is None or each.qa_id > position]


class Chooser:
    """Gives what was laid out, in order; then always the topic gpu."""

    def __init__(self, *choices: Topic | Skip | Exception) -> None:
        self._choices = list(choices)
        self.asked: list[str] = []

    async def choose_topic(self, pair: CapturedPair, /) -> Topic | Skip | Failed:
        self.asked.append(pair.question)
        choice = self._choices.pop(0) if self._choices else Topic(name=TopicName("gpu"))
        if isinstance(choice, Exception):
            raise choice
        return choice


async def filings_of(archive: Pairs, chooser: Chooser, after: QAId | None = None) -> list[Filing]:
    nudges, look = create_memory_object_stream[Archived](1)
    filings, filed = create_memory_object_stream[Filing](0)
    nudges.close()
    seen: list[Filing] = []
    with fail_after(5), filed:
        async with create_task_group() as tg:
            tg.start_soon(
                partial(
                    classifier,
                    archive,
                    look,
                    filings,
                    after=after,
                    chooser=chooser,
                    witness=Witness(),
                    pauses=NO_PAUSES,
                )
            )
            seen += [filing async for filing in filed]
    return seen


async def test_pairs_are_filed_in_the_order_of_the_archive() -> None:
    archive = Pairs(*(pair(f"q{n}", n=n) for n in range(4)))
    assert [filing.pair.question for filing in await filings_of(archive, Chooser())] == ["q0", "q1", "q2", "q3"]


async def test_pairs_up_to_the_cursor_are_not_asked_about_again() -> None:
    archive = Pairs(*(pair(f"q{n}", n=n) for n in range(4)))
    chooser = Chooser()
    await filings_of(archive, chooser, after=archive.held[1].qa_id)
    assert chooser.asked == ["q2", "q3"]


async def test_a_reply_that_makes_no_sense_costs_its_own_pair_only() -> None:
    archive = Pairs(pair("q0", n=0), pair("q1", n=1))
    filings = await filings_of(archive, Chooser(ModelReplyError("gibberish")))
    assert filings[0].choice == Failed(reason="gibberish")
    assert filings[1].choice == Topic(name=TopicName("gpu"))


async def test_an_absent_model_is_asked_again_until_it_is_back() -> None:
    away = ModelUnavailableError("the endpoint is down")
    archive = Pairs(pair("q0", n=0), pair("q1", n=1))
    chooser = Chooser(away, away, Skip(reason="greeting"))
    filings = await filings_of(archive, chooser)
    assert [filing.choice for filing in filings] == [Skip(reason="greeting"), Topic(name=TopicName("gpu"))]
    assert chooser.asked == ["q0", "q0", "q0", "q1"]


async def test_a_slow_integrator_holds_the_classifier_back() -> None:
    archive = Pairs(*(pair(f"q{n}", n=n) for n in range(5)))
    chooser = Chooser()
    nudges, look = create_memory_object_stream[Archived](1)
    filings, filed = create_memory_object_stream[Filing](0)
    with fail_after(5), filed, nudges:
        async with create_task_group() as tg:
            tg.start_soon(
                partial(
                    classifier, archive, look, filings, after=None, chooser=chooser, witness=Witness(), pauses=NO_PAUSES
                )
            )
            await wait_all_tasks_blocked()
            assert chooser.asked == ["q0"]

            await filed.receive()
            await wait_all_tasks_blocked()
            assert chooser.asked == ["q0", "q1"]
            tg.cancel_scope.cancel()
