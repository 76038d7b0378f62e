"""The bot on a disk that is really full: it ends and says so, and a later start captures what it could not keep."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.double.discord import DiscordDouble
from tests.frontends.cli.test_full_disk import fill, mount, unmount
from tests.process.running import Folder, Installed, started, variables
from tests.worlds.endpoint import EndpointDouble

pytestmark = [pytest.mark.anyio, pytest.mark.process]

ANSWER = "It listens on 7070."


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path]:
    """A disk of its own, where the data folder will lie."""
    path = tmp_path / "data"
    path.mkdir()
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", "size=8m", "none", str(path)):
        pytest.skip("no small disk can be mounted here; root may, where the system lets it")
    try:
        yield path
    finally:
        unmount(path)


async def test_on_a_full_disk_it_ends_with_3_and_captures_once_after_the_next_start(
    installed: Installed, disk: Path, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    folder = Folder(disk.parent)
    settings = variables(discord, endpoint.base_url)
    async with started(installed, folder, settings) as bot:
        await discord.wait_ready()
        question = await discord.say(discord.alice, "Which port does the relay use?")
        await bot.until_logged("ai_request", message_id=question.id)
        junk = fill(disk)
        await discord.say(discord.tess, ANSWER, reply_to=question)
        assert await bot.until_ended() == 3
    said = bot.lines[-1]
    assert said.startswith("intern: ")
    assert re.search(r"(?i)no space .*free", said), said
    assert "data/" in said
    assert ANSWER not in folder.raw()
    junk.unlink()
    async with started(installed, folder, settings) as bot:
        await bot.until_logged("qa_pair_captured")
        bot.ask_to_end()
        assert await bot.until_ended() == 0
    assert folder.raw().count(ANSWER) == 1
