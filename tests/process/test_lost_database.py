"""The bot names a damaged or lost database. After a restore it reads new messages, and older ones only by a setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.double.discord import DiscordDouble
from tests.process.running import Folder, Installed, ended, started, variables
from tests.worlds.endpoint import EndpointDouble

pytestmark = [pytest.mark.anyio, pytest.mark.process]

BEFORE, MISSED, AFTER = "It listens on 7070.", "Rotate the certificate first.", "Restart the collector."


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize(
    ("lookback", "caught_up"), [pytest.param("0", 0, id="by default"), pytest.param("3600", 1, id="told to look back")]
)
async def test_with_a_restored_database_it_looks_back_only_as_far_as_it_is_told_to(
    installed: Installed,
    folder: Folder,
    discord: DiscordDouble,
    endpoint: EndpointDouble,
    *,
    lookback: str,
    caught_up: int,
) -> None:
    settings = variables(discord, endpoint.base_url, discord__first_lookback=lookback)
    async with started(installed, folder, settings) as bot:
        await discord.wait_ready()
        question = await discord.say(discord.alice, "Which port does the relay use?")
        await discord.say(discord.tess, BEFORE, reply_to=question)
        await bot.until_logged("qa_pair_captured")
        bot.ask_to_end()
        assert await bot.until_ended() == 0
    question = await discord.say(discord.alice, "Why is my tenant blocked?")
    await discord.say(discord.tess, MISSED, reply_to=question)

    data = folder.path / "data"
    (data / "intern.db").write_bytes(b"this was a database once " * 1000)
    run = await ended(installed, folder, settings, "run")
    assert run.exit_code == 3
    assert "intern.db is damaged" in run.stderr
    for path in data.glob("intern.db*"):
        path.rename(folder.path / path.name)
    run = await ended(installed, folder, settings, "run")
    assert run.exit_code == 3
    assert "run: intern restore data" in run.stderr
    assert (await ended(installed, folder, settings, "restore", "data")).exit_code == 0

    async with started(installed, folder, settings) as bot:
        await discord.wait_ready(sessions=2)
        question = await discord.say(discord.bob, "Where do the metrics go?")
        await discord.say(discord.tess, AFTER, reply_to=question)
        await bot.until_logged("qa_pair_captured", count=1 + caught_up)
        bot.ask_to_end()
        assert await bot.until_ended() == 0
    assert [folder.raw().count(text) for text in (BEFORE, MISSED, AFTER)] == [1, caught_up, 1]
