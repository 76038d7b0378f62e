"""The connection that tells what happens on Discord, by hikari's gateway. asyncio only.

hikari hands on raw payloads, `wire` reads them; nothing is cached but what `Memory` and `Audience` hold. hikari resumes
and reconnects by itself; what it takes for the end although Discord does not is begun anew here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import hikari
import msgspec
from anyio import create_task_group, move_on_after

from intern.core.errors import ChatError, ChatNotFoundError, ChatUnauthorizedError, ConfigError
from intern.core.flow import GatewayEvent
from intern.core.ids import GuildId, UserId
from intern.core.log import get_logger
from intern.core.messages import Channel, MemberRoles
from intern.platforms.discord.audience import Audience
from intern.platforms.discord.channels import ChannelGone, ChannelsSeen, Memory
from intern.platforms.discord.commands import interaction_of
from intern.platforms.discord.options import DiscordOptions
from intern.platforms.discord.rest import LOGIN_REFUSED, HikariRest
from intern.platforms.discord.sessions import INTENTS, REACTIONS, SessionStarts, Shard, own_roles, session_of
from intern.platforms.discord.wire import event_of

_log = get_logger(__name__)

Deliver = Callable[[GatewayEvent], None]

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
_LONGEST_PAUSE = 96.0  # seconds; nobody is heard meanwhile, and a day has 900 sessions
_STEADY_SECONDS = 300.0  # a connection that held so long was a good one


class HikariDiscord(HikariRest):
    """One bot account, connected. `async with` opens REST; the first `listen` opens the gateway.

    Leaving the block closes both, however long hikari would go on trying.
    Raises ConfigError at once where the options cannot work.
    """

    def __init__(
        self, options: DiscordOptions, *, reactions: bool = False, first_pause: float = 1.0, max_retries: int = 3
    ) -> None:
        """With `reactions`, a ✅ of somebody of the team is told as an Approval."""
        if not options.guild_ids:
            raise ConfigError('discord.guild_ids is not set: list the ids of your servers, as in guild_ids = ["123…"]')
        super().__init__(options, Memory(), max_retries=max_retries)
        self._options = options
        self._intents = INTENTS | REACTIONS if reactions else INTENTS
        self.guild_ids = tuple(options.guild_ids)  # no set: what a payload compares with them may be anything
        self._audience = Audience(options.listed_channel_ids)
        self._first_pause = first_pause
        self._starts = SessionStarts(first_pause)
        self._ready = asyncio.Event()
        self._told: set[GuildId] = set()  # of these servers, this session's GUILD_CREATE was heard
        self._deliver: Deliver | None = None
        self._connection: asyncio.Task[None] | None = None
        self._shard: Shard | None = None
        self._bug: BaseException | None = None
        self._bug_met = asyncio.Event()
        self._was_connected = False
        self._reconnected: Callable[[], object] = lambda: None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deliver = None
        with move_on_after(_GOODBYE_SECONDS, shield=True) as scope:
            async with create_task_group() as tg:
                tg.start_soon(super().__aexit__, kind, error, traceback)
                if self._connection:
                    self._connection.cancel()
                    await asyncio.wait({self._connection})
                    _retrieved(self._connection)
        if scope.cancelled_caught:
            _log.warning("discord_close_timed_out", seconds=_GOODBYE_SECONDS)

    @property
    def is_open(self) -> bool:
        """Whether a session is open right now, so that what happens on Discord is told."""
        return self._shard is not None and self._shard.is_connected

    def admits(self, channel: Channel) -> bool:
        """Whether everyone can read the channel, or the operator listed it."""
        return self._audience.admits(channel)

    async def told(self, guild_id: GuildId | None) -> None:
        """Wait until Discord has told of the server; until then all of it is closed."""
        await self._audience.told(guild_id)

    def tell_requests(
        self, requested: Callable[[type[ChatError] | None], object], reconnected: Callable[[], object]
    ) -> None:
        """Tell each request that ended, with what it raises, and each connection after the first, however it came back.

        Neither must raise.
        """
        self.counted, self._reconnected = requested, reconnected

    def noted_roles(self) -> tuple[MemberRoles, ...]:
        """What was learned of members' roles since this was asked last, or as much of it as is remembered."""
        return self._memory.noted_roles()

    def recall_roles(self, known: Iterable[MemberRoles]) -> None:
        """Take what an earlier start had learned of members' roles for true, until Discord tells otherwise."""
        self._memory.recall_roles(known)

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
            self._shard = self._new_shard(await self._address())
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
            raise ConfigError(
                "discord.rest_url: no Discord API answers there; it should be https://discord.com/api/v10"
            ) from None
        if limit := door.session_start_limit:
            self._starts.told(
                total=limit.total,
                remaining=limit.remaining,
                reset_after=limit.reset_after / 1000,
                now=asyncio.get_running_loop().time(),
            )
        return door.url

    def _new_shard(self, url: str) -> Shard:
        token = self._options.token.reveal().strip()
        return Shard(
            token=token,
            url=url,
            starts=self._starts,
            take=self._hear,
            connected=self._connected,
            intents=self._intents,
        )

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
                self._welcome(msgspec.convert(payload, _Ready))
                return
            if name == "INTERACTION_CREATE":
                # From wherever it comes, it wants an answer.
                self._interact(payload)
                return
            place = msgspec.convert(payload or {}, _Place)
            server = place.id if name in _ABOUT_SERVERS else place.guild_id
            if server is None and name == "MESSAGE_CREATE":
                self._tell(None, name, payload)
            # Other servers go unread.
            elif server in self.guild_ids:
                self._tell(GuildId(str(server)), name, payload)
        except msgspec.ValidationError as error:
            _log.warning("discord_payload_unreadable", event_name=name, problem=str(error))

    def _welcome(self, ready: _Ready) -> None:
        self.team = msgspec.structs.replace(self.team, bot_id=ready.user.id)
        self._told.clear()
        self._ready.set()
        _log.info("discord_ready", bot_id=ready.user.id)

    def _tell(self, server: GuildId | None, name: str, payload: Mapping[str, Any]) -> None:
        self._audience.hear(name, payload)
        if name == "GUILD_CREATE":
            team = self.team
            roles = team.bot_roles | own_roles(payload, team.bot_id)
            self.team = msgspec.structs.replace(team, bot_roles=roles)
        event = event_of(name, payload, self.team, self._memory)
        if isinstance(event, ChannelsSeen | ChannelGone):
            self._memory.take(event)
        elif event is not None and (server is None or server in self._told):
            # What comes before its server is history by the time that the server comes.
            self._hand_on(event)
        if name == "GUILD_CREATE" and (started := session_of(payload, self.team.bot_id)):
            _log.info("discord_session_started", guild_id=started.guild_id, channels=len(started.channels))
            self._told.add(started.guild_id)
            self._hand_on(started)

    def _interact(self, payload: Mapping[str, Any]) -> None:
        if interaction := interaction_of(payload, self.team, self._memory):
            self._hand_on(interaction)

    def _hand_on(self, event: GatewayEvent) -> None:
        if self._deliver is not None:
            self._deliver(event)


_ABOUT_SERVERS: Final = frozenset({"GUILD_CREATE", "GUILD_DELETE"})  # they call the server's id `id`


class _Place(msgspec.Struct, frozen=True):
    id: object = None
    guild_id: object = None


class _Self(msgspec.Struct, frozen=True):
    id: UserId


class _Ready(msgspec.Struct, frozen=True):
    user: _Self


def _retrieved(task: asyncio.Task[None]) -> None:
    """Look at a task's end, so that asyncio does not complain that nobody did."""
    if not task.cancelled():
        task.exception()
