"""Reading and writing on Discord over REST, through hikari's rate limits and retries. asyncio only.

hikari 2.7 breaks a route for good when a call that waits in its rate-limit queue is cancelled. So each call runs in a
task of its own, and is cancelled only while it waits for our own limit; its caller may give up waiting. Replies are
read as raw JSON by `events`, which requires fewer fields than hikari's own types do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from typing import Any, Final, Self, TypeVar, cast

import aiohttp
import hikari
import msgspec
from anyio import CancelScope
from hikari.impl import HTTPSettings, RESTApp, RESTClientImpl
from hikari.internal import data_binding, routes

from intern.chat.platform import PAGE, Capabilities, Requested
from intern.core import errors
from intern.core.flow import ChannelSnapshot
from intern.core.ids import ChannelId, GuildId, MessageId, RoleId, UserId, parse_position
from intern.core.log import get_logger
from intern.core.messages import Button, Channel, ChatMessage, Page, RoleLookupBudget
from intern.models.limits import FairCallQueue
from intern.platforms.discord import payloads
from intern.platforms.discord.connection import find_proxy_settings, load_certificates
from intern.platforms.discord.gateway_cache import GatewayCache
from intern.platforms.discord.messages import build_message
from intern.platforms.discord.options import DiscordOptions
from intern.platforms.discord.rate_limits import RateLimitBuckets
from intern.platforms.discord.servers import create_server_registry

_log = get_logger(__name__)
_Kind = TypeVar("_Kind")
_Route = routes.Route | routes.CompiledRoute

_THREAD_PAGES = 50  # of archived threads, for one channel
_LAST_CALLS_SECONDS = 3.0  # for writing calls under way when the program ends
_ONE_DAY = 1440  # minutes without a word, then Discord archives a thread
_A_SECOND = 50  # requests that Discord allows an application, besides answers to interactions
_EXEMPT = ("/interactions/", "/webhooks/")  # beginnings of the routes of interactions
_LONGEST_LIMIT = 300.0  # seconds; the longest rate limit that we wait for
_UNKNOWN_MESSAGE, _THREAD_EXISTS = 10008, 160004  # Discord's JSON error codes
_PASSING = frozenset({40004, 40006, 40333, 130000})  # switched off for now, blocked on its way, overloaded
_UNAUTHORIZED: Final = 401
_TIMED_OUT, _TOO_MANY_REQUESTS = 408, 429

LOGIN_REFUSED = (
    "discord.token: Discord does not accept this token. Make a new one in the developer portal (your application, Bot, "
    "Reset Token) and set discord.token or INTERN__DISCORD__TOKEN"
)
NO_API = "discord.rest_url: no Discord API answers there; it should be https://discord.com/api/v10"


class HikariRest:
    """Discord's history, and the way to write there; open it with `async with`.

    Every method raises ChatRefusedError if asking again will not help (ChatNotFoundError if nothing ever will), else
    ChatUnavailableError (ChatUnauthorizedError until the token is replaced).
    """

    def __init__(
        self,
        options: DiscordOptions,
        cache: GatewayCache | None = None,
        *,
        max_retries: int = 3,
        requested: Requested = lambda _: None,
    ) -> None:
        """Call `requested` for each call that ended. A 5xx or a lost connection is a ChatUnknownOutcomeError."""
        self.capabilities = Capabilities()
        self.servers = create_server_registry(options)
        """The servers that are served. The gateway corrects the bot's id."""
        self._cache = cache or GatewayCache()
        self._token = options.token
        self._app = RESTApp(
            url=options.rest_url.rstrip("/"),
            max_retries=max_retries,
            # Otherwise it connects anew for each call.
            http_settings=HTTPSettings(ssl=load_certificates(), force_close_transports=False),
            loads=payloads.decode_json,
            proxy_settings=find_proxy_settings(options.rest_url),
        )
        self._app._bucket_manager = RateLimitBuckets(max_rate_limit=_LONGEST_LIMIT)  # noqa: SLF001 there is no other way in
        self._client: RESTClientImpl | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._reads: set[asyncio.Task[Any]] = set()
        self._unsent: set[asyncio.Task[Any]] = set()
        self._turns: FairCallQueue | None = None
        self._requested = requested

    def share(self, part: float) -> None:
        """Make only this part of the requests that Discord allows each second, since other processes make the rest.

        Reading takes at most 80% of it. Before the first call of this, only Discord's own answers limit requests.
        """
        self._turns = self._turns or FairCallQueue(10_000, _A_SECOND, 1.0)
        self._turns.set_share(max(part, 1 / _A_SECOND))  # without a shard, it still asks for the gateway's address

    async def __aenter__(self) -> Self:
        await self._app.start()
        self._client = self._app.acquire(self._token.reveal().strip(), hikari.TokenType.BOT)
        self._client.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with CancelScope(shield=True):
            client, self._client = self._client, None
            if writes := self._calls - self._reads:
                await asyncio.wait(writes, timeout=_LAST_CALLS_SECONDS)
            for call in self._calls:
                call.cancel()  # the routes are not used any more
            if self._calls:
                await asyncio.wait(self._calls)
            if client:
                await client.close()
                await self._app.close()

    # The methods of History of chat/context.py

    async def channel(self, channel_id: ChannelId) -> Channel:
        """Return a channel or thread, from the gateway's data, else fetched and remembered."""
        return self._cache.channel(channel_id) or await self._remember_channel(await self._fetch_channel(channel_id))

    async def message(self, channel_id: ChannelId, message_id: MessageId) -> ChatMessage | None:
        """Read a message; None if it is deleted, may not be read, or is one of Discord's own."""
        try:
            return await self.look_up(channel_id, message_id)
        except errors.ChatRefusedError as refusal:
            _log.info("message_unreadable", channel_id=channel_id, message_id=message_id, reason=str(refusal))
            return None

    async def look_up(self, channel_id: ChannelId, message_id: MessageId) -> ChatMessage | None:
        """Read a message; None only if Discord says that the channel has none of that id."""
        what = f"read message {message_id} in channel {channel_id}"
        try:
            raw = await self.send_request(what, routes.GET_CHANNEL_MESSAGE, channel=channel_id, message=message_id)
        except errors.ChatNotFoundError as error:
            cause = error.__cause__
            if isinstance(cause, hikari.HTTPResponseError) and cause.code == _UNKNOWN_MESSAGE:
                return None
            raise
        messages = await self._messages(channel_id, [raw])
        if not messages:
            why = "it is one of Discord's own, or not what Discord documents"
            raise errors.ChatRefusedError(f"could not {what}: {why}")
        return messages[0]

    async def before(
        self,
        channel_id: ChannelId,
        message_id: MessageId | None,
        limit: int,
        *,
        lookups: RoleLookupBudget | None = None,
    ) -> Sequence[ChatMessage]:
        """Read the newest messages older than `message_id`, or of all; oldest first. One request, so at most 100.

        Discord's own messages are left out after counting: a short page need not be the last. `lookups` bounds the
        requests for authors' roles; the authors of the newest messages come first.
        """
        return await self._messages(channel_id, await self._raw_page(channel_id, "before", message_id, limit), lookups)

    async def after(self, channel_id: ChannelId, message_id: MessageId, limit: int) -> Sequence[ChatMessage]:
        """Read the oldest messages newer than `message_id`, oldest first; as `before`."""
        return await self._messages(channel_id, await self._raw_page(channel_id, "after", message_id, limit))

    async def page(self, channel_id: ChannelId, after: MessageId, limit: int) -> Page:
        """Read as `after` does, with the position that it reaches; Discord's own messages count for that, too."""
        raw = await self._raw_page(channel_id, "after", after, limit)
        numbers = [int(sent.id) for sent in payloads.parse_items(raw, payloads.RawMessageStub)]
        return Page(
            messages=tuple(await self._messages(channel_id, raw)),
            read_to=MessageId(str(max(numbers))) if numbers else after,
            more=len(raw) >= max(1, min(limit, PAGE)),
        )

    async def list_archived_threads(self, channel_id: ChannelId, after: MessageId) -> Sequence[ChannelSnapshot]:
        """List the channel's public archived threads that hold, or may hold, a message newer than `after`."""
        if self._cache.holds_threads(channel_id) is False:
            return ()
        # Writing wakes a thread up, so one that was archived before `after` was written holds nothing newer.
        horizon = parse_position(payloads.check_ids(message=after)["message"]).time
        seen: dict[ChannelId, ChannelSnapshot] = {}
        before: datetime | None = None
        what, route = f"list archived threads of channel {channel_id}", routes.GET_PUBLIC_ARCHIVED_THREADS
        for _ in range(_THREAD_PAGES):
            query = {"limit": str(PAGE)} | ({"before": before.isoformat()} if before else {})
            page = await self.send_and_parse(what, route, payloads.RawThreadPage, query=query, channel=channel_id)
            threads = list(payloads.parse_items(page.threads, payloads.RawChannel))
            for raw in threads:
                if raw.newest is None or parse_position(raw.newest) > parse_position(after):
                    channel = await self._remember_channel(raw)
                    seen[raw.id] = ChannelSnapshot(channel=channel, last_message_id=raw.newest)
            moments = [raw.archived_at for raw in threads if raw.archived_at]
            # If the reply does not say whether there is more, the next page does.
            if page.has_more is False or not page.threads or (moments and min(moments) < horizon):
                break
            if not moments or (before is not None and min(moments) >= before):
                _log.warning("archived_threads_unreadable", channel_id=channel_id, threads=len(page.threads))
                break
            before = min(moments)
        else:
            _log.warning("archived_threads_cut", channel_id=channel_id, pages=_THREAD_PAGES)
        return tuple(seen.values())

    async def gateway(self) -> payloads.RawGateway:
        """Return the gateway's address, and the number of sessions that may still be begun there."""
        return await self.send_and_parse("ask for the gateway's address", routes.GET_GATEWAY_BOT, payloads.RawGateway)

    async def own_id(self) -> UserId:
        """Return the bot's own id; ask Discord if neither its token nor the gateway gave it."""
        if not self.servers.bot_id:
            found = await self.send_and_parse("ask who the bot is", routes.GET_MY_USER, payloads.RawUser)
            self.servers.set_bot_id(self.servers.bot_id or found.id)
        return self.servers.bot_id

    # The methods of Outlet of chat/outbox.py

    async def start_thread(self, channel_id: ChannelId, message_id: MessageId, name: str) -> ChannelId:
        """Open the message's thread and return its id; an existing thread serves as well."""
        what, route = f"start a thread at message {message_id} in channel {channel_id}", routes.POST_MESSAGE_THREADS
        body = {"name": name, "auto_archive_duration": _ONE_DAY}
        try:
            await self.send_request(what, route, body=body, channel=channel_id, message=message_id)
        except errors.ChatRefusedError as refusal:
            if not await self._thread_exists(refusal, ChannelId(message_id)):
                raise
        # A message's thread has the message's id (Discord's reference, "Start Thread from Message").
        return ChannelId(message_id)

    async def remove_thread(self, thread_id: ChannelId) -> None:
        """Remove a thread that we opened, unless there is a message in it; without Manage Threads, archive it."""
        what = f"look up channel {thread_id}"
        thread = await self.send_and_parse(what, routes.GET_CHANNEL, payloads.RawChannelStub, channel=thread_id)
        if thread.owner_id != await self.own_id():
            return
        page = await self._raw_page(thread_id, "after", MessageId(thread_id), PAGE)
        types = [sent.type for sent in payloads.parse_items(page, payloads.RawMessageStub)]
        if types.count(payloads.THREAD_STARTER) < len(page):
            return
        try:
            await self.send_request(f"remove thread {thread_id}", routes.DELETE_CHANNEL, channel=thread_id)
        except errors.ChatRefusedError:
            what, body = f"archive thread {thread_id}", {"archived": True}
            await self.send_request(what, routes.PATCH_CHANNEL, body=body, channel=thread_id)

    async def send(
        self,
        channel_id: ChannelId,
        text: str,
        nonce: str,
        *,
        buttons: Sequence[Button] = (),
        mention_role: RoleId | None = None,
    ) -> MessageId:
        """Write a message that previews no links and pings only `mention_role`, if the text mentions it.

        Within Discord's few minutes of memory the same nonce gives the same message. Raises ChatUnknownOutcomeError
        if the message may exist unconfirmed.
        """
        what = f"send a message to channel {channel_id}"
        body = payloads.build_message_body(text, buttons, mention_role) | {"nonce": nonce, "enforce_nonce": True}
        unsure, route = errors.ChatUnknownOutcomeError, routes.POST_CHANNEL_MESSAGES
        sent = await self.send_request(what, route, body=body, otherwise=unsure, channel=channel_id)
        return payloads.parse_reply(what, sent, payloads.RawMessageStub, otherwise=unsure).id

    async def rewrite(self, channel_id: ChannelId, message_id: MessageId, text: str) -> None:
        """Replace a message of ours by a text that previews no links and pings no one, without buttons."""
        what, route = f"edit message {message_id} in channel {channel_id}", routes.PATCH_CHANNEL_MESSAGE
        body = payloads.build_message_body(text, (), None)
        await self.send_request(what, route, body=body, channel=channel_id, message=message_id)

    async def typing(self, channel_id: ChannelId) -> None:
        """Show that we are typing, for ten seconds or until we write, unless calls wait for Discord's limit."""
        if self._turns is None or not self._turns.is_crowded:
            await self.send_request(f"type in channel {channel_id}", routes.POST_CHANNEL_TYPING, channel=channel_id)

    # Internals

    async def _thread_exists(self, refusal: errors.ChatRefusedError, thread: ChannelId) -> bool:
        """Return whether a thread is refused because there is one. Other servers than Discord's may not say so."""
        cause = refusal.__cause__
        if not isinstance(cause, hikari.BadRequestError):
            return False
        if cause.code == _THREAD_EXISTS:
            return True
        try:
            return (await self._fetch_channel(thread)).is_thread
        except errors.ChatRefusedError:
            return False

    async def _raw_page(self, channel_id: ChannelId, side: str, message_id: MessageId | None, limit: int) -> list[Any]:
        query = {"limit": str(max(1, min(limit, PAGE)))}
        if message_id is not None:
            query[side] = payloads.check_ids(message=message_id)["message"]
        what, route = f"read messages of channel {channel_id}", routes.GET_CHANNEL_MESSAGES
        return await self.send_and_parse(what, route, list[Any], query=query, channel=channel_id)

    async def _messages(
        self, place: ChannelId, page: list[Any], lookups: RoleLookupBudget | None = None
    ) -> list[ChatMessage]:
        """Read a page, oldest first, and add fields that REST leaves out: the server, and the team members."""
        guild_id = (await self.channel(place)).guild_id
        await self.own_id()
        team = self.servers.team_for(guild_id)
        messages: list[ChatMessage] = []
        for item in page:
            try:
                raw = msgspec.structs.replace(payloads.parse_leniently(item, payloads.RawMessage), guild_id=guild_id)
                message = build_message(raw, team, await self._author_roles(raw, lookups), self._cache)
            except msgspec.ValidationError as error:
                _log.warning("discord_message_unreadable", channel_id=place, problem=str(error))
                continue
            if message:
                messages.append(message)
        return sorted(messages, key=lambda message: parse_position(message.id))

    async def _author_roles(
        self, raw: payloads.RawMessage, lookups: RoleLookupBudget | None = None
    ) -> Collection[RoleId]:
        """Return the author's roles, looked up only if they decide something, and anew in each session."""
        author, team = raw.author.id, self.servers.team_for(raw.guild_id)
        if raw.guild_id is None or raw.is_bots or not raw.is_written or not team.role_ids:
            return ()
        if author in team.member_ids or author == team.bot_id:
            return ()
        known = self._cache.roles(raw.guild_id, author, undoubted=lookups is None)
        if known is None:
            if lookups is not None and not lookups.take():
                return ()
            known = tuple(await self._fetch_member_roles(raw.guild_id, author))
            self._cache.note_roles(raw.guild_id, author, known)
        return known

    async def _fetch_member_roles(self, guild_id: GuildId, user_id: UserId) -> Collection[RoleId]:
        what, route = f"look up member {user_id} of server {guild_id}", routes.GET_GUILD_MEMBER
        try:
            member = await self.send_and_parse(what, route, payloads.RawMember, guild=guild_id, user=user_id)
        except errors.ChatNotFoundError:
            return ()  # they have left, and their roles with them
        return member.role_ids or ()

    async def _fetch_channel(self, channel_id: ChannelId) -> payloads.RawChannel:
        what = f"look up channel {channel_id}"
        return await self.send_and_parse(what, routes.GET_CHANNEL, payloads.RawChannel, channel=channel_id)

    async def _remember_channel(self, raw: payloads.RawChannel) -> Channel:
        """Remember a channel, or a thread with its parent, which may have to be fetched."""
        self._cache.add_channel(raw)
        known = self._cache.resolve_channel(raw)
        if known is None and raw.parent_id:
            self._cache.add_channel(await self._fetch_channel(raw.parent_id))
            known = self._cache.resolve_channel(raw)
        if known is None:
            raise errors.ChatNotFoundError(f"thread {raw.id} has no channel that it hangs in")
        return known

    async def send_and_parse(
        self, what: str, route: _Route, kind: type[_Kind], *, query: Mapping[str, str] | None = None, **ids: str
    ) -> _Kind:
        """Send a request and return its reply, decoded as `kind`."""
        reply = await self.send_request(what, _compile_route(route, ids), query=query)
        return payloads.parse_reply(what, reply, kind)

    async def send_request(
        self,
        what: str,
        route: _Route,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        otherwise: type[errors.ChatError] = errors.ChatUnavailableError,
        **ids: str,
    ) -> object:
        """Return the reply's JSON, None if there is none. All calls of hikari go through here.

        `what` completes "could not …" in errors. `ids` are put into the route; one that is no id raises
        ChatNotFoundError. `otherwise` is raised if the outcome is unknown.
        """
        route = _compile_route(route, ids)
        if self._client is None:
            raise errors.ChatUnavailableError(f"could not {what}: the connection is closed")
        # hikari's public methods require fields that we do not need, and fail a whole page for one of them.
        request = partial(
            self._client._request,  # noqa: SLF001
            route,
            query=cast("data_binding.StringMapBuilder | None", query),
            json=cast("data_binding.JSONObjectBuilder | None", body),
        )
        call = asyncio.create_task(self._run_in_turn(route, request), name=f"discord: {what}")
        self._calls.add(call)
        self._unsent.add(call)
        for ended in (self._calls.discard, self._unsent.discard, self._report_call):
            call.add_done_callback(ended)
        if route.method == "GET":
            self._reads.add(call)
            call.add_done_callback(self._reads.discard)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if call.cancelled() and not (waiter and waiter.cancelling()):
                # hikari's rate limits were closed meanwhile, or we closed them: the waiter itself was not cancelled.
                raise otherwise(f"could not {what}: the connection was closed meanwhile") from None
            if call in self._unsent:
                call.remove_done_callback(self._report_call)
                call.cancel()
            else:
                call.add_done_callback(partial(_log_unwatched_call, what))
            raise
        except (hikari.HikariError, aiohttp.ClientError, TimeoutError, ValueError, RuntimeError) as error:
            raise _build_error(what, error, otherwise) from error

    async def _run_in_turn(self, route: routes.CompiledRoute, request: Callable[[], Awaitable[object]]) -> object:
        async with AsyncExitStack() as stack:
            if self._turns is not None and not route.route.path_template.startswith(_EXEMPT):
                # A shard receives nothing until the gateway's address is known, so that waits for one call at most.
                is_first = route.route is routes.GET_GATEWAY_BOT
                party, background = ("gateway", False) if is_first else ("", route.method == "GET")
                await stack.enter_async_context(self._turns.hold_place(party, background=background))
            self._unsent.discard(cast("asyncio.Task[Any]", asyncio.current_task()))
            return await request()

    def _report_call(self, call: asyncio.Task[Any]) -> None:
        if call.cancelled():
            self._requested(errors.ChatUnknownOutcomeError)
        elif (error := call.exception()) is None:
            self._requested(None)
        elif isinstance(error, Exception):
            self._requested(type(_build_error("count it", error, errors.ChatUnknownOutcomeError)))


def _compile_route(route: _Route, ids: Mapping[str, str]) -> routes.CompiledRoute:
    return route.compile(**payloads.check_ids(**ids)) if isinstance(route, routes.Route) else route


def _build_error(what: str, error: Exception, otherwise: type[errors.ChatError]) -> errors.ChatError:
    """Return the error of a failed call: if Discord refused it, or told us to wait, it did nothing."""
    if isinstance(error, hikari.RateLimitTooLongError):
        return errors.ChatUnavailableError(f"could not {what}: rate limited for {error.retry_after:.0f} s")
    if not isinstance(error, hikari.HTTPResponseError):
        return otherwise(f"could not {what}: {type(error).__name__}: {error}")
    return _build_refusal(what, error) or otherwise(_describe_response(what, error))


def _build_refusal(what: str, error: hikari.HTTPResponseError) -> errors.ChatError | None:
    """Return the error of a call that Discord did not execute; None if that is unknown."""
    said = _describe_response(what, error)
    if error.status == _UNAUTHORIZED:
        return errors.ChatUnauthorizedError(f"{said}. If it says so to all calls: {LOGIN_REFUSED}")
    if error.status == _TOO_MANY_REQUESTS:
        return errors.ChatUnavailableError(said)
    if isinstance(error, hikari.NotFoundError):
        return errors.ChatNotFoundError(said)
    if isinstance(error, hikari.ClientHTTPResponseError) and error.status != _TIMED_OUT:
        return (errors.ChatUnavailableError if error.code in _PASSING else errors.ChatRefusedError)(said)
    return None


def _describe_response(what: str, error: hikari.HTTPResponseError) -> str:
    fields = str(getattr(error, "errors", None) or "")[:300]  # the errors in each field of a request
    return f"could not {what}: Discord says {int(error.status)} {error.message} (code {error.code}) {fields}".rstrip()


def _log_unwatched_call(what: str, call: asyncio.Task[Any]) -> None:
    """Log the end of a call whose caller gave up, as for each answer that is ready while its channel shows typing."""
    failed = "cancelled" if call.cancelled() else type(call.exception()).__name__ if call.exception() else None
    _log.log(logging.INFO if failed else logging.DEBUG, "discord_call_ended_unwatched", call=what, failed=failed)
