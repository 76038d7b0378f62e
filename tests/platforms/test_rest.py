from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from anyio import create_task_group, current_time, fail_after, wait_all_tasks_blocked
from hikari.internal import routes

from intern.chat.platform import Requested
from intern.core.errors import (
    ChatError,
    ChatNotFoundError,
    ChatRefusedError,
    ChatUnauthorizedError,
    ChatUnavailableError,
    ChatUnknownOutcomeError,
    ConfigError,
)
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, UserId, position_at
from intern.core.messages import Button, Page
from intern.core.text.secret_values import Secret
from intern.platforms.discord.gateway_cache import ChannelsUpdated, GatewayCache
from intern.platforms.discord.options import DiscordOptions
from intern.platforms.discord.payloads import RawChannel
from intern.platforms.discord.rate_limits import convert_to_seconds
from intern.platforms.discord.rest import HikariRest
from intern.runtime.channel_admission import fetch_admitted_message
from tests.double import interactions
from tests.double.discord import DiscordDouble
from tests.double.world import Channel, Message, User
from tests.worlds.actors import finishing, running
from tests.worlds.discord import make_options

POST = "/channels/{channel_id}/messages"
GET_ONE = "/channels/{channel_id}/messages/{message_id}"
THREADS = "/channels/{channel_id}/messages/{message_id}/threads"
MEMBER = "/guilds/{guild_id}/members/{user_id}"


pytestmark = pytest.mark.on_asyncio


@asynccontextmanager
async def connected(
    *,
    check: bool = True,
    max_retries: int = 0,
    cache: GatewayCache | None = None,
    requested: Requested = lambda _: None,
    **over: Any,
) -> AsyncGenerator[tuple[DiscordDouble, HikariRest]]:
    """A double and REST on it; a test that takes more than ten seconds fails (hikari paces itself in seconds)."""
    with fail_after(10):
        async with DiscordDouble(check=check) as discord:
            before = asyncio.all_tasks()
            async with HikariRest(
                make_options(discord, **over), cache, max_retries=max_retries, requested=requested
            ) as rest:
                yield discord, rest
            assert {task.get_name() for task in asyncio.all_tasks() - before if "discord: " in task.get_name()} == set()


def channel_id(place: Any) -> ChannelId:
    return ChannelId(place.id)


def message_id(message: Message) -> MessageId:
    return MessageId(message.id)


async def test_a_process_makes_its_share_of_the_requests_and_interactions_are_exempt() -> None:
    async with connected() as (discord, rest):
        rest.share(0)  # one a second
        asked = await interactions.ask(discord, discord.alice, "why?")
        begun = current_time()

        async def at_once() -> None:
            route = routes.POST_INTERACTION_RESPONSE.compile(interaction=asked.id, token=asked.token)
            await rest.send_request("answer", route, body={"type": 5})
            assert current_time() - begun < 0.9

        async with create_task_group() as tg:
            for n in range(2):
                tg.start_soon(rest.send, channel_id(discord.help), "hello", f"n-{n}")
            tg.start_soon(at_once)
        assert current_time() - begun >= 1


async def test_typing_does_not_show_while_other_calls_wait() -> None:
    async with connected() as (discord, rest):
        rest.share(0)  # one a second
        await rest.typing(channel_id(discord.help))
        async with finishing(rest.send, channel_id(discord.help), "hello", "n-1"):
            await wait_all_tasks_blocked()
            await rest.typing(channel_id(discord.help))
        assert [request.path.rpartition("/")[2] for request in discord.requests] == ["typing", "messages"]


async def test_calls_go_over_one_connection() -> None:
    async with connected() as (discord, rest):
        for _ in range(3):
            await rest.typing(channel_id(discord.help))
        assert len({request.port for request in discord.requests}) == 1


async def test_the_gateway_is_asked_for_though_many_calls_wait() -> None:
    async with connected() as (discord, rest):
        rest.share(0)  # one a second
        async with create_task_group() as tg:
            for n in range(8):
                tg.start_soon(rest.before, channel_id(discord.help), None, 1)
                tg.start_soon(rest.send, channel_id(discord.help), "hello", f"n-{n}")
            await wait_all_tasks_blocked()
            await rest.gateway()
            tg.cancel_scope.cancel()
        assert [request.path for request in discord.requests].index("/gateway/bot") < 3


async def test_a_call_that_is_given_up_before_its_turn_is_never_made() -> None:
    counted: list[object] = []
    async with connected(requested=counted.append) as (discord, rest):
        rest.share(0)  # one a second
        async with finishing(rest.send, channel_id(discord.help), "first", "n-1"):
            await wait_all_tasks_blocked()
            async with running(rest.send, channel_id(discord.help), "second", "n-2"):
                await wait_all_tasks_blocked()
        await rest.send(channel_id(discord.help), "third", "n-3")
        assert [message.content for message in discord.said_by_bot()] == ["first", "third"]
        assert counted == [None, None]


# Writing


async def test_a_message_pings_nobody_and_previews_nothing() -> None:
    async with connected() as (discord, rest):
        text = f"@everyone <@{discord.alice.id}> <@&{discord.team_role.id}> https://example.org"

        sent = await rest.send(channel_id(discord.help), text, "n-1")

        (message,) = discord.messages(discord.help)
        assert (message.id, message.content) == (sent, text)
        assert (message.mentions, message.mention_roles, message.mention_everyone) == ([], [], False)
        assert message.flags == 1 << 2
        assert message.nonce == "n-1"


async def test_the_same_nonce_is_the_same_message() -> None:
    async with connected() as (discord, rest):
        first = await rest.send(channel_id(discord.help), "hello", "n-1")
        assert await rest.send(channel_id(discord.help), "hello", "n-1") == first
        assert len(discord.messages(discord.help)) == 1


@pytest.mark.parametrize("fault", [{"drop": True}, {"status": 502}])
async def test_a_confirmation_that_got_lost_is_asked_for_again_and_makes_no_second_message(fault: Any) -> None:
    async with connected(max_retries=1) as (discord, rest):
        discord.fail_next("POST", POST, when="after", **fault)
        sent = await rest.send(channel_id(discord.help), "hello", "n-1")
        assert [message.id for message in discord.messages(discord.help)] == [sent]
        assert len(discord.requests_to("POST", POST)) == 2


@pytest.mark.parametrize("fault", [{"drop": True}, {"status": 502}, {"status": 200}])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_message_that_nobody_confirmed_has_an_unknown_outcome(fault: Any, when: Any) -> None:
    async with connected(check=False) as (discord, rest):
        discord.fail_next("POST", POST, when=when, **fault)
        with pytest.raises(ChatUnknownOutcomeError, match="send a message"):
            await rest.send(channel_id(discord.help), "hello", "n-1")
        assert len(discord.messages(discord.help)) == (1 if when == "after" else 0)


async def test_a_refusal_says_what_was_refused_and_why() -> None:
    async with connected() as (discord, rest):
        discord.fail_next("POST", POST, status=403, code=50013, message="Missing Permissions")
        with pytest.raises(ChatRefusedError) as refused:
            await rest.send(channel_id(discord.help), "hello", "n-1")
        assert f"could not send a message to channel {discord.help.id}" in str(refused.value)
        assert "403 Missing Permissions (code 50013)" in str(refused.value)


async def test_a_rate_limit_that_is_too_long_means_later() -> None:
    async with connected() as (discord, rest):
        discord.rate_limit("POST", POST, retry_after=400, scope="shared")
        with pytest.raises(ChatUnavailableError, match="rate limited for 400 s"):
            await rest.send(channel_id(discord.help), "hello", "n-1")
        assert discord.messages(discord.help) == []


async def test_a_short_rate_limit_is_waited_for() -> None:
    async with connected() as (discord, rest):
        discord.rate_limit("POST", POST, retry_after=0.1, scope="shared")
        await rest.send(channel_id(discord.help), "hello", "n-1")
        assert [request.status for request in discord.requests_to("POST", POST)] == [429, 200]


async def test_a_call_is_counted_once_by_how_it_ended_however_often_it_was_tried() -> None:
    counted: list[type[ChatError] | None] = []
    async with connected(requested=counted.append) as (discord, rest):
        discord.rate_limit("POST", POST, retry_after=0.1, scope="shared")
        await rest.send(channel_id(discord.help), "hello", "n-1")
        discord.fail_next("GET", GET_ONE, status=500)
        with pytest.raises(ChatUnavailableError):
            await rest.message(channel_id(discord.help), MessageId("1"))
        assert counted == [None, ChatUnknownOutcomeError]


async def test_a_thread_hangs_on_its_message_and_is_named() -> None:
    async with connected() as (discord, rest):
        question = await discord.say(discord.alice, "how?")
        thread = await rest.start_thread(channel_id(discord.help), message_id(question), "how?")
        assert thread == question.id
        (made,) = discord.threads()
        assert (made.name, made.parent_id, made.auto_archive_duration) == ("how?", discord.help.id, 1440)


async def test_a_thread_that_is_there_already_is_as_good() -> None:
    async with connected() as (discord, rest):
        question = await discord.say(discord.alice, "how?")
        there = await discord.create_thread("theirs", author=discord.bob, message=question)
        assert await rest.start_thread(channel_id(discord.help), message_id(question), "ours") == there.id
        assert [thread.name for thread in discord.threads()] == ["theirs"]


async def test_no_thread_hangs_on_what_is_gone() -> None:
    async with connected() as (discord, rest):
        question = await discord.say(discord.alice, "how?")
        await discord.delete(question)
        with pytest.raises(ChatRefusedError, match="10008"):
            await rest.start_thread(channel_id(discord.help), message_id(question), "how?")
        discord.fail_next("POST", THREADS, status=503)
        with pytest.raises(ChatUnavailableError):
            await rest.start_thread(channel_id(discord.help), message_id(question), "how?")


# Finding A9.
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, 40333, ChatUnavailableError),  # internal network error: blocked on its way
        (403, 40004, ChatUnavailableError),  # sending messages is temporarily disabled
        (400, 130000, ChatUnavailableError),  # overloaded
        (400, 200000, ChatRefusedError),  # blocked by automatic moderation
        (403, 50013, ChatRefusedError),
    ],
)
async def test_what_passes_by_itself_is_worth_asking_later(status: int, code: int, error: type[ChatError]) -> None:
    async with connected() as (discord, rest):
        question, place = await discord.say(discord.alice, "how?"), channel_id(discord.help)
        calls: list[tuple[str, str, Callable[[], Awaitable[object]]]] = [
            ("POST", POST, lambda: rest.send(place, "so", "n-1")),
            ("POST", THREADS, lambda: rest.start_thread(place, message_id(question), "how?")),
            ("GET", POST, lambda: rest.before(place, None, 10)),
        ]
        for method, route, call in calls:
            discord.fail_next(method, route, status=status, code=code, message="as the test asked")
            with pytest.raises(ChatError) as raised:
                await call()
            assert type(raised.value) is error
        assert discord.said_by_bot() == []


# Finding A9.
async def test_an_empty_thread_that_may_not_be_removed_is_archived() -> None:
    async with connected() as (discord, rest):
        question = await discord.say(discord.alice, "how?")
        thread = await rest.start_thread(channel_id(discord.help), message_id(question), "how?")
        discord.fail_next("DELETE", "/channels/{channel_id}", status=403, code=50013, message="Missing Permissions")
        await rest.remove_thread(thread)
        assert [there.archived for there in discord.threads()] == [True]
        await rest.remove_thread(thread)
        assert discord.threads() == []


async def test_buttons_stand_under_a_message_in_rows_of_five() -> None:
    async with connected() as (discord, rest):
        up, down = Button(custom_id="intern:up:1", emoji="👍"), Button(custom_id="intern:down:1", label="No")
        await rest.send(channel_id(discord.help), "hello", "n-1", buttons=[up, down])
        await rest.send(channel_id(discord.help), "more", "n-2", buttons=[up] * 6)

        first, second = discord.messages(discord.help)
        (row,) = first.components
        assert row["components"] == [
            {"type": 2, "style": 2, "custom_id": "intern:up:1", "emoji": {"name": "👍"}},
            {"type": 2, "style": 2, "custom_id": "intern:down:1", "label": "No"},
        ]
        assert [len(row["components"]) for row in second.components] == [5, 1]


async def test_the_role_that_a_message_may_mention_is_all_that_it_pings() -> None:
    async with connected() as (discord, rest):
        other = discord.world.new_role("Other")
        text = f"@everyone <@{discord.alice.id}> <@&{other.id}> <@&{discord.team_role.id}>"
        await rest.send(channel_id(discord.help), text, "n-1", mention_role=RoleId(discord.team_role.id))
        await rest.send(channel_id(discord.help), "nobody", "n-2", mention_role=RoleId(discord.team_role.id))

        first, second = discord.messages(discord.help)
        assert (first.mentions, first.mention_roles, first.mention_everyone) == ([], [discord.team_role.id], False)
        assert second.mention_roles == []


async def test_a_message_of_ours_is_rewritten_without_buttons_and_pings() -> None:
    async with connected() as (discord, rest):
        up = Button(custom_id="intern:up:1", emoji="👍")
        sent = await rest.send(channel_id(discord.help), "hello", "n-1", buttons=[up])
        await rest.rewrite(channel_id(discord.help), sent, f"taken back <@{discord.alice.id}>")
        (message,) = discord.messages(discord.help)
        assert (message.content, message.components) == (f"taken back <@{discord.alice.id}>", [])
        assert message.mentions == []
        question = await discord.say(discord.alice, "how?")
        with pytest.raises(ChatRefusedError, match="50005"):
            await rest.rewrite(channel_id(discord.help), message_id(question), "not ours")
        discord.fail_next("PATCH", "/channels/{channel_id}/messages/{message_id}", status=503)
        with pytest.raises(ChatUnavailableError):
            await rest.rewrite(channel_id(discord.help), sent, "again")


async def test_typing_shows() -> None:
    async with connected() as (discord, rest):
        await rest.typing(channel_id(discord.help))
        (request,) = discord.requests_to("POST", "/channels/{channel_id}/typing")
        assert (request.path.split("/")[2], request.status) == (discord.help.id, 204)
        with pytest.raises(ChatRefusedError):
            await rest.typing(ChannelId("5"))


# Reading


async def test_pages_are_oldest_first_and_leave_out_discords_own_words() -> None:
    async with connected() as (discord, rest):
        one, two, three = [await discord.say(discord.alice, text) for text in ("one", "two", "three")]
        await discord.create_thread("t", author=discord.bob, channel=discord.help)  # leaves a line of Discord's
        help_ = channel_id(discord.help)

        assert [m.text for m in await rest.before(help_, None, 10)] == ["one", "two", "three"]
        assert [m.text for m in await rest.before(help_, message_id(three), 10)] == ["one", "two"]
        assert [m.text for m in await rest.before(help_, message_id(three), 1)] == ["two"]
        assert [m.text for m in await rest.after(help_, message_id(one), 10)] == ["two", "three"]
        assert [m.text for m in await rest.after(help_, message_id(one), 1)] == ["two"]
        assert list(await rest.after(help_, message_id(three), 1000)) == []
        found = await rest.message(help_, message_id(two))
        assert found is not None
        assert (found.text, found.guild_id, found.author.name) == ("two", discord.guild.id, "alice")


async def test_what_is_deleted_unreadable_or_discords_own_is_none() -> None:
    async with connected() as (discord, rest):
        question = await discord.say(discord.alice, "how?")
        thread = await discord.create_thread("t", author=discord.bob, message=question)
        starter = discord.world.messages(thread.id)[0]
        help_ = channel_id(discord.help)

        assert await rest.message(channel_id(thread), message_id(starter)) is None
        await discord.delete(question)
        assert await rest.message(help_, message_id(question)) is None
        assert await rest.message(ChannelId("5"), MessageId("6")) is None
        discord.fail_next("GET", GET_ONE, status=403, code=50001)
        assert await rest.message(help_, message_id(question)) is None


async def test_not_being_able_to_look_is_not_finding_nothing() -> None:
    async with connected() as (discord, rest):
        question = await discord.say(discord.alice, "how?")
        discord.fail_next("GET", GET_ONE, status=500)
        with pytest.raises(ChatUnavailableError, match="500"):
            await rest.message(channel_id(discord.help), message_id(question))
        with pytest.raises(ChatNotFoundError, match="10003"):
            await rest.before(ChannelId("5"), None, 10)
        discord.fail_next("GET", POST, status=403, code=50001)
        with pytest.raises(ChatRefusedError) as refused:
            await rest.before(channel_id(discord.help), None, 10)
        assert not isinstance(refused.value, ChatNotFoundError)


async def test_junk_instead_of_a_page_is_unavailable() -> None:
    async with connected(check=False) as (discord, rest):
        discord.fail_next("GET", POST, status=200)
        with pytest.raises(ChatUnavailableError, match="not what Discord documents"):
            await rest.before(channel_id(discord.help), None, 10)


async def test_one_unreadable_message_does_not_cost_the_page() -> None:
    async with connected(check=False) as (discord, rest):
        await discord.say(discord.alice, "one")
        broken = await discord.say(discord.alice, "two")
        broken.author = User(id="no id", username="alice")
        assert [m.text for m in await rest.before(channel_id(discord.help), None, 10)] == ["one"]


async def test_channels_threads_and_posts_are_told_apart_and_asked_for_once() -> None:
    async with connected() as (discord, rest):
        question = await discord.say(discord.alice, "how?")
        thread = await discord.create_thread("t", author=discord.alice, message=question)
        post = await discord.create_thread("p", author=discord.alice, channel=discord.forum, text="how?")

        for _ in range(2):
            assert (await rest.channel(channel_id(discord.help))).kind == "channel"
            found = await rest.channel(channel_id(thread))
            assert (found.kind, found.parent_id, found.name) == ("thread", discord.help.id, "t")
            assert (await rest.channel(channel_id(post))).kind == "post"

        asked = [request.path for request in discord.requests_to("GET", "/channels/{channel_id}")]
        assert len(asked) == len(set(asked)) == 4  # with the forum that the post hangs in
        with pytest.raises(ChatRefusedError, match="look up channel 5"):
            await rest.channel(ChannelId("5"))


async def test_what_the_gateway_told_is_not_asked_for() -> None:
    cache = GatewayCache()
    cache.apply(ChannelsUpdated((RawChannel(id=ChannelId("7"), type=0, guild_id=GuildId("1"), name="told"),)))
    async with connected(cache=cache) as (discord, rest):
        assert (await rest.channel(ChannelId("7"))).name == "told"
        assert discord.requests == []


async def test_the_team_is_known_by_roles_which_are_looked_up_once() -> None:
    async with connected() as (discord, rest):
        gone = discord.world.new_user("gone")
        for author in (discord.alice, discord.tess, discord.tess, gone, discord.bot):
            await discord.say(author, "hi")

        await rest.before(channel_id(discord.help), None, 10)
        page = await rest.before(channel_id(discord.help), None, 10)

        assert [(m.author.name, m.author.type) for m in page] == [
            ("alice", "community_user"),
            ("tess", "team_member"),
            ("tess", "team_member"),
            ("gone", "community_user"),
            ("intern", "bot"),
        ]
        assert page[-1].author.is_self
        asked = [request.path.rsplit("/", 1)[1] for request in discord.requests_to("GET", MEMBER)]
        assert sorted(asked) == sorted([discord.alice.id, discord.tess.id, gone.id])


async def test_a_team_by_names_needs_no_look_up() -> None:
    async with connected() as (discord, _):
        only_names = make_options(discord, team_role_ids=(), team_member_ids=(UserId(discord.bob.id),))
        async with HikariRest(only_names) as rest:
            await discord.say(discord.bob, "hi")
            await discord.say(discord.tess, "hi")
            page = await rest.before(channel_id(discord.help), None, 10)
            assert [m.author.type for m in page] == ["team_member", "community_user"]
            assert discord.requests_to("GET", MEMBER) == []


async def test_a_member_who_cannot_be_looked_up_fails_the_reading() -> None:
    async with connected() as (discord, rest):
        await discord.say(discord.tess, "hi")
        discord.fail_next("GET", MEMBER, status=500)
        with pytest.raises(ChatUnavailableError, match="look up member"):
            await rest.before(channel_id(discord.help), None, 10)


@pytest.mark.parametrize("strange", ["", "../../users/@me", "١٢", "5 "])
async def test_an_id_that_is_none_never_reaches_a_path(strange: str) -> None:
    async with connected() as (discord, rest):
        with pytest.raises(ChatRefusedError, match="no channel id"):
            await rest.channel(ChannelId(strange))
        with pytest.raises(ChatRefusedError, match="no message id"):
            await rest.after(channel_id(discord.help), MessageId(strange), 5)
        assert discord.requests == []


async def test_a_capture_that_waits_loses_no_message_that_may_not_be_read_for_a_while() -> None:
    async def everywhere(_: ChannelId) -> bool:
        return True

    async with connected() as (discord, rest):
        said = await discord.say(discord.alice, "look")
        look_up = partial(fetch_admitted_message, rest.look_up, everywhere)
        discord.fail_next("GET", GET_ONE, status=403, code=50001)
        with pytest.raises(ChatRefusedError):
            await look_up(channel_id(discord.help), message_id(said))
        await discord.delete(said)
        assert await look_up(channel_id(discord.help), message_id(said)) is None


async def test_only_where_discord_knows_no_such_message_there_is_none() -> None:
    async with connected() as (discord, rest):
        help_ = channel_id(discord.help)
        said = await discord.say(discord.alice, "how?")
        thread = await discord.create_thread("t", author=discord.alice, message=said)
        found = await rest.look_up(help_, message_id(said))
        assert found is not None
        assert found.text == "how?"
        await discord.delete(said)
        assert await rest.look_up(help_, message_id(said)) is None
        assert await rest.look_up(channel_id(thread), message_id(said)) is None

        discord.fail_next("GET", GET_ONE, status=403, code=50001)
        discord.fail_next("GET", GET_ONE, status=404, code=10003, message="Unknown Channel")
        discord.fail_next("GET", GET_ONE, status=404, code=0, message="a proxy's")
        for _ in range(3):
            with pytest.raises(ChatRefusedError):
                await rest.look_up(help_, message_id(said))
        for strange in (ChannelId("5"), ChannelId("x")):
            with pytest.raises(ChatRefusedError):
                await rest.look_up(strange, message_id(said))
        discord.fail_next("GET", GET_ONE, status=500)
        with pytest.raises(ChatUnavailableError):
            await rest.look_up(help_, message_id(said))


# Catching up


async def test_a_page_tells_how_far_it_reaches_though_discords_own_words_are_left_out() -> None:
    async with connected() as (discord, rest):
        help_ = channel_id(discord.help)
        start = message_id(await discord.say(discord.alice, "read before"))
        assert await rest.page(help_, start, 2) == Page(messages=(), read_to=start, more=False)

        for n in range(2):
            await discord.create_thread(f"t{n}", author=discord.bob, channel=discord.help)
        first = await rest.page(help_, start, 2)
        said = await discord.say(discord.alice, "new")
        second = await rest.page(help_, first.read_to, 2)

        assert (first.messages, first.more) == ((), True)
        assert int(start) < int(first.read_to) < int(said.id)
        assert ([m.text for m in second.messages], second.read_to, second.more) == (["new"], said.id, False)


async def test_a_message_that_cannot_be_read_is_passed_by() -> None:
    async with connected(check=False) as (discord, rest):
        await discord.say(discord.alice, "one")
        broken = await discord.say(discord.alice, "two")
        broken.author = User(id="no id", username="alice")
        page = await rest.page(channel_id(discord.help), MessageId("0"), 100)
        assert ([m.text for m in page.messages], page.read_to) == (["one"], broken.id)


async def test_a_page_that_cannot_be_had_is_not_an_empty_one() -> None:
    async with connected() as (discord, rest):
        discord.fail_next("GET", POST, status=500)
        with pytest.raises(ChatUnavailableError):
            await rest.page(channel_id(discord.help), MessageId("0"), 100)


ARCHIVED = "/channels/{channel_id}/threads/archived/public"


async def test_archived_threads_with_something_new_are_found() -> None:
    now = datetime.now(UTC)
    async with connected() as (discord, rest):
        mark = position_at(now - timedelta(hours=2)).id
        threads: dict[str, Channel] = {}
        for name, hours in [("old", 3), ("new", 1), ("woken", 3)]:
            at = now - timedelta(hours=hours)
            starter = await discord.say(discord.alice, name, at=at)
            threads[name] = await discord.create_thread(name, author=discord.bob, message=starter, at=at)
        last = await discord.say(discord.tess, "so", channel=threads["woken"], at=now - timedelta(hours=1))
        await discord.create_thread("active", author=discord.alice, channel=discord.help)
        for thread in threads.values():
            await discord.archive(thread)

        found = await rest.list_archived_threads(channel_id(discord.help), MessageId(mark))

        assert {seen.channel.name: seen.last_message_id for seen in found} == {
            "new": threads["new"].last_message_id,
            "woken": last.id,
        }
        assert {(seen.channel.kind, seen.channel.parent_id) for seen in found} == {("thread", discord.help.id)}
        # Known channels are not fetched.
        asked = len(discord.requests)
        await rest.channel(found[0].channel.id)
        assert len(discord.requests) == asked


async def test_archived_posts_are_found_and_known_as_posts() -> None:
    async with connected() as (discord, rest):
        post = await discord.create_thread("p", author=discord.alice, channel=discord.forum, text="how?")
        await discord.archive(post)
        (seen,) = await rest.list_archived_threads(channel_id(discord.forum), MessageId("0"))
        assert (seen.channel.kind, seen.last_message_id) == ("post", post.id)


async def test_archived_threads_are_read_page_by_page_and_no_further_than_needed() -> None:
    now = datetime.now(UTC)
    async with connected(check=False) as (discord, rest):
        for n in range(250):
            thread = discord.acts.start_bare_thread(discord.help, f"t{n}", discord.bob)
            thread.archived, thread.archived_at = True, now - timedelta(hours=n)
            thread.last_message_id = position_at(thread.archived_at - timedelta(minutes=1)).id

        everything = await rest.list_archived_threads(channel_id(discord.help), MessageId("0"))
        assert len({seen.channel.id for seen in everything}) == 250
        assert len(discord.requests_to("GET", ARCHIVED)) == 3

        recent = await rest.list_archived_threads(channel_id(discord.help), position_at(now - timedelta(hours=120)).id)
        assert len(recent) == 120
        assert len(discord.requests_to("GET", ARCHIVED)) == 5


async def test_archived_threads_that_cannot_be_listed_are_not_none() -> None:
    async with connected() as (discord, rest):
        discord.fail_next("GET", ARCHIVED, status=500)
        with pytest.raises(ChatUnavailableError, match="list archived threads"):
            await rest.list_archived_threads(channel_id(discord.help), MessageId("0"))
        discord.fail_next("GET", ARCHIVED, status=403, code=50001)
        with pytest.raises(ChatRefusedError):
            await rest.list_archived_threads(channel_id(discord.help), MessageId("0"))


async def test_a_place_where_no_thread_can_hang_is_not_asked() -> None:
    cache = GatewayCache()
    cache.apply(ChannelsUpdated((RawChannel(id=ChannelId("7"), type=2, guild_id=GuildId("1"), name="voice"),)))
    async with connected(cache=cache) as (discord, rest):
        assert list(await rest.list_archived_threads(ChannelId("7"), MessageId("0"))) == []
        assert discord.requests == []


# Giving up


async def test_a_waiter_that_gives_up_in_the_rate_limit_queue_breaks_nothing() -> None:
    async with connected() as (discord, rest):
        discord.bucket("POST", POST, limit=2, per=2.0)
        help_ = channel_id(discord.help)
        for n in "12":
            await rest.send(help_, n, n)
        async with running(rest.send, help_, "3", "3"):
            await wait_all_tasks_blocked()
        assert len(discord.requests_to("POST", POST)) == 2

        await rest.send(help_, "4", "4")

        assert [message.content for message in discord.messages(discord.help)] == ["1", "2", "3", "4"]


async def test_a_call_outlives_its_waiter() -> None:
    async with connected() as (discord, rest):
        held = discord.hold_next("POST", POST)
        async with running(rest.send, channel_id(discord.help), "hello", "n-1"):
            await held.arrived.wait()
        assert discord.messages(discord.help) == []
        held.release()
        await discord.wait_for_message(discord.help)


async def test_leaving_lets_the_last_call_finish() -> None:
    async with DiscordDouble() as discord:
        before = asyncio.all_tasks()
        async with HikariRest(make_options(discord)) as rest:
            held = discord.hold_next("POST", POST, when="after")
            async with running(rest.send, channel_id(discord.help), "hello", "n-1"):
                await held.arrived.wait()
            asyncio.get_running_loop().call_soon(held.release)
        assert discord.requests_to("POST", POST)[0].status == 200
        assert not [task for task in asyncio.all_tasks() - before if task.get_name().startswith("discord: ")]
        with pytest.raises(ChatUnavailableError, match="closed"):
            await rest.send(channel_id(discord.help), "hello", "n-2")


async def test_leaving_waits_for_no_reading() -> None:
    async with DiscordDouble() as discord:
        async with HikariRest(make_options(discord)) as rest, create_task_group() as tg:
            held = discord.hold_next("GET", "/channels/{channel_id}")
            tg.start_soon(rest.channel, channel_id(discord.help))
            await held.arrived.wait()
            tg.cancel_scope.cancel()
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("discord: ")]


async def test_a_waiter_is_told_when_everything_closes_under_it() -> None:
    told: list[ChatError] = []
    # REST gives its last calls three seconds
    async with DiscordDouble() as discord:
        rest = await HikariRest(make_options(discord)).__aenter__()
        discord.hold_next("POST", POST)

        async def wait() -> None:
            try:
                await rest.send(channel_id(discord.help), "hello", "n-1")
            except ChatError as error:
                told.append(error)

        async with finishing(wait):
            await discord.until(lambda: discord.requests_to("POST", POST))
            await rest.__aexit__(None, None, None)
    assert [type(error) for error in told] == [ChatUnknownOutcomeError]


# Secrets


async def test_a_token_that_discord_refuses_is_for_somebody_to_see_to_and_is_not_repeated() -> None:
    async with connected() as (discord, _):
        wrong = discord.token[:-5] + "wrong"
        async with HikariRest(make_options(discord, token=Secret(wrong))) as rest:
            with pytest.raises(ChatUnauthorizedError, match=r"discord\.token") as refused:
                await rest.channel(channel_id(discord.help))
            assert wrong not in str(refused.value)
            # A message or page that could not be read is neither deleted nor empty.
            with pytest.raises(ChatUnavailableError):
                await rest.message(channel_id(discord.help), MessageId("6"))


@pytest.mark.parametrize("token", ["", "s3cret", "s3cret.s3cret.s3cret", "Bot MTIz.x.y", "№.x.y"])
def test_what_is_no_token_is_a_config_error_that_does_not_repeat_it(token: str) -> None:
    with pytest.raises(ConfigError, match=r"discord\.token") as refused:
        HikariRest(DiscordOptions(token=Secret(token), guild_ids=(GuildId("1"),)))
    assert not token or token not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


# Servers that speak as Discord does

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJpZCI6IjEwIn0.c2lnbmF0dXJl"


async def test_whose_a_token_is_that_does_not_say_so_is_asked_once() -> None:
    async with connected() as (discord, _):
        discord.world.token = JWT
        async with HikariRest(make_options(discord, token=Secret(JWT))) as rest:
            await rest.send(channel_id(discord.help), "mine", "n-1")
            for _ in range(2):
                (message,) = await rest.before(channel_id(discord.help), None, 5)
                assert (message.author.is_self, message.author.type) == (True, "bot")
            assert len(discord.requests_to("GET", "/users/@me")) == 1


async def test_while_nobody_can_say_whose_the_token_is_nothing_is_read_as_somebody_else_s() -> None:
    async with connected() as (discord, _):
        discord.world.token = JWT
        async with HikariRest(make_options(discord, token=Secret(JWT)), max_retries=0) as rest:
            sent = await rest.send(channel_id(discord.help), "mine", "n-1")
            discord.fail_next("GET", "/users/@me", status=500)
            with pytest.raises(ChatUnavailableError, match="ask who the bot is"):
                await rest.message(channel_id(discord.help), sent)


async def test_rate_limits_that_are_told_in_milliseconds_are_waited_for_in_seconds() -> None:
    async with connected() as (discord, rest):
        discord.bucket("POST", POST, limit=2, per=1.0, unit=0.001)
        for n in range(5):
            await rest.send(channel_id(discord.help), str(n), f"n-{n}")
        assert len(discord.messages(discord.help)) == 5


@pytest.mark.parametrize(
    ("reset_at", "reset_after", "seconds"),
    [
        (1_700_000_002.5, 2.5, (1_700_000_002.5, 2.5)),
        (1_700_000_002_500.0, 2_500.0, (1_700_000_002.5, 2.5)),
        (1_700_000_002_500.0, 2.5, (1_700_000_002.5, 2.5)),
        (1_700_000_002.5, 2_500.0, (1_700_000_002.5, 2.5)),
        (1_700_000_600.0, 600.0, (1_700_000_600.0, 600.0)),
        (1_699_999_972.5, 2.5, (1_699_999_972.5, 2.5)),  # our clock is half a minute fast
    ],
)
def test_the_unit_of_rate_limits_is_known_by_their_size(
    reset_at: float, reset_after: float, seconds: tuple[float, float]
) -> None:
    assert convert_to_seconds(reset_at, reset_after, now=1_700_000_000.0) == pytest.approx(seconds)


async def test_a_thread_that_is_there_is_found_where_the_server_has_no_code_for_that() -> None:
    async with connected() as (discord, rest):
        message = await discord.say(discord.alice, "how?")
        await discord.create_thread("how?", author=discord.alice, message=message)
        discord.fail_next("POST", THREADS, status=400, code=50035)
        assert await rest.start_thread(channel_id(discord.help), message_id(message), "how?") == message.id

        other = await discord.say(discord.alice, "and how?")
        discord.fail_next("POST", THREADS, status=400, code=50035)
        with pytest.raises(ChatRefusedError, match="50035"):
            await rest.start_thread(channel_id(discord.help), message_id(other), "how?")


async def test_where_nothing_says_whether_there_are_more_archived_threads_the_next_page_does() -> None:
    cache = GatewayCache()
    async with connected(check=False, cache=cache) as (discord, rest):
        threads = [await discord.create_thread(f"t{n}", author=discord.bob, channel=discord.help) for n in range(3)]
        for n, thread in enumerate(threads):
            thread.archived, thread.archived_at = True, discord.world.now() - timedelta(hours=n)
            thread.last_message_id = position_at(thread.archived_at).id
        asked = rest.send_request

        async def ask(what: str, route: Any, **more: Any) -> Any:
            page: Any = await asked(what, route, **more)
            if "archived" in what:
                query = more["query"]
                del page["has_more"]
                page["threads"] = page["threads"][:2] if "before" not in query else page["threads"][:1]
            return page

        rest.send_request = ask  # type: ignore[method-assign]
        found = await rest.list_archived_threads(channel_id(discord.help), MessageId("0"))
        assert {seen.channel.id for seen in found} == {thread.id for thread in threads}
