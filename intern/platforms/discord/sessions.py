"""Gateway sessions: what a new one begins with, and how often one may be begun.

hikari's gateway connection without the rest of its bot: raw payloads go straight to whoever listens. asyncio only.

hikari resumes and reconnects by itself. Two things are added: a new session is begun only when `SessionStarts` allows
it, and nothing is left behind, wherever the connection is cancelled. (Its own `start` leaves a task that dials on.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any, Final, cast

import hikari
import msgspec
from hikari.api import EventFactory, EventManager
from hikari.impl import GatewayShardImpl, HTTPSettings, ProxySettings
from msgspec import Struct

from intern.core.flow import ChannelSeen, SessionStarted
from intern.core.ids import ChannelId, GuildId, RoleId, UserId
from intern.core.log import get_logger
from intern.platforms.discord.audience import RawPermissions, RawRole, may_read, permissions
from intern.platforms.discord.channels import RawChannel, channel_of
from intern.platforms.discord.reading import fitted, readable
from intern.platforms.discord.wire import RawMember

# Discord resets the token of a bot that begins more than 1,000 sessions within 24 hours (its reference, "Gateway",
# "Session Start Limit").
_A_DAY: Final = 24 * 3600.0  # seconds
_OURS: Final = 0.9  # the share of them that we use
_MOST: Final = 900
_LATELY: Final = 3600.0  # sessions begun within these seconds make the next one wait longer
_LONGEST_PAUSE: Final = 96.0  # seconds: as many sessions as a day has


class _User(Struct, frozen=True):
    id: UserId


class _Member(RawMember, frozen=True, kw_only=True):
    user: _User


class _Tags(Struct, frozen=True):
    bot_id: UserId | None = None


class _TaggedRole(Struct, frozen=True):
    id: RoleId
    tags: _Tags = _Tags()


class _GuildCreated(Struct, frozen=True):
    id: GuildId
    unavailable: bool | None = None
    roles: list[Any] | None = None
    members: list[Any] | None = None
    channels: list[Any] | None = None
    threads: list[Any] | None = None


def session_of(payload: Mapping[str, Any], bot_id: UserId) -> SessionStarted | None:
    """What a GUILD_CREATE tells: the channels and active threads that the bot can read; None for an outage.

    Discord sends one for each server at the start of a session, and when a server comes back or is joined: always,
    what happened there before was not told. Never after a resume. Raises msgspec.ValidationError.
    """
    told = fitted(payload, _GuildCreated)
    if told.unavailable:
        return None
    open_to_us = _readable_by(told, bot_id)
    channels = [raw for raw in readable(told.channels, RawChannel) if raw.id in open_to_us and raw.holds_messages]
    threads = [raw for raw in readable(told.threads, RawChannel) if raw.is_thread and raw.parent_id in open_to_us]
    seen = [msgspec.structs.replace(raw, guild_id=told.id) for raw in (*channels, *threads)]
    kinds = {raw.id: raw.type for raw in channels}
    return SessionStarted(
        guild_id=told.id,
        channels=tuple(ChannelSeen(channel=channel_of(raw, kinds), last_message_id=raw.newest) for raw in seen),
    )


def own_roles(payload: Mapping[str, Any], bot_id: UserId) -> frozenset[RoleId]:
    """The roles that a GUILD_CREATE tells to be the bot's own. Raises msgspec.ValidationError."""
    told = fitted(payload, _GuildCreated)
    return frozenset(role.id for role in readable(told.roles, _TaggedRole) if role.tags.bot_id == bot_id)


def _readable_by(told: _GuildCreated, bot_id: UserId) -> set[ChannelId]:
    roles = {role.id: role.bits for role in readable(told.roles, RawRole)}
    channels = list(readable(told.channels, RawPermissions))
    ours = next((member.role_ids or () for member in readable(told.members, _Member) if member.user.id == bot_id), None)
    if ours is None or not roles:
        return {channel.id for channel in channels}  # Discord will say itself what we may not read
    return {
        channel.id
        for channel in channels
        if may_read(permissions(told.id, roles, channel.overwrites, held=ours, member=bot_id), channel.type)
    }


class SessionStarts:
    """When the next session may be begun: after pauses that grow with how many there were lately; at most 900 a day.

    Times are seconds of any clock that only goes forward. Pure: somebody else waits.
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
        """A session is begun."""
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


_log = get_logger(__name__)

Take = Callable[[str, Mapping[str, Any]], None]

INTENTS: Final = (
    hikari.Intents.GUILDS | hikari.Intents.GUILD_MESSAGES | hikari.Intents.DM_MESSAGES | hikari.Intents.MESSAGE_CONTENT
)
REACTIONS: Final = hikari.Intents.GUILD_MESSAGE_REACTIONS
"""Needs no permission of anybody's, but brings every reaction: asked for only where one can mean something."""


class _Sink:
    """Stands where a shard expects hikari's event manager and event factory, as far as it calls them."""

    def __init__(self, take: Take, connected: Callable[[], object]) -> None:
        self._take = take
        self._connected = connected

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
        self,
        *,
        token: str,
        url: str,
        starts: SessionStarts,
        take: Take,
        connected: Callable[[], object] = lambda: None,
        intents: hikari.Intents = INTENTS,
    ) -> None:
        sink: Any = _Sink(take, connected)
        super().__init__(
            event_factory=cast("EventFactory", sink),
            event_manager=cast("EventManager", sink),
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
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not complain that nobody did

    async def _let_go(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
