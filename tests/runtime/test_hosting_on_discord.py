"""One process, several servers, and Discord's double on real sockets: nothing of one server reaches another."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio import Event, create_task_group, fail_after
from msgspec.structs import replace

from intern.core.clock import SystemClock
from intern.frontends.http.server import create_page_service
from intern.runtime import hosting
from intern.runtime.hosted_bot import open_hosting_on_discord
from intern.runtime.hosting import Hosting
from intern.service import PageOptions
from intern.service.community_registry import build_community
from tests.double import interactions as double
from tests.double.discord import DiscordDouble
from tests.double.payloads import guild_event
from tests.double.world import Guild
from tests.engines import Schemas
from tests.worlds.settings import OFFLINE, WORDS_ALONE, make_settings

pytestmark = [pytest.mark.rest, pytest.mark.on_asyncio]

PORT = "On which port does the relay listen?"
ZORB = "How do I reset the zorb?"


class Hotel:
    """A process that hosts each server of the double."""

    def __init__(self, folder: Path, discord: DiscordDouble, *, page: int = 0, url: str = "") -> None:
        self.folder, self.discord, self.clock = folder, discord, SystemClock()
        self.settings = replace(
            make_settings(
                data={"dir": str(folder), "url": url},
                hosting={"enabled": True},
                llm=OFFLINE,
                embeddings=WORDS_ALONE,
                discord={
                    "token": discord.token,
                    "rest_url": discord.rest_url,
                    "message_batch_wait_seconds": 0.05,
                },
                kb={"settle_seconds": 0},
            ),
            page=PageOptions(enabled=bool(page), port=page),
        )

    def document(self, name: str, text: str) -> None:
        """Give a community a document before it is opened."""
        sources = self.folder / "communities" / name / "knowledge-base/sources"
        sources.mkdir(parents=True)
        (sources / "relay.md").write_text(text)

    def archived(self, name: str) -> str:
        """Return all captures of a community."""
        weeks = sorted((self.folder / "communities" / name / "team-knowledge/raw").glob("*.txt"))
        return "".join(each.read_text() for each in weeks)

    @asynccontextmanager
    async def up(self, *names: str) -> AsyncGenerator[Hosting]:
        self.stop = stop = Event()
        beside = create_page_service(self.settings) if self.settings.page.enabled else None
        with fail_after(60):
            async with (
                open_hosting_on_discord(
                    self.settings, clock=self.clock, first_pause=0.1, beside=beside
                ) as self.hosting,
                create_task_group() as tg,
            ):
                tg.start_soon(partial(self.hosting.run, stop=stop))
                if names:
                    await self.discord.wait_ready(len(self.discord.gateway.identifies) + 1)
                    await self.until(lambda: {*names} == {*self.hosting.communities.names})
                yield self.hosting
                stop.set()

    async def indexed(self, *names: str) -> None:
        """Open communities, and wait until they have indexed their documents."""

        def is_indexed(name: str) -> bool:
            index = self.folder / "communities" / name / "knowledge-base/index.txt"
            return index.exists() and "relay.md" in index.read_text()

        for name in names:
            self.hosting.communities.open_now(name)
        await self.until(lambda: all(map(is_indexed, names)))

    async def choose(self, name: str, **chosen: dict[str, Any]) -> None:
        """Let a community choose settings, and wait until they are in effect."""
        registry = self.hosting.registry
        made = await registry.change(name, lambda each: replace(each, chosen=chosen))
        await self.until(lambda: self.hosting.communities.get(name) == build_community(made))

    @property
    def is_connected(self) -> bool:
        """Return whether each shard that it holds has a session."""
        return bool(self.hosting._chat.is_open)

    async def until(self, met: Callable[[], object]) -> None:
        while not met():  # noqa: ASYNC110 the database and the archive set no events
            await anyio.sleep(0.01)


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "LOOK_SECONDS", 0.05)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def invited(discord: DiscordDouble, name: str) -> Guild:
    """Invite the bot to another server, which has a channel."""
    guild = discord.world.new_guild(name)
    discord.world.new_channel("help", guild=guild)
    discord.gateway.dispatch("GUILD_CREATE", guild_event(discord.world, guild))
    return guild


async def test_each_server_has_its_own_team_documents_and_knowledge(tmp_path: Path) -> None:
    async with DiscordDouble() as discord:
        hotel, world = Hotel(tmp_path, discord), discord.world
        hotel.document("community", "# Relay\n\nThe relay listens on port 7480.\n")
        hotel.document("other", "# Spool\n\nThe spool is in /var/spool.\n")
        async with hotel.up("community"):
            other = invited(discord, "Other")
            there = next(each for each in world.channels.values() if each.guild_id == other.id)
            await hotel.until(lambda: "other" in hotel.hosting.communities)
            dan = world.new_member("dan", guild=other)
            other.members[discord.tess.id] = type(other.members[dan.id])(user=discord.tess)
            await hotel.indexed("community", "other")
            await hotel.choose("community", discord={"team_role_ids": [discord.team_role.id]})

            asked = await discord.say(discord.alice, PORT)
            assert "7480" in (await discord.wait_for_answer(asked)).content
            # She is a team member on one server, and an ordinary member on the other.
            for channel, member in ((discord.help, discord.alice), (there, dan)):
                question = await discord.say(member, ZORB, channel=channel)
                await discord.say(discord.tess, "Hold the blue key for ten seconds.", reply_to=question)
            await hotel.until(lambda: "blue key" in hotel.archived("community"))
            unanswered = await discord.say(dan, f"<@{discord.bot_id}> {PORT}", channel=there)
            assert "7480" not in (await discord.wait_for_answer(unanswered)).content
        assert hotel.archived("other") == ""
        assert hotel.hosting.communities.open == ()


async def test_a_server_is_greeted_sets_itself_up_and_asks_as_much_as_its_limit_allows(tmp_path: Path) -> None:
    async with DiscordDouble() as discord:
        hotel, world = Hotel(tmp_path, discord), discord.world
        async with hotel.up("community"):
            await hotel.until(lambda: len(world.application.commands) == 4)
            other = world.new_guild("Andere")
            there = world.new_channel("help", guild=other)
            told = {"system_channel_id": there.id, "preferred_locale": "de"}
            discord.gateway.dispatch("GUILD_CREATE", guild_event(world, other) | told)
            greeting = await discord.wait_for_message(there)
            assert greeting.content.startswith("Hallo! ")
            dan, meg = (world.new_member(name, guild=other) for name in ("dan", "meg"))
            role = world.new_role("helpers", guild=other)
            other.members[meg.id].roles.append(role.id)

            refused = await double.set_up(discord, dan, permissions=0, at=there, team_role=role.id)
            await hotel.until(lambda: double.shown(refused))
            assert "dürfen" in double.shown(refused)[0]
            setup = await double.set_up(discord, meg, permissions=1 << 5, at=there, team_role=role.id)
            await hotel.until(lambda: double.shown(setup))
            assert f"- team: <@&{role.id}>" in double.shown(setup)[0]
            await hotel.until(lambda: role.id in str(hotel.hosting.communities.get("andere")))
            question = await discord.say(dan, ZORB, channel=there)
            await discord.say(meg, "Hold the blue key for ten seconds.", reply_to=question)
            await hotel.until(lambda: "blue key" in hotel.archived("andere"))

            await hotel.choose("andere", discord={"team_role_ids": [role.id]}, hosting={"questions_per_day": 2})
            asked = await discord.say(dan, f"<@{discord.bot_id}> {PORT}", channel=there)  # the second of the day
            assert "used up" not in (await discord.wait_for_answer(asked)).content
            asked = await discord.say(dan, f"<@{discord.bot_id}> {PORT}", channel=there)
            assert "I have used up what I may spend" in (await discord.wait_for_answer(asked)).content


async def test_an_outage_changes_nothing_and_a_removal_ends_the_community(tmp_path: Path) -> None:
    async with DiscordDouble() as discord:
        hotel = Hotel(tmp_path, discord)
        hotel.document("community", "# Relay\n\nThe relay listens on port 7480.\n")
        async with hotel.up("community"):
            await hotel.indexed("community")
            other = invited(discord, "Other")
            await hotel.until(lambda: "other" in hotel.hosting.communities)
            discord.gateway.dispatch("GUILD_DELETE", {"id": discord.guild.id, "unavailable": True})
            discord.gateway.dispatch("GUILD_DELETE", {"id": other.id})
            await hotel.until(lambda: "other" not in hotel.hosting.communities)
            assert "community" in hotel.hosting.communities
            discord.gateway.dispatch("GUILD_CREATE", guild_event(discord.world, discord.guild))
            asked = await discord.say(discord.alice, PORT)
            assert "7480" in (await discord.wait_for_answer(asked)).content
            assert [each.state for each in await hotel.hosting.registry.all()] == ["active", "left"]
        # A removal while the process is down is noticed at the next start, also of a server that is no longer served.
        third = discord.world.new_guild("Third")
        discord.world.guilds[other.id] = other
        async with hotel.up("community", "other", "third") as hosting:
            await hosting.registry.change("third", lambda each: replace(each, state="suspended"))
        del discord.world.guilds[other.id]
        del discord.world.guilds[third.id]
        async with hotel.up("community") as hosting:
            assert (await hosting.registry.get("other")).state == "left"
            while not (await hosting.registry.get("third")).left_at:  # noqa: ASYNC110 as in `until`
                await anyio.sleep(0.01)


async def test_the_page_lists_communities_and_the_metrics_name_none(tmp_path: Path, free_port: int) -> None:
    async with DiscordDouble() as discord:
        hotel = Hotel(tmp_path, discord, page=free_port)
        hotel.document("community", "# Relay\n\nThe relay listens on port 7480.\n")
        async with hotel.up("community"), httpx.AsyncClient(base_url=f"http://127.0.0.1:{free_port}") as client:
            await hotel.indexed("community")
            await discord.wait_for_answer(await discord.say(discord.alice, PORT))
            page = (await client.get("/")).text
            assert '<th scope="row">community</th>' in page
            assert discord.guild.id in page
            assert (await client.get("/questions")).status_code == 404
            assert (await client.get("/readyz")).status_code == 200
            breaker = hotel.hosting._host.shared.line(hotel.settings.llm, "llm").breaker
            breaker._open_circuit(0.0, "it is down")
            assert (await client.get("/readyz")).json()["checks"]["model"] is False
            told = (await client.get("/metrics")).text
            assert 'intern_communities{state="open"} 1.0' in told
            assert 'intern_ai_requests_total{result="answered"} 1.0' in told
            assert discord.guild.id not in told
            assert "Community" not in told


async def test_a_process_takes_over_the_shards_of_one_that_stops_with_all_that_it_learned(
    tmp_path: Path, postgres: Schemas
) -> None:
    async with DiscordDouble() as discord:
        world = discord.world
        world.shards, world.max_concurrency = 4, 4
        other = world.new_guild("Other")
        there = world.new_channel("help", guild=other)
        with postgres.emptied() as schema:
            url = postgres.url(schema)
            first, second = (Hotel(tmp_path / name, discord, url=url) for name in ("first", "second"))
            async with first.up("community", "other"):
                await first.choose("community", discord={"team_role_ids": [discord.team_role.id]})
                question = await discord.say(discord.alice, ZORB)
                await discord.say(discord.tess, "Hold the blue key for ten seconds.", reply_to=question)
                db = first.hosting._host.db.for_community("community")
                kept = "select count(*) from decisions where community = :community"
                while not await db.number(kept):  # noqa: ASYNC110 as in `until`
                    await anyio.sleep(0.05)
                async with second.up():
                    await second.until(lambda: len(first.hosting._fenced) == len(second.hosting._fenced) == 2)
                    first.stop.set()
                    await second.until(lambda: {*second.hosting.communities.names} == {"community", "other"})
                    await second.until(lambda: second.is_connected)
                    asked = await discord.say(discord.bob, f"<@{discord.bot_id}> {ZORB}")
                    assert "blue key" in (await discord.wait_for_answer(asked)).content
                    strange = await discord.say(discord.bob, f"<@{discord.bot_id}> {ZORB}", channel=there)
                    assert "blue key" not in (await discord.wait_for_answer(strange)).content
