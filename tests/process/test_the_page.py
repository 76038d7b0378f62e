"""The installed program with its status page: live before it is ready, counted without names, and one on a port."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import httpx
import pytest

from tests.double.discord import DiscordDouble
from tests.process.running import API_KEY, Folder, Installed, ended, started, until_heard, variables
from tests.worlds.endpoint import EndpointDouble

pytestmark = [pytest.mark.anyio, pytest.mark.process]

PAGE_TOKEN = "a-token-of-the-operator-5120"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "one")
    made.write("spool.md", "# The spool\n\nThe spool keeps metrics. Move the spool with `spool.path`.\n")
    return made


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def settings_of(discord: DiscordDouble, endpoint: EndpointDouble, port: int, **more: str) -> dict[str, str]:
    return variables(discord, endpoint.base_url, page__enabled="true", page__port=str(port), **more)


def page_at(port: int, **headers: str) -> httpx.AsyncClient:
    """Open the page as a monitoring service would; nothing is encrypted here."""
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, verify=False, headers=headers)


async def test_it_is_live_at_once_ready_with_its_session_and_counts_without_names(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    settings = settings_of(discord, endpoint, port := free_port(), page__token=PAGE_TOKEN)
    before_the_session = discord.hold_next("GET", "/gateway/bot")
    async with started(installed, folder, settings) as bot, page_at(port) as anybody:
        await bot.until_logged("page_served")
        await before_the_session.arrived.wait()
        live, ready = await anybody.get("/healthz"), await anybody.get("/readyz")
        assert (live.status_code, live.json()["live"], live.json()["ready"]) == (200, True, False)
        assert (ready.status_code, ready.json()["checks"]["discord"]) == (503, False)
        before_the_session.release()
        await discord.wait_ready()
        await bot.until_logged("index_refreshed")
        await until_heard(discord)
        ready = await anybody.get("/readyz")
        assert (ready.status_code, ready.json()["notes"]) == (200, {})
        assert ready.json()["checks"] == dict.fromkeys(["discord", "database", "folder", "posting", "model"], True)

        text = "How can I move the zebra spool to another disk?"
        question = await discord.say(discord.alice, text)
        await bot.until_logged("reply_posted", message_id=question.id, outcome="posted")
        assert (await anybody.get("/metrics")).status_code == 401
        async with page_at(port, authorization=f"Bearer {PAGE_TOKEN}") as operator:
            counted = (await operator.get("/metrics")).text
            front = await operator.get("/")
    assert 'intern_ai_requests_total{result="answered"} 1.0' in counted
    names = {line.split("{")[0].split()[0] for line in counted.splitlines() if not line.startswith("#")}
    assert [name for name in names if not name.startswith("intern_")] == []
    (answer,) = discord.said_by_bot()
    secrets = [API_KEY, PAGE_TOKEN, discord.token]
    people = [name for user in (discord.alice, discord.bob, discord.tess) for name in (user.id, user.username)]
    assert [each for each in (*secrets, *people, question.id, answer.id, discord.guild.id) if each in counted] == []
    assert re.findall(r"(?<![.\d])\d{15,}", counted) == []
    assert [word for word in ("zebra", "spool") if word in counted] == []
    assert front.status_code == 200
    assert "Nothing needs you right now." in front.text
    assert [each for each in secrets if each in front.text] == []
    assert discord.violations == []


async def test_a_port_that_is_taken_ends_the_start_with_a_line_and_leaves_the_other_bot_alone(
    installed: Installed, folder: Folder, tmp_path: Path, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    settings = settings_of(discord, endpoint, port := free_port())
    other = Folder(tmp_path / "other")
    other.write("agents.md", "# Agents\n\nAn agent collects log lines on each machine.\n")
    async with started(installed, folder, settings) as bot, page_at(port) as client:
        await bot.until_logged("index_refreshed")
        await discord.wait_ready()
        asked = len(endpoint.requests)

        run = await ended(installed, other, settings, "run")
        assert run.exit_code == 2
        assert run.stdout == ""
        (line,) = run.stderr.splitlines()
        assert line.startswith(
            f"intern: page.port: the status page cannot be served at 127.0.0.1:{port} (address already"
        )
        assert len(discord.gateway.identifies) == 1, "a bot that cannot start opens no session"
        assert len(endpoint.requests) == asked, "and asks no model"
        assert left_half_done(other.path) == []

        assert (await client.get("/healthz")).json()["live"] is True
        question = await discord.say(discord.alice, "How can I move the spool to another disk?")
        await bot.until_logged("reply_posted", message_id=question.id, outcome="posted")
        assert bot.complaints == []
    # What the other one has begun to lay down is good for its next start.
    settings = settings_of(discord, endpoint, free_port())
    async with started(installed, other, settings) as bot:
        await bot.until_logged("index_refreshed")
        assert bot.complaints == []


def left_half_done(folder: Path) -> list[Path]:
    """Return files that are being written, or that are only half written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    unfinished = {".tmp", ".part", ".new"}
    empty = [path for path in files if path.stat().st_size == 0 and path.name != ".lock"]
    return [path for path in files if path.suffix in unfinished] + [
        path for path in empty if not path.name.endswith(("-wal", "-shm"))
    ]
