"""The installed program where it cannot work: it prints one line that names the next step, and has an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.double.discord import DiscordDouble
from tests.process.running import (
    API_KEY,
    Ended,
    Folder,
    Installed,
    ended,
    nobody_listening,
    started,
    variables,
)
from tests.worlds.endpoint import EndpointDouble

pytestmark = [pytest.mark.anyio, pytest.mark.process]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def _one_line(run: Ended, *names: str) -> None:
    """Check that stderr, without progress, is one sentence that names the next step and holds no secret."""
    said = [line for line in run.stderr.splitlines() if not line.startswith(("Reading ", "Describing "))]
    assert len(said) == 1, run.stderr
    assert said[0].startswith("intern: ")
    assert [name for name in names if name not in run.stderr] == [], run.stderr
    assert [secret for secret in (API_KEY, ".double.token") if secret in run.stderr] == []
    assert run.stdout == ""


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ("discord__token", ["discord.token", "INTERN__DISCORD__TOKEN"]),
        ("discord__guild_ids", ["discord.guild_ids"]),
        ("llm__base_url", ["llm.base_url", "llm.provider"]),
        ("llm__model", ["llm.model"]),
    ],
)
async def test_a_missing_setting_is_named(
    installed: Installed, folder: Folder, discord: DiscordDouble, missing: str, names: list[str]
) -> None:
    settings = variables(discord, "http://127.0.0.1:9/v1")
    del settings[f"INTERN__{missing.upper()}"]
    run = await ended(installed, folder, settings, "run")
    assert run.exit_code == 2
    _one_line(run, *names)
    assert discord.requests == []


@pytest.mark.parametrize(
    ("code", "names"),
    [
        pytest.param(4004, ["discord.token", "Reset Token"], id="refused token"),
        pytest.param(4014, ["Message Content Intent", "developer portal"], id="missing intent"),
    ],
)
async def test_a_connection_that_discord_refuses_for_good_ends_with_what_to_do(
    installed: Installed,
    folder: Folder,
    discord: DiscordDouble,
    endpoint: EndpointDouble,
    *,
    code: int,
    names: list[str],
) -> None:
    discord.gateway.refuse_identify = code
    run = await ended(installed, folder, variables(discord, endpoint.base_url), "run")
    assert run.exit_code == 2
    _one_line(run, *names)
    assert len(discord.gateway.identifies) == 1


async def test_a_token_that_rest_refuses_ends_with_what_to_do(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    wrong = discord.token + "-but-wrong"
    run = await ended(installed, folder, variables(discord, endpoint.base_url, discord__token=wrong), "run")
    assert run.exit_code == 2
    _one_line(run, "discord.token", "Reset Token")
    assert discord.gateway.identifies == []


@pytest.mark.parametrize("command", [["index"], ["ask", "How can I move the spool to another disk?"]])
async def test_a_command_that_cannot_reach_its_model_says_so(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble, command: list[str]
) -> None:
    folder.write("spool.md", "# The spool\n\nMove the spool to another disk with `spool.path`.\n")
    assert (await ended(installed, folder, variables(discord, endpoint.base_url), "index")).exit_code == 0
    folder.write("ports.md", "# Ports\n\nThe relay listens on port 7480.\n")
    with nobody_listening() as base_url:
        run = await ended(installed, folder, variables(discord, base_url), *command)
        assert run.exit_code == 3
        _one_line(run, base_url)


async def test_a_second_bot_on_the_same_folder_is_refused(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    settings = variables(discord, endpoint.base_url)
    async with started(installed, folder, settings) as bot:
        await discord.wait_ready()
        run = await ended(installed, folder, settings, "run")
        assert run.exit_code == 3
        _one_line(run, "data", str(bot.pids[-1]))
        assert len(discord.gateway.identifies) == 1
