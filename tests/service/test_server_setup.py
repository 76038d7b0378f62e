"""`/intern setup`: the settings that managers of a server can choose, and the replies."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from anyio import fail_after

from intern.core import flow
from intern.core.flow import InteractionTicket, SetupChanges, SetupCommand, StatusCommand
from intern.core.ids import ChannelId, GuildId, RoleId
from intern.core.text.secret_values import Secret
from intern.service.community_registry import CommunityRegistry, erase_left_communities
from intern.service.databases import open_database
from intern.service.server_setup import ServerSetup, first_choice
from intern.settings.loading import load_settings
from intern.stores.tables.communities import CommunityStore
from intern.stores.tables.daily_counts import DailyCounts
from tests.worlds import samples
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

TICKET = InteractionTicket(
    id="9", token=Secret("t"), application_id="1", guild_id=GuildId("1"), channel_id=ChannelId("2")
)


class Server:
    """A server with the bot, whose manager uses commands."""

    def __init__(
        self, registry: CommunityRegistry, setup: ServerSetup, store: CommunityStore, counts: DailyCounts
    ) -> None:
        self.registry, self._setup, self.store, self.counts = registry, setup, store, counts

    async def set_up(self, **wanted: Any) -> str:
        return await self._setup(
            SetupCommand(interaction=TICKET, user=samples.author(), manages=True, wanted=SetupChanges(**wanted))
        )

    async def status(self) -> str:
        return await self._setup(StatusCommand(interaction=TICKET, user=samples.author(), manages=True))

    async def chosen(self) -> Any:
        return (await self.store.get("rust")).chosen


@asynccontextmanager
async def joined(folder: Path, **hosting: Any) -> AsyncGenerator[Server]:
    defaults = load_settings(
        environ={},
        overrides={
            "data": {"dir": str(folder)},
            "hosting": {"enabled": True, **hosting},
            "embeddings": {"provider": "none"},
        },
    )
    clock = HandClock()
    with fail_after(20):
        async with await open_database(defaults) as db:
            store = CommunityStore(db, clock=clock)
            await store.add_server(GuildId("1"), "Rust")
            registry = CommunityRegistry(defaults, db, clock)
            counts = DailyCounts(db.for_community("rust"), clock=clock)
            yield Server(registry, ServerSetup(registry, "rust", clock), store, counts)


async def test_a_new_server_reads_what_is_missing_until_it_is_set(tmp_path: Path) -> None:
    async with joined(tmp_path) as server:
        told = await server.set_up()
        assert "- team: no role" in told
        assert "Missing: a team role" in told
        assert "Missing: documents" in told
        assert await server.chosen() == {}
        told = await server.set_up(team_role=RoleId("7"), document="https://docs.example.org/guide")
        assert "- team: <@&7>" in told
        assert "page `https://docs.example.org/guide`" in told
        assert "Missing" not in told
        assert "Missing" not in await server.status()


async def test_all_that_a_server_may_choose_is_set_and_taken_back(tmp_path: Path) -> None:
    async with joined(tmp_path) as server:
        await server.set_up(team_role=RoleId("7"), language="de", review=True)
        await server.set_up(team_role=RoleId("8"), mode="mention_only", document="https://a.example.org")
        await server.set_up(channel=ChannelId("3"), mode="off")
        told = await server.set_up(remove_team_role=RoleId("7"))
        assert "- in channels: learn, and answer members who mention me\n  - but <#3>: nothing" in told
        settings = await server.registry.settings("rust")
        assert (settings.discord.team_role_ids, settings.discord.language) == (("8",), "de")
        assert (settings.kb.links, settings.kb.review) == (("https://a.example.org",), True)
        await server.set_up(channel=ChannelId("3"), mode="default", remove_document="https://a.example.org")
        assert await server.chosen() == {
            "discord": {"team_role_ids": ["8"], "default_mode": "mention_only", "channels": [], "language": "de"},
            "kb": {"links": [], "review": True},
        }


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"document": "http://localhost/admin"}, "localhost is no public name"),
        ({"document": "http://169.254.169.254/latest"}, "169.254.169.254 is no public address"),
        ({"document": "https://user:hush@example.org"}, "the address holds a user name"),
        ({"document": "https://docs.example.org/3"}, "a community may have 2 addresses of documents; remove one first"),
        ({"channel": ChannelId("3")}, "name both `channel` and `mode`"),
        ({"mode": "loud"}, "discord.default_mode: expected one of"),
        ({"language": "tlh"}, "discord.language: expected one of"),
        ({"team_role": RoleId("everyone")}, "discord.team_role_ids: must hold Discord's ids"),
        ({"team_role": RoleId("1")}, "The team cannot be everyone"),
        ({"remove_team_role": RoleId("9")}, "`9` is not set"),
    ],
)
async def test_what_cannot_be_set_is_said_and_nothing_is_changed(
    tmp_path: Path, wanted: dict[str, Any], says: str
) -> None:
    async with joined(tmp_path, sources=2) as server:
        for n in (1, 2):
            await server.set_up(document=f"https://docs.example.org/{n}")
        before = await server.chosen()
        told = await server.set_up(**wanted)
        assert told.startswith("Nothing was changed. ")
        assert says in told
        assert await server.chosen() == before


async def test_a_limit_that_is_lowered_holds_for_what_is_there(tmp_path: Path) -> None:
    async with joined(tmp_path) as server:
        for n in (1, 2, 3):
            await server.set_up(document=f"https://docs.example.org/{n}")
        await server.registry.set("rust", "hosting.sources", "2")
        assert len((await server.registry.settings("rust")).kb.links) == 2
        assert "documents: 2 of 2" in await server.set_up(remove_document="https://docs.example.org/1")


async def test_the_status_counts_the_day_of_this_server_alone(tmp_path: Path) -> None:
    async with joined(tmp_path, questions_per_day=5) as server:
        for name in ("questions_answered", "questions_answered", "questions_silent", "questions_over_day_limit"):
            server.counts.add(name)
        await server.counts.store()
        told = await server.status()
        assert "- 2 questions answered, 1 without an answer" in told
        assert "- 1 questions beyond the limits (5 a day for this server)" in told
        assert (await server.registry.show("rust")).questions_today == 3


async def test_a_server_is_greeted_in_its_language() -> None:
    for locale, chosen in (("de", "de"), ("pt-BR", "pt"), ("es-ES", "es"), ("en-US", None), ("ko", None), ("", None)):
        first = first_choice(flow.GuildJoined(guild_id=GuildId("1"), locale=locale))
        assert first == ({"discord": {"language": chosen}} if chosen else {})


async def test_what_left_is_erased_after_a_week_and_what_is_open_or_came_back_is_not(tmp_path: Path) -> None:
    clock = HandClock()
    defaults = load_settings(environ={}, overrides={"data": {"dir": str(tmp_path)}, "hosting": {"enabled": True}})
    with fail_after(20):
        async with await open_database(defaults) as db:
            store = CommunityStore(db, clock=clock)
            for n, name in enumerate(("gone", "open", "back", "banned")):
                known, _ = await store.add_server(GuildId(str(n)), name)
                counts = DailyCounts(db.for_community(name), clock=clock)
                counts.add("questions_answered")
                await counts.store()
                if name == "banned":
                    await CommunityRegistry(defaults, db, clock).suspend(name)
                await store.mark_departed(known.guild_ids[0])
                (tmp_path / "communities" / name).mkdir(parents=True)
            clock.turn(days=6)
            assert await erase_left_communities(defaults, db, clock, is_closed=lambda _: True) == ()
            await store.add_server(GuildId("2"), "back")
            clock.turn(days=1)
            assert await erase_left_communities(defaults, db, clock, is_closed=lambda name: name != "open") == (
                "banned",
                "gone",
            )
            assert {each.name: each.state for each in await store.all()} == {
                "back": "active",
                "banned": "suspended",
                "open": "left",
            }
            for name, kept in (("gone", 0), ("banned", 0), ("open", 1), ("back", 1)):
                assert (
                    await db.for_community(name).number(
                        "select count(*) from daily_counts where community = :community"
                    )
                    == kept
                )
                assert (tmp_path / "communities" / name).exists() == bool(kept)
            assert (await store.add_server(GuildId("3"), "banned"))[0].state == "suspended"
            clock.turn(days=8)
            assert await store.list_departed(clock.now() - timedelta(days=7)) == (await store.get("open"),)
