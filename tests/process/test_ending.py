"""The end of the installed program, calm or not, and its next start."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.double.discord import DiscordDouble
from tests.process.running import (
    Folder,
    Installed,
    Json,
    answers_to,
    nobody_listening,
    started,
    until_heard,
    variables,
)
from tests.worlds.endpoint import EndpointDouble, Reply, never

pytestmark = [pytest.mark.anyio, pytest.mark.process]

SPOOL = "# The spool\n\nMove the spool to another disk with `spool.path`.\n"
POSTS = "/channels/*/messages"
THREADS = "/channels/*/messages/*/threads"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.write("spool.md", SPOOL)
    return made


async def test_sigterm_leaves_an_open_batch_to_discord_s_history_and_the_next_start_captures_it(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    settings = variables(discord, endpoint.base_url, discord__message_batch_wait_seconds="600")
    fast = anyio.Event()  # until it is set: a model in no hurry does not hold up the end

    def classify(_: Json) -> Reply:
        return Reply() if fast.is_set() else never()

    endpoint.next(classify, prompt="classify")
    async with started(installed, folder, settings) as bot:
        await discord.wait_ready()
        question = await discord.say(discord.alice, "Which port does the relay use?")
        await discord.say(discord.tess, "It listens on 7070,", reply_to=question)
        await discord.say(discord.tess, "and on 7071 for agents.", channel=discord.help)
        await until_heard(discord)
        assert folder.raw() == ""
        bot.ask_to_end()
        assert await bot.until_ended() == 0
        assert bot.complaints == []
        assert "shutdown_finished" in [event["event"] for event in bot.events]
    assert discord.gateway.connections[-1].closed_with == 1001  # going away: the session is over for Discord, too
    assert folder.raw() == ""

    settings = variables(discord, endpoint.base_url)
    async with started(installed, folder, settings) as bot:
        await bot.until_logged("qa_pair_captured")
        assert "It listens on 7070," in folder.raw()
        assert "and on 7071 for agents." in folder.raw()
        bot.ask_to_end()
        assert await bot.until_ended() == 0
    assert folder.decisions() == []
    fast.set()

    async with started(installed, folder, settings) as bot:
        await bot.until_logged("topic_file_updated")
        assert "It listens on 7070," in folder.topics()
        bot.ask_to_end()
        assert await bot.until_ended() == 0
    assert [decision["action"] for decision in folder.decisions()] == ["filed"]
    assert len(discord.gateway.identifies) == 3


async def test_killed_in_the_middle_of_three_posts_it_leaves_exactly_one_reply_to_each_question_in_the_end(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    settings = variables(discord, endpoint.base_url)
    # As Discord does: until it has seen a route's headers, hikari sends no second request there.
    discord.bucket("POST", THREADS, limit=50, per=1)
    discord.bucket("POST", POSTS, limit=50, per=1)
    async with started(installed, folder, settings) as bot:
        await bot.until_logged("index_refreshed")
        await discord.wait_ready()
        done = await discord.say(discord.bob, "Where can I move the spool, to a disk?")
        await bot.until_logged("reply_posted", message_id=done.id)
        thread_unheard = discord.hold_next("POST", THREADS, when="after")
        answer_unmade = discord.hold_next("POST", POSTS, when="before")
        answer_unheard = discord.hold_next("POST", POSTS, when="after")
        first = await discord.say(discord.alice, "How can I move the spool to another disk?", channel=discord.general)
        await thread_unheard.arrived.wait()
        second = await discord.say(discord.alice, "And how can I move the spool without another disk?")
        await answer_unmade.arrived.wait()
        third = await discord.say(discord.bob, "Can I move the spool to another disk, too?")
        await answer_unheard.arrived.wait()
        await bot.kill()
    discord.fail_next("POST", POSTS, drop=True)  # the answer that was never made died with the process
    answer_unmade.release()
    await discord.wait_for_request("POST", POSTS, count=2)
    asked = (done, first, second, third)
    assert [len(answers_to(discord, question)) for question in asked] == [1, 0, 0, 1]
    assert len(discord.threads()) == 4

    async with started(installed, folder, settings) as bot:
        assert (await bot.until_logged("posts_resumed"))["count"] == 3
        assert [len(answers_to(discord, question)) for question in asked] == [1, 1, 1, 1]
        assert all("`kb:spool.md`" in message.content for message in discord.said_by_bot())
        bot.ask_to_end()
        assert await bot.until_ended() == 0
        assert bot.complaints == []
    assert len(discord.threads()) == 4
    assert discord.violations == []


async def test_posts_that_discord_does_not_answer_hold_up_the_end_for_less_than_20_seconds(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    settings = variables(discord, endpoint.base_url)
    async with started(installed, folder, settings) as bot:
        await bot.until_logged("index_refreshed")
        await discord.wait_ready()
        stuck = discord.hold_next("POST", THREADS, when="before", times=3)
        for _ in range(3):
            await discord.say(discord.alice, "How can I move the spool to another disk?", channel=discord.general)
        await stuck.arrived.wait()
        began = anyio.current_time()
        bot.ask_to_end()
        assert await bot.until_ended() == 0
        assert anyio.current_time() - began < 20
        assert "shutdown_deadline_passed" in [event["event"] for event in bot.events]
        stuck.release()

    async with started(installed, folder, settings) as bot:
        await bot.until_logged("posts_resumed")
        bot.ask_to_end()
        assert await bot.until_ended() == 0
    assert len(discord.threads()) == len(discord.said_by_bot())
    assert discord.said_by_bot()


async def test_without_its_model_it_stays_silent_keeps_what_the_team_says_and_ends_calmly(
    installed: Installed, folder: Folder, discord: DiscordDouble
) -> None:
    with nobody_listening() as base_url:
        async with started(installed, folder, variables(discord, base_url)) as bot:
            await bot.until_logged("index_refreshed")  # before, there is no source to ask a model about
            await discord.wait_ready()
            question = await discord.say(discord.alice, "How can I move the spool to another disk?")
            failed = await bot.until_logged("ai_request", message_id=question.id)
            assert (failed["result"], failed["level"]) == ("error", "warning")
            await discord.say(discord.tess, "Set spool.path and start again.", reply_to=question)
            await bot.until_logged("llm_classification_failed", again_in_seconds=1.0)  # so it is not given up
            assert "Set spool.path and start again." in folder.raw()
            bot.ask_to_end()
            assert await bot.until_ended() == 0
    assert discord.said_by_bot() == []
    assert folder.decisions() == []
