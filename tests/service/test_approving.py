"""With `kb.review`, a team member's ✅ on Discord files a capture: in memory on both backends, and on real sockets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from anyio.lowlevel import checkpoint

from intern.core.captures import CapturedPair
from intern.core.decisions import PairApproved, PairFiled, PairReviewRequested
from intern.service.status import read_status
from intern.stores.engines.sqlite.database import ReadOnlySqliteDatabase
from intern.stores.tables.knowledge import KnowledgeStore
from tests.double.discord import DiscordDouble
from tests.runtime.test_on_discord import UNKNOWN, Stage
from tests.worlds.bot import Watching, at_work, settings_in
from tests.worlds.chat import Sandbox
from tests.worlds.clock import HandClock, all_quiet

pytestmark = pytest.mark.anyio

REVIEW = {"review": True}
ASKED = "How do I purge the spool?"


def decisions_in(folder: Path) -> KnowledgeStore:
    return KnowledgeStore(ReadOnlySqliteDatabase(settings_in(folder).paths.database))


@pytest.mark.parametrize("on", [0, 1])
async def test_a_capture_waits_until_the_team_puts_a_check_mark_on_any_of_its_messages(tmp_path: Path, on: int) -> None:
    sandbox, events = Sandbox(HandClock(), team={"mira", "tess"}), Watching()
    async with at_work(tmp_path, sandbox, events, kb=REVIEW):
        asked = sandbox.say("bob", ASKED)
        told = sandbox.say("mira", "Use `lumen-relay spool purge`.", reply_to=asked.id)
        waiting = await events.one_of(PairReviewRequested)
        for who, emoji in (("bob", "✅"), ("tess", "👍")):
            sandbox.react(who, (asked, told)[on], emoji)
        await all_quiet()
        assert events.all_of(PairApproved) == []

        sandbox.react("tess", (asked, told)[on])
        filed = await events.one_of(PairFiled)
        assert filed.qa_id == waiting.qa_id
    approved = [each for each in decisions_in(tmp_path).read_decisions() if isinstance(each, PairApproved)]
    assert [(each.qa_id, each.by) for each in approved] == [(waiting.qa_id, sandbox.author("tess").id)]


@pytest.mark.rest
async def test_in_a_channel_that_turned_private_a_check_mark_means_nothing(tmp_path: Path) -> None:
    sandbox, events = Sandbox(HandClock(), team={"mira"}), Watching()
    async with at_work(tmp_path, sandbox, events, kb=REVIEW):
        asked = sandbox.say("bob", ASKED)
        told = sandbox.say("mira", "Use `lumen-relay spool purge`.", reply_to=asked.id)
        await events.one_of(PairReviewRequested)
        sandbox.set_private(sandbox.general)
        sandbox.react("mira", told)
        await all_quiet()
    assert len(decisions_in(tmp_path).list_awaiting_review()) == 1


@pytest.mark.rest
async def test_what_is_edited_under_a_check_mark_waits_for_another_one(tmp_path: Path) -> None:
    clock = HandClock()
    sandbox, events = Sandbox(clock, team={"mira"}), Watching()
    async with at_work(tmp_path, sandbox, events, kb=REVIEW, message_batch_wait_seconds=0.2):
        asked = sandbox.say("bob", ASKED)
        told = sandbox.say("mira", "Use `lumen-relay spool purge`.", reply_to=asked.id)
        sandbox.react("mira", told)  # it is not captured yet
        sandbox.edit(asked.channel_id, asked.id, "How do I get rid of everything, and of evil.example?")
        clock.turn(seconds=1)
        await events.one_of(PairReviewRequested)
        await all_quiet()
        assert events.all_of(PairApproved) == []
        sandbox.react("mira", told)
        await events.one_of(PairFiled)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncGenerator[Stage]:
    clock = HandClock()
    async with DiscordDouble(now=clock.now) as discord:
        discord.bucket("POST", "/channels/*/messages", limit=50, per=1)
        yield Stage(tmp_path, discord, clock)


@pytest.mark.rest
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=False)
async def test_on_real_sockets_a_check_mark_approves_what_is_there_and_what_is_about_to_be(stage: Stage) -> None:
    discord = stage.discord
    async with stage.up(kb=REVIEW):
        question = await stage.say(discord.alice, UNKNOWN)
        answer = await stage.say(discord.tess, "Raise its quota.", reply_to=question)
        pair = await stage.captured(UNKNOWN, "Raise its quota.")
        await stage.seen.one_of(PairReviewRequested)
        for who, emoji in ((discord.alice, "✅"), (discord.bot, "✅"), (discord.tess, "👀")):
            await discord.react(who, answer, emoji)
        await discord.react(discord.tess, answer, "✅")
        filed = await stage.seen.one_of(PairFiled)
        assert filed.qa_id == pair.qa_id
        assert [each.by for each in stage.seen.all_of(PairApproved)] == [discord.tess.id]

        early = await stage.say(discord.bob, "Where do the agents keep their keys?", channel=discord.general)
        told = await stage.say(discord.tess, "In `/etc/lumen/keys`.", channel=discord.general, reply_to=early)
        await discord.react(discord.tess, told, "✅")
        assert (await stage.seen.one_of(PairFiled, after=1)).qa_id == stage.seen.all_of(CapturedPair)[-1].qa_id
    status = read_status(settings_in(stage.folder), clock=stage.clock)
    assert (status.awaiting_review, status.due, status.topics) == (0, 0, 2)
    assert not discord.violations


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=False)
async def test_without_review_no_reactions_are_asked_for(stage: Stage) -> None:
    for review, bits in ((False, 0), (True, 1 << 10)):
        async with stage.up(kb={"review": review}):
            await checkpoint()
        assert stage.discord.gateway.identifies[-1]["intents"] & (1 << 10) == bits
