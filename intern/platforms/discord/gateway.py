"""The connection that delivers Discord's events, by hikari's gateway. asyncio only.

hikari hands on raw payloads, `events` reads them; only `Cache` and `Audience` keep something. hikari resumes and
reconnects by itself; what it takes for the end although Discord does not is begun anew here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, Final

import aiohttp
import hikari
import msgspec
from anyio import create_task_group, move_on_after
from hikari.impl import GatewayShardImpl, HTTPSettings, ProxySettings

from intern.chat.platform import Deliver, Requested
from intern.core.errors import ChatError, ChatNotFoundError, ChatUnauthorizedError, ConfigError
from intern.core.flow import GatewayEvent, GuildLeft
from intern.core.ids import GuildId
from intern.core.log import get_logger
from intern.platforms.discord.audience import Audience, own_roles, session_of
from intern.platforms.discord.commands import interaction_of
from intern.platforms.discord.events import Cache, ChannelGone, ChannelsSeen, event_of
from intern.platforms.discord.options import NO_SERVERS, DiscordOptions
from intern.platforms.discord.payloads import RawGuild, RawPlace, RawUser, fitted, readable
from intern.platforms.discord.rest import LOGIN_REFUSED, NO_API, HikariRest
from intern.platforms.discord.servers import joined_of

_log = get_logger(__name__)
# Discord resets the token of a bot that begins more than 1,000 sessions within 24 hours (its reference, "Gateway",
# "Session Start Limit").
_A_DAY: Final = 24 * 3600.0  # seconds
_OURS: Final = 0.9  # the share of them that we use
_MOST: Final = 900
_LATELY: Final = 3600.0  # sessions begun within these seconds make the next one wait longer


class SessionStarts:
    """When the next session may be begun: after pauses that grow with how many there were lately; at most 900 a day.

    Times are seconds of any clock that only goes forward. Pure: the caller waits.
    """

    def __init__(self, first_pause: float = 1.0) -> None:
        self._first_pause = first_pause
        self._begun: deque[float] = deque()
        self._most = _MOST
        self._earlier = 0
        self._earlier_count_until = 0.0

    def told(self, *, total: int, remaining: int, reset_after: float, now: float) -> None:
        """Discord's own count, which knows of sessions that were begun before this process."""
        self._forget(now)
        self._most = min(_MOST, int(_OURS * total))
        self._earlier = max(0, total - remaining - len(self._begun))
        self._earlier_count_until = now + reset_after

    def begun(self, now: float) -> None:
        """Count a session that begins."""
        self._begun.append(now)

    @property
    def count(self) -> int:
        """Sessions that count against today's, as far as we know."""
        return len(self._begun) + self._earlier

    def pause(self, now: float) -> float:
        """Seconds to wait before the next session."""
        self._forget(now)
        lately = sum(1 for _ in takewhile(lambda at: at > now - _LATELY, reversed(self._begun)))
        pause = 0.0
        if lately:
            grown = self._first_pause * 2.0 ** min(lately - 1, 30)
            pause = self._begun[-1] + min(grown, _LONGEST_PAUSE) - now
        return max(0.0, pause, self.wait_for_a_day(now))

    def wait_for_a_day(self, now: float) -> float:
        """Seconds until one of today's sessions counts no more; 0 while there are any left."""
        self._forget(now)
        if self.count < self._most:
            return 0.0
        ends = [self._begun[0] + _A_DAY] if self._begun else []
        ends += [self._earlier_count_until] if self._earlier else []
        return min(ends, default=now) - now

    def _forget(self, now: float) -> None:
        while self._begun and self._begun[0] + _A_DAY <= now:
            self._begun.popleft()
        if self._earlier_count_until <= now:
            self._earlier = 0


Take = Callable[[str, Mapping[str, Any]], None]

_Of = hikari.Intents
INTENTS: Final = _Of.GUILDS | _Of.GUILD_MESSAGES | _Of.DM_MESSAGES | _Of.MESSAGE_CONTENT
REACTIONS: Final = _Of.GUILD_MESSAGE_REACTIONS
"""Needs no permission of anybody's, but brings every reaction: asked for only where one can mean something."""


_Connected = Callable[[], object]


class _Sink:
    """Stands where a shard expects hikari's event manager and event factory, as far as it calls them."""

    def __init__(self, take: Take, connected: _Connected) -> None:
        self._take, self._connected = take, connected

    def consume_raw_event(self, name: str, _shard: object, payload: Mapping[str, Any]) -> None:
        self._take(name, payload)

    def deserialize_connected_event(self, _shard: object) -> None:
        self._connected()

    def deserialize_disconnected_event(self, _shard: object) -> None: ...

    async def dispatch(self, _event: object, *, return_tasks: bool = False) -> None: ...


class Shard(GatewayShardImpl):
    """One connection; `hold` is all there is to do with it. `take` is called for each dispatch, in order.

    `connected` is called each time that Discord welcomed us, anew or back.
    """

    __slots__ = ("_starts", "_tasks")

    def __init__(
        self, *, token: str, url: str, starts: SessionStarts, take: Take, connected: _Connected, intents: hikari.Intents
    ) -> None:
        sink: Any = _Sink(take, connected)
        super().__init__(
            event_factory=sink,
            event_manager=sink,
            http_settings=HTTPSettings(),
            intents=intents,
            proxy_settings=ProxySettings(),
            token=token,
            url=url,
        )
        self._starts = starts
        self._tasks: set[asyncio.Task[Any]] = set()

    async def hold(self) -> None:
        """Connect, and reconnect, until cancelled or until hikari takes something for the end, which is raised."""
        self._handshake_event = asyncio.Event()
        try:
            await self._keep_alive()
        finally:
            self._non_priority_rate_limit.close()
            self._total_rate_limit.close()
        if self._is_closing:
            raise asyncio.CancelledError  # which hikari has swallowed

    async def _connect(self) -> tuple[asyncio.Task[None], ...]:
        if self._seq is None:
            await self._wait_for_a_start()
        try:
            return await super()._connect()
        except BaseException:
            # hikari forgets the tasks of a handshake that failed.
            await self._let_go()
            raise

    async def _heartbeat(self, heartbeat_interval: float) -> None:
        self._note_task()
        await super()._heartbeat(heartbeat_interval)

    async def _poll_events(self) -> None:
        self._note_task()
        await super()._poll_events()

    async def _wait_for_a_start(self) -> None:
        now = asyncio.get_running_loop().time
        while (pause := self._starts.pause(now())) > 0:
            if self._starts.wait_for_a_day(now()) > 0:
                _log.error("discord_session_starts_used_up", count=self._starts.count, next_try_seconds=round(pause))
            else:
                _log.info("discord_session_paused", next_try_seconds=round(pause, 1))
            await asyncio.sleep(pause)
        self._starts.begun(now())

    def _note_task(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "hikari runs these in tasks of their own"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_retrieved)

    async def _let_go(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))


# Close codes after which Discord forbids to come back (its reference, "Gateway Close Event Codes").
_FOR_GOOD: Final[Mapping[int, str]] = {
    4004: LOGIN_REFUSED,
    4010: "Discord refuses the connection for good (close code 4010, invalid shard); update intern",
    4011: "Discord refuses the connection for good (close code 4011): this bot is on so many servers that it must be "
    "sharded, which intern cannot do. Use a bot account of its own for the servers in discord.guild_ids",
    4012: "Discord refuses the connection for good (close code 4012, invalid API version); update intern",
    4013: "Discord refuses the connection for good (close code 4013, invalid intents); update intern",
    4014: "this bot may not read messages (close code 4014): switch on the Message Content Intent in the developer "
    "portal, https://discord.com/developers/applications, your application, Bot, Privileged Gateway Intents",
}

_GOODBYE_SECONDS = 3.5  # for closing everything; measured: 0.3, or 3 where a writing call hangs
_LONGEST_PAUSE = 96.0  # seconds; nothing is heard meanwhile, and a day has 900 sessions
_STEADY_SECONDS = 300.0  # a connection that held so long was a good one


class HikariDiscord(HikariRest):
    """One bot account, connected. `async with` opens REST; the first `listen` opens the gateway.

    Leaving the block closes both, however long hikari would go on trying.
    Raises ConfigError at once where the options cannot work.
    """

    def __init__(
        self,
        options: DiscordOptions,
        *,
        reactions: bool = False,
        first_pause: float = 1.0,
        max_retries: int = 3,
        hosts: bool = False,
    ) -> None:
        """With `reactions`, a ✅ of a team member becomes an Approval.

        If it `hosts`, events come from every server that the bot is on, also of joining and leaving one.
        """
        if not options.guild_ids and not hosts:
            raise ConfigError(NO_SERVERS)
        super().__init__(options, Cache(), max_retries=max_retries)
        self._options = options
        self._intents = INTENTS | REACTIONS if reactions else INTENTS
        self.guild_ids, self._hosts = tuple(options.guild_ids), hosts
        self._audience = Audience(options.listed_channel_ids)
        self.admits, self.told = self._audience.admits, self._audience.told
        self.noted_roles, self.recall_roles = self._cache.noted_roles, self._cache.recall_roles
        self._first_pause, self._starts = first_pause, SessionStarts(first_pause)
        self._ready = asyncio.Event()
        self._told: set[GuildId] = set()  # of these servers, this session's GUILD_CREATE was heard
        self._there: set[GuildId] = set()  # the bot is on these servers
        self._deliver: Deliver | None = None
        self._connection: asyncio.Task[None] | None = None
        self._shard: Shard | None = None
        self._bug: BaseException | None = None
        self._bug_met = asyncio.Event()
        self._was_connected = False
        self._reconnected: Callable[[], object] = lambda: None

    async def __aexit__(self, *_: object) -> None:
        self._deliver = None
        with move_on_after(_GOODBYE_SECONDS, shield=True) as scope:
            async with create_task_group() as tg:
                tg.start_soon(super().__aexit__)
                if self._connection:
                    self._connection.cancel()
                    await asyncio.wait({self._connection})
                    _retrieved(self._connection)
        if scope.cancelled_caught:
            _log.warning("discord_close_timed_out", seconds=_GOODBYE_SECONDS)

    @property
    def is_open(self) -> bool:
        """Whether a session is open right now, so that events are delivered."""
        return self._shard is not None and self._shard.is_connected

    def tell_requests(self, requested: Requested, reconnected: Callable[[], object]) -> None:
        """Tell each request that ended, with what it raises, and each connection after the first, however it came back.

        Neither must raise.
        """
        self.counted, self._reconnected = requested, reconnected

    async def wait_ready(self) -> None:
        """Return once Discord has welcomed us for the first time; does not fail when `listen` does."""
        await self._ready.wait()

    async def listen(self, deliver: Deliver) -> None:
        """Connect and call `deliver` for each event of our servers, in order, until cancelled.

        Each new session begins with one SessionStarted for each server, before anything else of that server; one that
        is resumed goes on where it was. Private messages are events too; their `guild_id` is None.
        `deliver` must not wait: the heartbeat does, meanwhile. Cancelling ends the delivery and leaves the connection
        open, so that replies can still be seen off. Raises ConfigError where Discord refuses us for good. An outage
        ends nothing: hikari goes on trying, and so do we.
        """
        self._deliver = deliver
        if self._connection is None:
            self._connection = asyncio.create_task(self._stay_connected(), name="discord: gateway")
        bug_met = asyncio.create_task(self._bug_met.wait(), name="discord: bug")
        try:
            # Unlike `await`, this does not cancel what it waits for.
            await asyncio.wait({self._connection, bug_met}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._deliver = None
            bug_met.cancel()
        if self._bug:
            raise self._bug
        self._connection.result()

    async def _stay_connected(self) -> None:
        """Until cancelled, or until Discord forbids us to come back."""
        pause, clock = self._first_pause, asyncio.get_running_loop().time
        while True:
            began = clock()
            problem = await self._connect()
            if clock() - began > _STEADY_SECONDS:
                pause = self._first_pause
            _log.warning("discord_connection_lost", problem=problem, next_try_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _connect(self) -> str:
        """Hold one connection until it ends; return why, where it may be tried again."""
        try:
            self._shard = Shard(
                token=self._options.token.reveal().strip(),
                url=await self._address(),
                starts=self._starts,
                take=self._hear,
                connected=self._connected,
                intents=self._intents,
            )
            await self._shard.hold()
        except hikari.GatewayServerClosedConnectionError as error:
            if refusal := _FOR_GOOD.get(int(error.code or 0)):
                raise ConfigError(refusal) from None
            return f"closed by Discord with code {error.code}"
        except (hikari.HikariError, aiohttp.ClientError, ChatError) as error:
            return f"{type(error).__name__}: {error}"
        return "hikari ended it"

    async def _address(self) -> str:
        """Where the gateway is; with that, Discord tells how many sessions may still be begun today."""
        try:
            door = await self.gateway()
        except ChatUnauthorizedError:
            raise ConfigError(LOGIN_REFUSED) from None
        except ChatNotFoundError:
            raise ConfigError(NO_API) from None
        if limit := door.session_start_limit:
            after, now = limit.reset_after / 1000, asyncio.get_running_loop().time()
            self._starts.told(total=limit.total, remaining=limit.remaining, reset_after=after, now=now)
        return door.url

    def _connected(self) -> None:
        if self._was_connected:
            self._reconnected()
        self._was_connected = True

    def _hear(self, name: str, payload: Mapping[str, Any]) -> None:
        try:
            self._take(name, payload)
        except Exception as bug:  # noqa: BLE001 hikari would take a LookupError for an unknown event; `listen` raises it
            self._bug = self._bug or bug
            self._bug_met.set()

    def _take(self, name: str, payload: Mapping[str, Any]) -> None:
        try:
            if name == "READY":
                self._welcome(fitted(payload, _Ready))
                return
            if name == "INTERACTION_CREATE":
                # From wherever it comes, it wants an answer.
                place = msgspec.convert(payload, _Place)
                team = self.servers.of(GuildId(str(place.guild_id)) if place.guild_id else None)
                if interaction := interaction_of(payload, team, self._cache):
                    self._hand_on(interaction)
                return
            place = msgspec.convert(payload or {}, _Place)
            server = place.id if name in _ABOUT_SERVERS else place.guild_id
            if server is None and name == "MESSAGE_CREATE":
                self._tell(None, name, payload)
            # Other servers go unread. What a payload names as its server may be anything.
            elif isinstance(server, str) and (self._hosts or server in self.servers):
                self._tell(GuildId(server), name, payload)
        except msgspec.ValidationError as error:
            _log.warning("discord_payload_unreadable", event_name=name, problem=str(error))

    def _welcome(self, ready: _Ready) -> None:
        self.servers.met(ready.user.id)
        self._told.clear()
        self._ready.set()
        _log.info("discord_ready", bot_id=ready.user.id)
        if self._hosts and ready.guilds is not None:
            there = {each.id for each in readable(ready.guilds, RawPlace)}
            self._there = {GuildId(each) for each in there}
            for guild_id in self.servers.without(self._there):
                self._hand_on(GuildLeft(guild_id=guild_id))

    def _tell(self, server: GuildId | None, name: str, payload: Mapping[str, Any]) -> None:
        self._audience.hear(name, payload)
        bot_id = self.servers.bot_id
        if server is not None and name == "GUILD_CREATE":
            self.servers.note_own_roles(server, own_roles(payload, bot_id))
        if server is not None and self._hosts and name in _ABOUT_SERVERS:
            self._move(server, name, fitted(payload, RawGuild))
        event = event_of(name, payload, self.servers.of(server), self._cache)
        if isinstance(event, ChannelsSeen | ChannelGone):
            self._cache.take(event)
        elif event is not None and (server is None or server in self._told):
            # What comes before its server is history by the time that the server comes.
            self._hand_on(event)
        if name == "GUILD_CREATE" and (started := session_of(payload, bot_id)):
            _log.info("discord_session_started", guild_id=started.guild_id, channels=len(started.channels))
            self._told.add(started.guild_id)
            self._hand_on(started)

    def _move(self, server: GuildId, name: str, told: RawGuild) -> None:
        """Tell that the bot joined or left a server. An outage is neither."""
        if told.unavailable:
            return
        if name == "GUILD_DELETE":
            self._there.discard(server)
            self._hand_on(GuildLeft(guild_id=server))
        elif server not in self._there or server not in self.servers:
            self._there.add(server)
            self._hand_on(joined_of(told))

    def _hand_on(self, event: GatewayEvent) -> None:
        if self._deliver is not None:
            self._deliver(event)


_ABOUT_SERVERS: Final = frozenset({"GUILD_CREATE", "GUILD_DELETE"})  # they call the server's id `id`


class _Place(msgspec.Struct, frozen=True):
    id: object = None
    guild_id: object = None


class _Ready(msgspec.Struct, frozen=True):
    user: RawUser
    guilds: list[Any] | None = None
    """All servers that the bot is on, also those in an outage."""


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Look at a task's end; otherwise asyncio complains."""
    if not task.cancelled():
        task.exception()
