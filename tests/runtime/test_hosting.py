"""A hosting process keeps its communities in agreement with Discord and the registry."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio import CancelScope, Event, fail_after
from msgspec.structs import replace

from intern.actors import pipeline
from intern.actors.pipeline import ACTORS, PipelineParts
from intern.chat.checkpoints import Checkpoints
from intern.chat.phrases import get_phrases
from intern.core import flow
from intern.core.clock import Wakeup
from intern.core.errors import ConfigError
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId
from intern.core.text.secret_values import Secret
from intern.learning.forgetting import ForgetRequest
from intern.runtime import hosted_bot, hosting
from intern.runtime.bot import _LocalFiles, _NoCommands, run_page
from intern.runtime.hosting import Hosting, Sharding
from intern.runtime.resources import PlatformPorts, open_process_resources
from intern.service.hosting_state import HostedCommunity, HostingState
from intern.service.job_kinds import FORGET
from intern.service.status import read_status
from intern.service.status_page import StatusPage
from intern.settings.settings import Settings
from intern.stores.engines.postgres.leases import LeaseStatus, LeaseStore
from intern.stores.tables.checkpoints import StoredCheckpoints, read_checkpoints
from intern.stores.tables.communities import CommunityStore
from intern.stores.tables.jobs import JobQueue
from tests.engines import Schemas
from tests.worlds.actors import finishing
from tests.worlds.chat import Town
from tests.worlds.clock import HandClock
from tests.worlds.settings import make_settings


class _Beating(LeaseStore):
    """Calls `beaten` at each heartbeat."""

    beaten: Callable[[], object]

    async def renew_leases(self, shards: int, *, leaves: bool = False) -> LeaseStatus:
        self.beaten()
        return await super().renew_leases(shards, leaves=leaves)


class Block:
    """A process that hosts communities whose actors only listen."""

    def __init__(self, folder: Path, *, url: str = "", town: Town | None = None) -> None:
        self.clock = HandClock()
        self.town = town or Town(self.clock, team={"mira"})
        self.held: list[int] = []
        self.seen = Counter[str]()
        self.is_welcomed = True
        self.shares: list[float] = []
        self.heard: dict[str, list[flow.GatewayEvent]] = {}
        self.settings: dict[str, Settings] = {}
        self.served: dict[GuildId, Settings | None] = {}
        self.at_work_now: list[str] = []
        self.platforms: dict[str, PlatformPorts] = {}
        self.looked = Counter[str]()
        self.answered = Event()
        self.answered.set()
        self.closes = Event()
        self.closes.set()
        self._defaults = make_settings(data={"dir": str(folder), "url": url}, hosting={"enabled": True})

    @asynccontextmanager
    async def up(self) -> AsyncGenerator[Hosting]:
        self.stop = stop = Event()
        with fail_after(20):
            async with open_process_resources(self._defaults, self.clock) as host:
                self.host = host
                platform = PlatformPorts(self.town, _NoCommands(), _LocalFiles())
                share_out = partial(self._shared_out, host.db) if self._defaults.data.url else None
                self.hosting = Hosting(
                    host, self._defaults, platform, serve=self.served.__setitem__, share_out=share_out, parts=self.parts
                )
                await self.hosting.begin()
                async with finishing(partial(self.hosting.run, stop=stop)):
                    await self.town.wait_ready()
                    yield self.hosting
                    stop.set()

    async def _shared_out(self, db: Any) -> Sharding:
        async def release(shard: int) -> bool:
            self.held.remove(shard)
            return self.is_welcomed

        store = _Beating(db)
        store.beaten = partial(self.seen.update, ["beat"])
        shards = await store.register_process(4)

        def welcomed() -> list[int]:
            return self.held if self.is_welcomed else []

        return Sharding(store, shards, None, self.held.append, release, welcomed, self.shares.append)

    @asynccontextmanager
    async def parts(
        self, _host: Any, name: str, settings: Settings, platform: PlatformPorts, jobs_came: Wakeup, **_: Any
    ) -> AsyncGenerator[PipelineParts]:
        heard = self.heard.setdefault(name, [])
        self.settings[name], self.platforms[name] = settings, platform
        self.at_work_now.append(name)

        async def leave(*streams: Any, **_: Any) -> None:
            for stream in streams:
                stream.close()

        async def listener(*streams: Any) -> None:
            await leave(*streams)
            await platform.chat.listen(heard.append)

        async def job_worker(*streams: Any) -> None:
            await leave(*streams)
            while True:
                await jobs_came.wait()
                self.looked[name] += 1

        async def responder(*streams: Any) -> None:
            await leave(*streams)
            await self.answered.wait()

        async def keep(_: StoredCheckpoints) -> None: ...

        async def count() -> int:
            return 0

        checkpoints = Checkpoints(StoredCheckpoints(), baseline=MessageId("0"))
        own = {"listener": listener, "job_worker": job_worker, "responder": responder}
        actors = {**dict.fromkeys(ACTORS, leave), **own}
        try:
            yield PipelineParts(
                actors=actors, checkpoints=checkpoints, keep_checkpoints=keep, count_jobs=count, jobs_came=jobs_came
            )
        finally:
            with CancelScope(shield=True):
                await self.closes.wait()
            self.at_work_now.remove(name)

    def joined(self, name: str, **more: Any) -> tuple[GuildId, ChannelId]:
        """Invite the bot to a new server."""
        guild_id, channel_id = self.town.add_server()
        self.tell(flow.GuildJoined(guild_id=guild_id, name=name, **more))
        self.tell(self.town.session_of(guild_id))
        return guild_id, channel_id

    def tell(self, event: flow.GatewayEvent) -> None:
        for deliver in tuple(self.town._listeners):
            deliver(event)

    def texts(self, name: str) -> list[str]:
        return [event.message.text for event in self.heard.get(name, ()) if isinstance(event, flow.MessageCreated)]

    async def until(self, met: Callable[[], bool]) -> None:
        while not met():  # noqa: ASYNC110 the database works in threads, and sets no events
            await anyio.sleep(0.01)


async def test_a_server_that_invites_the_bot_is_a_community_from_its_first_message_on(tmp_path: Path) -> None:
    block = Block(tmp_path)
    async with block.up():
        guild_id, here = block.joined("Rust & Co")
        block.town.say("bob", "Which port?", channel_id=here)  # before the registry knows
        await block.until(lambda: block.texts("rust-co") == ["Which port?"])
        assert block.served[guild_id] is not None
        assert [each.name for each in await CommunityStore(block.host.db).all()] == ["rust-co"]
    assert block.at_work_now == []


async def test_a_server_is_greeted_once_in_its_language_where_discord_says(tmp_path: Path) -> None:
    block = Block(tmp_path)
    async with block.up():
        _, place = block.town.add_server("willkommen")
        guild_id, _ = block.joined("Eins", greets_in=place, locale="de")
        await block.until(lambda: bool(block.town.posts()))
        block.tell(flow.GuildJoined(guild_id=guild_id, name="Eins", greets_in=place, locale="de"))
        block.joined("Zwei", greets_in=ChannelId("404"))  # where the bot may not write
        await block.until(lambda: len(block.hosting.communities.names) == 2)
        [post] = block.town.posts()
        assert post.channel_id == place
        assert post.text.startswith("Hallo! Ich beantworte Fragen")
        known = {each.name: each.chosen for each in await CommunityStore(block.host.db).all()}
        assert known == {"eins": {"discord": {"language": "de"}}, "zwei": {}}


@pytest.mark.parametrize("has_joined", [False, True])
async def test_a_process_that_dies_while_a_server_joins_costs_no_greeting_and_the_next_one_adds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_joined: bool
) -> None:
    block, joins, join = Block(tmp_path), Event(), CommunityStore.add_server

    async def hangs(*given: Any) -> None:
        if has_joined:
            await join(*given)
        joins.set()
        await anyio.sleep_forever()

    with monkeypatch.context() as patch:
        patch.setattr(CommunityStore, "add_server", hangs)
        async with block.up():
            guild_id, place = block.town.add_server()
            joined = flow.GuildJoined(guild_id=guild_id, name="Eins", greets_in=place)
            block.tell(joined)
            await joins.wait()
    again = Block(tmp_path, town=block.town)
    async with again.up() as hosting:
        again.tell(joined)
        await again.until(lambda: "eins" in hosting.communities)
        [post] = block.town.posts()
        assert post.channel_id == place


async def test_the_message_that_opens_a_new_community_is_no_history_of_it(tmp_path: Path) -> None:
    block = Block(tmp_path)
    async with block.up():
        guild_id, here = block.joined("One")
        await block.until(lambda: "one" in block.hosting.communities)
        asked = block.town.say("bob", "Which port?", channel_id=here)
        await block.until(lambda: block.texts("one") == ["Which port?"])
        stands = await block.host.db.for_community("one").read(read_checkpoints)
        assert int(stands.attended[guild_id]) < int(asked.id)


async def test_what_a_manager_sets_up_holds_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "LOOK_SECONDS", 0.01)
    block = Block(tmp_path)
    async with block.up():
        guild_id, here = block.joined("One")
        block.town.say("bob", "Which port?", channel_id=here)
        await block.until(lambda: block.texts("one") == ["Which port?"])
        manage = block.platforms["one"].manage
        assert manage is not None
        ticket = flow.InteractionTicket(
            id="1", token=Secret("t"), application_id="2", guild_id=guild_id, channel_id=here
        )
        wanted = flow.SetupChanges(team_role=RoleId("7"), review=True)
        told = await manage(
            flow.SetupCommand(interaction=ticket, user=block.town.author("ann"), manages=True, wanted=wanted)
        )
        assert "- team: <@&7>" in told
        await block.until(lambda: block.settings["one"].discord.team_role_ids == ("7",))
        assert block.settings["one"].kb.review
        served = block.served[guild_id]
        assert served is not None
        assert served.discord.team_role_ids == ("7",)


async def test_a_community_that_was_left_in_its_work_is_opened_by_the_next_process(tmp_path: Path) -> None:
    block = Block(tmp_path)
    async with block.up():
        _, here = block.joined("One")
        block.joined("Two")
        await block.until(lambda: len(block.hosting.communities.names) == 2)
        block.town.say("bob", "Which port?", channel_id=here)
        await block.until(lambda: block.texts("one") == ["Which port?"])
    block.heard.clear()
    async with block.up():
        await block.until(lambda: block.at_work_now == ["one"])
        assert block.hosting.communities.open == ("one",)


async def test_a_known_community_is_there_after_a_restart_and_no_two_servers_share_one(tmp_path: Path) -> None:
    block = Block(tmp_path)
    async with block.up():
        _, here = block.joined("One")
        _, there = block.joined("One")
        await block.until(lambda: len(block.hosting.communities.names) == 2)
    async with block.up():
        assert [*block.hosting.communities.names] == ["one", "one-2"]
        block.town.say("bob", "Here?", channel_id=here)
        block.town.say("bob", "There?", channel_id=there)
        await block.until(lambda: len(block.heard) == 2)
        await block.until(lambda: (block.texts("one"), block.texts("one-2")) == (["Here?"], ["There?"]))


async def test_a_server_that_removed_the_bot_is_left_and_comes_back_with_what_it_chose(tmp_path: Path) -> None:
    block = Block(tmp_path)
    async with block.up():
        guild_id, here = block.joined("One")
        block.town.say("bob", "Which port?", channel_id=here)
        await block.until(lambda: block.texts("one") == ["Which port?"])
        registry = CommunityStore(block.host.db)
        await registry.change("one", lambda each: replace(each, chosen={"discord": {"team_role_ids": ["7"]}}))
        block.tell(flow.GuildLeft(guild_id=guild_id))
        await block.until(lambda: "one" not in block.hosting.communities)
        await block.until(lambda: block.served[guild_id] is None)
        assert block.at_work_now == []
        assert (await registry.get("one")).state == "left"

        block.tell(flow.GuildJoined(guild_id=guild_id, name="One"))
        block.tell(block.town.session_of(guild_id))
        block.town.say("bob", "And the host?", channel_id=here)
        await block.until(lambda: "And the host?" in block.texts("one"))
        assert block.settings["one"].discord.team_role_ids == ("7",)


async def test_a_community_that_closes_knows_its_team_until_it_is_closed(tmp_path: Path) -> None:
    block = Block(tmp_path)
    block.closes = Event()
    async with block.up() as hosting:
        guild_id, place = block.joined("Rust")
        block.town.say("bob", "Which port?", channel_id=place)
        await block.until(lambda: block.at_work_now == ["rust"])
        block.tell(flow.GuildLeft(guild_id=guild_id))
        await block.until(lambda: not hosting.communities.names)
        while_it_closes = block.served[guild_id]
        block.closes.set()
        await block.until(lambda: block.served[guild_id] is None)
        assert while_it_closes is not None
        assert block.at_work_now == []


async def test_what_a_server_left_behind_is_erased_after_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(hosting, "ERASE_SECONDS", 0.01)
    block = Block(tmp_path)
    async with block.up():
        guild_id, here = block.joined("One")
        block.town.say("bob", "Which port?", channel_id=here)
        await block.until(lambda: block.texts("one") == ["Which port?"])
        block.tell(flow.GuildLeft(guild_id=guild_id))
        await block.until(lambda: "one" not in block.hosting.communities)
        assert (tmp_path / "communities/one").is_dir()
        block.clock.turn(days=7)
        await block.until(lambda: not (tmp_path / "communities/one").exists())
        while await CommunityStore(block.host.db).all():  # noqa: ASYNC110 as in `until`
            await anyio.sleep(0.01)


async def test_a_suspended_community_hears_nothing_until_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "LOOK_SECONDS", 0.01)
    block = Block(tmp_path)
    async with block.up():
        guild_id, here = block.joined("One")
        block.town.say("bob", "Which port?", channel_id=here)
        await block.until(lambda: block.texts("one") == ["Which port?"])
        registry = CommunityStore(block.host.db)
        await registry.change("one", lambda each: replace(each, state="suspended"))
        await block.until(lambda: "one" not in block.hosting.communities)
        block.town.say("bob", "Anyone?", channel_id=here)
        block.tell(flow.GuildJoined(guild_id=guild_id, name="One"))  # as each new session of Discord reports
        block.tell(block.town.session_of(guild_id))
        block.town.say("bob", "Hello?", channel_id=here)
        await block.until(lambda: not block.hosting._news)
        await registry.change("one", lambda each: replace(each, state="active"))
        await block.until(lambda: "one" in block.hosting.communities)
        block.town.say("bob", "And the host?", channel_id=here)
        await block.until(lambda: "And the host?" in block.texts("one"))
        # Messages meanwhile are history: the session reports them.
        assert block.texts("one") == ["Which port?", "And the host?"]
        *_, session = (each for each in block.heard["one"] if isinstance(each, flow.SessionStarted))
        assert session.channels[0].last_message_id is not None


async def test_changed_settings_hold_from_then_on_and_bad_ones_stop_that_community_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "LOOK_SECONDS", 0.01)
    block = Block(tmp_path)
    async with block.up():
        _, here = block.joined("One")
        _, there = block.joined("Other")
        for place in (here, there):
            block.town.say("bob", "Which port?", channel_id=place)
        await block.until(lambda: sorted(block.at_work_now) == ["one", "other"])
        registry = CommunityStore(block.host.db)
        await registry.change("one", lambda each: replace(each, chosen={"kb": {"review": True}}))
        await block.until(lambda: block.settings["one"].kb.review)
        block.town.say("bob", "And the host?", channel_id=here)
        await block.until(lambda: "And the host?" in block.texts("one"))

        await registry.change("one", lambda each: replace(each, chosen={"kb": {"review": "sometimes"}}))
        await block.until(lambda: block.at_work_now == ["other"])
        assert [*block.hosting.communities.names] == ["other"]
        assert "kb.review: expected true or false" in block.hosting.describe_states()["one"]
        await registry.change("one", lambda each: replace(each, chosen={}))
        await block.until(lambda: block.hosting.describe_states().get("one") in {"open", "closed"})


async def test_the_page_without_a_bot_lists_the_communities(tmp_path: Path) -> None:
    block, stop, shown = Block(tmp_path), Event(), list[HostedCommunity]()
    async with block.up():
        block.joined("One")
        await block.until(lambda: "one" in block.hosting.communities)

    @asynccontextmanager
    async def serving(page: StatusPage | HostingState) -> AsyncGenerator[None]:
        assert isinstance(page, HostingState)
        shown.extend(await page.list_communities())
        stop.set()
        yield

    await run_page(block._defaults, serving, stop=stop)
    [found] = shown
    assert (found.known.name, found.known.state, found.work) == ("one", "active", "elsewhere")


async def test_a_waiting_job_opens_its_community_and_wakes_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "LOOK_SECONDS", 0.01)
    block = Block(tmp_path)
    async with block.up():
        for name in ("One", "Other"):
            block.joined(name)
        await block.until(lambda: len(block.hosting.communities.names) == 2)
        await JobQueue(block.host.db.for_community("other")).submit(FORGET, ForgetRequest())
        await block.until(lambda: block.at_work_now == ["other"])
        await block.until(lambda: block.looked["other"] >= 2)
        assert not block.looked["one"]


async def test_a_private_message_gets_one_notice_and_reaches_no_community(tmp_path: Path) -> None:
    block = Block(tmp_path)
    async with block.up():
        block.joined("One")
        await block.until(lambda: "one" in block.hosting.communities)
        private = block.town.add_direct()
        for text in ("Hello?", "Anyone?"):
            block.town.say("bob", text, channel_id=private)
        await block.until(lambda: len(block.town.posts()) == 1)
        block.town.say("mira", "Me, too.", channel_id=block.town.add_direct())
        await block.until(lambda: len(block.town.posts()) == 2)
        assert block.at_work_now == []
        assert [each.text for each in block.town.posts()] == [get_phrases().private_note] * 2


def test_a_start_raises_the_limit_of_files_or_says_what_to_raise() -> None:
    class Limits(SimpleNamespace):
        def getrlimit(self, _: int) -> tuple[int, int]:
            return self.now

        def setrlimit(self, _: int, to: tuple[int, int]) -> None:
            if to[0] > to[1]:
                raise ValueError("current limit exceeds maximum limit")
            self.now = to

    limits = Limits(RLIMIT_NOFILE=7, RLIM_INFINITY=-1, now=(1_024, 4_096))
    hosted_bot.allow_files(10, limits)
    assert limits.now == (1_024, 4_096)
    hosted_bot.allow_files(200, limits)
    assert limits.now == (3_256, 4_096)
    with pytest.raises(ConfigError, match=r"may have 4096: raise the limit \(systemd: LimitNOFILE=15256"):
        hosted_bot.allow_files(1_000, limits)


@pytest.mark.rest
async def test_processes_share_the_communities_by_leases_and_take_over_from_one_another(
    tmp_path: Path, postgres: Schemas
) -> None:
    with postgres.emptied() as schema:
        url, clock = postgres.url(schema), HandClock()
        town, places = Town(clock), dict[GuildId, ChannelId]()
        one, other = (Block(tmp_path / name, url=url, town=town) for name in ("one", "other"))
        async with one.up():
            await one.until(lambda: sorted(one.held) == [0, 1, 2, 3])
            for n in range(6):
                clock.turn(milliseconds=1)  # to another shard
                guild_id, place = one.joined(f"Server {n}")
                places[guild_id] = place
            await one.until(lambda: len(one.hosting.communities.names) == 6)
            async with other.up():
                await other.until(lambda: (len(one.held), len(other.held)) == (2, 2))
                await other.until(lambda: len(one.hosting.communities.names | other.hosting.communities.names) == 6)
                assert not one.hosting.communities.names & other.hosting.communities.names
                elsewhere = make_settings(data={"dir": str(tmp_path), "url": url}, hosting={"enabled": True})
                assert (await anyio.to_thread.run_sync(partial(read_status, elsewhere, clock=one.clock))).running
                for guild_id in places:
                    other.tell(town.session_of(guild_id))
                for place in places.values():
                    town.say("bob", "Which port?", channel_id=place)
                await other.until(lambda: len(one.at_work_now) + len(other.at_work_now) == 6)
                assert {*one.at_work_now} == {*one.hosting.communities.names}

                lost, held = one.held[0], one.hosting._list_on_shard(one.held[0])
                await one.hosting._abandon_shard(lost)
                assert not {*held} & {*one.at_work_now}
                [gone, *_] = [each for each in places if one.hosting._find_shard((each,)) == lost]
                one.hosting._receive_unowned(flow.GuildLeft(guild_id=gone))  # from before a pause
                await one.until(lambda: not one.hosting._news)
                assert {each.state for each in await one.hosting.registry.all()} == {"active"}
                one.held.append(lost)  # its lease is still there: it is given up with all others

                one.stop.set()
                await other.until(lambda: sorted(other.held) == [0, 1, 2, 3])
                assert len(other.hosting.communities.names) == 6
                assert one.at_work_now == []


@pytest.mark.rest
async def test_no_shard_is_handed_over_before_discord_has_welcomed_all(tmp_path: Path, postgres: Schemas) -> None:
    with postgres.emptied() as schema:
        url, town = postgres.url(schema), Town(HandClock())
        one, other = (Block(tmp_path / name, url=url, town=town) for name in ("one", "other"))
        one.is_welcomed = False
        async with one.up():
            await one.until(lambda: len(one.held) == 4)
            async with other.up():
                await other.until(lambda: other.seen["beat"] > 0)
                seen = one.seen["beat"]
                await one.until(lambda: one.seen["beat"] > seen + 2)
                assert (len(one.held), len(other.held)) == (4, 0)
                one.is_welcomed = True
                await other.until(lambda: (len(one.held), len(other.held)) == (2, 2))


@asynccontextmanager
async def handed_over(one: Block, other: Block) -> AsyncGenerator[None]:
    """Stop a process that works for a community, and wait until the other one serves it."""
    async with one.up():
        await one.until(lambda: len(one.held) == 4)
        _, place = one.joined("A server")
        one.town.say("bob", "Which port?", channel_id=place)
        await one.until(lambda: len(one.at_work_now) == 1)
        async with other.up():
            one.stop.set()
            await other.until(lambda: len(other.held) == 4)
            await other.until(lambda: len(other.hosting.communities.names) == 1)
            yield


@pytest.mark.rest
@pytest.mark.parametrize(("is_welcomed", "seconds"), [(True, 0.1), (False, 1_000)])
async def test_a_shard_is_handed_over_though_an_answer_takes_its_time(
    tmp_path: Path, postgres: Schemas, monkeypatch: pytest.MonkeyPatch, *, is_welcomed: bool, seconds: float
) -> None:
    monkeypatch.setattr(hosting, "LEAVE_SECONDS", seconds)
    monkeypatch.setattr(pipeline, "SHUTDOWN_SECONDS", 1_000)
    with postgres.emptied() as schema:
        url, town = postgres.url(schema), Town(HandClock())
        one, other = (Block(tmp_path / name, url=url, town=town) for name in ("one", "other"))
        one.answered, one.is_welcomed = Event(), is_welcomed
        async with handed_over(one, other):
            assert one.at_work_now == []


@pytest.mark.rest
async def test_a_shard_is_handed_over_before_the_last_of_its_communities_is_closed(
    tmp_path: Path, postgres: Schemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "LEAVE_SECONDS", 0.1)
    monkeypatch.setattr(hosting, "_GIVE_UP_SECONDS", 0.1)
    with postgres.emptied() as schema:
        url, town = postgres.url(schema), Town(HandClock())
        one, other = (Block(tmp_path / name, url=url, town=town) for name in ("one", "other"))
        one.closes = Event()
        async with handed_over(one, other):
            assert len(one.at_work_now) == 1
            one.closes.set()
