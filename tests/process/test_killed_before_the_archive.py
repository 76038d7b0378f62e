"""SIGKILL anywhere between gateway and archive: each reply of the team is captured after the next start, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.double.discord import DiscordDouble
from tests.process.running import Folder, Installed, started, until_heard, variables
from tests.worlds.endpoint import EndpointDouble

pytestmark = [pytest.mark.anyio, pytest.mark.process]

MESSAGES = "/channels/*/messages"
ANSWER = "It listens on 7070."


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


async def _captured_once(installed: Installed, folder: Folder, discord: DiscordDouble, base_url: str) -> None:
    assert folder.raw() == ""
    async with started(installed, folder, variables(discord, base_url)) as bot:
        await bot.until_logged("qa_pair_captured")
        bot.ask_to_end()
        assert await bot.until_ended() == 0
    assert folder.raw().count(ANSWER) == 1


async def test_killed_while_the_batch_is_open(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    patient = variables(discord, endpoint.base_url, discord__message_batch_wait_seconds="600")
    async with started(installed, folder, patient) as bot:
        await discord.wait_ready()
        question = await discord.say(discord.alice, "Which port does the relay use?")
        await discord.say(discord.tess, ANSWER, reply_to=question)
        await until_heard(discord)
        await bot.kill()
    await _captured_once(installed, folder, discord, endpoint.base_url)


async def test_killed_while_discord_is_read(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    async with started(installed, folder, variables(discord, endpoint.base_url)) as bot:
        await discord.wait_ready()
        question = await discord.say(discord.alice, "Thanks a lot!")
        await bot.until_logged("ai_request", message_id=question.id)
        reading = discord.hold_next("GET", MESSAGES)
        await discord.say(discord.tess, ANSWER, reply_to=question)
        await reading.arrived.wait()
        await bot.kill()
        reading.release()
    await _captured_once(installed, folder, discord, endpoint.base_url)
