"""The connection that tells what happens on Discord, by hikari's gateway. asyncio only.

hikari hands on raw payloads, `wire` reads them; nothing is cached but what `Memory` holds. hikari resumes and
reconnects by itself; what it takes for the end although Discord does not is begun anew here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import hikari
import msgspec
from anyio import move_on_after
from hikari.api import CacheComponents
from hikari.impl import CacheSettings

from intern.discord.options import DiscordOptions
from intern.discord.rest import LOGIN_REFUSED, HikariRest
from intern.discord.wire import ChannelGone, ChannelsSeen, Memory, event_of
from intern.domain import MessageEvent, UserId
from intern.errors import ConfigError, DiscordUnavailableError
from intern.observe.log import get_logger

_log = get_logger(__name__)

Deliver = Callable[[MessageEvent], None]

_INTENTS: Final = hikari.Intents.GUILDS | hikari.Intents.GUILD_MESSAGES | hikari.Intents.MESSAGE_CONTENT

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

_GOODBYE_SECONDS = 10.0  # for closing everything; measured: 0.3, and hikari itself gives the close frame 5
_LONGEST_PAUSE = 300.0  # seconds; Discord allows 1,000 new sessions a day, then it resets the token
_STEADY_SECONDS = 300.0  # a connection that held so long was a good one


class HikariDiscord:
    """One bot account, connected. `async with` opens REST; the first `listen` opens the gateway.

    `rest` reads and writes (History, Outlet). Leaving the block closes both, however long hikari would go on trying.
    Raises ConfigError at once where the options cannot work.
    """

    def __init__(self, options: DiscordOptions, *, first_pause: float = 1.0) -> None:
        if not options.guild_ids:
            raise ConfigError('discord.guild_ids is not set: list the ids of your servers, as in guild_ids = ["123…"]')
        self._options = options
        self._memory = Memory()
        self.rest = HikariRest(options, self._memory)
        self._first_pause = first_pause
        self._ready = asyncio.Event()
        self._deliver: Deliver | None = None
        self._connection: asyncio.Task[None] | None = None
        self._bug: BaseException | None = None
        self._bug_met = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.rest.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deliver = None
        with move_on_after(_GOODBYE_SECONDS, shield=True) as scope:
            if self._connection:
                self._connection.cancel()
                await asyncio.wait({self._connection})
                _retrieved(self._connection)
            await self.rest.__aexit__(kind, error, traceback)
        if scope.cancelled_caught:
            _log.warning("discord_close_timed_out", seconds=_GOODBYE_SECONDS)

    async def wait_ready(self) -> None:
        """Return once Discord has welcomed us for the first time; does not fail when `listen` does."""
        await self._ready.wait()

    async def listen(self, deliver: Deliver) -> None:
        """Connect and call `deliver` for each event of our servers, in order, until cancelled.

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
        pause = self._first_pause
        while True:
            clock = asyncio.get_running_loop().time
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
            await self._hold(self._new_bot())
        except hikari.GatewayServerClosedConnectionError as error:
            if refusal := _FOR_GOOD.get(int(error.code or 0)):
                raise ConfigError(refusal) from None
            return f"closed by Discord with code {error.code}"
        except hikari.UnauthorizedError:
            raise ConfigError(LOGIN_REFUSED) from None
        except hikari.NotFoundError:
            raise ConfigError(
                "discord.rest_url: no Discord API answers there; it should be https://discord.com/api/v10"
            ) from None
        except (hikari.HTTPError, hikari.GatewayError, aiohttp.ClientError, DiscordUnavailableError) as error:
            return f"{type(error).__name__}: {error}"
        return "hikari ended it"

    def _new_bot(self) -> hikari.GatewayBot:
        bot = hikari.GatewayBot(
            self._options.token.reveal(),
            auto_chunk_members=False,
            banner=None,
            cache_settings=CacheSettings(components=CacheComponents.NONE),
            intents=_INTENTS,
            logs=None,
            rest_url=self._options.rest_url.rstrip("/"),
            suppress_optimization_warning=True,
        )
        bot.subscribe(hikari.ShardPayloadEvent, self._on_payload)
        return bot

    async def _hold(self, bot: hikari.GatewayBot) -> None:
        others = _shard_tasks()
        try:
            try:
                await bot.start(check_for_updates=False)
            except hikari.HikariError:  # which is a RuntimeError, too
                raise
            except RuntimeError as error:
                # hikari's word for a session limit that is used up, and for a shard that died while it was begun.
                raise DiscordUnavailableError(str(error)) from error
            await bot.join()
        finally:
            await _let_go(bot, others)

    async def _on_payload(self, event: hikari.ShardPayloadEvent) -> None:
        # hikari runs each call in a task of its own: they keep their order only as long as none of them waits.
        try:
            self._take(event.name, event.payload)
        except Exception as bug:  # noqa: BLE001 hikari would log it and go on; `listen` raises it
            self._bug = self._bug or bug
            self._bug_met.set()

    def _take(self, name: str, payload: Mapping[str, Any]) -> None:
        try:
            if name == "READY":
                self._welcome(msgspec.convert(payload, _Ready))
                return
            # Other servers and private messages go unread.
            place = msgspec.convert(payload or {}, _Place)
            if (place.id if name == "GUILD_CREATE" else place.guild_id) in self._options.guild_ids:
                self._tell(name, payload)
        except msgspec.ValidationError as error:
            _log.warning("discord_payload_unreadable", event_name=name, problem=str(error))

    def _welcome(self, ready: _Ready) -> None:
        self.rest.team = msgspec.structs.replace(self.rest.team, bot_id=ready.user.id)
        self._ready.set()
        _log.info("discord_ready", bot_id=ready.user.id)

    def _tell(self, name: str, payload: Mapping[str, Any]) -> None:
        event = event_of(name, payload, self.rest.team, self._memory)
        if isinstance(event, ChannelsSeen | ChannelGone):
            self._memory.take(event)
        elif event is not None and self._deliver is not None:
            self._deliver(event)


class _Place(msgspec.Struct, frozen=True):
    id: object = None
    guild_id: object = None


class _Self(msgspec.Struct, frozen=True):
    id: UserId


class _Ready(msgspec.Struct, frozen=True):
    user: _Self


def _shard_tasks() -> set[asyncio.Task[Any]]:
    """The tasks by which hikari holds connections; it gives no other handle on one that is not up yet."""
    return {task for task in asyncio.all_tasks() if "(shard " in task.get_name()}


async def _let_go(bot: hikari.GatewayBot, others: set[asyncio.Task[Any]]) -> None:
    """Close the bot, whatever it is at, and the tasks that hikari forgets. `others` are of somebody else's bot."""
    if not _shard_tasks() - others:
        # The connection is dead already; close() would report its end once more, with a traceback.
        bot._shards.clear()  # noqa: SLF001
    if bot.is_alive:
        await bot.close()
    # A start() that was cancelled leaves the task behind that dials on, a refused handshake its heartbeat.
    if forgotten := _shard_tasks() - others:
        for task in forgotten:
            task.cancel()
        await asyncio.wait(forgotten)


def _retrieved(task: asyncio.Task[None]) -> None:
    """Look at a task's end, so that asyncio does not complain that nobody did."""
    if not task.cancelled():
        task.exception()
