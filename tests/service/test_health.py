"""The health of models by the calls' outcomes, and work that waits although all is well."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from anyio import current_time

from intern.actors.poster import WaitingReplies
from intern.core.errors import (
    ChatUnavailableError,
    ModelBudgetError,
    ModelBudgetTooSmallError,
    ModelError,
    ModelRefusedError,
    ModelReplyError,
    ModelUnavailableError,
)
from intern.models.circuit_breaker import FAILURES, AttemptPermit, CircuitBreaker
from intern.models.limits import FIRST_PAUSE
from intern.models.prompt import Model
from intern.service.health import STUCK_AFTER, USELESS_FROM, HealthCheck, ModelWatch, posting_check
from intern.sources.descriptions import SUMMARIZE_TOPIC, SummarizeIn, SummarizeOut
from tests.worlds.clock import HandClock
from tests.worlds.model import ScriptedModel

pytestmark = pytest.mark.anyio

GIVEN = SummarizeIn(source_id="team:spool.txt", text="The spool keeps metrics.")
SAID = SummarizeOut(description="It keeps metrics.")
WELL = HealthCheck(name="model", ok=True)


async def fails(model: ScriptedModel, watched: Model, error: ModelError, given: SummarizeIn = GIVEN) -> None:
    model.next(SUMMARIZE_TOPIC, error)
    with pytest.raises(type(error)):
        await watched.ask(SUMMARIZE_TOPIC, given)


async def works(model: ScriptedModel, watched: Model) -> None:
    model.next(SUMMARIZE_TOPIC, SAID)
    assert await watched.ask(SUMMARIZE_TOPIC, GIVEN) == SAID


async def test_a_model_is_away_from_its_first_failure_until_it_says_anything_at_all() -> None:
    clock, model = HandClock(), ScriptedModel()
    watch = ModelWatch(clock)
    watched = watch.wrap_model(model)
    assert watch.checks() == (WELL,)
    for _ in range(2):
        await fails(model, watched, ModelUnavailableError("the endpoint is down"))
        away = HealthCheck(name="model", ok=False, detail="the endpoint is down (since 2026-02-01 03:10 UTC)")
        assert watch.checks() == (away,)
        clock.turn(minutes=5)
    await fails(model, watched, ModelReplyError("it wrote a poem"))
    assert watch.checks() == (WELL,)


async def test_a_model_of_whose_replies_none_can_be_used_is_not_well_until_one_can() -> None:
    model = ScriptedModel()
    watch = ModelWatch(HandClock())
    answers, learns = watch.wrap_model(model), watch.wrap_model(model, work="learning")
    for n in range(USELESS_FROM):
        assert watch.checks() == (WELL,)
        given = SummarizeIn(source_id=f"team:{n}.txt", text="The spool keeps \ud83d metrics.")  # half an emoji
        for _ in range(2):  # a repeated question counts once
            await fails(
                model, learns if n % 2 else answers, (ModelReplyError, ModelRefusedError)[n % 2]("<html>secret"), given
            )
    (check,) = watch.checks()
    assert not check.ok
    assert check.note == "none of the last 5 things that llm said could be used"
    assert "secret" not in check.detail
    await works(model, learns)
    assert watch.checks() == (WELL,)


async def test_a_model_that_is_there_says_nothing_of_another_endpoint_s() -> None:
    answering, learning = ScriptedModel(), ScriptedModel()
    watch = ModelWatch(HandClock())
    answers, learns = watch.wrap_model(answering), watch.wrap_model(learning, work="learning", section="llm.kb")
    await fails(answering, answers, ModelUnavailableError("the endpoint is down"))
    await works(learning, learns)
    assert not watch.checks()[0].ok
    await works(answering, answers)
    assert watch.checks() == (WELL,)


async def test_a_budget_that_is_spent_is_told_until_midnight_and_is_no_reason_not_to_be_ready() -> None:
    clock, model = HandClock(), ScriptedModel()
    watch = ModelWatch(clock)
    answers, learns = watch.wrap_model(model), watch.wrap_model(model, work="learning")
    await fails(model, learns, ModelBudgetError("classify may take 900 tokens, and 20 are left"))
    await works(model, answers)
    (check,) = watch.checks()
    assert check.ok
    assert check.note == "the daily budget leaves no room for learning; a new day begins at 00:00 UTC"
    assert check.detail == f"{check.note}. The last that was refused: classify may take 900 tokens, and 20 are left"
    await fails(model, answers, ModelBudgetError("gate may take 90 tokens, and 20 are left"))
    (check,) = watch.checks()
    assert check.ok
    assert "no room for answers and learning;" in check.note
    await works(model, answers)
    assert "no room for learning;" in watch.checks()[0].note
    clock.turn(hours=24 - clock.now().hour - 1, minutes=49)
    assert watch.checks() != (WELL,), "it is the same day still"
    clock.turn(minutes=1)
    assert watch.checks() == (WELL,), "though nobody asked since"


async def test_what_no_days_budget_can_pay_says_nothing_of_the_model() -> None:
    model = ScriptedModel()
    watch = ModelWatch(HandClock())
    watched = watch.wrap_model(model)
    for n in range(USELESS_FROM):
        given = SummarizeIn(source_id=f"team:{n}.txt", text="The spool keeps metrics.")
        await fails(model, watched, ModelBudgetTooSmallError("raise llm.daily_token_budget"), given)
    assert watch.checks() == (WELL,)
    await fails(model, watched, ModelUnavailableError("the endpoint is down"))
    await fails(model, watched, ModelBudgetTooSmallError("raise llm.daily_token_budget"))
    assert not watch.checks()[0].ok


async def test_who_cannot_pay_learns_nothing_of_whether_the_model_is_there() -> None:
    model = ScriptedModel()
    watch = ModelWatch(HandClock())
    watched = watch.wrap_model(model)
    await fails(model, watched, ModelUnavailableError("the endpoint is down"))
    await fails(model, watched, ModelBudgetError("gate may take 90 tokens, and 20 are left"))
    assert not watch.checks()[0].ok


def opened(reason: str) -> CircuitBreaker:
    """A circuit that opened right now."""
    breaker, now = CircuitBreaker(), current_time()
    for _ in range(FAILURES):
        permit = breaker.request_attempt(now, background=False)
        assert isinstance(permit, AttemptPermit)
        breaker.record_failure(permit, now, reason)
    return breaker


async def test_a_circuit_that_is_open_is_told_with_since_when_and_when_it_is_tried() -> None:
    clock, model = HandClock(), ScriptedModel()
    clock.turn(milliseconds=500)  # far from the next second
    breaker = opened("http://127.0.0.1:9/v1 answered 503")
    watch = ModelWatch(clock, {"llm": breaker})
    await fails(model, watch.wrap_model(model), ModelUnavailableError("it is tried again in 5 s"))
    (check,) = watch.checks()
    assert not check.ok
    assert check.note == (
        "llm failed too often and is left alone since 2026-02-01 03:10:56 UTC;"
        " it is tried next at 2026-02-01 03:11:01 UTC"
    )
    assert check.detail == f"{check.note}. The last failure: http://127.0.0.1:9/v1 answered 503"
    permit = breaker.request_attempt(current_time() + FIRST_PAUSE, background=False)
    assert isinstance(permit, AttemptPermit)
    breaker.record_success(permit)
    await works(model, watch.wrap_model(model))
    assert watch.checks() == (WELL,)


async def test_a_circuit_that_waits_for_a_call_says_that_the_next_one_tries_it() -> None:
    breaker = CircuitBreaker(failures=1, first_pause=0)
    permit = breaker.request_attempt(current_time(), background=False)
    assert isinstance(permit, AttemptPermit)
    breaker.record_failure(permit, current_time(), "down")
    (check,) = ModelWatch(HandClock(), {"llm": breaker}).checks()
    assert not check.ok
    assert check.note.endswith("; the next call tries it")


async def test_vectors_that_cannot_be_had_are_told_and_keep_nobody_from_being_ready() -> None:
    breakers = {"llm": CircuitBreaker(), "embeddings": CircuitBreaker()}
    watch = ModelWatch(HandClock(), breakers)
    assert watch.checks() == (WELL, HealthCheck(name="embeddings", ok=True))
    breakers["embeddings"] = opened("down")
    model, embeddings = watch.checks()
    assert model == WELL
    assert embeddings.ok
    assert embeddings.note.startswith("embeddings failed too often")


async def test_a_watched_model_gives_what_the_model_gives() -> None:
    model = ScriptedModel()
    await works(model, ModelWatch(HandClock()).wrap_model(model))


def test_posting_is_well_until_nothing_has_got_through_for_a_minute_while_something_waits() -> None:
    clock = trio.testing.MockClock()

    async def story() -> None:
        hand, waiting = HandClock(), WaitingReplies()

        def check() -> HealthCheck:
            return posting_check(waiting.find_stuck(), hand)

        assert check() == HealthCheck(name="posting", ok=True)
        with waiting.track_reply(), waiting.track_reply():
            clock.jump(STUCK_AFTER - 1)
            assert check().ok
            waiting.record_failure(ChatUnavailableError("could not send a message: Discord says 503"))
            clock.jump(1)
            told = check()
            assert not told.ok
            assert told.note == "2 replies wait for Discord, which has taken none since 2026-02-01 03:09:56 UTC"
            assert told.detail.endswith("The last failure: could not send a message: Discord says 503")
            waiting.record_success()
            assert check().ok, "another one got through"
            clock.jump(STUCK_AFTER)
            assert check().detail.endswith("Discord has not answered yet")
        assert check().ok, "nothing waits"

    trio.run(story, clock=clock)
