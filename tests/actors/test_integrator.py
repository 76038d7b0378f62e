from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import suppress

import pytest
from anyio import Event, create_memory_object_stream, create_task_group, fail_after, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from intern.actors.activity import ActivityReporter
from intern.actors.integrator import Integrator
from intern.actors.loops import Backoff
from intern.core.decisions import Decision, MessagesWithdrawn, PairDecision, PairFiled
from intern.core.errors import ConfigError, KnowledgeError, ModelUnavailableError
from intern.core.flow import (
    DecisionRecorded,
    FailedChoice,
    FilingDecision,
    MessageWithdrawal,
    SourceChanged,
    TopicChoice,
)
from intern.core.ids import MessageId, TopicName
from intern.learning.attempts import AttemptsExhausted
from intern.learning.withdrawing import MessageRemoval
from tests.worlds.actors import NO_PAUSES, Attempts, running
from tests.worlds.samples import START, pair


class Filer:
    """Files everything; questions in `trouble` fail with their error, once each."""

    def __init__(self, gate: Event | None = None, **trouble: list[Exception]) -> None:
        self.filed: list[str] = []
        self.withdrawn: list[str] = []
        self.topics: tuple[TopicName, ...] = (TopicName("gpu"),)
        self.disk_trouble: list[Exception] = []
        self._gate = gate
        self._trouble = trouble

    async def file(self, filing: FilingDecision, /) -> PairDecision:
        if self._gate:
            await self._gate.wait()
        question = filing.pair.question
        if self._trouble.get(question):
            raise self._trouble[question].pop(0)
        self.filed.append(question)
        return PairFiled(qa_id=filing.pair.qa_id, topic=TopicName("gpu"), at=START)

    async def withdraw(self, message_ids: Collection[MessageId], /) -> MessageRemoval | None:
        await checkpoint()
        if self.disk_trouble:
            raise self.disk_trouble.pop()
        fresh = tuple(each for each in message_ids if each not in self.withdrawn)
        self.withdrawn += fresh
        return MessageRemoval(MessagesWithdrawn(message_ids=fresh, at=START), self.topics) if fresh else None


def filing(question: str, n: int = 1) -> FilingDecision:
    return FilingDecision(pair=pair(question, n=n), choice=TopicChoice(name=TopicName("gpu")))


class Deciding(ActivityReporter):
    """Remembers the decisions."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []

    def report_decision(self, decision: Decision) -> None:
        self.decisions.append(decision)


class Desk:
    """An integrator with streams to look into."""

    def __init__(self, filer: Filer, *, filings: int = 10, attempts: Attempts | None = None) -> None:
        self.filings, self.inbox = create_memory_object_stream[FilingDecision](filings)
        self.to_withdraw, self.withdrawals = create_memory_object_stream[MessageWithdrawal](10)
        self.changed, self.woken = create_memory_object_stream[SourceChanged](1)
        self.decided, self.followed = create_memory_object_stream[DecisionRecorded](1)
        self.extractor_was_nudged = False
        self.filer, self.events = filer, Deciding()
        self.attempts = attempts or Attempts()

    def withdraw(self, *ids: str) -> None:
        for each in ids:
            self.to_withdraw.send_nowait(MessageWithdrawal(message_ids=(MessageId(each),)))

    def end(self) -> None:
        self.filings.close()
        self.to_withdraw.close()

    async def run(self, backoff: Backoff = NO_PAUSES) -> None:
        with self.followed:
            await Integrator(filer=self.filer, events=self.events, attempts=self.attempts, backoff=backoff).run(
                self.inbox, self.withdrawals, self.changed, self.decided
            )
            self.extractor_was_nudged = self.followed.statistics().current_buffer_used == 1


async def run(filer: Filer, *questions: str) -> list[SourceChanged]:
    desk = Desk(filer)
    with fail_after(5), desk.woken:
        for n, question in enumerate(questions):
            desk.filings.send_nowait(filing(question, n))
        desk.end()
        await desk.run()
        return [each async for each in desk.woken]


async def test_the_extractor_is_nudged_by_a_filing_and_by_a_withdrawal() -> None:
    for is_filing in (True, False):
        desk = Desk(Filer())
        with desk.woken:
            if is_filing:
                desk.filings.send_nowait(filing("a", 0))
            else:
                desk.withdraw("1")
            desk.end()
            await desk.run()
        assert desk.extractor_was_nudged


async def test_filings_are_carried_out_in_order_and_the_indexer_is_nudged() -> None:
    filer = Filer()
    assert await run(filer, "a", "b", "c") == [SourceChanged()]
    assert filer.filed == ["a", "b", "c"]


async def test_an_absent_model_is_asked_again_so_that_order_is_kept() -> None:
    filer = Filer(a=[ModelUnavailableError("down"), ModelUnavailableError("down")])
    await run(filer, "a", "b")
    assert filer.filed == ["a", "b"]


@pytest.mark.parametrize("trouble", [KnowledgeError("read-only file system"), ConfigError("classify.md.j2, line 3")])
async def test_no_filing_is_passed_over_while_it_cannot_be_carried_out(trouble: Exception) -> None:
    filer = Filer(a=[trouble] * 3)
    await run(filer, "a", "b")
    assert filer.filed == ["a", "b"]


async def test_a_decision_ends_the_attempt_that_the_classifier_began() -> None:
    attempts, given = Attempts(), filing("a")
    desk = Desk(Filer(), attempts=attempts)
    await attempts.begin(given.pair.qa_id)
    desk.filings.send_nowait(given)
    desk.end()
    with desk.woken:
        await desk.run()
    assert attempts.open == {}


class Unsure(Attempts):
    """Notes an end, but fails to confirm it."""

    async def end(self, decision: PairDecision, /, *, again: bool = True) -> None:
        await super().end(decision, again=again)
        raise KnowledgeError("the connection was lost while it saved")


async def test_the_end_of_an_attempt_is_noted_once_even_if_it_is_not_known_whether_that_was_saved() -> None:
    attempts = Unsure()
    desk = Desk(Filer(), attempts=attempts)
    desk.filings.send_nowait(filing("a"))
    desk.end()
    with desk.woken:
        await desk.run()
    assert attempts.ended == [(desk.events.decisions[0], True)]


@pytest.mark.parametrize("choice", [FailedChoice(reason="gibberish"), AttemptsExhausted(reason="ended")])
async def test_only_a_pair_that_was_not_given_up_is_tried_again_by_itself(choice: FailedChoice) -> None:
    attempts = Attempts()
    desk = Desk(Filer(), attempts=attempts)
    desk.filings.send_nowait(FilingDecision(pair=pair("a"), choice=choice))
    desk.end()
    with desk.woken:
        await desk.run()
    assert attempts.ended == [(desk.events.decisions[0], not isinstance(choice, AttemptsExhausted))]


@pytest.mark.parametrize("error", [ModelUnavailableError("down"), KnowledgeError("full")])
async def test_no_attempt_is_open_while_an_outage_lasts_and_one_is_when_it_is_tried_again(error: Exception) -> None:
    attempts, given = Attempts(), filing("a")
    open_then: list[dict[str, int]] = []

    class Looking(Filer):
        async def file(self, filing: FilingDecision, /) -> PairDecision:
            open_then.append(dict(attempts.open))
            return await super().file(filing)

    def backoff() -> Iterator[float]:
        yield 0.0
        yield math.inf

    desk = Desk(Looking(a=[error, error]), attempts=attempts)
    await attempts.begin(given.pair.qa_id)
    desk.filings.send_nowait(given)
    with desk.woken, desk.filings, desk.to_withdraw:
        async with running(desk.run, backoff):
            await wait_all_tasks_blocked()
            assert open_then == [{given.pair.qa_id: 1}] * 2
            assert attempts.open == {}


async def test_a_calm_shutdown_leaves_no_attempt_and_a_crash_leaves_one() -> None:
    given = filing("a")
    for crashes in (False, True):
        attempts = Attempts()
        filer = Filer(a=[ZeroDivisionError()]) if crashes else Filer(gate=Event())
        desk = Desk(filer, attempts=attempts)
        await attempts.begin(given.pair.qa_id)
        desk.filings.send_nowait(given)
        with desk.woken, desk.filings, desk.to_withdraw, suppress(ExceptionGroup):
            async with running(desk.run):
                await wait_all_tasks_blocked()
        assert attempts.open == ({given.pair.qa_id: 1} if crashes else {})


async def test_a_slow_integration_is_felt_by_the_classifier() -> None:
    gate = Event()
    desk = Desk(Filer(gate), filings=0)
    with desk.woken, desk.filings, desk.to_withdraw:
        async with create_task_group() as tg:
            tg.start_soon(desk.run)
            await desk.filings.send(filing("a"))
            tg.start_soon(desk.filings.send, filing("b"))
            await wait_all_tasks_blocked()
            assert desk.filings.statistics().tasks_waiting_send == 1
            gate.set()
            await wait_all_tasks_blocked()
            assert desk.filings.statistics().tasks_waiting_send == 0
            tg.cancel_scope.cancel()


@pytest.mark.parametrize("topics", [(), (TopicName("gpu"),)])
async def test_a_withdrawal_is_carried_out_once_and_the_indexer_is_nudged_where_it_changed_topics(
    topics: tuple[TopicName, ...],
) -> None:
    desk = Desk(Filer())
    desk.filer.topics = topics
    desk.withdraw("1", "2", "1")
    desk.end()
    with desk.woken:
        await desk.run()
        assert desk.filer.withdrawn == ["1", "2"]
        assert [each async for each in desk.woken] == [SourceChanged()][: len(topics)]
    assert [type(each) for each in desk.events.decisions] == [MessagesWithdrawn, MessagesWithdrawn]


async def test_where_nothing_changed_nobody_is_nudged() -> None:
    assert await run(Filer()) == []


async def test_a_withdrawal_does_not_wait_for_a_model() -> None:
    filer = Filer(gate=Event())
    desk = Desk(filer)
    desk.filings.send_nowait(filing("a"))
    with desk.woken, desk.filings, desk.to_withdraw:
        async with running(desk.run):
            await wait_all_tasks_blocked()
            desk.withdraw("1", "2")
            await wait_all_tasks_blocked()
            assert (filer.filed, filer.withdrawn) == ([], ["1", "2"])


async def test_a_disk_that_fails_a_withdrawal_is_asked_again() -> None:
    filer = Filer()
    filer.disk_trouble = [KnowledgeError("full")] * 3
    desk = Desk(filer)
    desk.withdraw("1")
    desk.end()
    with desk.woken:
        await desk.run()
    assert filer.withdrawn == ["1"]
    assert filer.disk_trouble == []


async def test_withdrawals_that_came_before_a_cancellation_are_written_down() -> None:
    filer = Filer()
    desk = Desk(filer)
    desk.withdraw("1")
    with desk.woken, desk.filings:
        async with running(desk.run):
            await wait_all_tasks_blocked()
            desk.withdraw("2", "3")
            desk.to_withdraw.close()
    assert filer.withdrawn == ["1", "2", "3"]
