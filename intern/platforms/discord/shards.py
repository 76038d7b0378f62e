"""The connections to Discord's gateway, one for each shard that this process holds. asyncio only.

hikari resumes and reconnects by itself; this module reconnects where hikari gives up although Discord allows more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import hikari
from anyio import move_on_after
from hikari.impl import GatewayShardImpl, HTTPSettings

from intern.core.errors import ChatError, ChatNotFoundError, ChatUnauthorizedError, ConfigError, KnowledgeError
from intern.core.ids import GuildId
from intern.core.log import get_logger
from intern.platforms.discord import sessions
from intern.platforms.discord.connection import find_proxy_settings, load_certificates
from intern.platforms.discord.options import ShardChoice, shard_index
from intern.platforms.discord.payloads import RawGateway, decode_json
from intern.platforms.discord.rest import LOGIN_REFUSED, NO_API

_log = get_logger(__name__)
_STEADY_SECONDS: Final = 300.0  # a connection that lasted so long was a good one
_BETWEEN_IDENTIFIES: Final = 5.0  # seconds, for `max_concurrency` shards at a time
_IDENTIFY: Final = 2  # the opcode
LOST: Final = "SESSION_LOST"  # no dispatch of Discord's: the connection broke off, or has yet to begin
GOODBYE_SECONDS: Final = 3.5  # for closing everything; measured: 0.3, or 3 where a writing call hangs

# Close codes after which Discord forbids reconnecting (its reference, "Gateway Close Event Codes").
_FOR_GOOD: Final[Mapping[int, str]] = {
    4004: LOGIN_REFUSED,
    4010: "Discord refuses the connection for good (close code 4010, invalid shard): correct discord.shards",
    4011: "Discord refuses the connection for good (close code 4011): this bot is on so many servers that it needs "
    'more shards. Set discord.shards = "auto", or a larger `of`, and restart every process of this bot',
    4012: "Discord refuses the connection for good (close code 4012, invalid API version); update intern",
    4013: "Discord refuses the connection for good (close code 4013, invalid intents); update intern",
    4014: "this bot may not read messages (close code 4014): switch on the Message Content Intent in the developer "
    "portal, https://discord.com/developers/applications, your application, Bot, Privileged Gateway Intents",
}


Begin = Callable[[int], AbstractAsyncContextManager[None]]


class _EventSink:
    """A replacement for hikari's event manager and event factory, with the methods that a shard calls."""

    def __init__(self, take: Callable[[str, Mapping[str, Any]], None], connected: Callable[[], object]) -> None:
        self._take, self._connected = take, connected

    def consume_raw_event(self, name: str, _shard: object, payload: Mapping[str, Any]) -> None:
        self._take(name, payload)

    def deserialize_connected_event(self, _shard: object) -> None:
        self._connected()

    def deserialize_disconnected_event(self, _shard: object) -> None: ...

    async def dispatch(self, _event: object, *, return_tasks: bool = False) -> None: ...


class Shard(GatewayShardImpl):
    """One connection; `hold` is its only method to call. The sink gets each dispatch, in order.

    `begin` is entered before each new session and left once IDENTIFY was sent. asyncio only.
    """

    __slots__ = ("_begin", "_begun", "_tasks")

    def __init__(
        self, sink: _EventSink, begin: Begin, *, token: str, url: str, intents: hikari.Intents, shard: int, of: int
    ) -> None:
        events: Any = sink
        super().__init__(
            event_factory=events,
            event_manager=events,
            http_settings=HTTPSettings(ssl=load_certificates()),
            intents=intents,
            loads=decode_json,
            proxy_settings=find_proxy_settings(url),
            token=token,
            url=url,
            shard_id=shard,
            shard_count=of,
        )
        self._begin, self._begun = begin, AsyncExitStack()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def hold(self) -> None:
        """Connect, and reconnect, until cancelled or until hikari gives up; then raise its error."""
        self._handshake_event = asyncio.Event()
        try:
            await self._keep_alive()
        finally:
            self._non_priority_rate_limit.close()
            self._total_rate_limit.close()
        if self._is_closing:
            raise asyncio.CancelledError  # hikari has swallowed it

    async def _connect(self) -> tuple[asyncio.Task[None], ...]:
        try:
            if self._seq is not None:
                return await super()._connect()
            async with AsyncExitStack() as self._begun:
                await self._begun.enter_async_context(self._begin(self._shard_id))
                return await super()._connect()
        except BaseException:
            # hikari forgets the tasks of a handshake that failed.
            await self._cancel_tasks()
            raise

    async def _send_json(self, data: Any, *, priority: bool = False) -> None:
        await super()._send_json(data, priority=priority)
        if data["op"] == _IDENTIFY:
            await self._begun.aclose()

    async def _heartbeat(self, heartbeat_interval: float) -> None:
        self._note_task()
        await super()._heartbeat(heartbeat_interval)

    async def _poll_events(self) -> None:
        self._note_task()
        try:
            await super()._poll_events()
        finally:
            self._event_manager.consume_raw_event(LOST, self, {})  # hikari itself first says goodbye

    def _note_task(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "hikari runs these in tasks of their own"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(sessions.retrieve_exception)

    async def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))


@dataclass(slots=True, eq=False)
class _HeldShard:
    """One shard that this process holds."""

    connection: Shard | None = None
    task: asyncio.Task[None] | None = None
    welcomed: bool = False


class Shards:
    """The shards that this process holds, each with its connection.

    `take` gets each dispatch with its shard, in order for each shard, and LOST while none come. `ask` asks Discord for
    the gateway's address.
    """

    def __init__(
        self,
        *,
        token: str,
        intents: hikari.Intents,
        chosen: ShardChoice | None,
        ask: Callable[[], Awaitable[RawGateway]],
        take: Callable[[int, str, Mapping[str, Any]], None],
        first_pause: float = 1.0,
        turn: sessions.Turn = sessions.no_turn,
        reconnected: Callable[[], object] = lambda: None,
    ) -> None:
        self.count = chosen.of if chosen else 0
        """The number of all shards of the bot; 0 until Discord has said how many it should have."""
        self.recommended = 0
        """The number that Discord recommends; 0 until it was asked."""
        self._reconnected = reconnected
        self._token, self._intents, self._chosen, self._ask, self._take = token, intents, chosen, ask, take
        self._first_pause, self._starts = first_pause, sessions.SessionStarts(first_pause)
        self._turns = sessions.IdentifyTurns(turn, _BETWEEN_IDENTIFIES * first_pause)
        self._door: RawGateway | None = None
        self._asked_at = 0.0
        self._held: dict[int, _HeldShard] = {}
        self._ready, self._over = asyncio.Event(), asyncio.Event()
        self._reason: BaseException | None = None

    @property
    def held(self) -> frozenset[int]:
        """The shards that this process holds."""
        return frozenset(self._held)

    @property
    def welcomed(self) -> frozenset[int]:
        """The held shards that Discord has welcomed."""
        return frozenset(shard for shard, held in self._held.items() if held.welcomed)

    @property
    def is_open(self) -> bool:
        """Whether there is a held shard, and each has a session right now."""
        held = self._held.values()
        return bool(held) and all(each.connection is not None and each.connection.is_connected for each in held)

    def shard_for(self, guild_id: GuildId) -> int:
        """Return the shard of a server."""
        return shard_index(guild_id, self.count)

    async def wait_ready(self) -> None:
        """Return once Discord has welcomed every shard that is held, and one at least, for the first time."""
        await self._ready.wait()

    async def wait_for_failure(self) -> None:
        """Wait until Discord forbids reconnecting, or for a bug, and raise that."""
        await self._over.wait()
        assert self._reason is not None
        raise self._reason

    async def hold_all(self) -> None:
        """Hold the chosen shards, or else as many as Discord recommends."""
        if not self._held:
            for shard in self._chosen.ids if self._chosen else range(await self.fetch_shard_count()):
                self.hold(shard)

    async def fetch_shard_count(self) -> int:
        """Return the number of all shards of the bot; ask Discord until it answers. Raises ConfigError."""
        pause = self._first_pause
        while not self.count:
            try:
                self.count = max(1, (await self._fetch_gateway()).shards)
            except ChatError as error:
                pause = await self._pause(pause, str(error))
        return self.count

    def hold(self, shard: int) -> None:
        """Begin to hold a shard; `count` must be known. Does nothing if it is held already."""
        if shard in self._held:
            return
        self._starts.reset_shard(shard)
        held = self._held[shard] = _HeldShard()
        held.task = asyncio.create_task(self._stay_connected(shard, held), name=f"discord: gateway {shard}")
        held.task.add_done_callback(self._check_task)

    async def release(self, *shards: int) -> bool:
        """End the connections of these shards. From now on, their dispatches are ignored.

        Return whether Discord had welcomed one of them.
        """
        released = [held for shard in shards if (held := self._held.pop(shard, None))]
        ends = [held.task for held in released if held.task]
        for task in ends:
            task.cancel()
        self._check_ready()
        if ends:
            with move_on_after(GOODBYE_SECONDS, shield=True) as scope:
                await asyncio.wait(ends)
            if scope.cancelled_caught:
                _log.warning("discord_close_timed_out", seconds=GOODBYE_SECONDS)
        return any(held.welcomed for held in released)

    async def close(self) -> None:
        """End every connection."""
        await self.release(*self._held)
        self._turns.close()

    def fail(self, reason: BaseException) -> None:
        """Let `wait_for_failure` raise this."""
        self._reason = self._reason or reason
        self._over.set()

    def _check_task(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (reason := task.exception()):
            self.fail(reason)

    async def _stay_connected(self, shard: int, held: _HeldShard) -> None:
        """Reconnect until cancelled, or until Discord forbids it."""
        pause, clock = self._first_pause, asyncio.get_running_loop().time
        while True:
            began = clock()
            problem = await self._connect(shard, held)
            if clock() - began > _STEADY_SECONDS:
                pause = self._first_pause
            pause = await self._pause(pause, problem, shard)

    async def _pause(self, pause: float, problem: str, shard: int | None = None) -> float:
        """Wait, and return how long to wait the next time."""
        _log.warning("discord_connection_lost", problem=problem, shard=shard, next_try_seconds=pause)
        await asyncio.sleep(pause)
        return min(2 * pause, sessions.LONGEST_PAUSE)

    async def _connect(self, shard: int, held: _HeldShard) -> str:
        """Hold one connection until it ends; return the reason, if another try is allowed."""
        was_connected = held.welcomed

        def take(name: str, payload: Mapping[str, Any]) -> None:
            if self._held.get(shard) is held:
                self._receive(shard, held, name, payload)

        def note_connection() -> None:
            nonlocal was_connected
            if was_connected:
                self._reconnected()
            was_connected = True

        take(LOST, {})
        try:
            url = (await self._fetch_gateway()).url
            held.connection = Shard(
                _EventSink(take, note_connection),
                self._begin_session,
                token=self._token,
                url=url,
                intents=self._intents,
                shard=shard,
                of=self.count,
            )
            await held.connection.hold()
        except hikari.GatewayServerClosedConnectionError as error:
            if refusal := _FOR_GOOD.get(int(error.code or 0)):
                raise ConfigError(refusal) from None
            return f"closed by Discord with code {error.code}"
        except (hikari.HikariError, aiohttp.ClientError, ChatError) as error:
            return f"{type(error).__name__}: {error}"
        return "hikari ended it"

    def _receive(self, shard: int, held: _HeldShard, name: str, payload: Mapping[str, Any]) -> None:
        try:
            self._take(shard, name, payload)
        except Exception as bug:  # noqa: BLE001 hikari would take a LookupError for an unknown event
            self.fail(bug)
        if name == "READY":
            held.welcomed = True
            self._check_ready()

    def _check_ready(self) -> None:
        if self._held and self.welcomed == self.held:
            self._ready.set()

    async def _fetch_gateway(self) -> RawGateway:
        """Return the gateway's address; Discord's reply also says how many sessions may still be begun today."""
        now = asyncio.get_running_loop().time()
        if self._door is not None and now < self._asked_at + _BETWEEN_IDENTIFIES * self._first_pause:
            return self._door
        try:
            door = self._door = await self._ask()
        except ChatUnauthorizedError:
            raise ConfigError(LOGIN_REFUSED) from None
        except ChatNotFoundError:
            raise ConfigError(NO_API) from None
        self._asked_at, self.recommended = asyncio.get_running_loop().time(), door.shards
        if limit := door.session_start_limit:
            after, now = limit.reset_after / 1000, self._asked_at
            self._starts.set_start_limit(total=limit.total, remaining=limit.remaining, reset_after=after, now=now)
        if self.count and door.shards > self.count:
            _log.warning("discord_recommends_more_shards", shards=self.count, recommended=door.shards)
        return door

    @asynccontextmanager
    async def _begin_session(self, shard: int) -> AsyncGenerator[None]:
        """Wait until this shard may begin a session."""
        with suppress(ChatError, ConfigError):  # our own count goes on, and the gateway refuses a bad token
            await self._fetch_gateway()
        await self._wait_for_start(shard)
        limit = self._door and self._door.session_start_limit
        try:
            async with self._turns.take_turn(shard % max(1, limit.max_concurrency if limit else 1)):
                self._starts.add_start(asyncio.get_running_loop().time(), shard)
                yield
        except KnowledgeError as error:
            # A turn across processes needs the database; hikari tries again.
            raise hikari.GatewayConnectionError(str(error)) from None

    async def _wait_for_start(self, shard: int) -> None:
        now = asyncio.get_running_loop().time
        while (pause := self._starts.pause(now(), shard)) > 0:
            if self._starts.wait_for_a_day(now()) > 0:
                _log.error("discord_session_starts_used_up", count=self._starts.count, next_try_seconds=round(pause))
            else:
                _log.info("discord_session_paused", shard=shard, next_try_seconds=round(pause, 1))
            await asyncio.sleep(pause)
