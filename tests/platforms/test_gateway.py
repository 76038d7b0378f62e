from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
from anyio import create_task_group, sleep_forever

from intern.chat.platform import RequestReports
from intern.core.errors import ChatUnavailableError, ConfigError
from intern.core.flow import (
    ApprovalReaction,
    ButtonPressed,
    GatewayEvent,
    GuildJoined,
    GuildLeft,
    Interaction,
    MessageCreated,
    MessageEdited,
    MessageEvent,
    MessagesDeleted,
    SessionStarted,
)
from intern.core.ids import ChannelId, GuildId, MessageId, UserId
from intern.core.messages import Channel
from intern.core.text.secret_values import Secret
from intern.frontends.http.metrics import Metrics
from intern.platforms.discord.gateway import HikariDiscord
from intern.platforms.discord.options import DiscordOptions
from tests.double.discord import DiscordDouble
from tests.worlds.actors import finishing, running
from tests.worlds.discord import make_options

pytestmark = pytest.mark.on_asyncio


@pytest.fixture(autouse=True)
def nothing_logged_holds_the_token(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert ".double.token" not in caplog.text


class Ears:
    """Hears events, and lets a test wait for the nth; the beginnings of sessions are kept apart."""

    def __init__(self) -> None:
        self.events: list[MessageEvent] = []
        self.sessions: list[SessionStarted] = []
        self.interactions: list[Interaction] = []
        self.approvals: list[ApprovalReaction] = []
        self._heard = asyncio.Event()

    def __call__(self, event: GatewayEvent) -> None:
        match event:
            case SessionStarted():
                self.sessions.append(event)
            case MessageCreated() | MessageEdited() | MessagesDeleted():
                self.events.append(event)
            case ApprovalReaction():
                self.approvals.append(event)
            case GuildJoined() | GuildLeft():
                pass
            case _:
                self.interactions.append(event)
        self._heard.set()

    async def begun(self, sessions: int) -> None:
        await self.until(lambda: len(self.sessions) >= sessions)

    async def until(self, met: Callable[[], object]) -> None:
        while not met():
            self._heard.clear()
            await self._heard.wait()

    async def heard(self, count: int) -> list[MessageEvent]:
        await self.until(lambda: len(self.events) >= count)
        return self.events

    @property
    def texts(self) -> list[str]:
        return [event.message.text for event in self.events if not isinstance(event, MessagesDeleted)]


class Overheard(logging.Handler):
    """Waits for a line in a log."""

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
    """REST answers, but the gateway that it names hangs up, or stays silent."""

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


@asynccontextmanager
async def listening(
    discord: DiscordDouble,
    deliver: Callable[[GatewayEvent], None],
    *,
    reactions: bool = False,
    reconnected: Callable[[], object] = lambda: None,
    **over: Any,
) -> AsyncGenerator[HikariDiscord]:
    reports = RequestReports(reconnected=reconnected)
    async with (
        HikariDiscord(make_options(discord, **over), reactions=reactions, first_pause=0.05, reports=reports) as bot,
        create_task_group() as tg,
    ):
        tg.start_soon(bot.listen, deliver)
        await bot.wait_ready()
        yield bot
        tg.cancel_scope.cancel()


async def listen_to_the_end(discord: DiscordDouble, ears: Ears | None = None, **over: Any) -> None:
    async with HikariDiscord(make_options(discord, **over), first_pause=0.05) as bot:
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


async def test_a_check_mark_of_the_team_s_is_told_where_reactions_are_asked_for() -> None:
    for asked_for in (True, False):
        ears = Ears()
        async with DiscordDouble() as discord, listening(discord, ears, reactions=asked_for):
            message = await discord.say(discord.alice, "how?")
            for who, emoji in (
                (discord.alice, "✅"),
                (discord.bot, "✅"),
                (discord.tess, "👍"),
                (discord.tess, "✅"),
            ):
                await discord.react(who, message, emoji)
            await discord.say(discord.alice, "the end")
            await ears.heard(2)
            told = ApprovalReaction(
                guild_id=GuildId(discord.guild.id),
                channel_id=ChannelId(discord.help.id),
                message_id=MessageId(message.id),
                by=UserId(discord.tess.id),
            )
        assert ears.approvals == ([told] if asked_for else [])


async def test_the_bots_own_messages_are_known_as_such() -> None:
    ears = Ears()
    async with DiscordDouble() as discord, listening(discord, ears) as bot:
        await bot.send(ChannelId(discord.help.id), "hello", "n-1")
        (event,) = await ears.heard(1)
    assert isinstance(event, MessageCreated)
    assert (event.message.author.type, event.message.author.is_self) == ("bot", True)


async def test_other_servers_and_what_is_no_edit_go_unheard() -> None:
    ears = Ears()
    async with DiscordDouble() as discord:
        elsewhere = discord.world.new_guild("elsewhere")
        foreign = discord.world.new_channel("foreign", guild=elsewhere)
        stranger = discord.world.new_member("stranger", guild=elsewhere)
        async with listening(discord, ears) as bot:
            await discord.say(stranger, "unheard", channel=foreign)
            discord.gateway.dispatch("MESSAGE_DELETE", {"id": "1", "channel_id": "2"})
            question = await discord.say(discord.alice, "how?")
            await discord.create_thread("t", author=discord.bob, message=question)  # sends MESSAGE_UPDATE
            await discord.say(discord.alice, "last")
            await ears.heard(2)
            assert ears.texts == ["how?", "last"]

            # Their channels are not remembered either.
            assert (await bot.channel(ChannelId(discord.help.id))).name == "help"
            assert discord.requests_to("GET", "/channels/*") == []
            await bot.channel(ChannelId(foreign.id))
            assert len(discord.requests_to("GET", "/channels/*")) == 1


async def test_threads_and_posts_are_known_without_asking() -> None:
    ears = Ears()
    async with DiscordDouble() as discord:
        before = await discord.say(discord.alice, "before we came")
        old = await discord.create_thread("old", author=discord.bob, message=before)
        async with listening(discord, ears) as bot:
            post = await discord.create_thread("p", author=discord.alice, channel=discord.forum, text="how?")
            await ears.heard(1)
            found = [await bot.channel(ChannelId(channel.id)) for channel in (old, post)]
            assert [(channel.kind, channel.name) for channel in found] == [("thread", "old"), ("post", "p")]
            assert discord.requests_to("GET", "/channels/*") == []


TITLE, ASKED = "Error 4711 in the tenant", "What am I doing wrong?"


# Finding B1.
@pytest.mark.parametrize("kind", ["post", "hanging", "bare"])
async def test_a_first_message_begins_with_the_title_and_a_new_one_is_an_edit(kind: str) -> None:
    ears = Ears()
    async with DiscordDouble() as discord, listening(discord, ears) as bot:
        if kind == "post":
            thread = await discord.create_thread(TITLE, author=discord.alice, text=ASKED)
            asked = discord.messages(thread)[0]
        elif kind == "hanging":
            asked = await discord.say(discord.alice, ASKED)
            thread = await discord.create_thread(TITLE, author=discord.bob, message=asked)
        else:
            thread = await discord.create_thread(TITLE, author=discord.alice, channel=discord.help)
            asked = await discord.say(discord.alice, ASKED, channel=thread)
        await discord.say(discord.alice, "anybody?", channel=thread)
        await ears.heard(2)
        assert ears.texts[0] == (ASKED if kind == "hanging" else f"{TITLE}\n{ASKED}")
        place, opening = ChannelId(asked.channel_id), MessageId(asked.id)
        read = await bot.message(place, opening)
        assert read is not None
        assert read.text == f"{TITLE}\n{ASKED}"
        await discord.edit(asked, "Why?")
        await ears.heard(3)
        assert ears.texts[2] == f"{TITLE}\nWhy?"

        await discord.rename(thread, "Error 4712 in the tenant")
        await ears.heard(4)
        edited = ears.events[3]
        assert isinstance(edited, MessageEdited)
        assert (edited.message.id, edited.message.text) == (asked.id, "Error 4712 in the tenant\nWhy?")
        await discord.rename(thread, "help")
        await ears.heard(5)
        assert ears.texts[4] == "Why?"


# Finding B1.
async def test_a_thread_that_the_bot_opened_gives_no_title_and_a_deleted_message_takes_its_title_along() -> None:
    ears = Ears()
    async with DiscordDouble() as discord, listening(discord, ears) as bot:
        asked = await discord.say(discord.alice, ASKED)
        await bot.start_thread(ChannelId(discord.help.id), MessageId(asked.id), TITLE)
        read = await bot.message(ChannelId(asked.channel_id), MessageId(asked.id))
        assert read is not None
        assert read.text == ASKED

        post = await discord.create_thread(TITLE, author=discord.alice, text=ASKED)
        await discord.say(discord.bob, "me too", channel=post)
        await discord.delete(discord.messages(post)[0])
        assert [each.text for each in await bot.before(ChannelId(post.id), None, limit=10)] == ["me too"]
        await discord.rename(post, "Another")
        await discord.say(discord.bob, "still there?", channel=post)
        await ears.until(lambda: "still there?" in ears.texts)
        assert not any(isinstance(event, MessageEdited) for event in ears.events)


async def test_an_unreadable_payload_costs_itself_alone() -> None:
    ears = Ears()
    async with DiscordDouble() as discord, listening(discord, ears):
        guild_id = discord.guild.id
        discord.gateway.dispatch("MESSAGE_CREATE", {"guild_id": guild_id, "id": 5, "author": None})
        discord.gateway.dispatch("INTERACTION_CREATE", {"id": 5})
        discord.gateway.dispatch("CHANNEL_UPDATE", {"guild_id": guild_id, "id": discord.general.id})
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
        (4011, r"more shards.*discord\.shards"),
        (4012, "4012"),
        (4013, "4013"),
        (4014, "switch on the Message Content Intent"),
    ],
)
async def test_a_refusal_for_good_says_what_to_do(code: int, said: str) -> None:
    async with DiscordDouble() as discord, nothing_left_behind():
        discord.gateway.refuse_identify = code
        with pytest.raises(ConfigError, match=said):
            await listen_to_the_end(discord)


async def test_a_refusal_while_connected_says_so_too_and_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with DiscordDouble() as discord, nothing_left_behind():
        ears = Ears()

        async def refuse() -> None:
            await discord.wait_ready()
            await discord.say(discord.alice, "how?")
            await ears.heard(1)
            await discord.close_gateway(4014)

        async with finishing(refuse):
            with pytest.raises(ConfigError, match="Message Content Intent"):
                await listen_to_the_end(discord, ears)
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


async def test_a_token_that_rest_refuses_ends_it() -> None:
    async with DiscordDouble() as discord, nothing_left_behind():
        wrong = discord.token.replace("double", "wrong")
        with pytest.raises(ConfigError, match=r"discord\.token: Discord does not accept") as refused:
            await listen_to_the_end(discord, token=Secret(wrong))
        assert wrong not in str(refused.value)


async def test_a_rest_url_without_a_discord_ends_it() -> None:
    async with DiscordDouble() as discord:
        discord.fail_next("GET", "/gateway/bot", status=404)
        with pytest.raises(ConfigError, match=r"discord\.rest_url"):
            await listen_to_the_end(discord)


def test_what_cannot_work_is_said_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match=r"discord\.guild_ids"):
        HikariDiscord(DiscordOptions(token=Secret("MTIz.x.y")))
    with pytest.raises(ConfigError, match=r"discord\.token"):
        HikariDiscord(DiscordOptions(token=Secret("junk"), guild_ids=(GuildId("1"),)))


@pytest.mark.rest
@pytest.mark.parametrize("code", [4001, 4003, 4005])
async def test_what_hikari_takes_for_the_end_is_begun_anew(code: int) -> None:
    ears = Ears()
    async with DiscordDouble() as discord, nothing_left_behind(), listening(discord, ears) as bot:
        await discord.close_gateway(code)
        await discord.wait_ready(sessions=2)
        await discord.say(discord.alice, "are you back?")
        await ears.heard(1)
        await bot.send(ChannelId(discord.help.id), "yes", "n-1")
    assert ears.texts[0] == "are you back?"


async def test_a_new_session_that_fails_is_tried_again() -> None:
    async with DiscordDouble() as discord, nothing_left_behind():
        discord.fail_next("GET", "/gateway/bot", status=403, times=3)
        async with listening(discord, Ears()):
            assert len(discord.requests_to("GET", "/gateway/bot")) == 4


async def test_what_was_missed_in_a_short_break_is_told_after_it() -> None:
    ears = Ears()
    # hikari waits a second or two before it resumes
    async with DiscordDouble() as discord, nothing_left_behind(), listening(discord, ears):
        discord.drop_gateway()
        await discord.until(lambda: not discord.gateway.connected)
        await discord.say(discord.alice, "missed")
        await ears.heard(1)
        assert len(discord.gateway.resumes) == 1
    assert ears.texts == ["missed"]


# Sessions


def last_seen(started: SessionStarted) -> dict[str, str | None]:
    return {seen.channel.name: seen.last_message_id for seen in started.channels}


async def test_a_session_begins_with_what_there_is_to_read() -> None:
    ears = Ears()
    async with DiscordDouble() as discord:
        discord.world.new_guild("elsewhere")
        question = await discord.say(discord.alice, "before we came")
        thread = await discord.create_thread("old", author=discord.bob, message=question)
        told = await discord.say(discord.bob, "in it", channel=thread)
        asleep = await discord.create_thread("asleep", author=discord.alice, channel=discord.forum, text="hm")
        await discord.archive(asleep)
        async with listening(discord, ears):
            await ears.begun(1)
            await discord.say(discord.alice, "now")
            await ears.heard(1)
    (started,) = ears.sessions
    assert started.guild_id == discord.guild.id
    assert last_seen(started) == {"help": question.id, "general": None, "forum": None, "old": told.id}


@pytest.mark.rest
@pytest.mark.parametrize("how", ["reconnect", "invalid", "closed"])
async def test_a_session_that_is_resumed_is_no_new_one(how: str) -> None:
    ears = Ears()
    # hikari waits a second or two before it comes back
    async with DiscordDouble() as discord, nothing_left_behind(), listening(discord, ears):
        match how:
            case "reconnect":
                await discord.reconnect()
            case "invalid":
                await discord.invalidate(resumable=True)
            case _:
                await discord.close_gateway(4000)
        await discord.until(lambda: not discord.gateway.ready)
        await discord.say(discord.alice, "missed")
        await ears.heard(1)
        assert len(discord.gateway.resumes) == 1
        assert len(discord.gateway.identifies) == 1
    assert ears.texts == ["missed"]
    assert len(ears.sessions) == 1


@pytest.mark.parametrize("code", [None, 1001])
async def test_a_session_that_is_lost_begins_again_and_tells_what_was_missed(code: int | None) -> None:
    ears = Ears()
    async with DiscordDouble() as discord, nothing_left_behind(), listening(discord, ears):
        await ears.begun(1)
        if code is None:
            await discord.invalidate(resumable=False)
        else:
            await discord.close_gateway(code)
        await discord.until(lambda: not discord.gateway.ready)
        missed = await discord.say(discord.alice, "missed")
        await ears.begun(2)
        assert len(discord.gateway.identifies) == 2
        assert len(discord.gateway.resumes) == (1 if code else 0)
    assert ears.events == []
    assert last_seen(ears.sessions[0])["help"] is None
    assert last_seen(ears.sessions[1])["help"] == missed.id


async def test_nothing_of_a_server_comes_before_its_session() -> None:
    ears = Ears()
    async with DiscordDouble() as discord, listening(discord, ears):
        await ears.begun(1)
        ready = json.loads(next(iter(discord.gateway.sessions.values())).events[0])["d"]
        created = json.loads(next(iter(discord.gateway.sessions.values())).events[1])["d"]
        discord.gateway.dispatch("READY", ready)  # a session as some server under load may begin it
        await discord.say(discord.alice, "too early")
        discord.gateway.dispatch("GUILD_CREATE", created | {"unavailable": True})
        await discord.say(discord.alice, "still")
        discord.gateway.dispatch("GUILD_CREATE", created)
        await discord.say(discord.alice, "now")
        await ears.heard(1)
    assert ears.texts == ["now"]
    assert len(ears.sessions) == 2


async def test_what_hikari_takes_for_the_end_begins_a_new_session() -> None:
    ears = Ears()
    async with DiscordDouble() as discord, nothing_left_behind(), listening(discord, ears):
        await discord.close_gateway(4003)
        await ears.begun(2)


async def test_a_day_with_too_many_sessions_is_waited_out() -> None:
    ears = Ears()
    async with DiscordDouble() as discord, nothing_left_behind():
        discord.world.session_starts_left = 100
        discord.world.session_starts_reset_after = 0.5
        began = asyncio.get_running_loop().time()
        async with listening(discord, ears):
            assert asyncio.get_running_loop().time() - began >= 0.45
            assert len(discord.gateway.connections) == 1


async def test_a_session_that_may_not_begin_is_waited_for_loudly_and_leaving_meanwhile_leaves_nothing_behind() -> None:
    with Overheard("intern.platforms.discord.shards", "discord_session_starts_used_up") as us:
        async with DiscordDouble() as discord, nothing_left_behind(), create_task_group() as tg:
            discord.world.session_starts_left = 0
            tg.start_soon(listen_to_the_end, discord)
            await us.said.wait()
            tg.cancel_scope.cancel()
        assert discord.gateway.connections == []


async def test_a_session_that_dies_young_each_time_is_begun_ever_more_slowly(caplog: pytest.LogCaptureFixture) -> None:
    ears = Ears()
    async with DiscordDouble() as discord, nothing_left_behind(), listening(discord, ears):
        for n in range(1, 4):
            await ears.begun(n)
            await discord.close_gateway(4001)
        await ears.begun(4)
    pauses = [record for record in caplog.records if "discord_connection_lost" in record.getMessage()]
    said = [record.getMessage() for record in pauses]
    assert [pause for pause in (0.05, 0.1, 0.2) if any(f"{pause}" in line for line in said)] == [0.05, 0.1, 0.2]


@pytest.mark.rest
@pytest.mark.parametrize("how", ["dropped", "asked to", "invalid", "given up"])
async def test_each_connection_after_the_first_is_counted_however_it_came_back(how: str) -> None:
    metrics, counted = Metrics(prompts=(), version="1"), asyncio.Event()

    def reconnected() -> None:
        metrics.count_reconnect()
        counted.set()

    # hikari waits a second or two before it comes back
    async with (
        DiscordDouble() as discord,
        nothing_left_behind(),
        listening(discord, Ears(), reconnected=reconnected),
    ):
        assert reconnects(metrics) == 0
        match how:
            case "dropped":
                discord.drop_gateway()
            case "asked to":
                await discord.reconnect()
            case "invalid":
                await discord.invalidate(resumable=False)
            case _:  # hikari ends it, and it is begun anew here
                await discord.close_gateway(4001)
        await counted.wait()
    assert reconnects(metrics) == 1
    assert len(discord.gateway.identifies) + len(discord.gateway.resumes) == 2


def reconnects(metrics: Metrics) -> float:
    (line,) = re.findall(r"^intern_discord_reconnects_total (.+)$", metrics.text()[0].decode(), re.MULTILINE)
    return float(line)


async def test_a_failed_handshake_leaves_no_heartbeat_behind() -> None:
    async with DiscordDouble() as discord, listening(discord, Ears()):
        discord.gateway.forget_sessions()
        discord.drop_gateway()  # the resume is refused, and hikari comes back once more
        await discord.wait_ready(sessions=2)
        beating = [task for task in asyncio.all_tasks() if task.get_name().startswith("heartbeat")]
        assert len(beating) == 1


# Channels that everyone can read


def place(channel: Any, **over: Any) -> Channel:
    return Channel(id=ChannelId(channel.id), guild_id=GuildId(channel.guild_id), kind="channel", **over)


async def test_a_channel_that_turns_private_stops_at_once() -> None:
    ears = Ears()
    async with DiscordDouble() as discord:
        staff = discord.world.new_channel("staff", hidden=True)
        listed = discord.world.new_channel("listed", hidden=True)
        async with listening(discord, ears, listed_channel_ids=(ChannelId(listed.id),)) as bot:
            await ears.begun(1)
            help_ = place(discord.help)
            assert bot.admits(help_)
            assert bot.admits(place(listed))
            assert not bot.admits(place(staff))

            await discord.make_private(discord.help)
            await discord.say(discord.alice, "hidden")
            await ears.heard(1)
            assert not bot.admits(help_)

            await discord.make_private(discord.help, private=False)
            new = await discord.create_channel("new", hidden=True)
            await discord.say(discord.alice, "open")
            await ears.heard(2)
            assert bot.admits(help_)
            assert not bot.admits(place(new))

            await discord.permit(discord.guild.roles[discord.guild.id], 0)
            await discord.say(discord.alice, "closed to all")
            await ears.heard(3)
            assert not bot.admits(help_)


async def lose_session(discord: DiscordDouble, how: str) -> None:
    """Break the connection, so that the session is resumed, or a new one begins."""
    await discord.close_gateway(4000 if how == "resumed" else 4009)
    await discord.until(lambda: not discord.gateway.ready)


# Finding A1.
@pytest.mark.parametrize("how", ["resumed", "anew"])
async def test_what_rest_reads_while_the_session_is_lost_waits_until_it_is_known_who_may_read_it(how: str) -> None:
    ears = Ears()
    # hikari waits a second or two before it comes back
    async with DiscordDouble() as discord, listening(discord, ears) as bot:
        question = await discord.say(discord.alice, "in public")
        await ears.heard(1)
        await lose_session(discord, how)
        await discord.make_private(discord.help)
        answer = await discord.say(discord.tess, "in private", reply_to=question)

        help_ = ChannelId(discord.help.id)
        page, found = (
            await bot.page(help_, MessageId(question.id), 10),
            await bot.look_up(help_, MessageId(answer.id)),
        )
        assert [message.text for message in page.messages] == ["in private"]
        assert found == page.messages[0]
        assert not bot.admits(place(discord.help))


# Finding A1.
async def test_a_role_that_was_taken_away_while_the_session_was_lost_counts_no_more() -> None:
    ears = Ears()
    async with DiscordDouble() as discord, listening(discord, ears) as bot:
        first = await discord.say(discord.tess, "of the team")
        await ears.heard(1)
        await lose_session(discord, "anew")
        discord.guild.members[discord.tess.id].roles.clear()
        await discord.say(discord.tess, "a member now")
        page = await bot.page(ChannelId(discord.help.id), MessageId(first.id), 10)
        await bot.page(ChannelId(discord.help.id), MessageId(first.id), 10)
        lookups = discord.requests_to("GET", f"/guilds/{discord.guild.id}/members/{discord.tess.id}")
    assert [message.author.type for message in page.messages] == ["community_user"]
    assert len(lookups) == 1, "it is known for the rest of the session"


# Finding A1.
async def test_who_reads_while_the_session_is_lost_gives_up_once_nobody_listens() -> None:
    ended: list[str] = []
    async with DiscordDouble() as discord, HikariDiscord(make_options(discord), first_pause=0.05) as bot:

        async def read() -> None:
            with pytest.raises(ChatUnavailableError, match="who may read"):
                await bot.page(ChannelId(discord.help.id), MessageId("1"), 10)
            ended.append("the reading")

        async with create_task_group() as reading, create_task_group() as listening:
            listening.start_soon(bot.listen, Ears())
            await bot.wait_for_permissions(GuildId(discord.guild.id))
            await lose_session(discord, "anew")
            reading.start_soon(read)
            await discord.until(lambda: discord.requests_to("GET", f"/channels/{discord.help.id}/messages"))
            listening.cancel_scope.cancel()
    assert ended == ["the reading"]


async def test_private_messages_are_heard() -> None:
    ears = Ears()
    async with DiscordDouble() as discord, listening(discord, ears):
        assert int(discord.gateway.identifies[0]["intents"]) & (1 << 12)
        told = {"id": "1", "channel_id": "2", "author": {"id": "3"}, "content": "psst"}
        discord.gateway.dispatch("MESSAGE_CREATE", told)
        (event,) = await ears.heard(1)
    assert isinstance(event, MessageCreated)
    assert (event.message.guild_id, event.message.text) == (None, "psst")


async def test_interactions_are_told() -> None:
    ears = Ears()
    async with DiscordDouble() as discord, listening(discord, ears):
        discord.gateway.dispatch(
            "INTERACTION_CREATE",
            {
                "id": "1",
                "application_id": discord.bot_id,
                "type": 3,
                "token": "secret-of-the-interaction",
                "guild_id": discord.guild.id,
                "channel_id": discord.help.id,
                "member": {"user": {"id": discord.alice.id, "username": "alice"}, "roles": []},
                "data": {"custom_id": "intern:up:5", "component_type": 2},
                "message": {"id": "6"},
            },
        )
        await ears.until(lambda: ears.interactions)
    (pressed,) = ears.interactions
    assert isinstance(pressed, ButtonPressed)
    assert (pressed.button, pressed.message_id, pressed.user.name) == ("intern:up:5", "6", "alice")


async def test_whoever_stops_listening_stays_connected_until_they_leave() -> None:
    ears = Ears()
    async with DiscordDouble() as discord, nothing_left_behind():
        async with HikariDiscord(make_options(discord)) as bot:
            async with running(bot.listen, ears):
                await bot.wait_ready()
            await discord.say(discord.alice, "too late")
            await bot.send(ChannelId(discord.help.id), "the last reply", "n-1")
            assert discord.gateway.ready
            assert ears.events == []
        await discord.until(lambda: not discord.gateway.connected)


async def test_a_cancelled_program_still_closes_the_connection() -> None:
    async with DiscordDouble() as discord, nothing_left_behind():
        async with create_task_group() as tg:

            async def program() -> None:
                async with HikariDiscord(make_options(discord)) as bot:
                    await bot.listen(Ears())

            tg.start_soon(program)
            await discord.wait_ready()
            tg.cancel_scope.cancel()
        await discord.until(lambda: not discord.gateway.connected)
        assert discord.gateway.sessions == {}


async def test_leaving_between_two_calls_of_a_dead_gateway_leaves_nothing_behind() -> None:
    discord = DeadGateway(silent=False)
    with Overheard("hikari.gateway.0", "backing off") as hikari:
        async with discord.open(), nothing_left_behind(), create_task_group() as tg:
            tg.start_soon(listen_to_the_end, discord)
            await hikari.said.wait()
            tg.cancel_scope.cancel()


# hikari 2.7 forgets its HTTP session where it is stopped in the middle of a call. The program ends then anyway.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_leaving_while_a_gateway_does_not_answer_leaves_no_task_behind() -> None:
    discord = DeadGateway(silent=True)
    async with discord.open(), nothing_left_behind(), create_task_group() as tg:
        tg.start_soon(listen_to_the_end, discord)
        await discord.dialled.wait()
        tg.cancel_scope.cancel()


async def test_leaving_while_the_first_request_waits_leaves_nothing_behind() -> None:
    async with DiscordDouble() as discord, nothing_left_behind():
        held = discord.hold_next("GET", "/gateway/bot")
        async with HikariDiscord(make_options(discord)) as bot, create_task_group() as tg:
            tg.start_soon(bot.listen, Ears())
            await held.arrived.wait()
            tg.cancel_scope.cancel()


async def test_a_bug_in_whoever_listens_is_not_swallowed() -> None:
    def broken(event: GatewayEvent) -> None:
        if isinstance(event, MessageCreated):
            raise KeyError  # which hikari would swallow

    async with DiscordDouble() as discord, nothing_left_behind():
        with pytest.RaisesGroup(KeyError):
            async with listening(discord, broken):
                await discord.say(discord.alice, "how?")
                await sleep_forever()


async def test_a_connection_that_nobody_opened_is_no_trouble_to_close() -> None:
    async with DiscordDouble() as discord, nothing_left_behind():
        async with HikariDiscord(make_options(discord)):
            pass
        assert discord.requests == []
