"""The main job of the installed program: it answers from documents, learns from the team, and survives being killed."""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import pytest

from tests.double.discord import DiscordDouble
from tests.process.running import PATIENCE, Folder, Installed, InstalledWheel, Json, answers_to, started, variables
from tests.worlds.endpoint import EndpointDouble, sensible, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.process]

SPOOL = "# The spool\n\nThe spool keeps metrics on disk while the backend is away. Move the spool with `spool.path`.\n"
AGENTS = "# Agents\n\nAn agent collects log lines on each machine. Install it with `relay install-agent`.\n"
ON_QUOTAS = "Raise the tenant quota with `relay quota set`, then rotate the certificate."


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.write("spool.md", SPOOL)
    made.write("agents.md", AGENTS)
    return made


async def test_the_wheel_brings_its_prompts_and_its_sample_and_the_source_tree_is_not_used(
    wheel: InstalledWheel, tmp_path: Path
) -> None:
    with anyio.fail_after(PATIENCE):
        found = await anyio.run_process([wheel.python, "-c", "import intern; print(intern.__file__)"], cwd=tmp_path)
    package = wheel.packages / "intern"
    assert Path(found.stdout.decode().strip()) == package / "__init__.py"
    source_tree = Path(__file__).parents[2]
    assert _names(package / "_prompts") == _names(source_tree / "prompts") != []
    assert _names(package / "_sample") == _names(source_tree / "sample") != []
    assert (package / "_example.toml").is_file()
    for folder in (Path("frontends", "http", "templates"), Path("frontends", "http", "static")):
        assert _names(package / folder) == _names(source_tree / "intern" / folder) != []
    assert (package / "search" / "vocabulary.txt").is_file()
    assert (package / "stores" / "schema.sql").is_file()


def _names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_a_question_gets_a_thread_and_an_answer_with_its_source(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    async with started(installed, folder, variables(discord, endpoint.base_url)) as bot:
        await bot.until_logged("index_refreshed")
        await discord.wait_ready()
        question = await discord.say(discord.alice, "@everyone How can I move the spool to another disk?")
        await bot.until_logged("reply_posted", message_id=question.id, outcome="posted")
        (answer,) = answers_to(discord, question)
        assert "Move the spool with `spool.path`." in answer.content
        assert "`kb:spool.md`" in answer.content
        assert "agents.md" not in answer.content
        assert not answer.mention_everyone
        thread = discord.thread_of(question)
        assert thread is not None
        assert thread.name == "everyone How can I move the spool to another disk?"
        (posted,) = discord.requests_to("POST", "/channels/*/messages")
        assert posted.body["allowed_mentions"] == {"parse": []}
        assert posted.body["flags"] == 1 << 2  # no link previews
        assert posted.body["enforce_nonce"] is True
        assert 0 < len(posted.body["nonce"]) <= 25
    assert discord.violations == []


async def test_a_team_reply_outlives_a_kill_and_answers_the_next_member_with_a_link_to_the_server(
    installed: Installed, folder: Folder, discord: DiscordDouble, endpoint: EndpointDouble
) -> None:
    # A server that speaks as Discord does, with tokens of its own.
    discord.world.token = "eyJhbGciOiJIUzI1NiJ9.eyJpZCI6IjEwIn0.c2lnbmF0dXJl"
    settings = variables(discord, endpoint.base_url)
    async with started(installed, folder, settings) as bot:
        await bot.until_logged("index_refreshed")
        await discord.wait_ready()
        question = await discord.say(discord.alice, "Why does my tenant quota block the new certificate?")
        silent = await bot.until_logged("ai_request", message_id=question.id)
        assert (silent["result"], silent["reason"]) == ("skipped", "no_answer")
        assert discord.said_by_bot() == []
        assert discord.threads() == []

        taught = await discord.say(discord.tess, ON_QUOTAS, reply_to=question)
        await bot.until_logged("qa_pair_captured")
        assert ON_QUOTAS in folder.raw()
        await bot.until_logged("topic_file_updated")
        assert ON_QUOTAS in folder.topics()
        await bot.until_logged("index_refreshed", count=2)
        assert folder.team_index()
        await bot.kill()

    # The first question may be asked again, if the kill came before it was noted as settled; the team has answered it.
    endpoint.next(_citing_the_block, _citing_the_block, prompt="answer")
    async with started(installed, folder, settings):
        await discord.wait_ready(sessions=2)
        again = await discord.say(
            discord.bob, "The certificate is blocked since the tenant ran into its quota, what now?"
        )
        answer = await discord.wait_for_answer(again)
        assert ON_QUOTAS in answer.content
        assert "`team:" in answer.content
        site = discord.rest_url.removesuffix("/api/v10")
        assert f"<{site}/channels/{discord.guild.id}/{taught.channel_id}/{taught.id}>" in answer.content
        assert answers_to(discord, question) == []
    assert discord.violations == []


def _citing_the_block(body: Json) -> Json:
    """Return an answer that cites the one team answer in its material, as the prompt requests."""
    reply = sensible(body)
    (block,) = re.findall(r"\bqa_\d+_\d+\.\d+\b", text_of(body, "user"))
    return reply | {"citations": [f"{reply['citations'][0]}#{block}"]}
