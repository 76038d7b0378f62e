"""The registry of a process that hosts many communities."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from intern.core.errors import ConfigError
from intern.core.ids import GuildId
from intern.stores.tables.communities import CommunityStore, RegisteredCommunity
from tests.engines import open_database
from tests.worlds.clock import HandClock

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("engine")]

ONE, OTHER = GuildId("1"), GuildId("2")


async def test_a_server_that_comes_back_finds_its_community_as_it_left_it(tmp_path: Path) -> None:
    clock = HandClock()
    with anyio.fail_after(10):
        async with await open_database(tmp_path / "intern.db") as db:
            store = CommunityStore(db, clock=clock)
            made, is_new = await store.add_server(ONE, "Rust & Émile's Café")
            assert (made.name, made.title, made.guild_ids) == ("rust-emile-s-cafe", "Rust & Émile's Café", (ONE,))
            assert is_new
            assert await store.add_server(ONE, "Rust") == (made, False)
            chose = await store.change(made.name, lambda each: replace(each, chosen={"ai": {"answer_scope": "Rust"}}))
            left = await store.mark_departed(ONE)
            assert left == replace(chose, state="left", left_at=clock.now())
            clock.turn(days=3)
            assert await store.mark_departed(ONE) == left
            assert await store.list_departed(clock.now() - timedelta(days=7)) == ()
            assert await store.list_departed(clock.now() - timedelta(days=3)) == (left,)
            assert await store.add_server(ONE, "Rust") == (chose, False)
            assert await store.all() == (chose,)
            assert await store.mark_departed(OTHER) is None
            await store.remove(made.name)
            assert await store.all() == (chose,)
        async with await open_database(tmp_path / "intern.db") as db:
            assert await CommunityStore(db).all() == (chose,)


async def test_a_process_reads_the_communities_of_its_own_shards(tmp_path: Path) -> None:
    servers = [GuildId(str((n << 22) + 7)) for n in range(8)]
    with anyio.fail_after(10):
        async with await open_database(tmp_path / "intern.db") as db:
            store = CommunityStore(db, clock=HandClock())
            for n, server in enumerate(servers):
                await store.add_server(server, f"On {n}")
            assert [each.name for each in await store.list_on_shards({0, 3}, 4)] == ["on-0", "on-3", "on-4", "on-7"]
            assert await store.list_on_shards((), 4) == ()


async def test_a_suspended_community_stays_suspended_when_its_server_comes_back(tmp_path: Path) -> None:
    with anyio.fail_after(10):
        async with await open_database(tmp_path / "intern.db") as db:
            store = CommunityStore(db, clock=HandClock())
            made, _ = await store.add_server(ONE, "One")
            suspended = await store.change(made.name, lambda each: replace(each, state="suspended"))
            left = await store.mark_departed(ONE)
            assert left is not None
            assert (left.state, left.left_at is None) == ("suspended", False)
            assert await store.add_server(ONE, "One") == (suspended, False)


async def test_a_community_whose_data_is_to_be_erased_does_not_come_back_with_its_server(tmp_path: Path) -> None:
    clock = HandClock()
    with anyio.fail_after(10):
        async with await open_database(tmp_path / "intern.db") as db:
            store = CommunityStore(db, clock=clock)
            await store.add_server(ONE, "One")
            left = await store.mark_departed(ONE)
            clock.turn(days=7)
            assert await store.add_server(ONE, "One") == (left, False)
            await store.remove("one")
            assert (await store.add_server(ONE, "One"))[1]


async def test_names_are_plain_and_given_once(tmp_path: Path) -> None:
    titles = ["Default", "gpu", "GPU!", "../../etc", "日本", "", "x" * 99, "x" * 100]
    with anyio.fail_after(10):
        async with await open_database(tmp_path / "intern.db") as db:
            store = CommunityStore(db)
            names = [(await store.add_server(GuildId(str(n)), title))[0].name for n, title in enumerate(titles)]
    assert names == ["default-2", "gpu", "gpu-2", "etc", "server", "server-2", "x" * 40, "x" * 40 + "-2"]


async def test_every_change_shows_in_the_revision_whatever_the_clock_says(tmp_path: Path) -> None:
    clock = HandClock()
    with anyio.fail_after(10):
        async with await open_database(tmp_path / "intern.db") as db:
            store, seen = CommunityStore(db, clock=clock), list[tuple[int, int]]()

            def same(each: RegisteredCommunity) -> RegisteredCommunity:
                return each

            seen.append(await store.revision())
            await store.add_server(ONE, "one")
            seen.append(await store.revision())
            await store.change("one", same)
            seen.append(await store.revision())
            clock.turn(seconds=-60)
            await store.change("one", same)
            seen.append(await store.revision())
            await store.mark_departed(ONE)
            await store.remove("one")
            await store.add_server(OTHER, "one")
            seen.append(await store.revision())
            assert await CommunityStore(db).revision() == seen[-1]
    assert len(set(seen)) == len(seen)


async def test_an_unknown_community_and_work_that_fails_change_nothing(tmp_path: Path) -> None:
    def broken(_: RegisteredCommunity) -> RegisteredCommunity:
        raise ConfigError("no such key")

    with anyio.fail_after(10):
        async with await open_database(tmp_path / "intern.db") as db:
            store = CommunityStore(db.for_community("another"))
            made, _ = await store.add_server(ONE, "one")
            for name, says in (("two", "there is no community 'two'"), ("one", "no such key")):
                with pytest.raises(ConfigError, match=says):
                    await store.change(name, broken)
            with pytest.raises(ConfigError, match="there is no community"):
                await store.get("two")
            assert await CommunityStore(db).get("one") == made


async def test_servers_that_join_at_once_get_a_community_each(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        async with await open_database(tmp_path / "intern.db") as db, anyio.create_task_group() as tg:
            for n in range(8):
                tg.start_soon(CommunityStore(db.for_community(f"of-{n}")).add_server, GuildId(str(n)), "same")
        async with await open_database(tmp_path / "intern.db") as db:
            assert len(await CommunityStore(db).all()) == 8
