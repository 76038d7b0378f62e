"""Several connections of one bot account: their events, their turns to begin, and the release of shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
from anyio import create_task_group, wait_all_tasks_blocked

from intern.core.errors import ConfigError, KnowledgeError
from intern.core.flow import GatewayEvent, GuildJoined, GuildLeft, MessageCreated, SessionStarted
from intern.core.ids import ChannelId, GuildId, MessageId
from intern.core.text.secret_values import Secret
from intern.platforms.discord.gateway import HikariDiscord
from intern.platforms.discord.options import DiscordOptions, ShardChoice, shard_index
from intern.platforms.discord.sessions import IdentifyTurns, SessionStarts
from intern.settings.communities import Community, build_community_settings
from tests.double.discord import DiscordDouble
from tests.double.world import Channel, User
from tests.worlds.settings import make_settings

_PAUSE = 0.02
_TURN = 5 * _PAUSE  # seconds between two IDENTIFYs, as the bot's clock is set here


pytestmark = pytest.mark.on_asyncio


class Town:
    """A Discord with two servers, on shards 0 and 1 of two."""

    def __init__(self, discord: DiscordDouble) -> None:
        self.discord = discord
        world = discord.world
        guilds = [discord.guild, world.new_guild("Other")]
        guilds.sort(key=lambda guild: shard_index(GuildId(guild.id), 2))
        self.guild_ids = tuple(GuildId(guild.id) for guild in guilds)
        self.places: tuple[Channel, ...] = tuple(world.new_channel("talk", guild=guild) for guild in guilds)
        self.people: tuple[User, ...] = tuple(world.new_member("ann", guild=guild) for guild in guilds)

    async def say(self, shard: int, text: str) -> None:
        await self.discord.say(self.people[shard], text, channel=self.places[shard])


class Ears:
    """Collects events, and waits for what is said."""

    def __init__(self) -> None:
        self.events: list[GatewayEvent] = []
        self._heard = asyncio.Event()

    def __call__(self, event: GatewayEvent) -> None:
        self.events.append(event)
        self._heard.set()

    @property
    def texts(self) -> list[str]:
        return [event.message.text for event in self.events if isinstance(event, MessageCreated)]

    @property
    def begun(self) -> list[GuildId]:
        return [event.guild_id for event in self.events if isinstance(event, SessionStarted)]

    async def until(self, texts: int = 0, begun: int = 0) -> None:
        while len(self.texts) < texts or len(self.begun) < begun:
            self._heard.clear()
            await self._heard.wait()


@asynccontextmanager
async def town() -> AsyncGenerator[Town]:
    async with DiscordDouble() as discord:
        yield Town(discord)


@asynccontextmanager
async def bot(town: Town, ears: Ears, shards: ShardChoice | str = "auto", **over: Any) -> AsyncGenerator[HikariDiscord]:
    options = DiscordOptions(
        token=Secret(town.discord.token),
        guild_ids=() if over.get("hosts") else town.guild_ids,
        rest_url=town.discord.rest_url,
        shards=shards,
    )
    async with HikariDiscord(options, first_pause=_PAUSE, **over) as made, create_task_group() as tg:
        tg.start_soon(made.listen, ears)
        yield made
        tg.cancel_scope.cancel()


async def test_each_server_speaks_on_its_shard_and_all_are_heard_as_one() -> None:
    ears = Ears()
    async with town() as two:
        two.discord.world.shards = 2
        two.discord.gateway.identify_every = _TURN * 0.9
        async with bot(two, ears) as hikari:
            open_at_first = hikari.is_open
            await hikari.wait_ready()
            assert (open_at_first, hikari.is_open) == (False, True)
            assert hikari.shards.count == 2
            await ears.until(begun=2)
            for shard in (0, 1):
                await two.say(shard, f"on {shard}")
            await ears.until(texts=2)
            two.discord.gateway.dispatch("MESSAGE_CREATE", _private(two))
            await ears.until(texts=3)
            sessions = two.discord.gateway.sessions.values()
            heard = {session.shard[0]: "".join(session.events) for session in sessions}
        assert sorted(ears.texts) == ["in private", "on 0", "on 1"]
        assert [("on 0" in heard[0], "on 1" in heard[0]), ("on 0" in heard[1], "on 1" in heard[1])] == [
            (True, False),
            (False, True),
        ]
        assert ("in private" in heard[0], "in private" in heard[1]) == (True, False)
        assert two.discord.gateway.too_early == 0


async def test_two_processes_share_the_shards_and_hear_nothing_twice() -> None:
    ears = (Ears(), Ears())
    async with town() as two, AsyncExitStack() as stack:
        # Discord refuses a shard that is none, and a bot with too few.
        two.discord.gateway.least_shards = 2
        for shard in (0, 1):
            choice = ShardChoice(ids=(shard,), of=2)
            await stack.enter_async_context(bot(two, ears[shard], choice))
        for shard in (0, 1):
            await ears[shard].until(begun=1)
            await two.say(shard, f"on {shard}")
            await ears[shard].until(texts=1)
    assert [each.texts for each in ears] == [["on 0"], ["on 1"]]
    assert [len(each.begun) for each in ears] == [1, 1]


async def test_a_shard_is_held_and_let_go_while_others_go_on() -> None:
    ears = Ears()
    async with town() as two, bot(two, ears, ShardChoice(ids=(0, 1), of=2), leased=True) as hikari:
        assert two.discord.gateway.identifies == []
        hikari.shards.hold(1)
        await hikari.wait_ready()
        await ears.until(begun=1)
        hikari.shards.hold(0)
        hikari.shards.hold(0)
        await ears.until(begun=2)
        assert hikari.is_open
        assert await hikari.shards.release(1)
        await two.say(1, "unheard")
        await two.say(0, "heard")
        await ears.until(texts=1)
        assert hikari.is_open
        await two.discord.until(lambda: len(two.discord.gateway.sessions) == 1)
        # It may come back, with a session of its own.
        hikari.shards.hold(1)
        assert not await hikari.shards.release(1), "it was not welcomed yet"
        hikari.shards.hold(1)
        await ears.until(begun=3)
        await two.say(1, "heard again")
        await ears.until(texts=2)
    assert ears.texts == ["heard", "heard again"]
    assert ears.begun == [two.guild_ids[1], two.guild_ids[0], two.guild_ids[1]]


async def test_a_new_session_of_one_shard_begins_nothing_on_the_others() -> None:
    ears = Ears()
    async with town() as two, bot(two, ears, ShardChoice(ids=(0, 1), of=2), hosts=True) as hikari:
        for guild_id in two.guild_ids:
            hikari.servers.serve(guild_id, member_ids=(), role_ids=())
        await ears.until(begun=2)
        first = next(each for each in two.discord.gateway.sessions.values() if each.shard[0] == 0)
        assert first.socket
        two.discord.gateway.sessions.pop(first.id)
        first.socket.close(4009)
        await ears.until(begun=3)
        await two.say(1, "still here")
        await ears.until(texts=1)
    assert ears.begun[2] == two.guild_ids[0]
    assert not [event for event in ears.events if isinstance(event, GuildLeft | GuildJoined)]


# Finding A1.
@pytest.mark.parametrize("hosts", [True, False])
async def test_while_one_shard_has_lost_its_session_only_what_is_read_on_its_servers_waits(*, hosts: bool) -> None:
    ears = Ears()
    async with town() as two, bot(two, ears, ShardChoice(ids=(0, 1), of=2), hosts=hosts) as hikari:
        for guild_id in two.guild_ids:
            hikari.servers.serve(guild_id, member_ids=(), role_ids=())
        await ears.until(begun=2)
        lost = next(each for each in two.discord.gateway.sessions.values() if each.shard[0] == 0)
        assert lost.socket
        two.discord.gateway.sessions.pop(lost.id)
        lost.socket.close(4009)
        await two.discord.until(lambda: len(two.discord.gateway.sessions) == 1)
        places = [ChannelId(channel.id) for channel in two.places]
        assert await hikari.page(places[1], MessageId("1"), 10)
        assert len(ears.begun) == 2
        assert await hikari.page(places[0], MessageId("1"), 10)
        assert ears.begun[2:] == [two.guild_ids[0]]


async def test_a_bot_with_fewer_shards_than_recommended_goes_on_and_says_so() -> None:
    async with town() as two:
        two.discord.world.shards = 3
        async with bot(two, Ears(), ShardChoice(ids=(0, 1), of=2)) as hikari:
            assert hikari.advice == ""
            await hikari.wait_ready()
            assert "recommends 3 shards" in hikari.advice


async def test_a_bot_that_needs_more_shards_says_what_to_set() -> None:
    async with town() as two:
        two.discord.gateway.least_shards = 2
        with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=r"4011.*discord\.shards")):
            async with bot(two, Ears(), ShardChoice(ids=(0,), of=1)):
                await asyncio.Event().wait()


async def test_an_identify_before_its_turn_is_refused_and_comes_back() -> None:
    """The double refuses it, and other tests rely on that."""
    async with town() as two, AsyncExitStack() as stack:
        two.discord.gateway.identify_every = 0.5
        ears = (Ears(), Ears())
        for shard in (0, 1):
            await stack.enter_async_context(bot(two, ears[shard], ShardChoice(ids=(shard,), of=2)))
        for each in ears:
            await each.until(begun=1)
        assert two.discord.gateway.too_early > 0


async def test_turns_reach_across_processes() -> None:
    class Lock:
        def __init__(self) -> None:
            self.locks = (asyncio.Lock(), asyncio.Lock())
            self.broken = 1

        @asynccontextmanager
        async def __call__(self, bucket: int) -> AsyncGenerator[None]:
            if self.broken:
                self.broken -= 1
                raise KnowledgeError("the database is away")
            async with self.locks[bucket]:
                yield
                await asyncio.sleep(_TURN)

    async with town() as two, AsyncExitStack() as stack:
        two.discord.gateway.identify_every = _TURN * 0.9
        ears, turn = (Ears(), Ears()), Lock()
        for shard in (0, 1):
            choice = ShardChoice(ids=(shard,), of=2)
            await stack.enter_async_context(bot(two, ears[shard], choice, turn=turn))
        for each in ears:
            await each.until(begun=1)
        assert two.discord.gateway.too_early == 0
        # With more turns at a time there are more buckets.
        assert turn.broken == 0


async def test_a_shard_that_is_let_go_before_it_identified_leaves_its_turn_to_the_next() -> None:
    left: list[bool] = []

    @asynccontextmanager
    async def across(_bucket: int) -> AsyncGenerator[None]:
        left.append(False)
        yield
        left[-1] = True

    turns = IdentifyTurns(across, between=60)
    with pytest.raises(ConnectionError):
        async with turns.take_turn(0):
            raise ConnectionError
    async with turns.take_turn(0):
        pass
    await wait_all_tasks_blocked()
    assert left == [False, True]
    turns.close()


async def test_the_application_s_limit_spares_answers_to_interactions() -> None:
    """The double does so, for the tests of many processes."""
    async with town() as two, bot(two, Ears()) as hikari:
        await hikari.wait_ready()
        two.discord.limit_application(3)
        async with create_task_group() as tg:
            for n in range(5):
                tg.start_soon(partial(hikari.send, _id(two.places[0]), f"n {n}", f"n-{n}"))
        assert two.discord.over_the_limit > 0
    assert sorted(message.content for message in two.discord.said_by_bot()) == [f"n {n}" for n in range(5)]


def test_the_pauses_of_one_shard_hold_up_no_other() -> None:
    starts = SessionStarts(1.0)
    for n in range(3):
        starts.add_start(float(n), shard=0)
    assert starts.pause(2.0, shard=0) == pytest.approx(4.0)
    assert starts.pause(2.0, shard=1) == 0.0
    # The day's allowance is one for all.
    starts.set_start_limit(total=10, remaining=1, reset_after=50.0, now=2.0)
    assert starts.pause(2.0, shard=1) == pytest.approx(50.0)


def test_a_bot_in_thousands_of_servers_may_begin_more_sessions() -> None:
    starts = SessionStarts(0.0)
    starts.set_start_limit(total=2000, remaining=1000, reset_after=50.0, now=0.0)
    assert starts.pause(0.0) == 0.0


def _private(two: Town) -> dict[str, Any]:
    author = {"id": two.people[0].id, "username": "ann", "discriminator": "0", "avatar": None}
    return {
        "id": "900",
        "channel_id": "800",
        "author": author,
        "content": "in private",
        "timestamp": "2026-01-01T00:00:00+00:00",
        "edited_timestamp": None,
        "type": 0,
        "mentions": [],
    }


def _id(channel: Channel) -> Any:
    return channel.id


def test_a_community_on_several_shards_is_refused_where_processes_share_them() -> None:
    community = Community(name="two", guild_ids=(GuildId("1"), GuildId("2")))
    alone = make_settings(hosting={"enabled": True})
    assert build_community_settings(community, alone).discord.guild_ids == ("1", "2")
    shared = make_settings(hosting={"enabled": True}, data={"url": "postgresql://u@h/d"})
    with pytest.raises(ConfigError, match="community two has 2 servers"):
        build_community_settings(community, shared)


def test_an_own_server_on_a_shard_that_is_not_connected_is_refused() -> None:
    # Server 4194304 (1 << 22) is on shard 1 of two.
    options = DiscordOptions(guild_ids=(GuildId("4194304"),), shards=ShardChoice(ids=(0,), of=2))
    with pytest.raises(ConfigError, match=r"leaves out shard 1, .*4194304"):
        options.require_shards()


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        ("all", 'must be "auto"'),
        ({"ids": [], "of": 2}, "ids is empty"),
        ({"ids": [2], "of": 2}, "numbered from 0 to 1"),
        ({"ids": [1, 1], "of": 2}, "each shard once"),
    ],
)
def test_shards_that_cannot_be_are_refused(shards: object, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"discord\.shards.*{said}"):
        make_settings(discord={"shards": shards})
