from __future__ import annotations

from collections.abc import Hashable, Sequence, Set as AbstractSet
from contextlib import suppress

import pytest
from anyio import create_memory_object_stream, fail_after, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

from intern.actors.activity import ActivityReporter
from intern.actors.classifier import Classifier
from intern.actors.loops import DueRecord
from intern.core.captures import CapturedPair
from intern.core.errors import KnowledgeError, ModelAccessError, ModelReplyError, ModelUnavailableError
from intern.core.flow import CaptureArchived, FailedChoice, FilingDecision, SkipChoice, TopicChoice
from intern.core.ids import QAId, TopicName
from intern.learning.attempts import AttemptsExhausted
from tests.worlds.actors import NO_PAUSES, Attempts, finishing, running
from tests.worlds.samples import pair


class Pairs:
    """An archive in memory."""

    def __init__(self, *pairs: CapturedPair) -> None:
        self.held = list(pairs)

    async def after(self, position: QAId | None, /) -> Sequence[CapturedPair]:
        return [each for each in self.held if position is None or each.qa_id > position]


class Chooser:
    """Gives the prepared choices, in order; then always the topic gpu."""

    def __init__(self, *choices: TopicChoice | SkipChoice | Exception) -> None:
        self._choices = list(choices)
        self.asked: list[str] = []

    async def choose_topic(self, pair: CapturedPair, /) -> TopicChoice | SkipChoice | FailedChoice:
        self.asked.append(pair.question)
        choice = self._choices.pop(0) if self._choices else TopicChoice(name=TopicName("gpu"))
        if isinstance(choice, Exception):
            raise choice
        return choice


class Older:
    """Pairs that are due again, once each."""

    def __init__(self, *pairs: CapturedPair, trouble: Exception | None = None) -> None:
        self._pairs = pairs
        self._trouble = trouble

    async def due(self, handed: AbstractSet[Hashable], /) -> DueRecord[CapturedPair]:
        await checkpoint()
        if self._trouble is not None:
            raise self._trouble
        return next(
            (DueRecord(record=each, key=each.qa_id) for each in self._pairs if each.qa_id not in handed),
            DueRecord[CapturedPair](),
        )


async def filings_of(
    archive: Pairs,
    chooser: Chooser,
    after: QAId | None = None,
    attempts: Attempts | None = None,
    again: Older | None = None,
) -> list[FilingDecision]:
    wakeups, look = create_memory_object_stream[CaptureArchived](1)
    filings, filed = create_memory_object_stream[FilingDecision](0)
    wakeups.close()
    seen: list[FilingDecision] = []
    with fail_after(5), filed:
        async with finishing(
            Classifier(
                archive=archive.after,
                after=after,
                choose=chooser.choose_topic,
                events=ActivityReporter(),
                again=again.due if again else None,
                attempts=attempts or Attempts(),
                backoff=NO_PAUSES,
            ).run,
            look,
            filings,
        ):
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
    assert filings[0].choice == FailedChoice(reason="the model's reply did not fit classify; the log says how")
    assert filings[1].choice == TopicChoice(name=TopicName("gpu"))


async def test_an_absent_model_is_asked_again_until_it_is_back() -> None:
    away = ModelUnavailableError("the endpoint is down")
    archive = Pairs(pair("q0", n=0), pair("q1", n=1))
    chooser = Chooser(away, away, SkipChoice(reason="greeting"))
    filings = await filings_of(archive, chooser)
    assert [filing.choice for filing in filings] == [SkipChoice(reason="greeting"), TopicChoice(name=TopicName("gpu"))]
    assert chooser.asked == ["q0", "q0", "q0", "q1"]


@pytest.mark.parametrize("error", [KnowledgeError("index: Permission denied"), ModelAccessError("check llm.api_key")])
async def test_what_no_pair_is_to_blame_for_parks_none(error: Exception) -> None:
    archive = Pairs(pair("q0", n=0), pair("q1", n=1))
    chooser = Chooser(error, error)
    filings = await filings_of(archive, chooser)
    assert [filing.choice for filing in filings] == [TopicChoice(name=TopicName("gpu"))] * 2
    assert chooser.asked == ["q0", "q0", "q0", "q1"]


async def test_a_failure_is_logged_once() -> None:
    archive = Pairs(pair("q0", n=0))
    with capture_logs() as logs:
        await filings_of(archive, Chooser(ModelUnavailableError("down"), ModelReplyError("gibberish")))
    failures = [(log["reason"], log.get("again_in_seconds")) for log in logs if "failed" in log["event"]]
    assert failures == [("down", 0.0), ("gibberish", None)]


async def test_an_attempt_is_open_before_the_model_is_asked_and_until_the_decision() -> None:
    archive, attempts = Pairs(pair("q0", n=0), pair("q1", n=1)), Attempts()
    open_then: list[dict[str, int]] = []

    class Looking(Chooser):
        async def choose_topic(self, pair: CapturedPair, /) -> TopicChoice | SkipChoice | FailedChoice:
            open_then.append(dict(attempts.open))
            return await super().choose_topic(pair)

    first, second = (each.qa_id for each in archive.held)
    await filings_of(archive, Looking(), attempts=attempts)
    # There is no integrator to end them.
    assert open_then == [{first: 1}, {first: 1, second: 1}]


async def test_a_pair_that_three_attempts_did_not_finish_is_parked_and_its_neighbour_starts_afresh() -> None:
    archive = Pairs(pair("q0", n=0), pair("q1", n=1), pair("q2", n=2))
    first, second, third = (each.qa_id for each in archive.held)
    attempts, chooser = Attempts(**{first: 3, second: 3}), Chooser()
    filings = await filings_of(archive, chooser, attempts=attempts)
    assert isinstance(filings[0].choice, AttemptsExhausted)
    assert "3 attempts" in filings[0].choice.reason
    assert chooser.asked == ["q1", "q2"]
    assert attempts.open == {first: 4, second: 1, third: 1}


async def test_the_third_attempt_is_made() -> None:
    archive = Pairs(pair("q0", n=0))
    attempts, chooser = Attempts(**{archive.held[0].qa_id: 2}), Chooser()
    await filings_of(archive, chooser, attempts=attempts)
    assert chooser.asked == ["q0"]


async def test_an_outage_uses_up_no_attempts() -> None:
    archive = Pairs(pair("q0", n=0))
    attempts, chooser = Attempts(), Chooser(*[ModelUnavailableError("down")] * 9)
    attempts.trouble = [KnowledgeError("the database is locked")] * 9
    [filing] = await filings_of(archive, chooser, attempts=attempts)
    assert filing.choice == TopicChoice(name=TopicName("gpu"))
    assert attempts.open == {archive.held[0].qa_id: 1}


async def test_a_calm_shutdown_leaves_no_attempt_and_a_crash_leaves_one() -> None:
    archive = Pairs(pair("q0", n=0))
    for crashes in (False, True):
        attempts = Attempts()
        wakeups, look = create_memory_object_stream[CaptureArchived](1)
        filings, filed = create_memory_object_stream[FilingDecision](0)
        chooser = Chooser(ZeroDivisionError()) if crashes else Chooser()
        with filed, wakeups, suppress(ExceptionGroup):
            async with running(
                Classifier(
                    archive=archive.after,
                    after=None,
                    choose=chooser.choose_topic,
                    events=ActivityReporter(),
                    attempts=attempts,
                ).run,
                look,
                filings,
            ):
                await wait_all_tasks_blocked()
                assert len(attempts.open) == 1
        assert len(attempts.open) == int(crashes)


async def test_pairs_that_are_due_again_are_filed_like_new_ones_which_come_first() -> None:
    older, archive = Older(pair("old", n=0), pair("older", n=1)), Pairs(pair("q2", n=2))
    attempts, chooser = Attempts(), Chooser(SkipChoice(reason="greeting"), ModelReplyError("gibberish"))
    filings = await filings_of(archive, chooser, attempts=attempts, again=older)
    assert [(each.pair.question, each.choice) for each in filings] == [
        ("q2", SkipChoice(reason="greeting")),
        ("old", FailedChoice(reason="the model's reply did not fit classify; the log says how")),
        ("older", TopicChoice(name=TopicName("gpu"))),
    ]
    assert set(attempts.open.values()) == {1}


async def test_a_pair_that_is_due_again_and_ends_the_process_is_given_up_too() -> None:
    old = pair("old", n=0)
    [filing] = await filings_of(Pairs(), Chooser(), attempts=Attempts(**{old.qa_id: 3}), again=Older(old))
    assert isinstance(filing.choice, AttemptsExhausted)


async def test_where_nobody_can_tell_what_is_due_new_pairs_are_filed_all_the_same() -> None:
    older = Older(trouble=KnowledgeError("the database is locked"))
    with capture_logs() as logs:
        [filing] = await filings_of(Pairs(pair("q0", n=0)), Chooser(), again=older)
    assert filing.pair.question == "q0"
    assert {log["event"] for log in logs} == {"retries_delayed"}


async def test_a_slow_integrator_holds_the_classifier_back() -> None:
    archive = Pairs(*(pair(f"q{n}", n=n) for n in range(5)))
    chooser = Chooser()
    wakeups, look = create_memory_object_stream[CaptureArchived](1)
    filings, filed = create_memory_object_stream[FilingDecision](0)
    with filed, wakeups:
        async with running(
            Classifier(
                archive=archive.after,
                after=None,
                choose=chooser.choose_topic,
                events=ActivityReporter(),
                attempts=Attempts(),
                backoff=NO_PAUSES,
            ).run,
            look,
            filings,
        ):
            await wait_all_tasks_blocked()
            assert chooser.asked == ["q0"]

            await filed.receive()
            await wait_all_tasks_blocked()
            assert chooser.asked == ["q0", "q1"]
