"""A model that is unavailable, or over its budget for today: no work is lost, and the asker gets a notice."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from intern.core.captures import CapturedPair
from intern.core.clock import Clock
from intern.core.decisions import PairFiled, PairParked
from intern.core.flow import Reply
from intern.core.messages import AnswerResult
from intern.models.circuit_breaker import FAILURES
from intern.models.usage import UsageMeter
from intern.runtime.bot import open_sandbox
from intern.settings.settings import Settings
from intern.sources.refresh import RefreshReport
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.usage import UsageLog
from tests.worlds.bot import Watching, settings_in
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock
from tests.worlds.endpoint import endpoint_double, never, refuse, sensible

BUDGETS: list[dict[str, Any]] = [
    {"daily_token_budget": 1_000_000},
    {"daily_cost_budget": 2.0, "prices": [{"model": "m", "input": 2, "output": 8}]},
]


pytestmark = pytest.mark.on_asyncio  # one is enough: these wait for real pauses


class Bot:
    """A bot whose model is asked over real sockets, seen from Discord."""

    def __init__(self, clock: Clock) -> None:
        self.sandbox = Sandbox(clock, team={"mira"})
        self.seen = Watching()

    async def ask(self, text: str, number: int = 0) -> Reply:
        """Ask a question that is addressed to the bot, and return its reply."""
        self.sandbox.say(f"bob{number}", f"@intern {text}")
        return await self.seen.one_of(Reply, after=number)

    async def teach(self, *, after: int = 0) -> CapturedPair:
        asked = self.sandbox.say("ann", "How do I reset the spool?")
        self.sandbox.say("mira", "Hold the blue key.", reply_to=asked.id)
        return await self.seen.one_of(CapturedPair, after=after)


def settings_with(folder: Path, base_url: str, **llm: Any) -> Settings:
    return settings_in(folder, llm={"base_url": base_url, "model": "m", "max_retries": 0, **llm})


@pytest.mark.rest
async def test_while_the_endpoint_is_away_captures_are_kept_and_filed_once_it_is_back(tmp_path: Path) -> None:
    away = False

    def answer(body: dict[str, Any]) -> Any:
        return refuse(503) if away else sensible(body)

    bot = Bot(HandClock())
    with endpoint_double(answer) as endpoint:
        settings = settings_with(tmp_path, endpoint.base_url)
        async with open_sandbox(settings, bot.sandbox, events=bot.seen, clock=HandClock()):
            await bot.seen.one_of(RefreshReport)
            away = True
            said = await bot.ask("which port does the relay listen on?")
            assert said.notice
            assert "can't look this up right now" in said.text
            assert bot.seen.all_of(AnswerResult)[0].reason == "model_unavailable"
            taught = await bot.teach()
            assert not bot.seen.all_of(PairFiled)
            away = False
            filed = await bot.seen.one_of(PairFiled)  # automatically
            assert filed.qa_id == taught.qa_id
            assert not (await bot.ask("which port does the relay listen on?", 1)).notice


@pytest.mark.rest
async def test_an_endpoint_that_hangs_costs_the_first_questions_their_time_and_then_nobody_waits_for_it(
    tmp_path: Path,
) -> None:
    hangs = False

    def answer(body: dict[str, Any]) -> Any:
        return never() if hangs else sensible(body)

    bot = Bot(HandClock())
    with endpoint_double(answer) as endpoint:
        settings = settings_with(tmp_path, endpoint.base_url, max_retries=3, timeout_seconds=0.5)
        # Both take as long, as they do without settings.
        settings = replace(settings, ai=replace(settings.ai, request_timeout_seconds=0.5))
        async with open_sandbox(settings, bot.sandbox, events=bot.seen, clock=HandClock()):
            await bot.seen.one_of(RefreshReport)
            hangs = True
            for number in range(FAILURES + 1):
                said = await bot.ask("which port does the relay listen on?", number)
                assert said.notice
                assert "can't look this up right now" in said.text
                if bot.seen.all_of(AnswerResult)[-1].reason != "timeout":
                    break
            *waited, refused = bot.seen.all_of(AnswerResult)
            assert waited
            assert {each.reason for each in waited} == {"timeout"}
            assert refused.reason == "model_unavailable"
            assert refused.debug is not None
            assert "left alone" in refused.debug["error"]


@pytest.mark.rest
async def test_what_was_spent_is_on_the_disk_within_seconds_of_the_last_call(tmp_path: Path) -> None:
    clock = HandClock()  # without time between two calls
    bot = Bot(clock)
    with endpoint_double() as endpoint:
        settings = settings_with(tmp_path, endpoint.base_url)
        async with (
            open_sandbox(settings, bot.sandbox, events=bot.seen, clock=clock),
            await SqliteDatabase.open(settings.paths.database) as db,
        ):
            await bot.seen.one_of(RefreshReport)
            assert not (await bot.ask("which port does the relay listen on?")).notice
            day = clock.now().date()
            while sum(each.calls for each in (await UsageLog(db).read_since(day)).get(day, ())) < len(
                endpoint.requests
            ):
                pass  # the bot goes on, and asks nothing


@pytest.mark.rest
@pytest.mark.parametrize("budget", BUDGETS, ids=["tokens", "money"])
async def test_once_the_budget_is_spent_captures_wait_for_midnight_and_who_asks_is_told(
    tmp_path: Path, budget: dict[str, Any]
) -> None:
    clock = HandClock()
    bot = Bot(clock)
    then = await spend(tmp_path, clock)
    with endpoint_double() as endpoint:
        settings = settings_with(tmp_path, endpoint.base_url, **budget)
        async with open_sandbox(settings, bot.sandbox, events=bot.seen, clock=clock):
            await bot.seen.one_of(RefreshReport)
            said = await bot.ask("which port does the relay listen on?")
            assert said.notice
            assert "after 00:00 UTC" in said.text
            assert bot.seen.all_of(AnswerResult)[0].reason == "over_budget"
            bot.sandbox.say("carl", "Which port does the relay listen on?")
            await bot.seen.one_of(AnswerResult, after=1)
            taught = await bot.teach()
            assert endpoint.requests == [], "nothing was asked that could not be paid"
            assert bot.seen.all_of(Reply) == [said], "who did not address the bot is told nothing"
            clock.turn(hours=24 - clock.now().hour - 1, minutes=49, seconds=3)
            assert clock.now().date() == then.now().date()
            assert not bot.seen.all_of(PairFiled)
            clock.turn(seconds=2)
            assert clock.now().date() == then.now().date() + timedelta(days=1)
            filed = await bot.seen.one_of(PairFiled)  # automatically
            assert filed.qa_id == taught.qa_id
            assert not (await bot.ask("which port does the relay listen on?", 1)).notice


@pytest.mark.rest
async def test_a_capture_that_fits_into_no_days_budget_is_parked_and_holds_up_no_other(tmp_path: Path) -> None:
    bot = Bot(HandClock())
    llm = {"model": "m", "max_tokens": 100, "daily_token_budget": 4_000}  # classify wants 3,300 for it, of 3,200
    with endpoint_double() as endpoint:
        settings = settings_in(tmp_path, llm={"base_url": endpoint.base_url, **llm}, default_mode="capture_only")
        settings = replace(settings, extraction=replace(settings.extraction, auto=False))
        async with open_sandbox(settings, bot.sandbox, events=bot.seen, clock=HandClock()):
            await bot.seen.one_of(RefreshReport)
            asked = bot.sandbox.say("dan", "How do I move it all?")
            for n in range(14):
                asked = bot.sandbox.say("dan", f"{n}. " + "and this, too, has to be moved " * 60)
            bot.sandbox.say("mira", "Hold the red key.", reply_to=asked.id)
            long = await bot.seen.one_of(CapturedPair)
            short = await bot.teach(after=1)
            parked, filed = await bot.seen.one_of(PairParked), await bot.seen.one_of(PairFiled)
            assert (parked.qa_id, filed.qa_id) == (long.qa_id, short.qa_id)
            assert "budget" in parked.reason


@pytest.mark.rest
async def test_a_budget_that_is_raised_lets_what_waits_go_on_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first life ends while its lessons wait for midnight: the length of that wait does not matter here.
    monkeypatch.setattr("intern.actors.pipeline.SHUTDOWN_SECONDS", 0.5)
    clock = HandClock()
    await spend(tmp_path, clock)
    first, then = Bot(clock), Bot(clock)
    with endpoint_double() as endpoint:
        settings = settings_with(tmp_path, endpoint.base_url, daily_token_budget=1_000_000)
        async with open_sandbox(settings, first.sandbox, events=first.seen, clock=clock):
            await first.seen.one_of(RefreshReport)
            taught = await first.teach()
            first.sandbox.lose_session()
        raised = settings_with(tmp_path, endpoint.base_url, daily_token_budget=2_000_000)
        async with open_sandbox(raised, then.sandbox, events=then.seen, clock=clock):
            assert (await then.seen.one_of(PairFiled)).qa_id == taught.qa_id


async def spend(folder: Path, clock: HandClock) -> HandClock:
    """Spend the whole budget above for the day; return a clock that stays there."""
    async with await SqliteDatabase.open(folder / "intern.db") as db:
        await UsageLog(db).add(clock.now().date(), "answer", UsageMeter(1, 1_000_000, cost=2.0))
    return HandClock(clock.now())
