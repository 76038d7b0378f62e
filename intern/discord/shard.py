"""hikari's gateway connection without the rest of its bot: raw payloads go straight to whoever listens. asyncio only.

hikari resumes and reconnects by itself. Two things are added: a new session is begun only when `SessionStarts` allows
it, and nothing is left behind, wherever the connection is cancelled. (Its own `start` leaves a task that dials on.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import hikari
from hikari.api import EventFactory, EventManager
from hikari.impl import GatewayShardImpl, HTTPSettings, ProxySettings

from intern.discord.sessions import SessionStarts
from intern.observe.log import get_logger

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
