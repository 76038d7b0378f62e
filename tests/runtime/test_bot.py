"""The bot put together: the work that it resumes at a start, the channels that it reads, and the pipeline's events."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio.lowlevel import checkpoint
from msgspec import structs

from intern.core.captures import CapturedPair
from intern.core.decisions import PairFiled, PairSkipped
from intern.core.flow import Batch, FilingDecision
from intern.core.ids import ChannelId, GuildId
from intern.core.messages import AnswerResult
from intern.service.job_kinds import INDEX
from intern.service.opening import open_intern
from intern.sources.refresh import RefreshReport
from intern.stores.engines.sqlite.database import SqliteDatabase
from intern.stores.tables.jobs import JobOutcome, JobQueue
from tests.worlds import samples
from tests.worlds.bot import Watching, at_work, settings_in
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock


async def outcome_of(jobs: JobQueue, job_id: int) -> JobOutcome:
    while (outcome := await jobs.result(job_id)) is None:
        await checkpoint()
    return outcome


@pytest.mark.rest
async def test_a_job_that_a_dead_process_had_begun_is_done_at_the_next_start(tmp_path: Path) -> None:
    async with await SqliteDatabase.open(settings_in(tmp_path).paths.database) as db:
        jobs = JobQueue(db)
        job_id = await jobs.submit(INDEX, None)
        assert await jobs.claim() is not None
        async with at_work(tmp_path, Sandbox(HandClock()), Watching()):
            outcome = await outcome_of(jobs, job_id)
    assert isinstance(outcome, bytes)


@pytest.mark.rest
async def test_what_was_decided_is_not_asked_again_at_the_next_start(tmp_path: Path) -> None:
    def teach(sandbox: Sandbox, question: str, answer: str) -> None:
        sandbox.say("mira", answer, reply_to=sandbox.say("bob", question).id)

    clock = HandClock()
    sandbox, events = Sandbox(clock, team={"mira"}), Watching()
    async with at_work(tmp_path, sandbox, events):
        teach(sandbox, "How do I purge the spool?", "Use `lumen-relay spool purge`.")
        await events.one_of(PairFiled)
        clock.turn(hours=1)
        teach(sandbox, "Thanks!", "You are welcome.")
        await events.one_of(PairSkipped)
    known = {pair.qa_id for pair in events.all_of(CapturedPair)}
    assert len(known) == 2

    clock.turn(hours=1)
    again = Watching()
    async with at_work(tmp_path, sandbox, again):
        teach(sandbox, "Where are the logs of the relay?", "They are in /var/log/lumen.")
        decided = await again.one_of(PairFiled)
    assert [filing.pair.qa_id for filing in again.all_of(FilingDecision)] == [decided.qa_id]
    assert decided.qa_id not in known


async def test_another_server_is_neither_answered_nor_learned_from(tmp_path: Path) -> None:
    sandbox, events = Sandbox(HandClock(), team={"mira"}), Watching()
    elsewhere = sandbox.add_channel("elsewhere")
    sandbox._channels[elsewhere] = structs.replace(sandbox._channels[elsewhere], guild_id=GuildId("1"))
    async with at_work(tmp_path, sandbox, events):
        await settled(sandbox, events, elsewhere)
    assert [batch.channel_id for batch in events.all_of(Batch)] == [elsewhere, elsewhere]
    assert events.all_of(AnswerResult) == []
    assert events.all_of(CapturedPair) == []
    assert sandbox.posts() == ()

    at_home = Watching()
    async with at_work(tmp_path, sandbox, at_home):
        await settled(sandbox, at_home, sandbox.general)
    assert (len(at_home.all_of(AnswerResult)), len(at_home.all_of(CapturedPair))) == (1, 1)


async def settled(sandbox: Sandbox, events: Watching, channel_id: ChannelId) -> None:
    """Settle a question and the team's reply to it, each in one of the ways."""
    asked = sandbox.say("bob", "@intern which port does the relay listen on?", channel_id=channel_id)
    await events.one_of(object, where=lambda told: isinstance(told, Batch | AnswerResult))
    sandbox.say("mira", "Port 7480.", channel_id=channel_id, reply_to=asked.id)
    await events.one_of(object, after=len(events.told), where=lambda told: isinstance(told, Batch | CapturedPair))


@pytest.mark.rest
@pytest.mark.parametrize("what", ["capture", "regenerate"])
async def test_who_follows_looks_when_a_command_has_changed_something(tmp_path: Path, what: str) -> None:
    """The next look would be ten minutes away."""
    events = Watching()
    async with at_work(tmp_path, Sandbox(HandClock()), events), open_intern(settings_in(tmp_path)) as intern:
        if what == "capture":
            pair = await intern.capture(samples.capture("How do I purge the spool?", "Use `lumen-relay spool purge`."))
            assert pair is not None
            assert (await events.one_of(FilingDecision)).pair == pair
        else:
            await intern.regenerate()
            assert events.all_of(FilingDecision) == []
        await events.one_of(RefreshReport, after=1)
