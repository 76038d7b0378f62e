"""One process that hosts many communities: each server that has the bot is one, as the registry lists them.

Discord says which servers were joined and left, and commands change the registry: both are followed here, with one
look at the database for all communities.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final

from anyio import Event, Lock, WouldBlock, create_memory_object_stream, create_task_group, current_time, sleep
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from intern.actors.events import Events
from intern.actors.interactions import register_commands
from intern.actors.loops import exponential_backoff, persistently, surviving, tell_delay
from intern.actors.pipeline import Parts
from intern.chat.dispatching import PrivateNotes
from intern.chat.platform import ChatPlatform, Deliver, Interactions
from intern.core import flow
from intern.core.clock import Clock, SystemClock, Wakeup
from intern.core.errors import ConfigError, KnowledgeError
from intern.core.ids import GuildId
from intern.core.log import get_logger
from intern.core.memory import set_aside
from intern.core.messages import ChatMessage
from intern.learning.archiving import Images
from intern.platforms.discord.attachments import AttachedImages
from intern.runtime.communities import Communities
from intern.runtime.known import guild_of
from intern.runtime.parts import Beside, Host, Platform, open_host, parts_of
from intern.service.communities import Registry, community_of, erase_left
from intern.service.hosted import Hosted
from intern.service.monitoring import Check, HealthChecks, count_request
from intern.service.running import Running
from intern.service.server_setup import ServerSetup, first_choice, greet
from intern.settings.communities import Community, settings_of
from intern.settings.loading import Settings
from intern.stores.sqlite.chat import CheckpointStore, Greeted
from intern.stores.sqlite.communities import REGISTRY, CommunityStore, Registered

try:
    import resource
except ModuleNotFoundError:  # pragma: no cover - not on Windows
    resource: Any = None  # type: ignore[no-redef]

_log = get_logger(__name__)

FILES_EACH: Final = 15
"""Files of an open community: 11, and a margin for those that are closing while others open."""
_FILES: Final = 256  # of the process: connections, its own database, what Python loads
LOOK_SECONDS: Final = 2.0
"""Between two looks at the registry and at jobs. A person waits at the other end."""
ERASE_SECONDS: Final = 3600.0
"""Between two looks for communities to erase, unless the registry changes."""
_MOST_WAITING = 1000  # events of a server that is about to become a community
_MOST_PRIVATE = 100  # private messages to be answered; a further one gets no notice

Serve = Callable[[GuildId, Settings | None], object]
"""Tells the platform which settings a server has; None: it is served no more."""
OpenParts = Callable[..., AbstractAsyncContextManager[Parts]]
"""Puts a community together, as `parts_of` does."""


def communities_of(
    host_of: Callable[[Community], Host],
    defaults: Settings,
    chat: ChatPlatform,
    interactions: Interactions,
    images: Images,
    *,
    elsewhere: Deliver = lambda _: None,
    parts: OpenParts = parts_of,
) -> Communities:
    """Return the communities of a process, still empty."""

    @asynccontextmanager
    async def opens(community: Community, own: ChatPlatform) -> AsyncGenerator[Parts]:
        settings = settings_of(community, defaults)
        await run_sync(lambda: settings.paths.sources.mkdir(parents=True, exist_ok=True))
        host = host_of(community)
        manage = ServerSetup(Registry(defaults, host.db, host.clock), community.name, host.clock)
        platform = Platform(own, interactions, images, manage)
        async with parts(host, community.name, settings, platform, events=Events(), jobs_came=Wakeup()) as opened:
            yield opened

    return Communities(
        chat,
        opens=opens,
        stands=lambda community: CheckpointStore(host_of(community).db.of(community.name)).stored(),
        elsewhere=elsewhere,
        most_open=defaults.hosting.open_communities,
    )


class Hosting:
    """The communities of a process, kept as the registry has them."""

    def __init__(
        self,
        host: Host,
        settings: Settings,
        platform: Platform,
        *,
        serve: Serve = lambda *_: None,
        register: Callable[[], Awaitable[None]] = checkpoint,
        parts: OpenParts = parts_of,
    ) -> None:
        """`register` makes our commands known on all servers."""
        self.registry = CommunityStore(host.db, clock=host.clock)
        self._host, self._settings, self._serve = host, settings, serve
        self._register = register
        self.communities = communities_of(
            lambda _: self._host, settings, *platform[:3], elsewhere=self._hear_elsewhere, parts=parts
        )
        self._notes = PrivateNotes(platform.chat, Greeted(host.db.of(REGISTRY), clock=host.clock))
        self._revision: object = None
        self._erases_at = 0.0
        self._chat = platform.chat
        self._changing = Lock()
        self._news: dict[GuildId, flow.GuildJoined | flow.GuildLeft] = {}
        self._came = Event()
        # Of servers that are no community: the session, and what comes while one becomes a community.
        self._sessions: dict[GuildId, flow.SessionStarted] = {}
        self._waiting: dict[GuildId, list[flow.GatewayEvent]] = {}
        self._written, self._private = create_memory_object_stream[ChatMessage](_MOST_PRIVATE)

    async def begin(self) -> None:
        """Know all communities that are active. Raises KnowledgeError."""
        await self._follow_registry()

    async def run(self, *, stop: Event) -> None:
        """Serve until `stop` is set or the gateway ends; then close all communities calmly."""
        async with self._written, self._private, create_task_group() as tg:
            register = partial(register_commands, self._register)
            for work in (self._see_to_news, self._see_to_private, self._look_regularly, register):
                tg.start_soon(work)
            await self.communities.run(stop=stop)
            tg.cancel_scope.cancel()

    # What Discord tells.

    def _hear_elsewhere(self, event: flow.GatewayEvent) -> None:
        guild_id = guild_of(event)
        match event:
            case flow.GuildJoined() | flow.GuildLeft():
                self._news[event.guild_id] = event
                self._waiting.setdefault(event.guild_id, [])
                self._came.set()
            case flow.SessionStarted():
                self._sessions[event.guild_id] = event
            case flow.MessageCreated(message=message) if guild_id is None:
                if message.author.type != "bot":
                    self._ask_for_note(message)
            case _:
                waiting = None if guild_id is None else self._waiting.get(guild_id)
                if waiting is not None and len(waiting) < _MOST_WAITING:
                    waiting.append(event)

    def _ask_for_note(self, message: ChatMessage) -> None:
        try:
            self._written.send_nowait(message)
        except WouldBlock:
            _log.warning("private_message_shed", message_id=message.id)

    async def _see_to_private(self) -> None:
        """Tell members who write in private to ask on their server, each once. No community learns of it."""
        async for message in self._private:
            with surviving("hosting", message_id=message.id):
                batch = flow.Batch(channel_id=message.channel_id, author=message.author, messages=(message,))
                await self._notes.answer(batch)

    async def _see_to_news(self) -> None:
        while True:
            await self._came.wait()
            self._came = Event()
            while self._news:
                guild_id, event = next(iter(self._news.items()))
                delayed = tell_delay(_log.warning, "server_delayed", guild_id=guild_id)
                await persistently(
                    partial(self._take, event), KnowledgeError, backoff=exponential_backoff(), delayed=delayed
                )
                if self._news[guild_id] is event:
                    del self._news[guild_id]
                    self._waiting.pop(guild_id, None)

    async def _take(self, event: flow.GuildJoined | flow.GuildLeft) -> None:
        async with self._changing:
            if isinstance(event, flow.GuildLeft):
                self._sessions.pop(event.guild_id, None)
                if left := await self.registry.leave(event.guild_id):
                    _log.info("community_left", community=left.name)
                    await self._drop(left.name)
                return
            known, is_new = await self.registry.join(event.guild_id, event.name, first_choice(event))
            _log.info("community_joined", community=known.name, is_new=is_new, state=known.state)
            if known.state == "active":
                await self._take_in(known)
        if is_new:
            await greet(event, self._chat, self._host.shared.wordings(self._settings))

    # What the registry says.

    async def _look_regularly(self) -> None:
        while True:
            with surviving("hosting"):
                await self._follow_registry()
                for name in await self.registry.with_jobs():
                    self.communities.due(name)
                if self._erases_at <= current_time():
                    await self._erase_left()
            await sleep(LOOK_SECONDS)

    async def _follow_registry(self) -> None:
        revision = await self.registry.revision()
        if revision == self._revision:
            return
        async with self._changing:
            active = {each.name: each for each in await self.registry.all() if each.state == "active"}
            await self._drop(*(self.communities.known.keys() - active.keys()))
            for each in active.values():
                await self._take_in(each)
        self._revision, self._erases_at = revision, 0.0

    async def _erase_left(self) -> None:
        """Erase what servers left behind that removed the bot a week ago. Most often, there is none."""
        self._erases_at = current_time() + ERASE_SECONDS
        host, is_closed = self._host, lambda name: name not in self.communities
        async with self._changing:
            await erase_left(self._settings, host.db, host.clock, is_closed=is_closed)

    async def _take_in(self, registered: Registered) -> None:
        """Serve a community from now on, or with its new settings."""
        name, known = registered.name, self.communities.known.get(registered.name)
        community = community_of(registered)
        if community == known:
            return
        try:
            settings = settings_of(community, self._settings)
        except ConfigError as error:
            _log.error("community_refused", community=name, reason=str(error))
            await self._drop(name)
            return
        for guild_id in community.guild_ids:
            self._serve(guild_id, settings)
            self._waiting.setdefault(guild_id, [])
        if known is None:
            await self.communities.add(community)
        else:
            self.communities.change(community)
        for event in self._heard_before(community.guild_ids):
            self.communities.hear(event)

    def _heard_before(self, guild_ids: Iterable[GuildId]) -> Iterable[flow.GatewayEvent]:
        for guild_id in guild_ids:
            if session := self._sessions.pop(guild_id, None):
                yield session
            yield from self._waiting.pop(guild_id, ())

    async def _drop(self, *names: str, at_once: bool = False) -> None:
        """Serve communities no more, and wait until they are closed."""
        known = self.communities.known
        async with create_task_group() as tg:
            for name in names:
                if name in known:
                    for guild_id in known[name].guild_ids:
                        self._serve(guild_id, None)
                    tg.start_soon(partial(self.communities.remove, name, at_once=at_once))


def allow_files(communities: int, limits: Any = resource) -> None:
    """Let this process open the files that so many open communities need. Raises ConfigError."""
    if limits is None:  # a system without such limits
        return
    needed = FILES_EACH * communities + _FILES
    soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
    if soft != limits.RLIM_INFINITY and soft < needed:
        try:
            limits.setrlimit(limits.RLIMIT_NOFILE, (needed, hard))
        except (ValueError, OSError):
            raise ConfigError(
                f"hosting.open_communities = {communities} needs {needed} open files, and this process may have {hard}:"
                f" raise the limit (systemd: LimitNOFILE={needed}, shell: ulimit -n {needed}), or lower"
                " hosting.open_communities"
            ) from None


@asynccontextmanager
async def hosting_on_discord(
    settings: Settings, *, clock: Clock, first_pause: float = 1.0, beside: Beside | None = None
) -> AsyncGenerator[Hosting]:
    """Open what all communities share, with real Discord; wait `first_pause` seconds before its second session."""
    from intern.platforms.discord.commands import HikariCommands, HostedCommands  # noqa: PLC0415 as below
    from intern.platforms.discord.gateway import HikariDiscord  # noqa: PLC0415 it costs a second of CPU, and commands need none

    settings.require_for_run()
    allow_files(settings.hosting.open_communities)
    async with (
        open_host(settings, clock) as host,
        # Each community chooses whether it reviews, and the reactions of all come by one connection.
        HikariDiscord(settings.discord, reactions=True, first_pause=first_pause, hosts=True) as hikari,
        AttachedImages() as images,
    ):

        def serve(guild_id: GuildId, own: Settings | None) -> None:
            if own is None:
                hikari.servers.drop(guild_id)
            else:
                theirs = own.discord
                hikari.servers.serve(guild_id, member_ids=theirs.team_member_ids, role_ids=theirs.team_role_ids)

        platform = Platform(hikari, HostedCommands(hikari, ()), images)
        register = HikariCommands(hikari, (), ready=hikari.wait_ready).register
        checks = HealthChecks(
            host.db, host.lock, clock=clock, is_open=lambda: hikari.is_open, elsewhere=tuple[Check, ...]
        )
        view = Hosted(registered=CommunityStore(host.db, clock=clock).all, checks=checks, clock=clock)
        parts = partial(parts_of, beside=_counted(beside, view)) if beside else parts_of
        hosting = Hosting(host, settings, platform, serve=serve, register=register, parts=parts)
        view.work = hosting.communities.work
        await hosting.begin()
        if beside:
            counters = beside.counters
            hikari.tell_requests(partial(count_request, counters), counters.reconnected)
        async with beside.hosting(view) if beside else nullcontext():
            yield hosting


def _counted(beside: Beside, view: Hosted) -> Beside:
    """Return the counters for each community; it has no page of its own, but the process's knows that it is open."""

    @asynccontextmanager
    async def noted(running: Running) -> AsyncGenerator[None]:
        name = running.stores.db.community
        view.open[name] = running
        try:
            yield
        finally:
            del view.open[name]

    return Beside(beside.counters, noted)


async def run_hosted(settings: Settings, *, stop: Event, beside: Beside | None = None) -> None:
    """Host all communities of the registry on real Discord until `stop` is set. asyncio only, for hikari is."""
    async with hosting_on_discord(settings, clock=SystemClock(), beside=beside) as hosting:
        with set_aside():
            await hosting.run(stop=stop)
