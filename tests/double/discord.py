"""A Discord to test against: REST v10 and gateway over real sockets on 127.0.0.1, and the hands that move it.

    async with DiscordDouble() as discord:
        ...  # connect a bot to discord.rest_url with discord.token
        await discord.until(lambda: discord.gateway.ready)
        question = await discord.say(discord.alice, "How do I install it?", channel=discord.help)
        answer = await discord.wait_for_message(discord.thread_of(question))

Leaving the block fails if any request or reply did not fit Discord's OpenAPI file. asyncio only.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from aiohttp import web

from tests.double.acts import Acts, Refusal, invalid_form
from tests.double.faults import Aim, Bucket, Failure, Faults, Hold, Scope, When, route_matcher
from tests.double.gateway import Gateway
from tests.double.openapi import specification
from tests.double.rest import Call, Reply, fields_of, find_route
from tests.double.world import Channel, Guild, Json, Message, Role, User, World, utc_now

T = TypeVar("T")

_API = "/api/v10"


@dataclass(kw_only=True, slots=True)
class Request:
    """One REST request as it came, and what became of it."""

    method: str
    path: str  # below /api/v10
    query: dict[str, str]
    body: Any  # decoded JSON; None without a body
    headers: dict[str, str]
    at: float  # the loop's time
    status: int | None = None  # None: not answered yet, or dropped
    reply: Any = None
    done: bool = False  # answered or dropped
    port: int = 0  # of the connection's other end


class _DroppedError(Exception):
    """The connection is to end without an answer."""


class DiscordDouble:
    """Discord with one small community in it; see `World` for who and what is there.

    `check=False` leaves out the OpenAPI file, for floods where only speed counts.
    """

    def __init__(self, *, now: Callable[[], datetime] = utc_now, check: bool = True) -> None:
        self.world = World(now)
        self.gateway = Gateway(self.world, self._changed)
        self.acts = Acts(self.world, self.gateway.dispatch)
        self.requests: list[Request] = []
        self.violations: list[str] = []
        self._faults = Faults(time.time)  # X-RateLimit-Reset counts seconds since 1970
        self._specification = specification() if check else None
        self._change = asyncio.Event()
        self._away = False
        self._origin = ""
        self._runner: web.AppRunner | None = None

    # Where it is, and who is there

    @property
    def rest_url(self) -> str:
        return f"http://{self._origin}{_API}"

    @property
    def gateway_url(self) -> str:
        return f"ws://{self._origin}/gateway"

    @property
    def token(self) -> str:
        return self.world.token

    @property
    def bot_id(self) -> str:
        return self.world.bot.id

    @property
    def bot(self) -> User:
        return self.world.bot

    @property
    def guild(self) -> Guild:
        return self.world.guild

    @property
    def help(self) -> Channel:
        return self.world.help

    @property
    def general(self) -> Channel:
        return self.world.general

    @property
    def forum(self) -> Channel:
        return self.world.forum

    @property
    def alice(self) -> User:
        return self.world.alice

    @property
    def bob(self) -> User:
        return self.world.bob

    @property
    def tess(self) -> User:
        """The team member, by `team_role`."""
        return self.world.tess

    @property
    def team_role(self) -> Role:
        return self.world.team_role

    def messages(self, channel: Channel | str) -> list[Message]:
        """What a channel holds now, oldest first, the thread starter's line and other system messages left out."""
        messages = self.world.messages(channel if isinstance(channel, str) else channel.id)
        return [message for message in messages if message.type in {0, 19}]

    def said_by_bot(self) -> list[Message]:
        """Everything the bot has written and not deleted, channel by channel."""
        return [m for channel in self.world.channels for m in self.messages(channel) if m.author.id == self.bot_id]

    def threads(self, channel: Channel | None = None) -> list[Channel]:
        return self.world.threads(None if channel is None else channel.id)

    def thread_of(self, message: Message) -> Channel | None:
        return self.world.channels.get(message.id)

    def requests_to(self, method: str, route: str) -> list[Request]:
        """Give the requests to one route, oldest first; see `route_matcher` for how a route is written."""
        matches = route_matcher(route)
        return [r for r in self.requests if r.method == method and matches(r.path)]

    # Waiting

    async def until(self, predicate: Callable[[], T | None]) -> T:
        """Wait until it gives something true, and return that; it is asked after everything that happens here."""
        while True:
            value = predicate()
            if value:
                return value
            await self._change.wait()

    async def wait_ready(self, sessions: int = 1) -> None:
        """Wait until a client sits at the nth session (a resume makes no new one)."""
        await self.until(lambda: self.gateway.ready and len(self.gateway.identifies) >= sessions)

    async def wait_for_message(
        self, channel: Channel | str, predicate: Callable[[Message], bool] | None = None
    ) -> Message:
        """Wait for a message of the bot (or for one that the predicate likes) in a channel that may not exist yet."""
        channel_id = channel if isinstance(channel, str) else channel.id

        def found() -> Message | None:
            if channel_id not in self.world.channels:
                return None
            messages = self.messages(channel_id)
            if predicate is None:
                return next((m for m in messages if m.author.id == self.bot_id), None)
            return next((m for m in messages if predicate(m)), None)

        return await self.until(found)

    async def wait_for_thread(self, message: Message) -> Channel:
        """Wait until a message has its thread."""
        return await self.until(lambda: self.thread_of(message))

    async def wait_for_answer(self, message: Message) -> Message:
        """Wait for the first thing that the bot says in the message's thread."""
        return await self.wait_for_message(message.id)

    async def wait_for_request(self, method: str, route: str, *, count: int = 1) -> Request:
        """Wait until so many requests to a route are answered or dropped (not: still held), and give the last."""
        return await self.until(
            lambda: next(iter([r for r in self.requests_to(method, route) if r.done][count - 1 :]), None)
        )

    # What people do; each returns once the event is on the wire

    async def say(
        self,
        author: User,
        text: str,
        *,
        channel: Channel | str | None = None,
        reply_to: Message | None = None,
        attachments: Sequence[Json] = (),
        at: datetime | None = None,
        ping: bool = True,
    ) -> Message:
        """Write a message, in `help` unless said otherwise (a reply goes where the other message is)."""
        where = channel if isinstance(channel, str) else channel.id if channel is not None else None
        message = self.acts.post(
            where or (reply_to.channel_id if reply_to is not None else self.help.id),
            author,
            text,
            reply_to=None if reply_to is None else {"message_id": reply_to.id},
            allowed_mentions=None if ping else {"parse": ["users", "roles", "everyone"], "replied_user": False},
            attachments=attachments,
            at=at,
        )
        await self.gateway.flushed()
        return message

    async def edit(self, message: Message, text: str, *, at: datetime | None = None) -> None:
        self.acts.edit(message, {"content": text}, at=at)
        await self.gateway.flushed()

    async def delete(self, *messages: Message) -> None:
        """Delete one message, or several of one channel in bulk."""
        if len(messages) == 1:
            self.acts.delete(messages[0])
        else:
            self.acts.delete_many(messages)
        await self.gateway.flushed()

    async def react(self, user: User, message: Message, emoji: str) -> None:
        self.acts.react(user, message, emoji)
        await self.gateway.flushed()

    async def create_thread(
        self,
        name: str,
        *,
        author: User,
        message: Message | None = None,
        channel: Channel | None = None,
        text: str = "",
        at: datetime | None = None,
    ) -> Channel:
        """Open a thread: of a message, or a post in a forum channel (with its text), or one without a message."""
        if message is not None:
            thread = self.acts.start_thread(message, name, author, at=at)
        elif channel is not None and not text:
            thread = self.acts.start_bare_thread(channel, name, author)
        else:
            thread = self.acts.start_forum_post(channel or self.forum, name, author, text, at=at)
        await self.gateway.flushed()
        return thread

    async def archive(self, thread: Channel, *, locked: bool = False) -> None:
        self.acts.change_channel(thread, {"archived": True, "locked": locked})
        await self.gateway.flushed()

    async def rename(self, thread: Channel, name: str) -> None:
        self.acts.change_channel(thread, {"name": name})
        await self.gateway.flushed()

    async def make_private(self, channel: Channel, *, private: bool = True) -> None:
        """Hide a channel from everyone but the bot, or show it again."""
        overwrites = self.world.hiding_overwrites(channel.guild_id) if private else []
        self.acts.change_channel(channel, {"permission_overwrites": overwrites})
        await self.gateway.flushed()

    async def create_channel(self, name: str, *, hidden: bool = False) -> Channel:
        """Make a text channel while a bot listens."""
        channel = self.world.new_channel(name, hidden=hidden)
        self.acts.announce_channel(channel)
        await self.gateway.flushed()
        return channel

    async def permit(self, role: Role, permissions: int) -> None:
        """Give a role other permissions; the role of everyone has the guild's own id."""
        self.acts.change_role(self.guild, role, permissions)
        await self.gateway.flushed()

    # What Discord does

    async def close_gateway(self, code: int) -> None:
        """Close every connection with a code; those that end a session on real Discord end it here."""
        self.gateway.close(code)
        await self.gateway.flushed()

    def drop_gateway(self) -> None:
        """Break every connection without a close frame."""
        self.gateway.drop()

    async def reconnect(self) -> None:
        """Ask every client to come back and resume (op 7)."""
        self.gateway.ask_to_reconnect()
        await self.gateway.flushed()

    async def invalidate(self, *, resumable: bool) -> None:
        """Say that the session is invalid (op 9); if not resumable, what is missed is lost."""
        self.gateway.invalidate(resumable=resumable)
        await self.gateway.flushed()

    @asynccontextmanager
    async def outage(self) -> AsyncGenerator[None]:
        """Break every connection, and every new one, for the time of the block."""
        self._away = True
        self.gateway.drop()
        try:
            yield
        finally:
            self._away = False

    @property
    def is_away(self) -> bool:
        """Whether this is within an outage."""
        return self._away

    def forget_faults(self) -> None:
        """Nothing that was planned to fail, or to come too early, does so any more."""
        self._faults.failures.clear()
        self._faults.stops.clear()

    def fail_next(
        self,
        method: str,
        route: str,
        *,
        status: int = 502,
        code: int = 0,
        message: str = "as the test asked",
        errors: Json | None = None,
        when: When = "before",
        drop: bool = False,
        times: int = 1,
    ) -> None:
        """Let the next requests to a route fail, before or after the work is done; `drop` gives no answer at all.

        `errors` says what is wrong with single fields.
        """
        self._faults.failures.append(
            Failure(
                aim=Aim(method=method, matches=route_matcher(route), times=times),
                when=when,
                status=status,
                body={"message": message, "code": code, **({"errors": errors} if errors else {})},
                drop=drop,
            )
        )

    def hold_next(self, method: str, route: str, *, when: When = "before", times: int = 1) -> Hold:
        """Let the next requests to a route wait until the test releases them."""
        hold = Hold(aim=Aim(method=method, matches=route_matcher(route), times=times), when=when)
        self._faults.holds.append(hold)
        return hold

    def rate_limit(self, method: str, route: str, *, retry_after: float, scope: Scope = "user", times: int = 1) -> None:
        """Answer the next requests to a route with 429, and so whoever comes back before `retry_after` seconds.

        A global limit stops every route, a user's or a shared one the very path that met it.
        """
        self._faults.stop(Aim(method=method, matches=route_matcher(route), times=times), retry_after, scope)

    def limit_application(self, requests_a_second: int = 50) -> None:
        """Refuse what the whole application asks beyond so many requests a second; answers to interactions are free."""
        self._faults.most_a_second = requests_a_second

    @property
    def over_the_limit(self) -> int:
        """How many requests the application's limit refused."""
        return self._faults.over_the_limit

    def bucket(self, method: str, route: str, *, limit: int, per: float, unit: float = 1.0) -> None:
        """Give a route a bucket of so many requests per seconds: headers on each reply, 429 when it is empty.

        `unit`: what the headers count in, as seconds.
        """
        name = f"bucket{len(self._faults.buckets) + 1}"
        aim = Aim(method=method, matches=route_matcher(route), times=0)
        self._faults.buckets.append(Bucket(aim=aim, name=name, limit=limit, per=per, unit=unit))

    # Serving

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=32 * 1024**2)
        app.router.add_get("/gateway", self._serve_gateway)
        app.router.add_get("/gateway/resume", self._serve_gateway)
        app.router.add_route("*", _API + "/{path:.*}", self._serve_rest)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self._origin = f"{host}:{port}"
        self.gateway.url = self.gateway_url
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._runner is not None
        for hold in self._faults.holds:
            hold.release()
        self.gateway.drop()
        await self._runner.cleanup()
        if self.violations:
            findings = "Discord would object:\n" + "\n".join(self.violations)
            if error is None:
                raise AssertionError(findings)
            error.add_note(findings)

    def _changed(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def _serve_gateway(self, request: web.Request) -> web.StreamResponse:
        if self._away:
            return self._break(request)
        return await self.gateway.serve(request)

    async def _serve_rest(self, request: web.Request) -> web.StreamResponse:
        record = Request(
            method=request.method,
            path="/" + request.match_info["path"],
            query=dict(request.query),
            body=await _body_of(request),
            headers=dict(request.headers),
            at=asyncio.get_running_loop().time(),
            port=request.transport.get_extra_info("peername")[1] if request.transport else 0,
        )
        if self._away:
            return self._break(request)
        try:
            reply = await self._answer(record)
        except _DroppedError:
            record.done = True
            return self._break(request)
        record.status, record.reply, record.done = reply.status, reply.body, True
        self._changed()
        if reply.body is None:
            return web.Response(status=reply.status, headers=reply.headers)
        # No charset: Discord sends none, and hikari compares the whole header.
        headers = {**reply.headers, "Content-Type": "application/json"}
        return web.Response(status=reply.status, body=json.dumps(reply.body).encode(), headers=headers)

    async def _answer(self, record: Request) -> Reply:
        self.requests.append(record)
        self._changed()
        if record.headers.get("Authorization") != f"Bot {self.token}":
            return Reply(status=401, body={"message": "401: Unauthorized", "code": 0})
        limited = self._faults.limited(record.method, record.path)
        headers: dict[str, str] = {}
        if limited is None:
            headers, limited = self._faults.bucket_headers(record.method, record.path)
        if limited is not None:
            reply = Reply(status=429, body=limited.body, headers=limited.headers)
            self._check_reply(record, reply)
            return reply
        reply = await self._worked(record)
        self._check_reply(record, reply)
        reply.headers |= headers
        return reply

    async def _worked(self, record: Request) -> Reply:
        """Do the work, unless it is to fail; and fail after it, where that is the plan."""
        failed = await self._fault(record, "before")
        if failed is not None:
            return failed
        try:
            reply = self._work(record)
        except Refusal as refusal:
            reply = Reply(status=refusal.status, body=refusal.body)
        return await self._fault(record, "after") or reply

    async def _fault(self, record: Request, when: When) -> Reply | None:
        hold = self._faults.hold(record.method, record.path, when)
        if hold is not None:
            await hold.wait()
        failure = self._faults.failure(record.method, record.path, when)
        if failure is None:
            return None
        if failure.drop:
            raise _DroppedError
        return Reply(status=failure.status, body=failure.body)

    def _work(self, record: Request) -> Reply:
        self._check_request(record)
        found = find_route(record.method, record.path)
        if found is None:
            self.violations.append(f"{record.method} {record.path}: the double has no such route")
            raise Refusal(404, 0, "404: Not Found")
        function, ids = found
        return function(self.acts, Call(ids=ids, query=record.query, body=record.body, gateway_url=self.gateway_url))

    def _check_request(self, record: Request) -> None:
        findings: list[str] = []
        if self._specification is not None:
            findings = self._specification.request_faults(record.method, record.path, record.query, record.body)
        fields = fields_of(record.body)
        for holder in (fields, fields_of(fields.get("message")), fields_of(fields.get("data"))):
            content = holder.get("content")
            if isinstance(content, str) and len(content) > 2000:  # the file says 4000, which is for some users only
                findings.append(f"{record.method} {record.path}: content of {len(content)} characters; 2000 may be")
        self.violations += findings
        if findings:
            raise invalid_form("_", "; ".join(findings))

    def _check_reply(self, record: Request, reply: Reply) -> None:
        if self._specification is not None:
            self.violations += self._specification.reply_faults(record.method, record.path, reply.status, reply.body)

    def _break(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        self._changed()
        return web.Response()  # goes nowhere


async def _body_of(request: web.Request) -> Any:
    if request.content_type == "multipart/form-data":
        form = await request.post()
        return json.loads(str(form.get("payload_json", "null")))
    text = await request.text()
    return json.loads(text) if text else None
