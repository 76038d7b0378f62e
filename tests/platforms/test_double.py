"""The double keeps Discord's rules, so that what passes against it may be believed."""

from __future__ import annotations

import asyncio
import json
import sys
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import hikari
import pytest
from hikari.impl.config import CacheSettings

from tests.double import openapi
from tests.double.discord import DiscordDouble
from tests.double.world import THREAD_STARTER, Json
from tests.worlds.actors import finishing

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


GUILDS_AND_MESSAGES = 1 << 0 | 1 << 9
MESSAGE_CONTENT = 1 << 15

needs_openapi = pytest.mark.skipif(not openapi.SPEC_FILE.exists(), reason="the OpenAPI file is not there")


pytestmark = pytest.mark.on_asyncio  # only asyncio: aiohttp and hikari know nothing else


@pytest.fixture
async def discord() -> AsyncGenerator[DiscordDouble]:
    async with DiscordDouble() as double:
        yield double


@pytest.fixture
async def http() -> AsyncGenerator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


class Client:
    """A gateway client that does nothing by itself."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, compress: str) -> None:
        self.ws = ws
        inflate: dict[str, Callable[[bytes], bytes]] = {
            "": bytes,
            "zlib-stream": zlib.decompressobj().decompress,
            "zstd-stream": zstd.ZstdDecompressor().decompress,
        }
        self._inflate = inflate[compress]
        self._binary = bool(compress)
        self.seq = 0

    async def send(self, op: int, data: object) -> None:
        await self.ws.send_str(json.dumps({"op": op, "d": data}))

    async def receive(self) -> Json:
        frame = await self.ws.receive_bytes() if self._binary else (await self.ws.receive_str()).encode()
        payload: Json = json.loads(self._inflate(frame))
        self.seq = payload.get("s") or self.seq
        return payload

    async def event(self, name: str) -> Any:
        """Read on to an event, and give its data."""
        while True:
            payload = await self.receive()
            if payload.get("t") == name:
                return payload["d"]

    async def op(self, op: int) -> Json:
        while True:
            payload = await self.receive()
            if payload["op"] == op:
                return payload

    async def close_code(self) -> int | None:
        """Read on to the end, and give the code that the double closed with."""
        while not self.ws.closed:
            await self.ws.receive()
        return self.ws.close_code


@asynccontextmanager
async def connected(http: aiohttp.ClientSession, url: str, *, compress: str = "") -> AsyncGenerator[Client]:
    query = {"v": "10", "encoding": "json"} | ({"compress": compress} if compress else {})
    async with http.ws_connect(url, params=query) as ws:
        yield Client(ws, compress)


async def identified(
    discord: DiscordDouble, client: Client, *, intents: int = GUILDS_AND_MESSAGES | MESSAGE_CONTENT
) -> Json:
    """Identify, read to READY, and give that."""
    await client.send(2, {"token": discord.token, "intents": intents, "properties": {}})
    ready: Json = await client.event("READY")
    return ready


async def call(
    http: aiohttp.ClientSession, discord: DiscordDouble, method: str, path: str, body: object = None
) -> tuple[int, Any, Any]:
    """Make a REST request, and give status, body and headers of the reply."""
    headers = {"Authorization": f"Bot {discord.token}"}
    async with http.request(method, discord.rest_url + path, json=body, headers=headers) as reply:
        text = await reply.text()
        return reply.status, json.loads(text) if text else None, reply.headers


@asynccontextmanager
async def running_bot(discord: DiscordDouble) -> AsyncGenerator[hikari.GatewayBot]:
    bot = hikari.GatewayBot(
        discord.token,
        rest_url=discord.rest_url,
        intents=hikari.Intents.GUILDS | hikari.Intents.GUILD_MESSAGES | hikari.Intents.MESSAGE_CONTENT,
        banner=None,
        logs=None,
        suppress_optimization_warning=True,
        auto_chunk_members=False,
        cache_settings=CacheSettings(components=hikari.api.CacheComponents.NONE),
    )
    try:
        await bot.start(check_for_updates=False)
        yield bot
    finally:
        await bot.close()


# A real client


async def test_hikari_hears_a_question_over_zstd_and_answers_in_its_thread(discord: DiscordDouble) -> None:
    async with running_bot(discord) as bot:
        heard: asyncio.Queue[hikari.GuildMessageCreateEvent] = asyncio.Queue()

        async def hear(event: hikari.GuildMessageCreateEvent) -> None:
            heard.put_nowait(event)

        bot.subscribe(hikari.GuildMessageCreateEvent, hear)
        question = await discord.say(discord.alice, "How do I install it?")
        event = await heard.get()
        assert event.content == "How do I install it?"
        assert event.member is not None

        thread = await bot.rest.create_message_thread(event.channel_id, event.message_id, "Installing")
        await bot.rest.create_message(thread, "Like so.", flags=hikari.MessageFlag.SUPPRESS_EMBEDS)

        answer = await discord.wait_for_answer(question)
        assert answer.content == "Like so."
        assert thread.id == event.message_id
        history = await bot.rest.fetch_messages(thread.id).limit(5)
        assert [message.content for message in history] == ["Like so.", None]
    assert [socket.compress for socket in discord.gateway.connections] == ["zstd-stream"]


async def test_hikari_resumes_after_op_7_at_the_resume_url_and_misses_nothing(discord: DiscordDouble) -> None:
    async with running_bot(discord) as bot:
        heard: list[str | None] = []

        async def hear(event: hikari.GuildMessageCreateEvent) -> None:
            heard.append(event.content)

        bot.subscribe(hikari.GuildMessageCreateEvent, hear)
        await discord.reconnect()
        await discord.until(lambda: not discord.gateway.ready)
        await discord.say(discord.alice, "said while nobody listened")
        await bot.wait_for(hikari.GuildMessageCreateEvent, timeout=10)
    assert heard == ["said while nobody listened"]
    assert len(discord.gateway.identifies) == 1
    assert [socket.path for socket in discord.gateway.connections] == ["/gateway", "/gateway/resume"]


async def test_hikari_makes_one_message_when_the_reply_to_a_post_with_a_nonce_is_lost(discord: DiscordDouble) -> None:
    discord.fail_next("POST", "/channels/*/messages", when="after", drop=True)
    async with running_bot(discord) as bot:
        await bot.rest.create_message(int(discord.help.id), "once", nonce="n1")
    assert [message.content for message in discord.said_by_bot()] == ["once"]
    statuses = [request.status for request in discord.requests_to("POST", "/channels/*/messages")]
    assert statuses == [None, 200]


# The gateway


@pytest.mark.parametrize("compress", ["", "zlib-stream", "zstd-stream"])
async def test_every_transport_carries_the_same_numbered_events(
    discord: DiscordDouble, http: aiohttp.ClientSession, compress: str
) -> None:
    async with connected(http, discord.gateway_url, compress=compress) as client:
        assert (await client.op(10))["d"]["heartbeat_interval"] == 41250
        ready = await identified(discord, client)
        assert ready["user"]["id"] == discord.bot_id
        guild = await client.event("GUILD_CREATE")
        assert {channel["name"] for channel in guild["channels"]} == {"help", "general", "forum"}

        await discord.say(discord.tess, "é" * 1500)
        message = await client.event("MESSAGE_CREATE")
        assert message["content"] == "é" * 1500
        assert message["member"]["roles"] == [discord.team_role.id]
        assert client.seq == 3


async def test_a_heartbeat_is_recorded_and_acknowledged(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    discord.gateway.heartbeat_interval = 1.5
    async with connected(http, discord.gateway_url) as client:
        assert (await client.op(10))["d"]["heartbeat_interval"] == 1500
        await client.send(1, None)
        await client.op(11)
        await identified(discord, client)
        await client.send(1, client.seq)
        await client.op(11)
    assert [beat.seq for beat in discord.gateway.heartbeats] == [None, 1]


@pytest.mark.parametrize("code", [4000, 1012, None])
async def test_a_session_outlives_its_socket_and_resume_replays_what_was_missed(
    discord: DiscordDouble, http: aiohttp.ClientSession, code: int | None
) -> None:
    async with connected(http, discord.gateway_url) as client:
        ready = await identified(discord, client)
        await client.event("GUILD_CREATE")
        if code is None:
            discord.drop_gateway()
        else:
            await discord.close_gateway(code)
        assert await client.close_code() in {code, 1006}
        seq = client.seq
    await discord.until(lambda: not discord.gateway.connected)
    await discord.say(discord.alice, "missed one")
    await discord.say(discord.bob, "missed two")
    async with connected(http, ready["resume_gateway_url"]) as client:
        await client.send(6, {"token": discord.token, "session_id": ready["session_id"], "seq": seq})
        assert [(await client.event("MESSAGE_CREATE"))["content"] for _ in range(2)] == ["missed one", "missed two"]
        await client.event("RESUMED")
        await discord.say(discord.alice, "and on it goes")
        assert (await client.event("MESSAGE_CREATE"))["content"] == "and on it goes"


async def test_op_9_without_resume_loses_what_was_missed(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    async with connected(http, discord.gateway_url) as client:
        ready = await identified(discord, client)
        await discord.invalidate(resumable=False)
        assert (await client.op(9))["d"] is False
        seq = client.seq
        await client.ws.close(code=3000)  # the client does not end the session; the double has done so
    await discord.say(discord.alice, "nobody will hear this")
    async with connected(http, discord.gateway_url) as client:
        await client.send(6, {"token": discord.token, "session_id": ready["session_id"], "seq": seq})
        assert (await client.op(9))["d"] is False
        await identified(discord, client)
        await client.event("GUILD_CREATE")
        await discord.say(discord.alice, "but this")
        assert (await client.event("MESSAGE_CREATE"))["content"] == "but this"


async def test_op_9_with_resume_keeps_the_session(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    async with connected(http, discord.gateway_url) as client:
        ready = await identified(discord, client)
        await discord.invalidate(resumable=True)
        assert (await client.op(9))["d"] is True
        await client.ws.close(code=3000)
    await discord.until(lambda: not discord.gateway.connected)
    assert ready["session_id"] in discord.gateway.sessions


@pytest.mark.parametrize("code", [4004, 4014])
async def test_identify_can_be_refused_with_a_code(
    discord: DiscordDouble, http: aiohttp.ClientSession, code: int
) -> None:
    discord.gateway.refuse_identify = code
    async with connected(http, discord.gateway_url) as client:
        await client.send(2, {"token": discord.token, "intents": 0})
        assert await client.close_code() == code


async def test_a_wrong_token_opens_neither_door(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    async with connected(http, discord.gateway_url) as client:
        await client.send(2, {"token": "wrong", "intents": 0})
        assert await client.close_code() == 4004
    async with http.get(discord.rest_url + "/users/@me", headers={"Authorization": "Bot wrong"}) as reply:
        assert reply.status == 401


async def test_closing_with_1000_ends_the_session(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    async with connected(http, discord.gateway_url) as client:
        await identified(discord, client)
        assert discord.gateway.sessions
        await client.ws.close(code=1000)
    await discord.until(lambda: not discord.gateway.connected)
    assert not discord.gateway.sessions


async def test_content_is_empty_without_its_intent_but_for_mentions_of_the_bot(
    discord: DiscordDouble, http: aiohttp.ClientSession
) -> None:
    async with connected(http, discord.gateway_url) as client:
        await identified(discord, client, intents=GUILDS_AND_MESSAGES)
        await discord.say(discord.alice, "for the others")
        await discord.say(discord.alice, f"{discord.bot.mention} for you")
        heard = [(await client.event("MESSAGE_CREATE"))["content"] for _ in range(2)]
    assert heard == ["", f"<@{discord.bot_id}> for you"]


async def test_events_come_only_with_their_intents(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    async with connected(http, discord.gateway_url) as client:
        await identified(discord, client, intents=1 << 9)
        message = await discord.say(discord.alice, "hello")
        await discord.react(discord.bob, message, "👍")
        await discord.create_thread("a thread", author=discord.bob, message=message)
        names = [(await client.receive())["t"] for _ in range(3)]
    assert names == ["MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_CREATE"]


# REST


async def test_a_thread_has_the_id_of_its_message_and_is_told_of_in_order(
    discord: DiscordDouble, http: aiohttp.ClientSession
) -> None:
    async with connected(http, discord.gateway_url) as client:
        await identified(discord, client)
        await client.event("GUILD_CREATE")
        question = await discord.say(discord.alice, "why?")
        path = f"/channels/{discord.help.id}/messages/{question.id}/threads"
        status, thread, _ = await call(http, discord, "POST", path, {"name": "why"})
        assert (status, thread["id"], thread["parent_id"]) == (201, question.id, discord.help.id)

        status, error, _ = await call(http, discord, "POST", path, {"name": "why"})
        assert (status, error["code"]) == (400, 160004)

        events = [await client.receive() for _ in range(4)]
    assert [event["t"] for event in events] == ["MESSAGE_CREATE", "THREAD_CREATE", "MESSAGE_UPDATE", "MESSAGE_CREATE"]
    update, starter = events[2]["d"], events[3]["d"]
    assert (update["content"], update["edited_timestamp"], update["thread"]["id"]) == ("why?", None, question.id)
    assert (starter["type"], starter["content"]) == (THREAD_STARTER, "")
    assert starter["message_reference"]["message_id"] == question.id


async def test_a_forum_post_starts_with_a_message_of_its_own_id(discord: DiscordDouble) -> None:
    post = await discord.create_thread("It fails", author=discord.bob, text="with an error")
    assert [(m.id, m.content) for m in discord.messages(post)] == [(post.id, "with an error")]


async def test_pages_of_messages_go_by_before_after_and_around(
    discord: DiscordDouble, http: aiohttp.ClientSession
) -> None:
    said = [await discord.say(discord.alice, str(n)) for n in range(6)]

    async def page(query: str) -> list[str]:
        _, body, _ = await call(http, discord, "GET", f"/channels/{discord.help.id}/messages?{query}")
        return [message["content"] for message in body]

    assert await page("limit=2") == ["5", "4"]
    assert await page(f"limit=2&after={said[1].id}") == ["3", "2"]
    assert await page(f"limit=2&before={said[4].id}") == ["3", "2"]
    assert await page(f"limit=3&around={said[3].id}") == ["4", "3", "2"]
    assert await page(f"limit=2&after={said[5].id}") == []


async def test_a_reply_carries_what_it_answers_or_null_once_that_is_deleted(
    discord: DiscordDouble, http: aiohttp.ClientSession
) -> None:
    question = await discord.say(discord.alice, "why?")
    answer = await discord.say(discord.tess, "because", reply_to=question)
    path = f"/channels/{discord.help.id}/messages/{answer.id}"
    _, before, _ = await call(http, discord, "GET", path)
    await discord.delete(question)
    _, after, _ = await call(http, discord, "GET", path)
    status, error, _ = await call(http, discord, "GET", f"/channels/{discord.help.id}/messages/{question.id}")
    assert (before["type"], before["referenced_message"]["content"]) == (19, "why?")
    assert [user["username"] for user in before["mentions"]] == ["alice"]
    assert after["referenced_message"] is None
    assert (status, error["code"]) == (404, 10008)


async def test_allowed_mentions_decide_who_is_notified(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    text = f"{discord.alice.mention} @everyone"
    path = f"/channels/{discord.help.id}/messages"
    _, loud, _ = await call(http, discord, "POST", path, {"content": text})
    _, quiet, _ = await call(http, discord, "POST", path, {"content": text, "allowed_mentions": {"parse": []}})
    assert ([user["id"] for user in loud["mentions"]], loud["mention_everyone"]) == ([discord.alice.id], True)
    assert (quiet["mentions"], quiet["mention_everyone"]) == ([], False)


async def test_a_nonce_gives_the_earlier_message_until_it_is_forgotten(
    discord: DiscordDouble, http: aiohttp.ClientSession
) -> None:
    path = f"/channels/{discord.help.id}/messages"
    body = {"content": "once", "nonce": "n1", "enforce_nonce": True}
    ids = [(await call(http, discord, "POST", path, body))[1]["id"] for _ in range(2)]
    assert len(set(ids)) == 1
    discord.acts.forget_nonces()
    assert (await call(http, discord, "POST", path, body))[1]["id"] not in ids
    assert len(discord.said_by_bot()) == 2


async def test_a_command_keeps_its_id_when_the_commands_are_set_again(
    discord: DiscordDouble, http: aiohttp.ClientSession
) -> None:
    path = f"/applications/{discord.bot_id}/guilds/{discord.guild.id}/commands"
    _, first, _ = await call(http, discord, "PUT", path, [{"name": "Ask", "type": 3}])
    _, second, _ = await call(http, discord, "PUT", path, [{"name": "Ask", "type": 3}, {"name": "Teach", "type": 3}])
    _, listed, _ = await call(http, discord, "GET", path)
    assert first[0]["id"] == second[0]["id"]
    assert listed == second


# Deliberate failures


async def test_a_failure_before_the_work_leaves_nothing_and_one_after_it_leaves_the_message(
    discord: DiscordDouble, http: aiohttp.ClientSession
) -> None:
    path = f"/channels/{discord.help.id}/messages"
    discord.fail_next("POST", "/channels/{channel_id}/messages", status=403, code=50013)
    status, error, _ = await call(http, discord, "POST", path, {"content": "one"})
    assert (status, error["code"], discord.said_by_bot()) == (403, 50013, [])

    discord.fail_next("POST", "/channels/*/messages", status=502, when="after")
    status, _, _ = await call(http, discord, "POST", path, {"content": "two"})
    assert (status, [message.content for message in discord.said_by_bot()]) == (502, ["two"])

    status, _, _ = await call(http, discord, "POST", path, {"content": "three"})
    assert status == 200


async def test_a_dropped_connection_gives_no_answer(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    discord.fail_next("GET", "/users/@me", drop=True, times=2)  # aiohttp's client asks a GET again by itself
    with pytest.raises(aiohttp.ClientConnectionError):
        await call(http, discord, "GET", "/users/@me")
    request = await discord.wait_for_request("GET", "/users/@me")
    assert request.status is None


async def test_in_an_outage_nobody_gets_through(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    async with connected(http, discord.gateway_url) as client:
        await identified(discord, client)
        async with discord.outage():
            assert await client.close_code() == 1006
            with pytest.raises(aiohttp.ClientConnectionError):
                await call(http, discord, "GET", "/users/@me")
        assert (await call(http, discord, "GET", "/users/@me"))[0] == 200


async def test_a_held_request_waits_for_its_release(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    hold = discord.hold_next("POST", "/channels/*/messages")
    async with finishing(call, http, discord, "POST", f"/channels/{discord.help.id}/messages", {"content": "late"}):
        await hold.arrived.wait()
        assert discord.said_by_bot() == []
        hold.release()
    assert [message.content for message in discord.said_by_bot()] == ["late"]


async def test_a_bucket_tells_what_is_left_and_says_429_when_empty(
    discord: DiscordDouble, http: aiohttp.ClientSession
) -> None:
    discord.bucket("GET", "/channels/*/messages", limit=2, per=60)
    replies = [await call(http, discord, "GET", f"/channels/{discord.help.id}/messages") for _ in range(3)]
    other, _, _ = await call(http, discord, "GET", f"/channels/{discord.general.id}/messages")
    assert [status for status, _, _ in replies] == [200, 200, 429]
    assert [headers["X-RateLimit-Remaining"] for _, _, headers in replies] == ["1", "0", "0"]
    _, body, headers = replies[2]
    assert 0 < body["retry_after"] <= 60
    assert (headers["X-RateLimit-Limit"], headers["X-RateLimit-Scope"]) == ("2", "user")
    assert other == 200  # another channel is another bucket


@pytest.mark.parametrize("scope", ["shared", "global"])
async def test_a_planned_429_holds_until_its_time_for_its_scope(
    discord: DiscordDouble, http: aiohttp.ClientSession, scope: Any
) -> None:
    discord.rate_limit("GET", "/users/@me", retry_after=60, scope=scope)
    status, body, headers = await call(http, discord, "GET", "/users/@me")
    again, _, _ = await call(http, discord, "GET", "/users/@me")
    elsewhere, _, _ = await call(http, discord, "GET", f"/guilds/{discord.guild.id}")
    assert (status, body["global"], headers["X-RateLimit-Scope"]) == (429, scope == "global", scope)
    assert float(headers["Retry-After"]) == pytest.approx(60, abs=1)
    assert again == 429
    assert elsewhere == (429 if scope == "global" else 200)
    assert headers["Content-Type"] == "application/json"


# Requests that Discord would refuse


@needs_openapi
@pytest.mark.parametrize(
    ("body", "finding"),
    [
        ({"content": "hi", "allowed_mentions": {"parse": ["all"]}}, "$.allowed_mentions.parse[0]"),
        ({"content": "hi", "nonce": "n" * 26}, "$.nonce"),
        ({"content": "hi", "nounce": "n"}, "unknown field nounce"),
        (None, "has no body"),
    ],
)
async def test_a_bad_request_is_refused_and_fails_the_test(
    http: aiohttp.ClientSession, body: Json | None, finding: str
) -> None:
    double = DiscordDouble()
    discord = await double.__aenter__()
    status, error, _ = await call(http, discord, "POST", f"/channels/{discord.help.id}/messages", body)
    with pytest.raises(AssertionError, match="Discord would object") as caught:
        await double.__aexit__(None, None, None)
    assert (status, error["code"]) == (400, 50035)
    assert finding in str(caught.value)


async def test_content_over_2000_characters_is_a_violation(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    path = f"/channels/{discord.help.id}/messages"
    assert (await call(http, discord, "POST", path, {"content": "é" * 2000}))[0] == 200
    assert discord.violations == []
    assert (await call(http, discord, "POST", path, {"content": "é" * 2001}))[0] == 400
    assert len(discord.violations) == 1
    discord.violations.clear()


async def test_a_route_that_is_not_there_is_a_violation(discord: DiscordDouble, http: aiohttp.ClientSession) -> None:
    assert (await call(http, discord, "GET", "/channels/1/massages"))[0] in {400, 404}
    assert discord.violations
    discord.violations.clear()


@needs_openapi
@pytest.mark.parametrize(
    "path",
    [
        "/gateway/bot",
        "/users/@me",
        "/users/{alice}",
        "/applications/@me",
        "/guilds/{guild}",
        "/guilds/{guild}/channels",
        "/guilds/{guild}/roles",
        "/guilds/{guild}/members/{tess}",
        "/guilds/{guild}/threads/active",
        "/channels/{forum}",
        "/channels/{thread}",
        "/channels/{help}/messages",
        "/channels/{thread}/messages",
        "/channels/{help}/messages/{thread}",
        "/channels/{help}/messages/{thread}/reactions/👍",
        "/channels/{help}/threads/archived/public",
    ],
)
async def test_every_reply_fits_the_openapi_file(
    discord: DiscordDouble, http: aiohttp.ClientSession, path: str
) -> None:
    question = await discord.say(discord.alice, "why?")
    await discord.say(discord.tess, "because", reply_to=question)
    await discord.react(discord.bob, question, "👍")
    thread = await discord.create_thread("why", author=discord.bob, message=question)
    await discord.archive(await discord.create_thread("old", author=discord.bob, channel=discord.help))
    path = path.format(
        alice=discord.alice.id,
        tess=discord.tess.id,
        guild=discord.guild.id,
        help=discord.help.id,
        forum=discord.forum.id,
        thread=thread.id,
    )
    status, _, headers = await call(http, discord, "GET", path)
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert discord.violations == []


async def test_archiving_ends_when_somebody_writes_unless_the_thread_is_locked(
    discord: DiscordDouble, http: aiohttp.ClientSession
) -> None:
    post = await discord.create_thread("It fails", author=discord.bob, text="with an error")
    await discord.archive(post)
    assert (await call(http, discord, "POST", f"/channels/{post.id}/messages", {"content": "hm"}))[0] == 200
    assert not post.archived
    await discord.archive(post, locked=True)
    status, error, _ = await call(http, discord, "POST", f"/channels/{post.id}/messages", {"content": "hm"})
    assert (status, error["code"]) == (400, 50083)
