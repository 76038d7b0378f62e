"""The page in the bot's own process, with Discord's double on real sockets: there from the start to the end."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import Event, create_task_group, fail_after
from msgspec.structs import replace

from intern.actors.office import WIRES, office
from intern.app.bot import parts_on_discord
from intern.domain import AIResult, Secret
from intern.errors import ConfigError
from intern.indexing.refresh import Refreshed
from intern.page.options import PageOptions
from intern.settings import Settings
from tests.at_work import Watching, settings_in
from tests.double.discord import DiscordDouble
from tests.fakes import HandClock

pytestmark = pytest.mark.anyio

UNKNOWN = "Why is my tenant blocked?"


@pytest.fixture
async def discord() -> AsyncGenerator[DiscordDouble]:
    async with DiscordDouble(now=HandClock().now) as double:
        yield double


def settings_of(folder: Path, discord: DiscordDouble) -> Settings:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    door: dict[str, Any] = {"token": discord.token, "rest_url": discord.rest_url, "guild_ids": [discord.guild.id]}
    return replace(settings_in(folder, **door), page=PageOptions(enabled=True, port=port))


async def test_it_tells_of_the_bot_s_work_and_leaves_with_it(discord: DiscordDouble, tmp_path: Path) -> None:
    settings, seen, stop = settings_of(tmp_path, discord), Watching(), Event()
    address = f"http://127.0.0.1:{settings.page.port}"
    with fail_after(60):
        async with httpx.AsyncClient(base_url=address, timeout=30) as client:
            async with parts_on_discord(settings, witness=seen, clock=HandClock(), first_pause=0.1) as parts:
                before = (await client.get("/readyz")).json()["checks"]
                assert (before["discord"], before["folder"], before["database"]) == (False, True, True)
                async with create_task_group() as tg:
                    tg.start_soon(partial(office, parts, stop=stop))
                    await discord.wait_ready()
                    await seen.one_of(Refreshed)
                    assert (await client.get("/readyz")).json()["ready"] is True
                    await discord.say(discord.alice, UNKNOWN)
                    await seen.one_of(AIResult)
                    while UNKNOWN not in (await client.get("/unanswered")).text:
                        pass  # it is written down with the marks, once a second
                    text = (await client.get("/")).text
                    assert all(wire.name in text for wire in WIRES)
                    assert "none since the start" not in text
                    stop.set()
            with pytest.raises(httpx.ConnectError):
                await client.get("/healthz")


async def test_a_port_that_is_taken_ends_the_start_and_lets_the_folder_go(
    discord: DiscordDouble, tmp_path: Path
) -> None:
    settings = settings_of(tmp_path, discord)
    with socket.socket() as taken, fail_after(30):
        taken.bind(("127.0.0.1", settings.page.port))
        taken.listen()
        with pytest.raises(ConfigError, match=r"page\.port: .*in use.*choose another"):
            async with parts_on_discord(settings, witness=Watching(), clock=HandClock()):
                pass
    on = replace(settings, page=PageOptions(enabled=True, port=0, token=Secret("a-token-of-the-operator")))
    with fail_after(30):
        async with parts_on_discord(on, witness=Watching(), clock=HandClock()):
            pass
