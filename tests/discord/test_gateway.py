from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
from anyio import create_task_group, fail_after, sleep_forever

from intern.actors.listener import Gateway
from intern.discord.gateway import HikariDiscord
from intern.discord.options import DiscordOptions
from intern.domain import (
    ChannelId,
    GuildId,
    MessageCreated,
    MessageEdited,
    MessageEvent,
    MessageId,
    MessagesDeleted,
    RoleId,
    Secret,
)
from intern.errors import ConfigError
from tests.double.discord import DiscordDouble

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def nothing_logged_holds_the_token(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert ".double.token" not in caplog.text


class Ears:
    """Hears events, and lets a test wait for the nth."""

    def __init__(self) -> None:
        self.events: list[MessageEvent] = []
        self._heard = asyncio.Event()

    def __call__(self, event: MessageEvent) -> None:
        self.events.append(event)
        self._heard.set()

    async def heard(self, count: int) -> list[MessageEvent]:
        while len(self.events) < count:
            self._heard.clear()
            await self._heard.wait()
        return self.events

    @property
    def texts(self) -> list[str]:
        return [event.message.text for event in self.events if not isinstance(event, MessagesDeleted)]


class Overheard(logging.Handler):
    """Waits for a line in somebody's log."""

    def __init__(self, name: str, line: str) -> None:
        super().__init__()
        self.said = asyncio.Event()
        self._logger, self._line = logging.getLogger(name), line

    def __enter__(self) -> Self:
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if self._line in record.getMessage():
            self.said.set()


class DeadGateway(DiscordDouble):
    """REST answers, but at the gateway that it names somebody hangs up, or never says a word."""

    def __init__(self, *, silent: bool) -> None:
        super().__init__()
        self.dialled = asyncio.Event()
        self._silent = silent
        self._url = ""

    @property
    def gateway_url(self) -> str:
        return self._url

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        async with await asyncio.start_server(self._pick_up, "127.0.0.1", 0) as server, self:
            self._url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield

    async def _pick_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialled.set()
        if self._silent:
            while await reader.read(1000):
                pass
        writer.close()


def options(discord: DiscordDouble, **over: Any) -> DiscordOptions:
    chosen: dict[str, Any] = {
        "token": Secret(discord.token),
        "guild_ids": (GuildId(discord.guild.id),),
        "team_role_ids": (RoleId(discord.team_role.id),),
        "rest_url": discord.rest_url,
    }
    return DiscordOptions(**(chosen | over))


@asynccontextmanager
async def listening(
    discord: DiscordDouble, deliver: Callable[[MessageEvent], None], **over: Any
) -> AsyncGenerator[HikariDiscord]:
    async with HikariDiscord(options(discord, **over), first_pause=0.05) as bot, create_task_group() as tg:
        tg.start_soon(bot.listen, deliver)
        await bot.wait_ready()
        yield bot
        tg.cancel_scope.cancel()


async def listen_to_the_end(discord: DiscordDouble, ears: Ears | None = None, **over: Any) -> None:
    async with HikariDiscord(options(discord, **over), first_pause=0.05) as bot:
        await bot.listen(ears or Ears())


@asynccontextmanager
async def nothing_left_behind() -> AsyncGenerator[None]:
    before = asyncio.all_tasks()
    yield
    # aiohttp's server side ends on its own; what counts is hikari's and ours.
    names = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not {name for name in names if "shard" in name or "discord" in name}, names


async def test_what_happens_is_told_in_order() -> None:
    ears = Ears()
    with fail_after(5):
        async with DiscordDouble() as discord, listening(discord, ears):
            question = await discord.say(discord.alice, "how?")
            answer = await discord.say(discord.tess, "so!", reply_to=question)
            await discord.edit(question, "how exactly?")
            await discord.delete(answer)
            more = [await discord.say(discord.bob, str(n)) for n in range(20)]
            await discord.delete(*more)
            events = await ears.heard(25)

    first, second, edited, deleted, *twenty, bulk = events
    assert isinstance(first, MessageCreated)
    assert isinstance(second, MessageCreated)
    assert (first.message.text, first.message.author.type) == ("how?", "community_user")
    assert (second.message.author.type, second.message.reply_to) == ("team_member", question.id)
    assert isinstance(edited, MessageEdited)
    assert edited.message.text == "how exactly?"
    help_ = ChannelId(discord.help.id)
    guild_id = GuildId(discord.guild.id)
    assert deleted == MessagesDeleted(guild_id=guild_id, channel_id=help_, message_ids=(MessageId(answer.id),))
    assert [event.message.text for event in twenty if isinstance(event, MessageCreated)] == list(map(str, range(20)))
    assert isinstance(bulk, MessagesDeleted)
    assert set(bulk.message_ids) == {message.id for message in more}


async def test_the_bots_own_messages_are_known_as_such() -> None:
    ears = Ears()
    with fail_after(5):
        async with DiscordDouble() as discord, listening(discord, ears) as bot:
            await bot.rest.send(ChannelId(discord.help.id), "hello", "n-1")
            (event,) = await ears.heard(1)
    assert isinstance(event, MessageCreated)
    assert (event.message.author.type, event.message.author.is_self) == ("bot", True)


async def test_other_servers_and_what_is_no_edit_go_unheard() -> None:
    ears = Ears()
    with fail_after(5):
        async with DiscordDouble() as discord:
            elsewhere = discord.world.new_guild("elsewhere")
            foreign = discord.world.new_channel("foreign", guild=elsewhere)
            stranger = discord.world.new_member("stranger", guild=elsewhere)
            async with listening(discord, ears) as bot:
                await discord.say(stranger, "unheard", channel=foreign)
                discord.gateway.dispatch("MESSAGE_CREATE", {"id": "1", "channel_id": "2", "author": {"id": "3"}})
                question = await discord.say(discord.alice, "how?")
                await discord.create_thread("t", author=discord.bob, message=question)  # sends MESSAGE_UPDATE
                await discord.say(discord.alice, "last")
                await ears.heard(2)
                assert ears.texts == ["how?", "last"]

                # Their channels are not remembered either.
                assert (await bot.rest.channel(ChannelId(discord.help.id))).name == "help"
                assert discord.requests_to("GET", "/channels/*") == []
                await bot.rest.channel(ChannelId(foreign.id))
                assert len(discord.requests_to("GET", "/channels/*")) == 1


async def test_threads_and_posts_are_known_without_asking() -> None:
    ears = Ears()
    with fail_after(5):
        async with DiscordDouble() as discord:
            before = await discord.say(discord.alice, "before we came")
            old = await discord.create_thread("old", author=discord.bob, message=before)
            async with listening(discord, ears) as bot:
                post = await discord.create_thread("p", author=discord.alice, channel=discord.forum, text="how?")
                await ears.heard(1)
                found = [await bot.rest.channel(ChannelId(channel.id)) for channel in (old, post)]
                assert [(channel.kind, channel.name) for channel in found] == [("thread", "old"), ("post", "p")]
                assert discord.requests_to("GET", "/channels/*") == []


async def test_an_unreadable_payload_costs_itself_alone() -> None:
    ears = Ears()
    with fail_after(5):
        async with DiscordDouble() as discord, listening(discord, ears):
            guild_id = discord.guild.id
            discord.gateway.dispatch("MESSAGE_CREATE", {"guild_id": guild_id, "id": 5, "author": None})
            discord.gateway.dispatch("MESSAGE_CREATE", {"guild_id": [guild_id]})
            discord.gateway.dispatch("THREAD_CREATE", {"guild_id": guild_id, "id": "x"})
            await discord.say(discord.alice, "how?")
            await ears.heard(1)
    assert ears.texts == ["how?"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (4004, r"discord\.token"),
        (4010, "4010"),
        (4011, r"sharded.*discord\.guild_ids"),
        (4012, "4012"),
        (4013, "4013"),
        (4014, "switch on the Message Content Intent"),
    ],
)
async def test_a_refusal_for_good_says_what_to_do(code: int, said: str) -> None:
    with fail_after(5):
        async with DiscordDouble() as discord, nothing_left_behind():
            discord.gateway.refuse_identify = code
            with pytest.raises(ConfigError, match=said):
                await listen_to_the_end(discord)


async def test_a_refusal_while_connected_says_so_too_and_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with fail_after(5):
        async with DiscordDouble() as discord, nothing_left_behind():
            ears = Ears()

            async def refuse() -> None:
                await discord.wait_ready()
                await discord.say(discord.alice, "how?")
                await ears.heard(1)
                await discord.close_gateway(4014)

            async with create_task_group() as tg:
                tg.start_soon(refuse)
                with pytest.raises(ConfigError, match="Message Content Intent"):
                    await listen_to_the_end(discord, ears)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


async def test_a_token_that_rest_refuses_ends_it() -> None:
    with fail_after(5):
        async with DiscordDouble() as discord, nothing_left_behind():
            wrong = discord.token.replace("double", "wrong")
            with pytest.raises(ConfigError, match=r"discord\.token: Discord does not accept") as refused:
                await listen_to_the_end(discord, token=Secret(wrong))
            assert wrong not in str(refused.value)


async def test_a_rest_url_without_a_discord_ends_it() -> None:
    with fail_after(5):
        async with DiscordDouble() as discord:
            discord.fail_next("GET", "/gateway/bot", status=404)
            with pytest.raises(ConfigError, match=r"discord\.rest_url"):
                await listen_to_the_end(discord)


def test_it_is_what_the_listener_asks_for() -> None:
    gateway: Gateway = HikariDiscord(DiscordOptions(token=Secret("MTIz.x.y"), guild_ids=(GuildId("1"),)))
    assert gateway


def test_what_cannot_work_is_said_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match=r"discord\.guild_ids"):
        HikariDiscord(DiscordOptions(token=Secret("MTIz.x.y")))
    with pytest.raises(ConfigError, match=r"discord\.token"):
        HikariDiscord(DiscordOptions(token=Secret("junk"), guild_ids=(GuildId("1"),)))


@pytest.mark.parametrize("code", [4001, 4003, 4005])
async def test_what_hikari_takes_for_the_end_is_begun_anew(code: int) -> None:
    ears = Ears()
    with fail_after(5):
        async with DiscordDouble() as discord, nothing_left_behind(), listening(discord, ears) as bot:
            await discord.close_gateway(code)
            await discord.wait_ready(sessions=2)
            await discord.say(discord.alice, "are you back?")
            await ears.heard(1)
            await bot.rest.send(ChannelId(discord.help.id), "yes", "n-1")
    assert ears.texts[0] == "are you back?"


async def test_a_new_session_that_fails_is_tried_again() -> None:
    with fail_after(5):
        async with DiscordDouble() as discord, nothing_left_behind():
            discord.fail_next("GET", "/gateway/bot", status=403, times=3)
            async with listening(discord, Ears()):
                assert len(discord.requests_to("GET", "/gateway/bot")) == 4


async def test_what_was_missed_in_a_short_break_is_told_after_it() -> None:
    ears = Ears()
    with fail_after(10):  # hikari waits a second or two before it resumes
        async with DiscordDouble() as discord, nothing_left_behind(), listening(discord, ears):
            discord.drop_gateway()
            await discord.until(lambda: not discord.gateway.connected)
            await discord.say(discord.alice, "missed")
            await ears.heard(1)
            assert len(discord.gateway.resumes) == 1
    assert ears.texts == ["missed"]


async def test_whoever_stops_listening_stays_connected_until_they_leave() -> None:
    ears = Ears()
    with fail_after(5):
        async with DiscordDouble() as discord, nothing_left_behind():
            async with HikariDiscord(options(discord)) as bot:
                async with create_task_group() as tg:
                    tg.start_soon(bot.listen, ears)
                    await bot.wait_ready()
                    tg.cancel_scope.cancel()
                await discord.say(discord.alice, "too late")
                await bot.rest.send(ChannelId(discord.help.id), "the last reply", "n-1")
                assert discord.gateway.ready
                assert ears.events == []
            await discord.until(lambda: not discord.gateway.connected)


async def test_a_cancelled_program_still_closes_the_connection() -> None:
    with fail_after(5):
        async with DiscordDouble() as discord, nothing_left_behind():
            async with create_task_group() as tg:

                async def program() -> None:
                    async with HikariDiscord(options(discord)) as bot:
                        await bot.listen(Ears())

                tg.start_soon(program)
                await discord.wait_ready()
                tg.cancel_scope.cancel()
            await discord.until(lambda: not discord.gateway.connected)
            assert discord.gateway.sessions == {}


async def test_leaving_between_two_calls_of_a_dead_gateway_leaves_nothing_behind() -> None:
    discord = DeadGateway(silent=False)
    with fail_after(5), Overheard("hikari.gateway.0", "backing off") as hikari:
        async with discord.open(), nothing_left_behind(), create_task_group() as tg:
            tg.start_soon(listen_to_the_end, discord)
            await hikari.said.wait()
            tg.cancel_scope.cancel()


# hikari 2.7 forgets its HTTP session where it is stopped in the middle of a call. The program ends then anyway.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_leaving_while_a_gateway_does_not_answer_leaves_no_task_behind() -> None:
    discord = DeadGateway(silent=True)
    with fail_after(5):
        async with discord.open(), nothing_left_behind(), create_task_group() as tg:
            tg.start_soon(listen_to_the_end, discord)
            await discord.dialled.wait()
            tg.cancel_scope.cancel()


async def test_leaving_while_the_first_request_waits_leaves_nothing_behind() -> None:
    with fail_after(5):
        async with DiscordDouble() as discord, nothing_left_behind():
            held = discord.hold_next("GET", "/gateway/bot")
            async with HikariDiscord(options(discord)) as bot, create_task_group() as tg:
                tg.start_soon(bot.listen, Ears())
                await held.arrived.wait()
                tg.cancel_scope.cancel()


async def test_a_bug_in_whoever_listens_is_not_swallowed() -> None:
    def broken(event: MessageEvent) -> None:
        raise ZeroDivisionError

    with fail_after(5):
        async with DiscordDouble() as discord, nothing_left_behind():
            with pytest.RaisesGroup(ZeroDivisionError):
                async with listening(discord, broken):
                    await discord.say(discord.alice, "how?")
                    await sleep_forever()


async def test_a_connection_that_nobody_opened_is_no_trouble_to_close() -> None:
    with fail_after(5):
        async with DiscordDouble() as discord, nothing_left_behind():
            async with HikariDiscord(options(discord)):
                pass
            assert discord.requests == []
