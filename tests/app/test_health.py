"""Whether the model is there, as far as anybody knows who asked it."""

from __future__ import annotations

import pytest

from intern.app.health import ModelWatch
from intern.errors import ModelReplyError, ModelUnavailableError
from intern.indexing.prompts import SUMMARIZE_TOPIC, SummarizeIn, SummarizeOut
from tests.fakes import HandClock, ScriptedModel

pytestmark = pytest.mark.anyio

GIVEN = SummarizeIn(source_id="team:spool.txt", text="The spool keeps metrics.")


async def test_a_model_is_away_from_its_first_failure_until_it_says_anything_at_all() -> None:
    clock, model = HandClock(), ScriptedModel()
    watch = ModelWatch(clock)
    watched = watch.over(model)
    assert watch.problem == ""
    for _ in range(2):
        model.next(SUMMARIZE_TOPIC, ModelUnavailableError("the endpoint is down"))
        with pytest.raises(ModelUnavailableError):
            await watched.ask(SUMMARIZE_TOPIC, GIVEN)
        assert watch.problem == "the endpoint is down (since 2026-02-01 03:10 UTC)"
        clock.turn(minutes=5)
    model.next(SUMMARIZE_TOPIC, ModelReplyError("it wrote a poem"))
    with pytest.raises(ModelReplyError):
        await watched.ask(SUMMARIZE_TOPIC, GIVEN)
    assert watch.problem == ""


async def test_a_watched_model_gives_what_the_model_gives() -> None:
    model = ScriptedModel()
    model.next(SUMMARIZE_TOPIC, SummarizeOut(description="It keeps metrics."))
    assert (await ModelWatch(HandClock()).over(model).ask(SUMMARIZE_TOPIC, GIVEN)).description == "It keeps metrics."
