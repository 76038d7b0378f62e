"""How the installed program ends, calmly or not, and what it makes of that at its next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.double.discord import DiscordDouble
from tests.endpoint_double import EndpointDouble, never
from tests.process.running import (
    Folder,
    Installed,
    answers_to,
    nobody_listening,
    started,
    until_heard,
    variables,
)

pytestmark = [pytest.mark.anyio, pytest.mark.process]

SPOOL = "# The spool\n\nMove the spool to another disk with `spool.path`.\n"
POSTS = "/channels/*/messages"
THREADS = "/channels/*/messages/*/threads"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.write("spool.md", SPOOL)
    return made


async def test_sigterm_flushes_an_open_batch_into_the_archive_and_says_goodbye_to_discord(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    settings = variables(discord, endpoint.base_url, discord__message_batch_wait_seconds="600")
    endpoint.next(never(), prompt="classify")  # a model in no hurry does not hold up the end
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
        assert bot.events[-1]["event"] == "shutdown_finished"
    assert discord.gateway.connections[-1].closed_with == 1000
    assert "It listens on 7070," in folder.raw()
    assert "and on 7071 for agents." in folder.raw()
    assert folder.decisions() == []

    async with started(installed, folder, settings) as bot:
        await bot.until_logged("topic_file_updated")
        assert "It listens on 7070," in folder.topics()
        bot.ask_to_end()
        assert await bot.until_ended() == 0
    assert [decision["kind"] for decision in folder.decisions()] == ["filed"]
    assert len(discord.gateway.identifies) == 2


@pytest.mark.parametrize(
    ("route", "done"),
    [
        pytest.param(THREADS, True, id="the thread was made but nobody heard"),
        pytest.param(POSTS, False, id="the thread was made and the answer was not"),
        pytest.param(POSTS, True, id="the answer was made but nobody heard"),
    ],
)
async def test_killed_while_it_posts_it_leaves_exactly_one_reply_in_the_end(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble, route: str, done: bool
) -> None:
    settings = variables(discord, endpoint.base_url)
    held = discord.hold_next("POST", route, when="after" if done else "before")
    async with started(installed, folder, settings) as bot:
        await bot.until_logged("index_refreshed")
        await discord.wait_ready()
        question = await discord.say(discord.alice, "How can I move the spool to another disk?")
        await held.arrived.wait()
        await bot.kill()
    if not done:
        discord.fail_next("POST", route, drop=True)  # it died with the process
        held.release()
        await discord.wait_for_request("POST", route)
    assert len(answers_to(discord, question)) == (route == POSTS and done)

    async with started(installed, folder, settings) as bot:
        await bot.until_logged("posts_resumed", count=1)
        (answer,) = answers_to(discord, question)
        assert "`kb:spool.md`" in answer.content
        bot.ask_to_end()
        assert await bot.until_ended() == 0
        assert bot.complaints == []
    assert len(discord.threads()) == 1
    assert discord.violations == []


async def test_without_its_model_it_stays_silent_keeps_what_the_team_says_and_ends_calmly(
    installed: Installed, folder: Folder, discord: DiscordDouble
) -> None:
    with nobody_listening() as base_url:
        async with started(installed, folder, variables(discord, base_url)) as bot:
            await discord.wait_ready()
            question = await discord.say(discord.alice, "How can I move the spool to another disk?")
            failed = await bot.until_logged("ai_request", message_id=question.id)
            assert (failed["result"], failed["level"]) == ("error", "warning")
            await discord.say(discord.tess, "Set spool.path and start again.", reply_to=question)
            await bot.until_logged("llm_classification_failed")
            assert "Set spool.path and start again." in folder.raw()
            bot.ask_to_end()
            assert await bot.until_ended() == 0
    assert discord.said_by_bot() == []
    assert folder.decisions() == []
